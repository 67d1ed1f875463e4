"""Connectionist temporal classification (A. Graves et al., 2006): the likelihood of a text, however it lies in time.

Between the classes of a text stand blanks. At each step of time, a place of that line is reached from itself, from the
one before, and over a blank between classes that differ; likelihoods are logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.decompositions.refusals import unless
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes

_MOST_STEPS = 512
"""Of time; each is a few dispatches."""
_NEVER = -math.inf


@dataclass(frozen=True)
class _Texts:
    """What is looked for in some inputs."""

    line: Value
    """(texts, places): classes with blanks between them."""
    lengths: Value
    """(texts): how many classes a text has."""
    steps: Value
    """(texts): how long an input is."""


@decomposes("aten::ctc_loss.IntList", "aten::ctc_loss.Tensor")
def ctc_loss(build: NodeBuilder, node: Node) -> Value | None:
    """(steps, texts, classes) or (steps, classes), and targets, (texts, length) or one after another."""
    inputs: Value = node["log_probs"]
    targets = node["targets"]
    has_batch = inputs.rank == 3
    if inputs.dtype != torch.float32 or 0 in (inputs.numel, targets.numel) or inputs.sizes[0] > _MOST_STEPS:
        return None
    inputs = inputs if has_batch else build("aten::unsqueeze", inputs, 1)
    texts = _texts(build, node, targets if has_batch else build("aten::unsqueeze", targets, 0), inputs)
    if texts is None:
        return None
    losses = build("aten::neg", _likelihoods(build, inputs, texts, node["blank"]))
    if node["zero_infinity"]:
        losses = build("aten::masked_fill.Scalar", losses, build("aten::eq.Scalar", losses, math.inf), 0.0)
    if node["reduction"] == 2:
        return build("aten::sum", losses)
    if node["reduction"] == 1:
        counts = build("aten::to.dtype", build("aten::clamp_min", texts.lengths, 1), torch.float32)
        return build("aten::mean", build("aten::div.Tensor", losses, counts))
    return losses if has_batch else build("aten::reshape", losses, [])


def _texts(build: NodeBuilder, node: Node, targets: Value, inputs: Value) -> _Texts | None:
    time, count, _ = inputs.sizes
    lengths, steps = (_lengths(build, node[name], count) for name in ("target_lengths", "input_lengths"))
    if lengths is None or steps is None:
        return None
    classes = build("aten::to.dtype", targets, torch.int64) if targets.dtype != torch.int64 else targets
    if classes.rank == 1:
        longest = classes.sizes[0] if lengths.elements is None else int(lengths.constant.max())
        first = build("aten::sub.Tensor", build("aten::cumsum", lengths, 0), lengths)
        places = build("aten::add.Tensor", build("aten::unsqueeze", first, 1), Value.of_elements(torch.arange(longest)))
        places = build("aten::clamp", places, 0, classes.sizes[0] - 1)  # of what lies beyond a text nothing is read
        classes = build("aten::index_select", classes, 0, build("aten::reshape", places, [-1]))
        classes = build("aten::reshape", classes, [count, longest])
    longest = classes.sizes[1]
    if classes.sizes[0] != count or longest == 0:
        return None
    blanks = build("aten::full_like", classes, node["blank"])
    pairs = build("aten::reshape", build("aten::stack", [blanks, classes], -1), [count, 2 * longest])
    line = build("aten::cat", [pairs, build("aten::narrow", blanks, 1, 0, 1)], 1)
    return _Texts(line, _checked(build, lengths, longest), _checked(build, steps, time))


def _lengths(build: NodeBuilder, given: Value | list[int], count: int) -> Value | None:
    """One number for each text."""
    if not isinstance(given, Value):
        value = Value.of_elements(torch.tensor(given))
    else:
        value = given if given.dtype == torch.int64 else build("aten::to.dtype", given, torch.int64)
    value = build("aten::reshape", value, [1]) if value.rank == 0 else value
    return value if list(value.sizes) == [count] else None


def _checked(build: NodeBuilder, lengths: Value, most: int) -> Value:
    """The same; what torch refuses is refused."""
    good = build("aten::clamp", lengths, 0, most)
    return unless(build, build("aten::ne.Tensor", lengths, good), good)


def _likelihoods(build: NodeBuilder, inputs: Value, texts: _Texts, blank: int) -> Value:
    """The logarithms of the likelihoods, (texts)."""
    time, count, _ = inputs.sizes
    width = texts.line.sizes[1]
    index = build("aten::expand", build("aten::unsqueeze", texts.line, 0), [time, count, width])
    seen = build("aten::gather", inputs, 2, index)
    leaps = _leaps(build, texts.line, blank)
    reached = Value.of_elements(torch.tensor([0.0, *[_NEVER] * (width - 1)]).expand(count, -1).contiguous())
    is_over = build("aten::unsqueeze", texts.steps, 1)
    for step in range(time):
        wide = build("aten::constant_pad_nd", reached, [2, 0], _NEVER)
        ways = [build("aten::narrow", wide, 1, 2 - back, width) for back in range(3)]
        ways[2] = build("aten::add.Tensor", ways[2], leaps)
        made = build("aten::add.Tensor", _log_of_sum(build, ways), build("aten::select.int", seen, 0, step))
        reached = build("aten::where.self", build("aten::gt.Scalar", is_over, step), made, reached)
    last = build("aten::mul.Scalar", build("aten::unsqueeze", texts.lengths, 1), 2)
    ends = build("aten::gather", reached, 1, last)
    before = build("aten::gather", reached, 1, build("aten::clamp_min", build("aten::sub.Scalar", last, 1), 0))
    before = build("aten::masked_fill.Scalar", before, build("aten::eq.Scalar", last, 0), _NEVER)
    return build("aten::reshape", _log_of_sum(build, [ends, before]), [count])


def _leaps(build: NodeBuilder, line: Value, blank: int) -> Value:
    """Zero where a place may be reached from the one before the last, else minus infinity."""
    width = line.sizes[1]
    earlier = build("aten::constant_pad_nd", build("aten::narrow", line, 1, 0, width - 2), [2, 0], blank)
    is_open = build("aten::ne.Tensor", line, earlier)
    nothing = build("aten::zeros_like", is_open, torch.float32)
    return build("aten::masked_fill.Scalar", nothing, build("aten::logical_not", is_open), _NEVER)


def _log_of_sum(build: NodeBuilder, ways: list[Value]) -> Value:
    """Of the exponentials; minus infinity of such alone."""
    largest = ways[0]
    for way in ways[1:]:
        largest = build("aten::maximum", largest, way)
    base = build("aten::masked_fill.Scalar", largest, build("aten::eq.Scalar", largest, _NEVER), 0.0)
    total: Value | None = None
    for way in ways:
        part = build("aten::exp", build("aten::sub.Tensor", way, base))
        total = part if total is None else build("aten::add.Tensor", total, part)
    return build("aten::add.Tensor", build("aten::log", total), base)
