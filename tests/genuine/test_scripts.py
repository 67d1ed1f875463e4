"""The scripts that make files and run them, without PyTorch's own kernels: files of the CPU variant run here."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import check
import numpy as np
import pytest
import quantized
import torch
from files import Model, write
from torch import Tensor, nn


class Methods(nn.Module):
    """A method beside forward, with arguments that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    @torch.jit.export
    def scaled(self, x: Tensor, times: int, shift: float, other: Tensor | None) -> tuple[Tensor, Tensor]:
        y = self.layer(x) * times + shift
        return (y, -y) if other is None else (y + other, y)


ROWS = torch.linspace(-1, 1, 15).reshape(3, 5)
MODELS: dict[str, dict[str, Any]] = {
    "forward": {"inputs": [ROWS]},
    "of another example": {"inputs": [ROWS], "example": [ROWS[:1]]},
    "method": {"inputs": [ROWS, 3, 0.5, None], "example": [ROWS], "method": "scaled"},
    "method of tensors": {"inputs": [ROWS, 3, 0.5, torch.ones(3)], "example": [ROWS], "method": "scaled"},
}


def made(folder: Path, name: str) -> list[Path]:
    """The two files of a model."""
    torch.manual_seed(5)
    options = {"example": None, "method": "forward", **MODELS[name]}
    write(folder, Model(name, Methods().eval(), scripts=["scripted"], text=name, **options), "scripted", "2.6", "cpu")
    return sorted(folder.glob("model.pt*"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MODELS)
def test_files_are_called_as_their_folder_says(name: str, tmp_path: Path) -> None:
    paths = made(tmp_path, name)
    assert [path.name for path in paths] == ["model.pt", "model.ptl"]
    answers = check.run(paths, 2, poison=False)
    assert set(answers) == {str(path) for path in paths}
    assert all("error" not in answer and answer["worst"] < 1e-6 for answer in answers.values()), answers


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wrong_numbers_and_errors_are_told_file_by_file(tmp_path: Path) -> None:
    good, other, damaged = (made(tmp_path / name, name)[0] for name in ("forward", "method", "of another example"))
    expected = np.load(other.parent / "out1.npy")
    np.save(other.parent / "out1.npy", expected + np.float32(0.5))
    damaged.write_bytes(b"no file")
    answers = check.run([good, other, damaged], 1, poison=False)
    assert answers[str(good)]["worst"] < 1e-6
    assert answers[str(other)]["worst"] > check.TOLERANCE
    assert "error" in answers[str(damaged)]


@pytest.mark.parametrize(
    ("found", "expected", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2),
        ([1.0, float("nan")], [1.0, 2.0], float("inf")),
        ([1.0], [1.0, 2.0], float("inf")),
        ([float("nan"), 4.0], [float("nan"), 4.0], 0.0),
    ],
)
def test_differences_are_by_scale(found: list[float], expected: list[float], difference: float) -> None:
    assert check.difference(torch.tensor(found), np.array(expected, np.float32)) == pytest.approx(difference)
    halves = check.difference(torch.tensor(found), np.array(expected, np.float16))
    assert halves == pytest.approx(difference / check.HALVES)


@pytest.mark.filterwarnings("ignore")
def test_what_is_told_of_quantised_tensors() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    found = torch.quantize_per_tensor(x, 0.5, 3, torch.quint8)
    assert quantized.verdict(found, x, (0.5, 3), found) == (
        "0 of 6 not the nearest step, at most 0.00 away; QNNPACK: 0 differ, by at most 0"
    )
    assert quantized.verdict(found, x + 0.375, (0.5, 3)) == "6 of 6 not the nearest step, at most 0.75 away"
    assert quantized.verdict(found, x, (0.25, 3)).endswith("the steps are (0.5, 3), not (0.25, 3)")
    assert quantized.verdict(found, x.t(), (0.5, 3)) == "sizes (2, 3) for (3, 2)"


def test_calls_are_as_their_functions_take_them() -> None:
    for function, *given in quantized.CALLS.values():
        options = given.pop() if isinstance(given[-1], dict) else {}
        inspect.signature(function).bind(*given, **options)
