"""The whole road on one model: script, convert, run, compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

from mobopt.errors import InputError
from mobopt.tools.agreement import Agreement, compare
from mobopt.tools.conversion import Conversion, convert_file
from mobopt.tools.demo_model import demo_model
from mobopt.tools.execution import Execution, run_bundle, timed_calls
from mobopt.tools.files import whole_file
from mobopt.tools.inputs import random_inputs

SHAPE = "1,3,224,224"
_WARM_UP = 3


@dataclass(frozen=True)
class Demonstration:
    """What the demonstration made and measured."""

    model: Path
    bundle: Path
    input: Path
    conversion: Conversion
    execution: Execution
    agreement: Agreement
    eager_seconds: float
    """Median time of a call of the model on the CPU, by PyTorch."""


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"can't make the folder {folder}: {error.strerror}; choose another with --folder") from None


def demonstrate(
    folder: Path, device: str | None, repeat: int, show: Callable[[str], None] = lambda step: None
) -> Demonstration:
    """Script a MobileNetV2, convert it for Vulkan, run the bundle, compare it with PyTorch on the CPU.

    Args:
        folder: where files go; made if it doesn't exist.
        device: a Vulkan device's number or a part of its name; None for the best.
        repeat: timed calls of each.
        show: is told each step.

    Raises:
        MoboptError: the folder or the device can't be used.
    """
    _make_folder(folder)
    source, bundle, input_path = folder / "mobilenetv2.pt", folder / "mobilenetv2-vulkan.ptl", folder / "input.npy"
    show("scripting MobileNetV2")
    model = demo_model()
    (image,) = random_inputs([SHAPE])
    with whole_file(source) as file:
        torch.jit.save(torch.jit.script(model), file)
    with whole_file(input_path) as file:
        numpy.save(file, image.numpy())
    conversion = convert_file(source, bundle, example_inputs=[image], show=show)
    show("running it with PyTorch on the CPU")
    with torch.no_grad():
        timed_calls(lambda: model(image), _WARM_UP)
        expected, eager = timed_calls(lambda: model(image), repeat)
    show("running the bundle on Vulkan")
    execution = run_bundle(bundle, [image], device=device, repeat=repeat)
    return Demonstration(
        source,
        bundle,
        input_path,
        conversion,
        execution,
        compare(execution.result, expected),
        sorted(eager)[len(eager) // 2],
    )
