"""CPU references of packed operators of Metal and XNNPACK: genuine bundles, odd shapes, sizes without elements."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from model_zoo import tensors_of, worst_error
from torch import Tensor

from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.errors import UnsupportedError
from mobopt.ir import Program, parse_graph
from mobopt.ir.nests import leaves_of
from mobopt.ir.types import TensorType
from mobopt.ops.schemas import PACKING_OPERATORS
from mobopt.ops.shapes import infer, makes_new
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.cpu.kernels import kernel
from mobopt.runtimes.cpu.packed import PACKED_KERNELS
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.program import VulkanProgram

FOLDER = Path(__file__).parents[1] / "golden"
BUNDLES = sorted(path for pattern in ("metal.pt*", "cpu.pt*") for path in FOLDER.glob(f"*/*/{pattern}"))


def arrays(folder: Path, name: str) -> list[Tensor]:
    """The net's inputs or expected outputs, in order."""
    return [torch.from_numpy(numpy.load(path)) for path in sorted(folder.glob(f"{name}_*.npy"))]


def identity(path: Path) -> str:
    """Release, net and file."""
    return str(path.relative_to(FOLDER))


def test_there_are_bundles_of_every_net() -> None:
    nets = {"convbnrelu6", "layernorm", "lstm", "mixed", "mlp", "mobilenetv2"}
    for name in ("metal.pt", "metal.ptl", "cpu.pt", "cpu.ptl"):
        assert {path.parent.name for path in BUNDLES if path.name == name and "1.13.1" in path.parts[-3]} == nets


@pytest.mark.parametrize("prefer", ["bytecode", "code"])
@pytest.mark.parametrize("path", BUNDLES, ids=identity)
def test_genuine_bundle_gives_what_it_gave_there(path: Path, prefer: str) -> None:
    found = Interpreter(read_bundle(path, prefer=prefer)).run("forward", arrays(path.parent, "input"))
    assert worst_error(tensors_of(found), arrays(path.parent, "expected")) <= 1e-5


@pytest.mark.parametrize("write", [write_torchscript, write_lite])
@pytest.mark.parametrize("path", [path for path in BUNDLES if path.parent.name in ("mixed", "mlp")], ids=identity)
def test_genuine_bundle_is_written_and_read_again(path: Path, write: Any) -> None:
    file = io.BytesIO()
    write(read_bundle(path), file)
    file.seek(0)
    found = Interpreter(read_bundle(file)).run("forward", arrays(path.parent, "input"))
    expected = Interpreter(read_bundle(path)).run("forward", arrays(path.parent, "input"))
    assert all(map(torch.equal, tensors_of(found), tensors_of(expected)))


@pytest.mark.parametrize("path", [path for path in BUNDLES if path.suffix == ".ptl"], ids=identity)
def test_genuine_bundle_on_the_device(path: Path, device: Any) -> None:
    program = VulkanProgram(read_bundle(path), device)
    found = program(*arrays(path.parent, "input"))
    assert worst_error(tensors_of(found), arrays(path.parent, "expected")) <= 1e-4
    program.close()


@pytest.mark.parametrize("path", [path for path in BUNDLES if path.suffix == ".ptl"], ids=identity)
def test_no_packed_operator_of_another_backend_is_left_in_a_trace(path: Path) -> None:
    segment = specialize(read_bundle(path), "forward", arrays(path.parent, "input"))
    operators = [node.op for node in segment.graph.block.nodes]
    assert operators and {name.partition("::")[0] for name in operators} <= {"aten", "vulkan_prepack"}


CONVOLUTIONS = ["vulkan_prepack::conv2d_clamp", "metal_prepack::conv2d", "prepacked::conv2d_clamp"]
RANGES = [(None, None), (0.0, None), (None, 0.25), (-0.5, 0.5)]


def clamped(result: Tensor, low: float | None, high: float | None) -> Tensor:
    return result if low is None and high is None else result.clamp(low, high)


def both(op: str, constants: list[Any], x: Tensor) -> Tensor:
    """Pack and run; the run on sizes alone must agree with the run on elements."""
    context = kernel(f"{op}_prepack")(*constants)
    found: Tensor = kernel(f"{op}_run")(x, context)
    sizes = kernel(f"{op}_run")(x.to("meta"), context)
    assert (sizes.device.type, sizes.shape, sizes.dtype) == ("meta", found.shape, found.dtype)
    return found


@pytest.mark.parametrize("bounds", RANGES, ids=str)
@pytest.mark.parametrize("op", CONVOLUTIONS)
@pytest.mark.parametrize(
    ("sizes", "weight", "stride", "padding", "dilation", "groups"),
    [
        ((1, 3, 7, 11), (5, 3, 3, 2), [1, 1], [0, 0], [1, 1], 1),
        ((2, 6, 13, 5), (9, 2, 1, 3), [2, 1], [1, 2], [2, 1], 3),
        ((7, 11, 5), (11, 1, 5, 3), [3], [2], [1], 11),
    ],
)
def test_convolution(
    op: str,
    bounds: tuple[float | None, float | None],
    sizes: tuple[int, ...],
    weight: tuple[int, ...],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> None:
    if len(sizes) == 3:
        sizes = (groups, sizes[1], sizes[2])  # without batch dimension
    x, w, b = torch.randn(sizes), torch.randn(weight), torch.randn(weight[0])
    for bias in (b, None):
        found = both(op, [w, bias, stride, padding, dilation, groups, *bounds], x)
        assert torch.equal(found, clamped(F.conv2d(x, w, bias, stride, padding, dilation, groups), *bounds))


@pytest.mark.parametrize("bounds", RANGES, ids=str)
def test_transposed_convolution(bounds: tuple[float | None, float | None]) -> None:
    x, w, b = torch.randn(2, 6, 5, 7), torch.randn(6, 5, 3, 2), torch.randn(10)
    settings: list[Any] = [[3, 2], [1, 0], [2, 1], [1, 2], 2]
    found = both("prepacked::conv2d_transpose_clamp", [w, b, *settings, *bounds], x)
    stride, padding, output_padding, dilation, groups = settings
    plain = F.conv_transpose2d(x, w, b, stride, padding, output_padding, groups, dilation)
    assert torch.equal(found, clamped(plain, *bounds))


@pytest.mark.parametrize("bounds", RANGES, ids=str)
@pytest.mark.parametrize("op", ["metal_prepack::linear", "prepacked::linear_clamp"])
@pytest.mark.parametrize("sizes", [(13,), (5, 13), (2, 3, 13), (1, 2, 3, 13)])
def test_linear(op: str, sizes: tuple[int, ...], bounds: tuple[float | None, float | None]) -> None:
    x, w, b = torch.randn(sizes), torch.randn(7, 13), torch.randn(7)
    for bias in (b, None):
        assert torch.equal(both(op, [w, bias, *bounds], x), clamped(F.linear(x, w, bias), *bounds))


def test_copy_to_host_is_the_tensor_itself() -> None:
    x = torch.randn(1, 5, 3)
    assert kernel("metal::copy_to_host")(x) is x
    assert kernel("metal::copy_to_host")(x.to("meta")).shape == x.shape


def test_every_packing_operator_has_a_kernel() -> None:
    assert set(PACKED_KERNELS) >= PACKING_OPERATORS
    assert all(name.rpartition("_")[2] in ("prepack", "context") for name in PACKING_OPERATORS)


def packed_calls() -> list[tuple[str, list[Any]]]:
    """Operators on packed contexts of Vulkan, with what they take but the input, and the input's sizes."""
    w, b = torch.randn(6, 2, 3, 2), torch.randn(6)
    rnn = [torch.randn(sizes) for sizes in [(12, 3), (12, 4), (12,), (12,)] * 2]
    gru = [*rnn, True, 1, 0.0, False, True, True]
    lstm = [*(torch.cat([item, item[:4]]) for item in rnn), True, 1, 0.0, False, True, True]
    wide, narrow, state = [2, 4, 9, 8], [2, 5, 3], torch.randn(2, 2, 4)
    transposed = [torch.randn(4, 3, 3, 2), b, [3, 2], [1, 0], [2, 1], [1, 2], 2]
    context = PACKED_KERNELS
    make_gru = context["vulkan_prepack::create_gru_context"]
    make_lstm = context["vulkan_prepack::create_lstm_context"]
    return [
        (f"vulkan_prepack::{run}", [torch.randn(sizes), *rest, made])
        for run, sizes, rest, made in (
            *(
                (run, wide, [], context[f"vulkan_prepack::{pack}"](w, bias, [2, 1], [1, 0], [1, 2], 2, *bounds))
                for run, pack in (
                    ("run_conv2d_context", "create_conv2d_context"),
                    ("conv2d_clamp_run", "conv2d_clamp_prepack"),
                )
                for bias, bounds in ((b, (0.0, 6.0)), (None, (None, None)))
            ),
            (
                "run_tconv2d_context",
                wide,
                [],
                context["vulkan_prepack::create_tconv2d_context"](*transposed, None, 1.0),
            ),
            (
                "run_conv1d_context",
                [2, 4, 9],
                [],
                context["vulkan_prepack::create_conv1d_context"](w[..., 0], b, [2], [1], [1], 2),
            ),
            (
                "run_linear_context",
                narrow,
                [],
                context["vulkan_prepack::create_linear_context"](torch.randn(3, 7), None),
            ),
            ("run_gru_context", narrow, [state], make_gru(gru[:8], *gru[8:])),
            ("run_lstm_context", narrow, [state, state], make_lstm(lstm[:8], *lstm[8:])),
        )
    ]


@pytest.mark.parametrize(("op", "args"), packed_calls(), ids=lambda item: item if isinstance(item, str) else "")
def test_rules_tell_what_packed_operators_make(op: str, args: list[Any]) -> None:
    types = [TensorType(item.dtype, tuple(item.shape)) if isinstance(item, Tensor) else item for item in args]
    made = kernel(op)(*args)
    expected = [TensorType(item.dtype, tuple(item.shape)) for item in leaves_of(made, Tensor)]
    assert list(leaves_of(infer(op, types), TensorType)) == expected
    if makes_new(op):
        assert made.is_contiguous() and made.data_ptr() != args[0].data_ptr()
    assert infer(op, [TensorType(torch.int32, types[0].sizes), *types[1:]]) is None
    assert infer(op, [TensorType(torch.float32, types[0].sizes[:1]), *types[1:]]) is None


@pytest.mark.parametrize(
    ("op", "namespace"), [("metal_prepack::linear", "metal"), ("prepacked::linear_clamp", "xnnpack")]
)
def test_computed_weights_are_refused_by_name(op: str, namespace: str) -> None:
    text = f"""graph(%self : __torch__.M,
      %x : Tensor):
  %n : NoneType = prim::Constant()
  %c : __torch__.torch.classes.{namespace}.LinearOpContext = {op}_prepack(%x, %n, %n, %n)
  %y : Tensor = {op}_run(%x, %c)
  return (%y)
"""
    program = Program(methods={"forward": parse_graph(text)})
    with pytest.raises(UnsupportedError, match=f"{op}_prepack packs weights that are computed"):
        specialize(program, "forward", [torch.rand(3, 3)])
