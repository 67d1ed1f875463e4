"""Plain models as ExportedPrograms: numbers, free sizes, names, lines, state, branches, loops, and what is refused."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from golden_files import GOLDEN, PATHS, arrays, assert_expected, golden_id
from torch import nn

from mobopt.errors import InputError, UnsupportedError
from mobopt.exporters.exported_program import Exported, Sizes, exported_program
from mobopt.exporters.plain import plain_model
from mobopt.frontends.file_source import FileSource
from mobopt.frontends.torchscript import program_from_script_module


def exported(
    module: torch.jit.ScriptModule, args: Sequence[Any], sizes: Sizes = "auto", method: str = "forward"
) -> Exported:
    methods = [] if method == "forward" else [method]
    return exported_program(plain_model(program_from_script_module(module, methods)).program, method, args, sizes)


def read_again(result: Exported) -> Any:
    """The module of the file that torch writes of it."""
    buffer = io.BytesIO()
    torch.export.save(result.program, buffer)
    buffer.seek(0)
    return torch.export.load(buffer).module()


def assert_same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


_ONE = GOLDEN / "pt1.13.1/mixed/vulkan.ptl"
_LITE = [pytest.param(path, marks=() if path == _ONE else pytest.mark.sweep) for path in PATHS if path.suffix == ".ptl"]


@pytest.mark.parametrize("path", _LITE, ids=golden_id)
def test_golden_files(path: Path) -> None:
    program = plain_model(FileSource(path, None, takes_optimized=True).program).program
    inputs = arrays(path, "input")
    result = exported_program(program, "forward", inputs)
    assert not result.remark
    assert all(text.startswith("[s") or name in "hc" for name, text in result.sizes.items()), "batches stay free"
    assert_expected(read_again(result)(*inputs), path)


def test_an_older_pytorch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.8.0+cpu"))
    with pytest.raises(UnsupportedError, match=r"takes torch.export of PyTorch 2.9 or newer, and 2.8.0\+cpu is"):
        exported(torch.jit.script(nn.ReLU()), [torch.ones(2)])


class Net(nn.Module):
    """Sizes are read and computed with; an operator works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.linear = nn.Linear(6, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        z = torch.relu_(self.norm(self.conv(image)))
        z = nn.functional.interpolate(z, size=(image.shape[2] // 4, image.shape[3] // 3 + 1), mode="bilinear")
        rows = z.view(z.size(0), -1, z.size(2) * z.size(3)).mean(2)
        return self.linear(rows) + image.shape[2]


@pytest.mark.parametrize("how", ["script", "trace"])
def test_sizes_stay_free_also_where_the_example_has_one(how: str) -> None:
    module, example = Net().eval(), torch.randn(1, 3, 32, 48)
    compiled = torch.jit.script(module) if how == "script" else torch.jit.trace(module, (example,))  # type: ignore[no-untyped-call]
    result = exported(compiled, [example])
    loaded = read_again(result)
    with torch.no_grad():
        for sizes in ((1, 3, 32, 48), (3, 3, 41, 60), (2, 3, 20, 16)):
            x = torch.randn(sizes)
            assert_same(loaded(x), module(x))
    assert re.fullmatch(r"\[s\d+, 3, s\d+, s\d+\]", result.sizes["image"])


def test_weights_inputs_and_lines_keep_their_names() -> None:
    result = exported(torch.jit.script(Net().eval()), [torch.randn(2, 3, 9, 9)])
    assert {"conv.weight", "norm.running_mean", "linear.bias"} <= set(result.program.state_dict)
    assert set(result.program.graph_signature.buffers) == {"norm.running_mean", "norm.running_var"}
    nodes = {node.name: node for node in result.program.graph.nodes}
    assert "image" in nodes
    assert re.search(r"conv\.py:\d+ in conv", nodes["conv2d"].meta["stack_trace"])
    assert nodes["conv2d"].target is torch.ops.aten.conv2d.default, "operators stay whole"


def test_sizes_that_are_asked_for() -> None:
    script, x = torch.jit.script(Net().eval()), torch.randn(2, 3, 16, 16)
    assert exported(script, [x], "fixed").sizes == {"image": "[2, 3, 16, 16]"}
    result = exported(script, [x], {"image": {0: (1, 8)}})
    assert re.fullmatch(r"\[s\d+, 3, 16, 16\]", result.sizes["image"])
    (range_of_batch,) = result.program.range_constraints.values()
    assert int(range_of_batch.upper) == 8
    with pytest.raises(InputError, match=r"no input 'x'.* the inputs are image"):
        exported(script, [x], {"x": {0: (1, 8)}})
    with pytest.raises(InputError, match="has 4 dimensions; 4 is none"):
        exported(script, [x], {"image": {4: (1, 8)}})
    with pytest.raises(InputError, match="these sizes can't be free"):
        exported(script, [x], {"image": {1: (1, 8)}})


class Chosen(nn.Module):
    """A branch by elements, with layers, a number and None in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.sum() > 0:
            y, factor = self.first(x), 2
        else:
            y, factor = self.second(x).relu(), 3
        return y * factor, x


class Grown(nn.Module):
    """A loop that ends by elements, and counts."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        trips = 0
        while bool(x.sum() < 100):
            x, trips = x * 2, trips + 1
        return x, trips


class Counted(nn.Module):
    """A loop with a number of trips that an input holds, and a check of the model's own."""

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        assert bool((x > -9).all()), "too small"
        y = x
        for index in range(int(count)):
            y = y + x * index
        return y


_X = torch.linspace(0.1, 1, 12).view(3, 4)


@pytest.mark.parametrize(
    ("module", "calls"),
    [
        (Chosen(), [(_X,), (-_X,), (_X[:1],)]),
        (Grown(), [(_X,), (_X * 90,), (_X[:2] / 9,)]),
        (Counted(), [(_X, torch.tensor(3)), (_X[:2], torch.tensor(5)), (_X, torch.tensor(0))]),
    ],
)
def test_branches_and_loops_on_elements(module: nn.Module, calls: list[tuple[torch.Tensor, ...]]) -> None:
    script = torch.jit.script(module.eval())
    loaded = read_again(exported(script, calls[0]))
    with torch.no_grad():
        for call in calls:
            assert_same(loaded(*call), script(*call))


def test_a_check_of_the_model_stays() -> None:
    loaded = read_again(exported(torch.jit.script(Counted()), [_X, torch.tensor(2)]))
    with pytest.raises(RuntimeError):
        loaded(_X - 100, torch.tensor(2))


class Remembers(nn.Module):
    """State: a buffer that is written to, and one that is assigned to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        before = self.last
        self.last = x * 2
        return self.total - before


def test_state() -> None:
    script = torch.jit.script(Remembers())
    loaded = read_again(exported(script, [torch.ones(3)]))
    for number in (1.0, 5.0, -2.0):
        x = torch.full((3,), number)
        assert_same(loaded(x), script(x))


Pair = NamedTuple("Pair", [("first", torch.Tensor), ("rest", list[torch.Tensor])])  # noqa: UP014 - torch reads types


class Nests(nn.Module):
    """Containers in and out, and names that are no identifiers."""

    def forward(
        self, items: list[torch.Tensor], table: dict[str, torch.Tensor], scale: float
    ) -> tuple[Pair, dict[str, torch.Tensor], int]:
        first = items[0] + table["a"] * scale
        return Pair(first, [items[1], first]), {"b": first}, len(items)

    @torch.jit.export
    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(0)


def test_nests_and_other_methods() -> None:
    script = torch.jit.script(Nests())
    args = [[torch.ones(2), torch.zeros(3)], {"a": torch.full((2,), 3.0)}, 2.5]
    (pair, table, count) = read_again(exported(script, args))(*args)
    assert_same(pair[0], torch.full((2,), 8.5))
    assert_same(table["b"], pair[0])
    assert (len(pair[1]), count) == (2, 2)
    assert_same(read_again(exported(script, [_X], method="other"))(_X), _X.flip(0))


class Numbers(nn.Module):
    """State that is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Growing(nn.Module):
    """State whose size changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(0, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = torch.cat([self.kept, x])
        return self.kept


def test_what_can_not_be_expressed_is_named() -> None:
    with pytest.raises(UnsupportedError, match="keeps 'calls' between calls, which is no tensor"):
        exported(torch.jit.script(Numbers()), [_X])
    with pytest.raises(UnsupportedError, match="changes the shape or dtype of 'kept'"):
        exported(torch.jit.script(Growing()), [torch.ones(1, 2)])


@pytest.mark.sweep
def test_a_process_without_mobopt_reads_the_file(tmp_path: Path) -> None:
    script, x = torch.jit.script(Net().eval()), torch.randn(2, 3, 17, 20)
    torch.export.save(exported(script, [x]).program, tmp_path / "net.pt2")
    torch.save({"x": x, "y": script(x).detach()}, tmp_path / "call.pth")
    code = """
import sys, torch
call = torch.load("call.pth")
torch.testing.assert_close(torch.export.load("net.pt2").module()(call["x"]), call["y"])
assert not any(name.startswith("mobopt") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
