"""What ``__setstate__`` makes of a pickled state, where all it does is to store the parts in attributes.

TorchScript lets a class restore itself by code. mobopt runs no code of a file, so it reads that code instead:
assignments of the state, of its parts and of literals are carried out, and anything else is refused.
"""

from __future__ import annotations

import ast
from typing import Any

from mobopt.bundle.source_library import SourceClass, SourceFunction
from mobopt.errors import BundleError

_SET_STATE = "__setstate__"


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
            f"data.pkl: the state of an object of {found.name} is a {type(state).__name__}, and the class has no "
            f"{_SET_STATE} to read it with; the file is damaged"
        )
    values = _Assignments(function, state).values
    if any(name not in found.attributes for name in values):
        raise BundleError(f"{function.record}: {_SET_STATE} of {found.name} sets what the class does not declare")
    # What torch's own classes leave out is None or False, such as training and its hooks.
    return {name: values.get(name, False if name == "training" else None) for name in found.attributes}


class _Assignments:
    """Carries out assignments."""

    def __init__(self, function: SourceFunction, state: Any) -> None:
        self._record = function.record
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
            case ast.Assign(targets=[target], value=value):
                self._assign(target, self._value(value))
            case ast.Return(value=None | ast.Constant(value=None)) | ast.Pass():
                pass
            case _:
                raise self._refused(statement)

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
