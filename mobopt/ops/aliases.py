"""Which values of a graph may share memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial

from mobopt.ir import Block, Graph, Node, Value
from mobopt.ir.types import ANY, TENSOR, ClassType, DictType, ListType, OptionalType, TupleType, Type
from mobopt.ops.effects import schema_of_node, written_inputs
from mobopt.ops.records import Trait, has_trait

_INPUTS = "inputs"

SHARED_MEMORY = "memory"
"""On a ``prim::GetAttr``: the attribute whose memory the one that is read lies in."""

Place = Hashable
"""Where a value lies: what made it, an attribute, a constant, or the caller."""


def attribute_place(name: str) -> Place:
    """Where an attribute of the model lies."""
    return "attribute", name


def constant_place(value: Value) -> Place:
    """Where a constant lies."""
    return "constant", id(value.constant)


class Aliases:
    """The places that each value of a graph may lie in, and those of what it holds if it is a container.

    Found once, without regard to the order of nodes, so it may say yes too often. Inputs of the method, attributes and
    constants are external: what is written there can be seen by the caller, or by the next call.
    """

    def __init__(self, graph: Graph) -> None:
        self._own: dict[Value, set[Place]] = {}
        self._held: dict[Value, set[Place]] = {}
        self._containers: list[Value] = []
        self._external: set[Place] = {_INPUTS}
        self._assigned: dict[str, list[Value]] = {}
        """Values given to each attribute."""
        self._growing = True
        nodes = list(graph.walk())
        for value in graph.inputs[1:]:
            self._add(value, {_INPUTS}, {_INPUTS})
        for block in [graph.block, *(block for node in nodes for block in node.blocks)]:
            self._constants(block)
        flows = [flow for node in nodes if (flow := self._flow_of(node)) is not None]
        while self._growing:
            self._growing = False
            for flow in flows:
                flow()
        self._seen_in: dict[Place, list[Value]] = {}
        for value in self._own:
            for place in self._own[value] | self._held[value]:
                self._seen_in.setdefault(place, []).append(value)
        self._order = {value: index for index, value in enumerate(self._own)}
        self._outliving = self._external.union(
            *(self._places(value) | self._held_places(value) for value in graph.outputs),
            *(self._held[value] for value in self._containers if not self._own[value].isdisjoint(self._external)),
        )
        self._writing: dict[Node, set[Place]] = {}
        """Places that each writing node writes to."""
        for node in nodes:
            if written := written_inputs(node):
                self._writing[node] = {place for value in written for place in self._places(value)}

    def may_alias(self, left: Value, right: Value) -> bool:
        """Whether the two, or what they hold, may share memory."""
        return not (self._places(left) | self._held_places(left)).isdisjoint(
            self._places(right) | self._held_places(right)
        )

    def members(self, value: Value) -> list[Value]:
        """Every value in which a change of this one may be seen, itself included."""
        found = {item for place in self._places(value) for item in self._seen_in[place]}
        return sorted(found, key=self._order.__getitem__)

    def is_external(self, value: Value) -> bool:
        """Whether a change of it may be seen after the call."""
        return not self._places(value).isdisjoint(self._external)

    def is_of_model(self, value: Value) -> bool:
        """Whether it may lie in an attribute or a constant, which the next call sees too."""
        return not self._places(value).isdisjoint(self._external - {_INPUTS})

    def outlives(self, value: Value) -> bool:
        """Whether the caller or the next call may see memory that the value's node makes: what is returned, assigned,
        or put into such a container."""
        return value in self._outliving

    def writers(self, value: Value) -> list[Node]:
        """Nodes whose writes may be seen in it."""
        places = self._places(value) | self._held_places(value)
        return [node for node in self._writing if not places.isdisjoint(self._writing[node])]

    def assigned_names(self) -> Iterable[str]:
        """Names of the attributes that are assigned to."""
        return self._assigned

    def external_writes(self) -> set[Place]:
        """The attributes and constants that nodes may write to."""
        return self._known(place for places in self._writing.values() for place in places)

    def external_groups(self) -> list[set[Place]]:
        """The attributes and constants that may become the same memory: one value may be any of them, or one is given
        to the other."""
        seen = [self._known(places | self._held[value]) for value, places in self._own.items() if self._known(places)]
        given = [
            {attribute_place(name)} | self._known(self._places(value) | self._held_places(value))
            for name, values in self._assigned.items()
            for value in values
        ]
        return [group for group in (*seen, *given) if len(group) > 1]

    def _known(self, places: Iterable[Place]) -> set[Place]:
        """The attributes and constants among places."""
        return {place for place in places if isinstance(place, tuple)}

    def fillers(self, container: Value) -> list[Node]:
        """Nodes that put something into a container, or take something out, by any of its names."""
        own = self._places(container)
        return [node for node in self._writing if not own.isdisjoint(self._writing[node])]

    def _places(self, value: Value) -> set[Place]:
        return self._own.get(value, set())

    def _held_places(self, value: Value) -> set[Place]:
        return self._held.get(value, set())

    def _add(self, value: Value, own: set[Place], held: set[Place]) -> None:
        """A value may lie, and hold what lies, in these places too."""
        if not _is_shared(value.type):
            return
        held = held if _is_container(value.type) else set()
        if value not in self._own and _is_container(value.type):
            self._containers.append(value)
        mine, holding = self._own.setdefault(value, set()), self._held.setdefault(value, set())
        if not (own <= mine and held <= holding):
            mine |= own
            holding |= held
            self._growing = True

    def _constants(self, block: Block) -> None:
        for node in [*block.nodes, block.returns]:
            for value in node.inputs:
                if value.is_constant and value.constant is not None and _is_shared(value.type):
                    place = constant_place(value)
                    self._external.add(place)
                    self._add(value, {place}, {place})

    def _flow_of(self, node: Node) -> Callable[[], None] | None:
        """What a node lets flow, to be called until nothing grows; None if its outputs share with nothing."""
        own = {"prim::If": self._if, "prim::Loop": self._loop}
        own |= {"prim::GetAttr": self._read_attribute, "prim::SetAttr": self._assign_attribute}
        if node.op in own:
            return partial(own[node.op], node)
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
            self._add(target, self._places(source), self._held_places(source))

    def _read_attribute(self, node: Node) -> None:
        place = attribute_place(node.attributes.get(SHARED_MEMORY, node.attributes["name"]))
        self._external.add(place)
        self._add(node.output, {place}, {place})
        for value in self._assigned.get(node.attributes["name"], []):
            self._add(node.output, self._places(value), self._held_places(value))

    def _assign_attribute(self, node: Node) -> None:
        value = node.inputs[1]
        known = self._assigned.setdefault(node.attributes["name"], [])
        if value not in known:
            known.append(value)
            self._growing = True
        self._external |= self._places(value) | self._held_places(value)

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
        own, held = self._places(source), self._held_places(source)
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
            held |= self._places(item) | self._held_places(item)
        for value in self._containers:
            if not self._own[value].isdisjoint(self._places(target)):
                self._add(value, set(), held)


def _is_shared(kind: Type) -> bool:
    """Whether values of this type have an identity: they can be changed and seen changed elsewhere."""
    if isinstance(kind, OptionalType):
        return _is_shared(kind.element)
    if isinstance(kind, TupleType):
        return any(_is_shared(element) for element in kind.elements)
    return kind in (TENSOR, ANY) or isinstance(kind, (ListType, DictType, ClassType))


def _is_container(kind: Type) -> bool:
    """Whether values of this type hold others; a value of unknown type may."""
    if isinstance(kind, OptionalType):
        return _is_container(kind.element)
    return kind == ANY or isinstance(kind, (ListType, DictType, TupleType, ClassType))


def aliased_inputs(node: Node) -> list[Value]:
    """Inputs whose memory an output may share."""
    schema = schema_of_node(node)
    if schema is None or schema.is_variadic or has_trait(node.qualified_op, Trait.HANDS_BACK):
        return list(node.inputs)
    gives_containers = any(_is_container(output.type) for output in node.outputs)
    pairs = zip(node.inputs, schema.arguments, strict=False)
    return [value for value, argument in pairs if argument.aliases or (gives_containers and _is_container(value.type))]
