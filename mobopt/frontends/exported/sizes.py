"""Sizes of serialised programs: texts of symbols and numbers become dimensions with ranges."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from mobopt.errors import BundleError, GraphError
from mobopt.ir.dimensions import Dimension
from mobopt.ir.dimensions import symbol as symbol_of
from mobopt.ir.guards import LARGEST_SIZE, Guards

_LEAST_CHECKED = 2
"""A lower bound up to this is no bound: exporting assumes that a size is neither 0 nor 1, and holds for these, too."""


class Sizes:
    """The symbols of one program.

    Attributes:
        guards: the symbols with their ranges.
    """

    def __init__(self, ranges: Mapping[str, Any]) -> None:
        """Take what the program says of ranges, by the text of a symbol."""
        self.guards = Guards()
        self._ranges = ranges

    def dimension(self, size: Mapping[str, Any], origin: str) -> Dimension:
        """A size; one that depends on symbols in a way that is not known becomes a symbol of its own.

        Raises:
            BundleError: the text is no size.
        """
        if "as_int" in size:
            return int(size["as_int"])
        described = size["as_expr"]
        hint = described.get("hint") or {}
        text = str(described["expr_str"])
        try:
            return self._read(ast.parse(text, mode="eval").body, hint.get("as_int"), origin)
        except (SyntaxError, RecursionError, MemoryError, GraphError) as error:  # the parser's stack
            raise BundleError(f"the size {text[:100]!r} of {origin} can't be read: {error}") from None
        except _UnknownFormError:
            return self.guards.symbol(origin=origin)

    def _read(self, node: ast.expr, hint: int | None, origin: str) -> Dimension:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.Name(id=name) | ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as name)]):
                return self._symbol(name, hint, origin)
            case ast.Call(func=ast.Name(id="Integer"), args=[inner]):
                return self._read(inner, None, origin)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self._read(inner, None, origin)
            case ast.Call(func=ast.Name(id="Mul" | "Add" as name), args=[first, *rest]):
                value = self._read(first, None, origin)
                for item in rest:
                    other = self._read(item, None, origin)
                    value = value * other if name == "Mul" else value + other
                return value
            case ast.BinOp(left=left, op=ast.Mult() | ast.Add() as op, right=right):
                one, other = self._read(left, None, origin), self._read(right, None, origin)
                return one * other if isinstance(op, ast.Mult) else one + other
            case ast.Call(func=ast.Name(id="FloorDiv"), args=[left, right]):
                return self._read(left, None, origin) // self._read(right, None, origin)
        raise _UnknownFormError

    def _symbol(self, name: str, hint: int | None, origin: str) -> Dimension:
        if name not in self.guards.symbols:
            lower, upper = self._range(name)
            self.guards.symbol(name, lower, upper, hint if hint and lower <= hint <= upper else None, origin)
        return symbol_of(self.guards, name)

    def _range(self, name: str) -> tuple[int, int]:
        found = self._ranges.get(name) or {}
        lower, upper = found.get("min_val"), found.get("max_val")
        lower = lower if isinstance(lower, int) and lower > _LEAST_CHECKED else 0
        return lower, upper if isinstance(upper, int) and upper >= lower else LARGEST_SIZE


class _UnknownFormError(Exception):
    """A size is written with a function that dimensions have not."""
