"""Networks that torch exports to ONNX, with sizes that calls decide, beside eager."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from mobopt.frontends.open_source import source_of
from mobopt.ir import Program
from mobopt.options import Settings
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.tools.conversion import convert_file
from mobopt.tools.describe_model import describe_model


class Image(nn.Module):
    """Convolutions, both ways, with resizing to sizes of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Hardswish())
        self.up = nn.ConvTranspose2d(8, 4, 3, 2, 1, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.down(x)
        wide = nn.functional.interpolate(y, size=(x.shape[2], x.shape[3]), mode="bilinear", align_corners=False)
        batch, channels, height, width = y.shape
        rows = y.reshape(batch, channels, height * width).transpose(1, 2).softmax(-1)
        return self.up(y) + wide[:, :4], rows.mean(1)


class Steps(nn.Module):
    """Recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(16, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, _ = self.lstm(x)
        y, h = self.gru(y)
        return y, h


class Words(nn.Module):
    """Attention of words with positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Parameter(torch.randn(1, 32, 16))
        self.mixed, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places[:, : ids.shape[1]]
        batch, steps, width = x.shape
        parts = self.mixed(self.norm(x)).view(batch, steps, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.out(y.transpose(1, 2).reshape(batch, steps, width)) + x


CASES: dict[str, tuple[type[nn.Module], Any, Any, dict[int, str]]] = {
    "image": (Image, torch.randn(1, 3, 12, 16), torch.randn(2, 3, 20, 10), {0: "n", 2: "h", 3: "w"}),
    "steps": (Steps, torch.randn(2, 4, 6), torch.randn(3, 7, 6), {0: "n", 1: "t"}),
    "words": (Words, torch.randint(0, 50, (2, 5)), torch.randint(0, 50, (3, 9)), {0: "n", 1: "t"}),
}


def exported(net: nn.Module, example: torch.Tensor, axes: dict[int, str]) -> Any:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (example,), buffer, dynamo=False, opset_version=17, input_names=["x"], dynamic_axes={"x": axes}
        )
    return onnx.ModelProto.FromString(buffer.getvalue())


def assert_same(found: Any, expected: Any) -> None:
    as_tuple = [item if isinstance(item, tuple) else (item,) for item in (found, expected)]
    for ours, theirs in zip(*as_tuple, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def on_device(program: Program, device: Device, inputs: Sequence[Any]) -> Any:
    runtime = VulkanProgram(program, device)
    try:
        return runtime.run("forward", list(inputs))
    finally:
        runtime.close()


@pytest.mark.parametrize("name", CASES)
def test_a_net_takes_other_sizes(name: str, device: Device) -> None:
    make, example, other, axes = CASES[name]
    net = make().eval()
    source = source_of(exported(net, example, axes))
    with torch.no_grad():
        for x in (example, other):
            assert_same(Interpreter(source.program).run("forward", [x]), net(x))
        if name == "image":
            assert_same(on_device(source.program, device, [other]), net(other))


def test_layers_stay_whole() -> None:
    counts: Counter[str] = Counter()
    for make, example, _, axes in CASES.values():
        source = source_of(exported(make().eval(), example, axes))
        counts.update(node.op for node in source.program.methods["forward"].walk())
    for op in ("lstm", "gru", "embedding", "layer_norm", "conv2d", "conv_transpose2d", "upsample_bilinear2d"):
        assert counts[f"aten::{op}"], op
    assert not counts["aten::index_select"]


def test_a_file_is_converted_and_described(tmp_path: Path) -> None:
    net = Image().eval()
    model = exported(net, *CASES["image"][1::2])
    onnx.save(model, tmp_path / "net.onnx")
    example = torch.randn(1, 3, 16, 16)
    done = convert_file(tmp_path / "net.onnx", tmp_path / "net.ptl", Settings("vulkan"), example_inputs=[example])
    assert done.relative_difference is not None
    assert done.relative_difference < 1e-4
    found = describe_model(tmp_path / "net.onnx")
    assert found is not None
    assert found.description.inputs == ("x: float[n, 3, h, w]",)
    assert found.description.operators["ai.onnx::Conv"] == 1
    assert (found.refusal, found.description.opsets) == ("", ("ai.onnx 17",))
    assert describe_model(tmp_path / "net.ptl") is None


def test_quantised_models_are_float_arithmetic() -> None:
    """A convolution between quantisers: no integer is left where it is dequantised at once."""
    weight = torch.randint(-100, 100, (4, 3, 3, 3), dtype=torch.int8)
    scales = torch.rand(4) / 50
    constants = {
        "s": torch.tensor(0.02),
        "z": torch.tensor(120, dtype=torch.uint8),
        "w": weight,
        "ws": scales,
        "wz": torch.zeros(4, dtype=torch.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["dw"], axis=0),
        helper.make_node("Conv", ["d", "dw"], ["y"], pads=[1, 1, 1, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value.numpy(), name) for name, value in constants.items()],
    )
    program = source_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])).program
    assert not any(node.op == "aten::to" for node in program.methods["forward"].walk())
    x = torch.randn(1, 3, 6, 8) * 2
    quantised = ((x / 0.02).round() + 120).clamp(0, 255)
    expected = nn.functional.conv2d((quantised - 120) * 0.02, weight.float() * scales.reshape(-1, 1, 1, 1), padding=1)
    assert_same(Interpreter(program).run("forward", [x]), expected)


def test_loops_and_branches_run_on_what_calls_bring() -> None:
    """A loop that doubles until a sum is large, with what each trip saw."""
    limit = numpy_helper.from_array(torch.tensor(50.0).numpy(), "limit")
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "state"], ["next"]),
            helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
            helper.make_node("Less", ["total", "limit"], ["again"]),
            helper.make_node("Identity", ["total"], ["seen"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("trip", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, ["n"]),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("seen", TensorProto.FLOAT, []),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "", "x"], ["last", "sums"], body=body)],
        "loop",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("last", "sums")],
        [limit],
    )
    program = source_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])).program
    for x, trips in ((torch.ones(3), 5), (torch.ones(40), 1)):
        last, sums = Interpreter(program).run("forward", [x])
        torch.testing.assert_close(last, x * 2**trips)
        torch.testing.assert_close(sums, torch.tensor([float(x.sum()) * 2 ** (trip + 1) for trip in range(trips)]))


@pytest.mark.parametrize(
    ("image", "places", "tolerance"),
    [(torch.float32, torch.float64, 1e-6), (torch.float64, torch.float32, 1e-12), (torch.float16, torch.float32, 1e-3)],
)
def test_images_and_places_of_different_dtypes(image: torch.dtype, places: torch.dtype, tolerance: float) -> None:
    """As the older exporter of torch writes sampled features: ``GridSample`` takes them, torch's operator doesn't."""
    torch.manual_seed(0)
    x, grid = torch.randn(2, 3, 5, 7).to(image), (torch.rand(2, 4, 6, 2) * 2.4 - 1.2).to(places)
    kinds = {
        kind: helper.np_dtype_to_tensor_dtype(torch.empty(0, dtype=kind).numpy().dtype) for kind in (image, places)
    }
    graph = helper.make_graph(
        [helper.make_node("GridSample", ["x", "grid"], ["y"], mode="linear", padding_mode="border")],
        "sampled",
        [
            helper.make_tensor_value_info("x", kinds[image], x.shape),
            helper.make_tensor_value_info("grid", kinds[places], grid.shape),
        ],
        [helper.make_tensor_value_info("y", kinds[image], [2, 3, 4, 6])],
    )
    program = source_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])).program
    found = Interpreter(program).run("forward", [x, grid])
    expected = nn.functional.grid_sample(x.double(), grid.double(), padding_mode="border", align_corners=False)
    assert found.dtype == image
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
