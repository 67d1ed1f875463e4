"""The CPU reference with the precision of halves: what is rounded, what is told, and that the model is left alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from click.testing import CliRunner, Result
from model_zoo import tensors_of
from torch import nn

import mobopt
from mobopt.bundle import read_bundle
from mobopt.commands import main
from mobopt.errors import InputError
from mobopt.ir import Program, parse_graph
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.cpu.precision import HalfInterpreter
from mobopt.tools.execution import run_bundle

GOLDEN = Path(__file__).parent.parent / "golden"


def program_of(text: str) -> Program:
    return Program(methods={"forward": parse_graph(text)})


def scripted(module: nn.Module) -> Program:
    return read_bundle(io.BytesIO(torch.jit.script(module.eval()).save_to_buffer()))


def half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half().float()


TWO_STEPS = """graph(%self : __torch__.M,
      %x : Tensor,
      %y : Tensor):
  %one : int = prim::Constant[value=1]()
  %a : Tensor = aten::mul(%x, %y) # model.py:7
  %b : Tensor = aten::sub(%a, %x, %one) # model.py:8
  return (%b)
"""


def test_bfloat16_is_rounded_to_and_named() -> None:
    x, y = torch.tensor([1.0 + 2.0**-8, 3e38]), torch.tensor([1.0, 2.0])
    runtime = HalfInterpreter(program_of(TWO_STEPS), torch.bfloat16)
    assert torch.equal(runtime.run("forward", [x, y]), torch.tensor([0.0, torch.inf]))
    assert runtime.first_loss is None  # float32 ends there too
    runtime.run("forward", [torch.tensor([3.4e38]), torch.tensor([1.0])])
    assert runtime.first_loss is not None
    assert "becomes inf (values reach 3.4e+38; bfloat16 ends at 3.38953e+38)" in str(runtime.first_loss)


@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 5)])
def test_every_result_is_rounded(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(shape) * 3, torch.rand(shape) * 3
    before = x.clone()
    result = HalfInterpreter(program_of(TWO_STEPS)).run("forward", [x, y])
    assert torch.equal(result, half(half(half(x) * half(y)) - half(x)))
    assert result.dtype == torch.float32 and torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_whole_numbers_stay_exact(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 250], [3, 201]], dtype=dtype)
    y = torch.tensor(100_000, dtype=torch.int64) if dtype == torch.int64 else torch.tensor(2, dtype=dtype)
    assert torch.equal(HalfInterpreter(program_of(TWO_STEPS)).run("forward", [x, y]), x * y - x)


class Weights(nn.Module):
    """A weight, a constant, a buffer that is changed in place, views that are written to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1.0 + 2.0**-12))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen.add_(1.0)
        y = x * self.weight
        y[0].add_(self.seen)
        row = y.t()[1]
        row.mul_(2.0)
        return y, self.seen.expand(2, 3)


def test_weights_views_and_changes_in_place() -> None:
    module = Weights()
    program = scripted(module)
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    runtime = HalfInterpreter(program)
    for calls in (1.0, 2.0):  # what is written to the state lasts; the Program's own stays as it is
        y, seen = runtime.run("forward", [x])
        expected = half(x)  # the weight is 1 in float16
        expected[0] = half(expected[0] + calls)
        expected[:, 1] = half(expected[:, 1] * 2.0)
        assert torch.equal(y, expected) and torch.equal(seen, torch.full((2, 3), calls))
    assert torch.equal(program.attributes["weight"].value, module.weight)
    assert torch.equal(program.attributes["seen"].value, torch.zeros(3))


@pytest.mark.parametrize("name", ["pt1.13.1/mixed/vulkan.pt", "pt1.13.1/mlp/metal.ptl", "pt1.13.1/convbnrelu6/cpu.pt"])
def test_packed_weights_are_rounded(name: str) -> None:
    program = read_bundle(GOLDEN / name)
    inputs = [torch.from_numpy(numpy.load(path)) for path in sorted((GOLDEN / name).parent.glob("input_*.npy"))]
    exact = Interpreter(program).run("forward", inputs)
    runtime = HalfInterpreter(program)
    for rounded, expected in zip(tensors_of(runtime.run("forward", inputs)), tensors_of(exact), strict=True):
        difference = (rounded - expected).abs().max() / expected.abs().max()
        assert 1e-6 < difference < 1e-2
        assert torch.equal(rounded, half(rounded))


def test_first_loss_is_found() -> None:
    x = torch.tensor([100.0, 2.0])
    runtime = HalfInterpreter(program_of(TWO_STEPS))
    runtime.run("forward", [x, torch.tensor([100.0, 3.0])])
    assert runtime.first_loss is None
    runtime.run("forward", [x * 10, torch.tensor([1000.0, 3.0])])
    loss = runtime.first_loss
    assert loss is not None and (loss.kind, loss.source, loss.largest) == ("inf", "model.py:7", 1e6)
    assert str(loss).startswith("%a = aten::mul(%x, %y) at model.py:7 becomes inf (values reach 1e+06")
    runtime.run("forward", [x, torch.tensor([1.0 + 2.0**-10 + 2.0**-12, 1.0])])
    loss = runtime.first_loss
    assert loss is not None and (loss.kind, loss.source) == ("loss", "model.py:8") and 0.01 < loss.relative < 1.0


def test_not_a_number_is_told() -> None:
    text = TWO_STEPS.replace("aten::mul(%x, %y)", "aten::sub(%x, %y, %one)")
    runtime = HalfInterpreter(program_of(text))
    runtime.run("forward", [torch.tensor([1e5, 1.0]), torch.tensor([9e4, 1.0])])
    assert runtime.first_loss is not None and runtime.first_loss.kind == "nan"


def test_infinities_of_the_model_itself_are_no_loss() -> None:
    runtime = HalfInterpreter(program_of(TWO_STEPS))
    result = runtime.run("forward", [torch.tensor([-torch.inf, 1.0]), torch.tensor([1.0, 1.0])])
    assert result[0].isnan() and runtime.first_loss is None


class Normalised(nn.Module):
    """A layer whose squares overflow float16, in a loop and behind a branch."""

    def forward(self, x: torch.Tensor, steps: int) -> torch.Tensor:
        for _ in range(steps):
            if x.dim() == 2:
                x = x / torch.sqrt((x * x).mean() + 1e-5)
            x = torch.cat(x.chunk(2, 1), 0).view(x.size(0), x.size(1))
        return x


@pytest.mark.filterwarnings("ignore:no inputs are known that the model takes")
@pytest.mark.parametrize("backend", ["cpu", "vulkan"])
def test_known_loss_of_a_network_is_seen(backend: str, tmp_path: Path) -> None:
    x = torch.full((2, 4), 300.0)
    module = mobopt.optimize_for_mobile(torch.jit.script(Normalised()), backend=backend)
    module._save_for_lite_interpreter(tmp_path / "net.ptl")
    execution = run_bundle(tmp_path / "net.ptl", [x, 2], device="cpu", precision="fp16")
    report = execution.precision
    assert report is not None and report.first_loss is not None
    assert report.first_loss.kind == "inf" and "aten::mul" in report.first_loss.node and report.first_loss.source
    assert report.relative == pytest.approx(1.0)  # x / inf is 0
    fine = run_bundle(tmp_path / "net.ptl", [x / 100, 2], device="cpu", precision="fp16").precision
    assert fine is not None and fine.first_loss is None and 0.0 < fine.relative < 2e-3


def mobopt_run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", str(path), *arguments])


@pytest.fixture(scope="module")
def metal() -> tuple[Path, list[str]]:
    folder = GOLDEN / "pt1.13.1" / "mobilenetv2"
    return folder / "metal.ptl", ["--input", str(folder / "input_0.npy")]


def test_command(metal: tuple[Path, list[str]]) -> None:
    path, inputs = metal
    result = mobopt_run(path, *inputs, "--device", "cpu", "--precision", "fp16")
    assert result.exit_code == 0, result.output
    assert "fp16 - fp32" in result.stdout and "of the output's scale" in result.stdout
    data: dict[str, Any] = json.loads(
        mobopt_run(path, *inputs, "--device", "cpu", "--precision", "fp16", "--json").stdout
    )["precision"]
    exact = read_bundle(path)
    x = torch.from_numpy(numpy.load(inputs[1]))
    rounded, expected = (runtime(exact).run("forward", [x]) for runtime in (HalfInterpreter, Interpreter))
    assert data["absolute"] == pytest.approx(float((rounded - expected).abs().max()))
    assert data["relative"] == pytest.approx(float((rounded - expected).abs().max() / expected.abs().max()))
    assert "precision" not in json.loads(mobopt_run(path, *inputs, "--device", "cpu", "--json").stdout)


def test_what_is_refused(metal: tuple[Path, list[str]]) -> None:
    path, inputs = metal
    with pytest.raises(InputError, match="leave out fp32_nodes, or choose a device"):
        run_bundle(path, [], device="cpu", precision="fp16", fp32_nodes="aten::*")
    assert mobopt_run(path, *inputs, "--device", "cpu", "--precision", "fp8").exit_code == 2
