"""What a pass is, and how a list of passes is run."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

from mobopt.errors import PassError
from mobopt.ir import Graph, Program, print_graph, verify
from mobopt.passes.facts import Examples
from mobopt.passes.inference import check_facts
from mobopt.passes.notes import Note, NoteBook

_LOG = logging.getLogger("mobopt.passes")


@dataclass(frozen=True)
class PassResult:
    """What a pass says about its run."""

    changed: bool
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class PassRun:
    """One pass of a pipeline's run."""

    name: str
    result: PassResult
    seconds: float


class After(NamedTuple):
    """A pass that must stand before another in a pipeline."""

    name: str
    why: str
    is_needed: bool = False
    """Whether it must be there at all; else it only must not stand behind."""


@dataclass(frozen=True)
class Pass(ABC):
    """A rewrite of a Program, in place; the dataclass's fields are its options."""

    name: ClassVar[str]
    after: ClassVar[tuple[After, ...]] = ()
    """What it asks of the passes before it."""

    def with_examples(self, examples: Examples) -> Pass:
        """This pass, judging by these example inputs if it asks for any: if it has a field ``examples``."""
        choices: dict[str, Any] = {item.name: examples for item in fields(self) if item.name == "examples"}
        return replace(self, **choices) if choices else self

    def at_most(self, count: int) -> Pass | None:
        """This pass, ending after so many rewrites, for which it makes one note each; None if it can't: without a
        field ``most``. Bisections find the rewrite to blame by it."""
        choices: dict[str, Any] = {item.name: count for item in fields(self) if item.name == "most"}
        return replace(self, **choices) if choices else None

    @abstractmethod
    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Change the program; say whether anything changed."""

    def run(self, program: Program) -> PassResult:
        """Rewrite a program.

        Raises:
            PassError: the graph has a form that the pass can't leave valid; the message names the node.
        """
        book = NoteBook(self.name)
        changed = self.rewrite(program, book)
        return PassResult(changed, tuple(book.notes))


class GraphPass(Pass):
    """A pass that looks at one method at a time."""

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Rewrite every method."""
        changed = [self.rewrite_graph(graph, notes) for graph in program.methods.values()]
        return any(changed)

    @abstractmethod
    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        """Change one method's graph; say whether anything changed."""


def graph_pass(name: str, after: tuple[After, ...] = ()) -> Callable[[Callable[[Graph, NoteBook], bool]], GraphPass]:
    """Make a pass of a function that changes a method's graph and says whether anything changed.

    Args:
        name: of the pass, in pipelines and notes.
        after: what it asks of the passes before it.
    """

    def make(function: Callable[[Graph, NoteBook], bool]) -> GraphPass:
        def rewrite_graph(self: GraphPass, graph: Graph, notes: NoteBook) -> bool:
            return function(graph, notes)

        members = {"name": name, "after": after, "__doc__": function.__doc__}
        made: type[GraphPass] = type(function.__name__, (GraphPass,), {**members, "rewrite_graph": rewrite_graph})
        return made()

    return make


def run_passes(
    program: Program,
    passes: Iterable[Pass],
    check: bool = False,
    on_pass: Callable[[PassRun, Program], None] | None = None,
) -> list[PassRun]:
    """Run passes in order, changing the program.

    Args:
        program: what to rewrite; :meth:`~mobopt.ir.Program.clone` it first to keep the original.
        passes: the pipeline.
        check: verify the program after each pass, and that what it says about ``changed`` is true.
        on_pass: called after each pass with what it said and the program.

    Raises:
        PassError: with ``check``, a pass left a broken graph or told a falsehood.
    """
    runs: list[PassRun] = []
    for item in passes:
        before = _fingerprint(program) if check else ""
        start = time.perf_counter()
        result = item.run(program)
        runs.append(PassRun(item.name, result, time.perf_counter() - start))
        _LOG.debug("%s: changed=%s, %d notes", item.name, result.changed, len(result.notes))
        if check:
            _check(item, program, result, before)
        if on_pass is not None:
            on_pass(runs[-1], program)
    return runs


def _check(item: Pass, program: Program, result: PassResult, before: str) -> None:
    try:
        verify(program)
        check_facts(program)
    except Exception as error:
        raise PassError(f"pass {item.name} left a broken graph: {error}") from error
    if result.changed != (_fingerprint(program) != before):
        raise PassError(f"pass {item.name} says changed={result.changed}, which is not so")


def _fingerprint(program: Program) -> str:
    """Everything of a program that a pass may change, but for the elements of tensors."""
    graphs = [f"{name} {print_graph(graph, digests=False, facts=False)}" for name, graph in program.methods.items()]
    overloads = [node.overload for graph in program.methods.values() for node in graph.walk()]
    attributes = [f"{name} {item.type} {id(item.value)}" for name, item in program.attributes.items()]
    return "\n".join([*graphs, *overloads, *attributes])
