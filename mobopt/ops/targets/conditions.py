"""The language of the rows' conditions: checked when a table is loaded, and true, false or unknown of a call.

A condition is written like a Python expression, and may have

- the operator's arguments by name, ``outputs``, ``output`` (the first of them), and ``limit``, the device's largest
  extent of an image;
- of a tensor: ``rank``, ``sizes``, ``numel``, ``dtype``, ``is_constant`` and ``nchw``, its last four sizes with ones
  before them where there are fewer;
- ``computed(stride, groups)``: one of these arguments is known only when the model runs; ``producer(self)``: the
  operator that makes an argument; ``least(self)`` and ``greatest(self)``: bounds of its elements for every input;
  ``known(x)``: whether ``x`` is known;
- the names of ``names.toml``, which stand for what they are defined as;
- numbers, texts, tuples, ``+ - * // %``, comparisons, ``in``, ``is None``, ``and``, ``or``, ``not``, ``a if b else c``,
  subscripts, ``any`` and ``all`` of ``... for x in ...``, and functions on values such as ``len`` and ``max``.

What is not known when a file is written (sizes without an example, a number that is computed) makes a condition unknown
where it depends on it: :mod:`mobopt.ops.targets.three_valued`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from mobopt.errors import TableError, UnsupportedError
from mobopt.ir.types import BOOL, TENSOR, ListType, OptionalType, Type
from mobopt.ops.schemas import Schema, schema_of
from mobopt.ops.targets.call_view import CallView
from mobopt.ops.targets.condition_parser import TENSOR_KIND, TRUTH_KIND, VALUE_KIND, ConditionParser, Kind, list_kind
from mobopt.ops.targets.three_valued import FAULTS, Evaluate


@dataclass(frozen=True)
class Condition:
    """A condition on a call, checked."""

    text: str
    place: str
    """Where it is written, for errors."""
    evaluate: Evaluate

    def holds(self, call: CallView) -> bool:
        """Whether it is true of a call.

        Raises:
            UnknownFactError: what is known of the call leaves it open.
            TableError: it can't be computed of this call, as it lacks a guard.
        """
        try:
            return bool(self.evaluate(call, {}))
        except FAULTS as error:
            raise TableError(f"{self.place}: `{self.text}` can't be computed of a call: {error!r}") from error


def parse_condition(text: str, operators: Sequence[str], place: str) -> Condition:
    """Read and check a condition.

    Args:
        text: the expression.
        operators: qualified names; the condition must make sense for each that the installed torch has.
        place: where it is written, for errors.

    Raises:
        TableError: it is not of this language; the message names the column and what may stand there.
    """
    text = " ".join(text.split())
    schemas = [schema for name in operators if (schema := known_schema(name)) is not None]
    return Condition(text, place, ConditionParser(text, _common_arguments(schemas), place).condition())


@cache
def known_schema(operator: str) -> Schema | None:
    """The schema of a qualified operator; None if the installed torch lacks it."""
    try:
        return schema_of(operator)
    except UnsupportedError:
        return None


def _common_arguments(schemas: Sequence[Schema]) -> dict[str, Kind]:
    """The arguments that all operators have, by name."""
    kinds: dict[str, Kind] = {}
    for argument in schemas[0].arguments if schemas else ():
        found = [_kind_of(item.type) for schema in schemas for item in schema.arguments if item.name == argument.name]
        if len(found) == len(schemas):
            kinds[argument.name] = found[0] if len(set(found)) == 1 else _MIXED
    return kinds


_MIXED = Kind("of several kinds, by operator, which need rows of their own")


def _kind_of(declared: Type) -> Kind:
    inner = declared.element if isinstance(declared, OptionalType) else declared
    if isinstance(inner, ListType):
        item = _kind_of(inner.element)
        return list_kind(item) if item == TENSOR_KIND else VALUE_KIND
    return TENSOR_KIND if inner == TENSOR else TRUTH_KIND if inner == BOOL else VALUE_KIND
