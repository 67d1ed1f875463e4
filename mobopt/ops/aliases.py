"""Which values of a graph may share memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from functools import cached_property, partial
from weakref import WeakKeyDictionary

from mobopt.ir import Block, Graph, Node, Value
from mobopt.ir.snapshot import Snapshot
from mobopt.ir.types import ANY, TENSOR, ClassType, DictType, ListType, OptionalType, SimpleType, TupleType, Type
from mobopt.ops.effects import schema_of_node, written_inputs
from mobopt.ops.records import Trait, has_trait

_INPUTS = "inputs"

SHARED_MEMORY = "memory"
"""On a ``prim::GetAttr``: the attribute whose memory the one that is read lies in."""

Place = Hashable
"""Where a value lies: what made it, an attribute, a constant, or the caller."""


_NOWHERE: frozenset[Place] = frozenset()
_KEPT: WeakKeyDictionary[Graph, tuple[Snapshot, _Flows]] = WeakKeyDictionary()
"""Where values of a graph lay when that was asked last, and what the graph was then."""


def attribute_place(name: str) -> Place:
    """Where an attribute of the model lies."""
    return "attribute", name


def constant_place(value: Value) -> Place:
    """Where a constant lies."""
    return "constant", id(value.constant)


class Aliases:
    """The places that each value of a graph may lie in, and those of what it holds if it is a container.

    Without regard to the order of nodes, so it may say yes too often. Inputs of the method, attributes and constants
    are external: what is written there can be seen by the caller, or by the next call.

    Places are found when this is made. Only where no node writes to anything, so that most questions need none, are
    they found when first asked for.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        written = {node: values for node in graph.walk() if (values := written_inputs(node))}
        self._writing: dict[Node, set[Place]] = {
            node: set().union(*map(self._flows.places, values)) for node, values in written.items()
        }
        """Places that each writing node writes to."""

    @cached_property
    def _flows(self) -> _Flows:
        return _flows_of(self._graph)

    def may_alias(self, left: Value, right: Value) -> bool:
        """Whether the two, or what they hold, may share memory."""
        return not self._flows.all_places(left).isdisjoint(self._flows.all_places(right))

    def members(self, value: Value) -> list[Value]:
        """Every value in which a change of this one may be seen, itself included."""
        found = {item for place in self._flows.places(value) for item in self._flows.seen_in[place]}
        return sorted(found, key=self._flows.order.__getitem__)

    def is_external(self, value: Value) -> bool:
        """Whether a change of it may be seen after the call."""
        return not self._flows.places(value).isdisjoint(self._flows.external)

    def is_of_model(self, value: Value) -> bool:
        """Whether it may lie in an attribute or a constant, which the next call sees too."""
        return not self._flows.places(value).isdisjoint(self._flows.external - {_INPUTS})

    def outlives(self, value: Value) -> bool:
        """Whether the caller or the next call may see memory that the value's node makes: what is returned, assigned,
        or put into such a container."""
        return value in self._flows.outliving

    def writers(self, value: Value) -> list[Node]:
        """Nodes whose writes may be seen in it."""
        if not self._writing:
            return []
        places = self._flows.all_places(value)
        return [node for node in self._writing if not places.isdisjoint(self._writing[node])]

    def assigned_names(self) -> Iterable[str]:
        """Names of the attributes that are assigned to."""
        return self._flows.assigned

    def external_writes(self) -> set[Place]:
        """The attributes and constants that nodes may write to."""
        return _of_model(place for places in self._writing.values() for place in places)

    def external_groups(self) -> list[set[Place]]:
        """The attributes and constants that may become the same memory: one value may be any of them, or one is given
        to the other."""
        flows = self._flows
        groups = (_of_model(flows.all_places(value)) for value in flows.order if _of_model(flows.places(value)))
        given = (
            {attribute_place(name)} | _of_model(flows.all_places(value))
            for name, values in flows.assigned.items()
            for value in values
        )
        return [group for group in (*groups, *given) if len(group) > 1]

    def fillers(self, container: Value) -> list[Node]:
        """Nodes that put something into a container, or take something out, by any of its names."""
        own = self._flows.places(container)
        return [node for node in self._writing if not own.isdisjoint(self._writing[node])]


def _of_model(places: Iterable[Place]) -> set[Place]:
    """The attributes and constants among places."""
    return {place for place in places if isinstance(place, tuple)}


def _flows_of(graph: Graph) -> _Flows:
    """Where the values of a graph lie; what was found of it before, while it is as it was then."""
    now = Snapshot(graph)
    before, flows = _KEPT.get(graph, (None, None))
    if before is None or flows is None or not before.is_same(now):
        flows = _Flows(graph)
        _KEPT[graph] = now, flows
    return flows


class _Flows:
    """The places of a graph's values, followed from node to node until nothing is added."""

    def __init__(self, graph: Graph) -> None:
        self._own: dict[Value, set[Place]] = {}
        self._held: dict[Value, set[Place]] = {}
        self._containers: list[Value] = []
        self._containers_at: dict[Place, dict[Value, None]] = {}
        """Those that may lie in each place."""
        self._graph_outputs = graph.outputs
        self.external: set[Place] = {_INPUTS}
        self.assigned: dict[str, list[Value]] = {}
        """Values given to each attribute."""
        self._grown: set[Value] = set()
        """Values that have got more places since flows were chosen."""
        nodes = list(graph.walk())
        for value in graph.inputs[1:]:
            self._add(value, {_INPUTS}, {_INPUTS})
        for block in [graph.block, *(block for node in nodes for block in node.blocks)]:
            self._constants(block)
        flows = [(node, flow) for node in nodes if (flow := self._flow_of(node)) is not None]
        readers = _readers([node for node, _ in flows])
        waiting: Sequence[int] = range(len(flows))
        while waiting:
            self._grown.clear()
            for number in waiting:
                flows[number][1]()
            waiting = sorted({number for value in self._beside_grown() for number in readers.get(value, ())})

    def _beside_grown(self) -> set[Value]:
        """The values that have grown, and the containers that may be the same as one of them."""
        places = {place for value in self._grown if _is_container(value.type) for place in self._own[value]}
        return self._grown.union(*(self._containers_at.get(place, ()) for place in places))

    @cached_property
    def seen_in(self) -> dict[Place, list[Value]]:
        """The values that may lie in each place, or hold what does."""
        seen: dict[Place, list[Value]] = {}
        for value in self._own:
            for place in self.all_places(value):
                seen.setdefault(place, []).append(value)
        return seen

    @cached_property
    def order(self) -> dict[Value, int]:
        """The values that lie anywhere, with the order in which they were met."""
        return {value: index for index, value in enumerate(self._own)}

    @cached_property
    def outliving(self) -> set[Place]:
        """What the caller or the next call may see."""
        return self.external.union(
            *map(self.all_places, self._graph_outputs),
            *(self._held[value] for value in self._containers if not self._own[value].isdisjoint(self.external)),
        )

    def places(self, value: Value) -> Set[Place]:
        """Where a value may lie."""
        return self._own.get(value, _NOWHERE)

    def all_places(self, value: Value) -> Set[Place]:
        """Where a value, or what it holds, may lie."""
        held = self._held_places(value)
        return self.places(value) | held if held else self.places(value)

    def _held_places(self, value: Value) -> Set[Place]:
        return self._held.get(value, _NOWHERE)

    def _add(self, value: Value, own: Set[Place], held: Set[Place]) -> None:
        """A value may lie, and hold what lies, in these places too."""
        if not _is_shared(value.type):
            return
        held = held if _is_container(value.type) else set()
        if value not in self._own and _is_container(value.type):
            self._containers.append(value)
        mine, holding = self._own.setdefault(value, set()), self._held.setdefault(value, set())
        if own <= mine and held <= holding:
            return
        if _is_container(value.type):
            for place in own - mine:
                self._containers_at.setdefault(place, {})[value] = None
        mine |= own
        holding |= held
        self._grown.add(value)

    def _constants(self, block: Block) -> None:
        for node in [*block.nodes, block.returns]:
            for value in node.inputs:
                if not value.is_constant or value in self._own:
                    continue
                if value.constant is not None and _is_shared(value.type):
                    place = constant_place(value)
                    self.external.add(place)
                    self._add(value, {place}, {place})

    def _flow_of(self, node: Node) -> Callable[[], None] | None:
        """What a node lets flow, to be called until nothing grows; None if its outputs share with nothing."""
        if node.op in _OWN_FLOWS:
            return partial(_OWN_FLOWS[node.op], self, node)
        for output in node.outputs:
            self._add(output, {output}, set())
        sources = [value for value in aliased_inputs(node) if _is_shared(value.type)]
        grown = [value for value in written_inputs(node) if _is_container(value.type)]
        return partial(self._operator, node, sources, grown) if grown or (sources and node.outputs) else None

    def _if(self, node: Node) -> None:
        for block in node.blocks:
            self._assign(node.outputs, block.outputs)

    def _loop(self, node: Node) -> None:
        body = node.blocks[0]
        for sources in (node.inputs[2:], body.outputs[1:]):
            self._assign(node.outputs, sources)
            self._assign(body.parameters[1:], sources)

    def _assign(self, targets: Iterable[Value], sources: Iterable[Value]) -> None:
        for target, source in zip(targets, sources, strict=True):
            self._add(target, self.places(source), self._held_places(source))

    def _read_attribute(self, node: Node) -> None:
        place = attribute_place(node.attributes.get(SHARED_MEMORY, node.attributes["name"]))
        self.external.add(place)
        self._add(node.output, {place}, {place})
        for value in self.assigned.get(node.attributes["name"], []):
            self._add(node.output, self.places(value), self._held_places(value))

    def _assign_attribute(self, node: Node) -> None:
        value = node.inputs[1]
        known = self.assigned.setdefault(node.attributes["name"], [])
        if value not in known:
            known.append(value)
            if value in self._own:
                self._grown.add(value)
        self.external |= self.all_places(value)

    def _operator(self, node: Node, sources: list[Value], grown: list[Value]) -> None:
        for output in node.outputs:
            if grown and not output.uses:
                continue  # a list's other name, that nobody reads: one that is filled step by step has thousands
            for source in sources:
                self._share(node, source, output)
        for target in grown:
            self._put_into(target, [value for value in node.inputs if value is not target])

    def _share(self, node: Node, source: Value, output: Value) -> None:
        """What an output takes over from an input that it may share memory with."""
        own, held = self.places(source), self._held_places(source)
        if has_trait(node.op, Trait.CONSTRUCTS) or (_is_container(output.type) and not _is_container(source.type)):
            self._add(output, set(), own | held)
        elif _is_container(source.type) and not _is_container(output.type):
            self._add(output, held, set())
        else:
            self._add(output, own | held, held)

    def _put_into(self, target: Value, items: list[Value]) -> None:
        """What a container is given, every value that may be the same container holds."""
        held: set[Place] = set()
        for item in items:
            held |= self.all_places(item)
        for value in {value: None for place in self.places(target) for value in self._containers_at.get(place, ())}:
            self._add(value, set(), held)


_OWN_FLOWS: dict[str, Callable[[_Flows, Node], None]] = {
    "prim::If": _Flows._if,
    "prim::Loop": _Flows._loop,
    "prim::GetAttr": _Flows._read_attribute,
    "prim::SetAttr": _Flows._assign_attribute,
}


def _readers(nodes: Sequence[Node]) -> dict[Value, list[int]]:
    """Numbers of the nodes for which it matters where a value lies."""
    assigned: dict[str, list[Value]] = {}
    for node in nodes:
        if node.op == "prim::SetAttr":
            assigned.setdefault(node.attributes["name"], []).append(node.inputs[1])
    readers: dict[Value, list[int]] = {}
    for number, node in enumerate(nodes):
        given = assigned.get(node.attributes["name"], ()) if node.op == "prim::GetAttr" else ()
        for value in (*node.inputs, *(value for block in node.blocks for value in block.outputs), *given):
            readers.setdefault(value, []).append(number)
    return readers


def _is_shared(kind: Type) -> bool:
    """Whether values of this type have an identity: they can be changed and seen changed elsewhere."""
    if isinstance(kind, SimpleType):
        return kind in (TENSOR, ANY)
    if isinstance(kind, OptionalType):
        return _is_shared(kind.element)
    if isinstance(kind, TupleType):
        return any(_is_shared(element) for element in kind.elements)
    return isinstance(kind, (ListType, DictType, ClassType))


def _is_container(kind: Type) -> bool:
    """Whether values of this type hold others; a value of unknown type may."""
    if isinstance(kind, SimpleType):
        return kind == ANY
    if isinstance(kind, OptionalType):
        return _is_container(kind.element)
    return isinstance(kind, (ListType, DictType, TupleType, ClassType))


def aliased_inputs(node: Node) -> list[Value]:
    """Inputs whose memory an output may share."""
    schema = schema_of_node(node)
    if schema is None or schema.is_variadic or has_trait(node.qualified_op, Trait.HANDS_BACK):
        return list(node.inputs)
    gives_containers = any(_is_container(output.type) for output in node.outputs)
    if not (gives_containers or schema.is_aliasing):
        return []
    pairs = zip(node.inputs, schema.arguments, strict=False)
    return [value for value, argument in pairs if argument.aliases or (gives_containers and _is_container(value.type))]
