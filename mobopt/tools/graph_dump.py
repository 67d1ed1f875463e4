"""The text of a model before and after the passes that change it, in numbered files."""

from __future__ import annotations

from pathlib import Path

from mobopt.errors import InputError
from mobopt.files import whole_file
from mobopt.ir import Program, print_graph
from mobopt.passes.manager import PassRun


class GraphDump:
    """Writes ``00-model.txt``, and after each pass that changes something ``NN-name.txt``, where NN is its place in the
    pipeline, from 1."""

    def __init__(self, folder: Path, program: Program) -> None:
        """Write the model as it is before the passes.

        Raises:
            InputError: the folder can't be made, or written to.
        """
        self._folder = folder
        self._passes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder} can't be made: {error.strerror}; name another folder") from None
        self._write("model", program)

    def __call__(self, run: PassRun, program: Program) -> None:
        """Write what a pass has left."""
        self._passes += 1
        if run.result.changed:
            self._write(run.name, program)

    def _write(self, name: str, program: Program) -> None:
        with whole_file(self._folder / f"{self._passes:02}-{name}.txt") as file:
            file.write(program_text(program).encode())


def program_text(program: Program) -> str:
    """The methods of a Program and the names and types of its attributes, as text."""
    parts = [f"# {name}\n{print_graph(graph, sources=True)}" for name, graph in program.methods.items()]
    if program.size_symbols.symbols:
        symbols = [f"{item}  # {item.origin}\n" for item in program.size_symbols.symbols.values()]
        parts.append(f"# sizes\n{''.join(symbols)}")
    if program.attributes:
        lines = [f"{name} : {item.type}\n" for name, item in program.attributes.items()]
        parts.append(f"# attributes\n{''.join(lines)}")
    return "\n".join(parts)
