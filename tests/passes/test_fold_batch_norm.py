from typing import Any

import pytest
import torch
from pass_harness import apply, expect, operators, optimise, program_of, randomize_norms
from torch import nn

from mobopt.ops.folding import fold_batch_norm
from mobopt.passes.fold_batch_norm import FoldBatchNorm
from mobopt.passes.pipelines import CPU, VULKAN

HEAD = """
graph(%self : __torch__.M,
      %x : Tensor):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %v : Tensor = prim::Constant[value=<Tensor>]()
  %none : NoneType = prim::Constant()
  %one : int = prim::Constant[value=1]()
  %ones : int[] = prim::Constant[value=[1, 1]]()
  %zeros : int[] = prim::Constant[value=[0, 0]]()
  %false : bool = prim::Constant[value=0]()
  %true : bool = prim::Constant[value=1]()
  %m : float = prim::Constant[value=0.1]()
  %eps : float = prim::Constant[value=1e-05]()
  %mean : Tensor = prim::Constant[value=<Tensor>]()
  %var : Tensor = prim::Constant[value=<Tensor>]()
  %few : Tensor = prim::Constant[value=<Tensor>]()
"""
CONSTANTS: dict[str, Any] = {
    "w": torch.rand(4, 3, 3, 3),
    "v": torch.rand(4, 3, 3, 3),
    "mean": torch.rand(4),
    "var": torch.rand(4) + 0.5,
    "few": torch.rand(3),
}
CONV = "  %y : Tensor = aten::conv2d(%x, %w, %none, %ones, %zeros, %ones, %one)\n"
NORM = "  %z : Tensor = aten::batch_norm(%y, %none, %none, %mean, %var, %false, %m, %eps, %true)\n"


def test_batch_norm_becomes_weight_and_bias() -> None:
    program = program_of(f"{HEAD}{CONV}{NORM}  return (%z)", CONSTANTS)
    after, notes = apply(FoldBatchNorm(), program)
    assert after == expect(
        """
        %y : Tensor = aten::conv2d(%x, %w.1, %z.bias, %ones, %zeros, %ones, %one)
        return (%y)
        """
    )
    assert notes == ["fold_batch_norm: aten::conv2d %y fused with aten::batch_norm %z"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            CONV + NORM + "  %s : Tensor = aten::add(%y, %z, %one)\n  return (%s)",
            "aten::conv2d %y not fused with aten::batch_norm %z: its output is used elsewhere too",
        ),
        (
            CONV + NORM + "  %u : Tensor = aten::conv2d(%z, %w, %none, %ones, %zeros, %ones, %one)\n  return (%u)",
            "aten::conv2d %y not fused with aten::batch_norm %z: its weight is shared with aten::conv2d %u",
        ),
        (
            "  %y : Tensor = aten::relu(%x)\n" + NORM + "  return (%z)",
            "aten::batch_norm %z stays: no convolution or linear layer is right before it",
        ),
        (
            CONV + NORM.replace("%false", "%true") + "  return (%z)",
            "aten::conv2d %y not fused with aten::batch_norm %z: the batch normalisation trains",
        ),
        (
            CONV + NORM.replace("%mean, %var", "%none, %none") + "  return (%z)",
            "aten::conv2d %y not fused with aten::batch_norm %z: the batch normalisation has no running statistics",
        ),
        (
            CONV.replace("%w", "%x") + NORM + "  return (%z)",
            "aten::conv2d %y not fused with aten::batch_norm %z: its weight or bias is not constant",
        ),
        (
            CONV + NORM.replace("%none, %none", "%x, %none") + "  return (%z)",
            "aten::conv2d %y not fused with aten::batch_norm %z: the batch normalisation's weights are not constant",
        ),
        (
            CONV + NORM.replace("%mean, %var", "%few, %few") + "  return (%z)",
            "aten::conv2d %y not fused with aten::batch_norm %z: the batch normalisation is over another dimension "
            "than the layer's output channels",
        ),
    ],
)
def test_refusals_leave_the_graph_and_say_why(body: str, reason: str) -> None:
    program = program_of(HEAD + body, CONSTANTS)
    before = operators(program)
    _, notes = apply(FoldBatchNorm(), program)
    assert operators(program) == before
    assert notes == [f"fold_batch_norm: {reason}"]


def test_reading_sizes_of_the_output_is_no_obstacle() -> None:
    pair = "  %r : (Tensor, int) = prim::TupleConstruct(%z, %rank)\n  return (%r)"
    body = f"{CONV}  %rank : int = aten::dim(%y)\n{NORM}{pair}"
    program = program_of(HEAD + body, CONSTANTS)
    apply(FoldBatchNorm(), program)
    assert "aten::batch_norm" not in operators(program)


LAYERS: dict[str, tuple[nn.Module, nn.Module, tuple[int, ...]]] = {
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2), nn.BatchNorm1d(6), (3, 4, 17)),
    "conv2d": (nn.Conv2d(4, 6, (3, 1), padding=(1, 2)), nn.BatchNorm2d(6), (3, 4, 9, 7)),
    "conv2d_without_bias": (nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), (1, 4, 9, 7)),
    "conv2d_groups": (nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), (2, 4, 9, 7)),
    "conv2d_depthwise": (nn.Conv2d(5, 5, 3, groups=5), nn.BatchNorm2d(5, eps=0.1), (2, 5, 9, 7)),
    "conv2d_not_affine": (nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False), (2, 4, 9, 7)),
    "conv2d_same_padding": (nn.Conv2d(4, 6, (2, 4), padding="same"), nn.BatchNorm2d(6), (2, 4, 9, 7)),
    "conv3d": (nn.Conv3d(2, 3, 3, dilation=(1, 2, 1)), nn.BatchNorm3d(3), (2, 2, 5, 7, 6)),
    "conv_transpose1d": (nn.ConvTranspose1d(4, 6, 3, stride=2), nn.BatchNorm1d(6), (2, 4, 9)),
    "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), nn.BatchNorm2d(6), (2, 4, 5, 4)),
    "conv_transpose2d_groups": (
        nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False),
        nn.BatchNorm2d(6),
        (2, 4, 5, 4),
    ),
    "conv_transpose3d": (nn.ConvTranspose3d(4, 2, 2, groups=2), nn.BatchNorm3d(2), (1, 4, 3, 3, 3)),
    "linear": (nn.Sequential(nn.Flatten(), nn.Linear(5, 7)), nn.BatchNorm1d(7), (3, 5)),
    "linear_without_bias": (nn.Sequential(nn.Flatten(), nn.Linear(5, 7, bias=False)), nn.BatchNorm1d(7), (3, 1, 5)),
}


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.parametrize("name", list(LAYERS))
def test_folded_layers_give_the_numbers_of_eager(name: str, how: str) -> None:
    layer, norm, sizes = LAYERS[name]
    module = randomize_norms(nn.Sequential(layer, norm))
    program, _ = optimise(module, [torch.rand(sizes) - 0.5], VULKAN, how)
    assert "aten::batch_norm" not in operators(program)


@pytest.mark.parametrize("sizes", [(3, 5), (3, 7, 5)])
def test_norm_after_a_linear_layer_whose_input_may_have_three_dimensions(sizes: tuple[int, ...]) -> None:
    """With three, the channels are not the features, even where their numbers are the same."""
    module = randomize_norms(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)))
    program, notes = optimise(module, [torch.rand(sizes) - 0.5], VULKAN)
    assert "aten::batch_norm" in operators(program)
    assert any("the layer makes it two" in str(note) for note in notes)


class NormInLoop(nn.Module):
    """Each trip normalises the same tensor anew and changes the result in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        total = torch.zeros(1)
        for _ in range(x.shape[0]):
            total = total + self.norm(y).mul_(2)
        return total


@pytest.mark.parametrize("pipeline", [VULKAN, CPU], ids=["vulkan", "cpu"])
def test_norm_in_a_loop_after_the_layer(pipeline: Any) -> None:
    optimise(randomize_norms(NormInLoop()), [torch.rand(3, 3, 5, 6)], pipeline)


def test_fold_computes_in_float64() -> None:
    weight, mean, variance = torch.rand(4, 2, 3, 3), torch.rand(4), torch.rand(4) * 1e-3
    folded, bias = fold_batch_norm(weight, None, None, None, mean, variance, eps=1e-5)
    scale = 1 / (variance.double() + 1e-5).sqrt()
    assert torch.equal(folded, (weight.double() * scale[:, None, None, None]).float())
    assert torch.equal(bias, (-mean.double() * scale).float())


class Twins(nn.Module):
    """One body for two images, as in a net that compares."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU())

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.body(left) - self.body(right)


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.parametrize("pipeline", [VULKAN, CPU], ids=["vulkan", "cpu"])
def test_a_module_that_is_called_twice(how: str, pipeline: Any) -> None:
    inputs = [torch.rand(1, 3, 5, 7), torch.rand(1, 3, 5, 7)]
    program, _ = optimise(randomize_norms(Twins()), inputs, pipeline, how)
    assert "aten::batch_norm" not in operators(program)
    if pipeline is CPU:
        first, second = (node.inputs[1] for node in program.methods["forward"].walk() if node.op == "aten::conv2d")
        assert first.constant is second.constant, "the folded weight is there once"


class SharedLayer(nn.Module):
    """Two methods run the same layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))

    @torch.jit.export
    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x)).relu()


def test_methods_share_the_folded_weight() -> None:
    from mobopt.frontends.torchscript import program_from_script_module
    from mobopt.passes.manager import run_passes

    module = randomize_norms(SharedLayer()).eval()
    program = program_from_script_module(torch.jit.script(module), ["features"])
    run_passes(program, [FoldBatchNorm()], check=True)
    first, second = (graph.block.nodes[0].inputs[1].constant for graph in program.methods.values())
    assert first is second
