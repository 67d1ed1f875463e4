"""Symbols of dimensions, what is known of them, and what was decided about them.

:class:`Guards` makes symbols, each with a range and an example's value. Comparisons of expressions are answered from
the ranges and from earlier answers; where these don't tell, the example's values do, and the answer is kept as a
:class:`Guard`: whatever was derived with it holds for all values that every guard holds for.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mobopt.errors import GraphError, InputError
from mobopt.ir.dimensions import (
    FUNCTIONS,
    Atom,
    Dimension,
    Expression,
    Monomial,
    atoms_of,
    constant_part,
    symbol,
)

LARGEST_SIZE = 2**31 - 1
"""The upper bound of a symbol that was given none."""

_MOST_TERMS = 64
"""Expressions with more terms than this are not expanded to find out more about them."""


class UnknownFactError(Exception):
    """Something is asked for that only a run tells; whoever evaluates conditions catches it."""


class UndecidedError(UnknownFactError):
    """A comparison that the ranges leave open, of symbols without examples, or after the guards were closed."""


@dataclass(frozen=True)
class Symbol:
    """A dimension that may have several sizes."""

    name: str
    lower: int
    upper: int
    example: int | None = None
    """The size that undecided comparisons are answered for."""
    origin: str = ""
    """What the size is of, for messages: ``dimension 2 of input x``."""

    def __str__(self) -> str:
        return f"{self.name}: {self.lower}..{self.upper}"


@dataclass(frozen=True)
class Guard:
    """A condition on symbols: ``expression relation 0``, where the relation is ``==``, ``!=`` or ``>=``."""

    expression: Expression
    relation: str

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether it is true of these sizes; they must name all symbols in it."""
        value = self.expression.substitute(values)
        return {"==": value == 0, "!=": value != 0, ">=": value >= 0}[self.relation]

    def __str__(self) -> str:
        sides: list[Dimension] = [0, 0]
        for monomial, coefficient in self.expression.terms.items():
            term = Expression(self.expression.decisions, {monomial: 1}) if monomial else 1
            sides[coefficient < 0] = sides[coefficient < 0] + term * abs(coefficient)
        return f"{sides[0]} {self.relation} {sides[1]}"


class Guards:
    """The symbols of one specialisation, and the conditions under which it is right."""

    def __init__(self) -> None:
        self.symbols: dict[str, Symbol] = {}
        self.conditions: list[Guard] = []
        """In the order in which they were decided, none twice."""
        self.is_closed = False
        self._ranges: dict[frozenset[tuple[Monomial, int]], tuple[int, int]] = {}
        self._unequal: set[frozenset[tuple[Monomial, int]]] = set()
        self._bounds: dict[frozenset[tuple[Monomial, int]], tuple[int, int]] = {}
        self._compiled: Callable[..., bool] | None = None

    def symbol(
        self,
        name: str = "",
        lower: int = 0,
        upper: int = LARGEST_SIZE,
        example: int | None = None,
        origin: str = "",
    ) -> Expression:
        """A new symbol.

        Args:
            name: a Python identifier; ``s`` and the next number if empty.
            lower: the least size that it may have.
            upper: the largest.
            example: the size that undecided comparisons are answered for.
            origin: what the size is of, for messages.

        Raises:
            GraphError: there is a symbol of this name, or the name can't be one.
            InputError: the range has no size in it, or not the example's.
        """
        name = name or f"s{len(self.symbols)}"
        if name in self.symbols or not name.isidentifier() or name in ("min", "max"):
            raise GraphError(f"{name!r} can't be the name of another symbol")
        made = Symbol(name, lower, upper, example, origin)
        if lower > upper:
            raise InputError(f"{origin or name} has no size between {lower} and {upper}")
        if example is not None:
            self._check_range(made, example)
        self.symbols[name] = made
        self._compiled = None
        return symbol(self, name)

    @property
    def examples(self) -> dict[str, int]:
        """The examples' sizes by the names of symbols."""
        return {name: item.example for name, item in self.symbols.items() if item.example is not None}

    @property
    def are_pinned(self) -> bool:
        """Whether no symbol may have another value than its example's."""
        return all(lower == upper for lower, upper in (self.bounds(symbol(self, name)) for name in self.symbols))

    def close(self) -> None:
        """From now on a comparison that isn't decided raises :class:`UndecidedError` and makes no guard."""
        self.is_closed = True

    # Decisions

    def decide(self, expression: Expression, relation: str) -> bool:
        """Whether ``expression relation 0``; a guard is recorded where only the examples tell.

        Raises:
            UndecidedError: the ranges leave it open, and there are no examples, or the guards are closed.
        """
        known = self.known(expression, relation)
        if known is not None:
            return known
        example = self._example(expression, relation)
        is_true = {"==": example == 0, "!=": example != 0, ">=": example >= 0}[relation]
        if relation == ">=" and not is_true:
            self._record(-expression + -1, ">=")
        else:
            self._record(expression, relation if is_true else {"==": "!=", "!=": "=="}[relation])
        return is_true

    def specialize(self, expression: Expression) -> int:
        """The value that the examples give, which becomes a guard.

        Raises:
            UndecidedError: there are no examples, or the guards are closed.
        """
        lower, upper = self.bounds(expression)
        if lower == upper:
            return lower
        value = self._example(expression)
        self._record(expression - value, "==")
        return value

    def hash_of(self, expression: Expression) -> int:
        """The hash of an expression: any may be a key."""
        return hash(expression.key)

    def known(self, expression: Expression, relation: str) -> bool | None:
        """Whether ``expression relation 0`` is always (True) or never (False) true, as far as the ranges tell."""
        if relation == "!=":
            equal = self.known(expression, "==")
            return None if equal is None else not equal
        lower, upper = self.bounds(expression)
        if relation == ">=":
            found = True if lower >= 0 else False if upper < 0 else None
        else:
            found = True if lower == upper == 0 else False if lower > 0 or upper < 0 else None
            if found is None and self._is_never_zero(expression):
                return False
        return found if found is not None else self._known_expanded(expression, relation)

    def bounds(self, expression: Expression) -> tuple[int, int]:
        """The least and the largest value of an expression, both included; they may be wider than needed."""
        found = self._bounds.get(expression.key)
        if found is None:
            found = self._bounds[expression.key] = self._found_bounds(expression)
        return found

    def _example(self, expression: Expression, relation: str = "") -> int:
        """The value of an expression in the examples, which is asked for by itself or to decide a relation to zero."""
        value = None if self.is_closed else expression.substitute(self.examples)
        if isinstance(value, int):
            return value
        if relation:
            problem = f"{Guard(expression, relation)} is true of only some of the sizes that inputs may have"
        else:
            problem = f"{expression} is not the same for all sizes that inputs may have"
        raise UndecidedError(problem)

    def _record(self, expression: Dimension, relation: str) -> None:
        assert isinstance(expression, Expression)
        part, factor, constant = _parts(expression)
        value = -(constant // factor)
        guard = Guard(_difference(part, value), relation)
        self.conditions.append(guard)
        self._compiled = None
        least, most = self.bounds(part)
        if relation == ">=":
            least = value
        elif relation == "==":
            least = most = value
        else:
            self._unequal |= {guard.expression.key, (-guard.expression).key}
            least, most = least + (value == least), most - (value == most)
        self._ranges[part.key] = least, most
        self._ranges[(-part).key] = -most, -least
        self._bounds.clear()

    def _is_never_zero(self, expression: Expression) -> bool:
        part, factor, constant = _parts(expression)
        return constant % factor != 0 or _difference(part, -(constant // factor)).key in self._unequal

    def _known_expanded(self, expression: Expression, relation: str) -> bool | None:
        """As :meth:`known`, of a multiple in which quotients by numbers are what was divided, less its remainder."""
        expanded, scale = _without_quotients(expression)
        if scale == 1:
            return None
        lower, upper = (expanded, expanded) if isinstance(expanded, int) else self.bounds(expanded)
        if relation == ">=":
            return True if lower > -scale else False if upper < 0 else None
        return True if lower == upper == 0 else False if lower > 0 or upper < 0 else None

    def _found_bounds(self, expression: Expression) -> tuple[int, int]:
        least = most = 0
        for monomial, coefficient in expression.terms.items():
            ends = (coefficient, coefficient)
            for atom in monomial:
                ends = _product(ends, self._bounds_of_atom(atom))
            least, most = least + ends[0], most + ends[1]
        part, factor, constant = _parts(expression)
        if part.key in self._ranges:
            lower, upper = self._ranges[part.key]
            least, most = max(least, lower * factor + constant), min(most, upper * factor + constant)
        return least, most

    def _bounds_of_atom(self, atom: Atom) -> tuple[int, int]:
        known = self._ranges.get(frozenset({((atom,), 1)}))
        if not atom.function:
            item = self.symbols[atom.text]
            return known or (item.lower, item.upper)
        ends = [(item, item) if isinstance(item, int) else self.bounds(item) for item in atom.operands]
        least, most = _BOUNDS[atom.function](ends)
        return (least, most) if known is None else (max(least, known[0]), min(most, known[1]))

    # Checks

    def hold(self, values: Sequence[int]) -> bool:
        """Whether sizes, one for each symbol in order, are in their ranges and meet every condition; fast."""
        if self._compiled is None:
            ranges = [f"{item.lower} <= {item.name} <= {item.upper}" for item in self.symbols.values()]
            text = " and ".join([*ranges, *map(str, self.conditions)]) or "True"
            self._compiled = _function(list(self.symbols), text)
        return self._compiled(*values)

    def check(self, values: Sequence[int]) -> None:
        """Refuse sizes, one for each symbol in order, that are out of range.

        Raises:
            InputError: one is; the message names the dimension, the value and the bound.
        """
        for item, value in zip(self.symbols.values(), values, strict=True):
            self._check_range(item, value)

    def broken(self, values: Sequence[int]) -> Guard | None:
        """The first condition that sizes, one for each symbol in order, don't meet."""
        named = dict(zip(self.symbols, values, strict=True))
        return next((guard for guard in self.conditions if not guard.holds(named)), None)

    def compile(self, dimensions: Iterable[Dimension]) -> Callable[..., tuple[int, ...]]:
        """A function of the sizes of all symbols, in order, that gives the values of dimensions; fast.

        What several of them share is computed once.
        """
        wanted = list(dimensions)
        found = [atom for item in wanted if isinstance(item, Expression) for atom in atoms_of(item) if atom.function]
        names = {atom: f"_{index}" for index, atom in enumerate(dict.fromkeys(found))}
        lines = [f"{name} = {_atom_code(atom, names)}" for atom, name in names.items()]
        return _function(list(self.symbols), f"({''.join(f'{_code(item, names)}, ' for item in wanted)})", lines)

    def _check_range(self, item: Symbol, value: int) -> None:
        what = item.origin or item.name
        if value > item.upper:
            raise InputError(f"{what} is {value}, and its upper bound is {item.upper}")
        if value < item.lower:
            raise InputError(f"{what} is {value}, and its lower bound is {item.lower}")

    def __str__(self) -> str:
        return "; ".join([*map(str, self.symbols.values()), *map(str, self.conditions)])


def closed_guards() -> Guards:
    """Guards that answer from ranges alone: what is derived with them holds for all sizes in these."""
    guards = Guards()
    guards.close()
    return guards


def parse_dimension(text: str, guards: Guards) -> Dimension:
    """Read the text of a dimension, as ``str`` writes it.

    Args:
        text: such as ``(s0 + 1)//2``.
        guards: what the symbols belong to.

    Raises:
        GraphError: the text is no dimension, or names a symbol that the guards have not.
    """
    try:
        return _read(ast.parse(text.strip(), mode="eval").body, guards)
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError) as error:
        raise GraphError(f"can't read the dimension {text!r}: {error}") from error


def _read(node: ast.expr, guards: Guards) -> Dimension:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in guards.symbols:
        return symbol(guards, node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_read(node.operand, guards)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        made: Dimension = _OPERATORS[type(node.op)](_read(node.left, guards), _read(node.right, guards))
        return made
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and node.args:
        return FUNCTIONS[node.func.id](*(_read(item, guards) for item in node.args))
    raise ValueError(f"{ast.unparse(node)!r} is neither a number, a known symbol, nor arithmetic of such")


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


def _parts(expression: Expression) -> tuple[Expression, int, int]:
    """``part, factor, constant`` of ``part * factor + constant``; the part has no constant and no common factor."""
    constant = constant_part(expression)
    factor = math.gcd(*(coefficient for monomial, coefficient in expression.terms.items() if monomial))
    terms = {monomial: coefficient // factor for monomial, coefficient in expression.terms.items() if monomial}
    return Expression(expression.decisions, terms), factor, constant


def _difference(part: Expression, value: int) -> Expression:
    difference = part - value
    assert isinstance(difference, Expression)
    return difference


def _without_quotients(expression: Expression) -> tuple[Dimension, int]:
    """A multiple of an expression without quotients by numbers, and what it was multiplied by.

    ``a // n`` is ``(a - a % n) / n``.
    """
    scale = 1
    for monomial in expression.terms:
        scale = math.lcm(scale, math.prod(_divisor(atom) for atom in monomial))
    if scale == 1 or len(expression.terms) > _MOST_TERMS:
        return expression, 1
    total: Dimension = 0
    for monomial, coefficient in expression.terms.items():
        product: Dimension = coefficient * scale // math.prod(_divisor(atom) for atom in monomial)
        for atom in monomial:
            product = product * _multiple(atom, expression)
        total = total + product
    return total, scale


def _divisor(atom: Atom) -> int:
    return atom.operands[1] if atom.function == "//" and isinstance(atom.operands[1], int) else 1


def _multiple(atom: Atom, expression: Expression) -> Dimension:
    """An atom times its divisor."""
    if _divisor(atom) == 1:
        return Expression(expression.decisions, {(atom,): 1})
    dividend, divisor = atom.operands
    return dividend - dividend % divisor


def _product(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    ends = [a * b for a in first for b in second]
    return min(ends), max(ends)


def _bounds_of_quotient(ends: Sequence[tuple[int, int]]) -> tuple[int, int]:
    quotients = [a // b for a in ends[0] for b in (max(ends[1][0], 1), max(ends[1][1], 1))]
    return min(quotients), max(quotients)


def _bounds_of_remainder(ends: Sequence[tuple[int, int]]) -> tuple[int, int]:
    (lower, upper), (_, most) = ends
    return 0, max(min(most - 1, upper), 0) if lower >= 0 else max(most - 1, 0)


_BOUNDS: dict[str, Callable[[Sequence[tuple[int, int]]], tuple[int, int]]] = {
    "//": _bounds_of_quotient,
    "%": _bounds_of_remainder,
    "min": lambda ends: (min(lower for lower, _ in ends), min(upper for _, upper in ends)),
    "max": lambda ends: (max(lower for lower, _ in ends), max(upper for _, upper in ends)),
}


def _function(names: Sequence[str], result: str, lines: Sequence[str] = ()) -> Callable[..., Any]:
    """A Python function of arguments, from text that this module wrote."""
    body = "".join(f"    {line}\n" for line in lines)
    found: dict[str, Any] = {}
    source = f"def function({', '.join(names)}):\n{body}    return {result}\n"
    exec(source, {"__builtins__": {}, "min": min, "max": max}, found)
    return found["function"]  # type: ignore[no-any-return]


def _code(dimension: Dimension, names: Mapping[Atom, str]) -> str:
    """Python code of a dimension, where atoms are computed already."""
    if isinstance(dimension, int):
        return str(dimension)
    products = []
    for monomial, coefficient in dimension.terms.items():
        factors = [names.get(atom, atom.text) for atom in monomial]
        products.append("*".join([str(coefficient), *factors] if coefficient != 1 or not factors else factors))
    return f"({' + '.join(products)})" if len(products) > 1 else products[0]


def _atom_code(atom: Atom, names: Mapping[Atom, str]) -> str:
    operands = [f"({_code(item, names)})" for item in atom.operands]
    return atom.function.join(operands) if atom.function in ("//", "%") else f"{atom.function}({', '.join(operands)})"
