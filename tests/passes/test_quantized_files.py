"""Files of quantised models for phones' CPUs: what torch's own files compute there, bit for bit."""

from __future__ import annotations

import pickletools
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from test_expand_quantized import FUNCTIONS, LAYERS_OF, Calling, Layers, statically
from torch import Tensor, nn
from torch.jit.mobile import _load_for_lite_interpreter

import mobopt
from mobopt.commands import main
from mobopt.errors import UnsupportedError
from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.quantized_contexts import QuantizedConv2d
from mobopt.tools.requirements import inspect_bundle
from mobopt.tools.taps.tap import tap

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif("qnnpack" not in torch.backends.quantized.supported_engines, reason="this torch has no QNNPACK"),
]


@pytest.fixture(autouse=True)
def phone() -> Iterator[None]:
    """Torch computes as on a phone."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "qnnpack"
    yield
    torch.backends.quantized.engine = before


def check(module: Any, x: Tensor, folder: Path, **options: Any) -> Any:
    """The result, its files by torch's two loaders, and what mobopt reads of them."""
    expected = module(x).detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor|.*is deprecated")
        optimised = mobopt.optimize_for_mobile(module, backend="cpu", example_inputs=[x], **options)
    assert torch.equal(optimised(x), expected)
    optimised.save(folder / "model.pt")
    optimised._save_for_lite_interpreter(folder / "model.ptl")
    assert torch.equal(torch.jit.load(folder / "model.pt")(x), expected)  # type: ignore[no-untyped-call]
    assert torch.equal(_load_for_lite_interpreter(str(folder / "model.ptl"))(x), expected)
    for name in ("model.pt", "model.ptl"):
        assert torch.equal(mobopt.load(folder / name, device="cpu")(x), expected)
    return optimised


def _operators(module: Any) -> list[str]:
    return [node.op for node in module.program.methods["forward"].walk() if node.op.startswith("quantized::")]


@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - {"own sigmoid"}))  # QNNPACK has steps of 1/256 only
def test_functions(name: str, tmp_path: Path) -> None:
    x = torch.randn(2, 4, 5, 7) * 3
    optimised = check(torch.jit.trace(Calling(FUNCTIONS[name]), x, check_trace=False), x, tmp_path)
    assert any("quantize_per_tensor" in node.op for node in optimised.program.methods["forward"].walk())


@pytest.mark.parametrize("name", LAYERS_OF)
def test_layers(name: str, tmp_path: Path) -> None:
    make, sizes = LAYERS_OF[name]
    x = torch.randn(sizes)
    optimised = check(torch.jit.script(statically(Layers(*make()), x, "qnnpack")), x, tmp_path)
    assert len(_operators(optimised)) == sum(isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d)) for layer in make())


def test_transposed_convolutions(tmp_path: Path) -> None:
    x = torch.randn(1, 4, 7, 5)
    model = Layers(nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)).eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig("qnnpack")  # type: ignore[assignment]
    prepared = torch.ao.quantization.prepare(model)
    prepared(x)
    converted = torch.ao.quantization.convert(prepared)
    assert _operators(check(torch.jit.script(converted), x, tmp_path)) == ["quantized::conv_transpose2d"]


@pytest.mark.parametrize("blocked", [{"HOIST_CONV_PACKED_PARAMS"}, set()], ids=["constants", "hoisted"])
def test_beside_floats(blocked: set[str], tmp_path: Path) -> None:
    """Layers of floats are optimised as they are elsewhere."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(), nn.Flatten(), nn.Linear(8 * 35, 5)).eval()
    dynamic = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, torch.qint8)
    x = torch.randn(2, 3, 9, 7)
    optimised = mobopt.optimize_for_mobile(torch.jit.script(dynamic), blocked, backend="cpu", example_inputs=[x])
    operators = [node.op for node in optimised.program.methods["forward"].walk()]
    assert "aten::batch_norm" not in operators and "aten::dropout" not in operators
    assert _operators(optimised) == ["quantized::linear_dynamic"]
    torch.testing.assert_close(optimised(x), dynamic(x).detach(), rtol=0, atol=0.02)


def test_dynamic_layers(tmp_path: Path) -> None:
    """QNNPACK ignores ``reduce_range``, whatever torch is set to."""
    model = nn.Sequential(nn.Linear(37, 41), nn.ReLU(), nn.Linear(41, 5)).eval()
    dynamic = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    scripted, x = torch.jit.script(dynamic), torch.randn(3, 37)
    expected = dynamic(x).detach()
    assert _operators(check(scripted, x, tmp_path)) == ["quantized::linear_dynamic"] * 2
    torch.backends.quantized.engine = next(
        name for name in torch.backends.quantized.supported_engines if name not in ("qnnpack", "none")
    )
    assert torch.equal(mobopt.optimize_for_mobile(scripted, backend="cpu", example_inputs=[x])(x), expected)


def test_halves_become_floats() -> None:
    """QNNPACK has no weights of halves."""
    torch.backends.quantized.engine = "x86"
    dynamic = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(37, 5)), {nn.Linear}, torch.float16)
    x = torch.randn(3, 37)
    with pytest.warns(UserWarning, match="1 of its operators became float arithmetic"):
        optimised = mobopt.optimize_for_mobile(torch.jit.script(dynamic), backend="cpu", example_inputs=[x])
    assert not _operators(optimised)
    torch.testing.assert_close(optimised(x), dynamic(x).detach())


class Holding(nn.Module):
    """A layer that holds what torch packs, as its own optimised files do."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.quantize_per_channel(
            torch.randn(6, 2, 3, 3), torch.rand(6).double() / 30 + 0.01, torch.zeros(6).long(), 0, torch.qint8
        )
        self.packed = torch.ops.quantized.conv2d_prepack(weight, torch.randn(6), [1, 2], [0, 1], [1, 1], 2)

    def forward(self, x: Tensor) -> Tensor:
        q = torch.quantize_per_tensor(x, 0.05, 117, torch.quint8)
        return torch.ops.quantized.conv2d(q, self.packed, 0.1, 111).dequantize()  # type: ignore[no-any-return]


def test_packed_weights_keep_their_scales(tmp_path: Path) -> None:
    """Scales of layers are float64, and no observer need have made them."""
    x = torch.randn(1, 4, 7, 9)
    traced = torch.jit.trace(Holding(), x, check_trace=False)
    optimised = check(traced, x, tmp_path)
    (found,) = (item.value for item in optimised.program.attributes.values() if isinstance(item.value, QuantizedConv2d))
    weight, bias = torch.ops.quantized.conv2d_unpack(traced.packed)
    assert isinstance(found.weight, AffineTensor) and torch.equal(found.weight.integers, weight.int_repr())
    assert torch.equal(found.weight.scales, weight.q_per_channel_scales()) and torch.equal(found.bias, bias)
    traced.save(str(tmp_path / "own.pt"))
    own, made = (_words_in(tmp_path / name) for name in ("own.pt", "model.pt"))
    assert own == made


def _words_in(file: Path) -> list[str]:
    """What the pickle of a file says of its convolution, in order."""
    with zipfile.ZipFile(file) as archive:
        data = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    words = [str(word) for _, word, _ in pickletools.genops(data) if isinstance(word, (str, float))]
    start = words.index("__torch__.torch.classes.quantized Conv2dPackedParamsBase")
    return [word for word in words[start:] if not word.isdigit() and word != "mobile_optimized"]


def test_tools_read_such_files(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 9, 7)
    module = torch.jit.script(statically(Layers(nn.Conv2d(3, 16, 3), nn.Flatten(), nn.Linear(560, 5)), x, "qnnpack"))
    expected = check(module, x, tmp_path)(x)
    module.save(str(tmp_path / "source.pt"))
    for name in ("made.pt", "made.ptl"):
        command = ["convert", str(tmp_path / "source.pt"), "-o", str(tmp_path / name), "--backend", "cpu"]
        result = CliRunner().invoke(main, [*command, "--random", "1,3,9,7"])
        assert result.exit_code == 0 and "became float" not in result.output, result.output
        assert torch.equal(mobopt.load(tmp_path / name, device="cpu")(x), expected)
        info, needs = inspect_bundle(tmp_path / name)
        classes = [item.class_name for item in info.contexts]
        assert classes == ["quantized.Conv2dPackedParamsBase", "quantized.LinearPackedParamsBase"]
        assert [item.weight_shape for item in info.contexts] == [(16, 3, 3, 3), (5, 560)]
        assert needs.oldest and needs.opens_here
        with pytest.raises(UnsupportedError, match="computes with quantised tensors, which apps can't read"):
            tap(tmp_path / name, tmp_path / "tapped.ptl", example_inputs=[x])
        mobopt.migrate(tmp_path / name, tmp_path / "plain.pt", example_inputs=[x])
        torch.testing.assert_close(torch.jit.load(tmp_path / "plain.pt")(x), expected, rtol=0, atol=0.05)  # type: ignore[no-untyped-call]
    audit = CliRunner().invoke(main, ["audit", str(tmp_path / "source.pt"), "--backend", "cpu", "--random", "1,3,9,7"])
    assert audit.exit_code == 0 and "quantized::conv2d" in audit.output, audit.output


def test_inputs_are_guessed_of_such_layers(tmp_path: Path) -> None:
    """Without examples, a conversion is compared on what the first layer takes."""
    first = {"conv2d": nn.Conv2d(6, 8, 3, groups=2), "conv1d": nn.Conv1d(5, 8, 3), "linear": nn.Linear(37, 5)}
    sizes = {"conv2d": (1, 6, 9, 7), "conv1d": (1, 5, 11), "linear": (1, 37)}
    for name, layer in first.items():
        model = torch.jit.script(statically(Layers(layer), torch.randn(sizes[name]), "qnnpack"))
        model.save(str(tmp_path / "source.pt"))
        command = ["convert", str(tmp_path / "source.pt"), "-o", str(tmp_path / "made.ptl"), "--backend", "cpu"]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0 and "0.0e+00 of the output's scale" in " ".join(result.output.split()), (
            result.output
        )
