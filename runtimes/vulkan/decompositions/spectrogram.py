"""Short-time Fourier transforms, and signals from them.

Frames are a view of the signal, so where the window is known and the transform is one product, a spectrogram is that
product: the window is part of the matrix. So it is on the way back.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from mobopt.ir import Node, Value
from mobopt.runtimes.memories import version_of
from mobopt.runtimes.vulkan.decompositions.complex_numbers import Pair, each, joined, pair_of
from mobopt.runtimes.vulkan.decompositions.complex_products import beside, halves
from mobopt.runtimes.vulkan.decompositions.fourier import (
    SMALL_MATRIX,
    Transform,
    half_matrix,
    matrix,
    real_from_half,
    transformed,
)
from mobopt.runtimes.vulkan.decompositions.refusals import unless
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes, decomposes_complex

_LEAST_ENVELOPE = 1e-11
"""torch refuses a sum of squared windows that is not larger than this everywhere."""

_OF_WINDOWS: MutableMapping[torch.Tensor, dict[tuple[Any, ...], torch.Tensor]] = WeakIdKeyDictionary()
"""What was made of a window, so that plans for other sizes share it."""


@decomposes("aten::stft", "aten::stft.center")
@decomposes_complex("aten::stft", "aten::stft.center")
def stft(build: NodeBuilder, node: Node) -> Value | None:
    """(batch, samples) or (samples) to (..., frequencies, frames), or with a last dimension of both parts."""
    x, length, hop = node["self"], node["n_fft"], _hop(node)
    is_complex_window = node["window"] is not None and node["window"].dtype.is_complex
    if x.dtype not in (torch.float32, torch.complex64) or node["align_to_window"] or is_complex_window:
        return None
    signal = x if x.rank == 2 else build("aten::unsqueeze", x, 0)
    if node.overload == "center" and node["center"]:
        padded = build("aten::pad", build("aten::unsqueeze", signal, 0), [length // 2] * 2, node["pad_mode"])
        signal = build("aten::squeeze.dim", padded, 0)
    is_half = not x.dtype.is_complex and node["onesided"] is not False
    transform = Transform(length, -1, _scale(node, length**-0.5, 1.0), length // 2 + 1 if is_half else length)
    frames = each(lambda part: build("aten::unfold", part, 1, length, hop), pair_of(build, signal))
    made = _transformed_frames(build, frames, _window(build, node), transform)
    sizes = [*frames.real.sizes[:2], transform.kept]

    def turned(part: Value) -> Value:
        whole = build("aten::transpose.int", build("aten::reshape", part, sizes), 1, 2)
        return whole if x.rank == 2 else build("aten::squeeze.dim", whole, 0)

    spectrum = each(turned, made)
    is_complex = node.output.dtype.is_complex
    return _joined(build, spectrum) if is_complex else build("aten::view_as_real", _joined(build, spectrum))


def _joined(build: NodeBuilder, pair: Pair) -> Value:
    return joined(build, pair.real, pair.imaginary)


def _transformed_frames(build: NodeBuilder, frames: Pair, window: Value, transform: Transform) -> Pair:
    """The transforms of (batch, frames, length), times the window, as rows."""
    shape = [frames.real.sizes[0] * frames.real.sizes[1], transform.length]
    has_imaginary = frames.imaginary is not None
    if window.elements is None or transform.matrix_elements(has_imaginary) > SMALL_MATRIX:
        windowed = each(lambda part: build("aten::mul.Tensor", part, window), frames)
        return transformed(build, each(lambda part: build("aten::reshape", part, shape), windowed), transform)

    def make(values: torch.Tensor) -> torch.Tensor:
        columns = values.repeat(1 + has_imaginary)[:, None]
        return matrix(transform, has_imaginary) * columns

    table = _of_window(window.constant, (transform, has_imaginary), make)
    rows = each(lambda part: build("aten::reshape", part, shape), frames)
    return Pair(*halves(build, build("aten::mm", beside(build, rows), table)))


@decomposes_complex("aten::istft")
def istft(build: NodeBuilder, node: Node) -> Value | None:
    """(..., frequencies, frames) to (..., samples): the frames, times the window, are added where they lie, and divided
    by the sum of the squared windows."""
    x, length, hop = node["self"], node["n_fft"], _hop(node)
    window = _window(build, node)
    if x.dtype != torch.complex64 or window.dtype.is_complex:
        return None
    count, reach = x.sizes[-1], length + hop * (x.sizes[-1] - 1)
    start = length // 2 if node["center"] else 0
    end = reach - start if node["length"] is None else start + node["length"]
    known = None if window.elements is None else _envelope(window.constant, count, hop, start, min(end, reach))
    if known is None and window.elements is not None:
        return None
    made = _signal_frames(build, node, window, hop)
    if known is None:
        envelope = _computed_envelope(build, window, count, hop, start, min(end, reach))
    else:
        envelope = Value.of_elements(known)

    def of_signal(part: Value) -> Value:
        signal = build("aten::narrow", _overlapped(build, part, hop), -1, start, min(end, reach) - start)
        signal = build("aten::div.Tensor", signal, envelope)
        signal = signal if end <= reach else build("aten::constant_pad_nd", signal, [0, end - reach], 0.0)
        return signal if x.rank == 3 else build("aten::squeeze.dim", signal, 0)

    signal = each(of_signal, made)
    return _joined(build, signal) if node["return_complex"] else signal.real


def _signal_frames(build: NodeBuilder, node: Node, window: Value, hop: int) -> Pair:
    """The frames of a signal, (batch, frames, length), with zeros after them to a multiple of the hop."""
    x, length = node["self"], node["n_fft"]
    batch, count = x.sizes[0] if x.rank == 3 else 1, x.sizes[-1]
    turned = build("aten::transpose.int", x, -2, -1)
    rows = pair_of(build, build("aten::reshape", turned, [batch * count, x.sizes[-2]]))
    scale = _scale(node, length**-0.5, 1 / length)
    beyond = -length % hop
    is_real = not node["return_complex"]  # then the first half of a spectrum is what counts, even if there is all of it
    rows = each(lambda part: build("aten::slice.Tensor", part, -1, 0, length // 2 + 1), rows) if is_real else rows
    if is_real and (length // 2 + 1) * 2 * length <= SMALL_MATRIX and window.elements is not None:
        has_imaginary = rows.imaginary is not None

        def make(values: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(half_matrix(length, scale, has_imaginary) * values, (0, beyond))

        table = _of_window(window.constant, (length, scale, has_imaginary, beyond), make)
        frames = Pair(build("aten::mm", beside(build, rows), table), None)
    else:
        if is_real:
            frames = Pair(real_from_half(build, rows, length, scale), None)
        else:
            frames = transformed(build, rows, Transform(length, 1, scale, length))
        frames = each(lambda part: build("aten::mul.Tensor", part, window), frames)
        frames = each(lambda part: build("aten::constant_pad_nd", part, [0, beyond], 0.0), frames)
    return each(lambda part: build("aten::reshape", part, [batch, count, length + beyond]), frames)


def _overlapped(build: NodeBuilder, frames: Value, hop: int) -> Value:
    """Frames, (batch, frames, length), added each a hop after the one before.

    Each is cut into pieces of a hop. Rows of the pieces of one place, each with as many zeros after them as a frame has
    pieces, are laid one after another; read as rows one shorter, each is shifted by one more than the row before.
    """
    batch, count, length = frames.sizes
    pieces = length // hop
    if pieces == 1:
        return build("aten::reshape", frames, [batch, count * hop])
    wide = count + pieces
    padded = build("aten::constant_pad_nd", frames, [0, 0, 0, pieces], 0.0)
    cut = build("aten::permute", build("aten::reshape", padded, [batch, wide, pieces, hop]), [0, 2, 1, 3])
    flat = build("aten::reshape", cut, [batch, pieces * wide, hop])
    shorter = build("aten::narrow", flat, 1, 0, pieces * (wide - 1))
    shifted = build("aten::reshape", shorter, [batch, pieces, wide - 1, hop])
    added = build("aten::sum.dim_IntList", shifted, [1], False)
    return build("aten::reshape", added, [batch, (wide - 1) * hop])


def _envelope(window: torch.Tensor, count: int, hop: int, start: int, end: int) -> torch.Tensor | None:
    """The sum of the squared windows from ``start`` to ``end``; None where torch would refuse it."""
    squares = window.double().square()
    reach = len(window) + hop * (count - 1)
    frames = squares[:, None].expand(-1, count)[None]
    added = torch.nn.functional.fold(frames, (1, reach), (1, len(window)), stride=(1, hop)).flatten()[start:end]
    return added.float() if added.numel() and float(added.min()) > _LEAST_ENVELOPE else None


def _computed_envelope(build: NodeBuilder, window: Value, count: int, hop: int, start: int, end: int) -> Value:
    """The same of a window that is computed; what torch refuses is refused."""
    length = window.sizes[0]
    padded = build("aten::constant_pad_nd", build("aten::square", window), [0, -length % hop], 0.0)
    frames = build("aten::expand", padded, [1, count, length + -length % hop])
    added = build("aten::narrow", _overlapped(build, frames, hop), -1, start, end - start)
    is_small = build("aten::le.Scalar", added, _LEAST_ENVELOPE)
    return unless(build, is_small, added)


# Windows and other arguments.


def _hop(node: Node) -> int:
    return int(node["hop_length"] or node["n_fft"] // 4)


def _scale(node: Node, normalized: float, otherwise: float) -> float:
    return normalized if node["normalized"] else otherwise


def _window(build: NodeBuilder, node: Node) -> Value:
    """The window, in the middle of a frame."""
    length, given = node["n_fft"], node["window"]
    if given is None:
        return Value.of_elements(_rectangle(node["win_length"] or length, length))
    before = (length - given.sizes[0]) // 2
    after = length - given.sizes[0] - before
    given = (
        given
        if given.dtype == torch.float32 or given.dtype.is_complex
        else build("aten::to.dtype", given, torch.float32)
    )
    return build("aten::constant_pad_nd", given, [before, after], 0.0) if before or after else given


@lru_cache(16)
def _rectangle(ones: int, length: int) -> torch.Tensor:
    before = (length - ones) // 2
    return torch.nn.functional.pad(torch.ones(ones), (before, length - ones - before))


def _of_window(window: torch.Tensor, key: tuple[Any, ...], make: Any) -> Value:
    """What ``make`` makes of a window's elements; once."""
    known = _OF_WINDOWS.setdefault(window, {})
    key = (version_of(window), *key)
    if key not in known:
        known[key] = make(window.detach().double()).float()
    return Value.of_elements(known[key])
