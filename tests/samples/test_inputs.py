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
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.samples.inputs import InputOptions, array_of, files_of, random_inputs, read_inputs


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


def test_tensors_of_bfloat16(tmp_path: Path) -> None:
    """NumPy hasn't it: files are converted as they are read, and written as float32."""
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    numpy.save(tmp_path / "x.npy", x.numpy())
    (made,) = read_inputs([f"{tmp_path}/x.npy:bfloat16"])
    assert torch.equal(made, x.bfloat16())
    assert files_of([f"{tmp_path}/x.npy:bfloat16", "=3"]) == [tmp_path / "x.npy"]
    (random,) = random_inputs(["2,3:bfloat16"])
    assert (random.dtype, random.shape) == (torch.bfloat16, (2, 3))
    assert numpy.array_equal(array_of(made), x.bfloat16().float().numpy())
    with pytest.raises(InputError, match=r"can't read the input .*bfloat17"):
        read_inputs([f"{tmp_path}/x.npy:bfloat17"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_models_in_halves_from_the_command_line(device: Device, tmp_path: Path, dtype: str) -> None:
    """They run, and are compared by what halves can be expected to give."""
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.GELU(), torch.nn.Linear(64, 10)).eval()
    torch.jit.script(model.to(getattr(torch, dtype))).save(tmp_path / "net.pt")  # type: ignore[no-untyped-call]
    numpy.save(tmp_path / "x.npy", torch.randn(3, 40).numpy())
    given = ("--input", f"{tmp_path}/x.npy:{dtype}")
    for command in (
        ("run", "--output", str(tmp_path / "y.npy"), "--device", device.info.name),
        ("compare", "--device-b", device.info.name),
        ("stress", "--replays", "3", "--variant", "halves-by-operator", "--device", device.info.name),
        ("bisect", "--device", device.info.name),
    ):
        result = CliRunner().invoke(main, [command[0], str(tmp_path / "net.pt"), *given, *command[1:]])
        assert result.exit_code == 0, result.output
    result = CliRunner().invoke(
        main, ["run", str(tmp_path / "net.pt"), "--input", f"{tmp_path}/x.npy", "--device", "cpu"]
    )
    assert result.exit_code == 2
    assert f"if the model is in {dtype}, give its inputs in that" in result.output
    expected = model(torch.from_numpy(numpy.load(tmp_path / "x.npy")).to(getattr(torch, dtype)))
    found = torch.from_numpy(numpy.load(tmp_path / "y.npy"))
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.05, atol=0.02)
