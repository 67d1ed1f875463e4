"""Bytecode in: the instructions of a lite archive become graphs.

The instructions are run once on values instead of numbers. Stock code is structured: a ``JF`` jumps to just behind the
``JMP`` that ends its first branch, and a ``LOOP`` to just behind the ``JMP`` that leads back to it, so branches and
loops are found again without analysis; code of another form is refused.

Source of the form: ``torch/csrc/jit/runtime/interpreter/code_impl.h`` and ``torch/csrc/jit/mobile/interpreter.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mobopt.bundle.attributes import ModuleTree, Submodule
from mobopt.bundle.builder import Allowance, GraphBuilder
from mobopt.bundle.bytecode import PROMOTED, Function, OperatorEntry
from mobopt.errors import BundleError, MoboptError
from mobopt.ir import Block, Graph, Node, Value
from mobopt.ir.schemas import accepts, schema_of, schemas_of
from mobopt.ir.types import ANY, BOOL, FLOAT, INT, ListType, OptionalType, TupleType, Type

_MAX_NESTING = 100
_UNTYPED = {
    "prim::TupleUnpack",
    "prim::unchecked_cast",
    "prim::Uninitialized",
    "prim::TupleIndex",
    "prim::RaiseException",
}
_UNTYPED |= {"prim::tolist"}


class _Hidden:
    """What a loop keeps on the stack for itself."""


Item = Value | Submodule | _Hidden
_COUNTER, _LIMIT = _Hidden(), _Hidden()


@dataclass
class _State:
    """What a point of the code sees."""

    stack: list[Item]
    registers: dict[int, Item]

    def copy(self) -> _State:
        """A state of its own for a branch."""
        return _State(list(self.stack), dict(self.registers))


def unknown_operators(functions: Sequence[Function]) -> list[str]:
    """Operators of the tables that neither torch nor mobopt knows, sorted."""
    used = {entry for function in functions for entry in function.operators}
    return sorted({entry.qualified_name for entry in used if entry.name not in _UNTYPED and not _is_known(entry)})


def _is_known(entry: OperatorEntry) -> bool:
    return any(schema.overload == entry.overload for schema in schemas_of(entry.name))


def graph_from_function(function: Function, modules: ModuleTree, allowance: Allowance) -> Graph:
    """The graph of a method.

    Args:
        function: its checked tables.
        modules: attributes of the root module and below.
        allowance: what reading may cost.

    Raises:
        BundleError: the code is not structured, pops what is not there, or calls operators wrongly.
    """
    return _Reader(function, modules, allowance).read()


class _Reader:
    """Runs the instructions of one method on values."""

    def __init__(self, function: Function, modules: ModuleTree, allowance: Allowance) -> None:
        self.function = function
        self.modules = modules
        self.builder = GraphBuilder(allowance)
        self.constants: dict[int, Value] = {}
        self.index = 0
        self.depth = 0

    def read(self) -> Graph:
        """The method's graph."""
        graph = self.builder.graph
        if not self.function.arguments:
            raise self.error("has no argument 'self'")
        for argument in self.function.arguments:
            graph.add_input(argument.name, argument.type)
        code = self.function.instructions
        if not code or code[-1][0] != "RET":
            raise self.error("does not end with RET")
        self.module_value = graph.inputs[0]
        state = _State([self.modules.root, *graph.inputs[1:]], {})
        try:
            self.run(0, len(code) - 1, state)
            if len(state.stack) != 1:
                raise self.error(f"leaves {len(state.stack)} values to return, not one")
            self.index = len(code) - 1
            graph.return_values(self.returned(self.pop(state)))
        except MoboptError as error:
            text = str(error)
            raise BundleError(text if text.startswith("bytecode") else f"{self.place()}: {text}") from None
        return graph

    def place(self) -> str:
        """Where the reader is, for messages."""
        op = self.function.instructions[self.index][0] if self.function.instructions else "nothing"
        return f"bytecode, {self.function.name!r}, instruction {self.index} ({op})"

    def error(self, message: str) -> BundleError:
        """An error about this method."""
        return BundleError(f"{self.place()}: the code {message}; the file is damaged or not written by PyTorch")

    def returned(self, value: Value) -> Value:
        """The result, of the type that the schema promises if that is narrower."""
        declared = self.function.returns[0].type if len(self.function.returns) == 1 else ANY
        if value.type == ANY or (isinstance(value.type, OptionalType) and value.type.element == declared):
            return self.builder.cast(value, declared) if declared != ANY else value
        return value

    def pop(self, state: _State) -> Value:
        """Take a value off the stack."""
        if not state.stack:
            raise self.error("takes a value off an empty stack")
        item = state.stack.pop()
        if isinstance(item, Submodule):
            if item is not self.modules.root:
                raise self.error(f"uses the submodule {item.path!r} as a value, which mobopt does not read")
            return self.module_value
        if isinstance(item, _Hidden):
            raise self.error("takes a loop's own counter off the stack")
        return item

    def pop_many(self, state: _State, count: int) -> list[Value]:
        """Take several values off the stack, the first one deepest."""
        return [self.pop(state) for _ in range(count)][::-1]

    def run(self, begin: int, end: int, state: _State) -> None:
        """Run the instructions from ``begin`` to before ``end``."""
        self.depth += 1
        if self.depth > _MAX_NESTING:
            raise self.error(f"nests over {_MAX_NESTING} branches and loops")
        self.index = begin
        while self.index < end:
            self.builder.step()
            index = self.index
            op, x, n = self.function.instructions[index]
            if op == "JF":
                self.index = self.branch(index, x, end, state)
            elif op == "LOOP":
                self.index = self.loop(index, x, n, end, state)
            elif op in ("JMP", "RET"):
                raise self.error("jumps where no branch or loop ends")
            else:
                _HANDLERS[op](self, state, x, n)
                self.index = index + 1
        self.depth -= 1

    # Branches and loops.

    def branch(self, index: int, offset: int, end: int, state: _State) -> int:
        """A prim::If; returns the index behind it."""
        code = self.function.instructions
        start_else = index + offset
        if not index + 1 < start_else <= end or code[start_else - 1][0] != "JMP":
            raise self.error("branches to a place that no JMP precedes")
        after = start_else - 1 + code[start_else - 1][1]
        if not start_else <= after <= end:
            raise self.error("has a branch that ends outside of what holds it")
        self.builder.step(copied=2 * (len(state.registers) + len(state.stack)))
        node = self.builder.if_else(self.pop(state))
        then, otherwise = state.copy(), state.copy()
        with self.builder.inside(node.blocks[0]):
            self.run(index + 1, start_else - 1, then)
        with self.builder.inside(node.blocks[1]):
            self.run(start_else, after, otherwise)
        self.index = index
        self.merge(node, then, otherwise, state)
        return after

    def merge(self, node: Node, then: _State, otherwise: _State, state: _State) -> None:
        """What is known behind a branch: what both sides agree on, and a result where they differ."""
        if len(then.stack) != len(otherwise.stack):
            raise self.error("has branches that leave different numbers of values")
        differing = [i for i, (a, b) in enumerate(zip(then.stack, otherwise.stack, strict=True)) if a is not b]
        pairs = [(self.as_value(then.stack[i]), self.as_value(otherwise.stack[i])) for i in differing]
        outputs = self.builder.finish_if(node, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
        state.stack[:] = then.stack
        for position, output in zip(differing, outputs, strict=True):
            state.stack[position] = output
        state.registers = {r: item for r, item in then.registers.items() if otherwise.registers.get(r) is item}

    def as_value(self, item: Item) -> Value:
        """An item of the stack as a value."""
        if not isinstance(item, Value):
            raise self.error("chooses between submodules at run time, which mobopt does not read")
        return item

    def loop(self, index: int, offset: int, count: int, end: int, state: _State) -> int:
        """A prim::Loop; returns the index behind it."""
        code = self.function.instructions
        after = index + offset
        back = code[after - 1] if index + 1 < after <= end else ("", 0, 0)
        if back[0] != "JMP" or after - 1 + back[1] != index or count < 2:
            raise self.error("has a loop whose end does not lead back to it")
        limit, condition, *carried = self.pop_many(state, count)
        limit, condition = self.builder.refined(limit, INT), self.builder.refined(condition, BOOL)
        counter = self.pop(state)
        if not (counter.is_constant and counter.constant == 0):
            raise self.error("has a loop that does not count from 0")
        state.stack += self.builder.loop(
            limit, condition, carried, lambda body, types: self.loop_body(body, types, index + 1, after - 1, state)
        )
        return after

    def loop_body(self, body: Block, types: list[Type], begin: int, end: int, state: _State) -> list[Value]:
        """Fill a loop's block; returns what it returns."""
        graph = self.builder.graph
        parameters = [body.add_parameter(graph.value(kind)) for kind in (INT, *types)]
        self.builder.step(copied=len(state.registers) + len(state.stack))
        inner = state.copy()
        inner.stack += [_COUNTER, _LIMIT, *parameters]
        with self.builder.inside(body):
            self.run(begin, end, inner)
        self.index = begin - 1
        returned = self.pop_many(inner, len(types) + 1)
        if inner.stack != [*state.stack, _COUNTER, _LIMIT]:
            raise self.error("has a loop that leaves the stack in another state than it finds it")
        if any(inner.registers.get(register) is not item for register, item in state.registers.items()):
            raise self.error("has a loop that changes a register that it finds set")
        return returned

    # Registers, constants, attributes.

    def load(self, state: _State, x: int, n: int) -> None:
        """Copy a register to the stack."""
        if x not in state.registers:
            raise self.error(f"reads register {x}, which is not set here")
        state.stack.append(state.registers[x])

    def move(self, state: _State, x: int, n: int) -> None:
        """Move a register to the stack."""
        self.load(state, x, n)
        del state.registers[x]

    def store(self, state: _State, x: int, n: int) -> None:
        """Move the top of the stack to a register."""
        self.store_many(state, x, 1)

    def store_many(self, state: _State, x: int, n: int) -> None:
        """Move the top values of the stack to registers, the last one to the highest."""
        if n > len(state.stack):
            raise self.error("stores more values than the stack holds")
        items = state.stack[len(state.stack) - n :]
        if any(isinstance(item, _Hidden) for item in items):
            raise self.error("stores a loop's own counter")
        del state.stack[len(state.stack) - n :]
        state.registers.update(zip(range(x, x + n), items, strict=True))

    def drop(self, state: _State, x: int, n: int) -> None:
        """Forget the top of the stack."""
        if not state.stack:
            raise self.error("takes a value off an empty stack")
        state.stack.pop()

    def drop_register(self, state: _State, x: int, n: int) -> None:
        """Forget a register."""
        state.registers.pop(x, None)

    def load_constant(self, state: _State, x: int, n: int) -> None:
        """Push a constant."""
        if x not in self.constants:
            function = self.function
            self.constants[x] = self.builder.constant(function.constants[x], function.constant_types[x])
        state.stack.append(self.constants[x])

    def get_attribute(self, state: _State, x: int, n: int) -> None:
        """Push an attribute, or step into a submodule."""
        found = self.modules.slot(self.pop_module(state), x)
        if isinstance(found, Submodule):
            state.stack.append(found)
            return
        if not isinstance(found, str):
            raise self.error(f"reads a member of the enumeration {found.class_name}, which mobopt reads in source only")
        kind = self.modules.attributes[found].type
        name = found.rpartition(".")[2]
        state.stack += self.builder.node(
            "prim::GetAttr", [self.module_value], [kind], attributes={"name": found}, name=name
        )

    def set_attribute(self, state: _State, x: int, n: int) -> None:
        """Set an attribute."""
        value = self.pop(state)
        found = self.modules.slot(self.pop_module(state), x)
        if isinstance(found, Submodule):
            raise self.error(f"replaces the submodule {found.path!r}, which mobopt does not read")
        if not isinstance(found, str):
            raise self.error(f"sets a member of the enumeration {found.class_name}, which mobopt does not read")
        self.modules.widen(found, value.type)
        self.builder.node("prim::SetAttr", [self.module_value, value], [], attributes={"name": found})

    def pop_module(self, state: _State) -> Submodule:
        """Take a module off the stack."""
        item = state.stack.pop() if state.stack else None
        if not isinstance(item, Submodule):
            raise self.error("reads an attribute of what is not a module")
        return item

    # Operators.

    def operator(self, state: _State, x: int, n: int) -> None:
        """OP."""
        entry = self.function.operators[x]
        if entry.name in _UNTYPED:
            self.language_operator(state, entry.name, None)
            return
        schema = schema_of(entry.qualified_name)
        total = len(schema.arguments)
        pushed = total if entry.argument_count is None else min(entry.argument_count, total)
        values = self.pop_many(state, pushed)
        # Arguments that the operator writes to come last in a schema and are always pushed.
        outs = 0
        while outs < pushed and schema.arguments[total - 1 - outs].is_written and pushed < total:
            outs += 1
        given = dict(enumerate(values[: pushed - outs]))
        given |= {total - outs + i: value for i, value in enumerate(values[pushed - outs :])}
        state.stack += self.builder.operator(schema, given)

    def variadic(self, state: _State, x: int, n: int) -> None:
        """OPN."""
        entry = self.function.operators[x]
        if entry.name in _UNTYPED:
            self.language_operator(state, entry.name, n)
            return
        self.call_variadic(state, entry.qualified_name, n)

    def call_variadic(self, state: _State, qualified_name: str, count: int) -> None:
        """Call an operator with a number of inputs that the instruction says."""
        schema = schema_of(qualified_name)
        values = self.pop_many(state, count)
        fixed = len(schema.arguments)
        state.stack += self.builder.operator(schema, dict(enumerate(values[:fixed])), values[fixed:])

    def promoted(self, state: _State, x: int, n: int) -> None:
        """An instruction that stands for an operator."""
        op = self.function.instructions[self.index][0]
        name = PROMOTED[op]
        if name in _UNTYPED:
            self.language_operator(state, name, None)
        elif op == "FORMAT":
            self.call_variadic(state, name, x)
        elif op == "DICT_INDEX":  # of keys of any type
            table, key = self.pop_many(state, 2)
            overloads = {schema.overload: schema for schema in schemas_of(name.partition(".")[0])}
            schema = overloads.get(f"Dict_{key.type}", schema_of(name))
            state.stack += self.builder.operator(schema, {0: table, 1: key}, [])
        else:
            self.call_variadic(state, name, len(schema_of(name).arguments))

    def language_operator(self, state: _State, name: str, count: int | None) -> None:
        """An operator whose results have types that no schema tells."""
        if name == "prim::Uninitialized":
            state.stack += self.builder.node(name, [], [ANY])
        elif name == "prim::unchecked_cast":
            value = self.pop(state)
            kind = value.type.element if isinstance(value.type, OptionalType) else value.type
            state.stack.append(self.builder.cast(value, kind))
        elif name == "prim::RaiseException":
            self.builder.node(name, self.pop_many(state, 2 if count is None else count), [])
        elif name == "prim::TupleUnpack":
            value = self.pop(state)
            state.stack += self.builder.node(name, [value], self.tuple_type(value).elements)
        elif name == "prim::TupleIndex":
            self.tuple_index(state)
        else:
            self.to_list(state)

    def tuple_type(self, value: Value) -> TupleType:
        """The type of a value that must be a tuple."""
        kind = value.type.element if isinstance(value.type, OptionalType) else value.type
        if not isinstance(kind, TupleType):
            raise self.error(f"unpacks a {kind} as a tuple")
        return kind

    def tuple_index(self, state: _State) -> None:
        """prim::TupleIndex."""
        value, index = self.pop_many(state, 2)
        whole, number = self.tuple_type(value), index.constant if index.is_constant else None
        kind = whole.type_at(number) if index.type == INT else None
        if kind is None:
            raise self.error(f"takes an element of a tuple of {len(whole.elements)} that it does not have")
        state.stack += self.builder.node("prim::TupleIndex", [value, index], [kind])

    def to_list(self, state: _State) -> None:
        """prim::tolist, whose type follows from its constants."""
        values = self.pop_many(state, 3)
        depth, element = (value.constant if value.is_constant else None for value in values[1:])
        kinds = {0: INT, 1: FLOAT, 2: BOOL}
        if not isinstance(depth, int) or not 0 <= depth < 8 or element not in kinds:
            raise self.error("makes a list of a type that it does not tell")
        kind: Type = kinds[element]
        for _ in range(depth):
            kind = ListType(kind)
        state.stack += self.builder.node("prim::tolist", values, [kind])

    def tuple_slice(self, state: _State, x: int, n: int) -> None:
        """TUPLE_SLICE."""
        value = self.pop(state)
        kind = TupleType(self.tuple_type(value).elements[x:n])
        state.stack += self.builder.node("prim::TupleSlice", [value], [kind], attributes={"beg": x, "end": n})

    def construct_tuple(self, state: _State, x: int, n: int) -> None:
        """TUPLE_CONSTRUCT."""
        values = self.pop_many(state, x)
        kind = TupleType(tuple(value.type for value in values))
        state.stack += self.builder.node("prim::TupleConstruct", values, [kind])

    def construct(self, state: _State, x: int, n: int) -> None:
        """LIST_CONSTRUCT, DICT_CONSTRUCT and NAMED_TUPLE_CONSTRUCT."""
        values, kind = self.pop_many(state, n), self.function.types[x]
        if isinstance(kind, ListType):
            values = [self.builder.refined(value, kind.element) for value in values]
            if not all(accepts(kind.element, value.type, convert=True) for value in values):
                raise self.error(f"puts something else into a {kind}")
        op = self.function.instructions[self.index][0]
        state.stack += self.builder.node(_CONSTRUCTORS[op], values, [kind])

    def unpack_list(self, state: _State, x: int, n: int) -> None:
        """LIST_UNPACK."""
        value = self.pop(state)
        if not isinstance(value.type, ListType):
            raise self.error(f"unpacks a {value.type} as a list")
        state.stack += self.builder.node("prim::ListUnpack", [value], [value.type.element] * x)

    def is_instance(self, state: _State, x: int, n: int) -> None:
        """ISINSTANCE."""
        types = self.function.types[x : x + n]
        state.stack += self.builder.node("prim::isinstance", [self.pop(state)], [BOOL], attributes={"types": types})

    def warn(self, state: _State, x: int, n: int) -> None:
        """WARN."""
        self.call_variadic(state, "aten::warn", 2)


_CONSTRUCTORS = {
    "LIST_CONSTRUCT": "prim::ListConstruct",
    "DICT_CONSTRUCT": "prim::DictConstruct",
    "NAMED_TUPLE_CONSTRUCT": "prim::TupleConstruct",
}

_HANDLERS: dict[str, Callable[[_Reader, _State, int, int], None]] = {
    "OP": _Reader.operator,
    "OPN": _Reader.variadic,
    "LOAD": _Reader.load,
    "MOVE": _Reader.move,
    "STORE": _Reader.store,
    "STOREN": _Reader.store_many,
    "DROP": _Reader.drop,
    "DROPR": _Reader.drop_register,
    "LOADC": _Reader.load_constant,
    "GET_ATTR": _Reader.get_attribute,
    "SET_ATTR": _Reader.set_attribute,
    "TUPLE_SLICE": _Reader.tuple_slice,
    "TUPLE_CONSTRUCT": _Reader.construct_tuple,
    **dict.fromkeys(_CONSTRUCTORS, _Reader.construct),
    "LIST_UNPACK": _Reader.unpack_list,
    "ISINSTANCE": _Reader.is_instance,
    "WARN": _Reader.warn,
    **dict.fromkeys(PROMOTED, _Reader.promoted),
}
