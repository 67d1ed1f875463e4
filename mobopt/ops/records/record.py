"""What is known of one operator, in one place: traits that hold for every call of it, and the rules of its results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from mobopt.ir.schemas import Schema


class Trait(Enum):
    """What holds for every call of an operator. Those of tensors speak of the forms of it that take or make tensors."""

    # What it does besides computing.
    WRITES = auto()
    """Changes an argument in place; from the schema."""
    TOUCHES_WORLD = auto()
    """Does something that can be seen outside of the graph, beside writing to its arguments."""
    RANDOM = auto()
    """Draws random numbers; some operators only while training."""
    UNDEFINED = auto()
    """Makes tensors whose elements may be anything."""
    COMPUTES = auto()
    """Only computes from its arguments, also where those are text, containers or numbers, or it is of the language."""
    UNCHECKED = auto()
    """Trusts its arguments, leaves the graph or reaches beyond its tensors."""

    # Memory.
    VIEW = auto()
    """A result may share memory with an argument, or be one."""
    COMPARES_OBJECTS = auto()
    """Tells whether two values are the same object, which elements do not decide."""
    HANDS_BACK = auto()
    """A :attr:`VIEW` whose schema does not say so, or does not say of what."""
    VIEWS_IN_PLACE = auto()
    """Changes how its first argument looks at its memory, and no element."""
    DISTINCT = auto()
    """All results together show each element of the first argument at most once."""
    OWN_STRIDES = auto()
    """Looks at memory by sizes and strides of its own, so it may show elements that its first argument does not."""
    COUNTS_PLACES = auto()
    """Finds elements by their places in the memory of its first argument."""
    CONSTRUCTS = auto()
    """Makes a container that holds its arguments."""
    FILLS = auto()
    """Puts what it is given into the container that is its first argument."""

    # What it reads of tensors.
    READS_METADATA_ONLY = auto()
    """Gives no tensor, and reads what a tensor is like, no element of it."""
    READS_PLACE = auto()
    """Its result depends on the device of a tensor, or on how its elements are ordered in memory."""
    READS_STRIDES = auto()
    """Its result, or whether it has one, depends on strides."""
    IGNORES_ELEMENTS = auto()
    """Gives tensors that depend on nothing of the first one but its sizes and its dtype."""
    SIZES_BY_ELEMENTS = auto()
    """The sizes of its results depend on elements."""
    VALUE_BY_ELEMENTS = auto()
    """Gives a number, a truth value or a list of them that depends on elements."""

    CHECKS_ELEMENTS = auto()
    """Ends in an error for some elements, which what it is composed of would take."""

    RANK_BY_SIZES = auto()
    """How many dimensions its results have depends on the sizes of its arguments."""

    # What it makes of the elements.
    ELEMENTWISE = auto()
    """Operands are broadcast, and an element of the result depends on the elements at its place alone."""
    KEEPS_SIZES = auto()
    """The first result has the sizes of the first argument."""
    IDENTITY = auto()
    """The result has the elements of the first argument, each at its place, in the result's dtype."""
    MOVES_ELEMENTS = auto()
    """The results' elements are elements of the arguments, or of their dtype's rounding of them: no arithmetic."""
    KEEPS_ORDER = auto()
    """The result has all elements of the first argument, in their order, in other sizes."""
    EXPANDS = auto()
    """Makes a tensor that is larger than what it is made of, so it is not computed ahead of time."""
    BY_PARTS = auto()
    """Does to the real and imaginary parts of complex numbers what it does to real numbers, each by itself. So do
    operators that move elements, and those that give elements as they are."""
    DROPOUT = auto()
    """Gives its first argument, but for training."""
    CONCATENATION = auto()
    """Joins tensors along a dimension, which its argument ``dim`` names."""
    PADDING = auto()
    """Puts what an argument ``pad`` asks for around its first argument."""
    LATE_FUNCTIONAL_FORM = auto()
    """An in-place operator whose functional form came after PyTorch 1.13, or does not exist."""
    CONVERTS_ON_WRITE = auto()
    """An in-place operator that writes numbers of any dtype; others refuse those that the tensor can't hold."""
    OTHER_ON_META = auto()
    """Its meta kernel says what other devices make, not the CPU: other statistics for a backward pass."""
    TRANSFER = auto()
    """Gives its first argument on a device that its name says."""
    CONVOLUTION = auto()
    PRODUCT = auto()
    """Products of matrices; ``contracted`` is the operand whose last dimension is summed over."""
    NORMALIZATION = auto()
    POOLING = auto()
    RECURRENT = auto()
    RESAMPLING = auto()
    SOFTMAX = auto()
    DELICATE = auto()
    """Wants float32: what rounding to half precision takes from its operands, or from its results, may change what the
    model gives by far more than that. Powers, angles, steps, long sums and differences of what is nearly the same."""
    OF_FLOATS = auto()
    """Refuses integers and truth values as its first tensor, unless it is told a dtype to compute in."""
    OF_FLOATS_OR_BYTES = auto()
    """Refuses integers other than bytes, and truth values."""
    OF_NUMBERS = auto()
    """Refuses truth values as its first tensor."""
    ALIKE = auto()
    """Refuses integers beside floats, which other operators convert."""
    DIVIDES = auto()
    """Divides by its last tensor: an element that rounding to half precision takes for zero makes infinities."""
    READS_BITS = auto()
    """Its result depends on how many bits its elements have: it shows them as another dtype, or finds neighbours."""


class Like(Enum):
    """Where a result has something from."""

    FIRST = auto()
    """The first argument."""
    OPERANDS = auto()
    """The tensors that are broadcast: the most that one of them has."""
    ROWS = auto()
    """The first argument, where ``weight`` is a matrix; one less where it is a vector."""
    PARTS = auto()
    """The tensors of the list that is the first argument."""
    WEIGHT = auto()
    """The first dimension of ``weight``."""
    TRANSPOSED_WEIGHT = auto()
    """The second dimension of ``weight``, times ``groups``."""


@dataclass(frozen=True)
class OperatorRecord:
    """What is known of an operator.

    Attributes:
        name: qualified name, ``aten::add.Tensor``.
        schema: None for an operator that neither torch nor mobopt knows, and for some of the language.
        traits: all that hold.
        rank: how many dimensions the first result has: a number; :class:`Like`; the name of the argument that is a list
            with one number for each; None if no rule is known.
        spatial: dimensions of the first argument beside channels and, perhaps, a batch; None where it isn't such.
        channels: how many elements the first result has in dimension 1, if the first argument has channels there.
        contracted: the operand of a product whose last dimension is summed over.
        functional: the operator that computes what an in-place one writes, where it isn't the name without underscore.
    """

    name: str = ""
    schema: Schema | None = None
    traits: frozenset[Trait] = frozenset()
    rank: Like | int | str | None = None
    spatial: int | None = None
    channels: Like | None = None
    contracted: str = ""
    functional: str = ""


Entries = dict[str, OperatorRecord]


def operators(
    names: str,
    *traits: Trait,
    rank: Like | int | str | None = None,
    spatial: int | None = None,
    channels: Like | None = None,
    contracted: str = "",
    functional: str = "",
    namespace: str = "aten",
) -> Entries:
    """The same record for several operators.

    Args:
        names: without namespace, between spaces. A name stands for all overloads that have no record of their own, and
            for the in-place form.
        traits: of every one of them.
        rank: see :class:`OperatorRecord`, as the others.
        spatial: beside rank.
        channels: beside rank.
        contracted: of products.
        functional: of in-place operators.
        namespace: of every one of them.
    """
    record = OperatorRecord("", None, frozenset(traits), rank, spatial, channels, contracted, functional)
    return {f"{namespace}::{name}": record for name in names.split()}


def joined(groups: Iterable[Entries]) -> Entries:
    """All records of several groups.

    Raises:
        ValueError: two of them have the same operator.
    """
    found: Entries = {}
    for group in groups:
        if twice := found.keys() & group.keys():
            raise ValueError(f"operators with two records: {', '.join(sorted(twice))}")
        found.update(group)
    return found
