"""The plain form of a model: operators that every PyTorch has, and weights that are parameters and buffers by name.

Every way out begins here; written as it is, it is a ``.pt`` file that ``torch.jit.load`` opens.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.ir import Attribute, Graph, InsertionPoint, Node, Program, Value
from mobopt.ir.types import TENSOR, ListType
from mobopt.ops.effects import schema_of_node
from mobopt.passes.canonicalize import NameConvolutions
from mobopt.passes.expand_weights import ExpandWeights
from mobopt.passes.fold_prepack import FoldPrepack
from mobopt.passes.manager import run_passes
from mobopt.passes.notes import Note
from mobopt.passes.remove_transfers import RemoveTransfers
from mobopt.passes.rewriting import insert_node, tensor_key
from mobopt.passes.unpack import Unpack

_TRAINED = ("weight", "bias", "params")
"""Arguments of operators that are parameters, where the file does not say."""


@dataclass(frozen=True)
class PlainModel:
    """A model in its plain form, and what was done to make it so."""

    program: Program
    """Its tensors are attributes; numbers are constants."""
    notes: tuple[Note, ...]


def plain_model(program: Program) -> PlainModel:
    """The plain form of a model.

    Args:
        program: the model with constants, as frontends give it; never changed.

    Raises:
        UnsupportedError: the model packs weights that it computes itself.
    """
    result = program.clone()
    runs = run_passes(result, [FoldPrepack(), Unpack(), ExpandWeights(), NameConvolutions(), RemoveTransfers()])
    _Namer(result).name_all()
    return PlainModel(result, tuple(note for run in runs for note in run.result.notes))


class _Namer:
    """Makes attributes of the tensors that are constants of graphs; what is one tensor stays one."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.known: dict[Any, tuple[str, bool]] = program.metadata.get("names", {})
        self.names: dict[Any, str] = {}
        self.layers: dict[Node, str] = {}
        self.counts: Counter[str] = Counter()

    def name_all(self) -> None:
        """In every method."""
        for graph in self.program.methods.values():
            reads: dict[str, Value] = {}
            for node in [*graph.walk(), *_returns(graph)]:
                for index, value in enumerate(node.inputs):
                    if value.is_constant and self._is_weight(value.constant):
                        node.replace_input(index, _read(graph, self._name(value.constant, node, index), reads))
                    elif value.is_constant and _is_list_of_tensors(value.constant):
                        node.replace_input(index, self._list(graph, node, index, reads))

    def _is_weight(self, known: Any) -> bool:
        """Whether a constant is a tensor, and no number that a trace keeps as one."""
        return isinstance(known, torch.Tensor) and (known.dim() > 0 or tensor_key(known) in self.known)

    def _list(self, graph: Graph, node: Node, index: int, reads: dict[str, Value]) -> Value:
        tensors = node.inputs[index].constant
        names = [self._name(tensor, node, index, f".{number}") for number, tensor in enumerate(tensors)]
        return insert_node(
            graph, node, "prim::ListConstruct", [_read(graph, name, reads) for name in names], type=ListType(TENSOR)
        )

    def _name(self, tensor: torch.Tensor, node: Node, index: int, end: str = "") -> str:
        """The attribute that holds a tensor, made if there is none yet."""
        key = tensor_key(tensor) if tensor.numel() else id(tensor)
        if key not in self.names:
            if key in self.known:
                name, is_buffer = self.known[key]
            else:
                reader, argument, place = _argument(node, index)
                name = f"{self._layer(reader)}.{argument}{place}{end}" if argument else "constant"
                is_buffer = argument not in _TRAINED
            self.names[key] = name = self._free(name)
            self.program.attributes[name] = Attribute(TENSOR, tensor.detach(), not is_buffer, is_buffer)
        return self.names[key]

    def _layer(self, node: Node) -> str:
        """What the file does not name is named after the first operator that reads it, and its number among such."""
        if node not in self.layers:
            kind = node.op.partition("::")[2]
            self.layers[node] = f"{kind}_{self.counts[kind]}"
            self.counts[kind] += 1
        return self.layers[node]

    def _free(self, wanted: str) -> str:
        name, count = wanted, 0
        while name in self.program.attributes:
            count += 1
            name = f"{wanted}_{count}"
        return name


def _read(graph: Graph, name: str, reads: dict[str, Value]) -> Value:
    """The attribute, read where the method begins."""
    if name not in reads:
        read = graph.create("prim::GetAttr", [graph.inputs[0]], attributes={"name": name}, names=[name])
        reads[name] = InsertionPoint.start(graph.block).insert(read).output
    return reads[name]


def _argument(node: Node, index: int) -> tuple[Node, str, str]:
    """The operator that reads an input, what its schema calls it, and the place in a list."""
    place = ""
    if node.op == "prim::ListConstruct" and len(node.output.uses) == 1:
        place = f".{index}"
        ((node, index),) = node.output.uses
    schema = schema_of_node(node)
    return node, "" if schema is None or schema.is_variadic else schema.arguments[index].name, place


def _returns(graph: Graph) -> list[Node]:
    nested = [block.returns for node in graph.walk() for block in node.blocks]
    return [*nested, graph.block.returns]


def _is_list_of_tensors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], torch.Tensor)
