"""Branches and loops, with what their bodies read of the graphs around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnx import numpy_helper

from mobopt.errors import BundleError
from mobopt.frontends.onnx.emitter import Emitter
from mobopt.frontends.onnx.operands import (
    AnyOperand,
    Operand,
    OptionalOperand,
    SequenceOperand,
    Sizes,
    number_array,
    of_constant,
    of_numbers,
)
from mobopt.frontends.onnx.registry import Call, translates
from mobopt.ir import Node, Value
from mobopt.ir.types import INT, TENSOR, ListType

_FOREVER = (1 << 62) - 1
_MOST_NODES_UNROLLED = 1 << 10
_TENSORS = ListType(TENSOR)


def list_value(emit: Emitter, sequence: SequenceOperand) -> Any:
    """A sequence as a list of the graph."""
    if sequence.value is not None:
        return sequence.value
    return emit.list_of([item.tensor(emit) for item in sequence.items or []], TENSOR)


def _value_of(call: Call, operand: AnyOperand) -> Any:
    match operand:
        case Operand():
            return call.emit.value(operand.tensor(call.emit))
        case SequenceOperand():
            return list_value(call.emit, operand)
        case OptionalOperand():
            return operand.value
    raise call.unsupported("a branch or a loop gives nothing at all")


def merged_sizes(one: Sizes | None, other: Sizes | None) -> Sizes | None:
    """Sizes of what is one of two tensors."""
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(left if left == right else None for left, right in zip(one, other, strict=True))


def _merged(call: Call, one: AnyOperand, other: AnyOperand, value: Value) -> AnyOperand:
    if isinstance(one, Operand) and isinstance(other, Operand):
        if one.dtype != other.dtype:
            raise BundleError(f"{call.place}: its branches give {one.dtype} and {other.dtype}")
        return Operand(one.dtype, merged_sizes(one.sizes, other.sizes), value)
    if isinstance(one, SequenceOperand) and isinstance(other, SequenceOperand):
        return SequenceOperand(one.dtype, None, value)
    raise call.unsupported("its branches give a tensor and a sequence")


@translates("If")
def _if(call: Call) -> Any:
    translator, outer = call.translator, dict(call.translator.environment)
    condition = call.scalar(0)
    then, otherwise = call.get("then_branch"), call.get("else_branch")
    if not isinstance(condition, Value):
        return translator.graph(then if condition else otherwise, {}, outer)
    key = tuple(call.node.output)
    taken = call.translator.branches.taken.get(key)
    if taken is not None:
        call.translator.branches.errors[_raise_unless(call, condition, taken)] = key
        return translator.graph(then if taken else otherwise, {}, outer)
    emit = call.emit
    node = emit.builder.if_else(condition)
    results: list[list[AnyOperand]] = []
    values = []
    for block, graph in zip(node.blocks, (then, otherwise), strict=True):
        with emit.inside(block):
            results.append(translator.graph(graph, {}, outer))
            values.append([_value_of(call, operand) for operand in results[-1]])
    made = emit.builder.finish_if(node, values[0], values[1])
    decided_by_sizes = call.operand().is_on_host
    if decided_by_sizes and any(_differ_in_rank(one, other) for one, other in zip(*results, strict=True)):
        translator.branches.undecided.append(key)
    return [_merged(call, one, other, value) for one, other, value in zip(*results, made, strict=True)]


def _differ_in_rank(one: AnyOperand, other: AnyOperand) -> bool:
    """Whether two tensors are known to have other numbers of dimensions."""
    if not isinstance(one, Operand) or not isinstance(other, Operand):
        return False
    return one.rank is not None and other.rank is not None and one.rank != other.rank


def _raise_unless(call: Call, condition: Value, outcome: bool) -> str:
    """Let the model end in an error, of this text, where a branch is not the one that it was read for."""
    builder = call.emit.builder
    branch = builder.if_else(condition)
    with call.emit.inside(branch.blocks[1 if outcome else 0]):
        text = (
            f"{call.place}: its branches give tensors of different ranks, and the model was read for inputs for which "
            f"its condition is {outcome}, which it isn't for these; give inputs of other sizes, or export the model "
            "without this branch"
        )
        builder.node("prim::RaiseException", [builder.constant(text), builder.constant("AssertionError")], [])
    builder.finish_if(branch, [], [])
    return text


# Loops.

Body = Callable[[Value, Value, list[AnyOperand]], "tuple[Any, list[AnyOperand], list[Operand]]"]


def build_loop(
    call: Call, trips: Any, condition: Any, carried: Sequence[AnyOperand], scans: int, body: Body
) -> tuple[list[AnyOperand], list[Any]]:
    """A loop.

    Args:
        call: the node.
        trips: how often it goes round at most.
        condition: whether it does at all.
        carried: what the first trip gets.
        scans: how many tensors each trip gives beside that.
        body: gets the number of the trip, the condition and what is carried, and gives the next condition, what the
            next trip gets, and the tensors of this one.

    Returns:
        What is carried after the last trip, and the lists of the tensors of all, with the operand of one.
    """
    emit, graph = call.emit, call.emit.builder.graph
    first = [_carried(call, operand) for operand in carried]
    lists = [emit.list_of([], TENSOR) for _ in range(scans)]
    inputs = [emit.value(trips), emit.value(condition), *(value for value, _ in first)]
    node = Node("prim::Loop", inputs, origin=emit.builder.origin)
    block = node.add_block()
    trip = block.add_parameter(graph.value(INT))
    emit.nonnegative.add(trip)
    parameters = [block.add_parameter(graph.value(value.type)) for value, _ in first]
    given = [_inside(operand, parameter) for (_, operand), parameter in zip(first, parameters, strict=True)]
    with emit.inside(block):
        goes_on, results, parts = body(trip, inputs[1], given)
        results = [
            _of_one_element(call, before, after) if parameter.uses else after
            for before, after, parameter in zip(given, results, parameters, strict=True)
        ]
        values = [_next_value(call, item, value.type) for item, (value, _) in zip(results, first, strict=True)]
        for number, (before, after) in enumerate(zip(given, results, strict=True)):
            _check_same(call, before, after, number, parameters[number])
        for listed, part in zip(lists, parts, strict=True):
            emit("append.t", listed, emit.value(part.tensor(emit)))
        goes_on = emit.value(goes_on)
    block.returns.set_inputs([goes_on, *values])
    outputs = [node.add_output(graph.value(value.type)) for value, _ in first]
    emit.builder.append(node)
    after_all = [
        _after(before, last, output) for (_, before), last, output in zip(first, results, outputs, strict=True)
    ]
    return after_all, list(zip(lists, parts, strict=True))


def _carried(call: Call, operand: AnyOperand) -> tuple[Value, AnyOperand]:
    """The Value that a loop begins with; single integers that the host knows stay integers."""
    if isinstance(operand, Operand) and operand.sizes == () and operand.dtype == torch.int64:
        numbers = operand.elements()
        if numbers is not None:
            return call.emit.value(numbers[()]), operand
    return _value_of(call, operand), operand


def _inside(operand: AnyOperand, value: Value) -> AnyOperand:
    """What is carried, in a trip: sizes may be others each time."""
    if isinstance(operand, Operand):
        if value.type == INT:
            return of_numbers(number_array([value], ()), operand.dtype)
        sizes = None if operand.sizes is None else (None,) * len(operand.sizes)
        return Operand(operand.dtype, sizes, value)
    if isinstance(operand, SequenceOperand):
        return SequenceOperand(operand.dtype, None, value)
    return operand


def _after(before: AnyOperand, last: AnyOperand, value: Value) -> AnyOperand:
    """What is carried, after the loop: what came in or what a trip gave."""
    if isinstance(before, Operand) and isinstance(last, Operand) and before.rank != last.rank:
        return Operand(before.dtype, None, value)
    return _inside(before, value)


def _next_value(call: Call, operand: AnyOperand, kind: Any) -> Value:
    if kind == INT and isinstance(operand, Operand):
        numbers = operand.elements()
        return call.emit.value(call.emit("Int.Tensor", operand.tensor(call.emit)) if numbers is None else numbers[()])
    value: Value = _value_of(call, operand)
    return value


def _of_one_element(call: Call, before: AnyOperand, after: AnyOperand) -> AnyOperand:
    """What a trip gives, as a number where it got one: Paddle's loops give a tensor of one element for it. A tensor
    of several, where sizes don't tell, is an error of the call."""
    if not isinstance(before, Operand) or before.sizes != () or not isinstance(after, Operand) or after.sizes == ():
        return after
    if after.sizes not in (None, (None,), (1,) * (after.rank or 0)):
        return after
    return Operand(after.dtype, (), call.emit("reshape", after.tensor(call.emit), []))


def _check_same(call: Call, before: AnyOperand, after: AnyOperand, number: int, parameter: Value) -> None:
    if isinstance(before, Operand) and isinstance(after, Operand):
        if before.dtype != after.dtype:
            raise BundleError(f"{call.place}: what it carries as number {number} is {before.dtype}, then {after.dtype}")
        if before.rank != after.rank and parameter.uses:
            raise call.unsupported(f"the number of dimensions of what it carries as number {number} changes")
    elif type(before) is not type(after):
        raise BundleError(f"{call.place}: what it carries as number {number} changes its kind")


def stacked(call: Call, listed: Value, part: Operand, axis: int = 0) -> Operand:
    """The tensors of all trips as one."""
    rank = None if part.rank is None else part.rank + 1
    return Operand(part.dtype, None if rank is None else (None,) * rank, call.emit("stack", listed, axis))


def truth(call: Call, operand: AnyOperand) -> Any:
    """A condition as a bool of the language."""
    if not isinstance(operand, Operand):
        raise BundleError(f"{call.place}: its condition is no tensor")
    numbers = operand.elements()
    return call.emit("Bool.Tensor", operand.tensor(call.emit)) if numbers is None else numbers.reshape(-1)[0]


@translates("Loop")
def _loop(call: Call) -> Any:
    translator, outer = call.translator, dict(call.translator.environment)
    graph = call.get("body")
    trips = call.scalar(0) if call.has(0) else _FOREVER
    condition = truth(call, call.operand(1)) if call.has(1) else True
    carried = list(call.inputs[2:])
    names = [item.name for item in graph.input]
    count = len(carried)
    if len(names) != count + 2 or len(graph.output) < count + 1:
        raise BundleError(f"{call.place}: its body does not fit its {count} carried values")
    if _is_counted(call, graph, trips, condition):
        return _unrolled(call, graph, trips, carried)

    def body(trip: Value, goes_on: Value, items: list[AnyOperand]) -> Any:
        given: list[AnyOperand] = [
            of_numbers(number_array([trip], ()), torch.int64),
            of_numbers(number_array([goes_on if goes_on.is_constant is False else True], ()), torch.bool),
            *items,
        ]
        results = translator.graph(graph, dict(zip(names, given, strict=True)), outer)
        parts = [item for item in results[count + 1 :] if isinstance(item, Operand)]
        return truth(call, results[0]), results[1 : count + 1], parts

    after, scans = build_loop(call, trips, condition, carried, len(graph.output) - count - 1, body)
    return [*after, *(stacked(call, listed, part) for listed, part in scans)]


def _is_counted(call: Call, graph: Any, trips: Any, condition: Any) -> bool:
    """Whether a loop goes round as often as a number of the file says, and not too often to be written out.

    So ``torch.onnx`` writes ``tensor_split``: what is known of each trip, such as sizes, is known after them.
    """
    if isinstance(trips, Value) or isinstance(condition, Value) or not condition:
        return False
    if not 0 < trips <= _MOST_NODES_UNROLLED // max(len(graph.node), 1):
        return False
    makers = {name: node for node in graph.node for name in node.output}
    name = graph.output[0].name
    for _ in graph.node:  # a hostile file may have a cycle
        if name in makers and makers[name].op_type == "Identity":
            name = makers[name].input[0]
    held = [item for item in graph.initializer if item.name == name]
    if name in makers and makers[name].op_type == "Constant":
        held = [item.t for item in makers[name].attribute if item.name == "value"]
    if name in makers or held:
        return len(held) == 1 and bool(numpy_helper.to_array(held[0]).all())
    if name == graph.input[1].name:
        return True
    outer = call.translator.environment.get(name)
    numbers = outer.elements() if isinstance(outer, Operand) else None
    return numbers is not None and not isinstance(numbers.reshape(-1)[0], Value) and bool(numbers.all())


def _unrolled(call: Call, graph: Any, trips: int, carried: list[AnyOperand]) -> list[Any]:
    """A loop as the nodes of all of its trips."""
    translator, outer = call.translator, dict(call.translator.environment)
    names, count = [item.name for item in graph.input], len(carried)
    scans: list[list[AnyOperand]] = [[] for _ in graph.output[count + 1 :]]
    for trip in range(trips):
        given = [of_constant(torch.tensor(trip)), of_constant(torch.tensor(True)), *carried]
        results = translator.graph(graph, dict(zip(names, given, strict=True)), outer)
        carried = results[1 : count + 1]
        for scan, part in zip(scans, results[count + 1 :], strict=True):
            scan.append(part)
    return [*carried, *(_joined(call, scan) for scan in scans)]


def _joined(call: Call, parts: Sequence[AnyOperand]) -> Operand:
    """Tensors of all trips as one."""
    tensors = [part for part in parts if isinstance(part, Operand)]
    sizes = tensors[0].sizes
    for part in tensors[1:]:
        sizes = merged_sizes(sizes, part.sizes)
    listed = call.emit.list_of([part.tensor(call.emit) for part in tensors], TENSOR)
    return Operand(tensors[0].dtype, None if sizes is None else (len(tensors), *sizes), call.emit("stack", listed, 0))


@translates("Scan")
def _scan_of_batches(call: Call) -> Any:
    raise call.unsupported("up to opset 8 it takes batches and lengths")


@translates("Scan", since=9)
def _scan(call: Call) -> Any:
    emit, translator, outer = call.emit, call.translator, dict(call.translator.environment)
    graph, count = call.get("body"), call.get("num_scan_inputs")
    states = len(call.inputs) - count
    scans = len(graph.output) - states
    axes = call.get("scan_input_axes") or [0] * count
    backwards = call.get("scan_input_directions") or [0] * count
    out_axes = call.get("scan_output_axes") or [0] * scans
    out_backwards = call.get("scan_output_directions") or [0] * scans
    names = [item.name for item in graph.input]
    trips = call.size(states, axes[0])
    read = [call.tensor(states + number) for number in range(count)]

    def body(trip: Value, goes_on: Value, items: list[AnyOperand]) -> Any:
        given = list(items)
        for number, tensor in enumerate(read):
            operand = call.operand(states + number)
            axis = axes[number]
            place = emit("sub.int", emit("sub.int", emit.size(tensor, axis), 1), trip) if backwards[number] else trip
            sizes = operand.sizes
            if sizes is not None:
                axis = axis % len(sizes)
                sizes = sizes[:axis] + sizes[axis + 1 :]
            given.append(Operand(operand.dtype, sizes, emit("select.int", tensor, axes[number], place)))
        results = translator.graph(graph, dict(zip(names, given, strict=True)), outer)
        return True, results[:states], results[states:]

    after, lists = build_loop(call, trips, True, list(call.inputs[:states]), scans, body)
    found: list[AnyOperand] = list(after)
    for number, (listed, part) in enumerate(lists):
        result = stacked(call, listed, part, out_axes[number])
        if out_backwards[number]:
            result.value = emit("flip", result.value, [out_axes[number]])
        found.append(result)
    return found
