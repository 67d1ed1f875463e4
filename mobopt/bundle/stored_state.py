"""What ``__setstate__`` makes of a pickled state, where all it does is to store the parts in attributes.

TorchScript lets a class restore itself by code. mobopt runs no code of a file, so it reads that code instead:
assignments of the state, of its parts and of literals are carried out, and so is what torch's quantised layers do: to
pack their weights. Anything else is refused.
"""

from __future__ import annotations

import ast
from typing import Any

from mobopt.bundle.bytecode import Function
from mobopt.bundle.other_tensors import refusal_of_tensor
from mobopt.bundle.source_library import SourceClass, SourceFunction
from mobopt.errors import BundleError
from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.quantized_contexts import QUANTIZED_CLASSES

_SET_STATE = "__setstate__"
_QUANTIZED, _PACKS = "ops.quantized.", "_prepack"
"""In the names of operators that pack weights."""
_MOST_VALUES = 1 << 10
"""That bytecode which restores a state may unpack."""


def stored_state(found: SourceClass, state: Any) -> dict[str, Any]:
    """Attributes of an object by name, in the order that its class declares.

    Args:
        found: its class.
        state: what was pickled.

    Raises:
        BundleError: the class does more than store attributes, or leaves one out.
    """
    function = found.methods.get(_SET_STATE)
    if function is None:
        raise BundleError(
            f"the state of an object of {found.name} is a {type(state).__name__}, and the class has no "
            f"{_SET_STATE} to read it with; the file is damaged"
        )
    values = _Assignments(function, state, found).values
    if any(isinstance(value, AffineTensor) for value in values.values()):
        raise BundleError(f"{function.record}: {refusal_of_tensor('_rebuild_qtensor', [('', found.name)], '')}")
    if any(name not in found.attributes for name in values):
        raise BundleError(f"{function.record}: {_SET_STATE} of {found.name} sets what the class does not declare")
    # What torch's own classes leave out is None or False, such as training and its hooks.
    return {name: values.get(name, False if name == "training" else None) for name in found.attributes}


class _Assignments:
    """Carries out assignments."""

    def __init__(self, function: SourceFunction, state: Any, found: SourceClass) -> None:
        self._record = function.record
        self._found = found
        parameters = [item.arg for item in function.definition.args.args]
        if len(parameters) != 2:
            raise self._refused(function.definition)
        self._owner = parameters[0]
        self._variables = {parameters[1]: state}
        self.values: dict[str, Any] = {}
        for statement in function.definition.body:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=method), args=[weight, bias])
            ) if owner == self._owner and self._packs(method):
                self._pack(self._value(weight), self._value(bias))
            case ast.Assign(targets=[target], value=value):
                self._assign(target, self._value(value))
            case ast.Return(value=None | ast.Constant(value=None)) | ast.Pass():
                pass
            case _:
                raise self._refused(statement)

    def _packs(self, method: str) -> bool:
        """Whether a method packs a quantised weight, as torch's own layers restore themselves."""
        function = self._found.methods.get(method)
        nodes = [] if function is None else ast.walk(function.definition)
        called = [ast.unparse(item.func) for item in nodes if isinstance(item, ast.Call)]
        return any(name.startswith(_QUANTIZED) and _PACKS in name for name in called)

    def _pack(self, weight: Any, bias: Any) -> None:
        """Make packed weights of what was assigned before, by the type of the attribute that holds them."""
        for name, kind in self._found.attributes.items():
            cls = QUANTIZED_CLASSES.get(ast.unparse(kind))
            if cls is not None:
                self.values[name] = cls.packed(weight, bias, self.values)

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._variables[name] = value
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == self._owner:
                self.values[name] = value
            case ast.Tuple(elts=targets) if isinstance(value, (tuple, list)) and len(value) == len(targets):
                for part, item in zip(targets, value, strict=True):
                    self._assign(part, item)
            case _:
                raise self._refused(target)

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.Name(id=name) if name in self._variables:
                return self._variables[name]
            case ast.Subscript(value=inner, slice=ast.Constant(value=int(index))):
                container = self._value(inner)
                if isinstance(container, (tuple, list)) and 0 <= index < len(container):
                    return container[index]
        raise self._refused(node)

    def _refused(self, node: ast.AST) -> BundleError:
        text = ast.unparse(node)[:80]
        return BundleError(
            f"{self._record}:{getattr(node, 'lineno', '?')}: {_SET_STATE} does more than store attributes ({text!r}); "
            "mobopt runs no code to read a file. Save the model without __getstate__ and __setstate__"
        )


def assigned_slots(function: Function, state: Any) -> dict[int, Any]:
    """Attributes of an object by number, as the bytecode of ``__setstate__`` stores them.

    Args:
        function: the method's checked tables.
        state: what was written.

    Raises:
        BundleError: the method does more than store attributes.
    """
    return _Instructions(function, state).slots


class _Instructions:
    """Carries out instructions that store the state, its parts and constants."""

    _OBJECT = object()

    def __init__(self, function: Function, state: Any) -> None:
        self._function = function
        self._stack: list[Any] = [self._OBJECT, state]
        self._registers: dict[int, Any] = {}
        self._unpacked = 0
        self.slots: dict[int, Any] = {}
        for instruction in function.instructions:
            try:
                self._step(*instruction)
            except (IndexError, KeyError, TypeError, ValueError):
                raise self._refused(instruction[0]) from None

    def _step(self, op: str, x: int, n: int) -> None:
        match op:
            case "STORE":
                self._registers[x] = self._stack.pop()
            case "STOREN":
                self._registers.update(zip(range(x, x + n), self._take(n), strict=True))
            case "LOAD":
                self._stack.append(self._registers[x])
            case "MOVE":
                self._stack.append(self._registers.pop(x))
            case "DROP":
                self._stack.pop()
            case "DROPR":
                self._registers.pop(x)
            case "LOADC":
                self._stack.append(self._function.constants[x])
            case "SET_ATTR":
                owner, value = self._take(2)
                if owner is not self._OBJECT or value is self._OBJECT:
                    raise self._refused(op)
                self.slots[x] = value
            case "LIST_UNPACK":
                self._unpack(self._stack.pop(), n)
            case "TUPLE_INDEX" | "DICT_INDEX":
                self._index(op)
            case "OP":
                self._call(self._function.operators[x].qualified_name)
            case "UNCHECKED_CAST" | "RET":
                pass
            case _:
                raise self._refused(op)

    def _call(self, operator: str) -> None:
        match operator:
            case "prim::TupleUnpack":
                parts = self._stack.pop()
                self._unpack(parts, len(parts))
            case "prim::TupleIndex" | "aten::__getitem__.t" | "aten::__getitem__.Dict_str":
                self._index(operator)
            case "prim::unchecked_cast":
                pass
            case _:
                raise self._refused(operator)

    def _index(self, what: str) -> None:
        container, index = self._take(2)
        if not isinstance(container, (tuple, list, dict)) or (not isinstance(container, dict) and index < 0):
            raise self._refused(what)
        self._stack.append(container[index])

    def _unpack(self, parts: Any, count: int) -> None:
        if not isinstance(parts, (tuple, list)) or len(parts) != count:
            raise ValueError(count)
        self._unpacked += count
        if self._unpacked > _MOST_VALUES:
            raise ValueError(count)
        self._stack.extend(parts)

    def _take(self, count: int) -> list[Any]:
        if count > len(self._stack):
            raise IndexError(count)
        taken = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return taken

    def _refused(self, what: str) -> BundleError:
        return BundleError(
            f"bytecode, {self._function.name!r}: it does more than store attributes ({what!r}); mobopt runs no code to "
            "read a file. Save the model without __getstate__ and __setstate__"
        )
