"""Operators on traced tensors: computed at once on constants, else recorded as nodes, and never in place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch

from mobopt.errors import InputError, MoboptError, UnsupportedError
from mobopt.ir import Graph, Node, Origin, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.schemas import Schema, argument_names, schema_of, schemas_of
from mobopt.ir.types import TensorType
from mobopt.ops.effects import draws_numbers
from mobopt.ops.records import Trait, has_trait, record_of
from mobopt.ops.schemas import PACKING_OPERATORS
from mobopt.ops.shapes import infer, makes_new
from mobopt.runtimes.abstract import (
    TracedTensor,
    ViewRecipe,
    constant_tensor,
    is_nested,
    meta_of,
    positions_replaced,
    whole,
)
from mobopt.runtimes.cpu.kernels import is_mutating, kernel, operator_error
from mobopt.runtimes.numbers_in_tensors import WITH_NUMBERS, is_mask

FOLD_LIMIT_BYTES = 64 * 2**20
"""A result of constants that is larger than this is computed by every run instead of being kept."""

_META = torch.device("meta")


class NeedsElementsError(Exception):
    """The evaluation can't go on without the elements of these tensors; the specialiser catches it."""

    def __init__(self, refs: Sequence[Value]) -> None:
        super().__init__(f"{len(refs)} tensors must be read")
        self.refs = list(refs)


class _OnlyElementsTellError(Exception):
    """Neither a meta kernel nor the CPU's kernel on stand-in elements says what an operator's result looks like."""


class Recorder:
    """Applies operators to traced tensors; the nodes that are left make a straight line."""

    def __init__(self, answers: Sequence[torch.Tensor] = (), by_elements: Collection[str] = ()) -> None:
        """Start without nodes.

        Args:
            answers: the elements that will be asked for, as far as they have been read, in order.
            by_elements: operators that are computed from elements that are read, beside those whose traits say so.
        """
        self.graph = Graph()
        self.answers = tuple(answers)
        self._answered = self._answered_before = 0
        self._by_elements = frozenset(by_elements)

    def operate(self, op: str, args: Sequence[Any], source: Origin) -> Any:
        """The result of an operator of the model; see :meth:`apply`."""
        self._answered_before = self._answered
        return self.apply(op, args, source)

    @property
    def partial_answers(self) -> tuple[torch.Tensor, ...]:
        """What the model's operator has been given that now asks for more."""
        return self.answers[self._answered_before : self._answered]

    def apply(self, op: str, args: Sequence[Any], source: Origin) -> Any:
        """The result of an operator; its first argument is changed if the operator works in place.

        Args:
            op: qualified name.
            args: all arguments of its schema, in order.
            source: where in the model it stands.

        Raises:
            InputError: the operator refuses its arguments.
            UnsupportedError: there is no such operator, or it can't be turned into functional form.
            NeedsElementsError: elements must be read first.
        """
        if is_mutating(op):
            return self._in_place(op, args, source)
        takes_number = op in WITH_NUMBERS
        if takes_number:
            op, args = WITH_NUMBERS[op](self.apply, op, args, source)
        known = all(self.read(tensor).elements is not None for tensor in leaves_of(args, TracedTensor))
        if draws_numbers(op, dict(zip(argument_names(op), args, strict=False))):
            return self._record(op, args, source)
        if has_trait(op, Trait.IGNORES_ELEMENTS):
            stand_ins = map_leaves(args, TracedTensor, lambda tensor: constant_tensor(_stand_in(tensor.meta)))
            return self._fold(op, stand_ins, source)
        if known:
            return self._fold(op, args, source)
        if op in self._by_elements or (not takes_number and _looks(op)) or _selects_by_mask(op, args):
            return self._fold(op, self._with_elements(args), source)
        try:
            return self._record(op, args, source)
        except _OnlyElementsTellError:
            return self._fold(op, self._with_elements(args), source)

    def read(self, tensor: TracedTensor) -> Value:
        """What a tensor holds now."""
        memory = tensor.memory
        if tensor.version != memory.version:
            recipe = tensor.recipe
            if recipe is None:
                tensor.ref = memory.ref
            else:
                results = list(leaves_of(self.apply(recipe.op, recipe.args, recipe.source), TracedTensor))
                tensor.ref = results[recipe.index].ref
            tensor.version = memory.version
        return tensor.ref

    def _record(self, op: str, args: Sequence[Any], source: Origin) -> Any:
        """A node whose outputs have the shapes that the meta kernel gives."""
        if op in PACKING_OPERATORS:
            raise UnsupportedError(f"{op}{_at(source)} packs weights that are computed; only constants can be packed")
        outputs: list[Value] = []
        made: list[Value] = []

        def trace(meta: torch.Tensor) -> TracedTensor:
            _check_dense(meta, op, source)
            output = Value.of_tensor(meta.dtype, meta.shape)
            outputs.append(output)
            same = _same_tensor(meta, args)
            if same is not None:
                return same
            ref = Value.of_elements(torch.empty(output.sizes, dtype=meta.dtype)) if meta.numel() == 0 else output
            made.append(ref)
            return _result(meta, ref, ViewRecipe(op, tuple(args), len(outputs) - 1, source))

        result = map_leaves(self._shapes(op, args, source), torch.Tensor, trace)
        if any(ref.elements is None for ref in made):
            self.graph.block.append(Node.call(op, map_leaves(tuple(args), TracedTensor, self.read), outputs, source))
        return result

    def _fold(self, op: str, args: Sequence[Any], source: Origin) -> Any:
        """Run an operator on constants; record it if the result is too large to keep."""
        values = map_leaves(list(args), TracedTensor, lambda tensor: self.read(tensor).elements)
        try:
            result = kernel(op)(*values)
        except MoboptError:
            raise
        except Exception as error:
            raise operator_error(op, source, values, error) from error
        inputs = {id(value): value for value in leaves_of(values, torch.Tensor)}
        results = list(leaves_of(result, torch.Tensor))
        made = [value for value in results if id(value) not in inputs]
        if sum(value.untyped_storage().nbytes() for value in made) > FOLD_LIMIT_BYTES and inputs:
            return self._record(op, args, source)
        aliases = self._aliases(op, args, source) if _share_memory(inputs.values(), results) else []
        index = -1

        def trace(value: torch.Tensor) -> TracedTensor:
            nonlocal index
            index += 1
            _check_dense(value, op, source)
            if index >= len(aliases):
                return constant_tensor(value)
            ref = Value.of_elements(value)
            same = _same_tensor(aliases[index], args)
            return same or _result(aliases[index], ref, ViewRecipe(op, tuple(args), index, source))

        return map_leaves(result, torch.Tensor, trace)

    def _aliases(self, op: str, args: Sequence[Any], source: Origin) -> list[torch.Tensor]:
        """Geometry of the results of an operator on constants that share memory with its arguments."""
        if _looks(op):
            return []
        if any(is_nested(tensor) for tensor in leaves_of(args, TracedTensor)):
            return []
        return list(leaves_of(self._shapes(op, args, source), torch.Tensor))

    def _shapes(self, op: str, args: Sequence[Any], source: Origin) -> Any:
        """An operator's result with meta tensors.

        A rule says what it looks like, else the meta kernel, else the CPU's kernel on stand-in elements. These may be
        wrong, so what the CPU computes in a run is compared with this (``UnforeseenResultError`` of the host's
        functions).

        Raises:
            InputError: the operator refuses its arguments.
            _OnlyElementsTellError: nothing but the elements says it.
        """
        made = _by_rule(op, args)
        if made is not None:
            return made
        metas = map_leaves(list(args), TracedTensor, lambda tensor: tensor.meta)
        function = kernel(op)
        is_other = has_trait(op, Trait.OTHER_ON_META)
        refused: Exception = NotImplementedError(f"the meta kernel of {op} is not the CPU's")
        try:
            if is_other:
                raise refused
            return map_leaves(function(*_on_meta(op, metas)), torch.Tensor, _without_elements)
        except MoboptError:
            raise
        except Exception as error:
            refused = error
        only_elements_tell = isinstance(refused, NotImplementedError) or "meta tensors" in str(refused)
        for element in (0, 1):
            with suppress(Exception):
                guess = map_leaves(function(*_filled(metas, element)), torch.Tensor, _without_elements)
                if is_other or all(tensor.numel() for tensor in leaves_of(guess, torch.Tensor)):
                    return guess
                only_elements_tell = True  # nothing computes an empty tensor, so no run would compare it with the guess
        if only_elements_tell:
            raise _OnlyElementsTellError(op) from refused
        raise operator_error(op, source, metas, refused) from refused

    def _with_elements(self, args: Sequence[Any]) -> list[Any]:
        """Arguments with the elements that were read for them, as constants."""
        refs = [self.read(tensor) for tensor in leaves_of(args, TracedTensor)]
        unknown = list(dict.fromkeys(ref for ref in refs if ref.elements is None))
        answers = self.answers[self._answered : self._answered + len(unknown)]
        if len(answers) < len(unknown):
            raise NeedsElementsError(unknown)
        self._answered += len(unknown)
        elements = dict(zip(unknown, answers, strict=True))

        def known(tensor: TracedTensor) -> TracedTensor:
            return constant_tensor(elements[tensor.ref]) if tensor.ref in elements else tensor

        return map_leaves(list(args), TracedTensor, known)  # type: ignore[no-any-return]

    def _in_place(self, op: str, args: Sequence[Any], source: Origin) -> Any:
        """Compute the functional form of an in-place operator, and write the result where the model does."""
        schema = schema_of(op)
        targets = [value for value, argument in zip(args, schema.arguments, strict=True) if argument.is_written]
        if len(targets) != 1 or not isinstance(targets[0], TracedTensor):
            raise UnsupportedError(f"{op}{_at(source)} writes to several tensors at once, which mobopt can't run")
        (target,) = targets
        if has_trait(op, Trait.VIEWS_IN_PLACE):
            target.become(self.apply(*functional_form(schema, args), source))
        else:
            result = self.apply(*functional_form(schema, args), source)
            converts = has_trait(op, Trait.CONVERTS_ON_WRITE)
            if not converts and not torch.can_cast(result.meta.dtype, target.meta.dtype):
                raise InputError(f"{op}{_at(source)} can't write {result.meta.dtype} to a {target.meta.dtype} tensor")
            if result is not target:
                self._write(target, result, source)
        return target

    def _write(self, target: TracedTensor, value: TracedTensor, source: Origin) -> None:
        """Make ``target`` hold ``value``, for every tensor that shares its memory."""
        if target.meta.numel() == 0:
            return
        if value.meta.dtype != target.meta.dtype:
            value = self.apply("aten::to.dtype", [value, target.meta.dtype, False, False, None], source)
        if value.meta.shape != target.meta.shape:
            value = self.apply("aten::expand", [value, list(target.meta.shape), False], source)
        if target.meta.numel() == 0:
            return
        memory, ref = target.memory, self.read(value)
        memory.ref = ref if target.recipe is None else self._overwritten(target, value, source)
        memory.version += 1
        memory.is_written = True
        target.ref, target.version = ref, memory.version

    def _overwritten(self, target: TracedTensor, value: TracedTensor, source: Origin) -> Value:
        """The whole memory of a view after the view was overwritten."""
        memory = target.memory
        base = whole(memory.ref, memory.meta)
        positions = constant_tensor(positions_replaced(memory.meta, target.meta))
        flat = [self.apply("aten::reshape", [tensor, [-1]], source) for tensor in (base, value)]
        joined = self.apply("aten::cat", [flat, 0], source)
        merged = self.apply("aten::index_select", [joined, 0, positions], source)
        return self.read(self.apply("aten::reshape", [merged, list(memory.meta.shape)], source))


def _by_rule(op: str, args: Sequence[Any]) -> Any:
    """What a rule says that an operator makes, as meta tensors, where these are new and row-major; of others, strides
    and memory must be known too."""
    tensors = list(leaves_of(args, TracedTensor))
    if not makes_new(op, all(tensor.meta.is_contiguous() for tensor in tensors)) or any(map(is_nested, tensors)):
        return None
    types = map_leaves(list(args), TracedTensor, _type_of)
    return map_leaves(infer(op, types), TensorType, _meta_of_type)


def _type_of(tensor: TracedTensor) -> TensorType:
    return TensorType(tensor.meta.dtype, tuple(tensor.meta.shape))


def _meta_of_type(kind: TensorType) -> torch.Tensor:
    return torch.empty(tuple(map(int, kind.sizes)), dtype=kind.dtype, device=_META)


def functional_form(schema: Schema, args: Sequence[Any]) -> tuple[str, list[Any]]:
    """The operator that computes what an in-place or ``out=`` operator writes, and its arguments.

    Raises:
        UnsupportedError: there is none.
    """
    if schema.name == "aten::copy_":
        return "aten::expand_as", [args[1], args[0]]
    if schema.name == "aten::zero_":
        return "aten::zeros_like", [args[0], None, None, None, None, None]
    if schema.qualified_name == "aten::fill_.Scalar":
        return "aten::full_like", [args[0], args[1], None, None, None, None, None]
    if schema.qualified_name == "aten::fill_.Tensor":
        return "aten::expand_as", [args[1], args[0]]
    written = [argument.is_written and argument.keyword_only for argument in schema.arguments]
    inputs = [
        item for item, is_out in zip(zip(schema.arguments, args, strict=True), written, strict=True) if not is_out
    ]
    overloads = schemas_of(record_of(schema.qualified_name).functional or schema.name.removesuffix("_"))
    for other in sorted(overloads, key=lambda other: other.overload != schema.overload):
        same = [item.type for item, _ in inputs] == [item.type for item in other.arguments]
        if same and not other.is_mutating:
            return other.qualified_name, [value for _, value in inputs]
    raise UnsupportedError(f"{schema.qualified_name} works in place and has no functional form that mobopt knows")


def _result(meta: torch.Tensor, ref: Value, recipe: ViewRecipe) -> TracedTensor:
    """A result: a view if it shares its memory with an argument, else a tensor of its own."""
    for base in leaves_of(recipe.args, TracedTensor):
        if _storage(base.meta) == _storage(meta):
            frozen = map_leaves(recipe.args, TracedTensor, TracedTensor.snapshot)
            kept = ViewRecipe(recipe.op, frozen, recipe.index, recipe.source)
            return TracedTensor(base.memory, meta, ref, base.memory.version, kept)
    return whole(ref, meta)


def _same_tensor(meta: torch.Tensor, args: Sequence[Any]) -> TracedTensor | None:
    """The argument that an operator gave back as it is."""
    return next((tensor for tensor in leaves_of(args, TracedTensor) if tensor.meta is meta), None)


def _looks(op: str) -> bool:
    """Whether the sizes of an operator's results, or its Python value, depend on elements."""
    return not record_of(op).traits.isdisjoint({Trait.SIZES_BY_ELEMENTS, Trait.VALUE_BY_ELEMENTS})


def _selects_by_mask(op: str, args: Sequence[Any]) -> bool:
    """Whether an index call selects by a mask, so that its size depends on elements."""
    return op == "aten::index.Tensor" and any(map(is_mask, args[1]))


def _stand_in(meta: torch.Tensor) -> torch.Tensor:
    """A real tensor of these sizes that takes no memory."""
    return torch.zeros((), dtype=meta.dtype).expand(tuple(meta.shape))


def _on_meta(op: str, values: Sequence[Any]) -> list[Any]:
    """Arguments with which an operator makes its tensors without elements: also where no device is named."""
    names = [] if op.startswith("prim::") else argument_names(op)
    devices = [name == "device" and value is None for name, value in zip(names, values, strict=False)]
    devices += [False] * (len(values) - len(devices))
    return [
        _META if is_device or isinstance(value, torch.device) else value
        for value, is_device in zip(values, devices, strict=True)
    ]


def _without_elements(result: torch.Tensor) -> torch.Tensor:
    return result if result.is_meta or result.layout != torch.strided else meta_of(result)


def _filled(metas: Any, element: int) -> Any:
    """Arguments whose tensors have this element everywhere."""
    return map_leaves(metas, torch.Tensor, lambda meta: torch.full(tuple(meta.shape), element, dtype=meta.dtype))


def _check_dense(tensor: torch.Tensor, op: str, source: Origin) -> None:
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"{op}{_at(source)} makes a {tensor.layout} tensor, and mobopt computes with dense ones")


def _share_memory(tensors: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    kept, made = ({_storage(tensor) for tensor in each if tensor.layout == torch.strided} for each in (tensors, others))
    return not kept.isdisjoint(made)


def _storage(meta: torch.Tensor) -> int:
    return int(meta.untyped_storage()._cdata)


def _at(source: Origin) -> str:
    return f" at {source}" if source else ""
