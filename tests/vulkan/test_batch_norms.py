"""Batch norms that come to the runtime: as text, for layers of every kind, and where they stay."""

from __future__ import annotations

import copy
import textwrap

import pytest
import torch
from straight_lines import line_of
from torch import Tensor, nn

import mobopt
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, print_graph, verify_graph
from mobopt.runtimes.vulkan.compile.batch_norms import fold_batch_norms
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.program import VulkanProgram

HALVES = (torch.float16, torch.bfloat16)


def floats(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes) + seed))


TENSORS = {
    "w": floats(8, 3, 2, 2),
    "b": floats(8),
    "gamma": floats(8, seed=1),
    "beta": floats(8, seed=2),
    "mean": floats(8, seed=3),
    "variance": floats(8, seed=4).abs() + 0.5,
}
CONV = "%c : Float(1, 8, 4, 6) = aten::conv2d(%x, %w, None, [1, 1], [0, 0], [1, 1], 1)"
NORM = "%y : Float(1, 8, 4, 6) = aten::batch_norm(%c, %gamma, %beta, %mean, %variance, False, 0.1, 1e-05, True)"
GIVEN = "%x : Float(1, 3, 5, 7)"


def folded(*lines: str, returned: str = "%y", given: str = GIVEN) -> Graph:
    graph = line_of(lines, TENSORS, given, returned)
    fold_batch_norms(graph, ConstantStore())
    verify_graph(graph)
    return graph


def operators(graph: Graph) -> list[str]:
    return [node.op.removeprefix("aten::") for node in graph.block.nodes if node.op != "prim::Constant"]


def test_the_text() -> None:
    graph = folded(CONV, NORM)
    used = [line for line in print_graph(graph, digests=False).splitlines() if "prim::Constant" not in line]
    assert "\n".join(used) == textwrap.dedent(
        """\
        graph(%x : Float(1, 3, 5, 7)):
          %y : Float(1, 8, 4, 6) = aten::conv2d(%x, %0, %1, [1, 1], [0, 0], [1, 1], 1)
          return (%y)"""
    )


@pytest.mark.parametrize(
    "lines, returned",
    [
        ([CONV, NORM], "%y, %c"),
        ([CONV, NORM.replace("False, 0.1", "True, 0.1")], "%y"),
        ([CONV, NORM, CONV.replace("%c", "%d").replace("[1, 1], [0, 0]", "[2, 2], [0, 0]")], "%y, %d"),
        ([CONV, "%r : Float(1, 8, 4, 6) = aten::relu(%c)", NORM.replace("%c", "%r")], "%y"),
        ([NORM.replace("%c", "%x")], "%y"),
    ],
    ids=["the layer is returned", "training", "the weight is shared", "something between", "an input"],
)
def test_what_stays(lines: list[str], returned: str) -> None:
    given = "%x : Float(1, 8, 4, 6)" if len(lines) == 1 else GIVEN
    assert "batch_norm" in operators(folded(*lines, returned=returned, given=given))


def test_features_of_rows_are_no_channels() -> None:
    """Of (N, C, L) the channels come before what a linear layer makes."""
    layer = "%c : Float(2, 8, 3) = aten::linear(%x, %l, None)"
    norm = "%y : Float(2, 8, 3) = aten::batch_norm(%c, %gamma, %beta, %mean, %variance, False, 0.1, 1e-05, True)"
    graph = line_of([layer, norm], {**TENSORS, "l": floats(3, 5)}, "%x : Float(2, 8, 5)", "%y")
    fold_batch_norms(graph, ConstantStore())
    assert operators(graph) == ["linear", "batch_norm"]


def test_constants_are_made_once() -> None:
    store = ConstantStore()
    weights = []
    for _ in range(2):
        graph = line_of([CONV, NORM], TENSORS, GIVEN, "%y")
        fold_batch_norms(graph, store)
        (node,) = [node for node in graph.block.nodes if node.op == "aten::conv2d"]
        weights.append(node["weight"].elements)
    assert weights[0] is weights[1]


LAYERS = {
    "1-d": (nn.Conv1d(6, 10, 3, bias=False), nn.BatchNorm1d(10), (2, 6, 13)),
    "2-d": (nn.Conv2d(6, 10, 3, groups=2), nn.BatchNorm2d(10), (2, 6, 11, 7)),
    "3-d": (nn.Conv3d(3, 5, 3), nn.BatchNorm3d(5), (2, 3, 5, 7, 6)),
    "transposed": (nn.ConvTranspose2d(6, 10, 2, 2, groups=2), nn.BatchNorm2d(10), (2, 6, 5, 7)),
    "linear": (nn.Linear(13, 11), nn.BatchNorm1d(11), (5, 13)),
    "without parameters": (nn.Conv2d(6, 10, 1), nn.BatchNorm2d(10, affine=False), (2, 6, 5, 7)),
}


def net(name: str) -> tuple[nn.Module, Tensor]:
    layer, norm, sizes = LAYERS[name]
    model = nn.Sequential(copy.deepcopy(layer), copy.deepcopy(norm), nn.ReLU()).eval()
    for parameter in model.parameters():
        parameter.data = floats(*parameter.shape) * 0.3
    model[1].running_mean, model[1].running_var = floats(norm.num_features), floats(norm.num_features).abs() + 0.3
    return model, floats(*sizes, seed=7)


@pytest.mark.parametrize("name", LAYERS)
def test_numbers_in_float32(any_device: Device, name: str) -> None:
    model, x = net(name)
    script = torch.jit.trace(model, x)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(script), any_device, fallback="error")
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-5)
    program.close()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_models_in_halves_are_folded_by_the_runtime(name: str, dtype: torch.dtype) -> None:
    """Whose weights and biases are rounded once, and not at all."""
    model, x = net(name)
    model, x = model.to(dtype), x.to(dtype)
    script = torch.jit.trace(model, x)  # type: ignore[no-untyped-call]
    module = mobopt.optimize_for_mobile(script, backend="vulkan", runtime="mobopt", example_inputs=[x])
    assert "aten::batch_norm" in print_graph(module.program.methods["forward"])
    plain = torch.jit.trace(nn.Sequential(model[0], nn.ReLU()), x)  # type: ignore[no-untyped-call]
    alone = mobopt.optimize_for_mobile(plain, backend="vulkan", runtime="mobopt", example_inputs=[x])
    with torch.no_grad():
        exact, eager = copy.deepcopy(model).double()(x.double()), model(x).double()
        found = module(x)
        alone(x)
    assert found.dtype == dtype
    limit = 1.5 * (eager - exact).abs().max() + torch.finfo(dtype).eps * exact.abs().max()
    assert (found.double() - exact).abs().max() <= limit
    assert module.plan_report(x).dispatches <= alone.plan_report(x).dispatches
