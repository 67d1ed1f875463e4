"""The Segments of a model: specialised for the first sizes, then made from templates where guards allow it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mobopt.ir import Program
from mobopt.ir.dimensions import Dimension
from mobopt.ir.guards import LARGEST_SIZE, Guards
from mobopt.ir.nests import leaves_of
from mobopt.ir.types import TensorType
from mobopt.runtimes.bounds import NO_BOUNDS, InputBounds
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.symbolic import trace_symbols
from mobopt.runtimes.template import Template

_LOG = logging.getLogger("mobopt.specialize")

MAX_TEMPLATES = 4
"""For arguments of one form; a model whose guards ask for more is specialised for each size."""

MAX_FORMS = 64
"""Forms of arguments that are remembered, the last ones; numbers among the arguments are part of a form."""

Shapes = tuple[tuple[int, ...], ...]


@dataclass(eq=False)
class _Family:
    """Arguments that differ in sizes alone."""

    first: Shapes
    """The sizes that were met first."""
    varying: set[tuple[int, int]] = field(default_factory=set)
    """Inputs and dimensions of which several sizes were met."""
    templates: list[Template] = field(default_factory=list)
    attempts: int = 0


class Specializations:
    """Makes Segments of a Program without state.

    A dimension is taken for one that varies where bounds are declared for it, else once a second size of it is met.
    Then the model is traced with symbols in place of the sizes that vary, and later sizes cost no trace.
    """

    def __init__(self, program: Program, bounds: InputBounds = NO_BOUNDS) -> None:
        """Start with none.

        Args:
            program: the model.
            bounds: of its inputs' sizes.
        """
        self._program = program
        self._bounds = bounds
        self._families: dict[Any, _Family] = {}

    def segment(self, method: str, args: Sequence[Any], by_elements: Collection[str] = ()) -> Segment:
        """The Segment of a method for arguments of these shapes and dtypes.

        Args are those of :func:`mobopt.runtimes.specialize.specialize`; sizes are within their bounds.

        Raises:
            InputError: as for ``specialize``.
            UnsupportedError: the same.
        """
        shapes = _shapes(args)
        form = (method, frozenset(by_elements), _form(args))
        family = self._families.get(form)
        if family is None:
            if len(self._families) >= MAX_FORMS:
                del self._families[next(iter(self._families))]
            family = self._families[form] = _Family(shapes, self._declared(method, shapes))
            if not family.varying:
                return specialize(self._program, method, args, by_elements=by_elements)
        for template in family.templates:
            values = template.matching(shapes)
            segment = None if values is None else template.segment(values)
            if segment is not None:
                return segment
        if family.attempts < MAX_TEMPLATES:
            segment = self._with_template(family, method, args, shapes, by_elements)
            if segment is not None:
                return segment
        return specialize(self._program, method, args, by_elements=by_elements)

    def matching(
        self, method: str, args: Sequence[Any], by_elements: Collection[str] = ()
    ) -> tuple[Template, tuple[int, ...]] | None:
        """The template that makes the Segment for such arguments, with the values of its symbols; None: there is none
        so far. Args are those of :meth:`segment`."""
        family = self._families.get((method, frozenset(by_elements), _form(args)))
        if family is None:
            return None
        shapes = _shapes(args)
        found = ((template, template.matching(shapes)) for template in family.templates)
        return next(((template, values) for template, values in found if values is not None), None)

    def _declared(self, method: str, shapes: Shapes) -> set[tuple[int, int]]:
        """The inputs and dimensions that have bounds."""
        return {
            (number, dim)
            for number, shape in enumerate(shapes)
            for dim in range(len(shape))
            if self._bounds.of(method, number, dim) is not None
        }

    def _with_template(
        self, family: _Family, method: str, args: Sequence[Any], shapes: Shapes, by_elements: Collection[str]
    ) -> Segment | None:
        """The Segment, from a trace that gives a template too; None if the model can't be traced with symbols."""
        pairs = zip(family.first, shapes, strict=True)
        for number, (known, given) in enumerate(pairs):
            family.varying |= {(number, dim) for dim, size in enumerate(given) if size != known[dim]}
        guards = Guards()
        inputs = []
        for number, (tensor, shape) in enumerate(zip(leaves_of(list(args), torch.Tensor), shapes, strict=True)):
            sizes = [self._size(guards, family, method, number, dim, size) for dim, size in enumerate(shape)]
            inputs.append(TensorType(tensor.dtype, tuple(sizes)))
        if not guards.symbols:
            return None
        family.attempts += 1
        try:
            traced = trace_symbols(self._program, method, args, inputs, guards, by_elements)
        except Exception as error:  # of the model's own, which a plain trace says, or an expression where none can be
            _LOG.debug("%s can't be traced with symbols: %s", method, error)
            return None
        if not traced.segment.is_complete:  # what goes on from a look at elements knows numbers alone
            family.attempts = MAX_TEMPLATES
            return None
        if not guards.are_pinned:
            family.templates.append(Template(traced))
        return traced.segment

    def _size(self, guards: Guards, family: _Family, method: str, number: int, dim: int, size: int) -> Dimension:
        """A symbol for a size that varies; 0 and 1 stay numbers, for they often mean something else."""
        if (number, dim) not in family.varying or size < 2:
            return size
        lower, upper = self._bounds.of(method, number, dim) or (0, LARGEST_SIZE)
        origin = f"dimension {dim} of input {number}"
        return guards.symbol("", max(lower, 2), upper, example=size, origin=origin)


def _shapes(args: Sequence[Any]) -> Shapes:
    return tuple(tuple(tensor.shape) for tensor in leaves_of(list(args), torch.Tensor))


def _form(value: Any) -> Any:
    """What two sets of arguments that differ in sizes alone have in common."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim()
    if isinstance(value, (list, tuple)):
        return type(value), *map(_form, value)
    if isinstance(value, dict):
        return dict, *((key, _form(item)) for key, item in value.items())
    return type(value), value
