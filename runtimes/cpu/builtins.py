"""Operators of the language itself: lists, dictionaries, strings and the like, on plain Python values.

They never look into a tensor, so the interpreter and the specialiser share them. Operators on numbers only are not
here: torch's own operator registry computes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from mobopt.errors import InputError

_LOG = logging.getLogger("mobopt.model")

_MOST_ITEMS = 1 << 24
"""Of a list that is made by repetition."""
_KEY_TYPES = ("str", "int", "bool", "float", "complex", "Tensor")


class Uninitialized:
    """The value of a variable that no path to its use leaves unset."""


UNINITIALIZED = Uninitialized()


def _set_item(target: Any, key: Any, value: Any) -> Any:
    target[key] = value
    return target


def _append(target: list[Any], item: Any) -> list[Any]:
    target.append(item)
    return target


def _delete(target: Any, key: Any) -> None:
    del target[key]


def _add_in_place(target: list[Any], other: list[Any]) -> list[Any]:
    target += other
    return target


def _multiply_in_place(target: list[Any], count: int) -> list[Any]:
    target[:] = _repeated(target, count)
    return target


def _repeated(items: list[Any], count: int) -> list[Any]:
    if len(items) * count > _MOST_ITEMS:
        raise InputError(f"the model repeats a list of {len(items)} items {count} times, which is more than fits")
    return items * count


def _slice(value: Any, start: int | None, end: int | None, step: int) -> Any:
    return value[start:end:step]


def _is(left: Any, right: Any) -> bool:
    return left is right


def _is_not(left: Any, right: Any) -> bool:
    return left is not right


def _unwrap(value: Any) -> Any:
    if value is None:
        raise InputError("the model unwraps an optional value that is None; give that argument")
    return value


def _format(text: str, *values: Any) -> str:
    return text.format(*map(str, values))


def _percent_format(text: str, *values: Any) -> str:
    return text % values


def _warn(message: str, stack_level: int) -> None:
    _LOG.warning("%s", message)


def _print(*values: Any) -> None:
    _LOG.info("%s", " ".join(map(str, values)))


def _pop_item(target: dict[Any, Any]) -> tuple[Any, Any]:
    return target.popitem()


def _sort(target: list[Any], reverse: bool) -> None:
    target.sort(reverse=reverse)


_ANY_CONTAINER: dict[str, Callable[..., Any]] = {
    "aten::append.t": _append,
    "aten::extend.t": list.extend,
    "aten::insert.t": list.insert,
    "aten::reverse.t": list.reverse,
    "aten::clear.t": list.clear,
    "aten::pop.t": list.pop,
    "aten::Delete.t": _delete,
    "aten::_set_item.t": _set_item,
    "aten::__getitem__.t": lambda items, index: items[index],
    "aten::select.t": lambda items, index: items[index],
    "aten::add.t": lambda left, right: left + right,
    "aten::add_.t": _add_in_place,
    "aten::mul.left_t": _repeated,
    "aten::mul.right_": lambda count, items: _repeated(items, count),
    "aten::mul_.t": _multiply_in_place,
    "aten::slice.t": _slice,
    "aten::len.t": len,
    "aten::len.any": len,
    "aten::list.t": list,
    "aten::list": list,
    "aten::copy.t": list,
    "aten::sorted.any": sorted,
    "aten::sort.any": _sort,
    "aten::str": str,
    "aten::hash.generic": hash,
    "aten::format": _format,
    "aten::percentFormat": _percent_format,
    "aten::warn": _warn,
    "aten::__is__": _is,
    "aten::__isnot__": _is_not,
    "aten::__not__": lambda value: not value,
    "aten::_unwrap_optional": _unwrap,
    "aten::dict": dict,
    "aten::is_vulkan_available": lambda: False,
    "aten::is_grad_enabled": lambda: False,
    "aten::set_grad_enabled": lambda enabled: None,
    "prim::unchecked_unwrap_optional": _unwrap,
    "prim::unchecked_cast": lambda value: value,
    "prim::Uninitialized": lambda: UNINITIALIZED,
    "prim::Print": _print,
    "prim::IfThenElse": lambda condition, left, right: left if condition else right,
    "prim::TupleIndex": lambda items, index: items[index],
    "prim::requires_grad": lambda value: False,
}

# The in-place list operators on numbers: torch's registry would change a copy.
_TYPED_LISTS: dict[str, Callable[..., Any]] = {
    f"aten::{name}.{kind}": function
    for kind in ("int", "float", "bool", "str")
    for name, function in (("remove", list.remove), ("sort", _sort))
}

_BY_KEY_TYPE: dict[str, Callable[..., Any]] = {
    "aten::dict.{}": dict,
    "aten::dict.Dict_{}": dict,
    "aten::copy.Dict_{}": dict,
    "aten::len.Dict_{}": len,
    "aten::__getitem__.Dict_{}": lambda items, key: items[key],
    "aten::__contains__.{}": lambda items, key: key in items,
    "aten::_set_item.{}": _set_item,
    "aten::Delete.Dict_{}": _delete,
    "aten::get.{}": dict.get,
    "aten::get.default_{}": dict.get,
    "aten::pop.Dict_{}": dict.pop,
    "aten::pop.Dict_default_{}": dict.pop,
    "aten::popitem.{}": _pop_item,
    "aten::setdefault.{}": dict.setdefault,
    "aten::update.{}": dict.update,
    "aten::clear.{}": dict.clear,
    "aten::keys.{}": lambda items: list(items),
    "aten::values.{}": lambda items: list(items.values()),
    "aten::items.{}": lambda items: list(items.items()),
}

_DICTIONARIES = {pattern.format(kind): function for kind in _KEY_TYPES for pattern, function in _BY_KEY_TYPE.items()}

BUILTINS: dict[str, Callable[..., Any]] = {**_ANY_CONTAINER, **_TYPED_LISTS, **_DICTIONARIES}
"""Implementations by qualified operator name."""


def model_error(message: str, kind: str | None, source: str) -> InputError:
    """The exception for a ``raise`` that the model itself runs into."""
    name = kind or "Exception"
    place = f" at {source}" if source else ""
    return InputError(f"the model raised {name}{place}: {message}")
