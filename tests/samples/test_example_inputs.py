"""Inputs that nobody gave: bundled, remembered from tracing, or guessed from the first layers."""

import io
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.bundled_inputs import augment_model_with_bundled_inputs

import mobopt
from mobopt.bundle import read_bundle
from mobopt.frontends.file_source import FileSource
from mobopt.frontends.script_module_source import ScriptModuleSource
from mobopt.samples.example_inputs import (
    ASSUMED,
    BUNDLED,
    GUESSED,
    NONE,
    TRACED,
    ChosenInputs,
    choose_inputs,
    choose_inputs_of_bundle,
)


class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 6), nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids)).softmax(-1)


class Scaled(nn.Module):
    """A model whose input goes through arithmetic before its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(5, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first((x - 0.5) * 2)


class Rows(nn.Module):
    """A linear layer of rows, which a matrix is not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).permute(0, 2, 1)


class Recurrent(nn.Module):
    """A recurrent layer without a state of the caller's."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        return self.layer(x)


def chosen(module: nn.Module) -> ChosenInputs:
    script = torch.jit.script(module.eval())
    return choose_inputs(ScriptModuleSource(script))


def source_of(script: torch.jit.ScriptModule, folder: Path) -> FileSource:
    path = folder / "model.pt"
    torch.jit.save(script, str(path))  # type: ignore[no-untyped-call]
    return FileSource(path)


@pytest.mark.parametrize(
    ("module", "sizes"),
    [
        (nn.Sequential(nn.Conv2d(6, 8, 3, groups=2)), (1, 6, 224, 224)),
        (nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 11 * 11, 3)), (1, 4, 13, 13)),
        (nn.Sequential(nn.Conv1d(7, 8, 3)), (1, 7, 224)),
        (nn.Sequential(nn.ConvTranspose2d(7, 8, 3)), (1, 7, 224, 224)),
        (nn.Sequential(nn.Linear(13, 3)), (1, 13)),
        (nn.Sequential(nn.BatchNorm2d(5), nn.Conv2d(5, 2, 1)), (1, 5, 224, 224)),
        (Scaled(), (1, 5, 224, 224)),
        (Embeds(), (1, 16)),
        (nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2)), (1, 7, 6)),
        (nn.Sequential(nn.LayerNorm([3, 4, 5])), (1, 3, 4, 5)),
        (Recurrent(nn.GRU(5, 4, batch_first=True)), (1, 7, 5)),
        (Recurrent(nn.LSTM(5, 4, 2)), (1, 7, 5)),
        (Recurrent(nn.GRUCell(5, 4)), (1, 5)),
        (Rows(), (1, 7, 6)),
    ],
)
def test_first_layers_tell(module: nn.Module, sizes: tuple[int, ...]) -> None:
    found = chosen(module)
    tells_rank = 224 in sizes or 13 in sizes[2:]  # convolutions; other layers take tensors of several ranks
    assert found.origin == (GUESSED if tells_rank else ASSUMED)
    assert found.examples.are_guessed == bool(found.examples.arguments) == tells_rank
    assert found.arguments is not None and tuple(found.arguments[0].shape) == sizes
    assert f"[{', '.join(map(str, sizes))}] ({found.origin})" in str(found)


class Product(nn.Module):
    """Nothing tells what its input is like."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + self.factor


@pytest.mark.filterwarnings("ignore:no inputs are known")
@pytest.mark.parametrize("runtime", ["1.13", "2.1", "2.6"])
@pytest.mark.parametrize("module", [Product(), nn.Linear(3, 3), nn.MultiheadAttention(3, 1)])
def test_what_is_assumed_fixes_no_rank(module: nn.Module, runtime: str) -> None:
    m = mobopt.optimize_for_mobile(torch.jit.script(module.eval()), backend="vulkan", runtime=runtime)
    for sizes in [(3,), (2, 3), (5, 2, 3)]:
        x = torch.randn(sizes, generator=torch.Generator().manual_seed(len(sizes)))
        if isinstance(module, nn.MultiheadAttention):
            if x.dim() > 1:
                torch.testing.assert_close(m(x, x, x), module(x, x, x))
        else:
            torch.testing.assert_close(m(x), module(x))


def test_a_bundle_tells_too() -> None:
    m = mobopt.optimize_for_mobile(torch.jit.script(Scaled().eval()), backend="vulkan")
    program = read_bundle(io.BytesIO(m.save_to_buffer()))
    found = choose_inputs_of_bundle(program)
    assert found.arguments is not None and tuple(found.arguments[0].shape) == (1, 5, 224, 224)


@pytest.mark.parametrize("from_file", [True, False])
def test_bundled_inputs_come_first(tmp_path: Path, from_file: bool) -> None:
    own = type(f"Scaled{from_file}", (Scaled,), {})  # inputs are bundled with a class once
    script = torch.jit.script(own().eval())
    augment_model_with_bundled_inputs(script, [(torch.zeros(1).expand(1, 5, 9, 7),)])
    found = choose_inputs(source_of(script, tmp_path) if from_file else ScriptModuleSource(script))
    assert found.origin == BUNDLED and not found.examples.are_guessed
    assert found.arguments is not None and found.arguments[0].shape == (1, 5, 9, 7)


@pytest.mark.parametrize("from_file", [True, False])
def test_traced_shapes_are_remembered(tmp_path: Path, from_file: bool) -> None:
    script = torch.jit.trace(Scaled().eval(), torch.rand(2, 5, 9, 7))
    found = choose_inputs(source_of(script, tmp_path) if from_file else ScriptModuleSource(script))
    assert found.origin == TRACED and found.arguments is not None
    assert found.arguments[0].shape == (2, 5, 9, 7) and found.arguments[0].abs().max() > 0


class Pair(nn.Module):
    def forward(self, x: tuple[torch.Tensor, int]) -> torch.Tensor:
        return x[0] * x[1]


def test_other_inputs_are_not_guessed() -> None:
    found = chosen(Pair())
    assert found.origin == NONE and found.arguments is None and not found.examples.arguments
    assert str(found) == "no inputs"
