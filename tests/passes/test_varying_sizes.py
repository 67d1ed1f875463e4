"""What no example tells of sizes is not on the GPU, where PyTorch's kernels compute some sizes wrongly."""

from itertools import product
from typing import Any

import pytest
import torch
from device_check import run_judged
from pass_harness import assert_close, program_of
from sampling import sampled
from torch import nn
from varying_cases import CASES, IMAGE, ROW, Cache, Layers

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program
from mobopt.ir.types import TENSOR
from mobopt.ops.targets import Target
from mobopt.options import Settings
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.inference import values_of
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for


def converted(module: nn.Module, runtime: str, inputs: tuple[Any, ...], methods: list[str]) -> Program:
    program = program_from_script_module(torch.jit.script(module.eval()), [m for m in methods if m != "forward"])
    run_passes(program, pipeline_for(Settings("vulkan", runtime), Examples({"forward": inputs})), check=True)
    return program


@pytest.mark.parametrize(("name", "runtime"), sampled(product(CASES, ["1.13", "2.6"]), one_in=2))
def test_the_gpu_computes_nothing_of_unknown_sizes(name: str, runtime: str) -> None:
    kind, example, method, call = CASES[name]
    module = kind()
    program = converted(module, runtime, example, [method])
    for inputs in (call, *([example] if method == "forward" else [])):
        found, _ = run_judged(program, Target("vulkan", runtime), inputs, method)
        with torch.no_grad():
            assert_close(found, getattr(module, method)(*inputs))


def test_an_attribute_that_grows() -> None:
    program = converted(Cache(), "1.13", (ROW,), ["forward"])
    assert "run_linear" not in str([node.op for node in program.methods["forward"].walk()])


class Ordinary(Layers):
    """Conditions and loops that sizes decide, and branches that change no sizes."""

    def forward(self, x: torch.Tensor, scale: float, flag: bool, n: int) -> torch.Tensor:
        y = torch.relu(self.c(x)) * scale
        if flag:
            y = torch.tanh(y) * 2.0
        for _ in range(n):
            y = y + torch.sigmoid(y)
        for k in range(y.size(1)):
            if y.size(2) > k:
                y = y + k
        half = y[:, : y.size(1) // 2]
        return self.t(half)


@pytest.mark.parametrize("flag", [False, True])
def test_what_keeps_its_sizes_stays_on_the_gpu(flag: bool) -> None:
    inputs = (IMAGE, 1.5, flag, 2)
    program = converted(Ordinary(), "2.6", inputs, ["forward"])
    _, places = run_judged(program, Target("vulkan", "2.6"), inputs)
    assert places["vulkan_prepack::run_tconv2d_context"] == {"vulkan"}
    assert not any("cpu" in found for op, found in places.items() if op != "aten::to.prim_Device")


def test_facts_say_what_is_not_known() -> None:
    text = """
    graph(%self : __torch__.M,
          %x : Tensor,
          %flag : bool):
      %zero : int = prim::Constant[value=0]()
      %one : int = prim::Constant[value=1]()
      %m : Tensor = aten::nonzero(%x)
      %n : int = aten::size(%m, %zero)
      %z : Tensor = aten::slice(%x, %zero, %zero, %n, %one)
      %r : Tensor = prim::If(%flag)
        block0():
          %a : Tensor = aten::relu(%x)
          -> (%a)
        block1():
          %b : Tensor = aten::flatten(%x, %zero, %zero)
          -> (%b)
      %y : Tensor = aten::tanh(%r)
      return (%y)
    """
    program = program_of(text)
    record_facts(program, Examples({"forward": (torch.ones(2, 3), True)}))
    values = [value for value in values_of(program.methods["forward"].block) if value.type == TENSOR]
    said = {value.name: str(value.facts) for value in values}
    assert said == {
        "x": "float32[2, 3]",
        "m": "int64[varying]",
        "z": "float32[varying]",
        "r": "float32[varying]",
        "a": "float32[2, 3]",
        "b": "?[?]",
        "y": "float32[varying]",
    }
    ranks = {value.name: value.facts.known_rank for value in values}
    assert (ranks["m"], ranks["z"], ranks["r"], ranks["y"], ranks["b"]) == (2, 2, None, None, None)
