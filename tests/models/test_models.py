"""Whole models: optimised, saved, loaded from both forms of file, and run on the device as eager torch computes them.

By default each of a few models is scripted or traced in turn, and runs once from each form of file, at the usual size
and at an odd one; ``-m sweep`` runs all models, in every combination.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from model_zoo import ZOO, ZooModel, tensors_of, worst_error

from mobopt.bundle import read_bundle
from mobopt.optimizer import optimize_for_mobile
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

TOLERANCE = 1e-4
USUAL, ODD = (1, 224, 224), (3, 193, 161)
KINDS = {name: ("scripted", "traced")[number % 2] for number, name in enumerate(ZOO)}
FORMS = ("pt", "ptl")
FEW = ("mobilenet_v2", "shufflenet_v2_x1_0")
"""Models that are run by default."""


def optimized_files(zoo_model: ZooModel, model: torch.nn.Module, kind: str, folder: Path) -> dict[str, Path]:
    """The model converted for Vulkan, in both forms of file."""
    if kind == "scripted":
        module = torch.jit.script(model)
    else:
        module = torch.jit.trace(model, zoo_model.example(1, 64, 64), strict=False)
    optimized = optimize_for_mobile(module, backend="vulkan")
    files = {form: folder / f"{zoo_model.name}.{form}" for form in FORMS}
    optimized.save(str(files["pt"]))
    optimized._save_for_lite_interpreter(str(files["ptl"]))
    return files


def check(path: Path, device: Device, model: torch.nn.Module, x: torch.Tensor) -> None:
    """A file gives what eager torch gives, without the CPU's help."""
    with torch.no_grad():
        expected = tensors_of(model(x))[:1]
    program = VulkanProgram(read_bundle(path), device, fallback="error")
    found = tensors_of(program(x))[:1]
    assert worst_error(found, expected) <= TOLERANCE
    memory = program.plan_report([x]).memory
    program.close()
    assert memory is not None and memory.peak_bytes <= 1.2 * memory.lower_bound_bytes


@pytest.mark.filterwarnings("ignore:no inputs are known that the model takes")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.sweep]) for name in ZOO])
def test_model(name: str, device: Device, tmp_path: Path):
    model = ZOO[name].build()
    files = optimized_files(ZOO[name], model, KINDS[name], tmp_path)
    for form, size in zip(FORMS, (USUAL, ODD), strict=True):
        check(files[form], device, model, ZOO[name].example(*size))


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:no inputs are known that the model takes")
@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_every_form_and_size(name: str, kind: str, device: Device, tmp_path: Path):
    model = ZOO[name].build()
    files = optimized_files(ZOO[name], model, kind, tmp_path)
    for form, (height, width), batch in product(FORMS, (USUAL[1:], ODD[1:]), (1, 3)):
        check(files[form], device, model, ZOO[name].example(batch, height, width))
