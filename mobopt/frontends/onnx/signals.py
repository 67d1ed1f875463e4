"""Fourier transforms."""

from __future__ import annotations

from typing import Any

from mobopt.frontends.onnx.operands import Operand
from mobopt.frontends.onnx.registry import Call, translates


@translates("DFT")
def _dft(call: Call) -> Any:
    """Along an axis, of real numbers or of pairs in the last dimension."""
    emit, rank = call.emit, call.rank()
    axis = call.scalar(2) if call.version >= 20 and call.has(2) else call.get("axis", 1 if call.version < 20 else -2)
    axis = emit("remainder.int", axis, rank)
    length = call.scalar(1) if call.has(1) else None
    parts = (call.operand().sizes or (None,))[-1]
    if parts is None:
        raise call.unsupported("whether its numbers are complex is known at run time only")
    inverse, half = bool(call.get("inverse", 0)), bool(call.get("onesided", 0))
    x = call.tensor()
    if parts == 1:
        x = emit("squeeze.dim", x, rank - 1)
        if half and inverse:
            x = emit("complex", x, emit("zeros_like", x))
    else:
        x = emit("view_as_complex", emit("contiguous", x))
    if half and inverse:
        result = emit("unsqueeze", emit("fft_irfft", x, length, axis), -1)
    elif half:
        result = emit("view_as_real", emit("fft_rfft", x, length, axis))
    else:
        result = emit("view_as_real", emit("fft_ifft" if inverse else "fft_fft", x, length, axis))
    return Operand(call.dtype(), (None,) * (rank - 1) + (1 if half and inverse else 2,), result)


@translates("STFT")
def _stft(call: Call) -> Any:
    """Transforms of frames, times a window."""
    emit, rank = call.emit, call.rank()
    step = call.scalar(1)
    x = call.tensor()
    parts = (call.operand().sizes or (None,))[-1]
    if rank == 3 and parts != 1:
        raise call.unsupported("its signal is complex")
    x = emit("squeeze.dim", x, 2) if rank == 3 else x
    length = call.scalar(3) if call.has(3) else call.size(2, 0)
    frames = emit("unfold", x, 1, length, step)
    if call.has(2):
        frames = emit("mul.Tensor", frames, call.tensor(2))
    op = "fft_rfft" if call.get("onesided", 1) else "fft_fft"
    return Operand(call.dtype(), (None, None, None, 2), emit("view_as_real", emit(op, frames, None, -1)))
