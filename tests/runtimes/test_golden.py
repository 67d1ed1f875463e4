"""Bundles made by genuine PyTorch builds give what they gave there, on the CPU and on the device."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from model_zoo import tensors_of, worst_error
from sampling import sampled

from mobopt.bundle import read_bundle
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.vulkan.program import VulkanProgram

FOLDER = Path(__file__).parents[1] / "golden"
BUNDLES = sorted(path for pattern in ("vulkan*.pt*", "model.pt*") for path in FOLDER.glob(f"*/*/{pattern}"))


def arrays(folder: Path, name: str) -> list[torch.Tensor]:
    """The net's inputs or expected outputs, in order."""
    return [torch.from_numpy(numpy.load(path)) for path in sorted(folder.glob(f"{name}_*.npy"))]


def identity(path: Path) -> str:
    """Release, net and file."""
    return str(path.relative_to(FOLDER))


def test_there_are_bundles():
    assert len(BUNDLES) >= 40


@pytest.mark.parametrize("name", sampled(map(identity, BUNDLES), one_in=2))
def test_bundle_on_the_cpu(name: str):
    path = FOLDER / name
    found = Interpreter(read_bundle(path)).run("forward", arrays(path.parent, "input"))
    assert worst_error(tensors_of(found), arrays(path.parent, "expected")) <= 1e-5


@pytest.mark.parametrize("name", sampled(map(identity, BUNDLES), one_in=4))
def test_bundle_on_the_device(name: str, device):
    path = FOLDER / name
    program = VulkanProgram(read_bundle(path), device)
    found = program(*arrays(path.parent, "input"))
    assert worst_error(tensors_of(found), arrays(path.parent, "expected")) <= 1e-4
    program.close()
