"""Operators on traced tensors: computed at once on constants, else recorded as nodes, and never in place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import torch

from mobopt.errors import InputError, MoboptError, UnsupportedError
from mobopt.ir import Graph, Node, Origin, Value
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.schemas import Schema, argument_names, schema_of, schemas_of
from mobopt.ir.types import TENSOR
from mobopt.ops.effects import draws_numbers
from mobopt.ops.records import Trait, functional_schema, has_trait, record_of
from mobopt.ops.schemas import PACKING_OPERATORS
from mobopt.ops.shapes.layouts import outermost_first
from mobopt.runtimes.abstract import (
    TracedTensor,
    ViewRecipe,
    constant_tensor,
    is_nested,
    positions_replaced,
    shows_as_it_lies,
    whole,
)
from mobopt.runtimes.cpu.kernels import is_mutating, kernel, operator_error
from mobopt.runtimes.host_tape import HostNumber, HostTensor, Ref, Tape, settled
from mobopt.runtimes.numbers_in_tensors import WITH_NUMBERS, is_mask
from mobopt.runtimes.result_geometry import OnlyElementsTellError, geometry_of, share_memory, storage_of

FOLD_LIMIT_BYTES = 64 * 2**20
"""A result of constants that is larger than this is computed by every run instead of being kept."""

_META = torch.device("meta")
_OF_NUMBERS = (torch.float32, torch.float64, torch.int64)
"""Dtypes that numbers in tensors don't change."""
_TENSORS: Any = (torch.Tensor, HostTensor)


class NeedsElementsError(Exception):
    """The evaluation can't go on without the elements of these tensors; the specialiser catches it."""

    def __init__(self, refs: Sequence[Value]) -> None:
        super().__init__(f"{len(refs)} tensors must be read")
        self.refs = list(refs)


class Recorder:
    """Applies operators to traced tensors; the nodes that are left make a straight line."""

    def __init__(
        self, answers: Sequence[torch.Tensor] = (), numbers: Sequence[Any] = (), by_elements: Collection[str] = ()
    ) -> None:
        """Start without nodes.

        Args:
            answers: the elements that will be asked for, as far as they have been read, in order.
            numbers: that followed from elements before.
            by_elements: operators that are computed from elements that are read, beside those whose traits say so.
        """
        self.graph = Graph()
        self.tape = Tape([*answers, *numbers])
        self.numbers = [HostNumber(number, Ref(len(answers) + at), self.tape) for at, number in enumerate(numbers)]
        self.answers = tuple(answers)
        self.hosted: dict[Value, Value] = {}
        """Inputs of the graph, by the constants of the evaluation that the host computes from elements."""
        self._of_tape: dict[Value, HostTensor] = {}
        self._answered = self._answered_before = 0
        self._by_elements = frozenset(by_elements)

    def operate(self, op: str, args: Sequence[Any], source: Origin) -> Any:
        """The result of an operator of the model; see :meth:`apply`."""
        self._answered_before = self._answered
        return self.apply(op, args, source)

    @property
    def partial_answers(self) -> tuple[int, int]:
        """Begin and end of the answers that the model's operator has been given that now asks for more."""
        return self._answered_before, self._answered

    @property
    def hosted_refs(self) -> tuple[Ref, ...]:
        """What the inputs in :attr:`hosted` are of the tape."""
        return tuple(self._of_tape[value].ref for value in self.hosted)

    def operand(self, value: Value) -> Value:
        """What the graph has for a tensor: itself, or an input for what the host computes from elements."""
        if value not in self._of_tape:
            return value
        if value not in self.hosted:
            self.hosted[value] = Value.of_tensor(value.dtype, value.sizes, f"hosted{len(self.hosted)}")
        return self.hosted[value]

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
        tensors = list(leaves_of(args, TracedTensor))
        known = all(self.read(tensor).elements is not None for tensor in tensors)
        draws = draws_numbers(op, dict(zip(argument_names(op), args, strict=False)))
        if draws and not (tensors and all(tensor.meta.numel() == 0 for tensor in tensors)):
            return self._record(op, args, source)
        if has_trait(op, Trait.IGNORES_ELEMENTS):
            return self._fold(op, map_leaves(args, TracedTensor, self._stand_in), source)
        if known and has_trait(op, Trait.EXPANDS):
            return self._record(op, args, source)
        if known:
            return self._fold(op, args, source)
        if op in self._by_elements or (not takes_number and _looks(op)) or _selects_by_mask(op, args):
            return self._fold(op, self._with_elements(args), source)
        if op == "aten::as_strided_scatter":
            return self._written_by_place(op, args, source)
        if has_trait(op, Trait.COUNTS_PLACES):
            args = self._in_order_of_memory(op, args, source)
        try:
            return self._record(op, args, source)
        except OnlyElementsTellError:
            return self._fold(op, self._with_elements(args), source)

    def _stand_in(self, tensor: TracedTensor) -> TracedTensor:
        """A constant in place of a tensor of which only sizes, strides and dtype matter."""
        meta = tensor.meta
        if meta.is_contiguous():
            return constant_tensor(zeros_without_memory(meta.dtype, tuple(meta.shape)))
        return constant_tensor(torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype))

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
        if self.tape.values:
            op, args = self._with_tensors(op, args)
            args = settled(list(args))
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

        result = map_leaves(geometry_of(op, args, source), torch.Tensor, trace)
        if any(ref.elements is None for ref in made):
            values = map_leaves(tuple(args), TracedTensor, lambda tensor: self.operand(self.read(tensor)))
            self.graph.block.append(Node.call(op, values, outputs, source))
        return result

    def _in_order_of_memory(self, op: str, args: Sequence[Any], source: Origin) -> Sequence[Any]:
        """Arguments of ``as_strided``, or its like, with the whole of the memory, in its own order.

        Raises:
            UnsupportedError: its elements don't lie one after another.
        """
        tensor, *others, offset = args
        memory = tensor.memory
        if tensor.meta.is_contiguous() and tensor.meta.numel() == memory.meta.numel():
            return args
        base = TracedTensor(memory, memory.meta, memory.ref, memory.version)
        if not base.meta.is_contiguous():
            base = self._record("aten::permute", [base, outermost_first(base.meta.stride())], source)
        if not (base.meta.is_contiguous() and shows_as_it_lies(tensor.meta, base.meta)):
            raise UnsupportedError(
                f"{op}{_at(source)} takes elements by their places in memory, where they don't lie one after another; "
                "give it a contiguous tensor"
            )
        return [base, *others, tensor.meta.storage_offset() if offset is None else offset]

    def _written_by_place(self, op: str, args: Sequence[Any], source: Origin) -> Any:
        """What ``as_strided_scatter`` makes: a copy of the whole memory, of which the result shows what its first
        argument shows of the memory."""
        meta = args[0].meta
        given = self._in_order_of_memory(op, args, source)
        made = self._record(op, given, source)
        if given[0] is args[0]:
            return made
        place = [list(meta.shape), list(meta.stride()), meta.storage_offset()]
        return self._record("aten::as_strided", [made, *place], source)

    def _with_tensors(self, op: str, args: Sequence[Any]) -> tuple[str, Sequence[Any]]:
        """An operator on a tensor and a number of the tape as one on two tensors, if it gives the same."""
        name = _form_for_tensors(op)
        if name is None or not isinstance(args[1], HostNumber):
            return op, args
        x, number = args[0], args[1]
        dtype = x.meta.dtype
        if dtype.is_complex or (x.meta.dim() == 0 and dtype not in _OF_NUMBERS):
            return op, args  # of two tensors without dimensions, both decide the dtype
        if dtype != torch.float64:
            is_float = dtype.is_floating_point or isinstance(number.value, float)
            dtype = torch.float32 if is_float else torch.int64
        return name, [x, self._hosted_tensor(self.tape.do(_scalar_tensor, (number, dtype))), *args[2:]]

    def _hosted_tensor(self, tensor: HostTensor) -> TracedTensor:
        made = constant_tensor(tensor.value)
        self._note(made.ref, tensor)
        return made

    def _note(self, value: Value, tensor: HostTensor) -> None:
        if tensor.value.numel():
            self._of_tape[value] = tensor

    def _fold(self, op: str, args: Sequence[Any], source: Origin) -> Any:
        """Run an operator on constants; record it if the result is too large to keep."""
        given = map_leaves(list(args), TracedTensor, lambda tensor: self._elements(self.read(tensor)))
        values = map_leaves(given, HostTensor, lambda tensor: tensor.value)
        follows = any(True for _ in leaves_of(given, HostTensor)) or any(True for _ in leaves_of(given, HostNumber))
        try:
            result = self.tape.do(kernel(op), given) if follows else kernel(op)(*values)
        except MoboptError:
            raise
        except Exception as error:
            raise operator_error(op, source, settled(values), error) from error
        if has_trait(op, Trait.UNDEFINED):
            for tensor in leaves_of(
                result, torch.Tensor
            ):  # what lay in that memory would be taken for integers that come
                tensor.zero_()
        inputs = {id(value): value for value in leaves_of(values, torch.Tensor)}
        results = list(leaves_of(map_leaves(result, HostTensor, lambda tensor: tensor.value), torch.Tensor))
        made = [value for value in results if id(value) not in inputs]
        if sum(value.untyped_storage().nbytes() for value in made) > FOLD_LIMIT_BYTES and inputs:
            return self._record(op, args, source)
        aliases: list[torch.Tensor] = []
        if share_memory(inputs.values(), results):
            args = settled(list(args))
            aliases = self._aliases(op, args, source)
        index = -1

        def trace(made: torch.Tensor | HostTensor) -> TracedTensor:
            nonlocal index
            index += 1
            value = made.value if isinstance(made, HostTensor) else made
            _check_dense(value, op, source)
            if index >= len(aliases):
                return self._hosted_tensor(made) if isinstance(made, HostTensor) else constant_tensor(value)
            ref = Value.of_elements(value)
            if isinstance(made, HostTensor):
                self._note(ref, made)
            same = _same_tensor(aliases[index], args)
            return same or _result(aliases[index], ref, ViewRecipe(op, tuple(args), index, source))

        return map_leaves(result, _TENSORS, trace)

    def _elements(self, value: Value) -> Any:
        return self._of_tape.get(value, value.elements)

    def _aliases(self, op: str, args: Sequence[Any], source: Origin) -> list[torch.Tensor]:
        """Geometry of the results of an operator on constants that share memory with its arguments."""
        if _looks(op):
            return []
        if any(is_nested(tensor) for tensor in leaves_of(args, TracedTensor)):
            return []
        return list(leaves_of(geometry_of(op, args, source), torch.Tensor))

    def _with_elements(self, args: Sequence[Any]) -> list[Any]:
        """Arguments with the elements that were read for them, as constants."""
        refs = [self.read(tensor) for tensor in leaves_of(args, TracedTensor)]
        unknown = list(dict.fromkeys(ref for ref in refs if ref.elements is None))
        answers = self.answers[self._answered : self._answered + len(unknown)]
        if len(answers) < len(unknown):
            raise NeedsElementsError(unknown)
        self._answered += len(unknown)
        first = self._answered - len(unknown)
        elements = {ref: self.tape.tensor(Ref(first + at)) for at, ref in enumerate(unknown)}

        def known(tensor: TracedTensor) -> TracedTensor:
            return self._hosted_tensor(elements[tensor.ref]) if tensor.ref in elements else tensor

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
        memory, ref = target.memory, self._lying_as(target.meta, self.read(value))
        whole_ref = ref if target.recipe is None else self._overwritten(target, value, source)
        memory.ref = self._lying_as(memory.meta, whole_ref)
        memory.version += 1
        memory.is_written = True
        target.ref, target.version = ref, memory.version

    def _lying_as(self, meta: torch.Tensor, value: Value) -> Value:
        """A value whose elements, if they are known, lie as ``meta`` says: views of it ask for that."""
        if value.elements is None or value.elements.stride() == meta.stride() or 0 in meta.stride():
            return value
        if value in self._of_tape:
            return self._hosted_tensor(self.tape.do(_laid_out, (self._of_tape[value], meta.stride()))).ref
        return constant_tensor(_laid_out(value.elements, meta.stride())).ref

    def _overwritten(self, target: TracedTensor, value: TracedTensor, source: Origin) -> Value:
        """The whole memory of a view after the view was overwritten.

        Raises:
            UnsupportedError: the view shows the bits of its memory as another dtype.
        """
        scattered = self._scattered(target, value, source)
        if scattered is not None:
            return scattered
        memory, view = target.memory, target.meta
        base, base_meta = whole(memory.ref, memory.meta), memory.meta
        if view.is_neg():
            value, view = self.apply("aten::neg", [value], source), torch._neg_view(view)
        if view.is_conj():
            value, view = self.apply("aten::conj_physical", [value], source), torch.conj(view)
        if view.dtype != base_meta.dtype:
            if base_meta.is_complex():
                base, base_meta = self.apply("aten::view_as_real", [base], source), torch.view_as_real(base_meta)
            if view.is_complex():
                value, view = self.apply("aten::view_as_real", [value], source), torch.view_as_real(view)
            if view.dtype != base_meta.dtype:
                raise UnsupportedError(
                    f"the model writes{_at(source)} to {memory.meta.dtype} memory through a view of it as "
                    f"{target.meta.dtype}, which mobopt can't run; convert the tensor instead"
                )
        positions = constant_tensor(positions_replaced(base_meta, view))
        flat = [self.apply("aten::reshape", [tensor, [-1]], source) for tensor in (base, value)]
        joined = self.apply("aten::cat", [flat, 0], source)
        merged = self.apply("aten::index_select", [joined, 0, positions], source)
        shaped = self.apply("aten::reshape", [merged, list(base_meta.shape)], source)
        is_complex = memory.meta.is_complex() and not base_meta.is_complex()
        return self.read(self.apply("aten::view_as_complex", [shaped], source) if is_complex else shaped)

    def _scattered(self, target: TracedTensor, value: TracedTensor, source: Origin) -> Value | None:
        """The same of a view that is slices and selections of its memory; None of others."""
        view, memory = target, target.memory
        while view.recipe is not None:
            recipe, parent = view.recipe, view.recipe.args[0]
            if recipe.op not in _CUTS or parent.memory is not memory:
                return None
            if not _lie_alike(view.meta, parent.meta):
                name = f"{recipe.op.partition('.')[0]}_scatter"
                value = self.apply(name, [parent, value, *recipe.args[1:]], source)
            view = parent
        return self.read(value) if _lie_alike(view.meta, memory.meta) else None


_CUTS = ("aten::slice.Tensor", "aten::select.int")
"""Views whose memory another operator (``..._scatter``) writes to."""


def _lie_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two views of a memory are the same."""
    return (one.shape, one.stride(), one.storage_offset()) == (other.shape, other.stride(), other.storage_offset())


def _scalar_tensor(number: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(number, dtype=dtype)


@cache
def _form_for_tensors(op: str) -> str | None:
    """The overload for two tensors of an operator on a tensor and a number."""
    name, _, overload = op.partition(".")
    if overload != "Scalar":
        return None
    mine = schema_of(op).arguments
    for other in schemas_of(name):
        if other.overload == "Tensor" and [item.name for item in other.arguments] == [item.name for item in mine]:
            return other.qualified_name if other.arguments[1].type == TENSOR else None
    return None


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
    if schema.name == "aten::fill_diagonal_":
        sizes = tuple(map(int, args[0].meta.shape))
        mask = torch.zeros(sizes, dtype=torch.bool).fill_diagonal_(True, args[2])
        return "aten::masked_fill.Scalar", [args[0], constant_tensor(mask), args[1]]
    other = functional_schema(schema)
    if other is not None:
        given = zip(schema.arguments, args, strict=True)
        return other.qualified_name, [value for item, value in given if not (item.is_written and item.keyword_only)]
    raise UnsupportedError(f"{schema.qualified_name} works in place and has no functional form that mobopt knows")


def _result(meta: torch.Tensor, ref: Value, recipe: ViewRecipe) -> TracedTensor:
    """A result: a view if it shares its memory with an argument, else a tensor of its own."""
    for base in leaves_of(recipe.args, TracedTensor):
        if storage_of(base.meta) == storage_of(meta):
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


def zeros_without_memory(dtype: torch.dtype, sizes: tuple[int, ...]) -> torch.Tensor:
    """A real tensor of these sizes that takes no memory."""
    return torch.zeros((), dtype=dtype).expand(sizes)


def _laid_out(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _check_dense(tensor: torch.Tensor, op: str, source: Origin) -> None:
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"{op}{_at(source)} makes a {tensor.layout} tensor, and mobopt computes with dense ones")


def _at(source: Origin) -> str:
    return f" at {source}" if source else ""
