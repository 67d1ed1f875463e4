"""The methods of a tapped file: a method that returns values in between beside what it returned, and one without
arguments that does so on inputs that the file holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.errors import UnsupportedError
from mobopt.frontends.source import bundled_for
from mobopt.ir import Graph, Node, Origin, Program, Value
from mobopt.ir.arguments import argument_name
from mobopt.ir.origin import ModelNode
from mobopt.ir.program import copy_block_into, describe
from mobopt.ir.types import INT, STR, TENSOR, DictType, ListType, OptionalType, TupleType, Type
from mobopt.ops.aliases import Aliases
from mobopt.tools.app_kit.names import distinct, file_name
from mobopt.tools.taps.nodes import NodeWriter
from mobopt.tools.taps.statistics import sampling_step, write_statistics
from mobopt.tools.taps.table import ELEMENTS, INPUT, OUTPUT, STATISTICS, Tap, TapTable

CPU = torch.device("cpu")
_CARRIED = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float64)
"""Dtypes of the tensors of every language that calls PyTorch Mobile."""
_CODES = {torch.uint8: 0, torch.int32: 3, torch.int64: 4, torch.float32: 6}
"""Numbers of dtypes, as ``ScalarType`` has them."""
_METAL_COPY = "metal::copy_to_host"
_RESULT = DictType(STR, TENSOR)


@dataclass(frozen=True)
class TapOptions:
    """How values are returned.

    Attributes:
        most: elements up to which all of a value is returned; None for any number.
        samples: about how many elements stand beside the statistics of what is larger.
        at_once: copy each value right after it is made, so that the device can free it; else at the end, so that the
            device computes as it does without taps.
    """

    most: int | None = 65_536
    samples: int = 1024
    at_once: bool = False


def add_taps(
    program: Program,
    method: str,
    values: Sequence[Value],
    arguments: Sequence[Any],
    options: TapOptions,
) -> tuple[TapTable, list[str]]:
    """Give a Program the methods that return values of one of its methods.

    Args:
        program: gets the methods ``tapped`` (``tapped_NAME`` of another method than ``forward``), ``tapped_example``,
            and the bundled inputs of the first; what it has stays as it is.
        method: the method that is tapped.
        values: its values, in the order in which they are made. What stands in branches and loops is returned as often
            as it is made.
        arguments: of the example.
        options: how values are returned.

    Returns:
        The table, and what could not be done, in words.

    Raises:
        UnsupportedError: the Program has methods of these names.
    """
    name = "tapped" if method == "forward" else f"tapped_{method}"
    example = f"{name}_example"
    taken = [item for item in (name, example, bundled_for(name)) if item in program.methods]
    if taken:
        raise UnsupportedError(f"the file has a method {taken[0]!r}: it has taps already; tap the file it was made of")
    graph = program.methods[method]
    tapped, copies = _copied(graph)
    taps, remarks = _Tapping(tapped, options).tap([copies[value] for value in values], arguments)
    program.methods[name] = tapped
    _add_bundled_inputs(program, name, graph, arguments)
    if _moves_inputs(graph):
        program.methods[example] = _with_arguments(tapped, arguments)
    else:
        example = ""
        remarks.append(
            "the graph does not move tensors to the GPU, so the app must, and there is no method that runs the example "
            f"by itself: call {name} with the example's inputs, as the code of mobopt app-kit does"
        )
    return TapTable(method, name, example, tuple(taps)), remarks


class _Tapping:
    """The way from a method to one that returns more."""

    def __init__(self, graph: Graph, options: TapOptions) -> None:
        self.graph, self.options = graph, options
        self.aliases = Aliases(graph)
        self.is_metal = any(node.op.startswith("metal") for node in graph.walk())
        self.end = graph.block.returns
        self.taps: list[Tap] = []
        self.copies: list[tuple[str, Value]] = []
        """What is always made once, by its key."""
        self.turns: list[Value] = []
        """A dictionary for each value in a branch or a loop."""
        self.remarks: list[str] = []

    def tap(self, values: Sequence[Value], arguments: Sequence[Any]) -> tuple[list[Tap], list[str]]:
        """Change the graph; gives the taps, and remarks."""
        start = self.graph.block.nodes.first or self.end
        for value, argument in zip(self.graph.inputs[1:], arguments, strict=True):
            if isinstance(argument, torch.Tensor) and value.type == TENSOR:
                self._add(f"{INPUT}.{argument_name(value.name)}", value, start, is_whole=True)
        for number, value in enumerate(values, 1):
            operator = _producer(value).op.rpartition("::")[2]
            self._add(f"{number:03d}.{operator}", value, None)
        for key, value in _leaves(OUTPUT, self.graph.outputs[0]):
            if value.producer is not None and value.facts.seen_type is not None:
                self._add(key, value, self.end, is_whole=True)
            elif value not in self.graph.inputs:
                self.remarks.append(
                    f"{key} of the result is no tensor that can be told from the graph, and is left out"
                )
        self._return()
        return self.taps, self.remarks

    def _add(self, key: str, value: Value, anchor: Node | None, is_whole: bool = False) -> None:
        """Return one more value, unless it is of complex numbers, which no phone's API carries."""
        seen = value.facts.seen_type
        if seen is not None and seen.dtype.is_complex:
            self.remarks.append(f"{key}, %{value.name}, has complex numbers, which an app can't read: it is left out")
            return
        key = distinct(file_name(key), [tap.key for tap in self.taps])
        node = value.producer
        origin = Origin() if node is None else node.origin
        repeats = node is not None and node.block is not self.graph.block
        if anchor is None:
            anchor = self._anchor(value, repeats)
        most = self.options.most
        sizes = value.facts.seen_sizes
        count = 0 if sizes is None else math.prod(sizes)
        is_whole = is_whole or most is None or count <= most
        step = 1 if is_whole else sampling_step(count, self.options.samples)
        write = NodeWriter(self.graph, anchor, origin)
        result = self._written(write, value, step, is_whole)
        if repeats:
            self._keep(write, key, result)
        else:
            self.copies.append((key, result))
        self.taps.append(
            Tap(
                key,
                f"%{value.name}" if node is None else describe(node),
                tuple(map(node_text, origin.nodes)),
                origin.lines,
                sizes,
                value.facts.known_dtype or "float32",
                ELEMENTS if is_whole else STATISTICS,
                step,
                repeats,
            )
        )

    def _written(self, write: NodeWriter, value: Value, step: int, is_whole: bool) -> Value:
        """What is returned of a value: all of it, or statistics, on the CPU and of a dtype that apps can read; float32
        where the example does not tell the dtype."""
        node = value.producer
        copied = value
        if self.is_metal and node is not None and node.op.startswith("metal") and node.op != _METAL_COPY:
            copied = NodeWriter(self.graph, _after(node), node.origin)(_METAL_COPY, value)
        on_host = write("aten::to", copied, CPU, None, False, True, overload="prim_Device", name=f"{value.name}.tap")
        if not is_whole:
            return write_statistics(write, on_host, step)
        result = on_host
        seen = value.facts.seen_type
        if seen is None or seen.dtype not in _CARRIED:
            carrier = torch.float32 if seen is None else _carrier(seen.dtype)
            result = write("aten::to", result, _CODES[carrier], False, False, None, overload="dtype")
        return write("aten::contiguous", result, 0)  # Java reads channels_last tensors in another order

    def _keep(self, write: NodeWriter, key: str, result: Value) -> None:
        """Put a value in a dictionary of its own each time that it is made, under its key and a number."""
        start = NodeWriter(self.graph, self.graph.block.nodes.first or self.end, Origin())
        turns = start("prim::DictConstruct", type=_RESULT, name="turns")
        count = write("aten::len", turns, overload="Dict_str", type=INT)
        name = write("aten::add", f"{key}.", write("aten::str", count, type=STR), overload="str", type=STR)
        write.run("aten::_set_item", turns, name, result, overload="str")
        self.turns.append(turns)

    def _anchor(self, value: Value, repeats: bool) -> Node:
        """Before what a value is copied: the end, unless something writes to it, or it is made anew before that."""
        node = _producer(value)
        return _after(node) if repeats or self.options.at_once or self.aliases.writers(value) else self.end

    def _return(self) -> None:
        pairs = [item for key, value in self.copies for item in (self.graph.constant(key), value)]
        write = NodeWriter(self.graph, self.end, Origin())
        result = write("prim::DictConstruct", *pairs, type=_RESULT, name="taps")
        for turns in self.turns:
            write.run("aten::update", result, turns, overload="str")
        self.graph.return_values(result)


def tapped_values(graph: Graph) -> dict[str, Value]:
    """The values of a tapped method by their keys: what is copied to the CPU for each entry of what it returns.

    Raises:
        UnsupportedError: the method does not return taps as :func:`add_taps` makes them.
    """
    made = graph.outputs[0].producer if len(graph.outputs) == 1 else None
    if made is None or made.op != "prim::DictConstruct":
        raise UnsupportedError("the tapped method does not return a dictionary; make the file again with mobopt tap")
    found = dict(zip(made.inputs[::2], made.inputs[1::2], strict=True))
    values = {str(key.constant): _source(value) for key, value in found.items() if key.is_constant}
    turns = {user.inputs[1] for user, _ in graph.outputs[0].uses if user.op == "aten::update"}
    for put in {user for value in turns for user, _ in value.uses if user.op == "aten::_set_item"}:
        name = put.inputs[1].producer
        if name is not None and name.op == "aten::add" and name.inputs[0].is_constant:
            values[str(name.inputs[0].constant).removesuffix(".")] = _source(put.inputs[2])
    return values


def _source(value: Value) -> Value:
    """What a tap copies: the operand of the first copying transfer on the way back."""
    while value.producer is not None and value.producer.inputs:
        node, value = value.producer, value.producer.inputs[0]
        if node.qualified_op == "aten::to.prim_Device" and node.inputs[4].is_constant and node.inputs[4].constant:
            maker = value.producer
            return maker.inputs[0] if maker is not None and maker.op == _METAL_COPY else value
    raise UnsupportedError("a tap copies no value; make the file again with mobopt tap")


def _copied(graph: Graph) -> tuple[Graph, dict[Value, Value]]:
    """A copy of a graph, and its values by the original's."""
    copy = Graph()
    copy._names, copy._taken = dict(graph._names), set(graph._taken)
    values: dict[Value, Value] = {}
    copy_block_into(graph.block, copy.block, values)
    return copy, values


def _with_arguments(graph: Graph, arguments: Sequence[Any]) -> Graph:
    """A method that needs no arguments, for they are in it."""
    copy, _ = _copied(graph)
    parameters = copy.inputs[1:]
    write = NodeWriter(copy, copy.block.nodes.first or copy.block.returns, Origin())
    for value, argument in zip(parameters, arguments, strict=True):
        value.replace_all_uses_with(_literal(write, argument, value.type))
        copy.block.parameters.remove(value)
    return copy


def _add_bundled_inputs(program: Program, method: str, graph: Graph, arguments: Sequence[Any]) -> None:
    """Bundle the example's arguments, as ``torch.utils.bundled_inputs`` does."""
    bundled = Graph()
    bundled.add_input("self", program.self_type)
    write = NodeWriter(bundled, bundled.block.returns, Origin())
    types = tuple(value.type for value in graph.inputs[1:])
    kind = TupleType(types)
    items = [_literal(write, argument, item) for argument, item in zip(arguments, types, strict=True)]
    one = write("prim::TupleConstruct", *items, type=kind)
    bundled.return_values(write("prim::ListConstruct", one, type=ListType(kind)))
    program.methods[bundled_for(method)] = bundled


def _literal(write: NodeWriter, value: Any, kind: Type) -> Value:
    """A value of any type that arguments have, as constants and the nodes that put them together."""
    if isinstance(kind, OptionalType):
        return write.graph.constant(None) if value is None else _literal(write, value, kind.element)
    if isinstance(value, dict) and isinstance(kind, DictType):
        pairs = [
            _literal(write, item, part)
            for pair in value.items()
            for item, part in zip(pair, (kind.key, kind.value), strict=True)
        ]
        return write("prim::DictConstruct", *pairs, type=kind)
    if isinstance(value, tuple) and isinstance(kind, TupleType):
        items = [_literal(write, item, part) for item, part in zip(value, kind.elements, strict=True)]
        return write("prim::TupleConstruct", *items, type=kind)
    if isinstance(value, (list, tuple)) and isinstance(kind, ListType):
        return write("prim::ListConstruct", *(_literal(write, item, kind.element) for item in value), type=kind)
    constant = value.detach().clone() if isinstance(value, torch.Tensor) else value
    return write.graph.constant(constant, kind)


def _leaves(key: str, value: Value) -> Iterator[tuple[str, Value]]:
    """The tensors of a result, as far as the graph puts them together."""
    node = value.producer
    if node is not None and node.op in ("prim::TupleConstruct", "prim::ListConstruct"):
        for number, item in enumerate(node.inputs):
            yield from _leaves(f"{key}.{number}", item)
    elif node is not None and node.op == "prim::DictConstruct" and all(item.is_constant for item in node.inputs[::2]):
        for name, item in zip(node.inputs[::2], node.inputs[1::2], strict=True):
            yield from _leaves(f"{key}.{name.constant}", item)
    else:
        yield key, value


def _moves_inputs(graph: Graph) -> bool:
    """Whether the graph runs on tensors of the CPU: it moves them itself, or there is no GPU in it."""
    is_gpu: Callable[[Node], bool] = lambda node: node.op.startswith(("metal", "vulkan"))  # noqa: E731
    devices = [value.constant for node in graph.walk() for value in node.inputs if value.is_constant]
    moves = any(isinstance(item, torch.device) and item.type not in ("cpu", "meta") for item in devices)
    return moves or not any(map(is_gpu, graph.walk()))


def _carrier(dtype: torch.dtype) -> torch.dtype:
    if dtype == torch.bool:
        return torch.uint8
    return torch.float32 if dtype.is_floating_point else torch.int32


def _after(node: Node) -> Node:
    assert node.block is not None
    return node.next or node.block.returns


def _producer(value: Value) -> Node:
    assert value.producer is not None
    return value.producer


def node_text(item: ModelNode) -> str:
    """A node of the model for readers."""
    return f"{item.text} at {item.line}" if item.line else item.text
