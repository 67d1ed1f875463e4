"""Bytecode out: graphs become the instruction tables of the lite interpreter.

Each value has one register. A value is moved out of it by its last reader and dropped where nothing reads it, so that a
device frees memory as early as the graph allows.

Source of the form: ``torch/csrc/jit/runtime/interpreter/code_impl.h`` and
``torch/csrc/jit/serialization/export_bytecode.cpp``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mobopt.bundle.bytecode import PROMOTED, bytecode_type, named_tuples_in
from mobopt.errors import BundleError, UnsupportedError
from mobopt.ir import Block, Graph, Node, Value
from mobopt.ir.schemas import Schema, schema_of
from mobopt.ir.types import TENSOR, ListType, OptionalType, Type

VERSIONS = range(4, 9)
"""Bytecode versions that are written."""

_ARGUMENT_COUNTS_SINCE = 6
_DEFAULTS_BEFORE_OUT_SINCE = 7
_PROMOTED_SINCE = 8
_TENSORS, _OPTIONAL_TENSORS = ListType(TENSOR), ListType(OptionalType(TENSOR))
_INSTRUCTION_OF = {operator: instruction for instruction, operator in PROMOTED.items()}
_UNSCHEMATIC = (
    "prim::TupleUnpack",
    "prim::Uninitialized",
    "prim::tolist",
    "prim::TupleIndex",
    "prim::unchecked_cast",
)


@dataclass
class MethodTables:
    """The tables of one method, ready to be pickled."""

    instructions: list[tuple[str, int, int]] = field(default_factory=list)
    operators: list[tuple[Any, ...]] = field(default_factory=list)
    constants: list[tuple[Any, Type]] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    register_count: int = 0


def tables_from_graph(graph: Graph, slots: Mapping[str, int], version: int) -> MethodTables:
    """The tables of a method.

    Args:
        graph: the method.
        slots: numbers of the attributes, which are their places in the pickled module.
        version: bytecode version.

    Raises:
        BundleError: the graph holds an operator that bytecode has no form for.
    """
    return _Writer(graph, slots, version).write()


def necessary_count(schema: Schema, inputs: Sequence[Value], version: int = 8) -> int:
    """How many inputs a call must give: all but the last ones that equal their defaults."""
    total = len(schema.arguments)
    if version < _ARGUMENT_COUNTS_SINCE or schema.name.startswith("prim::"):
        return total  # mobile runtimes know their own operators without a schema, so they fill no defaults in
    outs = 0
    while (
        outs < total
        and schema.arguments[total - 1 - outs].is_written
        and schema.arguments[total - 1 - outs].keyword_only
    ):
        outs += 1
    if outs and version < _DEFAULTS_BEFORE_OUT_SINCE:
        return total
    count = total - outs
    while (
        count
        and schema.arguments[count - 1].has_default
        and is_default(inputs[count - 1], schema.arguments[count - 1].default)
    ):
        count -= 1
    return count + outs


def is_default(value: Value, default: Any) -> bool:
    """Whether a value is known to be an argument's default, in type too."""
    return value.is_constant and _same(value.constant, default)


def _same(left: Any, right: Any) -> bool:
    if type(left) is not type(right) or isinstance(left, torch.Tensor):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(_same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


class _Writer:
    """Emits the instructions of one method."""

    def __init__(self, graph: Graph, slots: Mapping[str, int], version: int) -> None:
        self.graph = graph
        self.slots = slots
        self.version = version
        self.tables = MethodTables()
        self.registers: dict[Value, int] = {}
        self.constant_index: dict[Any, int] = {}
        self.operator_index: dict[tuple[str, str], int] = {}
        self.counts = self._argument_counts()
        self.fence = 0
        """Instructions before this index are jumped to or over, so they stay as they are."""

    def write(self) -> MethodTables:
        """The whole method."""
        if len(self.graph.outputs) != 1:
            raise BundleError(
                f"a method returns {len(self.graph.outputs)} values; bytecode has exactly one: return a tuple"
            )
        self.store(self.graph.inputs)
        self.block(self.graph.block)
        self.emit("RET")
        return self.tables

    def _argument_counts(self) -> dict[str, int]:
        """For each operator, the most inputs that any call in the method must give."""
        counts: dict[str, int] = {}
        for node in self.graph.walk():
            schema = _schema(node)
            if schema is not None and not schema.is_variadic:
                count = necessary_count(schema, node.inputs, self.version)
                counts[node.qualified_op] = max(counts.get(node.qualified_op, 0), count)
        return counts

    # Values and registers.

    def emit(self, op: str, x: int = 0, n: int = 0) -> int:
        """Append an instruction; returns its index."""
        self.tables.instructions.append((op, x, n))
        return len(self.tables.instructions) - 1

    def store(self, values: Sequence[Value]) -> None:
        """Take values off the stack into registers, the last one on top."""
        if not values:
            return
        first = self.tables.register_count + 1
        self.tables.register_count += len(values)
        self.registers.update(zip(values, range(first, first + len(values)), strict=True))
        if len(values) == 1:
            self.emit("STORE", first)
        else:
            self.emit("STOREN", first, len(values))
        for value in values:
            if not value.uses:
                self.release(value)

    def release(self, value: Value) -> None:
        """Empty a value's register."""
        register = self.registers[value]
        if self.stored_last(register):
            self.tables.instructions.pop()
            self.emit("DROP")
        else:
            self.emit("DROPR", register)

    def stored_last(self, register: int) -> bool:
        """Whether the last instruction has put the top of the stack into this register."""
        code = self.tables.instructions
        return len(code) > self.fence and code[-1][:2] == ("STORE", register)

    def load(self, values: Sequence[Value], dying: Counter[Value], schema: Schema | None = None) -> None:
        """Push values, those of an operator by its schema; each one's last reading of ``dying`` moves it out of its
        register."""
        for index, value in enumerate(values):
            if value.is_constant:
                wanted = None if schema is None or schema.is_variadic else schema.arguments[index].type
                # The loader keeps what a list says of its elements, and an operator wants that to the letter.
                kind = _OPTIONAL_TENSORS if (value.type, wanted) == (_TENSORS, _OPTIONAL_TENSORS) else value.type
                self.emit("LOADC", self.constant(value, kind))
                continue
            dying[value] -= 1
            register = self.registers[value]
            if dying[value] != 0:
                self.emit("LOAD", register)
            elif self.stored_last(register):
                self.tables.instructions.pop()
            else:
                self.emit("MOVE", register)

    def constant(self, value: Value, kind: Type | None = None) -> int:
        """Index of a constant, of a type that is its own if none is given, in its table."""
        kind = value.type if kind is None else kind
        key = str(kind), _constant_key(value)
        if key not in self.constant_index:
            self.constant_index[key] = len(self.tables.constants)
            self.tables.constants.append((value.constant, kind))
        return self.constant_index[key]

    def type_index(self, kind: Type) -> int:
        """Index of a type in its table."""
        text = self.type_text(kind)
        if text not in self.tables.types:
            self.tables.types.append(text)
        return self.tables.types.index(text)

    def type_text(self, kind: Type) -> str:
        """A type as it stands in the table: behind the named tuples in it, which PyTorch's loaders know by name alone
        there. They read no fields behind a tuple that is written out within another one."""
        inside = list(named_tuples_in(kind))
        for item in inside:
            self.type_index(item)
        return bytecode_type(kind, {item.name for item in inside})

    # Blocks.

    def block(self, block: Block) -> None:
        """A block's nodes, and then its results on the stack."""
        endings = _endings(block)
        for index, node in enumerate([*block.nodes, block.returns]):
            ending = endings.get(index, [])
            inside = {value for nested in node.blocks for value in _read_inside(nested)}
            dying = Counter({value: node.inputs.count(value) for value in ending if value not in inside})
            if node is block.returns:
                self.load(node.inputs, dying)
                return
            self.node(node, dying)
            for value in ending:
                if value in inside:
                    self.emit("DROPR", self.registers[value])

    def node(self, node: Node, dying: Counter[Value]) -> None:
        """One node, and its outputs in registers."""
        if node.op == "prim::If":
            self.branch(node, dying)
        elif node.op == "prim::Loop":
            self.loop(node, dying)
        else:
            self.load(node.inputs[: self.pushed(node)], dying, _schema(node))
            if self.pushed(node) < len(node.inputs):
                self.load_out_arguments(node, dying)
            self.instruction(node)
        self.store(node.outputs)

    def branch(self, node: Node, dying: Counter[Value]) -> None:
        """prim::If."""
        self.load(node.inputs, dying)
        start = self.emit("JF")
        self.fence = len(self.tables.instructions)
        self.block(node.blocks[0])
        end_of_then = self.emit("JMP")
        self.patch(start)
        self.block(node.blocks[1])
        self.patch(end_of_then)

    def loop(self, node: Node, dying: Counter[Value]) -> None:
        """prim::Loop."""
        self.emit("LOADC", self.constant(self.graph.constant(0)))
        self.load(node.inputs, dying)
        start = self.emit("LOOP", 0, len(node.inputs))
        self.fence = len(self.tables.instructions)
        self.store(node.blocks[0].parameters)
        self.block(node.blocks[0])
        self.emit("JMP", start - len(self.tables.instructions))
        self.patch(start)

    def patch(self, index: int) -> None:
        """Let a jump lead to the next instruction."""
        op, _, n = self.tables.instructions[index]
        self.fence = len(self.tables.instructions)
        self.tables.instructions[index] = (op, self.fence - index, n)

    # Nodes.

    def pushed(self, node: Node) -> int:
        """How many of a node's inputs are pushed first; arguments that it writes to may follow."""
        schema = _schema(node)
        if schema is None or schema.is_variadic or node.op == "aten::warn" or self.promoted(node):
            return len(node.inputs)
        return self.counts[node.qualified_op] - self.out_count(schema)

    def out_count(self, schema: Schema) -> int:
        """Number of trailing keyword arguments that an operator writes to."""
        outs = 0
        while (
            outs < len(schema.arguments)
            and schema.arguments[-1 - outs].is_written
            and schema.arguments[-1 - outs].keyword_only
        ):
            outs += 1
        return outs

    def load_out_arguments(self, node: Node, dying: Counter[Value]) -> None:
        """Push the arguments that an operator writes to; forget the defaults that are not pushed."""
        schema = _schema(node)
        outs = self.out_count(schema) if schema is not None else 0
        if outs:
            self.load(node.inputs[-outs:], dying)

    def promoted(self, node: Node) -> str | None:
        """The instruction that stands for an operator in this version, if any.

        There is one for casts too, but the lite interpreter refuses to run it; PyTorch writes them as an operator.
        """
        instruction = _INSTRUCTION_OF.get(node.qualified_op) if node.op != "prim::unchecked_cast" else None
        return instruction if self.version >= _PROMOTED_SINCE else None

    def instruction(self, node: Node) -> None:
        """What a node does with its inputs on the stack."""
        match node.op:
            case "prim::GetAttr" | "prim::SetAttr":
                self.emit("GET_ATTR" if node.op == "prim::GetAttr" else "SET_ATTR", self.slot(node))
            case "prim::ListConstruct":
                self.emit("LIST_CONSTRUCT", self.type_index(node.output.type), len(node.inputs))
            case "prim::DictConstruct":
                self.emit("DICT_CONSTRUCT", self.type_index(node.output.type), len(node.inputs))
            case "prim::TupleConstruct":
                self.construct_tuple(node)
            case "prim::ListUnpack":
                self.emit("LIST_UNPACK", len(node.outputs))
            case "prim::TupleSlice":
                self.emit("TUPLE_SLICE", node.attributes["beg"], node.attributes["end"])
            case "prim::isinstance":
                self.is_instance(node)
            case "aten::warn":
                self.emit("WARN", -1)
            case _:
                self.operator(node)

    def slot(self, node: Node) -> int:
        """Number of the attribute that a node reads or sets."""
        name = node.attributes["name"]
        if name not in self.slots:
            raise BundleError(f"{node!r} names attribute {name!r}, which the program does not have")
        return self.slots[name]

    def construct_tuple(self, node: Node) -> None:
        """prim::TupleConstruct, named or not."""
        kind = node.output.type
        if getattr(kind, "name", ""):
            self.emit("NAMED_TUPLE_CONSTRUCT", self.type_index(kind), len(node.inputs))
        else:
            self.emit("TUPLE_CONSTRUCT", len(node.inputs))

    def is_instance(self, node: Node) -> None:
        """prim::isinstance; its types must stand side by side in the table."""
        types = node.attributes["types"]
        texts = [self.type_text(kind) for kind in types]
        first = len(self.tables.types)
        self.tables.types += texts
        self.emit("ISINSTANCE", first, len(types))

    def operator(self, node: Node) -> None:
        """A call of an operator."""
        promoted = self.promoted(node)
        schema = _schema(node)
        if promoted is not None:
            self.emit(promoted, len(node.inputs) if promoted == "FORMAT" else 0)
            return
        if schema is None and node.op not in _UNSCHEMATIC:
            raise BundleError(
                f"{node!r} can't be written as bytecode: it is no operator; run the passes that remove it first"
            )
        is_variadic = schema is not None and schema.is_variadic
        count = self.counts.get(node.qualified_op, len(node.inputs))
        key = (node.op, node.overload)
        if key not in self.operator_index:
            self.operator_index[key] = len(self.tables.operators)
            has_count = self.version >= _ARGUMENT_COUNTS_SINCE and not is_variadic
            self.tables.operators.append((*key, count) if has_count else key)
        if is_variadic:
            self.emit("OPN", self.operator_index[key], len(node.inputs))
        else:
            self.emit("OP", self.operator_index[key])


def _schema(node: Node) -> Schema | None:
    """The schema of a node's operator; None for those of the language itself."""
    if node.op in _UNSCHEMATIC:
        return None
    try:
        return schema_of(node.qualified_op)
    except UnsupportedError:
        if node.op.startswith("prim::"):
            return None
        raise


def _constant_key(value: Value) -> Any:
    return repr(value.constant) if _is_plain(value.constant) else id(value.constant)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str, torch.device))


def _endings(block: Block) -> dict[int, list[Value]]:
    """For each index of a node, the values of the block that it, or what is nested in it, reads last."""
    own = {*block.parameters, *(output for node in block.nodes for output in node.outputs)}
    last: dict[Value, int] = {}
    for index, node in enumerate([*block.nodes, block.returns]):
        read = [*node.inputs, *(value for nested in node.blocks for value in _read_inside(nested))]
        last.update((value, index) for value in read if value in own)
    endings: dict[int, list[Value]] = {}
    for value, index in last.items():
        endings.setdefault(index, []).append(value)
    return endings


def _read_inside(block: Block) -> Iterator[Value]:
    """Every value that a block and what is nested in it read."""
    for node in block.walk():
        yield from node.inputs
        for nested in node.blocks:
            yield from nested.outputs
    yield from block.outputs
