"""Two convolutions whose results are added, as one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from device_infos import known_device
from sampling import sampled
from test_fragment_products import SMALL, forced
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, parse_graph, print_graph, verify_graph
from mobopt.ir.rewriting import dissolve
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.compile.fusion import fold_epilogues
from mobopt.runtimes.vulkan.compile.fusion_shortcuts import fold_shortcuts
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels import product_kernels
from mobopt.runtimes.vulkan.kernels.device_costs import device_costs
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FragmentKernel
from mobopt.runtimes.vulkan.kernels.gpu_kernels import choose_gpu_kernel, shared_kernels
from mobopt.runtimes.vulkan.kernels.product_shape import ProductShape
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.lowerings.summed_convolutions import SUMMED_CONVOLUTIONS
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()


class Block(nn.Module):
    """The end of a residual block; ``first`` says which convolution comes first."""

    def __init__(
        self,
        channels: Sequence[int],
        filter: int = 3,
        stride: int = 2,
        first: str = "shortcut",
        biases: Sequence[bool] = (True, True),
        activation: bool = True,
    ) -> None:
        super().__init__()
        middle, inputs, outputs = channels
        self.main = nn.Conv2d(middle, outputs, filter, padding=filter // 2, bias=biases[0])
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=biases[1])
        self.first, self.activation = first, activation

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        if self.first == "shortcut":
            s = self.shortcut(x)
            y = self.main(h) + s
        else:
            y = self.main(h)
            y = y + self.shortcut(x)
        return torch.relu(y) if self.activation else y


# model, sizes of what the convolution and the shortcut read
BLOCKS = {
    "basic": (Block((24, 16, 40)), (1, 24, 7, 6), (1, 16, 13, 11)),
    "basic, the other first": (Block((24, 16, 40), first="main"), (2, 24, 7, 6), (2, 16, 13, 11)),
    "bottleneck": (Block((16, 24, 35), filter=1, first="main"), (2, 16, 5, 7), (2, 24, 9, 13)),
    "bottleneck of stride 1": (Block((16, 24, 35), filter=1, stride=1), (2, 16, 5, 7), (2, 24, 5, 7)),
    "no biases": (Block((8, 8, 16), biases=(False, False)), (1, 8, 3, 5), (1, 8, 5, 9)),
    "one bias": (Block((8, 40, 16), biases=(False, True), activation=False), (1, 8, 3, 5), (1, 40, 5, 9)),
    "a long shortcut": (Block((8, 264, 20), stride=3), (1, 8, 3, 3), (1, 264, 7, 9)),
}


def seeded(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    model, own, other = BLOCKS[name]
    generator = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-1, 1, generator=generator).mul_(0.2)
    return model.eval(), (torch.randn(own, generator=generator), torch.randn(other, generator=generator))


def run(
    model: nn.Module, inputs: tuple[Tensor, ...], device: Device, precision: str = "fp32"
) -> tuple[Tensor, list[Dispatch]]:
    program = VulkanProgram(
        program_from_script_module(torch.jit.script(model)), device, precision=PrecisionChoice.of(precision)
    )
    found = program(*inputs)
    steps = [step.operation for step in program.profile(list(inputs)) if isinstance(step.operation, Dispatch)]
    program.close()
    return found, [step for step in steps if step.shader.startswith("product")]


def tolerance(precision: str) -> float:
    return {"fp32": 2e-6, "fp16": 3e-3, "bf16": 2.5e-2}[precision]


@pytest.fixture
def splitting(units: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Units that multiply floats as well."""
    monkeypatch.setattr(units, "info", replace(units.info, switches=units.info.switches | {"split-products"}))
    return units


CASES = [(name, block, precision) for name in BLOCKS for block in SMALL for precision in ("fp32", "fp16", "bf16")]


@pytest.mark.parametrize(
    ("name", "block", "precision"),
    sampled(CASES, one_in=6, key=lambda case: f"{case[0]}-{case[1].rows}x{case[1].columns}-{case[2]}"),
)
def test_blocks(
    splitting: Device, monkeypatch: pytest.MonkeyPatch, name: str, block: FragmentKernel, precision: str
) -> None:
    model, inputs = seeded(name)
    with torch.no_grad():
        expected = model.double()(*(x.double() for x in inputs)).float()
        model.float()
    seen = forced(monkeypatch, splitting, block)
    found, dispatches = run(model, inputs, splitting, precision)
    assert seen
    shaders = [step.shader for step in dispatches]
    assert len(shaders) == 1 and "_shortcut" in shaders[0], shaders
    assert (found - expected).abs().max() <= tolerance(precision) * expected.abs().max()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["basic", "bottleneck"])
def test_other_kernels_have_a_dispatch_for_each(
    splitting: Device, monkeypatch: pytest.MonkeyPatch, name: str, precision: str
) -> None:
    model, inputs = seeded(name)
    with torch.no_grad():
        expected = model(*inputs)
    monkeypatch.setattr(product_kernels, "use_shared_memory", lambda info: True)
    monkeypatch.setattr(
        product_kernels,
        "choose_gpu_kernel",
        lambda info, shape: next(iter(shared_kernels(info, device_costs(info), shape))),
    )
    found, dispatches = run(model, inputs, splitting, precision)
    assert [step.shader for step in dispatches].count("product_shared") == 2
    assert (found - expected).abs().max() <= tolerance(precision) * expected.abs().max()


@pytest.mark.sweep
def test_several_sizes(splitting: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third on, sizes come from a recording."""
    model, _ = seeded("basic")
    forced(monkeypatch, splitting, SMALL[1])
    program = VulkanProgram(program_from_script_module(torch.jit.script(model)), splitting)
    for height, width in ((3, 5), (5, 4), (7, 3), (4, 9), (9, 7)):
        h, x = torch.randn(2, 24, height, width), torch.randn(2, 16, 2 * height - 1, 2 * width)
        with torch.no_grad():
            expected = model(h, x)
        assert (program(h, x) - expected).abs().max() <= tolerance("fp32") * expected.abs().max()
    program.close()


def test_weights_lie_in_memory_once(splitting: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = seeded("basic")
    forced(monkeypatch, splitting, SMALL[1])
    script = torch.jit.script(model)
    taken = []
    for switch in ("no-summed-convolutions", ""):
        switches = splitting.info.switches - {"no-summed-convolutions"} | {switch}
        monkeypatch.setattr(splitting, "info", replace(splitting.info, switches=switches))
        program = VulkanProgram(program_from_script_module(script), splitting)
        program(*inputs)
        memory = program.plan_report(inputs).memory
        assert memory is not None
        taken.append(memory.constant_bytes)
        program.close()
    assert taken[1] <= taken[0]


H200 = replace(known_device("nvidia_h200"), driver_id=4)
Y, H, X = "Float(1, 16, 5, 5)", "Float(1, 8, 5, 5)", "Float(1, 24, 9, 9)"
TENSORS = {
    "w": torch.randn(16, 8, 3, 3),
    "v": torch.randn(16, 24, 1, 1),
    "odd": torch.randn(16, 12, 1, 1),
    "wide": torch.randn(16, 24, 3, 3),
}
MAIN = f"%c : {Y} = aten::conv2d(%h, %w, None, [1, 1], [1, 1], [1, 1], 1)"
SHORTCUT = f"%s : {Y} = aten::conv2d(%x, %v, None, [2, 2], [0, 0], [1, 1], 1)"
ADD = f"%y : {Y} = aten::add.Tensor(%c, %s, 1)"
RELU = f"%z : {Y} = aten::relu(%y)"


def folded(*lines: str, returned: str = "%y", device: DeviceInfo | None = None) -> Graph:
    constants = "".join(
        f"  %{name} : Float{tuple(value.shape)} = prim::Constant[value=<Tensor>]()\n" for name, value in TENSORS.items()
    )
    text = f"graph(%h : {H}, %x : {X}, %o : Float(1, 12, 5, 5)):\n{constants}"
    text += "".join(f"  {line}\n" for line in lines)
    graph = parse_graph(f"{text}  return ({returned})\n", TENSORS)
    fold_epilogues(graph)
    fold_shortcuts(graph, device or H200)
    verify_graph(graph)
    return graph


@pytest.mark.parametrize(
    "lines", [[MAIN, SHORTCUT, ADD], [SHORTCUT, MAIN, ADD], [MAIN, SHORTCUT, ADD, RELU], [SHORTCUT, MAIN, ADD, RELU]]
)
def test_what_is_folded(lines: list[str]) -> None:
    graph = folded(*lines, returned="%z" if RELU in lines else "%y")
    (whole,) = graph.block.nodes
    assert whole.op == SUMMED_CONVOLUTIONS
    operators = [node.op.removeprefix("aten::") for node in whole.blocks[0].nodes]
    assert operators == ["conv2d", "conv2d", "add", "relu"][: len(lines)]
    assert print_graph(parse_graph(print_graph(graph), TENSORS)) == print_graph(graph)
    dissolve(whole)
    verify_graph(graph)
    assert len(list(graph.block.nodes)) == len(lines)


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([MAIN, SHORTCUT, ADD], "%y, %s"),  # it is read elsewhere too
        ([MAIN, SHORTCUT.replace("%s", "%r"), f"%s : {Y} = aten::relu(%r)", ADD], "%y"),
        ([MAIN, f"%s : {Y} = aten::conv2d(%x, %wide, None, [2, 2], [1, 1], [1, 1], 1)", ADD], "%y"),
        ([MAIN, f"%s : {Y} = aten::conv2d(%o, %odd, None, [1, 1], [0, 0], [1, 1], 1)", ADD], "%y"),
    ],
    ids=["read elsewhere", "activated", "no single pixels", "twelve channels"],
)
def test_what_is_not(lines: list[str], returned: str) -> None:
    assert SUMMED_CONVOLUTIONS not in {node.op for node in folded(*lines, returned=returned).block.nodes}


@pytest.mark.parametrize("switch", ["no-summed-convolutions", "no-fragments", "no-split-products"])
def test_devices_without_such_kernels(switch: str) -> None:
    graph = folded(MAIN, SHORTCUT, ADD, device=replace(H200, switches=frozenset({switch})))
    assert SUMMED_CONVOLUTIONS not in {node.op for node in graph.block.nodes}
    graph = folded(MAIN, SHORTCUT, ADD, device=known_device("amd_rx_6800_radv"))
    assert SUMMED_CONVOLUTIONS not in {node.op for node in graph.block.nodes}


@pytest.mark.parametrize("run", ["half_run", "float_run"])
@pytest.mark.parametrize(("pixels", "inner", "columns"), [(3136, 32, 64), (784, 96, 128), (196, 192, 256)])
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_kernels_that_are_chosen(run: str, pixels: int, inner: int, columns: int, batch: int) -> None:
    """Of fragments, also where those of shared memory would be faster without a shortcut; none that spills much."""
    shape = ProductShape(pixels * batch, inner, columns, columns, fits_fragments=True, shortcut=inner // 2, **{run: 8})
    kernel = choose_gpu_kernel(H200, shape)
    assert isinstance(kernel, FragmentKernel) and kernel.shortcut and kernel.parts == 1
    assert kernel.registers <= 255, "a block of 64 x 16 takes twice as long"
    other = choose_gpu_kernel(H200, replace(shape, shortcut=0))
    assert not getattr(other, "shortcut", False)
