"""The whole road on one model: script, convert, run, compare."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

from mobopt.deprecations import of_torchscript_unsaid
from mobopt.errors import InputError
from mobopt.files import whole_file
from mobopt.options import Settings
from mobopt.samples.agreement import Agreement, compare
from mobopt.samples.inputs import random_inputs
from mobopt.tools.conversion import Conversion, convert_file
from mobopt.tools.demo_model import demo_model
from mobopt.tools.execution import Execution, run_bundle, timed_calls

SHAPE = "1,3,224,224"
_WARM_UP = 2


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


class _Eager:
    """The model on the CPU; timed after untimed calls, since PyTorch's threads are slow to wake."""

    def __init__(self, model: torch.nn.Module, image: torch.Tensor) -> None:
        self.model = model
        self.image = image
        self.result: torch.Tensor | None = None
        self.seconds: list[float] = []

    def run(self) -> None:
        """Warm up, and time one call."""
        with torch.no_grad():
            timed_calls(lambda: self.model(self.image), _WARM_UP)
            self.result, seconds = timed_calls(lambda: self.model(self.image), 1)
        self.seconds += seconds


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
    with whole_file(source) as file, of_torchscript_unsaid():
        torch.jit.save(torch.jit.script(model), file)
    with whole_file(input_path) as file:
        numpy.save(file, image.numpy())
    conversion = convert_file(source, bundle, Settings("vulkan"), example_inputs=[image], show=show)
    show("running the bundle on Vulkan, and the model with PyTorch on the CPU, in turn")
    eager = _Eager(model, image)
    execution = run_bundle(bundle, [image], device=device, repeat=repeat, before=eager.run)
    return Demonstration(
        source,
        bundle,
        input_path,
        conversion,
        execution,
        compare(execution.result, eager.result),
        statistics.median(eager.seconds),
    )
