"""A model, its bundle, and a way to run commands on them."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from click.testing import CliRunner, Result
from command_harness import Invoke, make_model

from mobopt.commands import main


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return run


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scripted.pt, input.npy, expected.npy and bundle.ptl."""
    folder = tmp_path_factory.mktemp("files")
    model, x = make_model(), torch.randn(1, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    torch.jit.save(torch.jit.script(model), str(folder / "scripted.pt"))
    numpy.save(folder / "input.npy", x.numpy())
    numpy.save(folder / "expected.npy", model(x).detach().numpy())
    # As PyTorch has it: a clamp would make floats of integers, which are to be refused.
    options = ["-o", str(folder / "bundle.ptl"), "--no-clear-inputs"]
    result = CliRunner().invoke(main, ["convert", str(folder / "scripted.pt"), *options])
    assert result.exit_code == 0, result.output
    return folder
