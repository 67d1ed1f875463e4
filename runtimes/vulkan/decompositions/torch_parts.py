"""What torch itself computes an operator of.

Many of torch's kernels only call other operators (``CompositeImplicitAutograd``), and for many others torch has such a
function in Python (``torch._decomp``). Either is run on tensors without elements, and the operators that it calls are
noted, in functional form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mobopt.errors import MoboptError
from mobopt.ir import Node, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.schemas import argument_names, schema_of
from mobopt.ir.types import TensorType
from mobopt.ops.effects import draws_numbers
from mobopt.ops.records import Trait, has_trait, record_of
from mobopt.runtimes.cpu.kernels import is_mutating, kernel, scalar_type
from mobopt.runtimes.recorder import functional_form
from mobopt.runtimes.vulkan.decompositions.registry import NodeBuilder, decomposes_others

_MOST_CALLS = 300
"""Operators of more parts than this stay whole: they are loops that were written out."""
_LARGEST_CONSTANT = 2**22
"""Elements of a tensor of numbers alone that becomes a constant."""
_PLACES = ("device", "layout", "pin_memory")
"""Arguments that say where a tensor lies, which means nothing here."""

_WRONG = ("aten::multilabel_margin_loss_forward", "aten::_native_batch_norm_legit.no_stats")
"""Functions in Python that give other results than torch's kernels: numbers, where a row has fewer labels than places;
dtypes, of the statistics of halves."""

_BY_ELEMENTS = {Trait.CHECKS_ELEMENTS, Trait.SIZES_BY_ELEMENTS, Trait.VALUE_BY_ELEMENTS}
"""Traits of operators that look at elements, which tensors without elements can't show."""

_Call = tuple[str, tuple[Any, ...], dict[str, Any], list[tuple[torch.Tensor, TensorType]]]
"""An operator, its arguments, and what it gave: views in place may change how that looks later."""


class _UnknownTensorError(Exception):
    """A tensor comes from nowhere, or shares memory that is written to."""


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        result = function(*args, **given)
        name, overload = function._schema.name, function._schema.overload_name
        made = [(tensor, _type_of(tensor)) for tensor in leaves_of(result, torch.Tensor)]
        self.calls.append((f"{name}.{overload}" if overload else name, args, given, made))
        if len(self.calls) > _MOST_CALLS:
            raise _UnknownTensorError
        return result


def _type_of(tensor: torch.Tensor) -> TensorType:
    return TensorType(tensor.dtype, tuple(tensor.shape))


@decomposes_others
def parts_by_torch(build: NodeBuilder, node: Node) -> list[Value] | None:
    """Add the operators that torch computes a node of; returns its results, or None if torch does not tell.

    Raises:
        UndecomposedError: the device can't compute one of them.
    """
    function = _function_of(node.qualified_op)
    if not record_of(node.qualified_op).traits.isdisjoint(_BY_ELEMENTS):
        return None
    if function is None or draws_numbers(node.qualified_op, _named(node)):
        return None
    known: dict[int, tuple[torch.Tensor, Value]] = {}
    metas: dict[Value, torch.Tensor] = {}

    def meta_of(value: Value) -> torch.Tensor:
        if value not in metas:
            metas[value] = torch.empty(value.sizes, dtype=value.dtype, device="meta")
            known[id(metas[value])] = (metas[value], value)
        return metas[value]

    args = map_leaves(tuple(node.args), Value, meta_of)
    notes = _Notes()
    try:
        with torch.no_grad(), notes:
            result = function(*args)
    except Exception:  # it looks at elements, or refuses what the caller will be told of when the CPU computes it
        return None
    first = len(build.nodes)
    try:
        for call in notes.calls:
            _replay(build, call, known)
        made = [_value_of(tensor, known) for tensor in leaves_of(result, torch.Tensor)]
    except (_UnknownTensorError, MoboptError):
        return None
    if [value.type for value in made] != [value.type for value in node.outputs]:
        return None
    _leave_out_unread(build, first, made)
    return made


def _leave_out_unread(build: NodeBuilder, first: int, results: Sequence[Value]) -> None:
    """Take out the nodes, from a number on, of which nobody reads anything."""
    for node in reversed(build.nodes[first:]):
        if not any(value.is_used or value in results for value in node.outputs):
            build.nodes.remove(node)
            node.destroy()


def _named(node: Node) -> dict[str, Any]:
    return dict(zip(argument_names(node.qualified_op), node.args, strict=True))


@cache
def _function_of(operator: str) -> Callable[..., Any] | None:
    """A function of all arguments of an operator's schema that only calls other operators."""
    if not operator.startswith("aten::") or is_mutating(operator):
        return None
    name, _, overload = operator.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, name, None)
    found = getattr(packet, overload or "default", None)
    if found is None:
        return None
    if torch._C._dispatch_has_kernel_for_dispatch_key(found.name(), "CompositeImplicitAutograd"):
        return kernel(operator)
    with suppress(ImportError):
        from torch._decomp import decomposition_table

        written = decomposition_table.get(found)
        if written is not None and operator not in _WRONG:
            return _with_keywords(operator, written)
    return None


def _with_keywords(operator: str, function: Callable[..., Any]) -> Callable[..., Any]:
    names = argument_names(operator)
    keywords = [argument.name for argument in schema_of(operator).arguments if argument.keyword_only]

    def call(*given_args: Any) -> Any:
        args = [scalar_type(value) if name == "dtype" else value for name, value in zip(names, given_args, strict=True)]
        positional = len(args) - len(keywords)
        given = {name: value for name, value in zip(keywords, args[positional:], strict=True) if value is not None}
        return function(*args[:positional], **given)

    return call


def _value_of(tensor: torch.Tensor, known: dict[int, tuple[torch.Tensor, Value]]) -> Value:
    if id(tensor) in known:
        return known[id(tensor)][1]
    if tensor.is_meta or tensor.requires_grad or tensor.numel() > _LARGEST_CONSTANT:
        raise _UnknownTensorError
    return Value.of_elements(tensor)  # a number, or a table


def _replay(build: NodeBuilder, call: _Call, known: dict[int, tuple[torch.Tensor, Value]]) -> None:
    """Add a noted call, and remember what it made."""
    operator, args, kwargs, results = call
    given = _all_arguments(operator, args, kwargs)
    if is_mutating(operator):
        _check_written(operator, given, known)
        operator, listed = functional_form(schema_of(operator), given)
        given = list(listed)
    values = map_leaves(given, torch.Tensor, lambda tensor: _value_of(tensor, known))
    made: Sequence[Value]
    if any(True for _ in leaves_of(values, Value)):
        made = build.all(operator, *values)
    elif has_trait(operator, Trait.UNDEFINED) and not any(tensor.is_meta for tensor, _ in results):
        made = [_value_of(tensor, known) for tensor, _ in results]  # what torch's C++ wrote there without an operator
    else:
        made = _constants(operator, values)
    for (tensor, kind), value in zip(results, made, strict=True):
        if value.type != kind:
            raise _UnknownTensorError
        known[id(tensor)] = (tensor, value)


def _constants(operator: str, args: Sequence[Any]) -> list[Value]:
    """What an operator makes of numbers alone."""
    if draws_numbers(operator, dict(zip(argument_names(operator), args, strict=True))):
        raise _UnknownTensorError
    made = list(leaves_of(kernel(operator)(*args), torch.Tensor))
    if sum(tensor.numel() for tensor in made) > _LARGEST_CONSTANT:
        raise _UnknownTensorError
    return [Value.of_elements(tensor) for tensor in made]


def _all_arguments(operator: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    names = schema_of(operator).arguments
    given = [*args, *(kwargs.get(argument.name, argument.default) for argument in names[len(args) :])]
    return [None if argument.name in _PLACES else value for argument, value in zip(names, given, strict=True)]


def _check_written(operator: str, args: Sequence[Any], known: dict[int, tuple[torch.Tensor, Value]]) -> None:
    """What an operator writes to is one tensor, with which nothing else shares memory."""
    if has_trait(operator, Trait.VIEWS_IN_PLACE):
        return
    targets = [
        value for value, argument in zip(args, schema_of(operator).arguments, strict=True) if argument.is_written
    ]
    if len(targets) != 1 or not isinstance(targets[0], torch.Tensor):
        raise _UnknownTensorError
    target: torch.Tensor = targets[0]
    storage = target.untyped_storage()._cdata
    if any(other is not target and other.untyped_storage()._cdata == storage for other, _ in known.values()):
        raise _UnknownTensorError
