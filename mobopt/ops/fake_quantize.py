"""What a quantised model makes of an activation, in floats: the nearest multiple of a scale, within bounds.

``mobopt::fake_quantize(self, scale, quant_min, quant_max, inverse_scale)`` gives
``clamp(round(self * inverse_scale), quant_min, quant_max) * scale``, in float32. Bounds are relative to the zero point,
so the integers of quint8 about 128 are those from -128 to 127. Without an inverse the operand is divided by the scale,
as ONNX's ``QuantizeLinear`` does.

``mobopt::rounded_gate(self, gate, scale, quant_min, quant_max, inverse_scale)`` is ``self`` times that of a function of
``self``, ``"sigmoid"`` or ``"hardsigmoid"``: what a statically quantised model makes of SiLU and of hardswish.

Source: ``fake_quantize_per_tensor_affine`` of PyTorch, which has the zero point apart.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

FAKE_QUANTIZE = "mobopt::fake_quantize"
ROUNDED_GATE = "mobopt::rounded_gate"
GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid,
    "hardsigmoid": torch.nn.functional.hardsigmoid,
}
"""Functions whose rounded values multiply what they are of, by name."""


def fake_quantized(
    x: torch.Tensor, scale: float, quant_min: int, quant_max: int, inverse_scale: float | None = None
) -> torch.Tensor:
    """The multiples, of a float32 tensor of any sizes; see the module."""
    return whole_steps(x, scale, inverse_scale).clamp(quant_min, quant_max) * scale


def rounded_gate(
    x: torch.Tensor, gate: str, scale: float, quant_min: int, quant_max: int, inverse_scale: float | None = None
) -> torch.Tensor:
    """A float32 tensor of any sizes times a rounded function of it."""
    return x * fake_quantized(GATES[gate](x), scale, quant_min, quant_max, inverse_scale)


def whole_steps(x: torch.Tensor, scale: float, inverse_scale: float | None) -> torch.Tensor:
    """How many steps each number is away from zero, half to even, without bounds."""
    return (x / scale if inverse_scale is None else x * inverse_scale).round()
