"""Which float32 tensors of a plan lie in memory as halves: ``precision="fp16"``, or ``"bf16"``.

Nothing of it changes what is computed: kernels widen what they load and round what they store, so sums and all that a
fusion keeps in registers stay float32. Products whose operands are both float16, or both bfloat16, are computed by
matrix units where the device has them for these: products are exact there, and their sums float32. What is chosen are
storages, once, after fusion: of the result of each node, and of the weights that it reads. A node keeps float32 where
rounding would harm:

- results that the model returns, unless products read them as well (keys and values that a cache keeps: as operands
  they count as halves anyway), in bf16 if matrix units multiply it; those that the CPU reads, and those that are made
  of numbers alone;
- what :attr:`~mobopt.ops.records.Trait.DELICATE` operators read and give, and what becomes integers or truth values;
- what divides, as it is: the epsilon that keeps a sum from being zero is often too small for float16;
- what the user's patterns name;
- values that were too large or too small for float16 on inputs that were seen
  (:class:`~mobopt.runtimes.half_ranges.ValueRanges`); bfloat16 has the range of float32, and an eighth of the bits.

Tensors that are views of each other, or that one operator puts together, get the same elements.

An input that the host writes before each call is written as halves if it is an image that only convolutions read, whose
matrix units would round it anyway: half of its bytes go to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from mobopt.ir import Graph, Node, Origin, Value
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.half_ranges import HALVES, ValueRanges, fits_half, matches
from mobopt.runtimes.vulkan.engine.stream import Dispatch, storages
from mobopt.runtimes.vulkan.engine.tensor import Storage, StorageKind
from mobopt.runtimes.vulkan.kernels.attention_matrix import MATRIX_ATTENTION, SPLIT_ATTENTION
from mobopt.runtimes.vulkan.kernels.epilogue import PRODUCT, parts_of
from mobopt.runtimes.vulkan.kernels.fragment_kernels import FRAGMENT_SHADER
from mobopt.runtimes.vulkan.kernels.matrix_kernels import MATRIX_SHADER, SPLIT_SHADER
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.kernels.product_scaling import ScaledInput

_EMPTY: Mapping[Any, Any] = MappingProxyType({})
_LEAST_WEIGHTS = 1024
"""Elements of a constant that is worth being halved where it is no weight of a product."""


@dataclass(frozen=True)
class KeptNode:
    """A node whose result stays float32, and why."""

    op: str
    reason: str
    source: Origin

    def __str__(self) -> str:
        return f"{self.op}{f' at {self.source}' if self.source else ''}: {self.reason}"


@dataclass(frozen=True)
class HalfReport:
    """What a precision made of a plan.

    Attributes:
        precision: ``fp16`` or ``bf16``.
        halves: how many nodes store their results as halves.
        kept: those whose results are float32.
        result_bytes: of all results together, in between and returned.
        result_bytes_fp32: what they would be in float32.
        weight_bytes: of all constants.
        weight_bytes_fp32: likewise.
        products: dispatches of matrix products, convolutions and attention, those of sums of parts aside.
        matrix_products: those of them that matrix units compute in halves.
    """

    precision: str
    halves: int
    kept: tuple[KeptNode, ...]
    result_bytes: int
    result_bytes_fp32: int
    weight_bytes: int
    weight_bytes_fp32: int
    products: int
    matrix_products: int

    def __add__(self, other: HalfReport) -> HalfReport:
        """Of both plans."""
        return HalfReport(
            self.precision,
            self.halves + other.halves,
            self.kept + other.kept,
            self.result_bytes + other.result_bytes,
            self.result_bytes_fp32 + other.result_bytes_fp32,
            self.weight_bytes + other.weight_bytes,
            self.weight_bytes_fp32 + other.weight_bytes_fp32,
            self.products + other.products,
            self.matrix_products + other.matrix_products,
        )

    @property
    def pinned(self) -> tuple[KeptNode, ...]:
        """Nodes that are float32 for what their values were, or for what the user said."""
        return tuple(node for node in self.kept if node.reason not in _OF_THE_GRAPH)

    def data(self) -> dict[str, Any]:
        """What JSON has of it."""
        return {
            "precision": self.precision,
            "half_nodes": self.halves,
            "fp32_nodes": [{"op": node.op, "reason": node.reason, "source": str(node.source)} for node in self.kept],
            "result_bytes": self.result_bytes,
            "result_bytes_fp32": self.result_bytes_fp32,
            "weight_bytes": self.weight_bytes,
            "weight_bytes_fp32": self.weight_bytes_fp32,
            "products": self.products,
            "matrix_products": self.matrix_products,
        }

    def __str__(self) -> str:
        """One line, and one for each node that values or the user keep in float32."""
        results = f"results {_megabytes(self.result_bytes)} of {_megabytes(self.result_bytes_fp32)} MB"
        weights = f"weights {_megabytes(self.weight_bytes)} of {_megabytes(self.weight_bytes_fp32)} MB"
        units = f"{self.matrix_products} of {self.products} products by matrix units"
        first = f"{self.halves} nodes {self.precision}, {len(self.kept)} fp32; {results}, {weights}; {units}"
        return "\n".join([first, *(f"  fp32: {node}" for node in self.pinned)])


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.2f}"


@dataclass(frozen=True)
class Halved:
    """What lies as halves in one plan.

    Attributes:
        precision: what halves are.
        values: results, constants and inputs of the graph.
        nodes: those whose weights are packed as halves.
        kept: nodes whose results are float32.
        roundable_inputs: float32 images that halves hold well, and nodes read whose weights are halves.
    """

    precision: str = "fp16"
    values: frozenset[Value] = frozenset()
    nodes: frozenset[Node] = frozenset()
    kept: tuple[KeptNode, ...] = ()
    roundable_inputs: frozenset[Value] = frozenset()

    @property
    def elements(self) -> torch.dtype:
        """The type of halves."""
        return HALVES[self.precision]

    def report(self, plan: Plan) -> HalfReport:
        """What became of it in a plan, when all is lowered."""
        halves = {node for value in self.values if (node := value.producer) is not None}
        weights, results = _Bytes(self.elements), _Bytes(self.elements)
        used = (storage for operation in plan.stream.operations for storage, _, _ in storages(operation))
        for storage in dict.fromkeys(used):
            (weights if storage.kind is StorageKind.CONSTANT else results).count(storage)
        shaders = [operation.shader for operation in plan.stream.operations if isinstance(operation, Dispatch)]
        products = [name for name in shaders if name.startswith(("product_", "attention")) and name != "product_sum"]
        by_units = [name for name in products if name.startswith((MATRIX_SHADER, FRAGMENT_SHADER, MATRIX_ATTENTION))]
        matrix_products = sum(not name.startswith((SPLIT_SHADER, SPLIT_ATTENTION)) for name in by_units)
        return HalfReport(
            precision=self.precision,
            halves=len(halves),
            kept=self.kept,
            result_bytes=results.held,
            result_bytes_fp32=results.wide,
            weight_bytes=weights.held,
            weight_bytes_fp32=weights.wide,
            products=len(products),
            matrix_products=matrix_products,
        )


@dataclass
class _Bytes:
    half: torch.dtype
    held: int = 0
    wide: int = 0

    def count(self, storage: Storage) -> None:
        """Add what a storage takes, and what it would in float32."""
        self.held += storage.nbytes
        self.wide += storage.nbytes * (2 if storage.elements == self.half else 1)


NOTHING_HALVED = Halved()


class Halving:
    """The choice for one straight line, from before its nodes are taken apart to after they are fused.

    Attributes:
        observed: whether a value is returned only to be seen, which does not make it float32.
        stays_single: whether a node keeps float32 for a bisection.
    """

    def __init__(
        self,
        precision: str,
        patterns: Sequence[str],
        ranges: ValueRanges,
        inputs: Callable[[], Sequence[torch.Tensor]],
        from_host: Collection[int] = (),
    ) -> None:
        """Begin.

        Args:
            precision: ``fp16`` or ``bf16``.
            patterns: of the nodes that keep float32.
            ranges: what nodes of the model were seen to make.
            inputs: gives the line's inputs, of the call for which it is planned.
            from_host: numbers of those that the host writes for each call.
        """
        self.observed: Callable[[Value], bool] = lambda value: False
        self.stays_single: Callable[[Node], bool] = lambda node: False
        self._precision, self._patterns = precision, patterns
        self._ranges = ranges
        self._inputs = inputs
        self._from_host = from_host
        self._delicate: frozenset[object] = frozenset()
        """What in the model delicate nodes come from: where these are taken apart, all their parts are delicate."""

    @property
    def elements(self) -> torch.dtype:
        """The type of halves."""
        return HALVES[self._precision]

    def begin(self, graph: Graph) -> None:
        """Look at the line before nodes are taken apart."""
        delicate = (node for node in graph.block.nodes if has_trait(node.qualified_op, Trait.DELICATE))
        self._delicate = frozenset(node.origin.nodes for node in delicate if node.origin.nodes)

    def watch(self, graph: Graph) -> None:
        """See what nodes make of the inputs, after they were taken apart.

        Raises:
            InputError: an operator refuses its operands.
        """
        if self._precision == "fp16":
            dtypes = [value.dtype for value in graph.inputs]
            self._ranges.watch(graph, lambda: [x.to(dtype) for x, dtype in zip(self._inputs(), dtypes, strict=True)])

    def choose(
        self,
        graph: Graph,
        on_host: Container[Node],
        in_place: Mapping[Value, Value] = _EMPTY,
        has_units: bool = False,
        declared: Mapping[Value, torch.dtype] = _EMPTY,
    ) -> Halved:
        """What lies as halves, of a line whose nodes are fused.

        Args:
            graph: the line.
            on_host: nodes that run on the CPU.
            in_place: values that come to lie in inputs.
            has_units: whether products of these halves are computed by matrix units, which round images and what the
                model returns as well.
            declared: inputs and outputs that are halves to the caller.
        """
        choice = Choice(self._precision)
        forced = lying_as_declared(graph, declared, in_place, self.elements)
        for value in in_place:
            if value not in forced:
                choice.keep(value, IN_PLACE)
        for value in graph.outputs:
            if not self.observed(value) and declared.get(value) != self.elements:
                choice.keep(value, RETURNED)
        for node in graph.block.nodes:
            self._consider(choice, node, node in on_host)
        images = choice.images(graph)
        given = dict(zip(graph.inputs, self._inputs(), strict=True)) if images else {}
        fitting = frozenset(value for value in images if fits_half(given[value], self.elements))
        halved = choice.halved(graph, self._precision == "fp16" or has_units)
        written = {value for number, value in enumerate(graph.inputs) if number in self._from_host}
        rounded = {value for value in fitting & written if has_units and choice.is_image_alone(value)}
        return replace(halved, values=halved.values | rounded | forced, roundable_inputs=fitting)

    def names(self, node: Node) -> bool:
        """Whether the user, or a bisection, wants float32 of a node."""
        return self._named([node]) is not None

    def is_unfit(self, node: Node) -> bool:
        """Whether what a node makes is not to become halves, by its values or its operator."""
        return self._unwell([node], [node]) is not None

    def _consider(self, choice: Choice, node: Node, is_on_host: bool) -> None:
        """What one node asks of its operands and results."""
        parts = nodes_of(node)
        inner = {value for part in parts for value in part.outputs}
        read = {value for part in parts for value in part.inputs} - inner
        if is_on_host:
            for value in (*read, *node.outputs):
                choice.keep(value, ON_CPU)
            return
        reason = self._named(parts) or self._unwell(parts, _ends(node))
        if reason is None:
            choice.nodes.append(node)
            choice.multiply(read & _multiplied(parts))
        ends = _ends(node)
        is_delicate = any(_is_delicate(end) and not has_trait(end.qualified_op, Trait.SOFTMAX) for end in ends)
        if reason is None and is_delicate:
            reason = DELICATE
        if reason is None and not any(value.dtype.is_floating_point for value in read):
            reason = OF_NUMBERS
        for value in node.outputs:
            choice.make(value, node)
            if reason is not None:
                choice.keep(value, reason)
        for value in _read_delicately(parts, inner):
            choice.keep(value, READ_DELICATELY)
        for value in _divisors(parts) - inner:
            choice.keep(value, DIVIDES)
        for value in scales_of(node):
            choice.keep(value, SCALES)
        if len(parts) == 1 and moves(parts[0]):
            choice.tie([*(value for value in read if not value.is_constant), *node.outputs])

    def _named(self, parts: Sequence[Node]) -> str | None:
        """Why the user, or a bisection, wants float32 of a node; None if not."""
        if any(map(self.stays_single, parts)):
            return BISECTED
        for pattern in self._patterns:
            if any(matches(pattern, part) for part in parts):
                return f"{pattern!r} names it"
        return None

    def _unwell(self, parts: Sequence[Node], ends: Sequence[Node]) -> str | None:
        """Why what a node makes, by those of its parts that are ``ends``, does not become halves."""
        if any(part.origin.nodes in self._delicate and not _is_delicate(part) for part in parts):
            return DELICATE
        reasons = map(self._ranges.why_not, ends) if self._precision == "fp16" else ()
        return next((reason for reason in reasons if reason is not None), None)


def lying_as_declared(
    graph: Graph, declared: Mapping[Value, torch.dtype], in_place: Mapping[Value, Value], half: torch.dtype
) -> set[Value]:
    """What lies as halves of a type because an input or a constant does, in whose memory it is.

    Args:
        graph: a line whose nodes are fused.
        declared: inputs and outputs that are halves to the caller.
        in_place: values that come to lie in inputs, and these.
        half: the type.
    """
    forced = {value for value in graph.inputs if declared.get(value) == half}
    forced |= {value for value, target in in_place.items() if target in forced}
    for node in graph.block.nodes:
        source = node.args[0] if node.args and has_trait(node.qualified_op, Trait.VIEW) else None
        if isinstance(source, Value) and (source in forced or _is_half_constant(source, half)):
            forced.update(value for value in node.outputs if value.dtype == torch.float32)
    return forced


def _is_half_constant(value: Value, half: torch.dtype) -> bool:
    """Whether a float32 constant has elements that are halves."""
    return value.elements is not None and value.dtype == torch.float32 and value.elements.dtype == half


RETURNED = "the model returns it, or a tensor that is part of it"
ON_CPU = "the CPU reads or makes it"
IN_PLACE = "it is a part of the state, which is written to where it lies"
DELICATE = "its operator is delicate"
READ_DELICATELY = "a delicate operator reads it"
DIVIDES = "something is divided by it"
SCALES = "a product scales its input by it, in float32"
BISECTED = "a bisection keeps it"
OF_NUMBERS = "it is made of numbers alone"
DECLARED = "it is float32 in the model"
_OF_THE_GRAPH = (RETURNED, ON_CPU, IN_PLACE, DELICATE, READ_DELICATELY, DIVIDES, SCALES, OF_NUMBERS, DECLARED)


@dataclass
class Choice:
    """The choice on the way: values that must be alike, and those that stay float32."""

    precision: str
    nodes: list[Node] = field(default_factory=list)
    """Whose weights may be halves."""
    _makers: dict[Value, Node] = field(default_factory=dict)
    _reasons: dict[Value, str] = field(default_factory=dict)
    _unfit: set[Value] = field(default_factory=set)
    """Those that stay float32 for another reason than that the model returns them, or for another as well."""
    _multiplied: set[Value] = field(default_factory=set)
    """Operands of products and attention, which matrix units take as halves."""
    _tied: dict[Value, Value] = field(default_factory=dict)

    def make(self, value: Value, node: Node) -> None:
        """A node makes a value on the device."""
        if value.dtype == torch.float32:
            self._makers[value] = node

    def keep(self, value: Value, reason: str) -> None:
        """A value stays float32."""
        self._reasons.setdefault(value, reason)
        if reason != RETURNED:
            self._unfit.add(value)

    def multiply(self, values: Iterable[Value]) -> None:
        """Values are operands of a product."""
        self._multiplied.update(values)

    def tie(self, values: Sequence[Value]) -> None:
        """Values become halves together; inputs of the line, which are what they are, aside."""
        made = [value for value in values if value in self._makers]
        for value in made[1:]:
            first, other = self._root(made[0]), self._root(value)
            if first is not other:
                self._tied[other] = first

    def images(self, graph: Graph) -> list[Value]:
        """Inputs of the line that a node reads as images whose weights may be halves."""
        nodes = self._weighted()
        images = (value for value in graph.inputs if value.dtype == torch.float32 and len(value.sizes) == 4)
        return [value for value in images if any(user in nodes for user, _ in value.uses)]

    def is_image_alone(self, value: Value) -> bool:
        """Whether nothing reads an input but convolutions whose weights may be halves, as their image."""
        nodes = self._weighted()
        users = [user for user, _ in value.uses]
        are_convolutions = all(user in nodes and has_trait(user.qualified_op, Trait.CONVOLUTION) for user in users)
        return are_convolutions and not any(value in user.inputs[1:] for user in users)

    def _weighted(self) -> set[Node]:
        """The parts of nodes whose weights may be halves."""
        return {part for node in self.nodes for part in nodes_of(node)}

    def _root(self, value: Value) -> Value:
        while value in self._tied:
            value = self._tied[value]
        return value

    def halved(self, graph: Graph, are_operands_halves: bool) -> Halved:
        """The end of it; ``are_operands_halves`` says that products round what they read, whatever it is."""
        reasons: dict[Value, str] = {}
        multiplied = set(map(self._root, self._multiplied)) if are_operands_halves else set()
        unfit = {self._root(value) for value in self._unfit}
        for value, reason in self._reasons.items():
            root = self._root(value)
            if (value in self._makers or value.is_constant) and (root in unfit or root not in multiplied):
                reasons.setdefault(root, reason)
        values = {value for value in self._makers if self._root(value) not in reasons}
        kept = {
            node: KeptNode(nodes_of(node)[0].qualified_op, reasons[self._root(value)], node.origin)
            for value, node in self._makers.items()
            if value not in values
        }
        constants = set(_constants(graph, self.nodes, reasons, HALVES[self.precision]))
        return Halved(
            self.precision,
            frozenset(values | constants),
            frozenset(self.nodes),
            tuple(kept.values()),
        )


def _constants(graph: Graph, nodes: Sequence[Node], kept: Mapping[Value, str], half: torch.dtype) -> Iterator[Value]:
    """Large constants that only nodes read whose weights may be halves."""
    halving = set(nodes)
    readers: dict[Value, list[Node]] = {}
    for node in graph.block.nodes:
        parts = [part for part in nodes_of(node) if not has_trait(part.qualified_op, Trait.EXPANDS)]
        for value in (value for part in parts for value in part.inputs):
            if value.elements is not None and value.dtype == torch.float32:
                readers.setdefault(value, []).append(node)
    for value, users in readers.items():
        if value.rank < 2 or value.numel < _LEAST_WEIGHTS or value in kept:
            continue
        if halving.issuperset(users) and value.elements is not None and fits_half(value.elements, half):
            yield value


def nodes_of(node: Node) -> list[Node]:
    """What a fused node is made of, else the node."""
    return list(node.blocks[0].nodes) if node.blocks else [node]


def _ends(node: Node) -> list[Node]:
    """The parts of a node that make what it gives."""
    if not node.blocks:
        return [node]
    return [value.producer for value in node.blocks[0].outputs if value.producer is not None]


def _multiplied(parts: Sequence[Node]) -> set[Value]:
    """What products and attention among the parts of a node read."""
    products = (part for part in parts if any(has_trait(part.qualified_op, trait) for trait in _PRODUCTS))
    operands = (value for part in products for value in part.args[:3] if isinstance(value, Value))
    return {value for value in operands if not value.is_constant}


def scales_of(node: Node) -> list[Value]:
    """The numbers by which a product scales its input, which its kernels read as float32: a few of each image."""
    found = ScaledInput.folded_into(parts_of(node)[0]) if node.op == PRODUCT else None
    return [] if found is None else [value for value in (found.factor, found.shift) if value is not None]


def _is_delicate(node: Node) -> bool:
    """Whether an operator is, or makes numbers or truth values of floats: where rounding makes two elements equal, it
    finds another one."""
    if has_trait(node.qualified_op, Trait.DELICATE):
        return True
    reads_floats = any(value.dtype.is_floating_point for value in node.inputs)
    return reads_floats and not all(value.dtype.is_floating_point for value in node.outputs)


def _read_delicately(parts: Sequence[Node], inner: Container[Value]) -> set[Value]:
    """The operands from outside that come to a delicate part, as they are or by way of others."""
    behind: dict[Value, set[Value]] = {}
    found: set[Value] = set()
    for part in parts:
        sources: set[Value] = set()
        for value in part.inputs:
            sources |= behind[value] if value in inner else {value}
        for value in part.outputs:
            behind[value] = sources
        if _is_delicate(part):
            found |= sources
    return found


def _divisors(parts: Sequence[Node]) -> set[Value]:
    """What parts of a node divide by."""
    divisions = (part for part in parts if has_trait(part.qualified_op, Trait.DIVIDES))
    tensors = ([value for value in part.args if isinstance(value, Value)] for part in divisions)
    return {values[-1] for values in tensors if len(values) > 1}


_PRODUCTS = (Trait.PRODUCT, Trait.CONVOLUTION)


def moves(node: Node) -> bool:
    """Whether a node gives elements of its operands, and computes nothing."""
    traits = (Trait.MOVES_ELEMENTS, Trait.VIEW, Trait.DROPOUT, Trait.PADDING)
    return any(has_trait(node.qualified_op, trait) for trait in traits)
