"""A part of a model as files that show a fault by themselves: the graph's text, its values, and Python that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy
import torch

from mobopt.display import shown
from mobopt.errors import InputError
from mobopt.files import whole_file
from mobopt.ir import Graph, named_constants, print_graph
from mobopt.ir.straight_line import as_program
from mobopt.ops.contexts import PackedContext
from mobopt.options import Precision
from mobopt.runtimes.half_ranges import HALVES
from mobopt.samples.inputs import array_of
from mobopt.tools.comparison_work import Sample

FILES = ("program.txt", "before.txt", "values.npz", "run.py")
"""What a folder holds; ``before.txt`` only if it is known."""

_RUN = '''"""{title}

Run it with ``python run.py [DEVICE]``: cpu, vulkan, or a part of a device's name. Exit code 1 if it shows the fault.
"""

import sys
from pathlib import Path

import numpy
import torch

from mobopt.ir import Program, parse_graph
{imports}from mobopt.runtimes.cpu import Interpreter

FOLDER = Path(__file__).parent
DEVICE = sys.argv[1] if len(sys.argv) > 1 else {device!r}
TOLERANCE = {tolerance!r}
values = {{name: torch.from_numpy(array) for name, array in numpy.load(FOLDER / "values.npz").items()}}

constants = {{
{constants}}}
program = Program({{"forward": parse_graph((FOLDER / "program.txt").read_text(encoding="utf-8"), constants)}})
inputs = [{inputs}]
expected = {expected}

if DEVICE == "cpu":
    found = Interpreter(program).run("forward", inputs)
else:
    from mobopt.options import PrecisionChoice
    from mobopt.runtimes.vulkan.program import VulkanProgram

    device = None if DEVICE == "vulkan" else DEVICE
    found = VulkanProgram(program, device, precision=PrecisionChoice({precision!r})).run("forward", inputs)
{rounding}error = (found.double() - expected.double()).abs().max() / expected.double().abs().max()
print(f"on {{DEVICE}}: the error is {{error:.1e}} of the scale; {{TOLERANCE:g}} is let pass")
sys.exit(not error <= TOLERANCE)
'''


_ROUNDING = """    found = found.to({}).float()  # as it is stored in the middle of a model
"""


def write_sample(
    sample: Sample, folder: Path, *, title: str, device: str, tolerance: float, precision: Precision = "fp32"
) -> list[Path]:
    """Write the files.

    Args:
        sample: the part, and the reference's values.
        folder: is made if need be; files of these names in it are replaced.
        title: what it shows, in a sentence.
        device: where the fault is seen.
        tolerance: the error that is let pass.
        precision: of the device.

    Returns:
        The files.

    Raises:
        InputError: the folder can't be written.
        GraphError: the part has no form as a Program.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"can't make the folder {folder}: {error.strerror or error}; choose another") from None
    graph = as_program(sample.part).methods["forward"]
    values = _Values()
    constants = "".join(f"    {name!r}: {values.text(item)},\n" for name, item in named_constants(graph).items())
    inputs = ", ".join(values.text(tensor) for tensor in sample.inputs)
    expected = values.text(sample.expected)
    classes = sorted(values.classes)
    script = _RUN.format(
        title=" ".join(shown(title).replace("\\", "/").replace('"', "'").split()),
        imports=f"from mobopt.ops.contexts import {', '.join(classes)}\n" if classes else "",
        device=device,
        tolerance=tolerance,
        precision=precision,
        rounding=_ROUNDING.format(HALVES[precision]) if precision in HALVES else "",
        constants=constants,
        inputs=inputs,
        expected=expected,
    )
    written = [folder / "program.txt", folder / "values.npz", folder / "run.py"]
    _write_text(written[0], _text_of(graph))
    with whole_file(written[1]) as file:
        numpy.savez(file, **values.arrays)  # type: ignore[arg-type]
    _write_text(written[2], script)
    if sample.before is not None:
        written.append(folder / "before.txt")
        _write_text(written[-1], _text_of(as_program(sample.before).methods["forward"]))
    return written


def _text_of(graph: Graph) -> str:
    return shown(print_graph(graph, sources=True, digests=False))


def _write_text(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


class _Values:
    """Tensors of a script by name, and the Python that makes values of them."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.classes: set[str] = set()

    def text(self, value: Any) -> str:
        """Python for a value."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, PackedContext):
            self.classes.add(type(value).__name__)
            state = zip(fields(value), value.state(), strict=True)
            return f"{type(value).__name__}({', '.join(f'{item.name}={self.text(part)}' for item, part in state)})"
        if isinstance(value, (list, tuple)):
            items = ", ".join(map(self.text, value))
            return f"[{items}]" if isinstance(value, list) else f"({items},)"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{key!r}: {self.text(item)}' for key, item in value.items())}}}"
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
            return f"float({str(value)!r})"
        return repr(value)

    def _tensor(self, tensor: torch.Tensor) -> str:
        name = f"tensor{len(self.arrays)}"
        plain = tensor.detach().cpu().contiguous()
        self.arrays[name] = array_of(plain)
        return f'values["{name}"]' + (".bfloat16()" if plain.dtype == torch.bfloat16 else "")
