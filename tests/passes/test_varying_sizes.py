"""What no example tells of sizes is not on the GPU, where PyTorch's kernels compute some sizes wrongly."""

from typing import Any

import pytest
import torch
from device_check import run_judged
from pass_harness import assert_close, program_of
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program
from mobopt.ops.targets import Target
from mobopt.options import Settings
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.manager import run_passes
from mobopt.passes.pipelines import pipeline_for

ROW = torch.linspace(0.1, 0.9, 8)[None]
IMAGE = torch.linspace(-1, 1, 4 * 9 * 7).reshape(1, 4, 9, 7)


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.l = nn.Linear(8, 8)
        self.c = nn.Conv2d(4, 8, 3)
        self.t = nn.ConvTranspose2d(4, 5, 2)
        self.g = nn.GRU(8, 6, batch_first=True)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)


class Preserved(_Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x)

    @torch.jit.export
    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(torch.relu(x))

    @torch.jit.export
    def images(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(x)

    @torch.jit.export
    def larger(self, x: torch.Tensor) -> torch.Tensor:
        return self.t(x)

    @torch.jit.export
    def steps(self, x: torch.Tensor) -> torch.Tensor:
        return self.g(x)[0]


class InBranch(_Layers):
    def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
        if flag:
            y = torch.cat([x, 2 * x])
            return self.l(torch.tanh(y))
        return self.l(x)


class AfterBranch(_Layers):
    def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
        y = x
        if flag:
            y = torch.cat([x, 2 * x])
        return self.l(torch.tanh(y))


class OptionalOperand(_Layers):
    def forward(self, x: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        y = x if other is None else torch.cat([x, other])
        return self.l(y)


class InLoop(_Layers):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        z = x
        for _ in range(n):
            z = self.l(torch.cat([x, x]))
        return z


class GrowingList(_Layers):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        items = [x]
        for i in range(n):
            items.append(x * i)
        return self.l(torch.cat(items))


class ByMask(_Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x[x[:, 0] > 0])


class ByNumber(_Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x[: int(x[0, 1].item() * 10)])


class Doubling(_Layers):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        while n > 0:
            x = torch.cat([x, x])
            n -= 1
        return self.l(x)


class Cache(_Layers):
    """Its attribute grows from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.past = torch.zeros(0, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past = torch.cat([self.past, x])
        return self.l(self.past)


CASES: dict[str, tuple[type[nn.Module], tuple[Any, ...], str, tuple[Any, ...]]] = {
    "preserved linear": (Preserved, (ROW,), "rows", (torch.cat([ROW, -ROW, ROW]),)),
    "preserved conv": (Preserved, (ROW,), "images", (torch.cat([IMAGE, -IMAGE]),)),
    "preserved transposed conv": (Preserved, (ROW,), "larger", (torch.cat([IMAGE, -IMAGE]),)),
    "preserved gru": (Preserved, (ROW,), "steps", (torch.cat([ROW, -ROW, ROW])[None],)),
    "branch": (InBranch, (ROW, False), "forward", (ROW, True)),
    "after a branch": (AfterBranch, (ROW, False), "forward", (ROW, True)),
    "None": (OptionalOperand, (ROW, None), "forward", (ROW, -ROW)),
    "loop": (InLoop, (ROW, 0), "forward", (ROW, 2)),
    "growing list": (GrowingList, (ROW, 0), "forward", (ROW, 3)),
    "growing list seen": (GrowingList, (ROW, 1), "forward", (ROW, 3)),
    "mask": (ByMask, (ROW,), "forward", (torch.cat([ROW, -ROW, ROW]),)),
    "empty mask": (ByMask, (ROW,), "forward", (-ROW,)),
    "number": (ByNumber, (ROW,), "forward", (torch.cat([5 * ROW, -ROW, ROW]),)),
    "doubling": (Doubling, (ROW, 0), "forward", (ROW, 2)),
    "doubling seen": (Doubling, (ROW, 1), "forward", (ROW, 2)),
}


def converted(module: nn.Module, runtime: str, inputs: tuple[Any, ...], methods: list[str]) -> Program:
    program = program_from_script_module(torch.jit.script(module.eval()), [m for m in methods if m != "forward"])
    run_passes(program, pipeline_for(Settings("vulkan", runtime), Examples({"forward": inputs})), check=True)
    return program


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
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


class Ordinary(_Layers):
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
    facts = record_facts(program, Examples({"forward": (torch.ones(2, 3), True)}))
    said = {value.name: str(known) for value, known in facts.items()}
    assert said == {
        "x": "float32[2, 3]",
        "m": "int64[varying]",
        "z": "float32[varying]",
        "r": "float32[varying]",
        "a": "float32[2, 3]",
        "b": "?[?]",
        "y": "float32[varying]",
    }
    ranks = {value.name: known.known_rank for value, known in facts.items()}
    assert (ranks["m"], ranks["z"], ranks["r"], ranks["y"], ranks["b"]) == (2, 2, None, None, None)
