"""Translates graphs of ONNX node by node, in order, with the values of the graphs around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import onnx
import torch

from mobopt.errors import BundleError, MoboptError, UnsupportedError
from mobopt.frontends.onnx.elements import TensorReader, dtype_of, packed_bits
from mobopt.frontends.onnx.emitter import Emitter
from mobopt.frontends.onnx.host import host_result
from mobopt.frontends.onnx.operands import (
    AnyOperand,
    Operand,
    OptionalOperand,
    SequenceOperand,
    Sizes,
    carrier,
    of_constant,
    of_numbers,
)
from mobopt.frontends.onnx.order import in_order
from mobopt.frontends.onnx.registry import Branches, Call, translation_of
from mobopt.ir import Value

Environment = dict[str, AnyOperand]
_MOST_DEPTH = 24
_MOST_DATA, _TOLD = 128, (torch.int64, torch.int32, torch.float32)
"""Elements and dtypes of the constants that ONNX's inference is told."""
_WRAPPED = {torch.uint16: 0xFFFF, torch.uint32: 0xFFFFFFFF}
_REPAIR = "correct the node, or export the model anew"
_UNKNOWN: tuple[torch.dtype | None, Sizes | None] = (None, None)


class Translator:
    """Translates the graphs and functions of one model."""

    def __init__(
        self,
        emit: Emitter,
        reader: TensorReader,
        versions: Mapping[str, int],
        functions: Mapping[tuple[str, str, str], Any],
        ir_version: int,
        branches: Branches,
    ) -> None:
        self.emit = emit
        self.reader = reader
        self.branches = branches
        self.environment: Environment = {}
        self.versions = dict(versions)
        self._functions = functions
        self._ir_version = ir_version
        self._depth = 0

    def graph(self, graph: Any, given: Mapping[str, AnyOperand], outer: Mapping[str, AnyOperand]) -> list[AnyOperand]:
        """The outputs of a graph for the inputs that are given by name; ``outer`` has the values around it."""
        environment: Environment = {**outer, **given}
        made = set(given)
        for tensor in graph.initializer:
            if tensor.name not in made:
                environment[tensor.name] = self.constant(tensor)
                made.add(tensor.name)
        for sparse in graph.sparse_initializer:
            environment[sparse.values.name] = self.sparse(sparse)
            made.add(sparse.values.name)
        self.nodes(graph.node, environment, made, {})
        missing = [output.name for output in graph.output if output.name not in environment]
        if missing:
            raise BundleError(
                f"the graph {graph.name!r} returns {missing[0]!r}, which no node makes; take it out of the outputs, or "
                "export the model anew"
            )
        return [environment[output.name] for output in graph.output]

    def nodes(
        self, nodes: Sequence[Any], environment: Environment, made: set[str], attributes: Mapping[str, Any]
    ) -> None:
        """Translate nodes, each after those that make what it reads; each name is made once."""
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise BundleError(f"graphs and functions are nested more than {_MOST_DEPTH} deep; the file is hostile")
        for node in in_order(nodes):
            self.emit.builder.step()
            place = place_of(node)
            outer = self.emit.builder.source
            self.emit.builder.source = place if self._depth == 1 or not outer else outer
            inputs = []
            for name in node.input:
                if name and name not in environment:
                    raise BundleError(
                        f"{place} reads {name!r}, which nothing before it makes: the graph is cyclic or lacks "
                        "a part; onnx.checker tells more, and exporting it anew may help"
                    )
                inputs.append(environment[name] if name else None)
            own = {item.name: self._resolved(item, attributes) for item in node.attribute}
            outputs = self._node(node, inputs, {k: v for k, v in own.items() if v is not None}, environment, place)
            for name, output in zip(node.output, outputs, strict=False):
                if name in made:
                    raise BundleError(
                        f"{place} makes {name!r}, which is made already: names must be made once; give it another name"
                    )
                if name:
                    made.add(name)
                    environment[name] = output
            self.emit.builder.source = outer
        self._depth -= 1

    @staticmethod
    def _resolved(attribute: Any, given: Mapping[str, Any]) -> Any:
        """An attribute; one that refers to the function's is that one, or None if it is not given."""
        if not attribute.ref_attr_name:
            return attribute
        found = given.get(attribute.ref_attr_name)
        if found is None:
            return None
        named = onnx.AttributeProto()
        named.CopyFrom(found)
        named.name = attribute.name
        return named

    def _node(
        self, node: Any, inputs: list[AnyOperand], attributes: dict[str, Any], environment: Environment, place: str
    ) -> list[AnyOperand]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        function = self._functions.get((domain, node.op_type, getattr(node, "overload", "")))
        if function is not None:
            return self.function(function, inputs, attributes, node.output)
        version = self.versions.get(domain)
        if version is None:
            raise BundleError(
                f"{place}: the model imports no opset of the domain {domain or 'ai.onnx'!r}; add it to the model's "
                "opset_import, or export it anew"
            )
        call = Call(self.emit, node, version, inputs, (), self, attributes, place)
        call.types = [_UNKNOWN] * len(node.output)
        if not domain:
            found = host_result(call)
            if found is not None:
                return [of_numbers(numbers, dtype) for numbers, dtype in found]
        translation = translation_of(domain, node.op_type, version)
        if translation is None:
            return self.expanded(call, domain)
        self.environment = environment
        if not domain:
            call.types = self._inferred(call)
        try:
            result = translation(call)
        except (BundleError, UnsupportedError):
            raise
        except MoboptError as error:
            raise UnsupportedError(f"{place}: {error}") from None
        except (TypeError, ValueError, LookupError, AttributeError, RuntimeError, ArithmeticError) as error:
            reason = str(error).split("\n", 1)[0] or type(error).__name__
            raise BundleError(f"{place} has arguments that do not fit: {reason}; {_REPAIR}") from error
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        types = [*call.types, *[_UNKNOWN] * len(results)]
        return [self._operand(item, kind, call) for item, kind in zip(results, types, strict=False)]

    def _operand(self, item: Any, kind: tuple[torch.dtype | None, Sizes | None], call: Call) -> AnyOperand:
        """A result as an operand."""
        if item is None or isinstance(item, (Operand, SequenceOperand, OptionalOperand)):
            return item
        dtype, sizes = kind
        if isinstance(item, torch.Tensor):
            dtype, sizes = dtype or item.dtype, tuple(item.shape)
        if dtype is None:
            raise UnsupportedError(f"{call.place}: the type of its output is not known")
        if dtype in _WRAPPED:
            item = self.emit("bitwise_and.Scalar", item, _WRAPPED[dtype])
        return Operand(dtype, sizes, item)

    def _inferred(self, call: Call) -> list[tuple[torch.dtype | None, Sizes | None]]:
        """Types of a node's outputs, by ONNX's inference for this one node."""
        node = call.node
        unknown = [_UNKNOWN] * len(node.output)
        if any(item.type == onnx.AttributeProto.GRAPH for item in call.attributes.values()):
            return unknown
        types, data = {}, {}
        for name, operand in zip(node.input, call.inputs, strict=True):
            if operand is None:
                if name:
                    return unknown
                continue
            types[name] = operand.type_proto()
            constant = operand.constant if isinstance(operand, Operand) and operand.dtype in _TOLD else None
            if constant is not None and constant.numel() <= _MOST_DATA:
                data[name] = onnx.numpy_helper.from_array(numpy.asarray(constant.numpy()), name)
        plain = onnx.NodeProto(op_type=node.op_type, input=node.input, output=node.output, name=node.name)
        plain.attribute.extend(call.attributes.values())
        try:
            schema = onnx.defs.get_schema(node.op_type, call.version, "")
            imports = [onnx.helper.make_opsetid("", call.version)]
            found = onnx.shape_inference.infer_node_outputs(
                schema, plain, types, data, opset_imports=imports, ir_version=self._ir_version
            )
        except onnx.defs.SchemaError:
            return unknown
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            pairs = zip(node.input, call.inputs, strict=True)
            given = ", ".join(f"{name!r} is {_described(operand)}" for name, operand in pairs)
            raise BundleError(f"{call.place} has inputs that do not fit: {reason} ({given}); {_REPAIR}") from None
        return [type_of(found[name], call.place) if name in found else _UNKNOWN for name in node.output]

    def constant(self, proto: Any, name: str = "") -> Operand:
        """A tensor of the file."""
        operand = of_constant(self.reader.read(proto, "the model"))
        operand.bits = packed_bits(proto.data_type)
        if operand.value.numel() > 1:
            self.emit.name_constant(operand.value, name or proto.name)
        return operand

    def sparse(self, proto: Any) -> Operand:
        """A sparse tensor of the file, as a dense one."""
        sizes = list(proto.dims)
        values = self.reader.read(proto.values, "the model")
        indices = self.reader.read(proto.indices, "the model")
        count = int(numpy.prod(sizes)) if sizes else 1
        if min(sizes, default=1) < 0 or count > 1 << 26:
            raise BundleError(f"the sparse tensor {proto.values.name!r} has sizes {sizes}, which are too large")
        flat = torch.zeros(count, dtype=values.dtype)
        if indices.dim() == 2:
            strides = [int(numpy.prod(sizes[position + 1 :])) for position in range(len(sizes))]
            indices = (indices * torch.tensor(strides)).sum(1)
        if indices.numel() and (int(indices.min()) < 0 or int(indices.max()) >= count):
            raise BundleError(f"the sparse tensor {proto.values.name!r} has indices outside of its sizes {sizes}")
        flat[indices] = values
        return of_constant(flat.reshape(sizes))

    # Functions.

    def function(
        self, function: Any, inputs: Sequence[AnyOperand], attributes: Mapping[str, Any], wanted: Sequence[str]
    ) -> list[AnyOperand]:
        """The outputs of a function of the model, or of an operator's definition, that are wanted: have a name."""
        given = {item.name: item for item in function.attribute_proto} | dict(attributes)
        environment: Environment = dict(zip(function.input, inputs, strict=False))
        environment.update({name: None for name in function.input if name not in environment})
        outer, self.versions = self.versions, {**self.versions, **versions_of(function.opset_import)}
        self.nodes(function.node, environment, set(function.input), given)
        self.versions = outer
        missing = [
            name for name, asked in zip(function.output, wanted, strict=False) if asked and name not in environment
        ]
        if missing:
            raise BundleError(f"the function {function.name!r} returns {missing[0]!r}, which no node makes")
        return [environment.get(name) for name in function.output]

    def expanded(self, call: Call, domain: str) -> list[AnyOperand]:
        """A node by the function that defines its operator.

        Raises:
            UnsupportedError: it has no translation and no definition.
        """
        node = call.node
        name = f"{domain or 'ai.onnx'}::{node.op_type}"
        try:
            schema = onnx.defs.get_schema(node.op_type, call.version, domain)
        except onnx.defs.SchemaError:
            raise UnsupportedError(
                f"{call.place}: {name} of opset {call.version} is unknown to mobopt; export the model without it, or "
                "with a function that defines it"
            ) from None
        body = _definition(schema, call, self.versions.get("", 0))
        if body is None:
            raise UnsupportedError(f"{call.place}: {name} is not translated; export the model without it")
        inputs = list(call.inputs) + [None] * (len(body.input) - len(call.inputs))
        defaults = {key: item.default_value for key, item in schema.attributes.items() if item.default_value.name}
        return self.function(body, inputs, {**defaults, **call.attributes}, node.output)


def _definition(schema: Any, call: Call, version: int) -> Any:
    """The body of an operator's definition in other operators, if it has one."""
    node = call.node
    if schema.has_context_dependent_function:
        types = []
        for operand in call.inputs:
            types.append((operand.type_proto() if operand is not None else onnx.TypeProto()).SerializeToString())
        plain = onnx.NodeProto(op_type=node.op_type, input=node.input, output=node.output, domain=node.domain)
        plain.attribute.extend(call.attributes.values())
        fitting = [item for item in schema.context_dependent_function_opset_versions if item <= version]
        if fitting:
            data = schema.get_context_dependent_function_with_opset_version(
                max(fitting), plain.SerializeToString(), types
            )
            return onnx.FunctionProto.FromString(data) if data else None
    if schema.has_function:
        fitting = [item for item in schema.function_opset_versions if item <= version]
        if fitting:
            body = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(max(fitting)))
            return body if body.node else None
    return None


def type_of(proto: Any, place: str) -> tuple[torch.dtype | None, Sizes | None]:
    """Dtype and sizes of a tensor's type; of each element, of a sequence's."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return type_of(proto.sequence_type.elem_type, place)
    if kind == "optional_type":
        return type_of(proto.optional_type.elem_type, place)
    if kind != "tensor_type" or not proto.tensor_type.elem_type:
        return _UNKNOWN
    tensor = proto.tensor_type
    dtype = dtype_of(tensor.elem_type, place)
    if not tensor.HasField("shape"):
        return dtype, None
    return dtype, declared_sizes(tensor.shape)


def declared_sizes(shape: Any) -> Sizes:
    """The sizes of a declared shape; None where a call decides one, for which some exporters write -1."""
    return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in shape.dim)


def _described(operand: AnyOperand) -> str:
    """An operand, as messages show it."""
    if operand is None:
        return "left out"
    if not isinstance(operand, Operand):
        return "a sequence or an optional"
    kind = str(operand.dtype).removeprefix("torch.")
    if operand.sizes is None:
        return kind
    return f"{kind}[{', '.join('?' if size is None else str(size) for size in operand.sizes)}]"


def place_of(node: Any) -> str:
    """A node, as messages name it."""
    name = node.name or next((output for output in node.output if output), "")
    return f"{node.op_type} {name}".strip()


def versions_of(imports: Sequence[Any]) -> dict[str, int]:
    """Versions by domain."""
    return {("" if item.domain == "ai.onnx" else item.domain): item.version for item in imports}


def as_carried(value: Value, operand: Operand, emit: Emitter) -> Any:
    """An input of the model in the dtype that the graph computes with."""
    kind = carrier(operand.dtype)
    return value if kind == operand.dtype else emit("to.dtype", value, kind)
