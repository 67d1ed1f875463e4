"""Files are read by mobopt itself: as torch reads them, and to the same bundle as the module that was saved."""

import io
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Optional, Union

import pytest
import torch
from torch import Tensor, nn

from mobopt.bundle import write_lite, write_torchscript
from mobopt.errors import BundleError
from mobopt.frontends.file_source import FileSource
from mobopt.frontends.script_module_source import ScriptModuleSource
from mobopt.frontends.source import Source
from mobopt.frontends.torchscript import frozen, program_from_script_module, read_model
from mobopt.ir import Program
from mobopt.optimizer import optimize
from mobopt.options import Settings
from mobopt.passes.number_operands import NumberOperands
from mobopt.runtimes.cpu import Interpreter
from mobopt.samples.agreement import agreement_of
from mobopt.samples.example_inputs import GIVEN, ChosenInputs

sys.path.insert(0, str(Path(__file__).parent.parent))
from model_zoo import ZOO
from nets import NETS

_FEW = ("CycleGAN", "StreamingLSTM", "EarlyExit", "Pools")
_NET_CASES = [
    pytest.param(name, way, marks=[] if name in _FEW else [pytest.mark.sweep])
    for name, net in NETS.items()
    for way in net.ways
]


def saved(module: torch.jit.ScriptModule, folder: Path) -> Path:
    path = folder / "model.pt"
    torch.jit.save(module, str(path))  # type: ignore[no-untyped-call]
    return path


def bundles(source: Source, settings: Settings, inputs: list[Tensor]) -> tuple[bytes, bytes]:
    """The source and the lite form of a conversion's result."""
    program = optimize(source, settings, inputs).program
    files = io.BytesIO(), io.BytesIO()
    write_torchscript(program, files[0])
    write_lite(program, files[1])
    return files[0].getvalue(), files[1].getvalue()


def assert_same_files(module: torch.jit.ScriptModule, inputs: list[Tensor], folder: Path) -> None:
    file = FileSource(saved(module, folder))
    for settings in (Settings("vulkan"), Settings("cpu")):
        assert bundles(ScriptModuleSource(module), settings, inputs) == bundles(file, settings, inputs)
    expected = module(*inputs)
    torch.testing.assert_close(file.caller()(inputs), expected, rtol=1e-4, atol=1e-4)
    NumberOperands().run(file.program)  # torch's interpreter does so before it runs a graph
    assert agreement_of(ScriptModuleSource(module), file.program, ChosenInputs(tuple(inputs), GIVEN)).agrees


@pytest.mark.parametrize(("name", "way"), _NET_CASES)
def test_both_roads_give_the_same_file(name: str, way: str, tmp_path: Path) -> None:
    net = NETS[name]
    module, inputs = net.module(), net.inputs()
    try:
        with torch.no_grad():
            script = torch.jit.script(module) if way == "scripted" else torch.jit.trace(module, inputs)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        pytest.skip(f"torch can't: {error}")
    assert_same_files(script, inputs, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("way", ["scripted", "traced"])
@pytest.mark.parametrize("name", ZOO)
def test_both_roads_of_the_zoo(name: str, way: str, tmp_path: Path) -> None:
    module, x = ZOO[name].build(), ZOO[name].example(1, 96, 96)
    script = torch.jit.script(module) if way == "scripted" else torch.jit.trace(module, x, strict=False)  # type: ignore[no-untyped-call]
    file = FileSource(saved(script, tmp_path))
    assert bundles(ScriptModuleSource(script), Settings("cpu"), [x]) == bundles(file, Settings("cpu"), [x])


class Mode(Enum):
    SMALL = "small"
    LARGE = "large"


class Enumerations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mode = Mode.LARGE
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.mode == Mode.LARGE:
            x = self.layer(x)
        if self.mode.name != "LARGE":
            x = x * 0
        return x + len(self.mode.value)


@torch.jit.interface
class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pass


class Stored(nn.Module):
    """Its state is a tuple, which its class puts into attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.rand(3)
        self.count = 3

    @torch.jit.export
    def __getstate__(self):
        return (self.weight, self.count, self.training)

    @torch.jit.export
    def __setstate__(self, state: tuple[Tensor, int, bool]):
        self.weight = state[0]
        self.count = state[1]
        self.training = state[2]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.count


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Nested(nn.Module):
    """Lists and dictionaries of modules, an interface, a module that restores itself."""

    chosen: Layer

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.ModuleList([Inner(), Inner()])
        self.named = nn.ModuleDict({"u": Inner()})
        self.chosen = Inner()
        self.stored = Stored()

    def forward(self, x: Tensor) -> Tensor:
        for module in self.row:
            x = module(x)
        for module in self.named.values():
            x = module(x)
        return self.stored(self.chosen.forward(x))


class Unions(nn.Module):
    def forward(self, x: Tensor, k: Union[int, float] = 2, z: Optional[Union[int, Tensor]] = None):  # noqa: UP007, UP045
        if isinstance(k, int):
            x = x + k
        if z is not None:  # noqa: SIM102 - what is read is a nest
            if isinstance(z, Tensor):
                x = x + z
        return x


@pytest.mark.parametrize("make", [Enumerations, Stored, Nested, Unions])
def test_language(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(3)
    script, x = torch.jit.script(make().eval()), torch.rand(2, 3)
    source = FileSource(saved(script, tmp_path))
    torch.testing.assert_close(source.caller()([x]), script(x))
    defaults = source.program.metadata.get("defaults", {}).get("forward", {})
    torch.testing.assert_close(Interpreter(source.program).run("forward", [x, *defaults.values()]), script(x))
    assert not source.program.attributes


class Trained(nn.Module):
    """What only training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return self.norm(x) + self.steps


class Tied(nn.Module):
    """A constant that is a view of what the method writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.zeros(4))
        self.register_buffer("part", self.whole[:2])
        self.register_buffer("apart", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        self.whole.add_(1)
        return x + self.part + self.apart


def file_program(module: nn.Module) -> Program:
    return frozen(read_model(io.BytesIO(torch.jit.script(module).save_to_buffer())))


def test_what_only_training_changes_is_constant() -> None:
    program = file_program(Trained())
    assert not program.attributes
    assert not any(node.op.endswith("add_") for node in program.methods["forward"].walk())


def test_views_of_what_is_written_stay_attributes() -> None:
    program = file_program(Tied())
    assert set(program.attributes) == {"whole", "part"}
    whole, part = (program.attributes[name].value for name in ("whole", "part"))
    assert whole.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()


class Files(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.from_file("made.bin", True, 4)


class Seeds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return x


class Saves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, "made.bin")
        return x


@pytest.mark.parametrize(
    ("make", "name"), [(Files, "aten::from_file"), (Seeds, "aten::manual_seed"), (Saves, "aten::save")]
)
def test_operators_that_reach_beyond_their_arguments(
    make: Callable[[], nn.Module], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = torch.jit.script(make())
    with pytest.raises(BundleError, match=f"the operator {name}.* reaches beyond its arguments"):
        read_model(io.BytesIO(script.save_to_buffer()))
    assert not list(tmp_path.iterdir())


class Restores(nn.Module):
    """What ran when torch loaded such a file."""

    @torch.jit.export
    def __getstate__(self):
        return torch.zeros(2), self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[Tensor, bool]):
        torch.save(state[0], "made.bin")
        self.training = state[1]

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_code_that_restores_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = torch.jit.script(Restores()).save_to_buffer()
    with pytest.raises(BundleError, match=r"__setstate__ does more than store attributes .*torch\.save"):
        read_model(io.BytesIO(data))
    assert not list(tmp_path.iterdir())


def test_unpreserved_methods_are_not_read() -> None:
    class Beside(nn.Module):
        @torch.jit.export
        def other(self, x: Tensor) -> Tensor:
            return torch.jit.wait(torch.jit.fork(torch.relu, x))

        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    script = torch.jit.script(Beside())
    assert list(program_from_script_module(script).methods) == ["forward"]


def _text(content: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(content)


_OTHERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "state_dict": (lambda path: torch.save({"w": torch.zeros(2)}, path), "a state_dict: weights without"),
    "module": (
        lambda path: torch.save(nn.Linear(2, 2), path),
        "a whole object pickled .*torch.nn.modules.linear.Linear",
    ),
    "legacy": (
        lambda path: torch.save({"w": torch.zeros(2)}, path, _use_new_zipfile_serialization=False),
        "a checkpoint of torch.save in the form of before 1.6",
    ),
    "pt2": (lambda path: torch.export.save(torch.export.export(nn.ReLU(), (torch.rand(2),)), path), "torch.export"),
    "flatbuffer": (lambda path: path.write_bytes(b"\x40\0\0\0PTMF" + bytes(64)), "the flatbuffer is damaged"),
    "safetensors": (lambda path: path.write_bytes(b'\x10\0\0\0\0\0\0\0{"w":{}}      '), "a safetensors file"),
    "onnx": (lambda path: path.write_bytes(b"\x08\x07\x12\x07pytorch\x1a\x032.0"), "an ONNX model"),
    "empty": (_text(""), "is empty"),
    "ncnn": (_text("7767517\n75 83\nInput data 0 1 data\n"), "a network of ncnn; .*the model that it was made from"),
    "openvino": (_text('<?xml version="1.0"?>\n<net name="m" version="11">\n</net>'), "a network of OpenVINO"),
    "page": (_text("<!DOCTYPE html>"), "a page of HTML"),
    "lfs": (_text("version https://git-lfs.github.com/spec/v1\n"), "a pointer of Git LFS"),
    "folder": (lambda path: path.mkdir(), "is a folder"),
}


@pytest.mark.parametrize("kind", _OTHERS)
def test_other_files_are_named(kind: str, tmp_path: Path) -> None:
    make, message = _OTHERS[kind]
    make(tmp_path / "file.pt")
    with pytest.raises(BundleError, match=message):
        FileSource(tmp_path / "file.pt")
