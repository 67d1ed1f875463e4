"""What operators cost on a phone, roughly: enough to choose between forms of a layer that give the same numbers.

An operator costs its start, its multiply-adds, and the bytes that it reads and writes; a transfer to the GPU costs
a start and its bytes, one to the CPU also waits for the GPU. Kernels take four channels at a time, so channels count
as multiples of four.

How a start weighs against arithmetic was measured with the genuine kernels on lavapipe: on 2.6 as much as 0.3 to 0.6
million multiply-adds of a 3x3 convolution, on 1.13.1, whose convolutions are four times slower, as much as 0.1 to 0.2
million. The scale is that of a phone's GPU of about 2020, and a guess. So only comparisons are meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.ir import Attribute, Node, Program, Value
from mobopt.ops.arithmetic import OperatorCall, items_of, multiply_adds, window_elements
from mobopt.ops.records import Trait, record_of
from mobopt.ops.schemas import schema_of
from mobopt.ops.targets.table import release_key
from mobopt.ops.unpacked_calls import unpacked_call

_FLOAT_BYTES = 4
_TEXEL = 4
"""Channels that a kernel computes at a time."""
_MOVES = frozenset({Trait.MOVES_ELEMENTS, Trait.READS_METADATA_ONLY})


@dataclass(frozen=True)
class Processor:
    """What it takes, in microseconds and by the microsecond."""

    start: float
    """Microseconds that every operator takes."""
    multiply_adds: float
    bytes: float


CPU = Processor(start=3, multiply_adds=4_000, bytes=10_000)
UPLOAD = Processor(start=40, multiply_adds=math.inf, bytes=2_000)
DOWNLOAD = Processor(start=200, multiply_adds=math.inf, bytes=2_000)
_GPU = Processor(start=20, multiply_adds=20_000, bytes=10_000)
_GPU_BEFORE_2_6 = Processor(start=20, multiply_adds=5_000, bytes=10_000)


def gpu(runtime: str) -> Processor:
    """A phone's GPU with the kernels of a release of PyTorch."""
    return _GPU if release_key(runtime) >= (2, 6) else _GPU_BEFORE_2_6


@dataclass(frozen=True)
class Cost:
    """What a number of operators cost."""

    operators: int = 0
    multiply_adds: int = 0
    bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.operators + other.operators,
            self.multiply_adds + other.multiply_adds,
            self.bytes + other.bytes,
        )

    def __mul__(self, count: int) -> Cost:
        return Cost(self.operators * count, self.multiply_adds * count, self.bytes * count)

    def on(self, processor: Processor) -> float:
        """Microseconds."""
        arithmetic = self.multiply_adds / processor.multiply_adds
        return self.operators * processor.start + arithmetic + self.bytes / processor.bytes


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of costs."""
    return sum(costs, Cost())


def aligned(channels: int) -> int:
    """Channels as kernels count them."""
    return -(-channels // _TEXEL) * _TEXEL


def copying(*elements: int) -> Cost:
    """One operator that reads and writes so many elements, and computes nothing."""
    return Cost(1, 0, 2 * _FLOAT_BYTES * sum(elements))


def convolution(pixels: int, outputs: int, inputs: int, kernel: int) -> Cost:
    """A dense convolution.

    Args:
        pixels: of the result, in each channel.
        outputs: channels of the result.
        inputs: channels of the input.
        kernel: elements of the kernel in each pair of channels.
    """
    pairs = aligned(outputs) * aligned(inputs)
    return Cost(1, pixels * pairs * kernel, _FLOAT_BYTES * (pixels * (outputs + inputs) + pairs * kernel))


def depthwise(pixels: int, channels: int, kernel: int) -> Cost:
    """A convolution of each channel by itself."""
    return Cost(1, pixels * aligned(channels) * kernel, _FLOAT_BYTES * 2 * pixels * channels)


def product(rows: int, inner: int, columns: int) -> Cost:
    """A product of two matrices."""
    return Cost(1, rows * inner * columns, _FLOAT_BYTES * (rows * inner + inner * columns + rows * columns))


def cost_of_node(node: Node, attributes: Mapping[str, Attribute]) -> Cost:
    """What one operator costs, as far as sizes are known; those of the interpreter cost nothing."""
    if node.op.startswith("prim::") or not any(str(value.type) == "Tensor" for value in node.outputs):
        return Cost()
    call = unpacked_call(node, attributes)
    if call is None:
        names = [argument.name for argument in schema_of(node.qualified_op).arguments]
        call = node.qualified_op, dict(zip(names, node.inputs, strict=False))
    operator, arguments = call
    tensors = [value for value in arguments.values() if isinstance(value, (Value, torch.Tensor, list))]
    moved = sum(elements(item) for value in tensors for item in items_of(value))
    made = [_sizes(value) for value in node.outputs]
    moved += sum(map(math.prod, made))
    called = OperatorCall(operator, arguments, made, _sizes)
    return Cost(1, _multiply_adds(called), _FLOAT_BYTES * moved)


def cost_of_program(program: Program) -> Cost:
    """What all methods of a Program cost together, branches and loops once."""
    return total(cost_of_node(node, program.attributes) for graph in program.methods.values() for node in graph.walk())


def _sizes(value: Any) -> tuple[int, ...]:
    """Sizes of a tensor, in the example where they vary; of one that is not known, as if it had no element."""
    if isinstance(value, Value) and value.is_constant:
        value = value.constant
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if not isinstance(value, Value) or value.facts.dimensions is None or value.facts.seen_sizes is None:
        return (0,)
    return value.facts.seen_sizes


def elements(value: Any) -> int:
    """How many elements a tensor has; 0 if that is not known."""
    return math.prod(_sizes(value))


def _multiply_adds(call: OperatorCall) -> int:
    """Of operators that sum nothing, one for each element that they compute."""
    found = multiply_adds(call)
    if found is None:
        found = window_elements(call)
    if found is None:
        found = 0 if _MOVES & record_of(call.operator).traits else call.elements_made
    return found
