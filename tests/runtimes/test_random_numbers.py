"""Random numbers are those of torch's own CPU generator: a seed gives what eager mode gives, in the same order."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

Function = Callable[[torch.Tensor], torch.Tensor]


class _Calls(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._function(x)


def _several(x: torch.Tensor) -> torch.Tensor:
    """Draws before, between and after what the device computes."""
    first = torch.rand_like(x) * x
    second = F.dropout(first.exp(), 0.3, True)
    return second + torch.randn(x.shape[1]) * torch.bernoulli(x.sigmoid())


FUNCTIONS: dict[str, Function] = {
    "rand": lambda x: x + torch.rand(x.shape),
    "randn": lambda x: x * torch.randn(3, 1),
    "randint": lambda x: x + torch.randint(-5, 9, x.shape),
    "randperm": lambda x: x[:, torch.randperm(5)],
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x) + x,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "normal_": lambda x: torch.zeros_like(x).normal_(1.0, 2.0) * x,
    "uniform_": lambda x: torch.zeros_like(x).uniform_(-1.0, 2.0) * x,
    "exponential_": lambda x: torch.zeros_like(x).exponential_() * x,
    "multinomial": lambda x: torch.multinomial(x.softmax(1), 2),
    "dropout": lambda x: F.dropout(x * 2, 0.4, True),
    "feature_dropout": lambda x: F.dropout1d(x * 2, 0.4, True),
    "alpha_dropout": lambda x: F.alpha_dropout(x * 2, 0.4, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "several": _several,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_seed_gives_the_numbers_of_eager_mode(device: Device, name: str) -> None:
    module = _Calls(FUNCTIONS[name])
    x = torch.linspace(-2, 2, 15).reshape(3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = program_from_script_module(torch.jit.trace(module, x, check_trace=False))
    runner = VulkanProgram(program, device)
    try:
        torch.manual_seed(7)
        expected = [module(x), module(x)]
        torch.manual_seed(7)
        found = [runner(x), runner(x)]
        state = torch.get_rng_state()
        torch.manual_seed(7)
        module(x), module(x)
        assert torch.equal(state, torch.get_rng_state())  # nothing else was drawn
        report = runner.plan_report([x])
    finally:
        runner.close()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found[0], found[1])
    assert report.fallbacks  # drawn on the host, and said so
