"""Differences that single precision makes, and those that passes make."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import mobopt
from mobopt.errors import InputError, PassError
from mobopt.frontends.script_module_source import ScriptModuleSource
from mobopt.optimizer import check_agreement
from mobopt.options import Settings
from mobopt.samples.agreement import agreement_of, agreement_of_calls, compare
from mobopt.samples.example_inputs import choose_inputs
from mobopt.tools.conversion import convert_file


class Cancels(nn.Module):
    """What is left of large sums is their rounding; with a threshold, also the number of rows."""

    def __init__(self, chooses: bool = False) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.chooses = chooses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        rest = (y * 3.1 + 1e5) - 1e5 - y * 3.1
        return rest[rest > 0.0] if self.chooses else rest


def net(chooses: bool) -> tuple[torch.jit.ScriptModule, torch.Tensor]:
    torch.manual_seed(0)
    module = Cancels(chooses).eval()
    nn.init.uniform_(module.norm.running_mean, -1, 1)  # type: ignore[arg-type]
    nn.init.uniform_(module.norm.running_var, 0.5, 2)  # type: ignore[arg-type]
    return torch.jit.script(module), torch.randn(1, 4, 9, 7)


@pytest.mark.parametrize("chooses", [False, True])
def test_rounding_is_not_blamed_on_passes(chooses: bool) -> None:
    module, x = net(chooses)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mobopt.optimize_for_mobile(module, backend="vulkan", example_inputs=[x])
    assert any("ill-conditioned" in str(item.message) for item in caught)


def test_a_pass_that_is_wrong_is_blamed() -> None:
    """Of a net that rounds well."""
    module = torch.jit.script(nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()).eval())
    source = ScriptModuleSource(module)
    inputs = choose_inputs(source, [torch.randn(1, 4, 9, 7)])
    broken = source.program.clone()
    (relu,) = (node for node in broken.methods["forward"].walk() if node.op == "aten::relu")
    relu.output.replace_all_uses_with(relu.inputs[0])
    assert not agreement_of(source, broken, inputs).is_rounding
    with pytest.raises(PassError, match="one by one"):
        check_agreement(source, broken, inputs)


class _Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(x.argmax(), 2) * x.sum()


@pytest.mark.parametrize(("second", "is_a_tie"), [(1.0 - 1e-7, True), (0.999, False)])
def test_a_choice_between_equals_may_fall_the_other_way(second: float, is_a_tie: bool) -> None:
    """Also where the model itself, in single precision, chooses as float64 does."""
    source = ScriptModuleSource(torch.jit.script(_Largest()))
    x = torch.tensor([1.0, second])
    found = agreement_of_calls(source, "forward", [x], lambda arguments: _Largest()(arguments[0]).flip(0))
    assert not found.relative < 1.0 and found.is_rounding == is_a_tie


@pytest.mark.parametrize(("dtype", "steps"), [(torch.float32, 7), (torch.float16, 2), (torch.bfloat16, 2)])
def test_a_dtype_may_round_to_its_neighbours(dtype: torch.dtype, steps: int) -> None:
    one = torch.ones(3, dtype=dtype)
    near, far = one + steps * torch.finfo(dtype).eps, one + 0.1
    assert compare(near, one).agrees and not compare(far, one).agrees
    (worst,) = {compare([near, far], [one, one]).relative, compare([far, near], [one, one]).relative}
    assert worst == compare(far, one).relative


def test_the_worst_is_what_is_farthest_beyond_its_own_tolerance() -> None:
    half, single = torch.ones(3, dtype=torch.float16), torch.ones(3)
    assert not compare([half * 1.002, single * 1.001], [half, single]).agrees
    assert compare([half * 1.002, single], [half, single]).agrees


def test_imaginary_parts_count() -> None:
    expected = torch.complex(torch.ones(3), torch.ones(3))
    assert compare(expected.clone(), expected).agrees
    assert compare(expected.conj(), expected).relative == pytest.approx(2.0)


class _EndlessInVain(nn.Module):
    """Passes take the loop out, for nothing reads what it computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, count = torch.relu(x), 0
        while count < 5:
            x = x + 1
        return y


def test_a_file_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gave the inputs on which the original would be compared."""
    monkeypatch.setattr("mobopt.runtimes.cpu.evaluator._MOST_TRIPS", 1000)
    path = tmp_path / "endless.pt"
    torch.jit.save(torch.jit.script(nn.Sequential(nn.Linear(5, 3), _EndlessInVain())), path)
    with pytest.raises(InputError, match="without an end"):
        convert_file(path, tmp_path / "out.ptl", Settings(backend="cpu"))


class _Draws(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x) * nn.functional.dropout(x, 0.5, training=True)


def test_what_is_drawn_is_the_same_for_both(recwarn: pytest.WarningsRecorder) -> None:
    x = torch.randn(3, 5)
    made = mobopt.optimize_for_mobile(torch.jit.script(_Draws().eval()), backend="vulkan", example_inputs=[x])
    assert not [item for item in recwarn if "ill-conditioned" in str(item.message)]
    source = ScriptModuleSource(torch.jit.script(_Draws().eval()))
    inputs, before = choose_inputs(source, [x]), torch.get_rng_state()
    assert agreement_of(source, made.program, inputs).absolute == 0.0
    assert torch.equal(torch.get_rng_state(), before), "the caller's generator goes on where it was"
    broken = source.program.clone()
    (drawn,) = (node for node in broken.methods["forward"].walk() if node.op == "aten::rand_like")
    drawn.output.replace_all_uses_with(drawn.inputs[0])
    assert not agreement_of(source, broken, inputs).agrees
