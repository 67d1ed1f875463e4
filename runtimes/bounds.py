"""Bounds of inputs' sizes, as a user declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeGuard

import torch

from mobopt.errors import InputError
from mobopt.ir import Program
from mobopt.ir.input_rules import InputRules
from mobopt.ir.nests import leaves_of

Range = tuple[int, int]
"""The least and the largest size."""
DeclaredBounds = Mapping[str, Sequence[Sequence[Range | None]]]
"""By method, for each tensor of the arguments in order, of each dimension the range, or None if nothing is said."""


class InputBounds:
    """What sizes the tensors among the arguments of methods may have."""

    def __init__(self, declared: DeclaredBounds) -> None:
        """Take what was declared.

        Raises:
            InputError: it has another form, or a range has no size in it.
        """
        _check_form(declared)
        self._declared = {method: [list(ranges) for ranges in tensors] for method, tensors in declared.items()}
        for method, tensors in self._declared.items():
            for number, ranges in enumerate(tensors):
                for dim, found in enumerate(ranges):
                    if found is not None and not 0 <= found[0] <= found[1]:
                        raise InputError(
                            f"the bounds of dimension {dim} of input {number} of {method}, {found[0]} to {found[1]}, "
                            "have no size in them; give the least and the largest"
                        )

    def of(self, method: str, number: int, dim: int) -> Range | None:
        """The range of a dimension of a method's ``number``-th tensor."""
        tensors = self._declared.get(method, ())
        if number >= len(tensors) or dim >= len(tensors[number]):
            return None
        return tensors[number][dim]

    def check_all(self, arguments: Mapping[str, Sequence[Any]]) -> None:
        """As :meth:`check`, for the arguments of several methods by their names."""
        for method, args in arguments.items():
            self.check(method, args)

    def check(self, method: str, args: Sequence[Any]) -> None:
        """Refuse arguments that are out of bounds.

        Args:
            method: the method's name.
            args: its arguments without self.

        Raises:
            InputError: one has another number of tensors or of dimensions than was declared, or a size is out of
                bounds; the message names the dimension, its size and the bound.
        """
        tensors = self._declared.get(method)
        if tensors is None:
            return
        given = list(leaves_of(list(args), torch.Tensor))
        if len(given) < len(tensors):
            raise InputError(f"bounds are declared for {len(tensors)} inputs of {method}, and {len(given)} were given")
        for number, (ranges, tensor) in enumerate(zip(tensors, given, strict=False)):
            if len(tensor.shape) != len(ranges):
                raise InputError(
                    f"bounds are declared for {len(ranges)} dimensions of input {number} of {method}, and a tensor of "
                    f"{len(tensor.shape)} was given"
                )
            for dim, (found, size) in enumerate(zip(ranges, tensor.shape, strict=True)):
                if found is not None and not found[0] <= size <= found[1]:
                    side, bound = ("upper", found[1]) if size > found[1] else ("lower", found[0])
                    raise InputError(f"dimension {dim} of input {number} is {size}, and its {side} bound is {bound}")


def bounds_of(program: Program) -> DeclaredBounds:
    """The ranges that a model was exported with."""
    rules: dict[str, InputRules] = program.metadata.get("input_rules", {})
    found = {method: rule.ranges() for method, rule in rules.items()}
    return {method: ranges for method, ranges in found.items() if any(any(tensor) for tensor in ranges)}


def _check_form(declared: object) -> None:
    """Refuse what isn't ranges of dimensions of inputs of methods."""
    if isinstance(declared, Mapping) and all(
        isinstance(method, str) and _is_list(tensors) and all(map(_are_ranges, tensors))
        for method, tensors in declared.items()
    ):
        return
    raise InputError(
        f"bounds are {declared!r}; by method, for each input, of each dimension the least and the largest size, or "
        'None, are expected, such as {"forward": [[(1, 16), None, None, None]]}'
    )


def _are_ranges(dimensions: object) -> bool:
    return _is_list(dimensions) and all(each is None or _is_range(each) for each in dimensions)


def _is_range(found: object) -> bool:
    return _is_list(found) and len(found) == 2 and all(isinstance(size, Integral) for size in found)


def _is_list(found: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(found, Sequence) and not isinstance(found, str)


NO_BOUNDS = InputBounds({})
