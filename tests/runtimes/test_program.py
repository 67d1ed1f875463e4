"""Programs on a Vulkan device: plans, results of every form, fallback and reports."""

from typing import Optional

import pytest
import torch
from torch import nn

from mobopt.errors import InputError, UnsupportedError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan import program as program_module
from mobopt.runtimes.vulkan.program import VulkanProgram


def load(module: nn.Module, device, **options) -> VulkanProgram:
    return VulkanProgram(program_from_script_module(torch.jit.script(module)), device, **options)


class Forms(nn.Module):
    """Returns what is awkward: inputs, constants, views, twice the same, nothing, numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, extra: Optional[torch.Tensor]):  # noqa: UP045
        y = x * 2.0
        z = y if extra is None else y + extra
        views = {"transposed": y.transpose(1, 3), "part": y[:, 1:2, ::2], "of input": x[:, 0]}
        return x, self.weight, views, [z, z], y[:0], x.sum(), (x.size(2), "text", 0.5, None)


def test_results_of_every_form(device):
    module, x = Forms(), torch.randn(2, 3, 4, 5)
    program = load(module, device)
    for extra in (None, torch.randn(5)):
        found, expected = program(x, extra), module(x, extra)
        assert found[0] is x
        assert torch.equal(found[1], expected[1]) and found[1] is not module.weight
        for key, value in expected[2].items():
            assert torch.equal(found[2][key], value), key
        assert found[3][0] is found[3][1] and torch.equal(found[3][0], expected[3][0])
        assert found[4].shape == (0, 3, 4, 5)
        torch.testing.assert_close(found[5], expected[5])
        assert found[6] == (4, "text", 0.5, None)
    found[1].zero_()
    assert program(x, None)[1].abs().sum() > 0


class Several(nn.Module):
    """Returns new tensors alone, of a convolution and of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 3)

    def forward(self, x: torch.Tensor) -> tuple[dict[str, torch.Tensor], list[torch.Tensor], None]:
        y = self.layer(x)
        return {"y": y, "places": y.argmax(1)}, [y, torch.relu(y)], None


def test_new_results_are_dense_and_the_callers_own(device):
    module, x = Several(), torch.randn(2, 3, 6, 5)
    program, expected = load(module, device), module(x)
    for _ in range(2):
        found = program(x)
        assert found[2] is None and found[1][0] is found[0]["y"]
        pairs = [(found[0][key], expected[0][key]) for key in ("y", "places")] + [(found[1][1], expected[1][1])]
        for result, exact in pairs:
            torch.testing.assert_close(result, exact.detach(), atol=1e-5, rtol=1e-5)
            assert result.dtype == exact.dtype and result.is_contiguous()
            result.zero_()


@pytest.mark.parametrize("enabled", [True, False])
def test_a_call_computes_without_gradients_and_leaves_their_mode(device, enabled):
    program, x = load(Several(), device), torch.randn(2, 3, 6, 5, requires_grad=True)
    with torch.set_grad_enabled(enabled):
        for _ in range(2):
            assert not program(x)[0]["y"].requires_grad
            assert torch.is_grad_enabled() == enabled
        with pytest.raises(InputError):
            program(x[:, :2])
        assert torch.is_grad_enabled() == enabled


def test_strided_inputs_and_all_dtypes(device):
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + y, y > 1

    program = load(Sum(), device)
    base = torch.randn(2, 6, 4, 3).permute(0, 3, 1, 2)[:, 1:]
    for other in (torch.arange(6).view(6, 1), torch.ones(4, dtype=torch.int32), torch.rand(1) > 0.5):
        found, expected = program(base, other), (base + other, other > 1)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        assert found[0].dtype == expected[0].dtype


class Partly(nn.Module):
    """Operators without a GPU kernel among others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.igamma(x + 1.0, x * 0.5)
        return torch.relu(torch.lgamma(y.double() + 1.0).float() - x)


def test_fallback_is_right_counted_and_reported(device):
    program, x = load(Partly(), device), torch.rand(3, 4)
    torch.testing.assert_close(program(x), Partly()(x))
    report = program.plan_report([x])
    assert {"aten::igamma", "aten::lgamma"} <= {fallback.op for fallback in report.fallbacks}
    assert all(fallback.reason and fallback.rank == 2 and fallback.source for fallback in report.fallbacks)


def test_fallback_refused_names_all_operators(device):
    with pytest.raises(UnsupportedError, match=r"aten::igamma of float32, rank 2.*aten::lgamma"):
        load(Partly(), device, fallback="error")(torch.rand(3, 4))
    with pytest.raises(InputError, match="'never'"):
        load(Partly(), device, fallback="never")


class Looks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        while bool(y.sum() < 50.0):
            y = y + 10.0
        return y[y > 15.0]


def test_data_dependent_control_flow(device):
    program = load(Looks(), device)
    for values in ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [40.0, 1.0, 16.0]):
        x = torch.tensor(values)
        torch.testing.assert_close(program(x), Looks()(x))


class Counts(nn.Module):
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + x
        return self.total * 2.0


def test_assigned_attributes_last(device):
    program, x = load(Counts(), device), torch.tensor([1.0, 2.0])
    for count in (1, 2, 3):
        assert torch.equal(program(x), 2 * count * x)


def test_plans_are_kept_and_bounded(device, monkeypatch):
    monkeypatch.setattr(program_module, "MAX_PLANS", 2)
    program = load(nn.ReLU(), device)
    for size in (1, 2, 3, 2, 1):
        x = torch.randn(size, 4)
        assert torch.equal(program(x), x.relu())
    assert len(program._plans) == 2
    program.close()
    assert torch.equal(program(x), x.relu())


def test_weights_are_uploaded_once(device):
    program = load(nn.Linear(64, 64), device)
    program(torch.randn(2, 64))
    live = dict(device.live_objects)
    program(torch.randn(3, 64))
    first, second = (program.plan_report([torch.randn(rows, 64)]).memory for rows in (2, 3))
    assert first.constant_bytes == second.constant_bytes >= 64 * 64 * 4
    assert live


def test_wrong_arguments(device):
    program = load(nn.Conv2d(3, 4, 3), device)
    with pytest.raises(InputError, match=r"aten::conv2d.*\[1, 4, 8, 8\]"):
        program(torch.zeros(1, 4, 8, 8))
    with pytest.raises(InputError, match="takes 1 inputs"):
        program()
    with pytest.raises(InputError, match="an argument is a ndarray"):
        program(torch.zeros(1, 3, 8, 8).numpy())
    with pytest.raises(InputError, match="no method 'other'"):
        program.run("other", [])


def test_profile_names_operators_and_sources(device):
    program, x = load(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), device), torch.randn(1, 3, 9, 8)
    times = program.profile([x])
    assert len(times) >= program.plan_report([x]).dispatches > 0
    assert any("conv2d" in item.label for item in times)
    assert all(item.duration_ns >= 0 for item in times)


def test_nothing_left_to_compute(device):
    class Shape(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[int, torch.Tensor]:
            return x.size(0), torch.zeros(2)

    program = load(Shape(), device)
    assert program(torch.zeros(5))[0] == 5
    assert program.plan_report([torch.zeros(5)]).memory is None
