"""A Program seen with one set of input shapes: a straight line of nodes on tensors of known dtypes and sizes. A model
that looks at elements becomes several, one for each stretch between two looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mobopt.ir import Graph, Value
from mobopt.ir.nests import leaves_of
from mobopt.runtimes.checkpoint import Checkpoint
from mobopt.runtimes.host_tape import Ref, Tape


@dataclass(frozen=True)
class Leaf:
    """A tensor in the result of a segment."""

    number: int
    """The place among ``graph.outputs`` of the tensor, or of the whole of its memory."""


@dataclass(frozen=True)
class Returned(Leaf):
    """A tensor that the graph returns."""


@dataclass(frozen=True, eq=False)
class Alias(Leaf):
    """A tensor of a result that shares memory with an input of the graph, or with other tensors of the result."""

    base_geometry: torch.Tensor
    geometry: torch.Tensor
    """Sizes, strides and offset of the whole and of this tensor."""

    def of(self, base: torch.Tensor) -> torch.Tensor:
        """This tensor, where ``base`` has the strides of its geometry; the whole is ``base`` itself."""
        if self.geometry is self.base_geometry:
            return base
        offset = base.storage_offset() + self.geometry.storage_offset()
        return base.as_strided(self.geometry.shape, self.geometry.stride(), offset)


@dataclass(frozen=True)
class HostLeaf:
    """A number in the result of a segment that the host computes from elements."""

    ref: Ref
    """The value of the segment's tape."""


@dataclass(frozen=True)
class DeclaredDtypes:
    """What a segment's tensors are to its caller, where its graph has float32 in place of the model's halves.

    Attributes:
        half: the type of halves.
        inputs: dtypes of the inputs.
        outputs: dtypes of the outputs; others that the graph has come after them.
    """

    half: torch.dtype
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]


@dataclass(eq=False)
class Segment:
    """A straight line, and what its outputs are to the caller. Memory is shared by :class:`Alias` leaves alone."""

    graph: Graph
    """Its inputs are the tensors given by the caller; every node makes new tensors and changes none."""
    result: Any
    """A nest whose leaves are :class:`Leaf`, :class:`HostLeaf` or plain values, in the structure that the method
    returns."""
    following: Checkpoint | None = None
    """Where the evaluation goes on when the elements of ``result``, a list of tensors, have been read; None if this is
    the end of the method."""
    carried: tuple[Returned, ...] = ()
    """What the memories hold that ``following`` carries."""
    numbers: tuple[Ref | int | float, ...] = ()
    """Numbers that ``following`` goes on with, of the tape or plain ones."""
    taken: int = 0
    """How many of the inputs, the first ones, are carried from the segment before, or hosted; the others are the
    call's."""
    tape: Tape = field(default_factory=lambda: Tape(()))
    """What the host computes first, from the elements and numbers that ``following`` of the segment before gave."""
    hosted: tuple[Ref, ...] = ()
    """The tensors of the tape that are inputs, the last of those taken."""
    kept: tuple[int, int] = (0, 0)
    """Begin and end of the answers given to it that the next segment is given again, before ``result``."""
    updates: Mapping[str, Any] = field(default_factory=dict)
    """What the attributes that the method assigns to hold after it, as nests like ``result``."""
    writes: tuple[tuple[int, int], ...] = ()
    """Numbers of the call's inputs that the method writes to, each with the number of the output that they hold after
    it."""
    declared: DeclaredDtypes | None = None
    """None where the graph has the model's dtypes."""

    @property
    def is_complete(self) -> bool:
        """Whether the method ends here."""
        return self.following is None

    @property
    def inputs(self) -> list[Value]:
        """The tensors given by the caller."""
        return self.graph.inputs

    @property
    def written(self) -> dict[Value, Value]:
        """The inputs that the method writes to, with what they hold after it."""
        inputs, outputs = self.inputs, self.graph.outputs
        return {inputs[self.taken + target]: outputs[number] for target, number in self.writes}

    def handed_on(self, values: Sequence[Any], looked: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[Any]]:
        """The answers and the numbers for the next segment.

        Args:
            values: of the tape, in this call.
            looked: the elements of ``result``.
        """
        numbers = [values[number.number] if isinstance(number, Ref) else number for number in self.numbers]
        return [*values[slice(*self.kept)], *looked], numbers

    def value_of(self, leaf: Leaf) -> Value:
        """What a leaf is, or the whole of the memory that it lies in."""
        return self.graph.outputs[leaf.number]

    @property
    def declared_halves(self) -> dict[Value, torch.dtype]:
        """The inputs and outputs that are halves to the caller and float32 in the graph."""
        if self.declared is None:
            return {}
        pairs = [*zip(self.inputs, self.declared.inputs, strict=True), *self.declared_outputs]
        half = self.declared.half
        return {value: dtype for value, dtype in pairs if dtype == half and value.dtype == torch.float32}

    @property
    def declared_outputs(self) -> list[tuple[Value, torch.dtype]]:
        """The outputs of a graph whose dtypes are not the model's, with the dtypes that the model gives them."""
        return [] if self.declared is None else [*zip(self.graph.outputs, self.declared.outputs, strict=False)]

    def values_in(self, nest: Any) -> Iterator[Value]:
        """The values of all leaves of a nest."""
        outputs = self.graph.outputs
        return (outputs[leaf.number] for leaf in leaves_of(nest, Leaf))

    def computed_outputs(self) -> tuple[Value, ...]:
        """The outputs that nodes make, each once; others are constants or inputs."""
        return tuple(dict.fromkeys(value for value in self.graph.outputs if value.producer is not None))
