"""What is known of tensors that rewrites make follows from what is known of their operands.

Rules of shapes tell (:mod:`mobopt.ops.shapes`), and torch's meta kernels where there is none. They are asked for the
sizes of the example inputs; a result lasts no longer than what it was made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from mobopt.errors import GraphError
from mobopt.ir import Block, Node, Program, Value
from mobopt.ir.facts import NOTHING, RANK, SIZES, UNKNOWN, UNSEEN, TensorFacts, facts_of_type, name_of
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.types import BOOL, FLOAT, INT, SCALAR, TENSOR, TensorType
from mobopt.ops.effects import listed_items, schema_of_node
from mobopt.ops.records import Trait, has_trait
from mobopt.ops.shapes import infer
from mobopt.ops.shapes.numbers import infer_held, infer_numbers, tells_numbers
from mobopt.passes.rewriting import is_constant_tensor
from mobopt.runtimes.cpu.evaluator import Evaluator
from mobopt.runtimes.cpu.kernels import kernel

_NUMBERS = (INT, FLOAT, BOOL, SCALAR)
_ANY_FLOAT = 0.5
_LASTING = (SIZES, RANK, NOTHING)
_UNTOLD = TensorFacts(lasting=NOTHING, varies=True)
"""Of a tensor whose sizes are computed from numbers that follow from no sizes."""


def infer_facts(program: Program) -> None:
    """Find what is known of every tensor that nobody has looked at yet.

    Of what nothing tells nothing is to be believed, as of what no run came to.
    """
    inference = Inference(program)
    for graph in program.methods.values():
        unreached: dict[Block, bool] = {}
        for value in values_of(graph.block):
            if value.facts is UNKNOWN and value.type == TENSOR:
                block = value.owner if value.producer is None else value.producer.block
                assert block is not None
                if block not in unreached:
                    unreached[block] = _is_unreached(block)
                value.facts = UNSEEN if unreached[block] else inference.facts(value)


def _is_unreached(block: Block) -> bool:
    """Whether a branch, or a loop, holds tensors that no run came to."""
    made = (value for node in block.nodes for value in node.outputs)
    return block.node is not None and any(not value.facts.is_seen for value in (*block.parameters, *made))


def check_facts(program: Program) -> None:
    """Compare what is known of tensors with what their nodes make of what is known of the operands.

    Raises:
        GraphError: they differ.
    """
    inference = Inference(program)
    for graph in program.methods.values():
        for value in values_of(graph.block):
            if value.producer is not None and value.facts is not UNKNOWN and value.facts.dimensions is not None:
                made = inference.facts(value)
                if made.dimensions is not None and made.type != value.facts.type:
                    raise GraphError(f"{value.producer!r} makes {made}, and {value.facts} is known of %{value.name}")


def made_by(operator: str, args: Sequence[Any]) -> Any:
    """The types of what an operator makes; None where neither a rule nor torch's meta kernel can tell.

    Args:
        operator: qualified name.
        args: all arguments of its schema, in order; tensors as their types.
    """
    made = infer(operator, args)
    if made is not None:
        return made
    try:
        metas = map_leaves(
            list(args),
            TensorType,
            lambda kind: torch.empty(tuple(map(int, kind.sizes)), dtype=kind.dtype, device="meta"),
        )
        result = kernel(operator)(*metas)
    except Exception:  # whatever torch says of meta tensors that stand for unknown or quantised ones
        return None
    return map_leaves(result, torch.Tensor, lambda tensor: TensorType(tensor.dtype, tuple(tensor.shape)))


def values_of(block: Block) -> Iterator[Value]:
    """All that a block and those inside of it compute or are given, inner values before what they give."""
    yield from block.parameters
    for node in block.nodes:
        for inner in node.blocks:
            yield from values_of(inner)
        yield from node.outputs


class _UntoldError(Exception):
    """Nothing tells what a value is; ``facts`` say what that makes of those that are made of it."""

    def __init__(self, facts: TensorFacts) -> None:
        super().__init__()
        self.facts = facts


class Inference(Evaluator):
    """Evaluates single nodes on types of tensors, and on numbers, as far as these follow from sizes.

    Args:
        program: the model.
        by_example: whether sizes that may vary are those of the example.
        believes_attributes: whether numbers that are attributes stay as they are.
    """

    def __init__(self, program: Program, by_example: bool = False, believes_attributes: bool = True) -> None:
        super().__init__(program)
        self._by_example = by_example
        self._believes_attributes = believes_attributes
        self._results: dict[Value, tuple[Any, TensorFacts]] = {}
        """Of values that are no tensors, what they are, and what was read for that."""

    def complete(self, node: Node) -> None:
        """Tell the tensors that a new node, which stands in a block, makes what is known of them."""
        assert node.block is not None
        is_unreached = _is_unreached(node.block)
        for value in node.outputs:
            if value.type == TENSOR:
                value.facts = UNSEEN if is_unreached else self.facts(value)

    def facts(self, value: Value) -> TensorFacts:
        """What the node that makes a tensor tells of it."""
        try:
            result, read = self._made(value)
        except _UntoldError as untold:
            return untold.facts if self._by_example or not self.program.size_symbols.symbols else self._varying(value)
        except RecursionError:  # a number that follows from hundreds of others
            return _UNTOLD
        if not isinstance(result, TensorType):
            return UNSEEN
        return facts_of_type(name_of(result.dtype), result.sizes, lasting=read.lasting, varies=read.varies)

    def decided(self, condition: Value) -> bool | None:
        """What a condition is for all sizes that inputs may have; None if that is open."""
        try:
            result, read = self._look(condition)
        except (_UntoldError, RecursionError):
            return None
        return bool(result) if isinstance(result, (bool, int)) and read.lasting == SIZES and not read.varies else None

    def _varying(self, value: Value) -> TensorFacts:
        """What the example tells of a tensor whose sizes the declared ranges leave open."""
        made = Inference(self.program, by_example=True).facts(value)
        assert value.producer is not None
        return (
            made.varying(not has_trait(value.producer.qualified_op, Trait.RANK_BY_SIZES)) if made.seen_sizes else made
        )

    def operator(self, node: Node, args: list[Any]) -> Any:
        """What an operator makes of types and numbers."""
        op = node.qualified_op
        if tells_numbers(op):
            return infer_numbers(op, args)
        if any(True for _ in leaves_of(args, TensorType)) or any(value.type == TENSOR for value in node.outputs):
            return made_by(op, args)
        return kernel(op)(*args)

    def lift(self, value: Any) -> Any:
        """Constant tensors as their types."""
        return map_leaves(value, torch.Tensor, lambda tensor: TensorType(tensor.dtype, tuple(tensor.shape)))

    def is_tensor(self, value: Any) -> bool:
        """Whether a value stands for a tensor."""
        return isinstance(value, TensorType)

    def _type_of(self, facts: TensorFacts) -> TensorType:
        found = facts.seen_type if self._by_example else facts.type
        if found is None:
            raise _UntoldError(facts if facts.varies else UNSEEN)
        return found

    def _look(self, value: Value) -> tuple[Any, TensorFacts]:
        """What a value is in the example, and what of that lasts."""
        if value.is_constant:
            return self.lift(value.constant), UNKNOWN
        if value.facts is not UNKNOWN:
            return self._type_of(value.facts), value.facts
        if value not in self._results:
            self._results[value] = self._made(value)
        return self._results[value]

    def _made(self, value: Value) -> tuple[Any, TensorFacts]:
        """What the node that makes a value makes of its inputs."""
        node = value.producer
        if node is not None and node.op == "prim::If":
            return self._joined([block.outputs[node.outputs.index(value)] for block in node.blocks])
        if node is not None and node.op == "prim::GetAttr" and self._believes_attributes:
            attribute = self.program.attributes.get(node.attributes["name"])
            return self.lift(None if attribute is None else attribute.value), UNKNOWN
        if node is None or node.blocks or node.op == "prim::GetAttr":
            raise _UntoldError(UNSEEN if value.type == TENSOR else _UNTOLD)
        if node.op == "prim::ListConstruct" and listed_items(value) is None:  # it is changed later
            raise _UntoldError(UNSEEN)
        reads_tensor = any(item.type == TENSOR for item in node.inputs)
        if reads_tensor and value.type in _NUMBERS and not tells_numbers(node.qualified_op):
            read: list[TensorFacts] = []
            return self._held(node, read), _lasting(read)
        looks = [self._operand(node, index) for index in range(len(node.inputs))]
        environment = dict(zip(node.inputs, (result for result, _ in looks), strict=True))
        try:
            results = self.node(node, environment)
        except Exception as error:  # whatever operators say of types in place of tensors
            raise _UntoldError(UNSEEN) from error
        read = [facts for _, facts in looks]
        return results[node.outputs.index(value)], _lasting(read)

    def _operand(self, node: Node, index: int) -> tuple[Any, TensorFacts]:
        """What an input of a node is; of a float on which no size depends, any, if nothing tells it."""
        try:
            return self._look(node.inputs[index])
        except _UntoldError:
            schema = schema_of_node(node)
            if node.inputs[index].type != FLOAT or schema is None or schema.is_variadic:
                raise
            if schema.arguments[index].type not in (FLOAT, SCALAR) or all(item.type != TENSOR for item in node.inputs):
                raise
            return _ANY_FLOAT, UNKNOWN

    def _joined(self, sources: list[Value]) -> tuple[Any, TensorFacts]:
        """One of several tensors; of those that no run came to nothing is given."""
        looks = [self._look(value) for value in sources if value.is_constant or value.facts.is_seen]
        kinds = {result for result, _ in looks}
        if not looks or not all(isinstance(kind, TensorType) for kind in kinds):
            raise _UntoldError(UNSEEN)
        read = _lasting(facts for _, facts in looks)
        one = looks[0][0]
        if all(kind == one for kind in kinds):
            return one, read
        if any(kind.dtype != one.dtype for kind in kinds):
            raise _UntoldError(_UNTOLD)
        return one, replace(read, lasting=NOTHING)

    def _held(self, node: Node, read: list[TensorFacts]) -> Any:
        """The number that a node gives, or that the tensor holds which it makes."""
        args = [self._number(value, read) for value in node.inputs]
        number = infer_held(node.qualified_op, args)
        if number is None:
            raise _UntoldError(_UNTOLD)
        return number

    def _number(self, value: Value, read: list[TensorFacts]) -> Any:
        if value.type == TENSOR and not value.is_constant:
            if value.producer is None or value.producer.blocks:
                raise _UntoldError(_UNTOLD)
            return self._held(value.producer, read)
        if is_constant_tensor(value) and not value.constant.dim():
            return value.constant.item()
        result, facts = self._look(value)
        read.append(facts)
        return result


def _lasting(read: Iterable[TensorFacts]) -> TensorFacts:
    """What lasts of something that follows from all of these."""
    items = list(read)
    lasting = max((item.lasting for item in items), key=_LASTING.index, default=SIZES)
    return TensorFacts(lasting=lasting, varies=any(item.varies for item in items))
