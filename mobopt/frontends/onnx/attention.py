"""Attention: ONNX's own and that of ``com.microsoft``, as ``aten::scaled_dot_product_attention``."""

from __future__ import annotations

import math
from typing import Any

import torch

from mobopt.frontends.onnx.operands import Operand
from mobopt.frontends.onnx.registry import MICROSOFT, Call, translates
from mobopt.ir import Value


def split_heads(call: Call, x: Any, heads: Any) -> Any:
    """``batch x steps x hidden`` as ``batch x heads x steps x width``."""
    emit = call.emit
    x = emit("reshape", x, [emit.size(x, 0), emit.size(x, 1), heads, -1])
    return emit("transpose.int", x, 1, 2)


def join_heads(call: Call, x: Any) -> Any:
    """The reverse."""
    return call.emit("flatten.using_ints", call.emit("transpose.int", x, 1, 2), 2)


def attended(call: Call, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None, grouped: bool) -> Any:
    """Softmax of the products of queries and keys, times the values."""
    return call.emit(
        "scaled_dot_product_attention", q, k, v, mask, 0.0, causal, scale=scale or None, enable_gqa=grouped
    )


def causal_mask(call: Call, q: Any, k: Any, past: Any) -> Any:
    """Whether a query sees a key: those of the past, and those no later than itself."""
    emit = call.emit
    rows = emit("reshape", emit("arange", emit.size(q, 2), dtype=torch.int64), [-1, 1])
    return emit("le.Tensor", emit("arange", emit.size(k, 2), dtype=torch.int64), emit("add.Scalar", rows, past))


_ATTENTION_ATTRIBUTES = {"is_causal", "kv_num_heads", "q_num_heads", "scale"}
"""Those that the translation knows; its definition knows all."""


@translates("Attention")
def _attention(call: Call) -> Any:
    emit = call.emit
    if not set(call.attributes) <= _ATTENTION_ATTRIBUTES or call.wants(3) or call.has(6):
        return call.translator.expanded(call, "")
    q, k, v = (call.tensor(index) for index in range(3))
    rank = call.rank(0)
    q_heads, kv_heads = call.get("q_num_heads"), call.get("kv_num_heads")
    if rank == 3:
        q, k, v = split_heads(call, q, q_heads), split_heads(call, k, kv_heads), split_heads(call, v, kv_heads)
    else:
        q_heads, kv_heads = call.size(0, 1), call.size(1, 1)
    past: Any = 0
    if call.has(4):
        past = call.size(4, 2)
        k, v = emit("cat", [call.tensor(4), k], 2), emit("cat", [call.tensor(5), v], 2)
    mask, causal = call.tensor(3), bool(call.get("is_causal", 0))
    if mask is not None:
        known = (call.operand(3).sizes or (None,))[-1]
        total = _length(call.types[0][1], call, past)
        if known is None or total is None or known != total:
            return call.translator.expanded(call, "")
    if causal and (mask is not None or isinstance(past, Value) or past):
        seen = causal_mask(call, q, k, past)
        if mask is None:
            mask = seen
        elif call.dtype(3) == torch.bool:
            mask = emit("logical_and", mask, seen)
        else:
            mask = emit("where.self", seen, mask, torch.tensor(-math.inf, dtype=call.dtype(3)))
        causal = False
    grouped = q_heads is not kv_heads and q_heads != kv_heads
    result = attended(call, q, k, v, mask, causal, call.get("scale"), grouped)
    result = join_heads(call, result) if rank == 3 else result
    return [result, k, v][: max(len(call.node.output), 1)]


def _length(sizes: Any, call: Call, past: Any) -> Any:
    """How many keys there are, if it is known."""
    own = call.operand(1).sizes
    steps = None if own is None else own[2 if len(own) == 4 else 1]
    return None if steps is None or isinstance(past, Value) else steps + past


def _additive(call: Call, keeps: Any, dtype: torch.dtype) -> Any:
    """What is added to products: nothing where a mask is one, a large negative number where it is zero."""
    emit = call.emit
    lacks = emit("rsub.Scalar", emit("to.dtype", keeps, dtype), 1)
    return emit("mul.Scalar", lacks, call.get("mask_filter_value", -10000.0))


def _padding_mask(call: Call, index: int, keys: Any, dtype: torch.dtype) -> Any:
    """A mask of keys, of any of the forms that ``com.microsoft`` has, as what is added to products."""
    emit = call.emit
    mask, rank = call.tensor(index), call.rank(index)
    if rank == 1:  # how many keys each batch has
        known = call.operand(index).sizes
        if known is not None and known != (call.operand(0).sizes or (None,))[:1]:
            raise call.unsupported("its mask has where keys begin and end")
        places = emit("arange", emit.size(keys, 2), dtype=torch.int64)
        mask = emit("lt.Tensor", places, emit("unsqueeze", mask, 1))
        rank = 2
    if rank == 2:
        mask = emit("unsqueeze", emit("unsqueeze", mask, 1), 1)
    elif rank == 3:
        mask = emit("unsqueeze", mask, 1)
    elif rank != 4:
        raise call.unsupported(f"its mask has {rank} dimensions")
    return _additive(call, mask, dtype)


def _joined(call: Call, parts: list[Any]) -> Any:
    """Masks that are added, added."""
    result: Any = None
    for part in parts:
        result = part if result is None else call.emit("add.Tensor", result, part)
    return result


def _causal(call: Call, q: Any, k: Any, past: Any, dtype: torch.dtype) -> Any:
    """A mask that is added, of what comes later."""
    blank = torch.tensor(-math.inf, dtype=dtype), torch.tensor(0.0, dtype=dtype)
    return call.emit("where.self", causal_mask(call, q, k, past), blank[1], blank[0])


@translates("Attention", domain=MICROSOFT)
def _attention_of_microsoft(call: Call) -> Any:
    """Projects one input to queries, keys and values, which lie side by side in its weights."""
    emit, heads, dtype = call.emit, call.get("num_heads"), call.dtype()
    if call.get("do_rotary", 0):
        raise call.unsupported("it turns queries and keys (do_rotary)")
    projected = emit("matmul", call.tensor(0), call.tensor(1))
    projected = emit("add.Tensor", projected, call.tensor(2)) if call.has(2) else projected
    widths = call.get("qkv_hidden_sizes")
    if not widths:
        whole = (call.operand(1).sizes or (None, None))[1]
        if whole is None:
            raise call.unsupported("the size of its weights is known at run time only")
        widths = [whole // 3] * 3
    parts, start = [], 0
    for width in widths:
        part = emit("slice.Tensor", projected, 2, start, start + width, 1)
        parts.append(split_heads(call, part, heads))
        start += width
    q, k, v = parts
    past: Any = 0
    if call.has(4):
        before = call.tensor(4)
        past = emit.size(before, 3)
        k = emit("cat", [emit("select.int", before, 0, 0), k], 2)
        v = emit("cat", [emit("select.int", before, 0, 1), v], 2)
    masks = [_padding_mask(call, 3, k, dtype)] if call.has(3) else []
    masks += [call.tensor(5)] if call.has(5) else []
    causal = bool(call.get("unidirectional", 0))
    if causal and (masks or call.has(4)):
        masks.append(_causal(call, q, k, past, dtype))
        causal = False
    result = attended(call, q, k, v, _joined(call, masks), causal, call.get("scale"), False)
    present = emit("stack", [k, v], 0) if call.wants(1) else None
    sizes = call.operand(0).sizes
    outer = (None, None, None) if sizes is None else (*sizes[:2], widths[2])
    found = Operand(dtype, outer, join_heads(call, result))
    return [found, None if present is None else Operand(dtype, (None,) * 5, present)]


@translates("MultiHeadAttention", domain=MICROSOFT)
def _multi_head_attention(call: Call) -> Any:
    emit, dtype = call.emit, call.dtype()
    is_packed = call.rank(0) == 5 or not call.has(2)
    if is_packed and call.has(3):
        raise call.unsupported("it has a bias for queries, keys and values that are packed")
    q, k, v = _packed_heads(call) if is_packed else _heads(call, call.get("num_heads"))
    past: Any = 0
    if call.has(6):
        past = call.size(6, 2)
        k, v = emit("cat", [call.tensor(6), k], 2), emit("cat", [call.tensor(7), v], 2)
    masks = [_padding_mask(call, 4, k, dtype)] if call.has(4) else []
    masks += [call.tensor(5)] if call.has(5) else []
    causal = bool(call.get("unidirectional", 0))
    if causal and (masks or call.has(6)):
        masks.append(_causal(call, q, k, past, dtype))
        causal = False
    result = attended(call, q, k, v, _joined(call, masks), causal, call.get("scale"), False)
    sizes = call.operand(0).sizes or (None,) * 3
    inner = sizes[2] if len(sizes) == 3 else None
    if not is_packed and call.rank(2) == 3:
        inner = (call.operand(2).sizes or (None,) * 3)[2]
    found = [Operand(dtype, (*sizes[:2], inner), join_heads(call, result))]
    return [*found, *(Operand(dtype, (None,) * 4, item) for item in (k, v))]


def _heads(call: Call, heads: Any) -> tuple[Any, Any, Any]:
    """Queries, keys and values, each ``batch x heads x steps x width``, with what is added to them."""
    emit = call.emit
    hidden = (call.operand(0).sizes or (None, None, None))[2]
    q, k, v = (call.tensor(index) for index in range(3))
    if call.has(3):
        if hidden is None:
            raise call.unsupported("the size of its queries is known at run time only")
        bias = call.tensor(3)
        q = emit("add.Tensor", q, emit("slice.Tensor", bias, 0, 0, hidden, 1))
        if call.rank(1) == 3:
            k = emit("add.Tensor", k, emit("slice.Tensor", bias, 0, hidden, 2 * hidden, 1))
            v = emit("add.Tensor", v, emit("slice.Tensor", bias, 0, 2 * hidden, (1 << 62), 1))
    k = split_heads(call, k, heads) if call.rank(1) == 3 else k
    v = split_heads(call, v, heads) if call.rank(2) == 3 else v
    return split_heads(call, q, heads), k, v


def _packed_heads(call: Call) -> tuple[Any, Any, Any]:
    """The same of one input, ``batch x steps x heads x 3 x width``, or of queries and one of keys and values."""
    if call.rank(0) == 5:
        parts = [(0, index) for index in range(3)]
    elif call.rank(0) == 3 and call.has(1) and call.rank(1) == 5:
        parts = [(1, index) for index in range(2)]
    else:
        raise call.unsupported("it has neither keys and values nor what both are packed in")
    packed = [
        call.emit("transpose.int", call.emit("select.int", call.tensor(source), 3, index), 1, 2)
        for source, index in parts
    ]
    if len(packed) == 2:
        packed.insert(0, split_heads(call, call.tensor(0), call.get("num_heads")))
    return packed[0], packed[1], packed[2]


@translates("RotaryEmbedding", domain=MICROSOFT)
def _rotary_embedding(call: Call) -> Any:
    """Pairs of elements, turned by angles of their positions."""
    emit = call.emit
    rank, heads = call.rank(0), call.get("num_heads", 0)
    cosines, sines = call.tensor(2), call.tensor(3)
    half = (call.operand(2).sizes or (None, None))[1]
    if half is None:
        raise call.unsupported("the width of its angles is known at run time only")
    x = call.tensor(0)
    if rank == 3:
        x = emit("reshape", x, [call.size(0, 0), call.size(0, 1), heads or -1, *([2 * half] if not heads else [-1])])
        x = emit("transpose.int", x, 1, 2)
    places = call.tensor(1)
    if call.operand(1).rank == 1:
        steps = emit.size(x, 2)
        places = emit("unsqueeze", emit("add.Tensor", emit("arange", steps, dtype=torch.int64), places), 0)
    width = 0 if call.get("rotary_embedding_dim", 0) else 2 * half
    result = turned(call, x, (cosines, sines), places, half, width, bool(call.get("interleaved", 0)))
    return [call.like(join_heads(call, result) if rank == 3 else result)]


def turned(call: Call, x: Any, tables: tuple[Any, Any], places: Any, half: int, width: int, interleaved: bool) -> Any:
    """Pairs of elements of ``batch x heads x steps x width``, turned by angles of their positions.

    Args:
        call: the node.
        x: elements; those beyond twice ``half`` stay as they are.
        tables: cosines and sines by position.
        places: positions, ``batch x steps``.
        half: how many pairs are turned.
        width: elements of a head; zero if it is not known, or more than the pairs.
        interleaved: whether a pair lies side by side, or ``half`` apart.
    """
    emit = call.emit
    cosine, sine = (emit("unsqueeze", emit("embedding", table, places), 1) for table in tables)
    pairs = x if width == 2 * half else emit("slice.Tensor", x, 3, 0, 2 * half, 1)
    rest = [] if width == 2 * half else [emit("slice.Tensor", x, 3, 2 * half, 1 << 62, 1)]
    if interleaved:
        first, second = (emit("slice.Tensor", pairs, 3, begin, 1 << 62, 2) for begin in (0, 1))
    else:
        first, second = emit("slice.Tensor", pairs, 3, 0, half, 1), emit("slice.Tensor", pairs, 3, half, 2 * half, 1)
    real = emit("sub.Tensor", emit("mul.Tensor", first, cosine), emit("mul.Tensor", second, sine))
    other = emit("add.Tensor", emit("mul.Tensor", first, sine), emit("mul.Tensor", second, cosine))
    if interleaved:
        whole = emit("flatten.using_ints", emit("stack", [real, other], -1), 3)
        return emit("cat", [whole, *rest], -1) if rest else whole
    return emit("cat", [real, other, *rest], -1)
