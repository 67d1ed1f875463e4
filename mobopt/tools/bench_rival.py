"""What a rival of ``mobopt bench`` is: it opens a file that mobopt wrote of the model, and gives a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mobopt.samples.agreement import RELATIVE_TOLERANCE

Call = Callable[[], Any]
"""One call of the model, from tensors on the CPU to tensors on the CPU."""


@dataclass(frozen=True)
class Bench:
    """A folder with the model in the forms that rivals take, and its inputs.

    Attributes:
        folder: where the files lie.
        method: the method that is called.
        threads: of torch and onnxruntime on the CPU.
        device: what mobopt runs on: a Vulkan device's number or a part of its name; None for the best.
        keep_clock: whether mobopt keeps the clock of an NVIDIA GPU up.
    """

    folder: Path
    method: str = "forward"
    threads: int = 0
    device: str | None = None
    keep_clock: bool = False

    def file(self, suffix: str) -> Path:
        """The model in one form."""
        return self.folder / f"model{suffix}"

    @property
    def args_file(self) -> Path:
        """Where the inputs lie."""
        return self.folder / "args.pt"

    def args(self) -> list[Any]:
        """The inputs."""
        return list(torch.load(self.args_file, weights_only=True))


@dataclass
class Contestant:
    """A rival that is ready.

    Attributes:
        call: see :data:`Call`.
        where: the device in words.
        device_bytes: peak memory of the device so far; None where it is the host's.
    """

    call: Call
    where: str
    device_bytes: Callable[[], int] | None = None


class Peer(ABC):
    """A rival.

    Attributes:
        name: as it is chosen.
        form: ending of the file that it takes.
        tolerance: how far its result may be from the model's in float32, over that result's scale.
    """

    name: str
    form: str
    tolerance = RELATIVE_TOLERANCE

    @abstractmethod
    def missing(self) -> str:
        """Why it can't run here; empty if it can."""

    @abstractmethod
    def open(self, bench: Bench) -> Contestant:
        """Make it ready; the first call may still compile."""
