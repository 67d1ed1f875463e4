"""Attention of halves by matrix units, emulated where the device has none, beside float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import run_calls, torch_operator, with_defaults
from products import constant_call

from mobopt.ir import Value
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
    MatrixAttentionBlock(2, 2, 1, 32, KEYS_AHEAD),
    MatrixAttentionBlock(1, 1, 1, 32),
    MatrixAttentionBlock(1, 1, 2, 16, KEYS_AHEAD | VALUES_AHEAD),
    MatrixAttentionBlock(1, 3, 2, 32, VALUES_AHEAD),
    MatrixAttentionBlock(4, 1, 1, 32, KEYS_AHEAD | VALUES_AHEAD),
    MatrixAttentionBlock(1, 8, 1, 16, KEYS_AHEAD | VALUES_AHEAD),
]
each_block = pytest.mark.parametrize(
    "block", [pytest.param(block, marks=() if block is BLOCKS[0] else pytest.mark.sweep) for block in BLOCKS]
)
ROUNDING = 2.0**-11
"""Of each weight and each element of the result, which become halves."""


def force(monkeypatch: pytest.MonkeyPatch, device: Any, block: MatrixAttentionBlock) -> None:
    """Have attention computed by a block, of operands for which one would be chosen."""
    forced = replace(block, emulated="emulated-matrix-units" in device.info.switches)

    def choose(info: Any, operands: AttentionOperands, scale: float, is_causal: bool) -> MatrixAttentionBlock:
        assert matrix_block(info, operands, scale, is_causal) is not None
        needed = forced.shared_bytes(operands.value.sizes[-1])
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
    call = constant_call(OP, args, (), exact.half())
    inputs = [(ref, value) for ref, value in zip(call.args, args, strict=True) if isinstance(ref, Value)]
    (found,) = run_calls(device, [call], inputs, list(call.outputs), device_layout=False)
    scale = float(tensors[2].double().abs().max())
    assert found.dtype == torch.float16
    assert float((found.double() - exact).abs().max()) <= 2 * ROUNDING * scale


def halves(*sizes: int) -> torch.Tensor:
    """Random halves."""
    return torch.randn(sizes).half()


@each_block
def test_odd_sizes(units: Any, monkeypatch: pytest.MonkeyPatch, block: MatrixAttentionBlock) -> None:
    force(monkeypatch, units, block)
    check(units, halves(3, 37, 24), halves(3, 53, 24), halves(3, 53, 40), scale=0.3)
    check(units, halves(2, 67, 16), halves(2, 71, 16), halves(2, 71, 16), is_causal=True)


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


def test_heads_that_share_keys(units: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, units, BLOCKS[0])
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
