"""Constants without dimensions as operands: the result has the dtype that a number leaves it."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from pass_harness import apply, program_of
from torch import Tensor
from torch.jit.mobile import _load_for_lite_interpreter

from mobopt import optimize_for_mobile
from mobopt.passes.facts import Examples
from mobopt.passes.number_operands import NumberOperands

TEXT = """
graph(%self : __torch__.M,
      %x : Tensor):
  %c : Tensor = prim::Constant[value=<Tensor>]()
  %one : int = prim::Constant[value=1]()
  %y : Tensor = aten::{op}
  return (%y)
"""
CALLS = {
    "add": "add(%x, %c, %one)",
    "sub": "sub(%x, %c, %one)",
    "mul": "mul(%x, %c)",
    "div": "div(%x, %c)",
}


def rewritten(op: str, constant: Tensor, example: Tensor | None) -> bool:
    examples = Examples() if example is None else Examples({"forward": (example,)})
    program = program_of(TEXT.format(op=op), {"c": constant})
    apply(NumberOperands(examples), program)
    node = program.methods["forward"].block.nodes[-1]
    assert isinstance(node.inputs[1].constant, Tensor) is (node.overload != "Scalar")
    return node.overload == "Scalar"


@pytest.mark.parametrize("name", CALLS)
def test_an_operand_becomes_a_number(name: str) -> None:
    program = program_of(TEXT.format(op=CALLS[name]), {"c": torch.tensor(0.5, dtype=torch.float64)})
    text, notes = apply(NumberOperands(Examples({"forward": (torch.arange(5),)})), program)
    assert text.startswith(f"%y : Tensor = aten::{name}(%x, %")
    node = program.methods["forward"].block.nodes[-1]
    assert node.qualified_op == f"aten::{name}.Scalar" and node.inputs[1].constant == 0.5
    why = "its constant operand is a number, which leaves the dtype to the other operand"
    assert notes == [f"number_operands: aten::{name} %y {why}"]


def test_where_it_matters() -> None:
    half, two, yes = torch.tensor(0.5, dtype=torch.float64), torch.tensor(2), torch.tensor(True)
    call = CALLS["mul"]
    assert rewritten(call, half, None), "nothing is known"
    assert rewritten(call, half, torch.arange(5)), "float64 otherwise"
    assert rewritten(call, half, torch.tensor(2.0)), "neither has dimensions: float64 otherwise"
    assert rewritten(call, two, torch.tensor(2, dtype=torch.int32)), "int64 otherwise"
    assert rewritten(call, two, torch.ones(3, dtype=torch.bool))
    assert not rewritten(call, half, torch.rand(5, 3))
    assert not rewritten(call, two, torch.arange(5, dtype=torch.uint8))
    assert not rewritten(call, two, torch.rand(5))
    assert not rewritten(call, yes, torch.arange(5)), "a bool is no number"
    assert not rewritten(call, torch.tensor([0.5], dtype=torch.float64), torch.arange(5)), "it has a dimension"
    assert not rewritten("pow(%x, %c)", half, torch.arange(5))


class _Grid(torch.nn.Module):
    """Centers of cells, as detectors make them; and a mean that is scaled."""

    def forward(self, x: Tensor) -> Any:
        rows, columns = torch.arange(x.shape[2]) + 0.5, torch.arange(x.shape[3]) + 0.5
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), 0)
        return x + grid[None], grid, x.mean() * 0.25 - 1, x.to(torch.int32) / 4


@pytest.mark.parametrize("is_saved_first", [False, True])
@pytest.mark.parametrize("has_examples", [False, True])
def test_both_loaders_give_the_dtypes_of_the_model(is_saved_first: bool, has_examples: bool) -> None:
    x = torch.rand(1, 2, 5, 7)
    model = torch.jit.trace(_Grid(), x)  # type: ignore[no-untyped-call]
    expected = model(x)
    if is_saved_first:  # which loses that constants were numbers
        file = io.BytesIO()
        torch.jit.save(model, file)  # type: ignore[no-untyped-call]
        model = torch.jit.load(io.BytesIO(file.getvalue()))  # type: ignore[no-untyped-call]
    optimized = optimize_for_mobile(model, backend="cpu", example_inputs=[x] if has_examples else None)
    scripted, lite = io.BytesIO(), io.BytesIO(optimized._save_to_buffer_for_lite_interpreter())
    optimized.save(scripted)
    scripted.seek(0)
    for found in (torch.jit.load(scripted)(x), _load_for_lite_interpreter(lite)(x), optimized(x)):  # type: ignore[no-untyped-call]
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype == torch.float32
            assert torch.equal(one, other)


class _Buffers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("wide", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * self.wide, x.sum() - self.wide


@pytest.mark.parametrize("how", [torch.jit.script, lambda module: torch.jit.trace(module, torch.arange(6))])
def test_attributes_are_no_numbers(how: Any) -> None:
    """In lite files; the full loader takes every such constant for a number, in files of ``torch.jit.freeze`` too."""
    optimized = optimize_for_mobile(how(_Buffers().eval()), example_inputs=[torch.arange(6)])
    lite = _load_for_lite_interpreter(io.BytesIO(optimized._save_to_buffer_for_lite_interpreter()))  # type: ignore[no-untyped-call]
    assert [found.dtype for found in lite(torch.arange(6))] == [torch.float64, torch.float64]


def test_our_runtime_takes_them() -> None:
    """Tensors of float64 would be refused at the border of the GPU."""
    x = torch.rand(1, 2, 5, 7)
    optimized = optimize_for_mobile(torch.jit.trace(_Grid(), x), backend="vulkan", example_inputs=[x])  # type: ignore[no-untyped-call]
    for one, other in zip(optimized(x), _Grid()(x), strict=True):
        torch.testing.assert_close(one, other)


class _Positions(torch.nn.Module):
    """Positions that are scaled: constants alone, and those of an input, before a layer with weights of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm(torch.arange(5) * 0.5), self.norm(x.long() * 1.5)


@pytest.mark.parametrize("has_examples", [False, True])
def test_folding_and_examples_know_the_numbers(has_examples: bool) -> None:
    x = torch.tensor([True, False, True, True, False])
    model = torch.jit.trace(_Positions(), x)  # type: ignore[no-untyped-call]
    optimized = optimize_for_mobile(model, example_inputs=[x] if has_examples else None)
    for found, expected in zip(optimized(x), _Positions()(x), strict=True):
        torch.testing.assert_close(found, expected)


class _Quotients(torch.nn.Module):
    """Numbers in operators other than the four that PyTorch's interpreter knows, and in front."""

    def forward(self, x: Tensor, one: Tensor) -> list[Tensor]:
        changed = one * 1
        changed *= -1.5
        return [
            torch.div(x, 1e-3, rounding_mode="floor"),
            torch.floor_divide(x, 1.5),
            2.5 // (x.abs() + 1),
            3 // (one.to(torch.int8) + 2),
            torch.floor_divide(one.half(), 0.25),
            changed,
        ]


@pytest.mark.parametrize("target", [{"backend": "vulkan", "runtime": "mobopt"}, {"backend": "cpu"}])
@pytest.mark.parametrize("has_examples", [False, True])
def test_a_module_that_was_just_traced_knows_its_numbers(has_examples: bool, target: dict[str, str]) -> None:
    given = torch.tensor([-7, 0, 5, 11]), torch.tensor(0.75)
    model = torch.jit.trace(_Quotients(), given)  # type: ignore[no-untyped-call]
    optimized = optimize_for_mobile(model, example_inputs=list(given) if has_examples else None, **target)
    for found, expected in zip(optimized(*given), _Quotients()(*given), strict=True):
        torch.testing.assert_close(found, expected)


class _Scaled(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 0.5) * torch.tensor(0.25, dtype=x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.float16])
def test_constants_of_any_dtype_beside_numbers(dtype: torch.dtype) -> None:
    x = torch.arange(5.0).to(dtype)
    optimized = optimize_for_mobile(torch.jit.trace(_Scaled(), x), backend="cpu", example_inputs=[x])  # type: ignore[no-untyped-call]
    torch.testing.assert_close(optimized(x), _Scaled()(x))
