"""Attention of halves by matrix units, emulated where the device has none, beside float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from device_infos import known_device
from harness import run_calls, torch_operator, with_defaults
from products import constant_call

from mobopt.ir import Value
from mobopt.runtimes.vulkan.engine.fragment_order import ORDERED_FRAGMENTS
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, default_strides
from mobopt.runtimes.vulkan.kernels.attention_kernel import AttentionOperands
from mobopt.runtimes.vulkan.kernels.attention_matrix import (
    KEYS_AHEAD,
    VALUES_AHEAD,
    MatrixAttentionBlock,
    matrix_block,
)
from mobopt.runtimes.vulkan.lowerings import attention as lowering

OP = "aten::scaled_dot_product_attention"
BLOCKS = [
    MatrixAttentionBlock(2, 2, 1, 16, KEYS_AHEAD),
    MatrixAttentionBlock(1, 1, 1, 32),
    MatrixAttentionBlock(1, 1, 2, 32, KEYS_AHEAD | VALUES_AHEAD),
    MatrixAttentionBlock(1, 3, 2, 32, VALUES_AHEAD),
    MatrixAttentionBlock(4, 1, 1, 32, KEYS_AHEAD | VALUES_AHEAD),
    MatrixAttentionBlock(1, 8, 1, 16, KEYS_AHEAD | VALUES_AHEAD),
    MatrixAttentionBlock(2, 1, 1, 32, staged=True),
    MatrixAttentionBlock(4, 1, 1, 16, staged=True),
    MatrixAttentionBlock(4, 1, 2, 32, staged=True),
]
MOST_EMULATED = 32
"""Keys of a tile, of all rows of fragments."""
each_block = pytest.mark.parametrize(
    "block", [pytest.param(block, marks=() if block is BLOCKS[0] else pytest.mark.sweep) for block in BLOCKS]
)
ROUNDINGS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Of each weight and each element of the result, which become halves."""


def force(
    monkeypatch: pytest.MonkeyPatch, device: Any, block: MatrixAttentionBlock, *, would_be_chosen: bool = True
) -> None:
    """Have attention computed by a block, of operands for which one would be chosen."""
    forced = replace(block, emulated="emulated-matrix-units" in device.info.switches)
    if forced.emulated and forced.high * forced.keys > MOST_EMULATED:
        pytest.skip("llvmpipe would take minutes to compile it")

    def choose(info: Any, operands: AttentionOperands, scale: float, is_causal: bool) -> MatrixAttentionBlock:
        assert (matrix_block(info, operands, scale, is_causal) is not None) == would_be_chosen
        needed = forced.shared_bytes(operands.query.sizes[-1], operands.value.sizes[-1])
        if needed > info.limits.max_compute_shared_memory_size:
            pytest.skip("the block needs more shared memory")
        return forced

    monkeypatch.setattr(lowering, "matrix_block", choose)


def check(device: Any, *tensors: torch.Tensor, **options: Any) -> None:
    """Compare with float64 of the same halves."""
    args = with_defaults(OP, tensors, options)
    wide = [
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in args
    ]
    exact = torch_operator(OP)(*wide[:6], scale=wide[6], enable_gqa=wide[7])
    call = constant_call(OP, args, (), exact.to(tensors[0].dtype))
    inputs = [(ref, value) for ref, value in zip(call.args, args, strict=True) if isinstance(ref, Value)]
    (found,) = run_calls(device, [call], inputs, list(call.outputs), device_layout=False)
    scale = float(tensors[2].double().abs().max())
    assert found.dtype == tensors[0].dtype
    assert float((found.double() - exact).abs().max()) <= 2 * ROUNDINGS[found.dtype] * scale


def halves(*sizes: int) -> torch.Tensor:
    """Random halves."""
    return torch.randn(sizes).half()


@each_block
def test_odd_sizes(units: Any, monkeypatch: pytest.MonkeyPatch, block: MatrixAttentionBlock) -> None:
    force(monkeypatch, units, block)
    check(units, halves(3, 37, 24), halves(3, 53, 24), halves(3, 53, 40), scale=0.3)
    check(units, halves(2, 67, 16), halves(2, 71, 16), halves(2, 71, 16), is_causal=True)


@pytest.mark.sweep
@each_block
def test_masks(units: Any, monkeypatch: pytest.MonkeyPatch, block: MatrixAttentionBlock) -> None:
    force(monkeypatch, units, block)
    shape = [halves(2, 3, 19, 16), halves(2, 3, 41, 16), halves(2, 3, 41, 16)]
    check(units, *shape, attn_mask=halves(2, 1, 1, 41))
    mask = torch.randn(3, 19, 41) > 0.5
    mask[1, 3] = False  # torch gives zeros where no key counts
    check(units, *shape, attn_mask=mask)
    finite = torch.zeros(19, 41)
    finite[1], finite[2], finite[3, 4:] = torch.finfo(torch.float32).min, -1e20, torch.finfo(torch.float32).min
    check(units, *shape, attn_mask=finite)


@pytest.mark.sweep
@each_block
def test_usual_heads(units: Any, monkeypatch: pytest.MonkeyPatch, block: MatrixAttentionBlock) -> None:
    force(monkeypatch, units, block)
    check(units, halves(2, 67, 64), halves(2, 71, 64), halves(2, 71, 64), is_causal=True)
    check(units, halves(2, 67, 128), halves(2, 71, 128), halves(2, 71, 128))


@pytest.mark.parametrize(
    "head, width",
    [
        (40, 72),
        pytest.param(16, 8, marks=pytest.mark.sweep),
        pytest.param(128, 96, marks=pytest.mark.sweep),
        pytest.param(8, 128, marks=pytest.mark.sweep),
    ],
)
def test_heads_and_values_of_other_sizes(units: Any, monkeypatch: pytest.MonkeyPatch, head: int, width: int) -> None:
    force(monkeypatch, units, BLOCKS[0])
    check(units, halves(3, 37, head), halves(3, 101, head), halves(3, 101, width))


@pytest.mark.sweep
def test_teams(units: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles each, and none; also of keys that later queries alone see, and where nothing counts."""
    force(monkeypatch, units, MatrixAttentionBlock(1, 7, 1, 16, KEYS_AHEAD | VALUES_AHEAD))
    check(units, halves(2, 33, 24), halves(2, 197, 24), halves(2, 197, 40))
    check(units, halves(1, 19, 24), halves(1, 107, 24), halves(1, 107, 40))
    check(units, halves(2, 33, 24), halves(2, 3, 24), halves(2, 3, 40))
    check(units, halves(1, 197, 24), halves(1, 197, 24), halves(1, 197, 40), is_causal=True)
    mask = torch.randn(33, 197) > 1
    mask[:, 64:96] = False
    mask[3:21] = False
    check(units, halves(2, 33, 24), halves(2, 197, 24), halves(2, 197, 40), attn_mask=mask)


@pytest.mark.parametrize("block", [BLOCKS[0], BLOCKS[4]])
@pytest.mark.parametrize("queries", [5, 17])
def test_groups_without_queries(
    units: Any, monkeypatch: pytest.MonkeyPatch, block: MatrixAttentionBlock, queries: int
) -> None:
    force(monkeypatch, units, block, would_be_chosen=queries >= 16)
    shape = halves(2, queries, 16), halves(2, 43, 16), halves(2, 43, 16)
    check(units, *shape)
    check(units, *shape, is_causal=True)
    check(units, *shape, attn_mask=torch.randn(queries, 43))


def test_heads_that_share_keys(units: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, units, BLOCKS[1])
    packed = halves(1, 23, 10, 16).transpose(1, 2)  # as models split one linear layer
    check(units, packed[:, :6], packed[:, 6:8], packed[:, 8:], enable_gqa=True)


@pytest.mark.parametrize(
    ("queries", "head", "scale"), [(15, 16, None), (16, 12, None), (17, 136, None), (16, 16, -0.2)]
)
def test_what_units_do_not_compute(
    units: Any, monkeypatch: pytest.MonkeyPatch, queries: int, head: int, scale: float | None
) -> None:
    """Few queries, rows that can't be read by eight halves, long ones and turned scores are computed otherwise."""
    monkeypatch.setattr(lowering, "attend_by_matrix_units", None)
    check(units, halves(2, queries, head), halves(2, 21, head), halves(2, 21, head), scale=scale)


def operands_of(batches: int, queries: int, keys: int, elements: int) -> AttentionOperands:
    """Of halves, dense."""

    def tensor(rows: int) -> DeviceTensor:
        sizes = (1, 1, batches, rows, elements)
        storage = Storage(2 * batches * rows * elements, elements=torch.float16)
        return DeviceTensor(storage, torch.float32, sizes, default_strides(sizes, torch.float32))

    return AttentionOperands(tensor(queries), tensor(keys), tensor(keys), None, tensor(queries))


@pytest.mark.parametrize(
    "batches, queries, keys, elements, block",
    [
        (8, 4096, 4096, 64, (4, 1, 2)),
        (8, 4096, 4096, 72, (8, 1, 1)),
        (16, 1024, 77, 80, (8, 1, 1)),
        (12, 1024, 1024, 64, (4, 1, 1)),
        (400, 49, 49, 32, (4, 1, 1)),  # 128 queries at a time would be twice the work
        (12, 197, 197, 64, (4, 1, 1)),
        (6, 197, 197, 64, (1, 8, 1)),
        (6, 197, 1000, 64, (1, 8, 1)),
        (12, 17, 20, 64, (1, 2, 1)),
    ],
)
def test_what_is_chosen(batches: int, queries: int, keys: int, elements: int, block: tuple[int, int, int]) -> None:
    """Few queries have teams, many rows of fragments."""
    h200 = replace(known_device("nvidia_h200"), driver_id=4)
    assert h200.cores == 132
    found = matrix_block(h200, operands_of(batches, queries, keys, elements), 1.0, is_causal=False)
    assert found is not None and (found.query_groups, found.teams, found.high) == block
    assert found.staged == (found.teams == 1)


@pytest.mark.parametrize("elements, keys", [(64, 32), (88, 16), (128, 16)])
def test_split_tiles_have_room(elements: int, keys: int) -> None:
    """Of wide floats, high and low halves of 32 keys are more than shared memory holds."""
    h200 = replace(known_device("nvidia_h200"), driver_id=4)
    operands = operands_of(16, 1024, 1024, elements)
    found = matrix_block(h200, operands, 1.0, is_causal=False, split=True)
    assert found is not None and (found.query_groups, found.keys, found.staged) == (8, keys, True)
    assert found.shared_bytes(elements, elements) <= h200.shared_memory_bytes


def test_fragments_of_another_order_are_not_used() -> None:
    h200 = known_device("nvidia_h200")
    other = replace(h200, features=h200.features - {ORDERED_FRAGMENTS})
    blocks = [matrix_block(each, operands_of(6, 197, 197, 64), 1.0, is_causal=False) for each in (h200, other)]
    assert blocks[0] is not None and blocks[1] is None
