"""A method's graph as torch.export sees it: each of our nodes becomes one ATen operator, with its lines of source.

Sizes stay symbols, for numbers are computed by functions that take them; branches and loops that depend on elements
become ``torch.cond`` and ``while_loop``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from mobopt.exporters.branches import always_raises, branch, loop
from mobopt.ir import Block, Node, Program
from mobopt.ir.nests import leaves_of
from mobopt.ir.types import BOOL, FLOAT, INT, SCALAR, Type
from mobopt.ops.effects import reads_metadata
from mobopt.runtimes.cpu.evaluator import BlockPlan, Environment, Evaluator, Frame
from mobopt.runtimes.cpu.kernels import kernel

Symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NUMBERS: dict[Type, torch.dtype | None] = {INT: torch.int64, FLOAT: torch.float64, BOOL: torch.bool, SCALAR: None}


def constant_numbers(program: Program) -> dict[int, tuple[torch.Tensor, Any]]:
    """The numbers that traces keep as tensors, by the tensors' identities."""
    values = [value for graph in program.methods.values() for node in graph.walk() for value in node.inputs]
    tensors = [value.constant for value in values if value.is_constant and isinstance(value.constant, torch.Tensor)]
    return {id(tensor): (tensor, tensor.item()) for tensor in tensors if tensor.dim() == 0}


class Tracer(Evaluator):
    """Evaluates a method while torch.export records what torch's operators do."""

    def __init__(
        self,
        program: Program,
        tensors: Mapping[str, torch.Tensor],
        state: Mapping[str, Any],
        constants: Mapping[int, tuple[torch.Tensor, Any]],
    ) -> None:
        """Take what the method reads.

        Args:
            program: in its plain form.
            tensors: the attributes that are tensors.
            state: those of them that methods change.
            constants: see :func:`constant_numbers`.
        """
        super().__init__(program)
        self.attributes.update(tensors)
        self.state = dict(state)
        self._numbers: dict[int, tuple[torch.Tensor, Any]] = dict(constants)
        """What tensors without dimensions hold that were made of sizes, as traces make them, with the tensors."""

    def lift(self, value: Any) -> Any:
        """Itself; containers are copied, for the model may change them."""
        return list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor."""
        return isinstance(value, torch.Tensor)

    def operator(self, node: Node, args: list[Any]) -> Any:
        """Call torch's operator, or compute a number that depends on sizes."""
        fx_traceback.set_stack_trace([f"  {place}\n" for place in node.origin.lines])
        tensors = list(leaves_of(args, torch.Tensor))
        if not tensors:
            return self._number(node, args)
        if reads_metadata(node):
            return _metadata(node, args)
        if len(args) == 1 and node.outputs and node.output.type in _NUMBERS:
            return self._item(args[0], _NUMBERS[node.output.type])
        result = kernel(node.qualified_op)(*args)
        self._remember(node, args, result)
        return result

    def trips(self, limit: Any) -> Any:
        """The number itself, which may be a symbol."""
        return limit

    def _step(self, frames: list[Frame], plan: BlockPlan, environment: Environment) -> None:
        """A branch by elements is taken both ways; all else as anywhere."""
        node = plan.nodes[frames[-1].position]
        if node.op == "prim::If":
            condition = self.value(node.inputs[0], environment)
            try:
                bool(condition)
            except GuardOnDataDependentSymNode:
                self._done(frames[-1], self._branch(node, condition, environment), environment)
                return
        super()._step(frames, plan, environment)

    def _branch(self, node: Node, condition: Any, environment: Environment) -> Sequence[Any]:
        raising = [always_raises(block) for block in node.blocks]
        if any(raising):  # a check that the model makes itself
            torch._check(condition if raising[1] else torch.sym_not(condition))  # type: ignore[no-untyped-call]
            return self._run(node.blocks[raising.index(False)], environment, [])
        return branch(node, condition, environment, [partial(self._run, block) for block in node.blocks])

    def _goes_round(self, frame: Frame, results: list[Any], environment: Environment) -> bool:
        """Begin another trip, or leave the loop; if elements decide, what is left of it becomes one operator."""
        try:
            return super()._goes_round(frame, results, environment)
        except GuardOnDataDependentSymNode:
            assert frame.owner is not None
            condition, *carried = results
            run = partial(self._run, frame.block)
            results[1:] = loop(frame.owner, frame.limit, condition, frame.trip, carried, environment, run)
            return False

    def _run(self, block: Block, environment: Environment, arguments: Sequence[Any]) -> Sequence[Any]:
        """What a block returns, on its own."""
        inner = dict(environment)
        self.bind(block.parameters, arguments, inner)
        return self.proceed([Frame(block)], inner)

    def _number(self, node: Node, args: list[Any]) -> Any:
        """What has no tensors among its arguments; a number of sizes may become a tensor."""
        name = node.op.partition("::")[2]
        if name == "NumToTensor":
            made = torch.scalar_tensor(args[0], dtype=_dtype_of(args[0]))
            self._numbers[id(made)] = made, args[0]
            return made
        if name in _FUNCTIONS and any(True for kind in Symbolic for _ in leaves_of(args, kind)):
            return _FUNCTIONS[name](*args)
        return kernel(node.qualified_op)(*args)

    def _item(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> Any:
        """The number in a tensor: one that is known of sizes, or a symbol that stands for what is computed."""
        if id(tensor) in self._numbers:
            known = self._numbers[id(tensor)][1]
            if dtype in (torch.int64, torch.float64):
                convert: Callable[[Any], Any] = torch.sym_int if dtype == torch.int64 else torch.sym_float
                return convert(known)
            return known
        return (tensor if dtype is None else tensor.to(dtype)).item()

    def _remember(self, node: Node, args: list[Any], result: Any) -> None:
        """What arithmetic on such tensors gives is known too."""
        function = _FUNCTIONS.get(node.op.partition("::")[2])
        if function is None or not isinstance(result, torch.Tensor) or result.dim():
            return
        known = [self._numbers[id(item)][1] if id(item) in self._numbers else item for item in args]
        if any(isinstance(item, torch.Tensor) for item in known) or any(isinstance(item, str) for item in args):
            return  # a tensor of elements, or division that rounds
        operands = known[:1] if node.op == "aten::neg" else known[:2]
        if node.op in ("aten::add", "aten::sub") and len(known) > 2:
            operands[1] = operands[1] * known[2]
        self._numbers[id(result)] = result, function(*operands)


def _dtype_of(number: Any) -> torch.dtype:
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    return torch.float64 if isinstance(number, (float, torch.SymFloat)) else torch.int64


def _metadata(node: Node, args: list[Any]) -> Any:
    """Sizes and the like, which may be symbols."""
    tensor, *rest = args
    name = node.op.partition("::")[2]
    if name == "size":
        return tensor.size(*rest) if rest else list(tensor.size())
    if name == "len":
        return tensor.size(0)
    method = getattr(tensor, name, None)
    result = method(*rest) if callable(method) else kernel(node.qualified_op)(*args)
    return list(result) if isinstance(result, tuple) else result


def _list_or_pair(pair: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def reduced(*items: Any) -> Any:
        values = items[0] if len(items) == 1 else items
        result = values[0]
        for value in values[1:]:
            result = pair(result, value)
        return result

    return reduced


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "mod": operator.mod,
    "neg": operator.neg,
    "pow": operator.pow,
    "abs": operator.abs,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "max": _list_or_pair(torch.sym_max),
    "min": _list_or_pair(torch.sym_min),
    "ceil": math.ceil,
    "floor": math.floor,
    "round": round,
    "sqrt": torch.sym_sqrt,  # type: ignore[attr-defined]
    "Int": torch.sym_int,
    "Float": torch.sym_float,
    "Bool": lambda value: value != 0,
    "sum": sum,
}
"""Arithmetic on numbers, some of which are symbols, by the names of operators without their namespace."""
