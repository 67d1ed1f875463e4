"""ONNX files of plain models: checked, run, with names, free sizes and branches; and what ONNX can't hold."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from golden_files import GOLDEN, PATHS, arrays, assert_expected, golden_id
from sampling import sampled
from torch import nn

from mobopt.errors import InputError, UnsupportedError
from mobopt.exporters import onnx_file
from mobopt.exporters.onnx_file import OnnxFile
from mobopt.exporters.plain import plain_model
from mobopt.exporters.targets import Order, Written
from mobopt.frontends.file_source import FileSource
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.tools.migration import MigrationRefusedError, migrate

_ONE = GOLDEN / "pt2.13.0/mixed/vulkan.ptl"
_LITE = [pytest.param(path, marks=() if path == _ONE else pytest.mark.sweep) for path in PATHS if path.suffix == ".ptl"]


def written(module: nn.Module, args: Sequence[Any], path: Path, opset: int = 18) -> Written:
    program = program_from_script_module(torch.jit.script(module.eval()))
    return OnnxFile().write(Order(plain_model(program), "forward", tuple(args), opset=opset), path)


@pytest.mark.parametrize("path", _LITE, ids=golden_id)
def test_golden_files(path: Path, tmp_path: Path) -> None:
    plain = plain_model(FileSource(path, None, takes_optimized=True).program)
    inputs = arrays(path, "input")
    result = OnnxFile().write(Order(plain, "forward", tuple(inputs)), tmp_path / "new.onnx")
    assert_expected(result.call("forward")(inputs), path)


class Net(nn.Module):
    """Two inputs, several results in a nest, a branch on elements, and sizes that are computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, image: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        y = self.norm(self.conv(image))
        if y.sum() > 0:
            z = y.relu() + bias
        else:
            z = y * 2
        rows = z.flatten(2).mean(1).view(z.size(0), z.size(2) * z.size(3))
        return z, [rows, rows.softmax(-1)]


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def test_free_sizes_names_and_branches(net: Net, tmp_path: Path) -> None:
    result = written(net, [torch.ones(1, 3, 8, 9), torch.ones(())], tmp_path / "net.onnx", opset=20)
    model = onnx.load(tmp_path / "net.onnx")
    assert [item.version for item in model.opset_import if not item.domain] == [20]
    assert [item.name for item in model.graph.input] == ["image", "bias"]
    sizes = [item.dim_param or item.dim_value for item in model.graph.input[0].type.tensor_type.shape.dim]
    assert sizes[1] == 3 and all(isinstance(size, str) and not size.isdigit() for size in (sizes[0], *sizes[2:]))
    assert {"conv.weight", "conv.bias"} <= {item.name for item in model.graph.initializer}
    assert "If" in {node.op_type for node in model.graph.node}
    call = result.call("forward")
    with torch.no_grad():
        for sign, shape in ((1, (1, 3, 8, 9)), (-1, (2, 3, 10, 5)), (1, (3, 3, 4, 4))):
            args = [sign * torch.randn(shape).abs() * 3, torch.tensor(0.5)]
            torch.testing.assert_close(call(args), net(*args), rtol=1e-5, atol=1e-5)


def test_the_reference_evaluator_serves_without_onnxruntime(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    args = [torch.randn(1, 3, 5, 5), torch.tensor(0.5)]
    result = written(net, args, tmp_path / "net.onnx")
    assert result.runner == "onnx.reference"
    with torch.no_grad():
        torch.testing.assert_close(result.call("forward")(args), net(*args), rtol=1e-5, atol=1e-5)


def test_traces_whose_convolutions_have_one_name_for_all(tmp_path: Path) -> None:
    layers = (nn.Conv2d(3, 6, 3, groups=3), nn.ConvTranspose2d(6, 5, 2, stride=2), nn.Conv2d(5, 4, 3, padding="same"))
    net, x = nn.Sequential(*layers).eval(), torch.randn(2, 3, 7, 11, generator=torch.Generator().manual_seed(0))
    plain = plain_model(program_from_script_module(torch.jit.trace(net, x)))  # type: ignore[no-untyped-call]
    result = OnnxFile().write(Order(plain, "forward", (x,)), tmp_path / "net.onnx")
    with torch.no_grad():
        torch.testing.assert_close(result.call("forward")([x]), net(x), rtol=1e-5, atol=1e-5)


def test_a_file_that_its_runner_fails_on_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx.reference computes grouped transposed convolutions of one dimension wrongly, or not at all."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    net, x = nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2).eval(), torch.randn(2, 4, 9)
    path = tmp_path / "net.onnx"
    with pytest.raises(MigrationRefusedError, match=r"onnx\.reference fails on it \(ValueError.*onnxruntime runs it"):
        migrate(torch.jit.script(net), path, example_inputs=[x])
    assert not path.exists()
    assert migrate(torch.jit.script(net), path, example_inputs=[x], force=True).relative_difference is None
    assert path.exists()


class Counts(nn.Module):
    """State."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class Number(nn.Module):
    """A result that is no tensor."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x + 1, 7


class Factors(nn.Module):
    """An operator that ONNX lacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x)[1]


def test_what_onnx_can_not_hold_is_named(net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "no.onnx"
    with pytest.raises(UnsupportedError, match="keeps calls between calls, and ONNX has no state"):
        written(Counts(), [torch.ones(1)], path)
    with pytest.raises(UnsupportedError, match="returns 7, which is no tensor"):
        written(Number(), [torch.ones(1)], path)
    with pytest.raises(UnsupportedError, match=r"ONNX lacks aten\.\w*qr\w*[\w.]*; migrate to"):
        written(Factors(), [torch.ones(3, 3)], path)
    with pytest.raises(InputError, match="opset 17 can't be written; 18 to"):
        written(net, [torch.ones(1, 3, 8, 8), torch.ones(())], path, opset=17)
    monkeypatch.setattr(onnx_file, "_MOST_BYTES", 100)
    with pytest.raises(UnsupportedError, match="bytes of weights, and one ONNX file holds 100"):
        written(net, [torch.ones(1, 3, 8, 8), torch.ones(())], path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install mobopt\[onnx\]"):
        written(net, [torch.ones(1, 3, 8, 8), torch.ones(())], path)
    assert not list(tmp_path.iterdir())


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, activation="gelu", norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self.layers(x, src_key_padding_mask=hidden)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.layer(x, x, x, average_attn_weights=False)


_SEQUENCE = (2, 7, 12)
_HIDDEN = torch.arange(7).expand(2, 7) >= torch.tensor([[7], [4]])
_LACKING = {
    "encoder": (lambda: nn.Sequential(nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)), _SEQUENCE, ()),
    "masked encoder": (Masked, _SEQUENCE, (_HIDDEN,)),
    "attention": (Attention, _SEQUENCE, ()),
    "rrelu": (nn.RReLU, (3, 5), ()),
    "adaptive max pool": (lambda: nn.AdaptiveMaxPool2d((2, 3), return_indices=True), (2, 3, 7, 11), ()),
    "global max pool": (lambda: nn.AdaptiveMaxPool2d(1), (2, 3, 7, 11), ()),
}


@pytest.mark.parametrize("name", sampled(_LACKING, 2))
def test_operators_that_onnx_lacks_are_computed_of_others(name: str, tmp_path: Path) -> None:
    """Also where their indices and attention weights are read."""
    make, sizes, rest = _LACKING[name]
    torch.manual_seed(0)
    net, x = make().eval(), torch.randn(sizes)
    result = written(net, [x, *rest], tmp_path / "net.onnx")
    with torch.no_grad():
        torch.testing.assert_close(result.call("forward")([x, *rest]), net(x, *rest), rtol=1e-5, atol=1e-5)
