"""What users of ``torch.utils.mobile_optimizer`` reported, each by the number of its issue at pytorch/pytorch.

Models are those of the reports; large ones in small, with the layers that the report turned on. The real ones, where
torchvision defines them, are a sweep.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from model_zoo import ZOO
from pass_harness import randomize_norms
from sampling import sampled
from torch import nn
from torch.nn import functional

from mobopt import MobileModule, export_opnames, optimize_for_mobile
from mobopt.bundle import read_bundle
from mobopt.errors import UnsupportedError
from mobopt.options import MobileOptimizerType
from mobopt.runtimes.cpu import Interpreter
from mobopt.samples.agreement import compare

VARIANTS: dict[str, dict[str, Any]] = {
    "vulkan": {"backend": "vulkan"},
    "metal": {"backend": "metal"},
    "cpu": {"backend": "cpu"},
    "xnnpack": {"backend": "cpu", "xnnpack": True},
}
TOLERANCE = 1e-5
"""Of the output's scale."""

each_variant = pytest.mark.parametrize("variant", list(VARIANTS))
each_way = pytest.mark.parametrize("how", ["script", "trace"])


def in_torchscript(module: nn.Module, inputs: Sequence[Any], how: str) -> torch.jit.ScriptModule:
    """The module, scripted or traced, in evaluation mode."""
    module.eval()
    if how == "script":
        return torch.jit.script(module)
    with torch.no_grad():
        return torch.jit.trace(module, tuple(inputs), check_trace=False)  # type: ignore[no-any-return, no-untyped-call]


def optimised(
    module: nn.Module, inputs: Sequence[Any], variant: str, how: str = "script", **options: Any
) -> MobileModule:
    """The module for a variant, whose numbers, also after both ways of saving, are those of the module."""
    options = {"example_inputs": inputs, **VARIANTS[variant], **options}
    source = in_torchscript(module, inputs, how)
    result = optimize_for_mobile(source, **options)
    with torch.no_grad():  # scripts return what they do without Python, such as named tuples
        expected = (source if how == "script" else module)(*copy.deepcopy(list(inputs)))
    programs = [result.program]
    for data in (result.save_to_buffer(), result._save_to_buffer_for_lite_interpreter()):
        programs.append(read_bundle(io.BytesIO(data)))
    for program in programs:
        found = Interpreter(program).run("forward", copy.deepcopy(list(inputs)))
        agreement = compare(found, expected)
        assert agreement.relative <= TOLERANCE, agreement
    return result


def operators(module: MobileModule) -> list[str]:
    """Operators of ``forward``, in order."""
    return [node.op for node in module.program.methods["forward"].walk()]


# Files that PyTorch's own optimiser could not make.


@each_variant
@pytest.mark.parametrize("issue", [75864, 86791, 189532])
def test_a_convolution_alone(variant: str, issue: int) -> None:
    """Stock wheels assert, or lack vulkan_prepack::conv2d_clamp_prepack, or XNNPACK; the three reports' models."""
    model, size = {
        75864: (nn.Sequential(nn.Conv2d(3, 3, kernel_size=1)), (1, 3, 4, 4)),
        86791: (nn.Conv2d(3, 3, kernel_size=1), (1, 3, 64, 64)),
        189532: (nn.Conv2d(3, 8, 3), (1, 3, 32, 32)),
    }[issue]
    optimised(model, [torch.randn(size)], variant, "trace")


class InvertedResidual(nn.Module):
    """MobileNetV2's block, and its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(3, 12, 1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU6(inplace=True),
            nn.Conv2d(12, 12, 3, 1, 1, groups=12, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU6(inplace=True),
            nn.Conv2d(12, 3, 1, bias=False),
            nn.BatchNorm2d(3),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.conv(x)
        return self.classifier(functional.adaptive_avg_pool2d(x, (1, 1)).reshape(x.shape[0], -1))


@each_way
@pytest.mark.parametrize("variant", ["vulkan", "metal"])
def test_82065_127778_54377_mobilenet(variant: str, how: str) -> None:
    """No operator for conv2d_clamp_prepack, create_linear_context or metal_prepack::conv2d_prepack."""
    x = torch.randn(1, 3, 9, 7)
    model = randomize_norms(InvertedResidual())
    result = optimised(model, [x], variant, how)
    names = {"vulkan": ("vulkan_prepack::run_conv2d_context", "vulkan_prepack::run_linear_context")}
    names["metal"] = ("metal_prepack::conv2d_run", "metal_prepack::linear_run")
    assert set(names[variant]) <= set(export_opnames(result))
    assert not {"aten::conv2d", "aten::batch_norm", "aten::hardtanh_", "aten::dropout"} & set(operators(result))


@each_way
def test_50877_metal_has_no_matrix_product(how: str) -> None:
    """'aten::mm' could not be run with arguments from the Metal backend."""
    x = torch.randn(1, 3, 9, 7)
    result = optimised(randomize_norms(InvertedResidual()), [x], "metal", how)
    assert not {"aten::mm", "aten::addmm", "aten::matmul", "aten::linear"} & set(operators(result))


class Formats(nn.Module):
    """Asks for a memory format, which Metal's tensors have none of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.contiguous(memory_format=torch.channels_last)).contiguous()


@each_variant
@each_way
def test_62872_memory_format(variant: str, how: str) -> None:
    """'memory_format' argument is incompatible with Metal tensor."""
    x = torch.randn(1, 3, 5, 7)
    result = optimised(Formats(), [x], variant, how)
    if variant == "metal":
        assert operators(result) == ["aten::relu"]


class Square(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.pow(x, 2)


@each_variant
def test_72110_power(variant: str) -> None:
    """The same message for a power, which makes an empty tensor of a format inside."""
    x = torch.randn(1, 3, 8, 8)
    optimised(Square(), [x], variant, "trace")


@each_variant
def test_72245_batch_norm_alone(variant: str) -> None:
    """Could not run 'aten::native_batch_norm' with arguments from the Metal backend."""
    x = torch.randn(1, 3, 8, 6)
    result = optimised(randomize_norms(nn.BatchNorm2d(3)), [x], variant, "trace")
    if variant == "metal":
        assert "aten::batch_norm" not in operators(result)


def test_the_default_has_no_operator_of_xnnpack() -> None:
    """ultralytics/ultralytics#2465: the file failed with "xnnpack::convolution not available"."""
    result = optimised(randomize_norms(InvertedResidual()), [torch.randn(1, 3, 9, 7)], "cpu")
    assert all(name.startswith(("aten::", "prim::")) for name in export_opnames(result))


# Silently wrong numbers.


class SqueezeExcite(nn.Module):
    """A block of MobileNetV3 whose convolutions have no bias, with the report's head of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8, eps=0.001), nn.Hardswish(True))
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False), nn.BatchNorm2d(8, eps=0.001))
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.project = nn.Sequential(nn.Conv2d(8, 6, 1, bias=False), nn.BatchNorm2d(6, eps=0.001))
        self.classifier = nn.Sequential(nn.Linear(6, 8), nn.Hardswish(True), nn.Dropout(0.2, True), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.depthwise(self.expand(x))
        scale = functional.relu(self.squeeze(functional.adaptive_avg_pool2d(x, 1)), inplace=True)
        x = self.project(functional.hardsigmoid(self.excite(scale)) * x)
        return self.classifier(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


@each_variant
@each_way
def test_76431_conv_without_bias_then_batch_norm(variant: str, how: str) -> None:
    """MobileNetV3-large, traced: the bias that folding makes was lost."""
    torch.manual_seed(0)
    result = optimised(randomize_norms(SqueezeExcite()), [torch.rand(1, 3, 13, 11)], variant, how)
    assert "aten::batch_norm" not in operators(result)


class Bottleneck(nn.Module):
    """ResNet-50's block with its shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 3, 1, bias=False), nn.BatchNorm2d(3)
        self.conv2, self.bn2 = nn.Conv2d(3, 3, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(3)
        self.conv3, self.bn3 = nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.downsample = nn.Sequential(nn.Conv2d(4, 8, 1, stride=2, bias=False), nn.BatchNorm2d(8))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.downsample(x)
        return self.relu(out)


@each_variant
@each_way
def test_76807_resnet_without_bias(variant: str, how: str) -> None:
    """ResNet-50, traced: another prediction after optimisation."""
    torch.manual_seed(0)
    result = optimised(randomize_norms(Bottleneck()), [torch.rand(2, 4, 9, 7)], variant, how)
    assert "aten::batch_norm" not in operators(result)


@each_variant
def test_116515_lite_file_of_mobilenet(variant: str) -> None:
    """MobileNetV3-small, traced, saved for the lite interpreter: another class won. Stock torch runs the CPU's file."""
    torch.manual_seed(0)
    model, x = randomize_norms(SqueezeExcite()).eval(), torch.rand(1, 3, 16, 16)
    data = optimised(model, [x], variant, "trace")._save_to_buffer_for_lite_interpreter()
    if variant == "cpu":
        from torch.jit.mobile import _load_for_lite_interpreter

        with torch.no_grad():
            expected = model(x)
        assert compare(_load_for_lite_interpreter(io.BytesIO(data))(x), expected).relative <= TOLERANCE  # type: ignore[no-untyped-call]


_FOLDED: dict[str, tuple[nn.Module, nn.Module, tuple[int, ...]]] = {
    "1d": (nn.Conv1d(4, 6, 3, bias=False), nn.BatchNorm1d(6), (2, 4, 11)),
    "1d with groups": (nn.Conv1d(4, 6, 3, groups=2, bias=False), nn.BatchNorm1d(6), (2, 4, 11)),
    "2d": (nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), (2, 4, 7, 9)),
    "2d with groups": (nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), (2, 4, 7, 9)),
    "2d depthwise": (nn.Conv2d(5, 5, 3, groups=5, bias=False), nn.BatchNorm2d(5), (2, 5, 7, 9)),
    "2d not affine": (nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6, affine=False), (2, 4, 7, 9)),
    "2d with bias": (nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), (2, 4, 7, 9)),
    "2d padded to the same size": (nn.Conv2d(4, 6, 3, padding="same", bias=False), nn.BatchNorm2d(6), (1, 4, 7, 9)),
    "3d": (nn.Conv3d(2, 4, 3, bias=False), nn.BatchNorm3d(4), (1, 2, 5, 6, 7)),
    "3d not affine": (nn.Conv3d(2, 4, 3, bias=False), nn.BatchNorm3d(4, affine=False), (1, 2, 5, 6, 7)),
    "1d transposed": (nn.ConvTranspose1d(4, 6, 3, 2, bias=False), nn.BatchNorm1d(6), (2, 4, 7)),
    "2d transposed": (nn.ConvTranspose2d(4, 6, 3, 2, bias=False), nn.BatchNorm2d(6), (1, 4, 5, 6)),
    "2d transposed with groups": (nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6), (1, 4, 5, 6)),
    "3d transposed": (nn.ConvTranspose3d(2, 4, 2, bias=False), nn.BatchNorm3d(4), (1, 2, 3, 4, 5)),
}


@each_variant
@each_way
@pytest.mark.parametrize("case", sampled(_FOLDED, one_in=3))
def test_127227_fold_without_bias(variant: str, how: str, case: str) -> None:
    """The fix that was never merged: ``_convolution`` had become ``conv2d``, and folding no longer found its bias."""
    torch.manual_seed(0)
    layer, norm, sizes = _FOLDED[case]
    result = optimised(randomize_norms(nn.Sequential(layer, norm)), [torch.rand(sizes) - 0.5], variant, how)
    assert "aten::batch_norm" not in operators(result)


class SharedClass(nn.Module):
    """34932: layers of one class with and without bias, and a convolution of the user's own class."""

    class Convolution(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._conv_forward(x, self.weight, self.bias)

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3, affine=False))
        self.two = nn.Sequential(nn.Conv2d(3, 3, 1, bias=True), nn.BatchNorm2d(3, eps=0.1))
        self.three = nn.Sequential(self.Convolution(3, 3, 1, bias=False), nn.BatchNorm2d(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.three(self.two(self.one(x)))


@each_variant
@each_way
def test_34932_layers_of_one_class(variant: str, how: str) -> None:
    torch.manual_seed(0)
    result = optimised(randomize_norms(SharedClass()), [torch.rand(1, 3, 4, 5)], variant, how)
    assert "aten::batch_norm" not in operators(result)


class FrozenNorm(nn.Module):
    """96639: detection models normalise with plain arithmetic on buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        for name in ("weight", "bias", "mean", "variance"):
            self.register_buffer(name, torch.rand(4) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, variance = self.weight.reshape(1, -1, 1, 1), self.variance.reshape(1, -1, 1, 1)
        scale = weight * (variance + 1e-5).rsqrt()
        shift = self.bias.reshape(1, -1, 1, 1) - self.mean.reshape(1, -1, 1, 1) * scale
        return functional.relu(self.conv(x) * scale + shift)


@each_variant
@each_way
def test_96639_frozen_batch_norm(variant: str, how: str) -> None:
    """RetinaNet gave other boxes until CONV_BN_FUSION was blocked."""
    torch.manual_seed(0)
    optimised(FrozenNorm(), [torch.rand(1, 3, 6, 7)], variant, how)


class Mixed(nn.Module):
    """Something for every pass to do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU6(), nn.Dropout())
        self.second = nn.Conv1d(4, 4, 3)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).flatten(2)
        y = torch.relu(self.second(y) + y[:, :, 1:-1])
        return self.last(y.mean(2))


@each_variant
@pytest.mark.parametrize("member", MobileOptimizerType)
def test_97047_right_numbers_whatever_is_blocked(variant: str, member: MobileOptimizerType) -> None:
    """Wrong output until INSERT_FOLD_PREPACK_OPS was on the blocklist; and each entry is honoured on each backend."""
    torch.manual_seed(0)
    result = optimised(randomize_norms(Mixed()), [torch.rand(1, 3, 7, 6)], variant, optimization_blocklist={member})
    left = {
        MobileOptimizerType.REMOVE_DROPOUT: "aten::dropout",
        MobileOptimizerType.INSERT_FOLD_PREPACK_OPS: "aten::linear",
        MobileOptimizerType.CONV_1D_TO_2D: "aten::conv1d" if variant == "cpu" else "",
    }.get(member, "")
    assert not left or left in operators(result), operators(result)
    if member is MobileOptimizerType.CONV_BN_FUSION:
        notes = [note for note in result.notes if note.pass_name == "fold_batch_norm"]
        assert not notes
    if member is MobileOptimizerType.INSERT_FOLD_PREPACK_OPS:
        assert not [op for op in operators(result) if "prepack" in op]
    if member is MobileOptimizerType.FUSE_ADD_RELU:
        assert "aten::_add_relu" not in operators(result)


# Crashes and asserts.


class PaddedLinear(nn.Module):
    """The report's model: pads by three sides, a convolution, and a linear layer over the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, kernel_size=(1, 1))
        self.linear = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.pad(x, pad=[0, 1, 0, 1, 1, 0], mode="constant", value=0.5)
        return self.linear(self.conv(x))


@each_variant
def test_86667_extra_linear(variant: str) -> None:
    """A linear layer more made the optimiser fail."""
    model = PaddedLinear()
    model.conv = nn.Conv2d(2, 1, 1)
    optimised(model, [torch.rand(1, 1, 1, 1)], variant, "trace")


def test_86667_optimised_for_inference() -> None:
    """The report's call in between leaves what only this computer's processor runs; the message says so."""
    with torch.no_grad():
        traced = torch.jit.trace(PaddedLinear().eval(), [torch.zeros(1, 1, 1, 1)])  # type: ignore[no-untyped-call]
    ready = torch.jit.optimize_for_inference(traced)
    if not any(node.kind() == "prim::ConstantMKLDNNTensor" for node in ready.graph.nodes()):
        pytest.skip("this torch has no such operators")
    with pytest.raises(
        UnsupportedError, match=r"optimize_for_inference made it .* convert the module that it was made"
    ):
        optimize_for_mobile(ready)


class Detector(nn.Module):
    """RetinaNet in small: levels and heads that are looped over, losses in training, a list of dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)])
        self.heads = nn.ModuleDict({"scores": nn.Conv2d(4, 2, 1), "boxes": nn.Conv2d(4, 4, 1)})
        self.norm = nn.BatchNorm2d(4)
        self.anchors = [1, 2]

    def forward(
        self, x: torch.Tensor, targets: list[dict[str, torch.Tensor]] | None = None
    ) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
        losses: dict[str, torch.Tensor] = {}
        if self.training:
            if targets is None:
                raise ValueError("targets are needed for training")
            losses["loss"] = x.sum()
        found: list[dict[str, torch.Tensor]] = []
        for index, level in enumerate(self.levels):
            size = self.anchors[index]
            x = functional.relu(self.norm(level(x)))
            results: dict[str, torch.Tensor] = {}
            for name, head in self.heads.items():
                results[name] = head(x).flatten(2) * size
            found.append(results)
        if not torch.jit.is_scripting():
            return losses, found
        warnings.warn("only boxes are returned", stacklevel=2)
        return losses, found


@pytest.mark.filterwarnings("ignore:only boxes are returned")  # what the model says
@each_variant
def test_47269_detector(variant: str) -> None:
    """RetinaNet: freezing asserted 'Expected prim::GetAttr nodes'."""
    torch.manual_seed(0)
    optimised(randomize_norms(Detector()), [torch.rand(1, 3, 8, 6), None], variant)


@each_variant
def test_47269_module_in_training_mode(variant: str) -> None:
    """A module that trains is optimised as in evaluation mode, and left as it was."""
    model = randomize_norms(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())).train()
    scripted = torch.jit.script(model)
    result = optimize_for_mobile(scripted, **VARIANTS[variant])
    assert scripted.training
    x = torch.rand(2, 3, 6, 5)
    with torch.no_grad():
        assert compare(Interpreter(result.program).run("forward", [x]), model.eval()(x)).relative <= TOLERANCE


class Inception(nn.Module):
    """GoogLeNet in small: branches that are concatenated, an auxiliary head for training, a named tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(6, 2, 1, bias=False), nn.BatchNorm2d(2, eps=0.001))
        self.two = nn.Sequential(nn.Conv2d(6, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, eps=0.001))
        self.aux = nn.Linear(6, 3)
        self.pool = nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.cat([torch.relu(self.one(x)), functional.relu(self.two(self.pool(x)), inplace=True)], 1)
            if self.training:
                x = x + self.aux(x.mean([2, 3]))[:, :1, None, None]
        return x


@each_variant
@each_way
def test_40228_googlenet(variant: str, how: str) -> None:
    """GoogLeNet, scripted: a segmentation fault while freezing."""
    torch.manual_seed(0)
    optimised(randomize_norms(Inception()), [torch.rand(1, 6, 5, 7)], variant, how)


@each_variant
def test_52463_three_calls(variant: str) -> None:
    """MobileNetV3, scripted: a segmentation fault at the third call."""
    torch.manual_seed(0)
    model, x = randomize_norms(SqueezeExcite()), torch.rand(1, 3, 9, 8)
    interpreter = Interpreter(optimised(model, [x], variant).program)
    results = [interpreter.run("forward", [x]) for _ in range(3)]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


class Nested(nn.Module):
    """42039: a convolution in the module and one in its child, whose biases freezing had freed."""

    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv2 = nn.Conv2d(1, 1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv2(x)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 1, 1)
        self.child = self.Child()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(self.conv1(x))


@each_variant
def test_42039_child_module(variant: str) -> None:
    result = optimised(Nested(), [torch.rand(1, 1, 3, 4)], variant)
    assert not hasattr(result, "conv1")


class ChangedInLoop(nn.Module):
    """The report's model: each trip scales an element of what the next one starts from."""

    def __init__(self) -> None:
        super().__init__()
        self.m = nn.ModuleList([nn.Linear(5, 5) for i in range(5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.ones(5)
        out = []
        for i in range(5):
            for b in self.m:
                y = b(y)
            out.append(y[i])
            y[i] *= 2
        return torch.stack(out) + x


@each_variant
@each_way
def test_81651_constant_operation_at_the_end_of_a_loop(variant: str, how: str) -> None:
    torch.manual_seed(0)
    optimised(ChangedInLoop(), [torch.rand(5)], variant, how)


class GivenWeight(nn.Module):
    """The report's model: a weight that is an input, and a padding that is a word."""

    def forward(self, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.conv1d(input, weight, padding="same")


@each_variant
@each_way
def test_104606_same_padding_of_a_given_weight(variant: str, how: str) -> None:
    """isList() INTERNAL ASSERT: expected a list but got a string."""
    optimised(GivenWeight(), [torch.rand(2, 3, 7), torch.rand(4, 3, 3)], variant, how)


class ValidPadding(nn.Module):
    """The report's layers: padded by hand, then convolved with a padding that is a word."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(1, 4, 3, 2, "valid"), nn.Conv2d(4, 6, 3, 2, "valid")])
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution in self.convolutions:
            x = functional.elu(convolution(functional.pad(x, (0, 1, 0, 1))))
        return torch.sigmoid(self.head(x.mean([2, 3])))


@each_variant
@each_way
def test_65490_valid_padding(variant: str, how: str) -> None:
    """No operator prepacked::conv2d_clamp_prepack(Tensor, Tensor, int[], str, ...)."""
    torch.manual_seed(0)
    optimised(ValidPadding(), [torch.rand(1, 1, 13, 11)], variant, how)


# The real models.


@pytest.mark.sweep
@each_variant
@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param("mobilenet_v3_large", "trace", id="76431"),
        pytest.param("resnet50", "trace", id="76807"),
        pytest.param("mobilenet_v2", "script", id="127778"),
        pytest.param("resnet18", "script", id="82065"),
        pytest.param("googlenet", "script", id="40228"),
        pytest.param("mobilenet_v3_large", "script", id="52463"),
    ],
)
def test_models_of_the_reports(variant: str, name: str, how: str) -> None:
    optimised(ZOO[name].build(), [ZOO[name].example(height=96, width=96)], variant, how)
