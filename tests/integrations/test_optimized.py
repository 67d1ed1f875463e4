"""mobopt.optimize: an nn.Module on the device with the original's state_dict."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

import mobopt
from mobopt.errors import ArgumentTypeError, InputError
from mobopt.runtimes.vulkan.engine import devices
from mobopt.samples.agreement import compare


class Pair(NamedTuple):
    mean: torch.Tensor
    parts: dict[str, Any]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.drop = torch.nn.Linear(4, 3), torch.nn.Dropout(0.5)
        self.register_buffer("offset", torch.ones(3))

    def forward(self, x: torch.Tensor, twice: bool = False) -> Pair:
        y = self.drop(self.linear(x)) + self.offset
        y = y * 2 if twice else y
        return Pair(y.mean(0), {"y": y, "both": [y, x]})


def rows(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(count))


def check(fast: mobopt.integrations.optimized.OptimizedModule, model: Net, *args: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        found, expected = fast(*args, **kwargs), model(*args, **kwargs)
    assert type(found) is Pair and list(found.parts) == ["y", "both"]
    assert compare(found, expected).relative <= 1e-6


def test_results_nests_sizes_and_flags() -> None:
    model = Net().eval()
    fast = mobopt.optimize(model, rows())
    for args, kwargs in (
        ([rows()], {}),
        ([rows(5)], {}),
        ([rows()], {"twice": True}),
        ([rows(), True], {}),
        ([rows()], {}),
    ):
        check(fast, model, *args, **kwargs)
    assert fast.reasons == frozenset()


def test_the_state_dict_is_the_originals() -> None:
    model = Net().eval()
    fast = mobopt.optimize(model, rows())
    assert isinstance(fast, torch.nn.Module)
    assert list(fast.state_dict()) == list(model.state_dict()) == ["offset", "linear.weight", "linear.bias"]
    changed = {name: value * 3 for name, value in model.state_dict().items()}
    fast.load_state_dict(changed)
    assert torch.equal(model.offset, changed["offset"])
    check(fast, model, rows())
    model.linear.weight = torch.nn.Parameter(torch.zeros(3, 4))
    check(fast, model, rows())


def test_in_training_mode_it_is_eager() -> None:
    model = Net().eval()
    fast = mobopt.optimize(model, rows()).train()
    assert model.drop.training
    fast(rows())
    assert any("training mode" in reason for reason in fast.reasons)
    check(fast.eval(), model, rows())


@pytest.mark.parametrize(
    ("model", "example", "error", "message"),
    [
        (torch.jit.script(torch.nn.ReLU()), [torch.ones(1)], ArgumentTypeError, "optimize_for_mobile takes scripts"),
        ("net.pt", [torch.ones(1)], ArgumentTypeError, "an nn.Module is expected"),
        (torch.nn.ReLU().train(), [torch.ones(1)], InputError, "in training mode"),
        (torch.nn.ReLU().eval(), [], InputError, "there is no example"),
    ],
)
def test_bad_arguments(model: Any, example: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mobopt.optimize(model, *example)


def test_whether_vulkan_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mobopt.is_vulkan_available()

    def none() -> list[Any]:
        raise mobopt.DeviceError("no loader")

    monkeypatch.setattr(devices, "list_devices", none)
    assert not mobopt.is_vulkan_available()
