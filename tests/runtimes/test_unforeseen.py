"""Operators whose results torch's meta kernels can't foretell or foretell wrongly, numbers in tensors, random
numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from applied import Applied
from torch import nn
from torch.nn import functional

from mobopt.errors import InputError, UnsupportedError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes import recorder
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


def traced(function: Callable[..., Any], tensors: Sequence[torch.Tensor], device: Device) -> VulkanProgram:
    module = torch.jit.trace(Applied(function), tuple(tensors), check_trace=False, strict=False)
    return VulkanProgram(program_from_script_module(module), device)


ROWS = torch.tensor([[1.0, 2.0, 4.0], [3.0, 1.0, 0.0], [2.0, 4.0, 8.0]])
NUMBER = torch.tensor(1)


def changed_part(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """A view that a number in a tensor chooses is written to."""
    y = x * 2
    y.tensor_split(at[None])[1].mul_(3)
    y.narrow(0, at, 1).add_(1)
    return y


def changed_constant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Operators that give a constant back as it is."""
    first = torch.empty(3).fill_(5)
    second = first.view(3).contiguous().type_as(x)
    second.sub_(3)
    return first + x, second + x


def changed_nothing(x: torch.Tensor) -> torch.Tensor:
    """What is written to has no elements."""
    y = x + 1
    y[0:-4] = 0
    y[:, 3:].add_(1)
    return y


CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "narrow by a tensor": (lambda x, start: x.narrow(0, start, 2), [ROWS, NUMBER]),
    "split by a tensor": (lambda x, at: x.tensor_split(at), [ROWS, torch.tensor([1, -1])]),
    "split in as many as a tensor says": (lambda x, count: x.tensor_split(count, 1), [ROWS, NUMBER + 1]),
    "a part is changed": (changed_part, [ROWS, NUMBER]),
    "constants by two names": (changed_constant, [ROWS]),
    "nothing is changed": (changed_nothing, [ROWS]),
    "one_hot without a count": (lambda x: functional.one_hot(x), [torch.tensor([[0, 4], [2, 0]])]),
    "one_hot of nothing": (lambda x: functional.one_hot(x, 3), [torch.zeros(0, 2, dtype=torch.int64)]),
    "atleast_1d of several": (lambda x, y: torch.atleast_1d(x, y), [ROWS, torch.tensor(2.0)]),
    "atleast_3d of several": (lambda x, y: torch.atleast_3d(x, y), [ROWS, ROWS[None]]),
    "cov with weights": (lambda x, w: torch.cov(x, aweights=w), [ROWS, torch.tensor([1.0, 0.5, 2.0])]),
    "lstsq": (lambda x, y: torch.linalg.lstsq(x, y, driver="gelsd").residuals, [ROWS[:, :2], ROWS]),
    "lstsq of less than full rank": (lambda x, y: torch.linalg.lstsq(x, y, driver="gelsd").residuals, [ROWS, ROWS]),
    "loss of one row": (lambda x, y: functional.multilabel_margin_loss(x, y), [ROWS[0], torch.tensor([2, 0, -1])]),
    "empty statistics": (
        lambda x, mean, var: torch.native_batch_norm(x, None, None, mean, var, False, 0.1, 1e-5),
        [ROWS, ROWS[0], ROWS[0] + 1],
    ),
    "gather of a number": (lambda x, i: x.gather(0, i), [torch.tensor(2.0), torch.tensor([0, 0])]),
    "circular padding that crops": (
        lambda x: functional.pad(x, (-1, 1, 1, -2), mode="circular"),
        [torch.arange(35.0).reshape(1, 1, 5, 7)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_right(case: str, device: Device) -> None:
    function, tensors = CASES[case]
    found, expected = traced(function, tensors, device).run("forward", tensors), function(*tensors)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
def test_interpolate_of_no_samples(mode: str, device: Device) -> None:
    program = traced(lambda x: functional.interpolate(x, scale_factor=2.0, mode=mode), [torch.ones(1, 3, 2, 5)], device)
    assert program.run("forward", [torch.ones(0, 3, 2, 5)]).shape == (0, 3, 4, 10)


def test_a_number_in_a_tensor_is_all_that_is_read(device: Device) -> None:
    function, tensors = CASES["narrow by a tensor"]
    program = traced(lambda x, start: function(x * 2.0, start), tensors, device)
    for rows in (ROWS, ROWS + 1):
        assert torch.equal(program.run("forward", [rows, NUMBER]), 2 * rows[1:])
    report = program.plan_report([ROWS, NUMBER])
    assert (report.looks, report.fallbacks) == (1, ())
    assert (len(program._plans), len(program._later_plans)) == (
        1,
        1,
    )  # what reads the number, and what it decides: both serve other rows


def test_refused_by_torch_too(device: Device) -> None:
    counts = traced(lambda x: functional.one_hot(x), [torch.tensor([1])], device)
    with pytest.raises(InputError, match=r"aten::one_hot.*non-negative"):
        counts.run("forward", [torch.tensor([1, -1])])
    solves = traced(torch.linalg.solve, [torch.eye(3), ROWS], device)
    with pytest.raises(InputError, match=r"aten::linalg_solve.*singular"):
        solves.run("forward", [torch.zeros(3, 3), ROWS])
    given = [ROWS.sigmoid(), ROWS.sigmoid()]
    judges = traced(lambda x, y: functional.binary_cross_entropy(x, y), given, device)
    torch.testing.assert_close(judges.run("forward", given), functional.binary_cross_entropy(*given))
    with pytest.raises(InputError, match=r"aten::binary_cross_entropy.*between 0 and 1"):
        judges.run("forward", [given[0] + 1, given[1]])


def foretold_wrongly(x: torch.Tensor) -> torch.Tensor:
    """As many rows as the first element says, where it isn't 0 or 1."""
    if x.device.type == "meta":
        raise NotImplementedError
    return x[: int(x.flatten()[0])].clone()


class Truncates(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.zeros_like(x, dtype=torch.int64)
        count.fill_(2.5).copy_(count * 1.5)
        return count.add_(x)


def test_integers_are_not_changed_to_fractions(device: Device) -> None:
    scripted = torch.jit.script(Truncates())
    program = VulkanProgram(program_from_script_module(scripted), device)
    assert torch.equal(program(ROWS.long()), scripted(ROWS.long()))
    with pytest.raises(InputError, match=r"aten::add_.*float32 to a torch.int64"):
        program(ROWS)


def test_sizes_that_turn_out_to_be_others(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stand-in elements foretell is compared with what comes out; then the elements are read."""
    real = recorder.kernel
    monkeypatch.setattr(recorder, "kernel", lambda op: foretold_wrongly if op == "aten::special_airy_ai" else real(op))
    monkeypatch.setattr(
        "mobopt.runtimes.vulkan.compile.host_function.kernel_in_line",
        lambda op: foretold_wrongly if op == "aten::special_airy_ai" else real(op),
    )
    program = traced(lambda x: (torch.special.airy_ai(x * 2) + 1).sum(1), [ROWS], device)
    for rows in (ROWS, ROWS / 2, ROWS * 1.5):
        assert torch.equal(program.run("forward", [rows]), (2 * rows[: int(2 * rows[0, 0])] + 1).sum(1))
        assert program.plan_report([rows]).looks == 1


def test_sparse_results_are_refused(device: Device) -> None:
    with pytest.raises(UnsupportedError, match=r"to_sparse.*dense"):
        traced(lambda x: x.to_sparse(), [ROWS], device).run("forward", [ROWS])


class DrawsBeside(nn.Module):
    """Random tensors without a device's name beside computed ones, and drawn in place."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.rand([3]) + x,
            torch.randn([3], device=x.device) + x,
            torch.normal(0.0, 1.0, [3]) + x,
            torch.randint(0, 1000, [3]) + x,
            torch.empty([3]).normal_(0.0, 1.0) + x,
            torch.empty([3]).exponential_(1.0) + x,
            torch.empty([3]).uniform_(0.0, 1.0) + x,
            x.clone().normal_(5.0, 1.0) + x,
            x.clone().uniform_(-1.0, 1.0) + x,
            x.new_empty([3]).random_(0, 1000) + x,
        ]


def test_random_numbers_are_drawn_by_every_call(device: Device) -> None:
    program = VulkanProgram(program_from_script_module(torch.jit.script(DrawsBeside())), device)
    x = torch.full((3,), 2.0)
    torch.manual_seed(0)
    first, second = program(x), program(x)
    for one, other in zip(first, second, strict=True):
        assert one.dtype == torch.float32 and one.shape == (3,) and not torch.equal(one, other)
    assert all(0 <= value <= 1 for value in (first[6] - x).tolist())
    torch.manual_seed(0)
    for one, other in zip(program(x), first, strict=True):
        assert torch.equal(one, other)


class Half(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).bernoulli_(0.5)


def test_bernoulli_in_place(device: Device) -> None:
    torch.manual_seed(0)
    program = VulkanProgram(program_from_script_module(torch.jit.script(Half())), device)
    drawn = program(torch.full((997,), 7.0))
    assert set(drawn.tolist()) == {0.0, 1.0} and 0.4 < float(drawn.mean()) < 0.6
