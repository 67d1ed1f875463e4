"""In-place operators become functional ones where nobody can tell the difference."""

from __future__ import annotations

from dataclasses import dataclass, field

from mobopt.ir import Block, Graph, Node, Program, Value
from mobopt.ir.schemas import Schema, schema_of
from mobopt.ir.types import TENSOR
from mobopt.ops.aliases import Aliases
from mobopt.ops.effects import reads_metadata
from mobopt.ops.parts import Parts
from mobopt.ops.records import Trait, functional_schema, has_trait, is_in_place, record_of
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.functional_dtypes import change_of_dtype, widens_integers
from mobopt.passes.manager import Pass
from mobopt.passes.note_kinds import INPUT_IS_CHANGED, MADE_FUNCTIONAL, STAYS_IN_PLACE
from mobopt.passes.notes import NoteBook
from mobopt.passes.rewriting import insert_node


@dataclass(frozen=True)
class Functionalize(Pass):
    """Replace in-place operators by functional ones.

    Given:
        %y : Tensor = aten::relu_(%x)
        return (%x)
    Result:
        %y : Tensor = aten::relu(%x)
        return (%y)

    Refused where the written memory may be seen under another name later, or outlives the call (inputs, weights,
    attributes), and where the functional form would give another dtype than the tensor has that is written to.

    Attributes:
        copies_inputs: whether what is written to an input is not seen by the caller: a transfer to the GPU copies it.
        examples: show dtypes of operands.
        may_differ: whether operands that no example shows may have any dtype; else they are taken to have that of the
            tensor that is written to, as in PyTorch's own pass.
    """

    name = "functionalize"
    copies_inputs: bool = False
    examples: Examples = field(default_factory=Examples)
    may_differ: bool = False

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        """Replace what can be replaced."""
        found = {graph: [node for node in graph.walk() if _is_in_place(node)] for graph in program.methods.values()}
        if any(_asks_for_dtypes(node) for nodes in found.values() for node in nodes):
            record_facts(program, self.examples)
        changed = [self._rewrite_graph(graph, nodes, notes) for graph, nodes in found.items() if nodes]
        return any(changed)

    def _rewrite_graph(self, graph: Graph, candidates: list[Node], notes: NoteBook) -> bool:
        copies = _copy_written_inputs(graph, notes) if self.copies_inputs else []
        aliases, parts = Aliases(graph), Parts(graph)
        order = {node: index for index, node in enumerate(_order(graph.block))}
        changed = False
        for node in candidates:
            functional = _functional_form(node)
            reason = (
                "PyTorch 1.13 has no functional form of it"
                if functional is None
                else _refusal(node, aliases, parts, order) or change_of_dtype(node, functional, self.may_differ)
            )
            if functional is None or reason:
                notes.add(STAYS_IN_PLACE, node, reason=reason)
                continue
            notes.add(MADE_FUNCTIONAL, node)
            _make_functional(node, functional, order)
            changed = True
        return _remove_needless(copies, Aliases(graph)) or changed


def _copy_written_inputs(graph: Graph, notes: NoteBook) -> list[Node]:
    """Copies of the tensors that are given to the method, where one of them may be written to."""
    inputs = [value for value in graph.inputs[1:] if value.type == TENSOR and value.uses]
    aliases = Aliases(graph)
    if not any(aliases.writers(value) for value in inputs):
        return []
    copies = []
    for value in inputs:
        uses = list(value.uses)
        clone = [value, graph.constant(None)]
        made = insert_node(graph, graph.block.nodes[0], "aten::clone", clone, name=f"{value.name}.copy")
        copy = made.producer
        assert copy is not None
        for user, index in uses:
            user.replace_input(index, copy.output)
        copies.append(copy)
    written = Aliases(graph)
    for copy in copies:
        if written.writers(copy.output):
            notes.add(INPUT_IS_CHANGED, copy.inputs[0])
    return copies


def _remove_needless(copies: list[Node], aliases: Aliases) -> bool:
    """Take out copies that nothing writes to any more; whether some are left."""
    needed = [copy for copy in copies if aliases.writers(copy.output)]
    for copy in copies:
        if copy not in needed:
            copy.output.replace_all_uses_with(copy.inputs[0])
            copy.destroy()
    return bool(needed)


def _is_in_place(node: Node) -> bool:
    return node.op.startswith("aten::") and is_in_place(node.op) and bool(node.outputs)


def _functional_form(node: Node) -> Schema | None:
    """The schema of the functional operator with the same arguments."""
    if not record_of(node.qualified_op).traits.isdisjoint({Trait.LATE_FUNCTIONAL_FORM, Trait.RANDOM}):
        return None
    return functional_schema(schema_of(node.qualified_op))


def _order(block: Block) -> list[Node]:
    """Nodes in the order in which they finish: what is nested before its holder, a block's returns last in it."""
    nodes: list[Node] = []
    for node in block.nodes:
        for nested in node.blocks:
            nodes += _order(nested)
        nodes.append(node)
    return [*nodes, block.returns]


def _refusal(node: Node, aliases: Aliases, parts: Parts, order: dict[Node, int]) -> str:
    """Why the node can't be functional; empty if it can."""
    target = node.inputs[0]
    if aliases.is_external(target):
        return f"what it writes to, %{target.name}, may be an input, a weight or an attribute of the model"
    if _home(target) is not node.block:
        return f"%{target.name} is made in an outer block"
    for value in aliases.members(target):
        if value in (target, node.output) or value.is_constant or not _defined_before(value, node, order):
            continue
        if _is_empty(value, node, aliases, order) or parts.share_nothing(value, target):
            continue
        later = {user for user, _ in value.uses if _reads_after(user, value, node, order)}
        if not all(reads_metadata(user) or parts.only_shows_others(user, target) for user in later):
            return f"%{value.name} may be the same memory, and is read afterwards"
    return ""


def _is_empty(value: Value, node: Node, aliases: Aliases, order: dict[Node, int]) -> bool:
    """Whether a value is a list or dictionary that nothing has been put into before ``node`` runs."""
    maker = value.producer
    if maker is None or maker.inputs or not (has_trait(maker.op, Trait.CONSTRUCTS) or maker.op == "aten::dict"):
        return False
    return not any(_reads_after(node, value, writer, order) for writer in aliases.fillers(value))


def _asks_for_dtypes(node: Node) -> bool:
    """Whether a node reads other tensors than the one that it writes to, which may have other dtypes, or its functional
    form adds integers up as wider ones."""
    functional = _functional_form(node)
    combines = any(value.type == TENSOR and not value.is_constant for value in node.inputs[1:])
    return combines or (functional is not None and widens_integers(node, functional))


def _home(value: Value) -> Block | None:
    return value.owner if value.producer is None else value.producer.block


def _defined_before(value: Value, node: Node, order: dict[Node, int]) -> bool:
    if value.producer is None:
        return True
    if _holds(value.producer, node):
        return False  # an output of a block around the node
    return order[value.producer] < order[node]


def _holds(outer: Node, inner: Node) -> bool:
    block = inner.block
    while block is not None:
        if block.node is outer:
            return True
        block = block.node.block if block.node is not None else None
    return False


def _reads_after(user: Node, value: Value, node: Node, order: dict[Node, int]) -> bool:
    """Whether ``user`` reads ``value`` after ``node`` has run; in a loop around both, what comes before reads again, if
    it is still the same value."""
    if user is node or _holds(user, node):
        return False
    if order[user] > order[node]:
        return True
    block = node.block
    while block is not None and block.node is not None:
        if block.node.op == "prim::Loop" and _holds(block.node, user) and not _is_made_in(value, block):
            return True
        block = block.node.block
    return False


def _is_made_in(value: Value, block: Block) -> bool:
    home = _home(value)
    while home is not None and home is not block:
        home = home.node.block if home.node is not None else None
    return home is block


def _make_functional(node: Node, functional: Schema, order: dict[Node, int]) -> None:
    target = node.inputs[0]
    later = [(user, index) for user, index in target.uses if user is not node and order[user] > order[node]]
    node.op, node.overload = functional.name, functional.overload
    for user, index in later:
        user.replace_input(index, node.output)
