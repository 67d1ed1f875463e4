"""Inputs with symbols in their sizes: which value each symbol has, and whether sizes fit at all."""

from __future__ import annotations

from collections.abc import Sequence

from mobopt.errors import GraphError
from mobopt.ir.guards import Guards
from mobopt.ir.types import TensorType


class InputSizes:
    """Finds the values of symbols in the sizes of inputs.

    What holds for symbols by their guards holds for inputs of given sizes where :meth:`symbol_values` gives values.
    """

    def __init__(self, types: Sequence[TensorType], guards: Guards) -> None:
        """Take the types of inputs.

        Args:
            types: of all tensors that are given, in order; each symbol is alone in one of their sizes.
            guards: what the symbols belong to.

        Raises:
            GraphError: a symbol stands in no size alone.
        """
        self._guards = guards
        self._ranks = [kind.rank for kind in types]
        places: dict[str, tuple[int, int]] = {}
        self._fixed: list[tuple[int, int, int]] = []
        """Input, dimension, and the size that it has in any case."""
        derived = []
        self._derived_places: list[tuple[int, int]] = []
        for index, kind in enumerate(types):
            for dim, size in enumerate(kind.sizes):
                if isinstance(size, int):
                    self._fixed.append((index, dim, size))
                elif (name := str(size)) in guards.symbols and name not in places:
                    places[name] = index, dim
                else:
                    derived.append(size)
                    self._derived_places.append((index, dim))
        missing = [name for name in guards.symbols if name not in places]
        if missing:
            raise GraphError(f"no input has {', '.join(missing)} as a size")
        self._places = [places[name] for name in guards.symbols]
        self._derive = guards.compile(derived)

    def symbol_values(self, sizes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
        """The values of all symbols, in order, or None where the sizes or the guards ask for another specialisation.

        Args:
            sizes: of each input, in order.

        Raises:
            InputError: only the range of a symbol is in the way; the message names dimension, value and bound.
        """
        values = self._found(sizes)
        if values is None or self._guards.hold(values):
            return values
        if self._guards.broken(values) is None:
            self._guards.check(values)
        return None

    def matching_values(self, sizes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
        """As :meth:`symbol_values`, but None also where only the range of a symbol is in the way."""
        values = self._found(sizes)
        return values if values is not None and self._guards.hold(values) else None

    def _found(self, sizes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
        """The values of all symbols, if sizes are as the types say; guards and ranges are not asked."""
        if [len(item) for item in sizes] != self._ranks:
            return None
        if any(sizes[index][dim] != size for index, dim, size in self._fixed):
            return None
        values = tuple(sizes[index][dim] for index, dim in self._places)
        found = self._derive(*values)
        if any(sizes[index][dim] != size for (index, dim), size in zip(self._derived_places, found, strict=True)):
            return None
        return values
