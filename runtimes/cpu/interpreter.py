"""The reference interpreter: any Program, with torch's CPU kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mobopt.errors import MoboptError
from mobopt.ir import Node, Program
from mobopt.ir.schemas import Schema, schema_of
from mobopt.runtimes.cpu.evaluator import Evaluator
from mobopt.runtimes.cpu.kernels import is_mutating, kernel, operator_error
from mobopt.runtimes.nests import map_leaves


class Interpreter(Evaluator):
    """Runs a Program on the CPU; the oracle of every test and the fallback of every operator without a GPU kernel.

    The model's weights never change: what a method does to them in place lasts until it returns. What it assigns to an
    attribute (``prim::SetAttr``) lasts.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._weights: dict[int, torch.Tensor] = {}
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def run(self, method: str, args: Sequence[Any]) -> Any:
        """What a method returns.

        Args:
            method: its name, such as ``forward``.
            args: its arguments without self: tensors, numbers, strings, None, and tuples, lists or dictionaries of
                them.

        Raises:
            InputError: wrong arguments, or the model itself raises.
            UnsupportedError: an operator that this torch lacks.
        """
        self._saved.clear()
        with torch.no_grad():
            try:
                result = self.evaluate(method, args)
                return self._detached_from_saved(result)
            finally:
                for weight, values in self._saved.values():
                    weight.copy_(values)

    def lift(self, value: Any) -> Any:
        """Containers are copied, for the model may change them; tensors are remembered as weights."""
        return map_leaves(value, torch.Tensor, self._remember)

    def _remember(self, weight: torch.Tensor) -> torch.Tensor:
        self._weights[_storage(weight)] = weight
        return weight

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor."""
        return isinstance(value, torch.Tensor)

    def operator(self, node: Node, args: list[Any]) -> Any:
        """Call the CPU kernel."""
        op = node.qualified_op
        function = kernel(op)
        if is_mutating(op):
            self._save_weights(schema_of(op), args)
        try:
            return function(*args)
        except MoboptError:
            raise
        except Exception as error:
            raise operator_error(op, node.source, args, error) from error

    def _save_weights(self, schema: Schema, args: list[Any]) -> None:
        """Keep a copy of the weights that an in-place operator is about to change."""
        for argument, value in zip(schema.arguments, args, strict=False):
            if argument.is_written and isinstance(value, torch.Tensor):
                key = _storage(value)
                if key in self._weights and key not in self._saved:
                    whole = _whole_storage(self._weights[key])
                    self._saved[key] = (whole, whole.clone())

    def _detached_from_saved(self, result: Any) -> Any:
        """The result with memory of its own where it shares that of a changed weight."""
        if not self._saved:
            return result
        return map_leaves(result, torch.Tensor, lambda item: item.clone() if _storage(item) in self._saved else item)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Every element of a tensor's storage, as one row."""
    storage = tensor.detach().untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (storage.nbytes() // tensor.element_size(),))  # type: ignore[call-overload, no-any-return]
