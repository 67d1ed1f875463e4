"""Inputs as the command line gives them: arguments that are no tensors, beside those that are."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from mobopt.commands.group import main
from mobopt.errors import InputError
from mobopt.samples.inputs import InputOptions


@torch.jit.script
def scaled(x: Tensor, times: int, bias: float, is_positive: bool, other: Tensor | None) -> Tensor:
    y = x * times + bias
    y = torch.relu(y) if is_positive else y
    return y if other is None else y + other


class Scaled(torch.nn.Module):
    def forward(self, x: Tensor, times: int, bias: float, is_positive: bool, other: Tensor | None) -> Tensor:
        return scaled(x, times, bias, is_positive, other)


def test_numbers_stand_beside_tensors(tmp_path: Path) -> None:
    made = InputOptions.parse((), ("2,3", "=3", "=-0.5", "=1e-3", "=True", "=none", "decode:=7", "[=1;2]")).tensors()
    assert made is not None and made["decode"] == [7]
    x, *plain, listed = made["forward"]
    assert x.shape == (2, 3) and plain == [3, -0.5, 1e-3, True, None]
    assert [type(item) for item in plain] == [int, float, float, bool, type(None)]
    assert listed[0] == 1 and listed[1].shape == (2,)
    typed = InputOptions.parse((), ("=16000:int64", "=0.5:float16", "=true:bool")).tensors()
    assert typed is not None
    assert [(item.shape, item.dtype, item.item()) for item in typed["forward"]] == [
        ((), torch.int64, 16000), ((), torch.float16, 0.5), ((), torch.bool, True)
    ]  # fmt: skip
    numpy.save(tmp_path / "x.npy", x.numpy())
    options = InputOptions.parse((str(tmp_path / "x.npy"), "=3"), ())
    assert options.files == [tmp_path / "x.npy"]
    read = options.tensors()
    assert read is not None and torch.equal(read["forward"][0], x) and read["forward"][1] == 3


@pytest.mark.parametrize("text", ["=", "=16k", "=1,2", "=x.npy", "=1:int65", "=none:int64"])
def test_what_is_no_number_is_named(text: str) -> None:
    with pytest.raises(InputError, match=f"can't read the argument '{text}'; write =16000, =0.5"):
        InputOptions.parse((), ("2,3", text)).tensors()


@pytest.mark.parametrize("text", ["=300:uint8", f"={1 << 70}:int64"])
def test_numbers_that_a_dtype_lacks_are_named(text: str) -> None:
    with pytest.raises(InputError, match=f"can't make '{text}'"):
        InputOptions.parse((), (text,)).tensors()


@pytest.mark.parametrize("rest", [("=2", "=-0.5", "=true", "=none"), ("=3", "=1", "=false", "2,3")])
def test_commands_take_them(tmp_path: Path, rest: tuple[str, ...]) -> None:
    torch.jit.script(Scaled()).save(tmp_path / "scaled.pt")
    inputs = [part for text in ("2,3", *rest) for part in ("--random", text)]
    for command in (
        ["convert", str(tmp_path / "scaled.pt"), "-o", str(tmp_path / "scaled.ptl")],
        ["run", str(tmp_path / "scaled.ptl")],
        ["compare", str(tmp_path / "scaled.pt")],
        ["audit", str(tmp_path / "scaled.pt")],
    ):
        done = CliRunner().invoke(main, [*command, *inputs])
        assert done.exit_code == 0, done.output
