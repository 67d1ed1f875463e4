"""Parse and check one condition; :mod:`mobopt.ops.targets.conditions` describes the language."""

from __future__ import annotations

import ast
import builtins
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import count
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from mobopt.errors import TableError
from mobopt.ops.targets.three_valued import (
    Evaluate,
    applied,
    chosen,
    constant,
    is_known,
    joined,
    listed,
    quantified,
    variable,
)


@dataclass(frozen=True)
class Kind:
    """What an expression gives; ``items`` are the kinds of a tuple's items, or the one of a list's."""

    name: str
    items: tuple[Kind, ...] = ()

    @property
    def item(self) -> Kind:
        """What each item is."""
        return self.items[0] if len(set(self.items)) == 1 else VALUE_KIND


TENSOR_KIND, TRUTH_KIND, VALUE_KIND = Kind("a tensor"), Kind("true or false"), Kind("a value")


def list_kind(item: Kind) -> Kind:
    """A list of what is of one kind."""
    return Kind("a list", (item,))


@dataclass(frozen=True)
class Definition:
    """A name that conditions may use, alone or with arguments."""

    name: str
    means: str
    """The expression that it stands for."""
    about: str
    """What it says, in words."""
    parameters: tuple[str, ...] = ()


@cache
def definitions() -> Mapping[str, Definition]:
    """What ``names.toml`` defines, by name."""
    file = resources.files("mobopt.ops.targets") / "names.toml"
    entries = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        name: Definition(name, entry["means"], entry["about"], tuple(entry.get("parameters", ())))
        for name, entry in entries.items()
    }


@dataclass(frozen=True)
class _Expression:
    kind: Kind
    evaluate: Evaluate


@dataclass(frozen=True)
class _Function:
    """A function on values, with the least and the most number of its arguments."""

    apply: Callable[..., Any]
    least: int = 1
    most: int = 1


_FIELDS = ("rank", "sizes", "numel", "dtype", "is_constant", "nchw")
_FUNCTIONS: Mapping[str, _Function] = {
    **{name: _Function(getattr(builtins, name)) for name in ("abs", "len", "range", "set", "sum")},
    "min": _Function(min, 1, 3),
    "max": _Function(max, 1, 3),
    "prod": _Function(math.prod),
    "is_float": _Function(lambda value: isinstance(value, float)),
    "zip": _Function(lambda *lists: list(zip(*lists, strict=False)), 2, 4),
    "enumerate": _Function(lambda items: list(enumerate(items))),
}
_OF_ARGUMENTS = ("computed", "greatest", "least", "producer")
_OF_TRUTHS = ("all", "any", "known")
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_OF_CALL: Mapping[str, _Expression] = {
    "limit": _Expression(VALUE_KIND, lambda call, variables: call.limit),
    "output": _Expression(TENSOR_KIND, lambda call, variables: call.outputs[0]),
    "outputs": _Expression(list_kind(TENSOR_KIND), lambda call, variables: call.outputs),
}


class ConditionParser:
    """Makes a condition a function of a call; names that it uses are parsed where they stand.

    Args:
        text: the expression.
        arguments: of the operator, by name.
        place: where the text is written, for errors.
        bound: what further names stand for.
        slots: numbers for the variables of loops.
    """

    def __init__(
        self,
        text: str,
        arguments: Mapping[str, Kind],
        place: str,
        bound: Mapping[str, _Expression] | None = None,
        slots: Iterator[int] | None = None,
    ) -> None:
        self._text = text
        self._arguments = arguments
        self._place = place
        self._bound = dict(bound or {})
        self._slots = count() if slots is None else slots

    def condition(self) -> Evaluate:
        """The text, which must be true or false.

        Raises:
            TableError: it is not, or is not of the language.
        """
        return self._truth(self._tree())

    def _tree(self) -> ast.expr:
        try:
            return _tree(self._text)
        except SyntaxError as error:
            raise TableError(self._message(error.offset or 1, error.msg)) from None

    def _message(self, column: int, problem: str) -> str:
        return f"{self._place}: column {column} of `{self._text}`: {problem}"

    def _error(self, node: ast.expr, problem: str) -> TableError:
        return TableError(self._message(node.col_offset + 1, problem))

    def _truth(self, node: ast.expr) -> Evaluate:
        found = self._read(node)
        if found.kind != TRUTH_KIND:
            problem = f"`{ast.unparse(node)}` is {found.kind.name}, and only what is true or false may stand here"
            raise self._error(node, f"{problem}: a comparison, a flag, or such a name of names.toml")
        return found.evaluate

    def _read(self, node: ast.expr) -> _Expression:
        reader = _READERS.get(type(node))
        if reader is None:
            raise self._error(node, f"`{ast.unparse(node)}` is not of the language that conditions.py describes")
        return reader(self, node)

    def _evaluates(self, nodes: Sequence[ast.expr]) -> list[Evaluate]:
        return [self._read(node).evaluate for node in nodes]

    def _constant(self, node: ast.Constant) -> _Expression:
        value = node.value
        if not (value is None or isinstance(value, (bool, int, float, str))):
            raise self._error(node, f"{value!r} is no number, no text, and not None")
        return _Expression(TRUTH_KIND if isinstance(value, bool) else VALUE_KIND, constant(value))

    def _name(self, node: ast.Name) -> _Expression:
        name = node.id
        if name in self._bound:
            return self._bound[name]
        if name in self._arguments:
            if name in definitions():
                raise self._error(node, f"{name} is an argument, and a name of names.toml, which needs another")
            return _Expression(self._arguments[name], lambda call, variables: call.argument(name))
        if name in _OF_CALL:
            return _OF_CALL[name]
        if name in definitions():
            return self._defined(node, definitions()[name], [])
        arguments = ", ".join(self._arguments) or "none"
        others = ", ".join(sorted([*_OF_CALL, *(item.name for item in definitions().values() if not item.parameters)]))
        raise self._error(node, f"{name} is not known; there are the arguments {arguments}, and the names {others}")

    def _defined(self, node: ast.expr, definition: Definition, given: Sequence[ast.expr]) -> _Expression:
        if len(given) != len(definition.parameters):
            raise self._error(node, f"{definition.name} takes {', '.join(definition.parameters) or 'nothing'}")
        bound = dict(zip(definition.parameters, map(self._read, given), strict=True))
        place = f"{self._place}, {definition.name} of names.toml"
        parser = ConditionParser(definition.means, self._arguments, place, bound, self._slots)
        return parser._read(parser._tree())

    def _attribute(self, node: ast.Attribute) -> _Expression:
        of, field = self._read(node.value), node.attr
        if of.kind != TENSOR_KIND:
            raise self._error(node, f"`{ast.unparse(node.value)}` is {of.kind.name}, and only a tensor has fields")
        if field not in _FIELDS:
            raise self._error(node, f"a tensor has no {field}; it has {', '.join(_FIELDS)}")
        kind = TRUTH_KIND if field == "is_constant" else VALUE_KIND
        return _Expression(kind, applied(operator.attrgetter(field), [of.evaluate]))

    def _subscript(self, node: ast.Subscript) -> _Expression:
        of = self._read(node.value)
        if of.kind in (TENSOR_KIND, TRUTH_KIND):
            raise self._error(node, f"`{ast.unparse(node.value)}` is {of.kind.name}, which has no items")
        if not isinstance(node.slice, ast.Slice):
            return _Expression(of.kind.item, applied(operator.getitem, [of.evaluate, self._read(node.slice).evaluate]))
        ends = (node.slice.lower, node.slice.upper, node.slice.step)
        parts = [constant(None) if end is None else self._read(end).evaluate for end in ends]
        return _Expression(of.kind, applied(operator.getitem, [of.evaluate, applied(slice, parts)]))

    def _items(self, node: ast.Tuple | ast.Set) -> _Expression:
        make = set if isinstance(node, ast.Set) else tuple
        items = [self._read(item) for item in node.elts]
        kind = Kind("a tuple", tuple(item.kind for item in items))
        if all(isinstance(item, ast.Constant) for item in node.elts):
            return _Expression(kind, constant(make(ast.literal_eval(node))))
        parts = [item.evaluate for item in items]
        return _Expression(kind, lambda call, variables: make(part(call, variables) for part in parts))

    def _boolop(self, node: ast.BoolOp) -> _Expression:
        return _Expression(TRUTH_KIND, joined([self._truth(part) for part in node.values], isinstance(node.op, ast.Or)))

    def _unaryop(self, node: ast.UnaryOp) -> _Expression:
        if isinstance(node.op, ast.Not):
            return _Expression(TRUTH_KIND, applied(operator.not_, [self._truth(node.operand)]))
        if isinstance(node.op, ast.USub):
            return _Expression(VALUE_KIND, applied(operator.neg, self._evaluates([node.operand])))
        raise self._error(node, "the operators with one operand are - and not")

    def _binop(self, node: ast.BinOp) -> _Expression:
        compute = _BINARY.get(type(node.op))
        if compute is None:
            raise self._error(node, f"`{ast.unparse(node)}`: the operators with two operands are + - * // %")
        return _Expression(VALUE_KIND, applied(compute, self._evaluates([node.left, node.right])))

    def _compare(self, node: ast.Compare) -> _Expression:
        operands = [node.left, *node.comparators]
        for kind, second in zip(node.ops, node.comparators, strict=True):
            if isinstance(kind, (ast.Is, ast.IsNot)) and not (
                isinstance(second, ast.Constant) and second.value is None
            ):
                raise self._error(second, "`is` compares with None only")
        parts = self._evaluates(operands)
        pairs = zip(node.ops, parts, parts[1:], strict=False)
        links = [applied(_COMPARISONS[type(kind)], [first, second]) for kind, first, second in pairs]
        return _Expression(TRUTH_KIND, links[0] if len(links) == 1 else joined(links, False))

    def _ifexp(self, node: ast.IfExp) -> _Expression:
        yes, no = self._read(node.body), self._read(node.orelse)
        if yes.kind != no.kind:
            raise self._error(node, f"this is {yes.kind.name} or {no.kind.name}; both must be of one kind")
        return _Expression(yes.kind, chosen(self._truth(node.test), yes.evaluate, no.evaluate))

    def _generator(self, node: ast.GeneratorExp) -> _Expression:
        items, slots, inner = self._loop(node)
        element = inner._read(node.elt)
        return _Expression(list_kind(element.kind), listed(element.evaluate, items, slots))

    def _loop(self, node: ast.GeneratorExp) -> tuple[Evaluate, Sequence[int], ConditionParser]:
        """What is looped over, the slots of its variables, and a parser of what is in the loop."""
        (loop, *more) = node.generators
        if more or loop.ifs:
            raise self._error(node, "a loop has one `for`, and no `if`")
        items = self._read(loop.iter)
        is_unpacked = isinstance(loop.target, ast.Tuple)
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        kinds = items.kind.item.items if is_unpacked else (items.kind.item,)
        slots, bound = [], dict(self._bound)
        for index, target in enumerate(targets):
            if not isinstance(target, ast.Name):
                raise self._error(target, "only names stand between `for` and `in`")
            slots.append(next(self._slots))
            kind = kinds[index] if index < len(kinds) else VALUE_KIND
            bound[target.id] = _Expression(kind, variable(slots[-1]))
        return items.evaluate, slots, ConditionParser(self._text, self._arguments, self._place, bound, self._slots)

    def _call(self, node: ast.Call) -> _Expression:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if node.keywords:
            raise self._error(node, "functions take no keywords here")
        if name in _OF_ARGUMENTS:
            return self._of_arguments(node, name)
        if name in _OF_TRUTHS:
            return self._of_truths(node, name)
        if name in _FUNCTIONS:
            return self._function(node, name)
        if name in definitions():
            return self._defined(node, definitions()[name], node.args)
        defined = [item.name for item in definitions().values() if item.parameters]
        known = ", ".join(sorted([*_OF_ARGUMENTS, *_OF_TRUTHS, *_FUNCTIONS, *defined]))
        raise self._error(node, f"there is no function {ast.unparse(node.func)}; there are {known}")

    def _of_arguments(self, node: ast.Call, function: str) -> _Expression:
        names = []
        for item in node.args:
            if not isinstance(item, ast.Name) or item.id not in self._arguments:
                raise self._error(
                    item, f"{function} takes arguments of the operator, which are {', '.join(self._arguments)}"
                )
            names.append(item.id)
        if not names or (len(names) > 1 and function != "computed"):
            raise self._error(
                node, f"{function} takes {'arguments' if function == 'computed' else 'one argument'} by name"
            )
        if function == "computed":
            return _Expression(TRUTH_KIND, lambda call, variables: any(map(call.is_computed, names)))
        name = names[0]
        if function == "producer":
            return _Expression(VALUE_KIND, lambda call, variables: call.producer(name))
        side = 0 if function == "least" else 1
        return _Expression(VALUE_KIND, lambda call, variables: call.bounds(name)[side])

    def _of_truths(self, node: ast.Call, function: str) -> _Expression:
        if len(node.args) != 1:
            raise self._error(node, f"{function} takes one argument")
        (item,) = node.args
        if function == "known":
            return _Expression(TRUTH_KIND, is_known(self._read(item).evaluate))
        if not isinstance(item, ast.GeneratorExp):
            raise self._error(item, f"{function} takes `... for x in ...`")
        items, slots, inner = self._loop(item)
        return _Expression(TRUTH_KIND, quantified(inner._truth(item.elt), items, slots, function == "any"))

    def _function(self, node: ast.Call, name: str) -> _Expression:
        function = _FUNCTIONS[name]
        if not function.least <= len(node.args) <= function.most:
            raise self._error(node, f"{name} takes {function.least} to {function.most} arguments, not {len(node.args)}")
        given = [self._read(item) for item in node.args]
        kind = _kind_of_call(name, [item.kind for item in given])
        return _Expression(kind, applied(function.apply, [item.evaluate for item in given]))


@cache
def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _kind_of_call(function: str, given: Sequence[Kind]) -> Kind:
    items = tuple(kind.item for kind in given)
    if function == "zip":
        return list_kind(Kind("a tuple", items))
    if function == "enumerate":
        return list_kind(Kind("a tuple", (VALUE_KIND, *items)))
    return TRUTH_KIND if function == "is_float" else VALUE_KIND


_READERS: Mapping[type[ast.expr], Callable[[ConditionParser, Any], _Expression]] = {
    ast.Attribute: ConditionParser._attribute,
    ast.BinOp: ConditionParser._binop,
    ast.BoolOp: ConditionParser._boolop,
    ast.Call: ConditionParser._call,
    ast.Compare: ConditionParser._compare,
    ast.Constant: ConditionParser._constant,
    ast.GeneratorExp: ConditionParser._generator,
    ast.IfExp: ConditionParser._ifexp,
    ast.Name: ConditionParser._name,
    ast.Set: ConditionParser._items,
    ast.Subscript: ConditionParser._subscript,
    ast.Tuple: ConditionParser._items,
    ast.UnaryOp: ConditionParser._unaryop,
}
