"""Where a rewrite works: one node, what is known of its arguments, and a way to put nodes before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mobopt.ir import Graph, Node, Program, Value
from mobopt.ir.dimensions import Expression
from mobopt.ir.facts import TensorFacts, facts_of_constant
from mobopt.ir.nests import leaves_of
from mobopt.ir.types import ListType
from mobopt.ops.costs import Cost, cost_of_node
from mobopt.ops.effects import listed_items
from mobopt.ops.schemas import Argument, schema_of
from mobopt.ops.targets import Target
from mobopt.passes.inference import Inference
from mobopt.passes.rewriting import argument

SAFE, FULL = "safe", "full"


class Refused(Exception):  # noqa: N818 - it is an answer, not an error
    """A rewrite can't be done here; the message says why, as the end of "not rewritten: ..."."""


@dataclass(frozen=True)
class Rewrite:
    """A registered rewrite."""

    name: str
    level: str
    """``safe``: right for inputs of every size; ``full``: fixes the file to the sizes of the example."""
    apply: Callable[[Site], Value | tuple[Value, ...]]

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return (self.apply.__doc__ or "").strip().splitlines()[0].rstrip(".")


_REWRITES: dict[str, Rewrite] = {}


def legalizes(
    name: str, level: str
) -> Callable[[Callable[[Site], Value | tuple[Value, ...]]], Callable[[Site], Value | tuple[Value, ...]]]:
    """Register a rewrite under the name that target rows have for it."""

    def register(function: Callable[[Site], Value | tuple[Value, ...]]) -> Any:
        assert name not in _REWRITES, f"two rewrites are called {name}"
        assert level in (SAFE, FULL), level
        _REWRITES[name] = Rewrite(name, level, function)
        return function

    return register


def rewrites() -> Mapping[str, Rewrite]:
    """Every rewrite by name."""
    import importlib
    import pkgutil

    import mobopt.passes.legalizations as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return _REWRITES


class Site:
    """One node that is to be rewritten."""

    def __init__(self, program: Program, graph: Graph, node: Node, target: Target) -> None:
        self.graph = graph
        self.node = node
        self.backend = target.backend
        self.runtime = target.runtime
        self.limit = target.image_limit
        """Largest extent of an image."""
        self.weight_limit = target.weight_limit
        """Largest side of the image of a convolution's packed weight."""
        self.remark = ""
        """Why this form was chosen, for the notes."""
        self.cuts: dict[tuple[Value, int, int, int], Value] = {}
        """What was cut out of tensors already, by dimension, start and end."""
        self._inference = None if program.observed is None else Inference(program)

    def arg(self, name: str) -> Value:
        """The argument that the schema calls ``name``."""
        return argument(self.node, name)

    def const(self, name: str) -> Any:
        """A constant argument's value.

        Raises:
            Refused: it is computed.
        """
        return self.known(self.arg(name), name)

    def known(self, value: Value, name: str = "") -> Any:
        """What a value is, also a list of known items.

        Raises:
            Refused: it is computed.
        """
        if value.is_constant:
            return value.constant
        items = listed_items(value)
        if items is not None:
            return [self.known(item, name) for item in items]
        raise Refused(f"its {name or value.name} is computed when the model runs")

    def items(self, name: str) -> list[Value]:
        """The tensors of a list argument.

        Raises:
            Refused: the list is not made in place.
        """
        items = listed_items(self.arg(name))
        if items is None:
            raise Refused(f"its {name} is not a list of known length")
        return list(items)

    def facts(self, of: str | Value) -> TensorFacts:
        """What is known of a tensor."""
        value = self.arg(of) if isinstance(of, str) else of
        if value.is_constant and isinstance(value.constant, torch.Tensor):
            return facts_of_constant(value.constant)
        return value.facts

    def sizes(self, of: str | Value) -> tuple[int, ...]:
        """Sizes of a tensor, in the example but for those that are declared to vary.

        These are expressions, which take a number's place: whatever needs their value, or would write it into the file,
        raises :class:`UndecidedError` or :class:`Refused`.

        Raises:
            Refused: there is no example.
        """
        sizes = self.facts(of).dimensions
        if sizes is None:
            name = of if isinstance(of, str) else of.name
            raise Refused(f"the sizes of its {name} are not known; give example inputs")
        return sizes  # type: ignore[return-value]

    def cost(self) -> Cost:
        """What the node costs as it is."""
        return cost_of_node(self.node, {})

    def rank(self, of: str | Value) -> int:
        """Number of dimensions of a tensor.

        Raises:
            Refused: there is no example.
        """
        rank = self.facts(of).known_rank
        return len(self.sizes(of)) if rank is None else rank

    def op(self, qualified_op: str, *args: Any, outputs: int = 1) -> Any:
        """Put an operator before the node.

        Args:
            qualified_op: with overload, ``aten::slice.Tensor``.
            args: Values, constants (tensors too), None, or lists of Values, in the schema's order; what is missing at
                the end has the schema's default.
            outputs: how many results it has.

        Returns:
            The Value, or a tuple of them.
        """
        schema = schema_of(qualified_op)
        rest = schema.arguments[len(args) :]
        assert all(item.has_default for item in rest), f"{qualified_op} needs more than {len(args)} arguments"
        given = [*args, *(item.default for item in rest)]
        inputs = [self._value(value, item) for value, item in zip(given, schema.arguments, strict=True)]
        returns = schema.returns[:outputs]
        node = self.graph.create(schema.name, inputs, returns, overload=schema.overload, origin=self.node.origin)
        node.insert_before(self.node)
        if self._inference is not None:
            self._inference.complete(node)
        return node.output if outputs == 1 else tuple(node.outputs)

    def _value(self, value: Any, item: Argument) -> Value:
        if isinstance(value, Value):
            return value
        if next(leaves_of(value, Expression), None) is not None:
            raise Refused(f"it would fix {item.name} to sizes that are declared to vary")
        if isinstance(value, (list, tuple)) and any(isinstance(part, Value) for part in value):
            parts = [part if isinstance(part, Value) else self.graph.constant(part) for part in value]
            kind = ListType(parts[0].type)
            made = self.graph.create("prim::ListConstruct", parts, [kind], origin=self.node.origin)
            return made.insert_before(self.node).output
        constant = list(value) if isinstance(value, tuple) else value
        if item.fixed_length is not None and isinstance(constant, (int, float)):
            constant = [constant] * item.fixed_length
        # The empty list has no type of its own.
        own_type = item.type if isinstance(constant, list) and not constant else None
        return self.graph.constant(constant, own_type, name=item.name)
