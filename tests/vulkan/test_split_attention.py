"""Attention of floats by matrix units for halves, emulated where the device has none, beside float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import run_calls, torch_operator, with_defaults
from products import constant_call

from mobopt.ir import Value
from mobopt.runtimes.vulkan.kernels import attention_matrix
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
    MatrixAttentionBlock(*sizes, split=True)
    for sizes in (
        (1, 2, 1, 16, KEYS_AHEAD),
        (1, 1, 1, 32),
        (2, 1, 1, 16, VALUES_AHEAD),
        (4, 1, 1, 32),
        (1, 7, 1, 16, KEYS_AHEAD | VALUES_AHEAD),
    )
] + [MatrixAttentionBlock(*sizes, split=True, staged=True) for sizes in ((2, 1, 1, 16), (8, 1, 1, 16), (4, 1, 1, 32))]
MOST_EMULATED = 16
"""Keys of a tile, of all rows of fragments."""
each_block = pytest.mark.parametrize(
    "block", [pytest.param(block, marks=() if block is BLOCKS[0] else pytest.mark.sweep) for block in BLOCKS]
)
LOSS = 4e-6
"""Of the largest value: scores lose 2^-22 of what they sum up, and weights as much as scores of up to 8 do."""


def force(monkeypatch: pytest.MonkeyPatch, device: Any, block: MatrixAttentionBlock) -> None:
    """Have attention computed by a block, of operands for which one would be chosen."""
    forced = replace(block, emulated="emulated-matrix-units" in device.info.switches)
    if forced.emulated and forced.high * forced.keys > MOST_EMULATED:
        pytest.skip("llvmpipe would take minutes to compile it")

    def choose(
        info: Any, operands: AttentionOperands, scale: float, is_causal: bool, split: bool = False
    ) -> MatrixAttentionBlock:
        needed = forced.shared_bytes(operands.query.sizes[-1], operands.value.sizes[-1])
        if needed > info.limits.max_compute_shared_memory_size:
            pytest.skip("the block needs more shared memory")
        assert split and matrix_block(info, operands, scale, is_causal, split=True) is not None
        return forced

    monkeypatch.setattr(lowering, "matrix_block", choose)
    monkeypatch.setattr(attention_matrix, "_LEAST_SPLIT_KEYS", 0)


def run(device: Any, tensors: tuple[torch.Tensor, ...], **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What the device computes, and float64."""
    args = with_defaults(OP, tensors, options)
    wide = [
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in args
    ]
    exact = torch_operator(OP)(*wide[:6], scale=wide[6], enable_gqa=wide[7])
    call = constant_call(OP, args, (), exact.float())
    inputs = [(ref, value) for ref, value in zip(call.args, args, strict=True) if isinstance(ref, Value)]
    (found,) = run_calls(device, [call], inputs, list(call.outputs), device_layout=False)
    return found, exact


def check(device: Any, *tensors: torch.Tensor, **options: Any) -> None:
    """Compare with float64."""
    found, exact = run(device, tensors, **options)
    assert found.dtype == torch.float32
    assert float((found.double() - exact).abs().max()) <= LOSS * float(tensors[2].double().abs().max())


@each_block
def test_odd_sizes(units: Any, monkeypatch: pytest.MonkeyPatch, block: MatrixAttentionBlock) -> None:
    force(monkeypatch, units, block)
    check(units, torch.randn(3, 37, 24), torch.randn(3, 53, 24), torch.randn(3, 53, 40), scale=0.3)


@pytest.mark.sweep
@each_block
def test_causal_rows(units: Any, monkeypatch: pytest.MonkeyPatch, block: MatrixAttentionBlock) -> None:
    force(monkeypatch, units, block)
    check(units, torch.randn(2, 67, 16), torch.randn(2, 71, 16), torch.randn(2, 71, 16), is_causal=True)


@pytest.mark.sweep
@each_block
def test_masks(units: Any, monkeypatch: pytest.MonkeyPatch, block: MatrixAttentionBlock) -> None:
    force(monkeypatch, units, block)
    shape = [torch.randn(2, 3, 19, 16), torch.randn(2, 3, 41, 16), torch.randn(2, 3, 41, 16)]
    check(units, *shape, attn_mask=torch.randn(2, 1, 1, 41))
    mask = torch.randn(3, 19, 41) > 0.5
    mask[1, 3] = False  # torch gives zeros where no key counts
    check(units, *shape, attn_mask=mask)
    finite = torch.zeros(19, 41)
    finite[1], finite[2], finite[3, 4:] = torch.finfo(torch.float32).min, -1e20, torch.finfo(torch.float32).min
    check(units, *shape, attn_mask=finite)


@pytest.mark.sweep
def test_keys_and_values_of_bfloat16(units: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside queries that stay float32; each number is two halves to the last bit."""
    force(monkeypatch, units, BLOCKS[0])
    keys, values = torch.randn(3, 53, 24).bfloat16(), torch.randn(3, 53, 40).bfloat16()
    check(units, torch.randn(3, 37, 24), keys, values, scale=0.3)


@pytest.mark.sweep
@each_block
def test_usual_heads(units: Any, monkeypatch: pytest.MonkeyPatch, block: MatrixAttentionBlock) -> None:
    force(monkeypatch, units, block)
    check(units, torch.randn(2, 67, 64), torch.randn(2, 71, 64), torch.randn(2, 71, 64), is_causal=True)
    check(units, torch.randn(2, 67, 128), torch.randn(2, 71, 128), torch.randn(2, 71, 128))


@pytest.mark.sweep
@pytest.mark.parametrize("head, width", [(40, 24), (40, 72), (128, 96)])
def test_heads_and_values_of_other_sizes(units: Any, monkeypatch: pytest.MonkeyPatch, head: int, width: int) -> None:
    force(monkeypatch, units, BLOCKS[0])
    check(units, torch.randn(3, 37, head), torch.randn(3, 101, head), torch.randn(3, 101, width))


@pytest.mark.sweep
@pytest.mark.long
def test_teams(units: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles each, and none; also of keys that later queries alone see, and where nothing counts."""
    force(monkeypatch, units, BLOCKS[-1])
    check(units, torch.randn(2, 33, 24), torch.randn(2, 3, 24), torch.randn(2, 3, 40))
    check(units, torch.randn(1, 197, 24), torch.randn(1, 197, 24), torch.randn(1, 197, 40), is_causal=True)
    mask = torch.randn(33, 197) > 1
    mask[3:21] = False
    check(units, torch.randn(2, 33, 24), torch.randn(2, 197, 24), torch.randn(2, 197, 40), attn_mask=mask)


@pytest.mark.sweep
@pytest.mark.parametrize("magnitude", [-9, 40])
@pytest.mark.parametrize("block", [BLOCKS[2], BLOCKS[-1]])
def test_magnitudes_of_teams_and_groups(
    units: Any, monkeypatch: pytest.MonkeyPatch, block: MatrixAttentionBlock, magnitude: int
) -> None:
    """A second attempt, and ordinary arithmetic, of which a workgroup goes through its rows in rounds."""
    force(monkeypatch, units, block)
    tensors = torch.randn(2, 37, 16), torch.randn(2, 83, 16), torch.randn(2, 83, 40) * 2.0**magnitude
    check(units, *tensors, is_causal=magnitude > 0)


@pytest.mark.sweep
def test_heads_that_share_keys(units: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, units, BLOCKS[0])
    packed = torch.randn(1, 23, 10, 16).transpose(1, 2)  # as models split one linear layer
    check(units, packed[:, :6], packed[:, 6:8], packed[:, 8:], enable_gqa=True)


# Of queries, keys and values: what the scales suit, what needs others, and what no scale suits.
MAGNITUDES = [(0, 0, 0), (-9, 8, 3), (11, -12, 0), (0, 0, 13), (0, 0, -20), (30, -30, 35), (45, -46, 0), (0, 0, -60)]


@pytest.mark.parametrize("magnitudes", MAGNITUDES)
@pytest.mark.parametrize("is_causal", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_magnitudes(
    units: Any, monkeypatch: pytest.MonkeyPatch, magnitudes: tuple[int, int, int], is_causal: bool
) -> None:
    force(monkeypatch, units, BLOCKS[0])
    sizes = (2, 37, 16), (2, 41, 16), (2, 41, 24)
    check(units, *(torch.randn(s) * 2.0**m for s, m in zip(sizes, magnitudes, strict=True)), is_causal=is_causal)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e30, 70000.0, 0.0])
@pytest.mark.parametrize("operand", [0, 1, 2])
def test_special_numbers(units: Any, monkeypatch: pytest.MonkeyPatch, number: float, operand: int) -> None:
    """What infinities and NaN become is what attention of floats makes of them."""
    force(monkeypatch, units, BLOCKS[0])
    tensors = torch.randn(2, 37, 16), torch.randn(2, 41, 16), torch.randn(2, 41, 24)
    tensors[operand][1, 5, 3] = number
    found, exact = run(units, tensors)
    expected = torch_operator(OP)(*tensors)
    assert torch.equal(found.isnan(), expected.isnan())
    rest = ~expected.isnan()
    assert torch.equal(found[rest].isinf(), expected[rest].isinf())
    finite = rest & expected.isfinite()
    largest = float(exact[finite].abs().max())
    assert float((found.double() - exact)[finite].abs().max()) <= 3 * LOSS * largest


def test_what_units_do_not_compute(units: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the switch's leave, floats are left to ordinary arithmetic."""
    monkeypatch.setattr(lowering, "attend_by_matrix_units", None)
    switches = units.info.switches | {"no-split-products"}
    monkeypatch.setattr(units, "info", replace(units.info, switches=switches))
    check(units, torch.randn(2, 19, 16), torch.randn(2, 21, 16), torch.randn(2, 21, 16))
