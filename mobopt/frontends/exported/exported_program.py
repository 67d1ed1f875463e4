"""ExportedPrograms and their files as sources of models."""

from __future__ import annotations

import copy
import io
import math
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from mobopt.errors import BundleError, InputError, MoboptError, UnsupportedError
from mobopt.frontends.exported.archive import ExportedArchive
from mobopt.frontends.exported.attention_views import let_views_copy
from mobopt.frontends.exported.core_operators import recompose
from mobopt.frontends.exported.reader import ExportedModel
from mobopt.frontends.exported.transforms import without_transforms
from mobopt.frontends.exported.trees import LEAF, Tree, arrange, tree_of
from mobopt.frontends.source import Source, interpreted
from mobopt.frontends.torchscript import frozen
from mobopt.ir import Program
from mobopt.ir.arguments import bind_arguments
from mobopt.ir.nests import map_leaves
from mobopt.ops.former import replace_former

_FORWARD = "forward"


class ExportedFileSource(Source):
    """A file of ``torch.export.save``; nothing in it is executed but by our interpreter, when the model is run."""

    def __init__(self, file: Path, preserved: Sequence[str] = ()) -> None:
        """Read a file.

        Raises:
            BundleError: the file is damaged, hostile, or of an older layout.
            UnsupportedError: the model uses what a Program can't hold.
            InputError: a preserved name does not exist, or the model was exported in training mode.
        """
        self.name = file.name
        self._archive = ExportedArchive(file)
        try:
            self._model = ExportedModel(self._archive)
        except (UnsupportedError, InputError) as error:
            raise type(error)(f"{file}: {error}") from None
        self.program = _program(self._model, preserved)

    def caller(self, method: str = _FORWARD, is_bounded: bool = False) -> Callable[[Sequence[Any]], Any]:
        """The reference interpreter on the graph as it was exported, before any pass."""
        return interpreted(self._model.program, method, is_bounded)

    def example_calls(self, method: str = _FORWARD) -> list[Sequence[Any]]:
        """What the model was exported with, if the file keeps it."""
        return _bound(self._model.program, self._archive.examples()) if method == _FORWARD else []

    def example_shapes(self) -> list[Any] | None:
        """None: the file has whole inputs, or nothing."""
        return None

    def extra_files(self) -> dict[str, bytes]:
        """Those of the archive."""
        return self._archive.extra_files()


class ExportedProgramSource(Source):
    """An ExportedProgram that a user holds; it is run as torch runs it."""

    def __init__(
        self, exported: ExportedProgram, preserved: Sequence[str] = (), name: str = "exported program"
    ) -> None:
        """Read a program; it is not changed.

        Raises:
            UnsupportedError: torch can't serialise it, or it uses what a Program can't hold.
            InputError: a preserved name does not exist, or the model was exported in training mode.
        """
        self.name = name
        self._exported = exported
        try:
            self._model = ExportedModel(_archived(without_transforms(exported)), None, _trees(exported))
        except BundleError as error:
            raise UnsupportedError(f"can't convert the exported program: {error}") from None
        self.program = _program(self._model, preserved)

    def caller(self, method: str = _FORWARD, is_bounded: bool = False) -> Callable[[Sequence[Any]], Any]:
        """The program's own module, a copy if it has state."""
        if method != _FORWARD:
            raise InputError(f"an exported program has no method {method!r}")
        exported = self._exported
        module = _with_own_state(exported).module()

        def call(inputs: Sequence[Any]) -> Any:
            positional, keywords = self.call_form(inputs)
            try:
                with torch.no_grad():
                    result = module(*positional, **keywords)
            except (RuntimeError, TypeError, ValueError, AssertionError) as error:
                reason = str(error).strip().splitlines()[-1]
                raise InputError(f"the model can't be run on the example inputs: {reason}") from None
            return self.arranged(result)

        return call

    def call_form(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of ``forward`` in order as the positional and keyword arguments that the model was exported with.

        Raises:
            InputError: the model was not exported for them.
        """
        bound = bind_arguments(self._model.program, _FORWARD, inputs, {})
        count = len(_trees(self._exported)[0].children[0].children)
        return bound[:count], dict(zip(list(self._model.inputs)[count:], bound[count:], strict=True))

    @property
    def result_structure(self) -> Any:
        """The nest of what the model returns, as ``torch.utils._pytree`` has it."""
        return _signature(self._exported).out_spec

    def arranged(self, result: Any) -> Any:
        """A result of the model in the nest that the graph gives."""
        leaves = map_leaves(pytree.tree_leaves(result), torch.Tensor, torch.Tensor.detach)
        return arrange(self._model.output, iter(leaves))

    def example_calls(self, method: str = _FORWARD) -> list[Sequence[Any]]:
        """What the program was exported with."""
        return _bound(self._model.program, self._exported.example_inputs) if method == _FORWARD else []

    def example_shapes(self) -> list[Any] | None:
        """None: the program has whole inputs, or nothing."""
        return None


def _program(model: ExportedModel, preserved: Sequence[str]) -> Program:
    program = frozen(model.program, preserved)
    replace_former(program)
    recompose(program)
    let_views_copy(program)
    return program


def _with_own_state(exported: ExportedProgram) -> ExportedProgram:
    """The program with copies of all that a run may change."""
    twin = copy.copy(exported)
    twin._state_dict = {name: _copied(value) for name, value in exported.state_dict.items()}
    twin._constants = {name: _copied(value) for name, value in exported.constants.items()}
    return twin


def _copied(value: Any) -> Any:
    is_changeable = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    return value.detach().clone() if is_changeable else value


def _bound(program: Program, found: tuple[tuple[Any, ...], dict[str, Any]] | None) -> list[Sequence[Any]]:
    """Positional and keyword arguments as those of one call; none if the model does not take them."""
    try:
        return [] if found is None else [bind_arguments(program, _FORWARD, *found)]
    except MoboptError:
        return []


def _saved(exported: ExportedProgram, state: Mapping[str, Any]) -> bytes:
    """What torch saves of a program with some state, without the nests of its inputs and outputs, whose classes it may
    not know.

    Raises:
        UnsupportedError: torch can't save it.
    """
    plain = copy.copy(exported)
    root = copy.copy(exported.module_call_graph[0])
    root.signature = copy.copy(_signature(exported))
    root.signature.in_spec = root.signature.out_spec = pytree.tree_structure(((), {}))
    plain._module_call_graph = [root]
    plain._state_dict = dict(state)
    buffer = io.BytesIO()
    try:
        with warnings.catch_warnings(), _roundings_are_saved():
            warnings.filterwarnings("ignore", "No complete tensor found")  # of views: the reader checks where they lie
            torch.export.save(plain, buffer)
    except Exception as error:  # torch raises what it meets, from assertions to errors of its own
        text = str(error).strip() or type(error).__name__
        raise UnsupportedError(f"torch can't serialise the exported program: {text.splitlines()[0]}") from error
    return buffer.getvalue()


@contextmanager
def _roundings_are_saved() -> Iterator[None]:
    """torch saves the functions of sizes that it has in a set; 2.13 lacks two that its exporter makes."""
    from torch._export.serde import serialize  # it imports torch's compiler and sympy, which other sources don't need

    known: set[Any] = getattr(serialize, "_SYM_OPS", set())
    added = {math.ceil, math.floor} - known
    known |= added
    try:
        yield
    finally:
        known -= added


def _plain_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """Stored tensors, with those of subclasses taken apart: ``weight.qdata`` is what ``weight`` holds as ``qdata``.

    What stands for such a tensor itself has no elements.
    """
    plain: dict[str, Any] = {}
    for name, value in state.items():
        if not (isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value)):
            plain[name] = value
            continue
        parts, _ = value.__tensor_flatten__()
        plain[name] = _stand_in(value)
        plain |= _plain_tensors({f"{name}.{part}": getattr(value, part) for part in parts})
    return plain


def _archived(exported: ExportedProgram) -> ExportedArchive:
    """What torch saves of a program, with tensors of subclasses on the meta device, where nothing can read them.

    Parameters and buffers are copied once, beside the archive: through it they would be four times in memory.
    """
    state = _plain_tensors(exported.state_dict)
    beside = {name: value for name, value in state.items() if _is_dense(value)}
    archive = ExportedArchive(io.BytesIO(_saved(exported, state | {n: _stand_in(v) for n, v in beside.items()})))
    storages: dict[tuple[int, int], torch.UntypedStorage] = {}
    for name, value in beside.items():
        archive.tensors[name] = _copied_among(value, storages)
    for name, value in exported.state_dict.items():
        if isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value):
            archive.tensors[name] = archive.tensors[name].to("meta")
    return archive


def _stand_in(value: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(0, dtype=value.dtype), requires_grad=False)


def _is_dense(value: Any) -> bool:
    """Whether a tensor is nothing but elements in the host's memory."""
    is_plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided
    is_lazy = is_plain and (value.is_quantized or value.is_conj() or value.is_neg())
    return is_plain and not is_lazy and value.device.type == "cpu" and value.numel() > 0


def _copied_among(value: torch.Tensor, storages: dict[tuple[int, int], torch.UntypedStorage]) -> torch.Tensor:
    """A copy of a tensor, which shares its storage with the copies of those that shared it before."""
    own = value.detach().untyped_storage()
    place = own.data_ptr(), own.nbytes()
    if place not in storages:
        storages[place] = torch.empty(0, dtype=torch.uint8).set_(own).clone().untyped_storage()
    return torch.empty(0, dtype=value.dtype).set_(storages[place], value.storage_offset(), value.size(), value.stride())


def _signature(exported: ExportedProgram) -> Any:
    signature = exported.module_call_graph[0].signature
    if signature is None:
        raise UnsupportedError("the exported program does not tell its inputs and outputs")
    return signature


def _trees(exported: ExportedProgram) -> tuple[Tree, Tree]:
    """The nests of inputs and outputs."""
    signature = _signature(exported)
    return _tree(signature.in_spec), _tree(signature.out_spec)


def _tree(spec: Any) -> Tree:
    if spec.is_leaf():
        return LEAF
    name = f"{getattr(spec.type, '__module__', '')}.{getattr(spec.type, '__qualname__', spec.type)}"
    children = tuple(map(_tree, spec.children() if hasattr(spec, "children") else spec.children_specs))  # to 2.8
    context = spec.context
    if spec.type is namedtuple:
        return Tree("named", children, context._fields, context.__qualname__)
    return tree_of(name, context, children)
