"""Which nodes run on the GPU: the rest is surrounded with transfers, so that the file computes right on the target.

Inside a method every tensor that the GPU can hold lies there, and every other one (integers, more than four dimensions,
constants, memory that is changed under another name) lies on the CPU. A node that the target lacks, or computes
wrongly, reads copies on the CPU, and what it makes goes back.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch

from mobopt.ir import Attribute, Graph, Node, Value
from mobopt.ir.facts import facts_of_tensor
from mobopt.ir.schemas import schema_of
from mobopt.ir.types import TENSOR, ListType
from mobopt.ops.aliases import Aliases
from mobopt.ops.effects import handles_tensors, holds_tensors, listed_items, reads_metadata, written_inputs
from mobopt.ops.records import Trait, record_of
from mobopt.ops.targets import Finding, Target, judge
from mobopt.ops.targets.table import IMAGE_LIMIT
from mobopt.ops.targets.verdicts import QUANTIZED, image_misfit
from mobopt.passes.moving import Mover, before_order
from mobopt.passes.note_kinds import RUNS_ON_CPU, WITH_ITS_OPERANDS
from mobopt.passes.notes import NoteBook

_TENSORS = ListType(TENSOR)
_GPU_ONLY = "vulkan_prepack::run_"
_HEAVY = frozenset(
    {
        Trait.CONVOLUTION,
        Trait.PRODUCT,
        Trait.POOLING,
        Trait.NORMALIZATION,
        Trait.RECURRENT,
        Trait.RESAMPLING,
        Trait.SOFTMAX,
    }
)
"""Traits of operators that are worth a transfer to the GPU."""
_EXTRACTIONS = ("prim::ListUnpack", "aten::__getitem__")


def place_nodes(
    graph: Graph, target: Target, attributes: Mapping[str, Attribute], notes: NoteBook, ordered: set[Node]
) -> set[Value]:
    """Surround with transfers what has to run on the CPU; :func:`cancel_transfers` then takes out the needless ones.

    Args:
        graph: the method.
        target: the runtime that decides where a node runs.
        attributes: of the Program.
        notes: what is said of nodes.
        ordered: gets the copies that are made row-major to be moved.

    Returns:
        Values whose memory is changed under several names, and which stay on the CPU.
    """
    placer = _Placer(graph, target, attributes, notes, ordered)
    placer.run()
    return placer.shared


def lies_on_cpu(value: Value, image_limit: int = IMAGE_LIMIT) -> bool:
    """Whether a tensor can't be on the GPU, or is a constant or an attribute, which files hold for the CPU."""
    if _is_stored(value) or (value.producer is not None and _is_transfer_to_cpu(value.producer)):
        return True
    return image_misfit(value.facts, image_limit) is not None


class _Placer:
    """Places the nodes of one graph."""

    def __init__(
        self, graph: Graph, target: Target, attributes: Mapping[str, Attribute], notes: NoteBook, ordered: set[Node]
    ) -> None:
        self.graph = graph
        self.target = target
        self.attributes = attributes
        self.notes = notes
        self.to_gpu = Mover(graph, torch.device("vulkan"), "vulkan", notes, ordered, self._needs_order)
        self.to_cpu = Mover(graph, torch.device("cpu"), "cpu", notes, ordered)
        self.aliases = Aliases(graph)
        self.shared = _shared_and_changed(graph, target, attributes, self.aliases)
        self.ordered = ordered
        self.made_on_cpu: set[Value] = set()
        """Results of nodes on the CPU."""

    def run(self) -> None:
        """Place every node."""
        for node in list(self.graph.walk()):
            if node.block is None:
                continue
            if node.op == "prim::device":
                self._be_on_cpu(node)
            elif node.op == "prim::SetAttr":
                self._read_on_cpu(node)
            elif node.op.startswith("prim::"):
                self._give_constants(node)
            elif node.op.startswith(_GPU_ONLY) or _is_quantized(node):
                self._keep_on_gpu(node)
            elif _is_computation(node):
                self._place(node)
            elif Trait.FILLS in record_of(node.qualified_op).traits and node.inputs[0] in self.made_on_cpu:
                self._read_on_cpu(node)  # all that a list of the CPU holds lies there
            self._keep_flows_on_cpu(node)
            self._take_out(node)

    def _be_on_cpu(self, device: Node) -> None:
        """Make the device of a tensor the CPU, where all tensors lie for the model; what goes there stays as it is."""
        users = [user for user, _ in device.output.uses]
        device.output.replace_all_uses_with(self.graph.constant(torch.device("cpu"), name="device"))
        for user in users:
            if _is_transfer_to_cpu(user) and user.inputs[4].is_constant and not user.inputs[4].constant:
                user.output.replace_all_uses_with(user.inputs[0])
                user.destroy()

    def _place(self, node: Node) -> None:
        finding = judge(node, self.target, self.attributes)
        reason = self._reason_for_cpu(node, finding)
        if not reason and not self._is_with_its_operands(node):
            self._give_constants(node, finding)
            return
        if not self._counts(node):
            self._note(node, finding, reason)
        self._read_on_cpu(node)
        for value in node.outputs:
            self.made_on_cpu.add(value)
            self._bring_back(value, node)

    def _note(self, node: Node, finding: Finding, reason: str) -> None:
        if reason:
            is_unknown = finding.verdict == "unknown" and not finding.is_by_size
            self.notes.add(RUNS_ON_CPU, node, reason=reason, is_unknown=is_unknown, is_by_size=finding.is_by_size)
        else:
            self.notes.add(WITH_ITS_OPERANDS, node)

    def _keep_on_gpu(self, node: Node) -> None:
        """Give an operator that only the GPU has copies of what has to stay on the CPU, as they are just then."""
        self._give_constants(node)
        for index, value in enumerate(node.inputs):
            if value.type == TENSOR and value in self.shared:
                node.replace_input(index, self.to_gpu.transfer(value, node))
        for value in node.outputs:
            if value in self.shared:
                uses = list(value.uses)
                self.shared.discard(value)
                moved = self.to_cpu.moved_once(value)
                self.shared.add(moved)
                for user, index in uses:
                    user.replace_input(index, moved)

    def _keep_flows_on_cpu(self, node: Node) -> None:
        """Bring to the CPU what blocks give to a name of memory that has to stay there."""
        first = 1 if node.op == "prim::Loop" else 0  # a loop's blocks give a condition first
        for index, output in enumerate(node.outputs):
            if not node.blocks or not (output in self.shared or self._is_misfit(output)):
                continue
            for block in node.blocks:
                block.returns.replace_input(index + first, self._on_cpu(block.outputs[index + first], block.returns))
            if first:
                node.replace_input(index + 2, self._on_cpu(node.inputs[index + 2], node))

    def _take_out(self, node: Node) -> None:
        """Bring to the CPU what has to lie there and comes out of a container, where it may be on either side."""
        if node.blocks or _is_computation(node):
            return
        if any(value.type != TENSOR and holds_tensors(value.type) for value in node.inputs):
            for value in node.outputs:
                if value not in self.made_on_cpu and self._is_unknown(value) and value.uses:
                    moved = self.to_cpu.moved_once(value)
                    for user, index in value.uses:
                        if user is not moved.producer:
                            user.replace_input(index, moved)

    def _is_unknown(self, value: Value) -> bool:
        """Whether the examples do not tell what a tensor is like."""
        return value.type == TENSOR and (value.facts.varies or not value.facts.is_seen)

    def _is_misfit(self, value: Value) -> bool:
        """Whether a tensor can't be on the GPU, or is not known to be one that can."""
        return value.type == TENSOR and lies_on_cpu(value)

    def _counts(self, node: Node) -> bool:
        """Whether a node only computes with integers without dimensions: sizes, in traced models."""
        tensors = [value for value in (*node.inputs, *node.outputs) if value.type == TENSOR and not value.is_constant]
        return all((value.facts.known_sizes, value.facts.known_dtype) == ((), "int64") for value in tensors)

    def _reason_for_cpu(self, node: Node, finding: Finding) -> str:
        if not finding.is_good:
            return finding.why
        if finding.verdict == "unknown":  # in a branch that the examples did not take, say
            is_whole = finding.row is None or finding.is_by_size
            return finding.why if is_whole else f"the GPU does not compute it for all, and {finding.why}"
        tensors = [value for value in (*node.inputs, *node.outputs) if value.type == TENSOR]
        held = [item for value in node.inputs if value.type != TENSOR for item in self._held(value)]
        if any(value in self.shared for value in (*tensors, *held)):
            return "a tensor of it is changed in place under another name"
        operands = [value for value in node.inputs if value.type == TENSOR]
        if operands and all(self._stays(value) for value in operands):
            return "the GPU can't hold the constants that it reads"
        return ""

    def _is_with_its_operands(self, node: Node) -> bool:
        """Whether a node that the GPU could run is not worth a transfer, for its operands were made on the CPU."""
        operands = [value for value in node.inputs if value.type == TENSOR and not value.is_constant]
        if not operands or not record_of(node.qualified_op).traits.isdisjoint(_HEAVY):
            return False
        return all(_origin(value, self.ordered) in self.made_on_cpu for value in operands)

    def _held(self, value: Value) -> list[Value]:
        """What a container may hold."""
        if not holds_tensors(value.type):
            return []
        return [*self.aliases.members(value), *(listed_items(value) or ())]

    def _needs_order(self, value: Value) -> bool:
        """Whether a tensor on the CPU may be in another order than row-major; that of 4 dimensions is read wrongly."""
        if value.is_constant:
            return not value.constant.is_contiguous()
        return value.facts.dimensions is None or value.facts.rank == 4

    def _is_on_gpu(self, value: Value) -> bool:
        limit = self.target.image_limit
        return not lies_on_cpu(value, limit) and value not in self.shared

    def _read_on_cpu(self, node: Node) -> None:
        """Make a node read copies on the CPU."""
        for index, value in enumerate(node.inputs):
            node.replace_input(index, self._on_cpu(value, node))

    def _on_cpu(self, value: Value, node: Node) -> Value:
        if value.is_constant or not holds_tensors(value.type):
            return value
        if value.type == TENSOR:
            return self.to_cpu.moved_once(value) if self._is_on_gpu(value) else value
        producer = value.producer
        if producer is not None and producer.op == "prim::ListConstruct" and not self._is_changed(value):
            items = [self._on_cpu(item, node) for item in producer.inputs]
            return self.to_cpu.node("prim::ListConstruct", items, value.type, node, value)
        if value in self.made_on_cpu:
            return value
        return self.to_cpu.moved(value, node)

    def _is_changed(self, container: Value) -> bool:
        """Whether something is put into a list after it is made, also into one that a transfer has made."""
        filled = any(container in written_inputs(user) for user, _ in container.uses)
        return filled or bool(self.aliases.writers(container))

    def _bring_back(self, value: Value, node: Node) -> None:
        """Move a result of a node on the CPU to the GPU, for whoever reads it."""
        if value.type == _TENSORS:
            self._bring_back_items(value)
        elif value.type == TENSOR and self._is_on_gpu(value):
            uses = [use for use in value.uses if transferred(use[0]) is None]
            moved = self.to_gpu.moved_once(value) if uses else value
            for user, index in uses:
                user.replace_input(index, moved)

    def _bring_back_items(self, value: Value) -> None:
        """Move what is taken out of a list, or of a part of it; a list that is used in another way is moved as a whole,
        as it is then."""
        others = [use for use in value.uses if not _is_extraction(use[0]) and not _is_untouched(use[0])]
        for user, index in others:
            if _hands_on(user):
                self.made_on_cpu.add(user.output)
                self._bring_back_items(user.output)
            elif not self._has_to_be_on_cpu(user):
                user.replace_input(index, self.to_gpu.moved(value, user))
        for user, _ in value.uses:
            if _is_extraction(user):
                for item in user.outputs:
                    self.made_on_cpu.add(item)
                    self._bring_back(item, user)

    def _has_to_be_on_cpu(self, node: Node) -> bool:
        return _is_computation(node) and bool(self._reason_for_cpu(node, judge(node, self.target, self.attributes)))

    def _give_constants(self, node: Node, finding: Finding | None = None) -> None:
        """Move constants to the GPU for a node that runs there, or that hands them on as if they lay there."""
        kept = finding.row.cpu_operands if finding is not None and finding.row is not None else ()
        names = [item.name for item in schema_of(node.qualified_op).arguments] if kept else []
        for index, value in enumerate(node.inputs):
            if not (names and names[index] in kept):
                node.replace_input(index, self._on_gpu(value))
        for block in node.blocks:
            block.returns.set_inputs([self._on_gpu(value) for value in block.outputs])

    def _on_gpu(self, value: Value) -> Value:
        if value.type != TENSOR or not _is_stored(value) or value in self.shared or self._stays(value):
            return value
        return self.to_gpu.moved_once(value)

    def _stays(self, value: Value) -> bool:
        """Whether a tensor of the file can't be moved to the GPU; operators read a number of it there all the same."""
        if not _is_stored(value):
            return False
        facts = facts_of_tensor(value.constant) if value.is_constant else value.facts
        return image_misfit(facts, self.target.image_limit) is not None


def cancel_transfers(graph: Graph, ordered: Container[Node]) -> None:
    """Take out transfers that undo each other, for there and back is the tensor itself, and those for sizes only."""
    for node in list(graph.walk()):
        inner = transferred(node)
        if inner is None or inner.producer is None:
            continue
        origin = transferred(inner.producer)
        if origin is not None and node.inputs[1].constant != inner.producer.inputs[1].constant:
            node.output.replace_all_uses_with(before_order(origin, ordered))
            node.destroy()
    for node in list(graph.walk()):
        if transferred(node) is not None and all(_reads_sizes(user) for user, _ in node.output.uses):
            node.output.replace_all_uses_with(_origin(node.output, ordered))
    for node in reversed(list(graph.walk())):
        if (transferred(node) is not None or node in ordered) and not node.output.uses:
            node.destroy()


def transferred(node: Node) -> Value | None:
    """What a transfer between devices moves, if the node is one."""
    if node.qualified_op != "aten::to.prim_Device" or not node.inputs[1].is_constant:
        return None
    return node.inputs[0] if node.inputs[2].is_constant and node.inputs[2].constant is None else None


def _is_transfer_to_cpu(node: Node) -> bool:
    return transferred(node) is not None and node.inputs[1].constant.type == "cpu"


def _origin(value: Value, ordered: Container[Node]) -> Value:
    """The tensor before a transfer."""
    inner = transferred(value.producer) if value.producer is not None else None
    return value if inner is None else before_order(inner, ordered)


def _is_stored(value: Value) -> bool:
    """Whether a value comes from the file."""
    return value.is_constant or (value.producer is not None and value.producer.op == "prim::GetAttr")


def _is_extraction(node: Node) -> bool:
    return node.op in _EXTRACTIONS and bool(node.inputs) and isinstance(node.inputs[0].type, ListType)


def _hands_on(node: Node) -> bool:
    """Whether a node makes a list of what one other list holds, as slices of it do."""
    lists = [value for value in node.inputs if holds_tensors(value.type)]
    makes_one = len(node.outputs) == 1 and node.output.type == _TENSORS
    return makes_one and len(lists) == 1 and not node.blocks and not handles_tensors(node) and not written_inputs(node)


def _is_computation(node: Node) -> bool:
    """Whether it matters where a node runs."""
    if _is_untouched(node) or not handles_tensors(node) or transferred(node) is not None:
        return False
    return any(holds_tensors(value.type) for value in (*node.inputs, *node.outputs))


def _is_quantized(node: Node) -> bool:
    """Whether a node reads or makes a quantised tensor, which can't be moved; the target computes all that there is."""
    return any(value.facts.known_dtype == QUANTIZED for value in (*node.inputs, *node.outputs))


def _reads_sizes(node: Node) -> bool:
    """Whether a node reads the same of a tensor wherever it lies."""
    return reads_metadata(node) and Trait.READS_PLACE not in record_of(node.qualified_op).traits


def _is_untouched(node: Node) -> bool:
    """Whether a node does not look at elements, so that it does not matter where they lie; an empty dictionary has
    none."""
    if not node.inputs and not any(value.type == TENSOR for value in node.outputs):
        return True
    traits = record_of(node.qualified_op).traits
    return reads_metadata(node) or not traits.isdisjoint({Trait.FILLS, Trait.COMPARES_OBJECTS})


def _shared_and_changed(
    graph: Graph, target: Target, attributes: Mapping[str, Attribute], aliases: Aliases
) -> set[Value]:
    """Values whose memory is changed in place and seen under another name or by the next call, or changed by a node on
    the CPU.

    The GPU's tensors share no memory with others, so these have to stay on the CPU as a whole.
    """
    writers = [node for node in graph.walk() if _writes(node)]
    shared: set[Value] = set()
    for node in writers:
        names = [value for value in aliases.members(node.inputs[0]) if value.type == TENSOR]
        chain = {node.inputs[0], *(other.output for other in writers if other.inputs[0] in names and other.outputs)}
        is_good = judge(node, target, attributes).is_good
        if not is_good or not set(names) <= chain or aliases.is_of_model(node.inputs[0]):
            shared.update(names)
    for value in graph.inputs[1:]:
        held = aliases.members(value) if value.type != TENSOR and holds_tensors(value.type) else []
        if not shared.isdisjoint(held):  # a list with one such tensor stays on the CPU with all that it holds
            shared.update(item for item in (value, *held) if item in graph.inputs or item.type == TENSOR)
    return shared


def _writes(node: Node) -> bool:
    if node.op.startswith("prim::") or not node.inputs or node.inputs[0].type != TENSOR:
        return False
    return schema_of(node.qualified_op).is_mutating
