"""Specialise for every size at once: a Program is evaluated for one example, and what its sizes depend on is noted.

The evaluation is that of :mod:`mobopt.runtimes.specialize`, with the example's sizes. Beside it, sizes are kept as
expressions of symbols (:mod:`mobopt.ir.dimensions`), as rules of shapes give them, and so are the numbers that the
model computes from sizes. A comparison of sizes, in the model or in a rule, has the answer of the example, which
becomes a guard. Where an expression can't go (an operator without a rule, floats, elements that are looked at, memory
that is shared by views), its symbols are pinned: a guard says that they have the example's values. So what is found
holds for all sizes that meet the guards: a :class:`~mobopt.runtimes.template.Template`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.ir import Node, Origin, Program, Value
from mobopt.ir.dimensions import Dimension, Expression, symbol
from mobopt.ir.guards import Guards
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.types import TensorType
from mobopt.ops.records import Trait, has_trait, record_of
from mobopt.ops.shapes import NoRuleError, infer
from mobopt.ops.shapes.numbers import infer_held, infer_numbers, tells_numbers
from mobopt.ops.shapes.rules import equal
from mobopt.runtimes.abstract import Memory, TracedTensor, ViewRecipe
from mobopt.runtimes.cpu.evaluator import BlockPlan, Environment, Frame
from mobopt.runtimes.recorder import Recorder
from mobopt.runtimes.segment import Alias, Leaf, Segment
from mobopt.runtimes.specialize import NO_STATE, Specializer

Sizes = tuple[Dimension, ...]


@dataclass(frozen=True, eq=False)
class Deferred:
    """A constant that depends on sizes: output ``index`` of an operator on numbers and constants."""

    op: str
    """Empty for a tensor of zeros that stands for one of which only sizes and dtype matter."""
    args: tuple[Any, ...]
    """Tensors as Values; numbers may be expressions. Of a stand-in, its dtype and its sizes."""
    index: int


@dataclass(frozen=True, eq=False)
class Traced:
    """The Segment for an example, and what in it depends on symbols."""

    segment: Segment
    guards: Guards
    inputs: Sequence[TensorType]
    sizes: Mapping[Value, Sizes]
    """Of tensors, where they are not numbers."""
    args: Mapping[Node, tuple[Any, ...]]
    """Of nodes, where numbers among them may be expressions."""
    deferred: Mapping[Value, Deferred]
    """Constants, in the order in which they can be computed."""
    result: Any
    """The segment's result, where numbers may be expressions."""


def trace_symbols(
    program: Program,
    method: str,
    args: Sequence[Any],
    inputs: Sequence[TensorType],
    guards: Guards,
    by_elements: Collection[str] = (),
) -> Traced:
    """Specialise for an example, and note what depends on symbols.

    Args:
        program: a model without state.
        method: the method's name.
        args: the example's arguments without self; of tensors, only sizes and dtypes matter.
        inputs: types of the tensors among them, with symbols of ``guards`` as some sizes.
        guards: their examples are the sizes of ``args``.
        by_elements: as for :func:`mobopt.runtimes.specialize.specialize`.

    Raises:
        InputError: as for :func:`mobopt.runtimes.specialize.specialize`.
        UnsupportedError: the same.
    """
    with torch.no_grad():
        return _SymbolicSpecializer(program, inputs, guards, by_elements).trace(method, args)


class SymbolicRecorder(Recorder):
    """Records nodes for the example, and notes symbolic sizes and arguments of them."""

    def __init__(self, guards: Guards, by_elements: Collection[str]) -> None:
        super().__init__(by_elements=by_elements)
        self.guards = guards
        self.sizes: dict[Value, Sizes] = {}
        self.args: dict[Node, tuple[Any, ...]] = {}
        self.deferred: dict[Value, Deferred] = {}
        self._numbers: dict[Value, Dimension] = {}
        """What tensors hold that hold one integer which depends on symbols."""
        self._of_meta: dict[int, tuple[torch.Tensor, Sizes]] = {}
        """Symbolic sizes by the geometry that they belong to, which is kept so that no other takes its place."""
        self._uncertain: dict[Memory, Memory | None] = {}
        """Memories that may be shared or not by the sizes, with the one that they were copied from, if they were."""

    def sizes_of(self, tensor: TracedTensor) -> Sizes:
        """Sizes, as expressions where they depend on symbols."""
        found = self._of_meta.get(id(tensor.meta))
        return tuple(tensor.meta.shape) if found is None else found[1]

    def note_sizes(self, tensor: TracedTensor, sizes: Sequence[Dimension]) -> None:
        """Say what the sizes of a new tensor are."""
        if any(isinstance(size, Expression) for size in sizes):
            self._of_meta[id(tensor.meta)] = tensor.meta, tuple(sizes)

    def example(self, nest: Any) -> Any:
        """A nest with the example's numbers in place of expressions."""
        examples = self.guards.examples
        return map_leaves(nest, Expression, lambda item: item.substitute(examples))

    def pin(self, nest: Any) -> Any:
        """A nest with numbers in place of expressions; from now on all symbols that it depends on have these values."""
        for tensor in leaves_of(nest, TracedTensor):
            self._pin_numbers(self.sizes_of(tensor))
            self._pin_constant(tensor.ref)
        return map_leaves(nest, Expression, int)

    def pin_all(self) -> None:
        """Let every symbol have the example's value."""
        for name in self.guards.symbols:
            int(symbol(self.guards, name))

    def origin_of(self, memory: Memory) -> Memory:
        """The memory that this one would be at other sizes, of several the first."""
        while (source := self._uncertain.get(memory)) is not None:
            memory = source
        return memory

    def _pin_numbers(self, nest: Any) -> None:
        for item in leaves_of(nest, Expression):
            int(item)

    def _pin_constant(self, value: Value) -> None:
        deferred = self.deferred.get(value)
        if deferred is not None:
            self._pin_numbers(deferred.args)
            for other in leaves_of(deferred.args, Value):
                self._pin_constant(other)

    def _is_symbolic(self, args: Sequence[Any]) -> bool:
        if next(leaves_of(args, Expression), None) is not None:
            return True
        tensors = list(leaves_of(args, TracedTensor))
        return any(id(tensor.meta) in self._of_meta or self.read(tensor) in self.deferred for tensor in tensors)

    def _type(self, tensor: TracedTensor) -> TensorType:
        return TensorType(tensor.meta.dtype, self.sizes_of(tensor))

    def _last_node(self) -> Node | None:
        return self.graph.block.nodes.last

    # What the recorder does, with symbols.

    def _record(self, op: str, args: Sequence[Any], source: Origin) -> Any:
        if not self._is_symbolic(args):
            return super()._record(op, args, source)
        return self._applied(op, args, source, super()._record, False)

    def _fold(self, op: str, args: Sequence[Any], source: Origin) -> Any:
        if not self._is_symbolic(args):
            return super()._fold(op, args, source)
        return self._applied(op, args, source, super()._fold, True)

    def _applied(
        self, op: str, args: Sequence[Any], source: Origin, apply: Callable[..., Any], is_constant: bool
    ) -> Any:
        """What an operator makes of the example, with notes of what it makes of other sizes."""
        number = self._held(op, args)
        if number is not None:
            return self._holding(apply(op, self.example(list(args)), source), number)
        types = map_leaves(list(args), TracedTensor, self._type)
        if tells_numbers(op):
            try:
                return infer_numbers(op, types)
            except NoRuleError:
                return apply(op, self.pin(list(args)), source)
        if has_trait(op, Trait.READS_METADATA_ONLY) and not has_trait(op, Trait.READS_STRIDES):
            return apply(op, self.example(list(args)), source)
        made = infer(op, types)
        if made is None:
            return apply(op, self.pin(list(args)), source)
        before = self._last_node()
        result = apply(op, self.example(list(args)), source)
        kinds, tensors = list(leaves_of(made, TensorType)), list(leaves_of(result, TracedTensor))
        node = self._last_node()
        if not self._agree(kinds, tensors) or (is_constant and node is not before):
            self.pin([list(args), result])
            return result
        operands = list(leaves_of(args, TracedTensor))
        values = map_leaves(tuple(args), TracedTensor, self.read)
        if node is not None and node is not before:
            self.args[node] = values
            self.sizes.update(zip(node.outputs, (kind.sizes for kind in kinds), strict=True))
        for index, (kind, tensor) in enumerate(zip(kinds, tensors, strict=True)):
            if any(tensor is operand for operand in operands):
                continue
            self.note_sizes(tensor, kind.sizes)
            if is_constant:
                self.deferred[tensor.ref] = Deferred(op, values, index)
                self.sizes[tensor.ref] = kind.sizes
            elif kind.numel == 0:
                self._pin_numbers(kind.sizes)
            if tensor.recipe is not None:
                frozen = map_leaves(tuple(args), TracedTensor, TracedTensor.snapshot)
                tensor.recipe = ViewRecipe(op, frozen, index, source)
            if Trait.VIEW in record_of(op).traits and operands:
                self._doubt(operands[0], tensor)
        return result

    def _held(self, op: str, args: Sequence[Any]) -> Dimension | None:
        """The number that an operator on numbers, or on tensors that hold one, gives or makes a tensor of."""
        held = [self._number_in(tensor) for tensor in leaves_of(args, TracedTensor)]
        if any(number is None for number in held):
            return None
        numbers = iter(held)
        found = infer_held(op, map_leaves(list(args), TracedTensor, lambda tensor: next(numbers)))
        return found if isinstance(found, Expression) else None

    def _number_in(self, tensor: TracedTensor) -> Dimension | None:
        """What a tensor without dimensions holds, if it is one integer."""
        value = self.read(tensor)
        if value in self._numbers:
            return self._numbers[value]
        elements = value.elements
        if elements is None or elements.dtype != torch.int64 or elements.dim():
            return None
        return None if value in self.deferred else int(elements)

    def _holding(self, result: Any, number: Dimension) -> Any:
        """The number itself where an operator gives numbers, else the tensor that holds it."""
        if not isinstance(result, TracedTensor):
            return number
        self._numbers[result.ref] = number
        self.deferred[result.ref] = Deferred("prim::NumToTensor.Scalar", (number,), 0)
        return result

    def _agree(self, kinds: Sequence[TensorType], tensors: Sequence[TracedTensor]) -> bool:
        return len(kinds) == len(tensors) and all(
            kind.dtype == tensor.meta.dtype and self.example(kind.sizes) == tuple(tensor.meta.shape)
            for kind, tensor in zip(kinds, tensors, strict=True)
        )

    def _doubt(self, base: TracedTensor, made: TracedTensor) -> None:
        """Note where an operator that may give a view may share memory or not, as strides are at other sizes."""
        if made.memory is not base.memory:
            self._uncertain[made.memory] = base.memory
            self._uncertain.setdefault(base.memory, None)
        elif not base.meta.is_contiguous():
            self._uncertain.setdefault(base.memory, None)

    def _stand_in(self, tensor: TracedTensor) -> TracedTensor:
        made, sizes = super()._stand_in(tensor), self.sizes_of(tensor)
        self.note_sizes(made, sizes)
        if any(isinstance(size, Expression) for size in sizes):
            self.deferred[made.ref] = Deferred("", (tensor.meta.dtype, sizes), 0)
            self.sizes[made.ref] = sizes
        return made

    def _write(self, target: TracedTensor, value: TracedTensor, source: Origin) -> None:
        if target.memory in self._uncertain:
            self.pin_all()
        if value.meta.dtype != target.meta.dtype:
            value = self.apply("aten::to.dtype", [value, target.meta.dtype, False, False, None], source)
        wanted, given = self.sizes_of(target), self.sizes_of(value)
        if value.meta.shape != target.meta.shape:
            value = self.apply("aten::expand", [value, list(wanted), False], source)
        else:
            equal(wanted, given)  # so they are in the example; for others this is a guard
        if target.recipe is not None:
            whole = TracedTensor(target.memory, target.memory.meta, target.memory.ref)
            self.pin([target, whole])
        super()._write(target, value, source)


class _SymbolicSpecializer(Specializer):
    """Evaluates with a :class:`SymbolicRecorder`; numbers may be expressions."""

    def __init__(
        self, program: Program, inputs: Sequence[TensorType], guards: Guards, by_elements: Collection[str]
    ) -> None:
        self._symbols = SymbolicRecorder(guards, by_elements)
        super().__init__(program, self._symbols)
        self._types = inputs
        self._result: Any = None

    def trace(self, method: str, args: Sequence[Any]) -> Traced:
        """See :func:`trace_symbols`."""
        segment = self.begin(method, args, NO_STATE)
        symbols = self._symbols
        return Traced(segment, symbols.guards, self._types, symbols.sizes, symbols.args, symbols.deferred, self._result)

    def _input(self, value: torch.Tensor) -> TracedTensor:
        sizes = self._types[len(self._graph.inputs)].sizes
        tensor = super()._input(value)
        self._symbols.note_sizes(tensor, sizes)
        self._symbols.sizes[tensor.ref] = sizes
        return tensor

    def _step(self, frames: list[Frame], plan: BlockPlan, environment: Environment) -> None:
        """Operators that ask whether something is an integer, look it up, or count to it, are given numbers."""
        node = plan.nodes[frames[-1].position]
        if node.op in ("prim::isinstance", "prim::DictConstruct", "prim::Loop"):
            wanted = node.inputs[:1] if node.op == "prim::Loop" else node.inputs
            for value in wanted:
                if isinstance(environment.get(value), Expression):
                    environment[value] = int(environment[value])
        super()._step(frames, plan, environment)

    def _builtin(self, function: Callable[..., Any], node: Node, args: list[Any]) -> Any:
        """Lists may hold expressions; what else takes them is given numbers, but for what hands its argument back."""
        if args and not isinstance(args[0], list) and any(isinstance(item, Expression) for item in args):
            if len(args) == 1 and (result := super()._builtin(function, node, args)) is args[0]:
                return result
            args = [int(item) if isinstance(item, Expression) else item for item in args]
        return super()._builtin(function, node, args)

    def _leaves(self, result: Any, updates: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        lying: dict[Memory, dict[int, TracedTensor]] = {}
        for tensor in leaves_of(result, TracedTensor):
            lying.setdefault(tensor.memory, {})[id(tensor)] = tensor
            if self._symbols.origin_of(tensor.memory) is not tensor.memory and (
                self._symbols.origin_of(tensor.memory) in self._given
            ):
                self._symbols.pin_all()
        for tensors in lying.values():
            if len(tensors) > 1:
                self._symbols.pin(list(tensors.values()))
        made, updates = super()._leaves(result, updates)
        self._result = made
        return self._symbols.example(made), updates

    def _leaf(self, tensor: TracedTensor, is_shared: bool) -> Leaf:
        leaf = super()._leaf(tensor, is_shared)
        if isinstance(leaf, Alias):
            memory = tensor.memory
            self._symbols.pin([tensor, TracedTensor(memory, memory.meta, memory.ref)])
        return leaf
