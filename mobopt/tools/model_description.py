"""What a model before conversion says of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelDescription:
    """What a model says of itself.

    Attributes:
        format: of the file, with its version.
        producer: the program that wrote it, with its version.
        opsets: releases of the operators that it names: ``ai.onnx 17`` and so on.
        inputs: ``x: float[batch, 3]``; those that are initialisers too are left out.
        outputs: the same.
        operators: how often each stands in it, also in functions and nested graphs.
    """

    format: str
    producer: str
    opsets: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: dict[str, int]
