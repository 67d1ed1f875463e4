"""Reading a file and writing it again loses nothing: graphs, attributes, storages, defaults, extra files, meaning."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import GOLDEN, bundle_id, records
from sampling import sampled
from stored_modules import Makes, Views
from torch import nn

from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.bundle.prepare import prepared
from mobopt.ir import Graph, Program, Value, print_graph
from mobopt.ir.program import clone_graph
from mobopt.ir.types import NONE
from mobopt.module import MobileModule
from mobopt.ops.contexts import PackedContext
from mobopt.runtimes.cpu import Interpreter

FORMS = {"code": write_torchscript, "bytecode": write_lite}
FILES = sampled(
    (
        (path, form)
        for path in sorted(GOLDEN.glob("*/*/*.pt*"))
        for form in FORMS
        if form == "code" or path.suffix == ".ptl"
    ),
    one_in=2,
    key=lambda case: f"{bundle_id(case[0])} {case[1]}",
)


def rewritten(program: Program, form: str) -> Program:
    """The program after it was written and read."""
    file = io.BytesIO()
    FORMS[form](program, file)
    file.seek(0)
    return read_bundle(file, prefer=form)


def text(graph: Graph) -> str:
    """The text of a graph with each constant once and values numbered in order, for files tell neither of them."""
    copy = clone_graph(graph)
    nodes = list(copy.walk())
    blocks = [copy.block, *(nested for node in nodes for nested in node.blocks)]
    constants: dict[tuple[str, str], Value] = {}
    for node in (*nodes, *(block.returns for block in blocks)):
        for index, value in enumerate(node.inputs):
            if value.is_constant:
                # As an argument, None is written without the type that it stands for.
                key = "" if value.constant is None else str(value.type), repr(plain(value.constant))
                node.replace_input(index, constants.setdefault(key, value))
    values = [*constants.values(), *(value for block in blocks for value in block.parameters)]
    values += [value for node in nodes for value in node.outputs]
    for number, value in enumerate(values):
        value.name = value.name.partition(".")[0] if value in copy.inputs else str(number)
        value.type = NONE if value.is_constant and value.constant is None else value.type
    return print_graph(copy)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors inside a value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    items: Any = value.state() if isinstance(value, PackedContext) else value
    if isinstance(items, (list, tuple, dict)):
        for item in items.values() if isinstance(items, dict) else items:
            yield from tensors(item)


def plain(value: Any) -> Any:
    """A value that ``==`` compares."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.stride(), value.storage_offset(), value.tolist()
    if isinstance(value, PackedContext):
        return value.qualified_name, plain(value.state())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def storages(program: Program) -> list[tuple[int, int]]:
    """For each tensor of the attributes: the number of its storage, in order of first use, and its size in bytes."""
    numbers: dict[int, int] = {}
    found = []
    for item in program.attributes.values():
        for tensor in tensors(item.value):
            storage = tensor.untyped_storage()
            found.append((numbers.setdefault(storage.data_ptr(), len(numbers)), storage.nbytes()))
    return found


def assert_equal(ours: Program, original: Program) -> None:
    assert {name: text(graph) for name, graph in ours.methods.items()} == {
        name: text(graph) for name, graph in original.methods.items()
    }
    assert list(ours.methods) == list(original.methods)
    assert list(ours.attributes) == list(original.attributes)
    for name, item in original.attributes.items():
        found = ours.attributes[name]
        assert (found.type, found.is_parameter, found.is_buffer) == (item.type, item.is_parameter, item.is_buffer), name
        assert plain(found.value) == plain(item.value), name
    assert storages(ours) == storages(original)
    assert ours.class_name == original.class_name
    assert ours.metadata == original.metadata


@pytest.mark.parametrize(("path", "form"), FILES)
def test_golden_bundles(path: Path, form: str) -> None:
    original = read_bundle(path, prefer=form)
    ours = rewritten(original, form)
    # The writer turns contexts that are constants into attributes, which are all that it adds.
    expected = prepared(original)
    added = {name: item for name, item in expected.attributes.items() if name not in original.attributes}
    assert all(isinstance(item.value, PackedContext) for item in added.values())
    assert_equal(ours, expected)


def test_kinds_of_golden_bundles() -> None:
    names = {path.name for path in GOLDEN.glob("*/*/*.pt*")}
    kinds = ("model", "vulkan", "vulkan_notransfer", "vulkan_fixedstate", "metal", "cpu")
    assert {f"{kind}{suffix}" for kind in kinds for suffix in (".pt", ".ptl")} <= names


DEFAULTS = {"other": None, "sizes": None, "scale": 2.0, "name": 'd"\n', "flag": False}


@pytest.fixture(scope="module")
def views() -> torch.jit.ScriptModule:
    return torch.jit.script(Views()).eval()


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def saved(module: torch.jit.ScriptModule, form: str, extra: dict[str, Any]) -> io.BytesIO:
    save = module.save_to_buffer if form == "code" else module._save_to_buffer_for_lite_interpreter
    return io.BytesIO(save(_extra_files=extra))


def test_attributes_storages_and_extra_files(views: torch.jit.ScriptModule, form: str) -> None:
    extra = {"labels.txt": "cat\ndog", "metadata.json": "{}"}
    original = read_bundle(saved(views, form, extra), prefer=form)
    assert original.metadata["extra_files"] == {name: content.encode() for name, content in extra.items()}
    assert original.metadata["defaults"] == {"forward": DEFAULTS}
    shared = {
        tensor.untyped_storage().data_ptr()
        for name in ("weight", "turned", "part", "table")
        for tensor in list(tensors(original.attributes[name].value))[:1]
    }
    assert len(shared) == 1
    again = rewritten(original, form)
    assert_equal(again, original)


def test_stock_torch_finds_everything_again(views: torch.jit.ScriptModule, form: str) -> None:
    file = io.BytesIO()
    FORMS[form](read_bundle(saved(views, form, {"labels.txt": "cat"}), prefer=form), file)
    file.seek(0)
    extra = {"labels.txt": ""}
    loaded = torch.jit.load(file, _extra_files=extra)
    assert extra["labels.txt"] in ("cat", b"cat")
    parameters = {argument.name: argument for argument in loaded.forward.schema.arguments}
    assert {name: parameters[name].default_value for name in DEFAULTS} == DEFAULTS
    x = torch.ones(2, 4)
    assert torch.equal(loaded(x), views(x))
    assert dict(loaded.named_parameters()).keys() == dict(views.named_parameters()).keys()
    assert loaded.turned.untyped_storage().data_ptr() == loaded.weight.untyped_storage().data_ptr()
    tensor_records = [name for name in records(file.getvalue()) if name.startswith("data/")]
    assert len(tensor_records) == 5 if form == "code" else len(tensor_records) >= 5  # one for each storage


def test_other_form_keeps_the_same(views: torch.jit.ScriptModule, form: str) -> None:
    """A .ptl that becomes a .pt, and the other way round."""
    other = next(name for name in FORMS if name != form)
    original = read_bundle(saved(views, form, {"labels.txt": "cat"}), prefer=form)
    again = rewritten(original, other)
    assert again.metadata["defaults"] == original.metadata["defaults"]
    assert again.metadata["extra_files"] == original.metadata["extra_files"]
    for name, item in original.attributes.items():
        assert plain(again.attributes[name].value) == plain(item.value)


def test_given_extra_files_replace_those_of_the_file(views: torch.jit.ScriptModule, form: str) -> None:
    program = read_bundle(saved(views, form, {"a": "old", "b": "kept"}), prefer=form)
    file = io.BytesIO()
    FORMS[form](program, file, extra_files={"a": b"new", "c": "added"})
    file.seek(0)
    assert read_bundle(file).metadata["extra_files"] == {"a": b"new", "b": b"kept", "c": b"added"}


@pytest.mark.parametrize("save", [MobileModule.save_to_buffer, MobileModule._save_to_buffer_for_lite_interpreter])
def test_loaded_module_keeps_extra_files(views: torch.jit.ScriptModule, save: Callable[..., bytes]) -> None:
    module = MobileModule(read_bundle(saved(views, "bytecode", {"labels.txt": "cat"})), "cpu")
    assert records(save(module))["extra/labels.txt"] == b"cat"
    assert torch.equal(module(torch.ones(2, 4)), views(torch.ones(2, 4)))


def test_parameters_without_a_default_stay_so() -> None:
    class Needs(nn.Module):
        def forward(self, x: torch.Tensor | None, y: torch.Tensor | None, z: torch.Tensor | None = None) -> int:
            return int(x is None) + int(y is None) + int(z is None)

    module = torch.jit.script(Needs())
    for form in FORMS:
        program = read_bundle(saved(module, form, {}), prefer=form)
        assert program.metadata["defaults"] == {"forward": {"z": None}}
        assert rewritten(program, form).metadata["defaults"] == {"forward": {"z": None}}


def test_named_tuples_inside_other_types_are_read(form: str) -> None:
    x = torch.ones(3)
    original = read_bundle(saved(torch.jit.script(Makes()), form, {}), prefer=form)
    ours = rewritten(original, form)
    assert_equal(rewritten(ours, form), ours)
    for program in (original, ours):
        one, several, named = Interpreter(program).run("forward", [x])
        assert torch.equal(one.value, x) and several[0].sizes == [1, 2] and named["a"].sizes == [1, 2]
