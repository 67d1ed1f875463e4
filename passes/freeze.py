"""Attributes that no method changes become constants, which later passes fold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.ir import Attribute, Graph, Program, Value
from mobopt.ir.graph import type_of_constant
from mobopt.ir.types import ANY, OptionalType, Type
from mobopt.ops.state import changed_attributes
from mobopt.passes.constant_folding import ConstantFolding
from mobopt.passes.constant_propagation import ConstantPropagation
from mobopt.passes.dead_code_elimination import DeadCodeElimination
from mobopt.passes.manager import Pass
from mobopt.passes.notes import NoteBook
from mobopt.passes.repeat import Repeat
from mobopt.passes.rewriting import bypass_node, tensor_key

_RESOLVE = Repeat((ConstantFolding(), ConstantPropagation(), DeadCodeElimination()))
"""What takes out branches that are never taken."""


@dataclass(frozen=True)
class Freeze(Pass):
    """Make constants of attributes that are neither assigned to nor changed in place, and drop those that nobody reads.

    Given:
        %t : bool = prim::GetAttr[name="training"](%self)
        %w : Tensor = prim::GetAttr[name="weight"](%self)
        %y : Tensor = aten::linear(%x, %w, %b)
    Result:
        %w : Tensor = prim::Constant[value=<Tensor float32 [4, 3]>]()
        %y : Tensor = aten::linear(%x, %w, %b)

    A write that only happens while training does not count once ``training`` is False: branches are resolved, and what
    is then no longer written becomes constant too. An attribute stays if one that is written shares its memory.
    """

    name = "freeze"
    preserved: tuple[str, ...] = ()
    """Attributes that stay what they are."""

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Replace reads until no more attributes turn out to be constant."""
        changed = _make_constants(program, self._plain(program))  # ``training`` is one of these
        if changed:
            _RESOLVE.run(program)
        while _make_constants(program, self._unchanged(program)):
            _RESOLVE.run(program)
            changed = True
        read = {name for graph in program.methods.values() for name in _accessed(graph)}
        unused = [name for name in program.attributes if name not in read and name not in self.preserved]
        for name in unused:
            del program.attributes[name]
        return changed or bool(unused)

    def _plain(self, program: Program) -> dict[str, Attribute]:
        """Numbers and strings, which can't be changed in place, that no method assigns to."""
        nodes = [node for graph in program.methods.values() for node in graph.walk() if node.op == "prim::SetAttr"]
        left_out = {*self.preserved, *(node.attributes["name"] for node in nodes)}
        return {
            name: item
            for name, item in program.attributes.items()
            if name not in left_out and isinstance(item.value, (bool, int, float, str, type(None)))
        }

    def _unchanged(self, program: Program) -> dict[str, Attribute]:
        """What no method changes, by whatever name it knows it."""
        left_out = {*self.preserved, *changed_attributes(program)}
        return {name: item for name, item in program.attributes.items() if name not in left_out}


def _make_constants(program: Program, fixed: dict[str, Attribute]) -> bool:
    changed = [_replace_reads(graph, fixed) for graph in program.methods.values()]
    return any(changed)


def _replace_reads(graph: Graph, fixed: dict[str, Attribute]) -> bool:
    """Put constants in the place of reads of these attributes; tensors of the same memory are one Value."""
    known: dict[Any, Value] = {}
    changed = False
    for node in graph.walk():
        if node.op != "prim::GetAttr" or node.attributes["name"] not in fixed:
            continue
        name = node.attributes["name"]
        item = fixed[name]
        key = tensor_key(item.value) if isinstance(item.value, torch.Tensor) and item.value.numel() else name
        if key not in known:
            known[key] = graph.constant(item.value, _narrowed(item), name=f"self.{name}")
            known[key].attribute = name
        bypass_node(node, known[key])
        changed = True
    return changed


def _narrowed(item: Attribute) -> Type:
    """The attribute's type, or the value's own where the type leaves it open."""
    is_open = isinstance(item.type, OptionalType) or item.type == ANY
    inner = item.type.element if isinstance(item.type, OptionalType) else item.type
    if not is_open or (item.value is not None and inner != ANY):
        return inner
    return type_of_constant(item.value)


def _accessed(graph: Graph) -> Iterator[str]:
    """Attributes that a method reads or assigns to."""
    for node in graph.walk():
        if node.op in ("prim::GetAttr", "prim::SetAttr"):
            yield node.attributes["name"]
