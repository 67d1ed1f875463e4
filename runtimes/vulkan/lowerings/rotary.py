"""Rotary positions (J. Su et al., "RoFormer", 2021): ``x * cosines + turned(x) * sines``, where ``turned`` puts the
second half of the last dimension, negated, before the first, or the second of two neighbours, negated, before the
other. ``compile/fusion_rotary.py`` makes one node of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mobopt.ir import Node, Value
from mobopt.ir.rewriting import made_only_for
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, contiguous_strides
from mobopt.runtimes.vulkan.kernels.copies import as_contiguous
from mobopt.runtimes.vulkan.kernels.geometry import expanded
from mobopt.runtimes.vulkan.kernels.operand_rows import with_dense_rows
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.rotary_kernel import RotaryJob, rotate
from mobopt.runtimes.vulkan.kernels.views import swapped
from mobopt.runtimes.vulkan.lowerings.registry import lowers
from mobopt.runtimes.vulkan.lowerings.views import moves_ones

ROTARY = "mobopt::rotary"
"""Its body has a negation, a concatenation or stack, two products and their sum, for each tensor that it turns, and
what puts rows into caches; it makes what the last of each make."""
_MOST_RANK = 4
_MUL = "aten::mul.Tensor"


@dataclass(frozen=True)
class Rotation:
    """What a sum computes, or a concatenation of it and elements that aren't turned."""

    nodes: tuple[Node, ...]
    """In order; what makes the result is the last."""
    source: Value
    cosines: Value
    sines: Value
    of_neighbours: bool = False
    """Whether neighbours are turned, in place of halves."""

    @property
    def tables(self) -> tuple[Value, Value]:
        """Cosines and sines."""
        return self.cosines, self.sines

    @property
    def is_of_rows_first(self) -> bool:
        """Whether tables are for rows that stand before the heads: (batches, rows, heads, elements). Tables of one row
        fit both; there is one row then."""
        if any(table.rank > 2 and table.sizes[-3] != 1 for table in self.tables):
            return True
        is_one_row = all(table.sizes[-2:-1] in ((), (1,)) for table in self.tables)
        return is_one_row and self.source.sizes[-3:-2] == (1,)


def rotation_of(node: Node | None) -> Rotation | None:
    """What a node is a rotation of, the last one of its steps; None if it is none."""
    if node is not None and node.qualified_op == "aten::cat":
        return _rotation_of_first_elements(node)
    if node is None or node.qualified_op != "aten::add.Tensor" or node["alpha"] != 1:
        return None
    if node.output.dtype != torch.float32 or not 0 < node.output.rank <= _MOST_RANK:
        return None
    left, right = (made_only_for(value, node) for value in node.args[:2])
    for plain, turned in ((left, right), (right, left)):
        if plain is None or turned is None or plain is turned or {plain.qualified_op, turned.qualified_op} != {_MUL}:
            continue
        for joined, sines in (turned.args[:2], turned.args[1::-1]):
            steps = _turning(joined, turned) or _turning_neighbours(joined, turned)
            if steps is None:
                continue
            whole, *turning = steps
            of_neighbours = len(turning) > 2
            if whole.sizes[-1] % (4 if of_neighbours else 8):
                continue
            others = [value for value in plain.args[:2] if value is not whole]
            if len(others) != 1 or not (_spreads(others[0], whole) and _spreads(sines, whole)):
                continue
            found = Rotation((*turning, plain, turned, node), whole, others[0], sines, of_neighbours)
            if not found.is_of_rows_first or all(table.rank < 2 or table.sizes[-2] == 1 for table in found.tables):
                return found
    return None


def _rotation_of_first_elements(cat: Node) -> Rotation | None:
    """Of rows whose other elements stay as they are: ``cat([turned(x[..., :n]), x[..., n:]], -1)``."""
    if len(cat["tensors"]) != 2 or cat["dim"] not in (-1, cat.output.rank - 1) or cat.output.sizes[-1] % 4:
        return None
    turned, rest = cat["tensors"]
    found = rotation_of(made_only_for(turned, cat))
    first, last = (None if found is None else _cut_of(found.source)), _cut_of(rest)
    if found is None or first is None or last is None or first[0] is not last[0]:
        return None
    whole, count = first[0], turned.sizes[-1]
    if (first[1], last[1]) != (0, count) or whole.sizes != cat.output.sizes:
        return None
    return replace(found, nodes=(*found.nodes, cat), source=whole)


def _cut_of(value: Value) -> tuple[Value, int] | None:
    """The tensor of which a value is neighbouring elements of the last dimension, and the first of them."""
    node = value.producer
    if node is None or node.qualified_op != "aten::slice.Tensor" or node["step"] != 1:
        return None
    whole = node.args[0]
    start = node["start"] or 0
    is_last = node["dim"] in (-1, whole.rank - 1)
    return (whole, int(start + whole.sizes[-1] if start < 0 else start)) if is_last else None


def _turning(joined: object, reader: Node) -> tuple[Value, Node, Node] | None:
    """What ``cat([-second, first], -1)`` turns, its negation, and itself."""
    cat = made_only_for(joined, reader)
    if cat is None or cat.qualified_op != "aten::cat" or len(cat["tensors"]) != 2:
        return None
    if cat["dim"] not in (-1, cat.output.rank - 1):
        return None
    negated, first = cat["tensors"]
    neg = made_only_for(negated, cat)
    if neg is None or neg.qualified_op != "aten::neg":
        return None
    one, two = _half_of(first), _half_of(neg.args[0])
    if one is None or two is None or one[0] is not two[0] or (one[1], two[1]) != (0, 1):
        return None
    return one[0], neg, cat


def _turning_neighbours(joined: object, reader: Node) -> tuple[Value, Node, Node, Node] | None:
    """What ``stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)`` turns, its negation, the stack, and itself."""
    flat = made_only_for(joined, reader)
    if flat is None or not has_trait(flat.qualified_op, Trait.KEEPS_ORDER) or flat.output.rank == 0:
        return None
    stack = made_only_for(flat.args[0], flat)
    if stack is None or stack.qualified_op != "aten::stack" or len(stack["tensors"]) != 2:
        return None
    if stack["dim"] not in (-1, stack.output.rank - 1):
        return None
    negated, first = stack["tensors"]
    neg = made_only_for(negated, stack)
    if neg is None or neg.qualified_op != "aten::neg":
        return None
    whole, second = _every_second(first, 0), _every_second(neg.args[0], 1)
    if whole is None or whole is not second or whole.sizes != flat.output.sizes:
        return None
    return whole, neg, stack, flat


def _every_second(value: Value, start: int) -> Value | None:
    """The tensor of which a value is every second element of the last dimension, from ``start`` on."""
    node = value.producer
    if node is None or node.qualified_op != "aten::slice.Tensor" or node["step"] != 2:
        return None
    whole: Value = node.args[0]
    is_last = node["dim"] in (-1, whole.rank - 1) and (node["start"] or 0) == start
    return whole if is_last and whole.sizes[-1] == 2 * value.sizes[-1] else None


def _half_of(value: Value) -> tuple[Value, int] | None:
    """The tensor of which a value is a half of the last dimension, and which of them."""
    node = value.producer
    if node is None or not node.inputs:
        return None
    whole = node.inputs[0]
    if whole.sizes[:-1] != value.sizes[:-1] or whole.sizes[-1] != 2 * value.sizes[-1]:
        return None
    if len(node.outputs) == 2:  # of chunk or split, whose sizes tell that they are halves
        is_cut = node.qualified_op.startswith(("aten::chunk", "aten::split"))
        return (whole, node.outputs.index(value)) if is_cut else None
    cut = _cut_of(value)
    return None if cut is None else (whole, int(cut[1] > 0))


def _spreads(value: object, whole: Value) -> bool:
    """Whether a value is a float32 tensor that is broadcast to the sizes of ``whole``, of as many elements in a row."""
    if not isinstance(value, Value) or value.dtype != torch.float32 or not 0 < value.rank <= whole.rank:
        return False
    return value.sizes[-1] == whole.sizes[-1]


@dataclass(frozen=True)
class Put:
    """One row that comes into a copy of a cache."""

    node: Node
    cache: Value
    index: Value
    """Of one element."""
    source: Value
    """The row, with or without dimensions of one element."""
    wraps: bool
    """Whether an index below zero counts from the end."""

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """Those of the row with all dimensions of the cache."""
        *lead, _, elements = self.cache.sizes
        return (*lead, 1, elements)


def put_of(node: Node | None) -> Put | None:
    """What a node puts, one row of float32 into one place; None if it is another node."""
    if node is None or node.qualified_op not in ("aten::index_copy", "aten::index_put"):
        return None
    cache: Value = node.args[0]
    if cache.dtype != torch.float32 or not 2 <= cache.rank <= _MOST_RANK or cache.sizes[-1] % 4:
        return None
    if node.qualified_op == "aten::index_copy":
        put = Put(node, cache, node["index"], node["source"], wraps=False)
        is_row = node["dim"] in (-2, cache.rank - 2)
    else:
        given = {place: index for place, index in enumerate(node["indices"]) if index is not None}
        is_row = [*given] == [cache.rank - 2] and not node["accumulate"]
        if not is_row or given[cache.rank - 2].rank != 1:
            return None
        put = Put(node, cache, given[cache.rank - 2], node["values"], wraps=True)
    is_row = is_row and put.index.numel == 1 and put.index.dtype == torch.int64 and put.source.dtype == torch.float32
    return put if is_row and _without_ones(put.source.sizes) == _without_ones(put.row_sizes) else None


def _without_ones(sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if size != 1]


def source_of(value: Value) -> Node | None:
    """What makes a value, but for views that only add or take away dimensions of one element."""
    node = value.producer
    while node is not None and is_same_rows(node):
        node = node.args[0].producer
    return node


def is_same_rows(node: Node) -> bool:
    """Whether a node is a view with the sizes of its source, but for dimensions of one element."""
    is_view = node.qualified_op in ("aten::view", "aten::reshape")
    return moves_ones(node) or (is_view and _without_ones(node.args[0].sizes) == _without_ones(node.output.sizes))


@lowers(ROTARY, exact=True)
def rotary(plan: Plan, node: Node) -> tuple[DeviceTensor, ...]:
    """One dispatch for everything; rows of the results are dense."""
    ends = [value.producer for value in node.blocks[0].outputs]
    puts = [put_of(end) for end in ends]
    turns = [rotation_of(end if put is None else source_of(put.source)) for end, put in zip(ends, puts, strict=True)]
    jobs = [_job(plan, *parts) for parts in zip(turns, puts, node.outputs, strict=True)]
    tables: list[DeviceTensor] = []
    for turn, job in zip(turns, jobs, strict=True):
        if turn is not None and not tables:
            tables = tables_of(plan, turn, job.source.sizes[0], job.source.sizes[-2])
    places = [plan.tensor(put.index) for put in puts if put is not None]
    of_neighbours = any(turn is not None and turn.of_neighbours for turn in turns)
    rotate(plan, jobs, tables, places[0] if places else None, of_neighbours)
    results = [
        _heads_first(job.result, None if put else turn) for turn, put, job in zip(turns, puts, jobs, strict=True)
    ]
    return tuple(
        result.view(value.sizes, result.strides[4 - value.rank :])
        for result, value in zip(results, node.outputs, strict=True)
    )


def tables_of(plan: Plan, turn: Rotation, batches: int, rows: int) -> list[DeviceTensor]:
    """Cosines and sines, (batches, 1, rows, elements that are turned)."""
    sizes = (batches, 1, rows, turn.cosines.sizes[-1])
    dense = (_of_rank_four(with_dense_rows(plan, plan.tensor(value))) for value in turn.tables)
    return [expanded(_heads_first(table, turn), sizes) for table in dense]


def turned_source(plan: Plan, turn: Rotation) -> DeviceTensor:
    """What is turned, (batches, heads, rows, elements)."""
    return _heads_first(_of_rank_four(with_dense_rows(plan, plan.tensor(turn.source))), turn)


def new_row(plan: Plan, put: Put, turn: Rotation | None) -> DeviceTensor:
    """What comes into a cache, before it is turned, of rank four."""
    source = with_dense_rows(plan, plan.tensor(put.source if turn is None else turn.source))
    return _of_rank_four(_with_sizes(source, put.row_sizes))


def _heads_first(tensor: DeviceTensor, turn: Rotation | None) -> DeviceTensor:
    """(batches, heads, rows, elements) of what is turned, or the other way round."""
    return swapped(tensor, 1, 2) if turn is not None and turn.is_of_rows_first else tensor


def _job(plan: Plan, turn: Rotation | None, put: Put | None, output: Value) -> RotaryJob:
    if put is None:
        assert turn is not None, "what is neither turned nor put anywhere is no job"
        source = turned_source(plan, turn)
        result = plan.own_result(output, source.sizes, contiguous_strides(source.sizes))
        return RotaryJob(source, result, is_turned=True)
    source = new_row(plan, put, turn)
    if output in plan.in_place:
        result = cache = plan.tensor(plan.in_place[output])
        plan.stream.in_place.add(cache.storage)
    else:
        cache = as_contiguous(plan, with_dense_rows(plan, plan.tensor(put.cache)))
        result = plan.empty(output.sizes, output.dtype, contiguous_strides(output.sizes), cache.storage.elements)
    result, cache = map(_of_rank_four, (result, cache))
    return RotaryJob(source, result, turn is not None, cache, put.wraps)


def _with_sizes(tensor: DeviceTensor, sizes: Sequence[int]) -> DeviceTensor:
    """A view that has other dimensions of one element."""
    steps = iter([stride for size, stride in zip(tensor.sizes, tensor.strides, strict=True) if size != 1])
    return tensor.view(sizes, [0 if size == 1 else next(steps) for size in sizes])


def _of_rank_four(tensor: DeviceTensor) -> DeviceTensor:
    ones = 4 - tensor.rank
    return tensor.view((*[1] * ones, *tensor.sizes), (*[0] * ones, *tensor.strides))
