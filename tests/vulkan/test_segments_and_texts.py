"""Reductions of segments, likelihoods of texts in time, exponentials of matrices, and signals of computed windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from applied import Applied
from one_node import Constant, check
from torch import Tensor, nn

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.sweep)])
def computer(request: pytest.FixtureRequest) -> Any:
    """What computes the parts: torch's kernels (None), or a device."""
    return None if request.param == "host" else request.getfixturevalue("device")


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
def test_segments(computer: Any, reduce: str) -> None:
    x, lengths = torch.randn(2, 11, 3), torch.tensor([[3, 0, 7, 1], [0, 4, 5, 2]])
    for initial in (None, 0.5):
        check(computer, "aten::segment_reduce", x[0], reduce, lengths=lengths[0], initial=initial)
        check(computer, "aten::segment_reduce", x[0, :, 0].contiguous(), reduce, lengths=lengths[1], initial=initial)
        check(computer, "aten::segment_reduce", x, reduce, lengths=lengths, axis=1, initial=initial, unsafe=True)
        check(computer, "aten::segment_reduce", x[1], reduce, offsets=torch.tensor([0, 2, 2, 11]), initial=initial)


TARGETS = torch.tensor([[1, 1, 2, 5], [3, 2, 6, 1], [4, 4, 4, 4]])


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("lengths", [([11, 9, 11], [4, 3, 2]), ([5, 11, 0], [4, 0, 0]), ([3, 1, 7], [3, 2, 4])])
def test_texts_in_time(computer: Any, reduction: int, lengths: tuple[list[int], list[int]]) -> None:
    """Of several lengths, also of texts that don't fit, which are never seen."""
    x = torch.randn(11, 3, 7).log_softmax(-1)
    tensors = tuple(map(torch.tensor, lengths))
    for given in (lengths, tensors, tuple(map(Constant, tensors))):
        form = "IntList" if given is lengths else "Tensor"
        check(computer, f"aten::ctc_loss.{form}", x, TARGETS, *given, 0, reduction, False)
        check(computer, f"aten::ctc_loss.{form}", x, TARGETS, *given, 0, reduction, True)
        classes = TARGETS.flatten()[: sum(lengths[1])] if sum(lengths[1]) else TARGETS.flatten()
        check(computer, f"aten::ctc_loss.{form}", x, classes, *given, 5, reduction, False)


def test_one_text_in_time(computer: Any) -> None:
    x = torch.randn(13, 5).log_softmax(-1)
    check(computer, "aten::ctc_loss.IntList", x, torch.tensor([1, 1, 2, 3]), [13], [4], 0, 0, False)
    check(computer, "aten::ctc_loss.Tensor", x, torch.tensor([1, 2]), torch.tensor(7), torch.tensor(2), 4, 0, False)


@pytest.mark.parametrize("size", [1, 2, 5, 37])
def test_exponentials(computer: Any, size: int) -> None:
    x = torch.randn(3, size, size) / size
    for factor in (1e-3, 1.0, 10.0):
        check(computer, "aten::linalg_matrix_exp", x * factor, relative=1e-5)
    rotation = 30 * (x - x.mT)
    check(computer, "aten::linalg_matrix_exp", rotation, relative=1e-4)
    check(computer, "aten::linalg_matrix_exp", -500 * torch.eye(size) - x.abs())
    check(computer, "aten::linalg_matrix_exp", torch.zeros(size, size))


def _program(device: Device, function: Callable[..., Any], *given: Tensor) -> VulkanProgram:
    traced = torch.jit.trace(Applied(function), given, check_trace=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    torch.testing.assert_close(program(*given), function(*given), rtol=1e-4, atol=1e-5)
    assert not program.plan_report(list(given)).fallbacks
    return program


@pytest.mark.parametrize(("hop", "length", "center"), [(8, None, True), (7, 100, True), (5, None, False)])
def test_signals_of_computed_windows(device: Device, hop: int, length: int | None, center: bool) -> None:
    def signal(parts: Tensor, window: Tensor) -> Tensor:
        whole = torch.view_as_complex(parts)
        return torch.istft(whole, 32, hop, window=window * 2, length=length, center=center)

    parts, window = torch.randn(2, 17, 19, 2), torch.rand(32) + 0.25
    program = _program(device, signal, parts, window)
    with pytest.raises(InputError, match="window overlap add min"):
        program(parts, torch.zeros(32))


def test_bags_that_torch_refuses(device: Device) -> None:
    table, indices = torch.randn(11, 5), torch.tensor([3, 1, 10, 0, 3])

    def bags(rows: Tensor, offsets: Tensor) -> Tensor:
        return nn.functional.embedding_bag(rows, table, offsets, mode="sum")

    program = _program(device, bags, indices, torch.tensor([0, 2, 2]))
    torch.testing.assert_close(program(indices, torch.tensor([0, 0, 5])), bags(indices, torch.tensor([0, 0, 5])))
    for wrong in ([1, 2, 3], [0, 2, 6]):
        with pytest.raises(InputError, match="offsets"):
            program(indices, torch.tensor(wrong))


def test_lengths_that_torch_refuses(device: Device) -> None:
    def reduced(x: Tensor, lengths: Tensor) -> Tensor:
        return torch.segment_reduce(x, "sum", lengths=lengths)

    def loss(x: Tensor, steps: Tensor, lengths: Tensor) -> Tensor:
        return nn.functional.ctc_loss(x, TARGETS, steps, lengths)

    x = torch.randn(7, 3)
    program = _program(device, reduced, x, torch.tensor([3, 4]))
    for wrong in ([3, 3], [8, -1]):
        with pytest.raises(InputError):
            program(x, torch.tensor(wrong))
    x = torch.randn(11, 3, 7).log_softmax(-1)
    program = _program(device, loss, x, torch.tensor([11, 9, 11]), torch.tensor([4, 3, 2]))
    with pytest.raises(InputError):
        program(x, torch.tensor([12, 9, 11]), torch.tensor([4, 3, 2]))
