"""A run of nodes computed with the CPU's kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from mobopt.errors import MoboptError, UnsupportedError
from mobopt.ir import Node, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.runtimes.cpu.kernels import describe, kernel_in_line, operator_error
from mobopt.runtimes.cpu.memory_check import check_memory


class UnforeseenResultError(UnsupportedError):
    """A call gave other sizes or dtypes than torch's meta kernel foretold, so the plan does not fit: they depend on
    elements, or that kernel is wrong."""

    def __init__(self, call: Node, result: Sequence[torch.Tensor]) -> None:
        place = f" at {call.source}" if call.source else ""
        foretold = [torch.empty(ref.sizes, dtype=ref.dtype, device="meta") for ref in call.outputs]
        super().__init__(
            f"{call.qualified_op}{place} gave {describe(list(result))}, where {describe(foretold)} was foretold"
        )
        self.op = call.qualified_op


class HostFunction:
    """Nodes in order, as a function of tensors; fused ones are taken apart."""

    def __init__(self, calls: Iterable[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        """``inputs`` and ``outputs`` say which tensors of the calls are given and wanted, in what order."""
        self._calls = [(kernel_in_line(call.qualified_op), call) for call in _flattened(calls)]
        self._inputs = inputs
        self._outputs = [_made_by(value) for value in outputs]

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs for these inputs.

        Raises:
            InputError: an operator refuses its arguments, or needs more memory than there is.
            UnforeseenResultError: a result has other sizes or another dtype than the call says.
        """
        # What the host alone keeps has the dtype that the caller gave it, of a widened line too.
        values = {value: given.to(value.dtype) for value, given in zip(self._inputs, tensors, strict=True)}

        def value_of(value: Value) -> Any:
            if value.elements is not None:
                return value.typed_elements
            return values[value] if value in values else values[_made_by(value)]

        for function, call in self._calls:
            args = map_leaves(call.args, Value, value_of)
            check_memory(call, args)
            try:
                result = list(leaves_of(function(*args), torch.Tensor))
            except MoboptError:
                raise
            except Exception as error:
                raise operator_error(call.qualified_op, call.origin, args, error) from error
            if [(t.dtype, tuple(t.shape)) for t in result] != [(ref.dtype, ref.sizes) for ref in call.outputs]:
                raise UnforeseenResultError(call, result)
            values.update(zip(call.outputs, result, strict=True))
        return tuple(values[value] for value in self._outputs)


def _flattened(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes, and in place of fused ones what they were made of."""
    for node in nodes:
        if node.blocks:
            yield from _flattened(node.blocks[0].nodes)
        else:
            yield node


def _made_by(value: Value) -> Value:
    """The value itself, or what a part makes of a fused node that makes it."""
    node = value.producer
    return _made_by(node.blocks[0].outputs[node.outputs.index(value)]) if node is not None and node.blocks else value
