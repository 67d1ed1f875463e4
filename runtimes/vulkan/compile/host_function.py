"""A run of calls computed with the CPU's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.errors import MoboptError, UnsupportedError
from mobopt.runtimes.call import Call, TensorRef
from mobopt.runtimes.cpu.kernels import describe, kernel, operator_error
from mobopt.runtimes.nests import leaves_of, map_leaves


class UnforeseenResultError(UnsupportedError):
    """A call gave other sizes or dtypes than torch's meta kernel foretold, so the plan does not fit: they depend on
    elements, or that kernel is wrong."""

    def __init__(self, call: Call, result: Sequence[torch.Tensor]) -> None:
        place = f" at {call.source}" if call.source else ""
        foretold = [torch.empty(ref.sizes, dtype=ref.dtype, device="meta") for ref in call.outputs]
        super().__init__(f"{call.op}{place} gave {describe(list(result))}, where {describe(foretold)} was foretold")
        self.op = call.op


class HostFunction:
    """Calls in order, as a function of tensors."""

    def __init__(self, calls: Sequence[Call], inputs: Sequence[TensorRef], outputs: Sequence[TensorRef]) -> None:
        """``inputs`` and ``outputs`` say which tensors of the calls are given and wanted, in what order."""
        self._calls = [(kernel(call.op), call) for call in calls]
        self._inputs = inputs
        self._outputs = outputs

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs for these inputs.

        Raises:
            InputError: an operator refuses its arguments.
            UnforeseenResultError: a result has other sizes or another dtype than the call says.
        """
        values: dict[TensorRef, torch.Tensor] = dict(zip(self._inputs, tensors, strict=True))

        def value_of(ref: TensorRef) -> Any:
            return values[ref] if ref.constant is None else ref.constant

        for function, call in self._calls:
            args = map_leaves(call.args, TensorRef, value_of)
            try:
                result = list(leaves_of(function(*args), torch.Tensor))
            except MoboptError:
                raise
            except Exception as error:
                raise operator_error(call.op, call.source, args, error) from error
            if [(t.dtype, tuple(t.shape)) for t in result] != [(ref.dtype, ref.sizes) for ref in call.outputs]:
                raise UnforeseenResultError(call, result)
            values.update(zip(call.outputs, result, strict=True))
        return tuple(values[ref] for ref in self._outputs)
