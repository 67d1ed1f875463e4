"""Operators that work on graphs: branches, loops, and graphs that stand for what they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mobopt.errors import BundleError, UnsupportedError
from mobopt.frontends.exported.nodes import NodeReader
from mobopt.ir import Node, Value
from mobopt.ir.schemas import resolve
from mobopt.ir.types import BOOL, INT

_ENDLESS = (1 << 63) - 1
"""Trips that TorchScript's loops of a condition alone have at most."""
_TRANSPARENT = (
    "invoke_subgraph",
    "tag_activation_checkpoint",
    "wrap",
    "wrap_activation_checkpoint",
    "wrap_with_set_grad_enabled",
)
"""Operators that only compute what their graph does, where nothing is trained."""
_HERE = "cpu"


class GraphReader(NodeReader):
    """Reads nodes, also those that hold graphs."""

    def higher_order(self, name: str, inputs: Sequence[Mapping[str, Any]]) -> list[Value]:
        """What an operator on graphs makes."""
        if name in _TRANSPARENT:
            return self._transparent(inputs)
        match name:
            case "cond":
                return self._cond(*inputs)
            case "while_loop":
                return self._while(*inputs)
            case "wrap_with_autocast":
                _check_autocast(inputs)
                return self._transparent(inputs)
        raise UnsupportedError(
            f"torch.ops.higher_order.{name} is not read; write it with operators of tensors, torch.cond or while_loop"
        )

    def inline(self, graph: Mapping[str, Any], operands: Sequence[Value]) -> list[Value]:
        """Append what a graph computes from these values; returns what it returns."""
        outer, described = self.values, self._described
        self.values = {}
        try:
            self.enter(graph["inputs"], operands)
            self.read(graph)
            return [self.argument(item) for item in graph["outputs"]]
        finally:
            self.values, self._described = outer, described

    def enter(self, inputs: Sequence[Mapping[str, Any]], operands: Sequence[Value]) -> None:
        """Give the inputs of a graph their values.

        Raises:
            BundleError: there are more or fewer.
        """
        if len(inputs) != len(operands):
            raise BundleError(f"a graph takes {len(inputs)} values and is given {len(operands)}")
        for item, value in zip(inputs, operands, strict=True):
            ((_, content),) = item.items()
            if isinstance(content, dict):
                self.values[content.get("name") or content["as_name"]] = value

    def _operands(self, arguments: Sequence[Mapping[str, Any]]) -> list[Value]:
        found: list[Value] = []
        for argument in arguments:
            ((tag, content),) = argument.items()
            if tag in ("as_tensors", "as_optional_tensors", "as_sym_ints", "as_ints"):
                single = {"as_tensors": "as_tensor", "as_sym_ints": "as_sym_int", "as_ints": "as_int"}.get(tag)
                found += [self.argument({single: item} if single else item) for item in content]
            else:
                found.append(self.argument(argument))
        return found

    def _transparent(self, inputs: Sequence[Mapping[str, Any]]) -> list[Value]:
        place = next(index for index, item in enumerate(inputs) if "as_graph" in item)
        operands = [item for item in inputs[place + 1 :] if "as_string" not in item]  # an identifier
        return self.inline(_graph(inputs[place]), self._operands(operands))

    def _cond(
        self,
        condition: Mapping[str, Any],
        then: Mapping[str, Any],
        otherwise: Mapping[str, Any],
        operands: Mapping[str, Any],
    ) -> list[Value]:
        values = self._operands([operands])
        node = self.builder.if_else(self._truth(self.argument(condition)))
        results = []
        for block, graph in zip(node.blocks, (then, otherwise), strict=True):
            with self.builder.inside(block):
                results.append(self.inline(_graph(graph), values))
        return self.builder.finish_if(node, results[0], results[1])

    def _while(
        self,
        condition: Mapping[str, Any],
        body: Mapping[str, Any],
        carried: Mapping[str, Any],
        others: Mapping[str, Any],
    ) -> list[Value]:
        start, fixed = self._operands([carried]), self._operands([others])
        test, step = _graph(condition), _graph(body)
        builder, graph = self.builder, self.graph
        first = self._truth(self.inline(test, [*start, *fixed])[0])
        node = Node("prim::Loop", [builder.constant(_ENDLESS), first, *start], origin=builder.origin)
        block = node.add_block()
        block.add_parameter(graph.value(INT, "turn"))
        inner = [block.add_parameter(graph.value(value.type, "carried")) for value in start]
        with builder.inside(block):
            results = self.inline(step, [*inner, *fixed])
            again = self._truth(self.inline(test, [*results, *fixed])[0])
        if [value.type for value in results] != [value.type for value in start]:
            raise UnsupportedError("a loop's values change their types from turn to turn")
        block.returns.set_inputs([again, *results])
        outputs = [node.add_output(graph.value(value.type, "carried")) for value in start]
        builder.append(node)
        return outputs

    def _truth(self, value: Value) -> Value:
        if value.type == BOOL:
            return value
        return self.builder.operator(resolve("aten::Bool", [value.type]), {0: value})[0]


def _graph(argument: Mapping[str, Any]) -> Mapping[str, Any]:
    graph: Mapping[str, Any] = argument["as_graph"]["graph"]
    return graph


def _check_autocast(inputs: Sequence[Mapping[str, Any]]) -> None:
    """Refuse regions of mixed precision that change what the CPU computes.

    Raises:
        UnsupportedError: the region does.
    """
    device, enabled = inputs[0].get("as_string"), inputs[2].get("as_bool")
    if device == _HERE and enabled:
        raise UnsupportedError(
            "a region under torch.autocast computes in another dtype than its operators say; export the model without "
            "autocast, in the dtype that it should have"
        )
