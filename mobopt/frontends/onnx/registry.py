"""The registry of translations, and what a translation sees of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import onnx
import torch

from mobopt.errors import BundleError, UnsupportedError
from mobopt.frontends.onnx.emitter import Emitter
from mobopt.frontends.onnx.operands import AnyOperand, Operand, SequenceOperand, Sizes
from mobopt.ir import Value

Translation = Callable[["Call"], Any]
_Function = TypeVar("_Function", bound=Translation)
MICROSOFT = "com.microsoft"
_TRANSLATIONS: dict[tuple[str, str], list[tuple[int, Translation]]] = {}


def translates(*operators: str, since: int = 1, domain: str = "") -> Callable[[_Function], _Function]:
    """Register what translates operators from a version of their domain on."""

    def register(function: _Function) -> _Function:
        for operator in operators:
            known = _TRANSLATIONS.setdefault((domain, operator), [])
            known.append((since, function))
            known.sort(key=lambda item: item[0])
        return function

    return register


def translation_of(domain: str, operator: str, version: int) -> Translation | None:
    """What translates an operator of a version, if anything does."""
    found = [function for since, function in _TRANSLATIONS.get((domain, operator), ()) if since <= version]
    return found[-1] if found else None


@dataclass
class Branches:
    """Nodes of branches that give tensors of different ranks, by the names of their outputs.

    Attributes:
        taken: the branch that is taken for granted: whether the condition holds.
        undecided: those not taken for granted, in the order in which they were met.
        errors: those taken for granted, by the text of the error in which other inputs end.
    """

    taken: Mapping[tuple[str, ...], bool] = field(default_factory=dict)
    undecided: list[tuple[str, ...]] = field(default_factory=list)
    errors: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Nested(Protocol):
    """What a translation asks of what translates the model: graphs inside of nodes, tensors, definitions."""

    environment: dict[str, AnyOperand]
    """Values by name around the node that is being translated."""
    branches: Branches

    def graph(self, graph: Any, given: Mapping[str, AnyOperand], outer: Mapping[str, AnyOperand]) -> list[AnyOperand]:
        """The outputs of a graph."""

    def constant(self, proto: Any, name: str = "") -> Operand:
        """A tensor of the file."""

    def sparse(self, proto: Any) -> Operand:
        """A sparse tensor of the file, as a dense one."""

    def expanded(self, call: Call, domain: str) -> list[AnyOperand]:
        """A node by the function that defines its operator."""


@dataclass
class Call:
    """A node whose inputs are known.

    Attributes:
        emit: appends to the graph.
        node: of the ONNX model.
        version: of the node's domain.
        inputs: None where one is left out.
        types: dtype and sizes of the outputs, as far as ONNX's inference tells.
        translator: translates what is nested.
        place: names the node in messages.
    """

    emit: Emitter
    node: Any
    version: int
    inputs: Sequence[AnyOperand]
    types: Sequence[tuple[torch.dtype | None, Sizes | None]]
    translator: Nested
    attributes: dict[str, Any]
    place: str

    # Attributes.

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute: a number, a string, a list of them, or a proto."""
        if name not in self.attributes:
            return default
        value = onnx.helper.get_attribute_value(self.attributes[name])
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, (int, float, str)) or hasattr(value, "DESCRIPTOR"):
            return value
        return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in value]

    # Operands.

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def operand(self, index: int = 0) -> Operand:
        """An input that is a tensor.

        Raises:
            BundleError: it is missing, or none.
        """
        found = self.inputs[index] if index < len(self.inputs) else None
        if not isinstance(found, Operand):
            raise BundleError(f"{self.place}: input {index} is {'missing' if found is None else 'no tensor'}")
        return found

    def sequence(self, index: int = 0) -> SequenceOperand:
        """An input that is a sequence.

        Raises:
            BundleError: it is none.
        """
        found = self.inputs[index] if index < len(self.inputs) else None
        if not isinstance(found, SequenceOperand):
            raise BundleError(f"{self.place}: input {index} is no sequence")
        return found

    def tensor(self, index: int = 0) -> Any:
        """An input as a tensor of the graph, or a constant; None if it is left out."""
        return self.operand(index).tensor(self.emit) if self.has(index) else None

    def tensors(self) -> list[Any]:
        """All inputs."""
        return [self.tensor(index) for index in range(len(self.inputs))]

    def dtype(self, index: int = 0) -> torch.dtype:
        """Of an input."""
        return self.operand(index).dtype

    def rank(self, index: int = 0) -> int:
        """Number of dimensions of an input.

        Raises:
            UnsupportedError: it is known at run time only.
        """
        rank = self.operand(index).rank
        if rank is None:
            raise self.unsupported("the number of dimensions of its input is known at run time only")
        return rank

    def axis(self, default: int = 0, index: int = 0, name: str = "axis") -> int:
        """An attribute that is a dimension of an input, counted from the front."""
        axis = int(self.get(name, default))
        if axis >= 0 and self.operand(index).rank is None:
            return axis
        rank = self.rank(index)
        if not -rank <= axis <= max(rank - 1, 0):
            raise BundleError(f"{self.place}: {name} {axis} of a tensor of {rank} dimensions")
        return axis + rank if axis < 0 else axis

    def size(self, index: int, dim: int) -> Any:
        """A size of an input: a number, or a Value."""
        operand = self.operand(index)
        known = None if operand.sizes is None else operand.sizes[dim]
        return self.emit.size(self.tensor(index), dim) if known is None else known

    def sizes(self, index: int = 0) -> list[Any]:
        """All sizes of an input."""
        return [self.size(index, dim) for dim in range(self.rank(index))]

    def known(self, index: int) -> list[Any] | None:
        """The elements of an input as plain numbers, or None if they are known at run time only."""
        numbers = self.operand(index).elements() if self.has(index) else None
        if numbers is None or any(isinstance(number, Value) for number in numbers.reshape(-1)):
            return None
        return list(numbers.reshape(-1))

    def constants(self, index: int, what: str) -> list[Any]:
        """The same.

        Raises:
            UnsupportedError: they are known at run time only.
        """
        found = self.known(index)
        if found is None:
            raise self.unsupported(f"{what} is computed at run time, and it must be constant here")
        return found

    def scalar(self, index: int) -> Any:
        """An input of one element as a number: a plain one, or a Value."""
        return self.numbers(index, 1)[0]

    def numbers(self, index: int, count: int | None = None) -> list[Any]:
        """The elements of an input as numbers: plain ones, or Values.

        Raises:
            UnsupportedError: how many they are is known at run time only.
        """
        operand = self.operand(index)
        found = operand.elements()
        if found is not None:
            return list(found.reshape(-1))
        if count is None:
            sizes = operand.known_sizes
            if sizes is None or len(sizes) > 1:
                raise self.unsupported(f"how many elements input {index} has is known at run time only")
            count = sizes[0] if sizes else 1
        tensor = self.tensor(index)
        reads = "Bool.Tensor" if operand.dtype == torch.bool else "Int.Tensor"
        reads = "Float.Tensor" if operand.dtype.is_floating_point else reads
        if operand.sizes == ():
            return [self.emit(reads, tensor)]
        flat = tensor if operand.rank == 1 else self.emit("reshape", tensor, [-1])
        return [self.emit(reads, self.emit("select.int", flat, 0, position)) for position in range(count)]

    # Results.

    def out_dtype(self, index: int = 0) -> torch.dtype:
        """The dtype of an output.

        Raises:
            UnsupportedError: nothing tells it.
        """
        dtype = self.types[index][0]
        if dtype is None:
            raise self.unsupported("the type of its output is not known")
        return dtype

    def out_rank(self, index: int = 0) -> int | None:
        """Number of dimensions of an output, if it is known."""
        sizes = self.types[index][1]
        return None if sizes is None else len(sizes)

    def wants(self, index: int) -> bool:
        """Whether an output is asked for."""
        return index < len(self.node.output) and bool(self.node.output[index])

    @property
    def inferred_sizes(self) -> Sizes | None:
        """Of the first output, as far as ONNX's inference tells."""
        return self.types[0][1] if self.types else None

    def like(self, value: Any, index: int = 0, sizes: Sizes | None = None) -> Operand:
        """A result of an input's dtype, and of its sizes unless others are given."""
        operand = self.operand(index)
        return Operand(operand.dtype, operand.sizes if sizes is None else sizes, value)

    def with_sizes(self, value: Any, sizes: Sequence[Any]) -> Any:
        """A result of the first input's dtype, with what the translation knows of its sizes, where others than plain
        numbers of at least 0 are unknown; ONNX's inference doesn't see sizes that the graph computes."""
        if isinstance(value, torch.Tensor):
            return value
        known = tuple(size if isinstance(size, int) and size >= 0 else None for size in sizes)
        inferred = self.inferred_sizes
        if inferred is not None and len(inferred) == len(known):
            known = tuple(own if size is None else size for size, own in zip(known, inferred, strict=True))
        return self.like(value, sizes=known)

    def unsupported(self, reason: str) -> UnsupportedError:
        """The error of a node that can't be translated."""
        return UnsupportedError(f"{self.place}: {reason}, which mobopt does not translate")
