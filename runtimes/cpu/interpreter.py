"""The reference interpreter: any Program, with torch's CPU kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from mobopt.errors import MoboptError
from mobopt.ir import Node, Program
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.schemas import Schema, schema_of
from mobopt.runtimes.cpu.evaluator import Evaluator
from mobopt.runtimes.cpu.kernels import is_mutating, kernel, operator_error
from mobopt.runtimes.cpu.memory_check import check_operator
from mobopt.runtimes.state import ModelState


class Interpreter(Evaluator):
    """Runs a Program on the CPU; the oracle of every test and the fallback of every operator without a GPU kernel.

    What a method does to the model's state lasts, if it returns; a call that fails leaves the state as it was. Calls of
    several threads take turns.
    """

    def __init__(self, program: Program, state: ModelState | None = None) -> None:
        """Make an interpreter.

        Args:
            program: the model; never changed.
            state: of the model; without it, one that starts with the Program's values.
        """
        super().__init__(program)
        self.model_state = ModelState(program) if state is None else state
        self._weights: dict[int, torch.Tensor] = {}
        self._lasting: dict[int, torch.Tensor] = {}
        """A tensor of each memory of the state, as it was when the call began."""
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
        with self.model_state.lock, torch.no_grad():
            self._saved.clear()
            self.state = self.model_state.working_copy(lambda tensor: tensor)
            self._lasting = {_storage(tensor): tensor for tensor in self._tensors_of_state()}
            try:
                result = self.evaluate(method, args)
                weights = set(self._saved) - set(self._lasting)
                result = map_leaves(result, torch.Tensor, lambda x: x.clone() if _storage(x) in weights else x)
            except BaseException:
                self._restore(self._saved)
                raise
            self._restore(weights)
            self.model_state.commit(self.state)
            return result

    def _tensors_of_state(self) -> list[torch.Tensor]:
        """The tensors that may stay changed after a call."""
        return list(leaves_of(list(self.state.values()), torch.Tensor))

    def _restore(self, storages: Iterable[int]) -> None:
        """Undo what was written in place."""
        for storage in storages:
            whole, values = self._saved[storage]
            whole.copy_(values)

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
        check_operator(node, function, args, is_asked=not self.is_bounded)
        try:
            return function(*args)
        except MoboptError:
            raise
        except Exception as error:
            raise operator_error(op, node.origin, args, error) from error

    def _save_weights(self, schema: Schema, args: list[Any]) -> None:
        """Keep a copy of the weights or the state that an in-place operator is about to change."""
        for argument, value in zip(schema.arguments, args, strict=False):
            if argument.is_written and isinstance(value, torch.Tensor):
                key = _storage(value)
                known = self._lasting.get(key, self._weights.get(key))
                if known is not None and key not in self._saved:
                    whole = _whole_storage(known)
                    self._saved[key] = (whole, whole.clone())


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Every element of a tensor's storage, as one row."""
    storage = tensor.detach().untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (storage.nbytes() // tensor.element_size(),))  # type: ignore[call-overload, no-any-return]
