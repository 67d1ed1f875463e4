"""What ``torch.vmap`` does in exported programs: masks of transformers are made by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.errors import UnsupportedError
from mobopt.frontends.exported import transforms
from mobopt.frontends.exported.exported_program import ExportedProgramSource
from mobopt.frontends.open_source import source_of
from mobopt.runtimes.cpu import Interpreter

pytestmark = pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
wrapped = pytest.importorskip("torch._dynamo._trace_wrapped_higher_order_op")
pytest.importorskip("torch._functorch.predispatch", reason="older releases export what vmap comes to")


class Masked(nn.Module):
    """A mask by places of queries and keys, as transformers' ``masking_utils`` make it."""

    def __init__(self, by_index: bool) -> None:
        super().__init__()
        self.by_index = by_index
        self.register_buffer("steps", torch.arange(1.0, 14.0))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        places, steps = torch.arange(x.size(1)), self.steps

        def counts(query: Tensor, key: Tensor) -> Tensor:
            return (steps[query] + steps[key] > 4.0) | (query == key) if self.by_index else query >= key

        every = torch.vmap(torch.vmap(counts, in_dims=(None, 0)), in_dims=(0, None))
        with wrapped.TransformGetItemToIndex():
            mask = every(places, places)
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask) * self.calls


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("by_index", [False, True])
def test_vmap_is_what_it_comes_to(by_index: bool, is_strict: bool) -> None:
    x = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(1))
    exported = torch.export.export(Masked(by_index), (x,), strict=is_strict)
    targets = [str(node.target) for node in exported.graph.nodes]
    source = ExportedProgramSource(exported)
    assert [str(node.target) for node in exported.graph.nodes] == targets  # the caller's own stays as it is
    interpreter, model = Interpreter(source.program), Masked(by_index)
    for _ in range(2):
        expected = model(x)
        torch.testing.assert_close(interpreter.run("forward", [x]), expected)
    torch.testing.assert_close(source.caller()([x]), Masked(by_index)(x))


def test_steps_within_a_block_of_the_program() -> None:
    """Export makes graphs of their own of what runs without gradients."""

    class Inner(Masked):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                found = super().forward(x)
            return found * 2.0

    x = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(1))
    exported = torch.export.export(Inner(False), (x,))
    interpreter = Interpreter(ExportedProgramSource(exported).program)
    torch.testing.assert_close(interpreter.run("forward", [x]), Inner(False)(x))


class Cached(Masked):
    """A cache that is a buffer and a constant of the program, as in wrappers of transformers' StaticCache."""

    def __init__(self) -> None:
        super().__init__(by_index=True)
        self.layers = [torch.zeros(2, 7, 8)]
        self.register_buffer("keys", self.layers[0], persistent=False)

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        self.layers[0].index_copy_(1, place, x)
        return super().forward(self.layers[0])


def test_caches_stay_state() -> None:
    x, place = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([3])
    interpreter = Interpreter(ExportedProgramSource(torch.export.export(Cached(), (x, place))).program)
    model = Cached()
    for number in (3, 0, 6):
        place = torch.tensor([number])
        torch.testing.assert_close(interpreter.run("forward", [x, place]), model(x, place))


def test_steps_without_an_end_are_refused() -> None:
    exported = torch.export.export(Masked(False), (torch.randn(2, 7, 8),))
    for node in list(exported.graph.nodes):
        if getattr(node.target, "__name__", "") == "_vmap_decrement_nesting":
            exported.graph.erase_node(node)
    with pytest.raises(UnsupportedError, match=r"none of torch\.vmap"):
        ExportedProgramSource(exported)


def test_what_can_not_be_traced_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(function: object) -> None:
        raise RuntimeError("no rule\nat all")

    exported = torch.export.export(Masked(False), (torch.randn(2, 7, 8),))
    monkeypatch.setattr(transforms, "make_fx", fail)
    with pytest.raises(UnsupportedError, match=r"torch\.vmap does in the exported program: no rule$"):
        ExportedProgramSource(exported)


def test_open_sizes_stay_open() -> None:
    x = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(1))
    exported = torch.export.export(Masked(False), (x,), dynamic_shapes=({1: torch.export.Dim("length", min=2, max=9)},))
    interpreter, model = Interpreter(ExportedProgramSource(exported).program), Masked(False)
    for length in (7, 3, 9):
        torch.testing.assert_close(
            interpreter.run("forward", [x[:, :1].repeat(1, length, 1)]), model(x[:, :1].repeat(1, length, 1))
        )


def test_modules_with_vmap_are_exported() -> None:
    x = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(1))
    module = optimize_for_mobile(Masked(True).eval(), example_inputs=(x,), backend="cpu")
    torch.testing.assert_close(module(x), Masked(True)(x))


def test_a_file_with_steps_of_vmap_is_refused(tmp_path: Path) -> None:
    """They name functions of Python, which no file can make us call."""
    path = tmp_path / "steps.pt2"
    torch.export.save(torch.export.export(Masked(False), (torch.randn(2, 7, 8),), strict=True), path)
    with pytest.raises(UnsupportedError, match=r"steps of torch\.vmap .*run_decompositions"):
        source_of(path)
