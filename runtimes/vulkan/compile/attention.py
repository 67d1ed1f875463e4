"""Finds attention that a model wrote as products and a softmax, and heads that were repeated for it, so that one kernel
computes it from keys and values as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mobopt.ir import Graph, Node, Value
from mobopt.ir.rewriting import destroy_unread, made_only_for, make_instead, replace_call
from mobopt.ops.l2_normalize import L2_NORMALIZE
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.vulkan.compile.euclidean_norms import scaled_by
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported
from mobopt.runtimes.vulkan.lowerings.views import is_reshape, permutation_of

ATTENTION = "aten::scaled_dot_product_attention"
"""The operator that one kernel computes."""
_PRODUCTS = ("aten::matmul", "aten::bmm")
_MOST_JOINED = 1 << 22
"""Elements of a mask that several were joined to."""
_LONG_HEAD, _MOST_FOR_A_KEY = 256, 8
"""Elements of a head, in all and for each key, beyond which products are faster: few scores are stored, and the kernel
keeps rows of a few queries (channels that attend to each other, as in M. Ding et al., "DaViT", 2022)."""
_SCALINGS: dict[str, Callable[[float, float], float]] = {
    "aten::mul.Scalar": float.__mul__,
    "aten::mul.Tensor": float.__mul__,
    "aten::div.Scalar": float.__truediv__,
    "aten::div.Tensor": float.__truediv__,
}


def find_attention(graph: Graph) -> None:
    """Put attention in the place of ``softmax(q @ k^T * scale + mask) @ v`` where nothing else reads the steps.

    Given:
        %s : Float(1, 2, 5, 5) = aten::matmul(%q, %t)
        %m : Float(1, 2, 5, 5) = aten::mul.Scalar(%s, 0.5)
        %w : Float(1, 2, 5, 5) = aten::softmax.int(%m, -1, None)
        %y : Float(1, 2, 5, 8) = aten::matmul(%w, %v)
    Result:
        %k : Float(1, 2, 5, 8) = aten::transpose.int(%t, -2, -1)
        %y : Float(1, 2, 5, 8) = aten::scaled_dot_product_attention(%q, %k, %v, None, 0.0, False, 0.5, False)

    So it is with ``v^T @ softmax(...)^T``, of columns in the place of rows, as convolutions give them, and where the
    softmax is along columns.

    A constant that multiplies all scores of a head, as of cosines (Z. Liu et al., "Swin Transformer V2", 2022),
    multiplies its queries.

    The mask must be a constant of which every row lets a key count: where none does, the steps give NaN and attention
    zeros. There may be several, also of scores whose first dimensions were divided for them. It may be any where zeros
    are put in the place of NaN, as ``torch.onnx`` writes attention; it scales queries and keys, too, each by a root,
    and exchanges keys' rows and columns in three dimensions.
    """
    for node in graph.block.nodes:
        if node.op in _PRODUCTS:
            _replace(node)
        elif node.op == ATTENTION:
            _take_scale(node)


def _take_scale(attention: Node) -> None:
    """Let attention multiply scores by the numbers that queries and keys are multiplied by for it alone."""
    steps: list[Node] = []
    factors, scale = [], attention["scale"]
    scale = attention["query"].sizes[-1] ** -0.5 if scale is None else scale
    for name in ("query", "key"):
        own: list[Node] = []
        rows, of_rows = _without_scale(attention[name], attention, own)
        rows, of_columns = _without_scale_of_columns(rows, own[-1] if own else attention, own, attention)
        factors.append(rows)
        steps += own
        scale = scale * of_rows * of_columns
    if steps:
        args = (*factors, *attention.args[2:6], scale, attention["enable_gqa"])
        replace_call(attention, attention.qualified_op, args)
        for step in steps:
            step.destroy()


@dataclass(frozen=True)
class _Weighted:
    """A product of values and of what may be attention's weights."""

    weights: Value
    reader: Node
    """Of the weights."""
    values: Value
    is_turned: bool
    """Whether it is ``v^T @ weights^T``, the result with rows and columns exchanged."""
    by_columns: bool
    """Whether weights come as ``weights^T``: a softmax makes them along columns."""


def _weighted(last: Node) -> _Weighted:
    left, right = last.args[:2]
    turn = made_only_for(right, last)
    if turn is not None and _is_turn(turn) and _is_softmax(_without_guard(turn.args[0], turn)[1]):
        return _Weighted(turn.args[0], turn, left, True, False)
    if turn is not None and _is_softmax(turn) and turn["dim"] in (-2, right.rank - 2):
        return _Weighted(right, last, left, True, True)
    return _Weighted(left, last, right, False, False)


def _is_softmax(node: Node | None) -> bool:
    return node is not None and has_trait(node.qualified_op, Trait.SOFTMAX) and node.op == "aten::softmax"


def _replace(last: Node) -> None:
    found = _weighted(last)
    weights, rank = found.weights, found.weights.rank
    steps, softmax = _without_guard(weights, found.reader)
    if softmax is None or not _is_softmax(softmax):
        return
    if softmax["dim"] % rank != rank - 1 - found.by_columns or softmax["dtype"] not in (None, torch.float32):
        return
    takes_any = bool(steps)
    steps = [*([] if found.reader is last else [found.reader]), *steps, softmax]
    scores, mask = softmax.args[0], None
    if not found.by_columns:
        scores, mask = _without_masks(scores, steps, takes_any)
    scores, scale = _without_scale(scores, steps[-1], steps)
    scores, factor = _without_factor(scores, steps)
    product = made_only_for(scores, steps[-1])
    if product is None or product.op not in _PRODUCTS:
        return
    steps.append(product)
    (left, of_left), (right, of_right) = (_without_scale(factor, product, steps) for factor in product.args[:2])
    if not left.rank == right.rank == found.values.rank >= 3 or left.dtype not in (torch.float32, torch.float16):
        return
    if left.sizes[-1] > _MOST_FOR_A_KEY * weights.sizes[-1 - found.by_columns] and left.sizes[-1] > _LONG_HEAD:
        return
    if factor is not None and not _fits(factor, right if found.by_columns else left):
        return
    if found.by_columns:
        query, key, of_columns = _turned(right, last), left, 1.0
    else:
        query, of_columns = _without_scale_of_columns(left, product, steps, last)
        key = _turned_in_three(right, last) or _turned(right, last)
    query = query if factor is None else _multiplied(query, factor, last)
    value = _turned(found.values, last) if found.is_turned else found.values
    args = (query, key, value, mask, 0.0, False, scale * of_left * of_columns * of_right, False)
    *lead, rows, columns = last.output.sizes
    made = Value.of_tensor(last.output.dtype, (*lead, columns, rows) if found.is_turned else last.output.sizes)
    attention = Node.call(ATTENTION, args, [made], last.origin)
    if why_unsupported(attention) is not None:
        attention.destroy()
        for unread in (query, key, value):
            destroy_unread(unread.producer)
        return
    if found.is_turned:
        attention.insert_before(last)
        attention = Node.call("aten::transpose.int", (made, -2, -1), [Value("", last.output.type)], last.origin)
    make_instead(attention, last)
    for step in (last, *steps):
        step.destroy()
    for unread in (left, right):
        destroy_unread(unread.producer)


def _is_turn(node: Node) -> bool:
    """Whether a node exchanges the last two dimensions."""
    order = permutation_of(node)
    return order is not None and order == [*range(len(order) - 2), len(order) - 1, len(order) - 2]


def _without_scale_of_columns(query: Value, product: Node, steps: list[Node], last: Node) -> tuple[Value, float]:
    """Queries without the numbers that they were multiplied by as columns, and the product of these; ``steps`` grow."""
    turn = made_only_for(query, product)
    inner: list[Node] = []
    if turn is None or not _is_turn(turn):
        return query, 1.0
    columns, scale = _without_scale(turn.args[0], turn, inner)
    if not inner:
        return query, 1.0
    steps += [turn, *inner]
    return _turned(columns, last), scale


def _turned(x: Value, reader: Node) -> Value:
    """A tensor with its rows and columns exchanged, made before a node."""
    made = Value.of_tensor(x.dtype, (*x.sizes[:-2], x.sizes[-1], x.sizes[-2]))
    Node.call("aten::transpose.int", (x, -2, -1), [made], reader.origin).insert_before(reader)
    return made


def _turned_in_three(x: Value, reader: Node) -> Value | None:
    """What ``x`` has the rows of as columns, if these were exchanged in a view of three dimensions."""
    after = x.producer
    turn = after.args[0].producer if after is not None and after.qualified_op == "aten::reshape" else None
    if turn is None or permutation_of(turn) != [0, 2, 1]:
        return None
    before = turn.args[0].producer
    source: Value | None = before.args[0] if before is not None and before.qualified_op == "aten::reshape" else None
    rows = (*x.sizes[:-2], x.sizes[-1], x.sizes[-2])
    if source is None or turn.args[0].sizes[1:] != rows[-2:]:
        return None
    if source.sizes == rows:
        return source
    made = Value.of_tensor(x.dtype, rows)
    Node.call("aten::reshape", (source, list(rows)), [made], reader.origin).insert_before(reader)
    return made


def _without_guard(weights: Value, reader: Node) -> tuple[list[Node], Node | None]:
    """What makes weights, without the steps that put zeros in the place of NaN, and these."""
    step = made_only_for(weights, reader)
    if step is None or step.qualified_op != "aten::where.self":
        return [], step
    condition, zeros, others = step.args
    test = made_only_for(condition, step)
    if test is None or test.qualified_op != "aten::isnan" or test.args[0] is not others or _number(zeros) != 0:
        return [], step
    return ([step, test], others.producer) if {user for user, _ in others.uses} == {step, test} else ([], step)


def _without_scale(x: Value, reader: Node, steps: list[Node]) -> tuple[Value, float]:
    """A tensor without the numbers that it is multiplied by for one reader, and their product; ``steps`` grow."""
    scale = 1.0
    while (step := made_only_for(x, reader)) is not None and step.qualified_op in _SCALINGS:
        factor = _number(step.args[1])
        if factor is None:
            break
        scale = _SCALINGS[step.qualified_op](scale, factor)
        steps.append(step)
        x, reader = step.args[0], step
    return x, scale


def _without_factor(scores: Value, steps: list[Node]) -> tuple[Value, Value | None]:
    """Scores without constants that multiply all of a matrix, such as one for each head; ``steps`` grow."""
    step = made_only_for(scores, steps[-1])
    if step is None or step.qualified_op != "aten::mul.Tensor":
        return scores, None
    inner, factor = step.args
    is_constant = isinstance(factor, Value) and factor.elements is not None and factor.dtype == torch.float32
    if not is_constant or factor.rank > scores.rank or inner.sizes != scores.sizes:
        return scores, None
    if any(size != 1 for size in factor.sizes[-2:]):
        return scores, None
    steps.append(step)
    return inner, factor


def _fits(factor: Value, queries: Value) -> bool:
    """Whether queries have the matrices that a factor tells apart."""
    pairs = zip(reversed(factor.sizes[:-2]), reversed(queries.sizes[:-2]), strict=False)
    return all(size in (1, own) for size, own in pairs)


def _multiplied(query: Value, factor: Value, last: Node) -> Value:
    """Queries times a constant, by what normalises them, if that does."""
    maker = query.producer
    weight = scaled_by(maker, factor) if maker is not None and maker.qualified_op == L2_NORMALIZE else None
    made = Value.of_tensor(query.dtype, query.sizes)
    if maker is None or weight is None:
        Node.call("aten::mul.Tensor", (query, factor), [made], last.origin).insert_before(last)
    else:
        args = (*maker.args[:3], weight)
        Node.call(L2_NORMALIZE, args, [made], maker.origin | last.origin).insert_before(last)
    return made


def share_heads(graph: Graph) -> None:
    """Let queries' heads share keys and values that were repeated for them.

    Given:
        %k : Float(1, 8, 7, 4) = aten::repeat_interleave.self_int(%a, 4, 1, None)
        %v : Float(1, 8, 7, 4) = aten::repeat_interleave.self_int(%b, 4, 1, None)
        %y : Float(1, 8, 5, 4) = aten::scaled_dot_product_attention(%q, %k, %v, None, 0.0, False, None, False)
    Result:
        %y : Float(1, 8, 5, 4) = aten::scaled_dot_product_attention(%q, %a, %b, None, 0.0, False, None, True)

    So it is with what ``a[:, :, None].expand(...).reshape(...)`` repeats.
    """
    for node in graph.block.nodes:
        if node.op != ATTENTION or node["enable_gqa"]:
            continue
        key, value = (_shared(node[name]) for name in ("key", "value"))
        if key is None or value is None or key.sizes[-3] != value.sizes[-3] or node["query"].rank != key.rank:
            continue
        if not node["query"].sizes[-3] == node["key"].sizes[-3] == node["value"].sizes[-3]:  # one is for all others
            continue
        args = (node["query"], key, value, *node.args[3:-1], True)
        again = Node.call(ATTENTION, args, [Value("", node.output.type)], node.origin)
        if why_unsupported(again) is not None:
            again.destroy()
            continue
        make_instead(again, node)
        repeated = [node["key"].producer, node["value"].producer]
        node.destroy()
        for maker in repeated:
            destroy_unread(maker)


def _shared(value: Value) -> Value | None:
    """The tensor (..., heads, rows, columns) each of whose heads ``value`` has several times, one beside the other."""
    node = value.producer
    if node is None or value.rank < 3:
        return None
    if node.qualified_op == "aten::transpose.int":
        return _turned_back(node)
    if node.qualified_op == "aten::repeat_interleave.self_int":
        source: Value = node.args[0]
        is_of_heads = node["dim"] is not None and node["dim"] % source.rank == source.rank - 3
        return source if is_of_heads and source.sizes[-2:] == value.sizes[-2:] else None
    while node is not None and has_trait(node.qualified_op, Trait.IDENTITY):
        node = node.args[0].producer
    if node is None or (node.op not in ("aten::view", "aten::reshape") and node.op != "aten::_unsafe_view"):
        return None
    return _spread_heads(node.args[0], value)


def _turned_back(node: Node) -> Value | None:
    """What was repeated, where rows and columns were exchanged twice since."""
    inner = node.args[0].producer
    return _shared(inner.args[0]) if inner is not None and _is_turn(node) and _is_turn(inner) else None


def _spread_heads(spread: Value, value: Value) -> Value | None:
    """What has the heads of ``value``, a view of ``spread``, if that is it with a dimension that was spread."""
    while (node := spread.producer) is not None and has_trait(node.qualified_op, Trait.IDENTITY):
        spread = node.args[0]
    *lead, heads, times, rows, columns = (1, *spread.sizes)
    if node is None or node.qualified_op != "aten::expand" or spread.rank != value.rank + 1:
        return None
    source: Value = node.args[0]
    if (*lead[1:], heads * times, rows, columns) != value.sizes or source.rank != spread.rank:
        return None
    inner = source.producer
    if inner is None or inner.qualified_op != "aten::unsqueeze" or source.sizes != (*lead[1:], heads, 1, rows, columns):
        return None
    return inner.args[0] if inner["dim"] % source.rank == source.rank - 3 else None


def _number(value: object) -> float | None:
    """A factor that is known: a number, or a constant of one element, which makes no dimensions."""
    if isinstance(value, Value):
        return float(value.elements) if value.elements is not None and value.numel == 1 and value.rank < 2 else None
    return float(value) if isinstance(value, (int, float)) else None


def _without_masks(weighted: Value, steps: list[Node], takes_any: bool) -> tuple[Value, Value | None]:
    """Scores as they were before masks were added, and the mask that is all of them; ``steps`` grow, of which the last
    is what reads the scores. Several masks, and those that are added to scores in another shape, must be constants, as
    those of windows that share a batch's dimension (Z. Liu et al., "Swin Transformer", 2021)."""
    masks: list[tuple[Value, tuple[int, ...]]] = []
    scores, taken = weighted, len(steps)
    while True:
        views = _views_before(scores, steps[-1])
        shape = views[-1].args[0] if views else scores
        found = _sum_with_mask(shape, views[-1] if views else steps[-1])
        if found is None:
            if masks and scores.sizes != weighted.sizes:
                steps += views
                scores = shape
            break
        steps += [*views, found[0]]
        scores = found[1]
        masks.append((found[2], scores.sizes))
    whole = masks[0][0] if [sizes for _, sizes in masks] == [weighted.sizes] else _joined(masks, weighted)
    counts = whole is not None and (takes_any or _lets_keys_count(whole))
    if not masks or not counts or scores.sizes != weighted.sizes:
        del steps[taken:]
        return weighted, None
    return scores, whole


def _views_before(x: Value, reader: Node) -> list[Node]:
    """Views of other sizes that keep the last two dimensions, the last one first, each read by the one before alone."""
    views: list[Node] = []
    while (step := made_only_for(x, reader)) is not None and is_reshape(step):
        if step.args[0].sizes[-2:] != x.sizes[-2:]:
            break
        views.append(step)
        x, reader = step.args[0], step
    return views


def _joined(masks: Sequence[tuple[Value, tuple[int, ...]]], scores: Value) -> Value | None:
    """One mask for scores of a shape, of constants that were added to them in several shapes."""
    if not masks or scores.numel > _MOST_JOINED:
        return None
    whole = torch.zeros(scores.sizes)
    for mask, sizes in masks:
        if mask.elements is None:
            return None
        whole = whole + mask.elements.expand(sizes).reshape(scores.sizes)
    return Value.of_elements(whole, torch.float32)


def _lets_keys_count(mask: Value) -> bool:
    return mask.elements is not None and bool((mask.elements > -torch.inf).any(-1).all())


def _sum_with_mask(scores: Value, reader: Node) -> tuple[Node, Value, Value] | None:
    """A sum of scores and a mask that attention may add instead: the node, the scores and the mask."""
    step = made_only_for(scores, reader)
    if step is None or step.qualified_op != "aten::add.Tensor" or step["alpha"] != 1:
        return None
    first, second = step.args[:2]
    if not isinstance(second, Value) or second.rank < 2:
        return None
    fits = second.dtype == torch.float32 and second.rank <= scores.rank and first.sizes == scores.sizes
    return (step, first, second) if fits else None
