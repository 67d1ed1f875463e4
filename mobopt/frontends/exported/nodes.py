"""Nodes of a serialised graph become nodes of ours: operators, arithmetic of sizes, branches, loops.

Source of the form: ``torch/_export/serde/schema.py``; what the operators of Python do with sizes:
``torch/fx/experimental/sym_node.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from mobopt.bundle.builder import Allowance, GraphBuilder
from mobopt.errors import BundleError, InputError, UnsupportedError
from mobopt.frontends.exported.enums import DTYPES, dtype_of, layout, memory_format, scalar_type
from mobopt.frontends.exported.quantization import TRANSLATIONS, ExportedCall
from mobopt.frontends.exported.scaled_layers import restored
from mobopt.ir import Graph, Value
from mobopt.ir.facts import RANK, SIZES, TensorFacts, name_of
from mobopt.ir.schemas import Argument, Schema, known_schema, resolve, schema_of
from mobopt.ir.types import (
    BOOL,
    COMPLEX,
    DEVICE,
    FLOAT,
    INT,
    SCALAR,
    STR,
    TENSOR,
    ListType,
    OptionalType,
    Type,
)
from mobopt.ops.records import Trait, record_of

_OPERATORS = "torch.ops."
_HIGHER_ORDER = "torch.ops.higher_order."
_FUNCTORCH = "torch._functorch."
_PYTHON = {
    "_operator.add": "aten::add",
    "_operator.sub": "aten::sub",
    "_operator.mul": "aten::mul",
    "_operator.floordiv": "aten::floordiv",
    "_operator.truediv": "aten::div",
    "_operator.mod": "aten::remainder",
    "_operator.pow": "aten::pow",
    "_operator.neg": "aten::neg",
    "_operator.eq": "aten::eq",
    "_operator.ne": "aten::ne",
    "_operator.lt": "aten::lt",
    "_operator.le": "aten::le",
    "_operator.gt": "aten::gt",
    "_operator.ge": "aten::ge",
    "_operator.and_": "aten::__and__",
    "_operator.or_": "aten::__or__",
    "_operator.lshift": "aten::__lshift__",
    "_operator.rshift": "aten::__rshift__",
    "math.trunc": "aten::Int",
    "math.floor": "aten::floor",
    "math.ceil": "aten::ceil",
    "torch.sym_not": "aten::__not__",
    "torch.sym_float": "aten::Float",
    "torch.sym_int": "aten::Int",
    "torch.sym_max": "prim::max",
    "torch.sym_min": "prim::min",
    "torch._sym_sqrt": "aten::sqrt",
}
"""Functions of Python that are called with sizes, and TorchScript's."""
_MOST_FACTORS = 4
"""Of the power of a size that is written as a product, which stays open."""
_RENAMED = {
    "aten::sym_size.int": "aten::size.int",
    "aten::sym_stride.int": "aten::stride.int",
    "aten::sym_numel": "aten::numel",
    "aten::sym_storage_offset": "aten::storage_offset",
    "aten::lift_fresh_copy": "aten::clone",
    "aten::detach_": "aten::detach",
}
"""Operators that exporting makes, and the same under the names that files have."""
_ASSUMPTIONS = (
    "aten::_assert_tensor_metadata",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
)
"""Operators that repeat what the inputs and the graph before them say."""
_CHECKED_NUMBER = "aten::_assert_scalar"
_CHECKED_TENSOR = ("aten::_assert_async", "aten::_assert_async.msg")
_NUMBER_OF_TENSOR = {INT: "aten::Int.Scalar", FLOAT: "aten::Float.Scalar", BOOL: "aten::Bool.int"}
_PLAIN: dict[str, tuple[Callable[[Any], Any], Type]] = {
    "as_bool": (bool, BOOL),
    "as_string": (str, STR),
    "as_scalar_type": (scalar_type, INT),
    "as_memory_format": (memory_format, INT),
    "as_layout": (layout, INT),
    "as_ints": (lambda items: [int(item) for item in items], ListType(INT)),
    "as_bools": (lambda items: [bool(item) for item in items], ListType(BOOL)),
    "as_strings": (lambda items: [str(item) for item in items], ListType(STR)),
    "as_floats": (lambda items: [_float(item) for item in items], ListType(FLOAT)),
    "as_complex": (lambda item: complex(_float(item["real"]), _float(item["imag"])), COMPLEX),
}
"""Arguments that are constants, by tag."""
_SYMBOLIC = {"as_sym_int": INT, "as_sym_float": FLOAT, "as_sym_bool": BOOL}
_SYMBOLIC_LISTS = {"as_sym_ints": INT, "as_sym_floats": FLOAT, "as_sym_bools": BOOL}


def _float(value: Any) -> float:
    """JSON has no infinities, which stand there as text."""
    return float(value)


class NodeReader:
    """Appends what serialised nodes compute to the current block of a graph.

    Attributes:
        builder: appends nodes.
        values: what names stand for, in the graph that is being read.
        stored: tensors that the program holds and no call changes, by the values that read them.
        unrounded: integers that a call rounded, as the floats that they were.
        filled: tensors that a call made, all of whose elements are one number.
        kept: scales and zero points of blocks, as they broadcast beside what they were found of, and its sizes then.
    """

    def __init__(self, allowance: Allowance) -> None:
        self.builder = GraphBuilder(allowance)
        self._allowance = allowance
        self.values: dict[str, Value] = {}
        self.stored: dict[Value, torch.Tensor] = {}
        self.unrounded: dict[Value, Value] = {}
        self.filled: dict[Value, int] = {}
        self.kept: dict[Value, tuple[Value, list[int | Value]]] = {}
        self._described: Mapping[str, Any] = {}

    @property
    def graph(self) -> Graph:
        """The graph that is built."""
        return self.builder.graph

    def read(self, graph: Mapping[str, Any]) -> None:
        """Append the nodes of a graph in their order.

        Raises:
            BundleError: the nodes are damaged, or call what a file may not.
            UnsupportedError: a Program can't hold them.
            InputError: the model was exported in training mode.
        """
        self._described = graph.get("tensor_values", {})
        for name, value in self.values.items():
            self._describe(name, value)
        for node in graph["nodes"]:
            self.builder.step()
            self.builder.source = source_of_metadata(node.get("metadata", {}))
            try:
                self._read(node)
            except (UnsupportedError, InputError) as error:
                place = f" ({self.builder.source})" if self.builder.source else ""
                raise type(error)(f"node {node.get('name')!r}{place}: {error}") from None

    def _read(self, node: Mapping[str, Any]) -> None:
        target: str = node["target"]
        if target.startswith(_HIGHER_ORDER):
            inputs = [item["arg"] for item in node["inputs"]]
            made = self.higher_order(target.removeprefix(_HIGHER_ORDER), inputs)
            self.bind(list(_flat(node["outputs"])), made)
        elif target.startswith(_OPERATORS):
            self._operator(target.removeprefix(_OPERATORS), node)
        elif target in _PYTHON:
            arguments = [self.argument(item["arg"]) for item in node["inputs"]]
            self.bind(node["outputs"], [self._python(_PYTHON[target], arguments)])
        elif target == "torch.sym_ite":
            self.bind(node["outputs"], [self._choice(*(self.argument(item["arg"]) for item in node["inputs"]))])
        elif target.startswith(_FUNCTORCH):
            raise UnsupportedError(
                "steps of torch.vmap can't be read; save the exported program again after run_decompositions({})"
            )
        else:
            raise UnsupportedError(f"the function {target} of sizes is not known; write it with arithmetic")

    def higher_order(self, name: str, inputs: Sequence[Mapping[str, Any]]) -> list[Value]:
        """What an operator on graphs makes.

        Raises:
            UnsupportedError: a Program can't hold it.
        """
        raise UnsupportedError(f"the operator {name} works on graphs")

    def _python(self, name: str, arguments: Sequence[Value]) -> Value:
        types = [value.type for value in arguments]
        if name == "aten::pow" and types == [INT, INT]:
            return self._integer_power(*arguments)
        return self.builder.operator(resolve(name, types), dict(enumerate(arguments)))[0]

    def _integer_power(self, base: Value, exponent: Value) -> Value:
        """A product, as torch computes the power of two integers as a float, whichever overload is asked for."""
        if exponent.is_constant and 1 <= exponent.constant <= _MOST_FACTORS:
            result = base
            for _ in range(exponent.constant - 1):
                result = self._python("aten::mul", [result, base])
            return result
        power = self.builder.operator(resolve("aten::pow", [INT, INT]), {0: base, 1: exponent})[0]
        return self._python("aten::Int", [power])

    def _choice(self, condition: Value, then: Value, otherwise: Value) -> Value:
        return self.builder.finish_if(self.builder.if_else(condition), [then], [otherwise])[0]

    def _operator(self, target: str, node: Mapping[str, Any]) -> None:
        namespace, name, overload = target.split(".")
        qualified = f"{namespace}::{name}" + ("" if overload == "default" else f".{overload}")
        qualified = _RENAMED.get(qualified, qualified)
        given = {item["name"]: item["arg"] for item in node["inputs"]}
        if qualified in _ASSUMPTIONS:
            return
        if qualified in TRANSLATIONS:
            self.bind(node["outputs"], TRANSLATIONS[qualified](ExportedCall(self, given)))
            return
        if qualified == _CHECKED_NUMBER or qualified in _CHECKED_TENSOR:
            self._check(node)
            return
        schema = schema_of(qualified)
        _refuse_training(schema, given)
        arguments = {
            index: self._given(argument, given[argument.name])
            for index, argument in enumerate(schema.arguments)
            if argument.name in given
        }
        if len(arguments) != len(given):
            unknown = sorted(set(given) - {argument.name for argument in schema.arguments})
            raise BundleError(f"{qualified} is called with {', '.join(unknown)}, which it does not take")
        if any(_is_number(arguments[index]) and schema.arguments[index].type == TENSOR for index in arguments):
            schema, arguments = self._for_numbers(schema, arguments)
        made = self._called(schema, arguments, node["outputs"])
        self.bind(node["outputs"], [restored(self, value) for value in made])

    def emit(self, name: str, *operands: Any) -> Value:
        """Append a call of an operator that makes one value.

        Args:
            name: with its overload.
            operands: values, plain Python values, lists of both; the rest takes its defaults.
        """
        schema = schema_of(name)
        given = {index: self._operand(schema.arguments[index], item) for index, item in enumerate(operands)}
        return self.builder.operator(schema, given)[0]

    def _operand(self, argument: Argument, item: Any) -> Value:
        if isinstance(item, Value):
            return item
        kind = argument.type.element if isinstance(argument.type, OptionalType) else argument.type
        if isinstance(item, list) and isinstance(kind, ListType):
            return self._list([self._operand(argument, part) for part in item], kind.element)
        return self.builder.constant(item)

    def weight(self, tensor: torch.Tensor, like: Value) -> Value:
        """A constant that is called what a stored tensor is called."""
        name = like.producer.attributes["name"] if like.producer is not None else like.attribute
        return Value(self.graph.unique_name(like.name), TENSOR, tensor, str(name))

    def part(self, value: Value, name: str) -> Value:
        """A tensor that a stored tensor of a subclass is made of.

        Raises:
            BundleError: there is none.
        """
        raise BundleError(f"the model reads {name!r} of a tensor that it does not hold")

    def described(self, arg: Mapping[str, Any]) -> tuple[torch.dtype, list[int | None]]:
        """Dtype and sizes of a tensor, None where they are open."""
        ((_, content),) = arg.items()
        meta = self._described[content["name"]]
        return dtype_of(meta["dtype"]), [size.get("as_int") for size in meta["sizes"]]

    def _for_numbers(self, schema: Schema, arguments: dict[int, Value]) -> tuple[Schema, dict[int, Value]]:
        """The overload that takes numbers where a tensor is expected, for exporting keeps the one for tensors; if there
        is none, tensors of the dtype that these numbers give the result."""
        beside = next((value for value in arguments.values() if value.type == TENSOR), None)
        found = _overload_for_numbers(schema, arguments)
        if found is None and beside is not None:
            zeros = self.builder.operator(schema_of("aten::zeros_like"), {0: beside})[0]
            add = schema_of("aten::add.Scalar")
            for index, value in arguments.items():
                if _is_number(value) and schema.arguments[index].type == TENSOR:
                    arguments[index] = self.builder.operator(add, {0: zeros, 1: value})[0]
            found = schema, arguments
        if found is None:
            types = [value.type for value in arguments.values()]
            found = resolve(schema.name, types), dict(enumerate(arguments.values()))
        return found

    def _called(self, schema: Schema, arguments: Mapping[int, Value], outputs: Sequence[Any]) -> list[Value]:
        made = self.builder.operator(schema, arguments)
        if len(made) == 1 and made[0].type == SCALAR and outputs:
            (kind,) = (_SYMBOLIC.get(tag, SCALAR) for tag in outputs[0])
            if kind != SCALAR:
                return self.builder.operator(schema_of(_NUMBER_OF_TENSOR[kind]), {0: made[0]})
        return made

    def _check(self, node: Mapping[str, Any]) -> None:
        """Raise where a condition does not hold."""
        condition, *rest = [self.argument(item["arg"]) for item in node["inputs"]]
        if condition.type != BOOL:
            condition = self._python("aten::Bool", [condition])
        self.raise_unless(
            condition, str(rest[0].constant) if rest and rest[0].is_constant else "a check of the model failed"
        )

    def raise_unless(self, condition: Value, text: str) -> None:
        """Let the model end in an error with this text where a condition does not hold."""
        branch = self.builder.if_else(condition)
        with self.builder.inside(branch.blocks[1]):
            kind = self.builder.constant("AssertionError")
            self.builder.node("prim::RaiseException", [self.builder.constant(text), kind], [])
        self.builder.finish_if(branch, [], [])

    def bind(self, outputs: Sequence[Mapping[str, Any]], made: Sequence[Value]) -> None:
        """Give names to what a node made.

        Raises:
            BundleError: it made another number of values.
        """
        if len(made) > 1 and len(outputs) == 1 and "as_tensors" in outputs[0]:
            outputs = [{"as_tensor": item} for item in outputs[0]["as_tensors"]]
        named = [item for item in outputs if "as_none" not in item]
        if len(made) == len(outputs):
            made = [value for value, item in zip(made, outputs, strict=True) if "as_none" not in item]
        if len(named) > len(made):
            raise BundleError(f"a node names {len(named)} results and makes {len(made)}")
        for item, value in zip(named, made, strict=False):
            ((tag, content),) = item.items()
            if tag == "as_tensors":
                names = [part["name"] for part in content]
                parts = self.builder.node("prim::ListUnpack", [value], [TENSOR] * len(names))
                for name, part in zip(names, parts, strict=True):
                    self.values[name] = part
                    self._describe(name, part)
            elif tag == "as_tensor":
                self._name(content["name"], value)
            elif tag in _SYMBOLIC:
                self._name(content["as_name"], value)
            else:
                raise UnsupportedError(f"a node makes a value of the kind {tag}, which a Program can't hold")

    def _name(self, name: str, value: Value) -> None:
        self.values[name] = value
        if not value.is_constant and value.name.isdigit():
            value.name = self.graph.unique_name(name)
        self._describe(name, value)

    def _describe(self, name: str, value: Value) -> None:
        """Let a tensor know its dtype and rank, and its sizes if all are numbers."""
        meta = self._described.get(name)
        if meta is None or meta["dtype"] not in DTYPES or value.is_constant:
            return
        sizes = [size.get("as_int") for size in meta["sizes"]]
        seen = tuple(1 if size is None else size for size in sizes)
        value.facts = TensorFacts(name_of(DTYPES[meta["dtype"]]), seen, RANK if None in sizes else SIZES)

    def argument(self, arg: Mapping[str, Any]) -> Value:
        """The value of an argument.

        Raises:
            BundleError: it refers to nothing.
            UnsupportedError: a Program can't hold it.
        """
        ((tag, content),) = arg.items()
        if tag in _PLAIN:
            convert, kind = _PLAIN[tag]
            return self.builder.constant(convert(content), kind)
        match tag:
            case "as_none":
                return self.builder.constant(None)
            case "as_int":
                return self.builder.constant(int(content))
            case "as_float":
                return self.builder.constant(_float(content))
            case "as_tensor":
                return self.named(content["name"])
            case "as_tensors":
                return self._list([self.named(item["name"]) for item in content], TENSOR)
            case "as_optional_tensor":
                return self.argument(content)
            case "as_optional_tensors":
                return self._list([self.argument(item) for item in content], OptionalType(TENSOR))
            case "as_device":
                return self.builder.constant(torch.device("cpu"), DEVICE)
        if tag in _SYMBOLIC:
            return self._symbolic(content, _SYMBOLIC[tag])
        if tag in _SYMBOLIC_LISTS:
            kind = _SYMBOLIC_LISTS[tag]
            return self._list([self._symbolic(item, kind) for item in content], kind)
        raise UnsupportedError(f"an argument is of the kind {tag.removeprefix('as_')}, which a Program can't hold")

    def named(self, name: str) -> Value:
        """What a name stands for.

        Raises:
            BundleError: nothing.
        """
        if name not in self.values:
            raise BundleError(f"the graph reads {name!r}, which nothing before makes")
        return self.values[name]

    def _symbolic(self, content: Mapping[str, Any], kind: Type) -> Value:
        if "as_name" in content:
            return self.named(content["as_name"])
        ((_, number),) = content.items()
        return self.builder.constant(_converted(number, kind))

    def _list(self, values: Sequence[Value], element: Type) -> Value:
        if all(value.is_constant for value in values) and element != TENSOR:
            return self.builder.constant([value.constant for value in values], ListType(element))
        return self.builder.node("prim::ListConstruct", values, [ListType(element)])[0]

    def _given(self, argument: Argument, arg: Mapping[str, Any]) -> Value:
        """An argument's value, as its schema wants it."""
        kind = argument.type.element if isinstance(argument.type, OptionalType) else argument.type
        if kind == ListType(OptionalType(TENSOR)) and "as_tensors" in arg:  # none of them is None
            return self._list([self.named(item["name"]) for item in arg["as_tensors"]], OptionalType(TENSOR))
        value = self.argument(arg)
        if isinstance(kind, ListType):
            if value.is_constant and isinstance(value.constant, list):
                items = [_converted(item, kind.element) for item in value.constant]
                return self.builder.constant(items, ListType(kind.element))
            if argument.fixed_length is not None and _is_number(value):  # one number for all dimensions
                return self._list([value] * argument.fixed_length, kind.element)
        if value.is_constant and value.type in (INT, BOOL) and kind in (FLOAT, INT):
            return self.builder.constant(_converted(value.constant, kind))
        return value


def _converted(number: Any, kind: Type) -> Any:
    """A number as one of another type."""
    if kind == FLOAT:
        return _float(number)
    if kind == INT and isinstance(number, (bool, int)):
        return int(number)
    return number


def _is_number(value: Value) -> bool:
    return value.type in (INT, FLOAT, BOOL, COMPLEX)


def _overload_for_numbers(schema: Schema, arguments: Mapping[int, Value]) -> tuple[Schema, dict[int, Value]] | None:
    names = {schema.arguments[index].name: value for index, value in arguments.items()}
    for overload in ("Scalar", "Tensor_Scalar", "Scalar_mode"):
        other = known_schema(f"{schema.name}.{overload}")
        known = {argument.name: index for index, argument in enumerate(other.arguments)} if other else {}
        if other is None or not set(names) <= set(known):
            continue
        given = {known[name]: value for name, value in names.items()}
        if not any(_is_number(value) and other.arguments[index].type == TENSOR for index, value in given.items()):
            return other, given
    return None


def _flat(outputs: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Outputs of an operator on graphs, where a list of tensors is as many values."""
    for item in outputs:
        if "as_tensors" in item:
            yield from ({"as_tensor": part} for part in item["as_tensors"])
        else:
            yield item


def _refuse_training(schema: Schema, given: Mapping[str, Any]) -> None:
    """Refuse what only a model in training computes.

    Raises:
        InputError: the model was exported in training mode.
    """
    traits = record_of(schema.qualified_name).traits
    trains = Trait.DROPOUT in traits and given.get("train", {}).get("as_bool", False)
    if Trait.NORMALIZATION in traits and "as_tensor" in given.get("running_mean", {}):
        trains = given.get("training", {}).get("as_bool", False)
    if trains:
        raise InputError(
            f"{schema.name} is in training mode; call eval() on the model before it is exported, for files only infer"
        )


_FRAME = re.compile(r'File "([^"]*)", line (\d+), in ')
_EXPORTER = "/torch/fx/"
_TORCH = "/torch/"


def source_of_metadata(metadata: Mapping[str, Any]) -> str:
    """``model.py:12 in features.0``: the innermost line of a user's file, and the module that the node stands in."""
    files = [(f"/{file}".replace("\\", "/"), line) for file, line in _FRAME.findall(metadata.get("stack_trace", ""))]
    files = [item for item in files if not item[0].startswith("/<") and _EXPORTER not in item[0]]
    own = [item for item in files if _TORCH not in item[0]] or files
    if not own:
        return ""
    file, line = own[-1]
    last = metadata.get("nn_module_stack", "").rpartition(";")[2].split(",")
    path = last[1] if len(last) > 2 else ""
    return f"{file.rpartition('/')[2]}:{line}" + (f" in {path}" if path else "")
