"""Quantised and sparse tensors in files: refused with the module or the operator, and a way out, by every command."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from mobopt.bundle.reader import read_bundle
from mobopt.commands import main
from mobopt.errors import BundleError

_WAY_OUT = "script or trace the model as it is before torch.ao.quantization.convert or quantize_dynamic, and save that"


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 6), nn.Sequential(nn.ReLU(), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


class Held(nn.Module):
    """Keeps a tensor of another kind in a module of its own."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("table", tensor)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner.table.to_dense() if self.inner.table.is_sparse else x + self.inner.table.dequantize()


class Adds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
        return torch.ops.quantized.add_scalar(y, 2).dequantize()


def _dynamic(kind: type[nn.Module], dtype: torch.dtype) -> torch.jit.ScriptModule:
    model = torch.ao.quantization.quantize_dynamic(Tagger().eval(), {kind}, dtype=dtype)
    return torch.jit.script(model)


def _per_channel() -> Tensor:
    return torch.quantize_per_channel(torch.randn(3, 3), torch.full((3,), 0.1), torch.zeros(3), 0, torch.qint8)


_MODELS: dict[str, tuple[Callable[[], torch.jit.ScriptModule], str]] = {
    "lstm": (
        lambda: _dynamic(nn.LSTM, torch.qint8),
        "the module lstm (torch.ao.nn.quantized.dynamic.modules.rnn.LSTM) holds quantised weights (CellParamsBase)",
    ),
    "buffer": (
        lambda: torch.jit.script(Held(torch.quantize_per_tensor(torch.randn(3, 3), 0.1, 0, torch.qint8))),
        "the module inner (torch.nn.modules.module.Module), attribute 'table', holds a tensor that is quantised",
    ),
    "constant": (
        lambda: torch.jit.freeze(torch.jit.script(Held(_per_channel()).eval())),
        "constants.pkl: a constant of its code holds a tensor that is quantised",
    ),
    "operator": (
        lambda: torch.jit.script(Adds()),
        "the operator quantized::add_scalar belongs to the library 'quantized'",
    ),
}


@pytest.mark.parametrize(("make", "reason"), list(_MODELS.values()), ids=list(_MODELS))
def test_what_is_quantised_is_named(make: Callable[[], torch.jit.ScriptModule], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    make().save(str(path))
    with pytest.raises(BundleError, match=f"{re.escape(reason)}.*{re.escape(_WAY_OUT)}$"):
        read_bundle(path)


def test_sparse_tensors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.jit.trace(Held(torch.eye(3).to_sparse()), (torch.ones(3, 3),), check_trace=False).save(str(path))
    with pytest.raises(BundleError, match=r"attribute 'table', holds a tensor that is sparse; .*call to_dense\(\)"):
        read_bundle(path)


@pytest.mark.parametrize("command", [["opnames"], ["audit"], ["convert", "-o", "made.pt"]], ids=lambda words: words[0])
def test_commands_say_so(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _dynamic(nn.LSTM, torch.qint8).save("model.pt")
    result = CliRunner().invoke(main, [*command, "model.pt"])
    assert result.exit_code == 2 and "the module lstm" in result.output and _WAY_OUT in " ".join(result.output.split())
    assert not Path("made.pt").exists()
