"""Indices out of range and integers divided by zero end in the error that torch gives; the next call is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from applied import Applied
from torch import Tensor, nn

from mobopt import optimize_for_mobile
from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.program import VulkanProgram


class _Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x


_LINE, _TABLE = torch.arange(4.0), torch.arange(35.0).reshape(5, 7)


def _t(*values: int) -> Tensor:
    return torch.tensor(values)


# A function, good arguments, bad ones.
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], tuple[Tensor, ...]]] = {
    "index": (lambda x, i: x[i] + 1, (_LINE, _t(1, 2)), (_LINE, _t(1, 9))),
    "index from the end": (lambda x, i: x[i], (_LINE, _t(-4, 3)), (_LINE, _t(-5, 3))),
    "two indices": (lambda x, i, j: x[i, j], (_TABLE, _t(4, -5), _t(-7, 6)), (_TABLE, _t(1, 2), _t(7, 0))),
    "two indices from the end": (lambda x, i, j: x[i, j], (_TABLE, _t(4, 0), _t(1, 6)), (_TABLE, _t(-6, 2), _t(1, 0))),
    "embedding": (lambda w, i: nn.functional.embedding(i, w), (_TABLE, _t(4, 0)), (_TABLE, _t(4, 5))),
    "embedding below": (lambda w, i: nn.functional.embedding(i, w), (_TABLE, _t(4, 0)), (_TABLE, _t(-1, 0))),
    "embedding in a net": (
        lambda w, i: (nn.functional.embedding(i, w) @ w.t()).softmax(-1),
        (_TABLE, torch.full((3, 11), 4)),
        (_TABLE, torch.full((3, 11), 2**31 - 1)),
    ),
    "gather": (lambda x, i: x.gather(1, i), (_TABLE, _t(0, 6).view(2, 1)), (_TABLE, _t(0, 7).view(2, 1))),
    "gather below": (lambda x, i: x.gather(0, i), (_LINE, _t(3)), (_LINE, _t(-1))),
    "index_select": (lambda x, i: x.index_select(1, i), (_TABLE, _t(6, 0, 3)), (_TABLE, _t(6, 0, -1))),
    "index_select above": (lambda x, i: x.index_select(1, i), (_TABLE, _t(6, 0, 3)), (_TABLE, _t(6, 7, 1))),
    "scatter": (lambda x, i: x.scatter(0, i, 5.0) * 2, (_LINE, _t(1)), (_LINE, _t(4))),
    "index_put": (lambda x, i: x.index_put((i,), torch.ones(())), (_LINE, _t(1)), (_LINE, _t(4))),
    "scatter_add below": (lambda x, i: x.scatter_add(0, i, x), (_LINE, _t(1)), (_LINE, _t(-1))),
    "index_copy": (
        lambda x, i: x.index_copy(1, i, torch.ones(5, 2)),
        (_TABLE, _t(1, 6)),
        (_TABLE, _t(1, 7)),
    ),
    "index_copy of one": (lambda x, i: x.index_copy(1, i, torch.ones(5, 1)), (_TABLE, _t(6)), (_TABLE, _t(7))),
    "index_copy of one below": (lambda x, i: x.index_copy(1, i, torch.ones(5, 1)), (_TABLE, _t(0)), (_TABLE, _t(-1))),
    "index_add": (lambda x, i: x.index_add(0, i, torch.ones(2, 7)), (_TABLE, _t(1, 4)), (_TABLE, _t(-1, 4))),
    "index_fill below": (lambda x, i: x.index_fill(0, i, 7.0), (_TABLE, _t(1, -5)), (_TABLE, _t(1, -6))),
    "index_put added": (
        lambda x, i: x.index_put((i, i), torch.ones(()), accumulate=True),
        (_TABLE, _t(1, -2)),
        (_TABLE, _t(1, -6)),
    ),
    "floor division": (lambda x, y: x // y, (_t(7, 8, 9), _t(1, -2, 3)), (_t(7, 8, 9), _t(1, -2, 0))),
    "division of int32": (
        lambda x, y: torch.div(x, y, rounding_mode="trunc") + 1,
        (_t(7, 8, 9).int(), _t(1, -2, 3).int()),
        (_t(7, 8, 9).int(), _t(0, -2, 3).int()),
    ),
    "remainder": (lambda x, y: x % y, (_t(7, 8, 9, 1, 2), _t(1, -2, 3, 1, 2)), (_t(7, 8, 9, 1, 2), _t(1, 1, 1, 1, 0))),
    "fmod of a number": (lambda x, y: torch.fmod(x, y), (_t(7), torch.tensor(3)), (_t(7), torch.tensor(0))),
    "far index in a large tensor": (
        lambda x, i: x[i].sum(),
        (torch.ones(70001), torch.arange(70000)),
        (torch.ones(70001), torch.arange(70000) + 2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_operands_are_torchs_error(device: Any, name: str) -> None:
    function, good, bad = CASES[name]
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        function(*bad)
    traced = torch.jit.trace(Applied(function), good, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    for _ in range(2):
        torch.testing.assert_close(program(*good), function(*good))
        with pytest.raises(InputError) as ours:
            program(*bad)
        assert str(theirs.value).split("\n", 1)[0].rstrip(".") in str(ours.value)
        assert ".py:" in str(ours.value), "it says where"
    program.close()


@pytest.mark.parametrize("index", [4, -5])
def test_constant_indices_are_looked_at_when_the_plan_is_made(device: Any, index: int) -> None:
    def function(x: Tensor) -> Tensor:
        return x[torch.tensor([0, index])] + 1

    traced = torch.jit.trace(Applied(lambda x: x[torch.tensor([0, 3])] + 1), (_LINE,), check_trace=False)  # type: ignore[no-untyped-call]
    assert not VulkanProgram(program_from_script_module(traced), device).plan_report((_LINE,)).fallbacks
    with pytest.raises(IndexError) as theirs:
        function(_LINE)
    traced = torch.jit.trace(Applied(function), (torch.arange(5.0),), check_trace=False)  # type: ignore[no-untyped-call]
    with pytest.raises(InputError) as ours:
        VulkanProgram(program_from_script_module(traced), device)(_LINE)
    assert str(theirs.value) in str(ours.value)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total[i]


def test_state_is_as_before_a_call_that_fails(device: Any) -> None:
    program = VulkanProgram(program_from_script_module(torch.jit.script(Counting())), device)
    assert torch.equal(program(_LINE, _t(3)), _t(3).float())
    with pytest.raises(InputError, match="out of bounds"):
        program(_LINE, _t(4))
    assert torch.equal(program(_LINE, _t(3)), _t(6).float())
    program.close()


def test_what_pads_a_tensor_is_not_checked(device: Any) -> None:
    """Rows of seven in runs of four: the eighth divisor and index is no element, whatever lies there."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        divisor = (y * 0 + 5) * (y > 0)
        return x // divisor, _TABLE[:, :7][divisor - 1]

    x, y = torch.arange(21).reshape(3, 7), torch.ones(3, 7, dtype=torch.int64)
    traced = torch.jit.trace(Applied(function), (x, y), check_trace=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device, fallback="error")
    for result, expected in zip(program(x, y), function(x, y), strict=True):
        assert torch.equal(result, expected)
    program.close()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("call", ["call", "submit", "run_on_device"])
def test_inputs_without_elements_are_refused(dtype: torch.dtype, called_before: bool, call: str) -> None:
    module = optimize_for_mobile(torch.jit.script(_Doubled()), backend="vulkan", runtime="mobopt")
    good = torch.arange(6).reshape(2, 3).to(dtype)
    if called_before:
        module(good)
    runs: dict[str, Callable[..., Any]] = {
        "call": module,
        "submit": lambda x: module.submit(x).result(),
        "run_on_device": module.run_on_device,
    }
    run = runs[call]
    with pytest.raises(InputError, match="meta tensor"):
        run(good.to("meta"))
    with pytest.raises(InputError, match="nested tensor"):
        run(torch.nested.as_nested_tensor([good[0], good[1, :2]], layout=torch.strided))
    torch.testing.assert_close(module(good), good + good)


_SCORES = torch.arange(12.0).reshape(3, 4)
_DECOMPOSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], tuple[Tensor, ...], str]] = {
    "nll_loss": (nn.functional.nll_loss, (_SCORES, _t(0, 3, 1)), (_SCORES, _t(0, 7, 1)), "aten::nll_loss_nd"),
    "cross_entropy": (
        nn.functional.cross_entropy,
        (_SCORES, _t(0, 3, 1)),
        (_SCORES, _t(0, -7, 1)),
        "aten::cross_entropy_loss",
    ),
    "embedding_bag": (
        lambda w, i: nn.functional.embedding_bag(i, w) * 2,
        (_TABLE, _t(0, 4).view(1, 2)),
        (_TABLE, _t(0, 9).view(1, 2)),
        "aten::embedding_bag",
    ),
    # Those that 32 bits don't hold are looked up on the CPU, by parts of the operator.
    "nll_loss beyond 32 bits": (
        nn.functional.nll_loss,
        (_SCORES, _t(0, 3, 1)),
        (_SCORES, _t(0, 2**40, 1)),
        "aten::nll_loss_nd",
    ),
    "take beyond 32 bits": (torch.take, (_TABLE, _t(0, 34)), (_TABLE, _t(0, -(2**31) - 1)), "aten::take"),
    "put beyond 32 bits": (
        lambda x, i: x.put(i, torch.ones(2)),
        (_TABLE, _t(0, 34)),
        (_TABLE, _t(0, 2**31)),
        "aten::put",
    ),
    "embedding_bag beyond 32 bits": (
        lambda w, i: nn.functional.embedding_bag(i, w) * 2,
        (_TABLE, _t(0, 4).view(1, 2)),
        (_TABLE, _t(0, 2**33).view(1, 2)),
        "aten::embedding_bag",
    ),
}


@pytest.mark.parametrize("name", _DECOMPOSED)
def test_decomposed_operators_refuse_in_torchs_words(name: str) -> None:
    function, good, bad, operator = _DECOMPOSED[name]
    module = Applied(function)
    runtime = VulkanProgram(program_from_script_module(torch.jit.trace(module, good)))  # type: ignore[no-untyped-call]
    expected = module(*good)
    torch.testing.assert_close(runtime(*good), expected)
    with pytest.raises((RuntimeError, IndexError)) as torchs:
        module(*bad)
    words = str(torchs.value).rstrip(".")
    for call in (
        lambda: runtime(*bad),
        lambda: runtime.submit("forward", bad).result(),
        lambda: runtime.run_on_device("forward", bad),
    ):
        with pytest.raises(InputError) as refused:
            call()
        assert str(refused.value).startswith(operator) and words in str(refused.value)
    torch.testing.assert_close(runtime(*good), expected)
    runtime.close()


_SIZES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], tuple[Tensor, ...]]] = {
    "matmul": (torch.matmul, (_TABLE, _TABLE.t()), (_TABLE, _TABLE)),
    "add": (torch.add, (_TABLE, _TABLE), (_TABLE, _TABLE[:2])),
    "cat": (lambda x, y: torch.cat([x, y]), (_TABLE, _TABLE), (_TABLE, _TABLE.t())),
    "stack": (lambda x, y: torch.stack([x, y]), (_TABLE, _TABLE), (_TABLE, _TABLE[:1])),
    "linear": (lambda x: nn.functional.linear(x, torch.ones(2, 7)), (_TABLE,), (_TABLE.t(),)),
    "conv2d": (
        lambda x: nn.functional.conv2d(x, torch.ones(1, 3, 2, 2)),
        (torch.ones(1, 3, 5, 4),),
        (torch.ones(1, 2, 5, 4),),
    ),
    "layer_norm": (lambda x: nn.functional.layer_norm(x, (7,)), (_TABLE,), (_TABLE.t(),)),
    "reflection": (lambda x: nn.functional.pad(x, (3, 3), mode="reflect"), (_TABLE,), (_TABLE[:, :2],)),
    "amax of nothing": (lambda x: x.amax(0), (_TABLE,), (_TABLE[:0],)),
    "topk": (lambda x: x.topk(4)[0], (_TABLE,), (_TABLE[:, :3],)),
}


@pytest.mark.parametrize("name", _SIZES)
def test_sizes_are_refused_in_torchs_words(name: str) -> None:
    """Kernels for meta tensors, which know sizes, put it otherwise."""
    function, good, bad = _SIZES[name]
    module = optimize_for_mobile(torch.jit.trace(Applied(function), good), backend="vulkan", runtime="mobopt")
    with pytest.raises((RuntimeError, IndexError)) as torchs:
        function(*bad)
    with pytest.raises(InputError) as refused:
        module(*bad)
    assert str(torchs.value).splitlines()[0].rstrip(".") in str(refused.value)
    torch.testing.assert_close(module(*good), function(*good))


def test_a_mask_puts_a_number_of_another_dtype() -> None:
    """Which torch takes for what it fills with."""

    def put(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        return x.index_put((mask,), value)

    given = torch.tensor([False, True, True, False]), torch.tensor([True, False, True, False]), torch.tensor(0.5)
    module = optimize_for_mobile(torch.jit.trace(Applied(put), given), backend="vulkan", runtime="mobopt")
    assert torch.equal(module(*given), put(*given))
