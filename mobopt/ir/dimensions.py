"""Sizes of dimensions: integers, and expressions of symbols that stand for integers.

A :class:`Expression` is a polynomial with integer coefficients over atoms: symbols, floor-divisions, remainders, minima
and maxima. It is kept in a normal form, so that expressions that are equal by the rules of arithmetic are mostly the
same: products are multiplied out, ``(s0*2 + 5)//4`` is ``s0//2 + 1``, ``((s0 + 1)//2 + 1)//2`` is ``(s0 + 3)//4``.

Arithmetic makes no decisions. Comparisons do: ``a < b``, ``a == b``, ``bool(a)``, ``range(a)`` give Python values, from
the ranges of the symbols where these tell, else as the example's values are; then the answer is a guard in the
:class:`~mobopt.ir.guards.Guards` that the symbols belong to. So code that is written for integers runs on expressions,
and what it did holds for all values that the guards hold for. :func:`minimum`, :func:`maximum` and :func:`ceil_divide`
are for code that wants an expression where ``min`` and ``max`` would decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeAlias

Dimension: TypeAlias = "int | Expression"
"""A size: a number, or an expression of symbols."""


class Decisions(Protocol):
    """What is known of symbols, and who answers where nothing is known; :class:`mobopt.ir.guards.Guards` is one."""

    @property
    def examples(self) -> Mapping[str, int]:
        """The examples' sizes by the names of symbols."""

    def bounds(self, expression: Expression) -> tuple[int, int]:
        """The least and the largest value, both included."""

    def known(self, expression: Expression, relation: str) -> bool | None:
        """Whether ``expression relation 0`` (``==``, ``!=`` or ``>=``) is always, or never true; else None."""

    def decide(self, expression: Expression, relation: str) -> bool:
        """As :meth:`known`, and where that is None, as the examples are."""

    def specialize(self, expression: Expression) -> int:
        """The value that the examples give; it is the expression's only one from then on."""

    def hash_of(self, expression: Expression) -> int:
        """The hash of an expression, where expressions may be keys."""


class Atom:
    """A factor of a product: a symbol, or one of ``//``, ``%``, ``min``, ``max`` of operands."""

    __slots__ = ("_hash", "function", "operands", "text")

    def __init__(self, function: str, operands: tuple[Dimension, ...], name: str = "") -> None:
        self.function = function
        """Empty for a symbol."""
        self.operands = operands
        self.text = name or _atom_text(function, operands)
        self._hash = hash(self.text)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.text == other.text)

    def __hash__(self) -> int:
        return self._hash

    def __lt__(self, other: Atom) -> bool:
        return (len(self.text), self.text) < (len(other.text), other.text)


Monomial: TypeAlias = "tuple[Atom, ...]"
"""A product of atoms, sorted; empty is 1."""


class Expression:
    """A size that depends on symbols: a sum of products of atoms. Never changed; made by arithmetic."""

    __slots__ = ("_key", "decisions", "terms")

    def __init__(self, decisions: Decisions, terms: dict[Monomial, int]) -> None:
        """Take terms in normal form: no coefficient is zero, and there is more than a constant."""
        self.decisions = decisions
        self.terms = terms
        self._key: frozenset[tuple[Monomial, int]] | None = None

    @property
    def key(self) -> frozenset[tuple[Monomial, int]]:
        """What makes it the same as another expression; compared without a decision."""
        if self._key is None:
            self._key = frozenset(self.terms.items())
        return self._key

    @property
    def lower(self) -> int:
        """The least value that it may have."""
        return self.decisions.bounds(self)[0]

    @property
    def upper(self) -> int:
        """The largest value that it may have."""
        return self.decisions.bounds(self)[1]

    def symbols(self) -> set[str]:
        """Names of the symbols in it."""
        return {atom.text for atom in atoms_of(self) if not atom.function}

    def substitute(self, values: Mapping[str, Dimension]) -> Dimension:
        """The expression with other sizes in place of symbols; those that are not named stay."""
        total: Dimension = 0
        for monomial, coefficient in self.terms.items():
            product: Dimension = coefficient
            for atom in monomial:
                product = product * self._substituted(atom, values)
            total = total + product
        return total

    def _substituted(self, atom: Atom, values: Mapping[str, Dimension]) -> Dimension:
        if not atom.function:
            return values.get(atom.text, Expression(self.decisions, {(atom,): 1}))
        operands = [item if isinstance(item, int) else item.substitute(values) for item in atom.operands]
        return FUNCTIONS[atom.function](*operands)

    # Arithmetic

    def __add__(self, other: object) -> Dimension:
        if isinstance(other, int):
            if not other:
                return self
            terms = dict(self.terms)
            terms[()] = terms.get((), 0) + other
            return _made(self.decisions, terms)
        if isinstance(other, Expression):
            terms = dict(self.terms)
            for monomial, coefficient in other.terms.items():
                terms[monomial] = terms.get(monomial, 0) + coefficient
            return _made(self.decisions, terms)
        if isinstance(other, float):
            return float(self) + other  # type: ignore[return-value]
        return NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Expression:
        return Expression(self.decisions, {monomial: -coefficient for monomial, coefficient in self.terms.items()})

    def __pos__(self) -> Expression:
        return self

    def __sub__(self, other: object) -> Dimension:
        if isinstance(other, (int, float, Expression)):
            return self + -other
        return NotImplemented

    def __rsub__(self, other: object) -> Dimension:
        return -self + other

    def __mul__(self, other: object) -> Dimension:
        if isinstance(other, int):
            if not other:
                return 0
            return Expression(self.decisions, {monomial: item * other for monomial, item in self.terms.items()})
        if isinstance(other, Expression):
            terms: dict[Monomial, int] = {}
            for first, a in self.terms.items():
                for second, b in other.terms.items():
                    product = tuple(sorted(first + second))
                    terms[product] = terms.get(product, 0) + a * b
            return _made(self.decisions, terms)
        if isinstance(other, float):
            return float(self) * other  # type: ignore[return-value]
        return NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> Dimension:
        return floor_divide(self, other) if isinstance(other, (int, Expression)) else NotImplemented

    def __rfloordiv__(self, other: object) -> Dimension:
        return floor_divide(other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: object) -> Dimension:
        return remainder(self, other) if isinstance(other, (int, Expression)) else NotImplemented

    def __rmod__(self, other: object) -> Dimension:
        return remainder(other, self) if isinstance(other, int) else NotImplemented

    def __divmod__(self, other: object) -> tuple[Dimension, Dimension]:
        return self // other, self % other

    def __pow__(self, exponent: int) -> Dimension:
        return math.prod([self] * exponent)

    def __truediv__(self, other: object) -> float:
        return float(self) / float(other)  # type: ignore[arg-type]

    def __rtruediv__(self, other: object) -> float:
        return float(other) / float(self)  # type: ignore[arg-type]

    # Decisions

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expression) and self.key == other.key:
            return True
        if not isinstance(other, (int, Expression)):
            return isinstance(other, float) and float(self) == other
        return _decide(self - other, "==")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __ge__(self, other: object) -> bool:
        return _decide(self - other, ">=") if isinstance(other, (int, Expression)) else float(self) >= other  # type: ignore[operator]

    def __gt__(self, other: object) -> bool:
        return _decide(self - other - 1, ">=") if isinstance(other, (int, Expression)) else float(self) > other  # type: ignore[operator]

    def __le__(self, other: object) -> bool:
        return not self > other

    def __lt__(self, other: object) -> bool:
        return not self >= other

    def __hash__(self) -> int:
        return self.decisions.hash_of(self)

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        return self.decisions.specialize(self)

    __int__ = __index__
    __trunc__ = __index__
    __floor__ = __index__
    __ceil__ = __index__
    __round__ = __index__

    def __float__(self) -> float:
        return float(self.decisions.specialize(self))

    def __abs__(self) -> Dimension:
        return self if self >= 0 else -self

    def __str__(self) -> str:
        return _sum_text(self)

    def __repr__(self) -> str:
        return _sum_text(self)


def symbol(decisions: Decisions, name: str) -> Expression:
    """The expression that is one symbol."""
    return Expression(decisions, {(Atom("", (), name),): 1})


def atoms_of(expression: Expression) -> Iterator[Atom]:
    """Every atom of an expression, those of its operands first; some come several times."""
    for monomial in expression.terms:
        for atom in monomial:
            for operand in atom.operands:
                if isinstance(operand, Expression):
                    yield from atoms_of(operand)
            yield atom


def constant_part(expression: Expression) -> int:
    """The number that is added to what depends on symbols."""
    return expression.terms.get((), 0)


def lone_atom(expression: Dimension) -> Atom | None:
    """The atom that an expression is, and nothing else."""
    if isinstance(expression, int) or len(expression.terms) != 1:
        return None
    ((monomial, coefficient),) = expression.terms.items()
    return monomial[0] if coefficient == 1 and len(monomial) == 1 else None


def ceil_divide(a: Dimension, b: Dimension) -> Dimension:
    """The quotient, rounded up; ``b`` is positive."""
    return floor_divide(a + b - 1, b)


def floor_divide(a: Dimension, b: Dimension) -> Dimension:
    """The quotient, rounded down as Python does.

    Raises:
        ZeroDivisionError: ``b`` is zero.
    """
    if isinstance(b, int):
        if isinstance(a, int):
            return a // b
        if b < 0:
            return floor_divide(-a, -b)
        return _divided_by_number(a, b)
    if _is_negative(b):
        return floor_divide(-a, -b)
    a, b = _cancelled(a, b)
    if isinstance(b, int):
        return floor_divide(a, b)
    exact = divide_exactly(a, b)
    return exact if exact is not None else _atom(b.decisions, "//", a, b)


def remainder(a: Dimension, b: Dimension) -> Dimension:
    """What :func:`floor_divide` leaves; it has the sign of ``b``.

    Raises:
        ZeroDivisionError: ``b`` is zero.
    """
    if isinstance(b, int):
        if isinstance(a, int):
            return a % b
        return -_remainder_of_number(-a, -b) if b < 0 else _remainder_of_number(a, b)
    if _is_negative(b):
        return -remainder(-a, -b)
    if divide_exactly(a, b) is not None:
        return 0
    return _atom(b.decisions, "%", a, b)


def minimum(*sizes: Dimension) -> Dimension:
    """The least of sizes, as an expression where it is not known which."""
    if all(isinstance(size, int) for size in sizes):
        return min(sizes)
    return _extreme("min", sizes)


def maximum(*sizes: Dimension) -> Dimension:
    """The largest of sizes, as an expression where it is not known which."""
    if all(isinstance(size, int) for size in sizes):
        return max(sizes)
    return _extreme("max", sizes)


FUNCTIONS: dict[str, Callable[..., Dimension]] = {
    "//": floor_divide,
    "%": remainder,
    "min": minimum,
    "max": maximum,
}
"""What atoms compute, by the name of their function."""


def divide_exactly(a: Dimension, b: Expression) -> Dimension | None:
    """The quotient of polynomials, where nothing is left over, else None.

    It is found from the leading terms, in graded reverse lexicographic order.
    """
    if isinstance(a, int):
        return 0 if not a else None
    lead = max(b.terms, key=_graded)
    quotient: dict[Monomial, int] = {}
    rest = dict(a.terms)
    while rest:
        top = max(rest, key=_graded)
        factor = _without(top, lead)
        coefficient, left = divmod(rest[top], b.terms[lead])
        if factor is None or left:
            return None
        quotient[factor] = coefficient
        for monomial, item in b.terms.items():
            product = tuple(sorted(monomial + factor))
            total = rest.get(product, 0) - item * coefficient
            if total:
                rest[product] = total
            else:
                rest.pop(product, None)
    return _made(b.decisions, quotient)


def _graded(monomial: Monomial) -> tuple[int, Monomial]:
    return len(monomial), monomial


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """A product without the atoms of another, None if it hasn't all of them."""
    left = list(monomial)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _decide(difference: Dimension, relation: str) -> bool:
    if isinstance(difference, int):
        return difference == 0 if relation == "==" else difference >= 0
    return difference.decisions.decide(difference, relation)


def _is_negative(divisor: Expression) -> bool:
    if divisor >= 1:
        return False
    if divisor == 0:
        raise ZeroDivisionError(f"division by {divisor}, which is 0")
    return True


def _made(decisions: Decisions, terms: dict[Monomial, int]) -> Dimension:
    """An expression in normal form, or the number that it is."""
    if 0 in terms.values():
        terms = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Expression(decisions, terms)


def _atom(decisions: Decisions, function: str, *operands: Dimension) -> Dimension:
    result = Expression(decisions, {(Atom(function, operands),): 1})
    lower, upper = decisions.bounds(result)
    return lower if lower == upper else result


def _divided_by_number(a: Expression, number: int) -> Dimension:
    """What is a multiple of the number leaves the quotient: ``(s0*2 + s1 + 5)//2`` is ``s0 + (s1 + 1)//2 + 2``."""
    if number == 1:
        return a
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in a.terms.items():
        whole[monomial], rest[monomial] = divmod(coefficient, number)
    return _made(a.decisions, whole) + _quotient_of_rest(_made(a.decisions, rest), number)


def _quotient_of_rest(rest: Dimension, number: int) -> Dimension:
    if isinstance(rest, int):
        return rest // number
    constant = constant_part(rest)
    common = math.gcd(number, *(coefficient for monomial, coefficient in rest.terms.items() if monomial))
    if common > 1:
        shared = _made(rest.decisions, {monomial: item // common for monomial, item in rest.terms.items()})
        return floor_divide(shared, number // common)
    inner = lone_atom(rest - constant)
    if inner is not None and inner.function == "//" and isinstance(inner.operands[1], int):
        dividend, divisor = inner.operands
        return floor_divide(dividend + constant * divisor, divisor * number)
    lower, upper = rest.decisions.bounds(rest)
    return lower // number if lower // number == upper // number else _atom(rest.decisions, "//", rest, number)


def _remainder_of_number(a: Expression, number: int) -> Dimension:
    rest: Dimension = _made(a.decisions, {monomial: item % number for monomial, item in a.terms.items()})
    if isinstance(rest, Expression):
        rest = _without_remainders(rest, number)
    if isinstance(rest, int):
        return rest % number
    rest = _made(rest.decisions, {monomial: item % number for monomial, item in rest.terms.items()})
    if isinstance(rest, int):
        return rest % number
    common = math.gcd(number, *rest.terms.values())
    if common > 1:
        shared = _made(rest.decisions, {monomial: item // common for monomial, item in rest.terms.items()})
        return common * remainder(shared, number // common)
    lower, upper = rest.decisions.bounds(rest)
    if lower // number == upper // number:
        return rest - lower // number * number
    return _atom(rest.decisions, "%", rest, number)


def _without_remainders(expression: Expression, number: int) -> Dimension:
    """The same modulo a number: remainders of its multiples are what they are remainders of."""
    total: Dimension = 0
    for monomial, coefficient in expression.terms.items():
        product: Dimension = coefficient
        for atom in monomial:
            is_remainder = atom.function == "%" and isinstance(atom.operands[1], int) and not atom.operands[1] % number
            factor = atom.operands[0] if is_remainder else Expression(expression.decisions, {(atom,): 1})
            product = product * factor
        total = total + product
    return total


def _cancelled(a: Dimension, b: Expression) -> tuple[Dimension, Dimension]:
    """A dividend and a divisor without the positive factors that all their terms share."""
    if isinstance(a, int) and not a:
        return a, b
    terms: Mapping[Monomial, int] = {(): a} if isinstance(a, int) else a.terms
    number = math.gcd(*terms.values(), *b.terms.values())
    shared = next(iter(b.terms))
    for monomial in [*b.terms, *terms]:
        shared = _common(shared, monomial)
    if shared and b.decisions.bounds(Expression(b.decisions, {shared: 1}))[0] < 1:
        shared = ()
    if number == 1 and not shared:
        return a, b

    def reduced(items: Mapping[Monomial, int]) -> Dimension:
        left = {_without(monomial, shared) or (): coefficient // number for monomial, coefficient in items.items()}
        return _made(b.decisions, left)

    return reduced(terms), reduced(b.terms)


def _common(first: Monomial, second: Monomial) -> Monomial:
    left = list(second)
    common = []
    for atom in first:
        if atom in left:
            left.remove(atom)
            common.append(atom)
    return tuple(common)


def _extreme(function: str, sizes: Iterable[Dimension]) -> Dimension:
    kept: list[Dimension] = []
    for size in sizes:
        atom = lone_atom(size)
        for item in atom.operands if atom is not None and atom.function == function else (size,):
            if not any(_outdoes(function, other, item) for other in kept):
                kept = [*(other for other in kept if not _outdoes(function, item, other)), item]
    if len(kept) == 1:
        return kept[0]
    decisions = next(item.decisions for item in kept if isinstance(item, Expression))
    return _atom(decisions, function, *sorted(kept, key=str))


def _outdoes(function: str, a: Dimension, b: Dimension) -> bool:
    """Whether the first of two sizes is surely the extreme one, or as good."""
    difference = a - b if function == "max" else b - a
    if isinstance(difference, int):
        return difference >= 0
    return difference.decisions.known(difference, ">=") is True


# Text


def _sum_text(expression: Expression) -> str:
    text = ""
    for monomial in sorted(expression.terms, key=lambda item: (-len(item), item)):
        coefficient = expression.terms[monomial]
        term = _term_text(monomial, coefficient)
        sign = ("-" if coefficient < 0 else "") if not text else (" - " if coefficient < 0 else " + ")
        text += sign + term
    return text


def _term_text(monomial: Monomial, coefficient: int) -> str:
    """The product without its sign."""
    if not monomial:
        return str(abs(coefficient))
    is_alone = len(monomial) == 1 and coefficient == 1
    factors = [f"({item.text})" if not is_alone and item.function in ("//", "%") else item.text for item in monomial]
    return "*".join(factors if abs(coefficient) == 1 else [*factors, str(abs(coefficient))])


def _atom_text(function: str, operands: tuple[Dimension, ...]) -> str:
    if function in ("//", "%"):
        return function.join(_operand_text(operand) for operand in operands)
    return f"{function}({', '.join(map(str, operands))})"


def _operand_text(operand: Dimension) -> str:
    atom = lone_atom(operand)
    is_simple = isinstance(operand, int) or (atom is not None and atom.function not in ("//", "%"))
    return str(operand) if is_simple else f"({operand})"
