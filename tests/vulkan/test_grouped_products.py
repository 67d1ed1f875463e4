"""Products of rows with the matrix of their group, beside torch's own."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram


class Grouped(nn.Module):
    def forward(self, rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(rows, matrices, offs=ends)


@pytest.mark.parametrize(
    "ends", [(2, 5, 13), (0, 13, 13), (13, 13, 13), (0, 0, 2), (1, 2, 3), (3, 3, 3), (0, 0, 0, 0, 5), (7,)]
)
def test_each_row_meets_the_matrix_of_its_group(ends: tuple[int, ...], device: Device) -> None:
    torch.manual_seed(0)
    rows, matrices = torch.randn(ends[-1], 8), torch.randn(len(ends), 8, 12)
    given = [rows, matrices, torch.tensor(ends, dtype=torch.int32)]
    expected = torch.cat(
        [part @ matrix for part, matrix in zip(rows.tensor_split(list(ends[:-1])), matrices, strict=True)]
    )
    traced = torch.jit.trace(Grouped(), given, check_trace=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    torch.testing.assert_close(program.run("forward", given), expected)
    assert not program.plan_report(given).fallbacks
    last = torch.tensor([0] * (len(ends) - 1) + [len(rows)], dtype=torch.int32)
    others = [rows, matrices, last]
    torch.testing.assert_close(program.run("forward", others), rows @ matrices[-1])


class OfTransformers(nn.Module):
    def forward(self, rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        result: Tensor = torch.ops.transformers.grouped_mm_fallback(rows, matrices, ends)
        return result


@pytest.fixture(scope="module")
def operator_of_transformers() -> None:
    """What transformers registers, or, where it isn't installed, the same by its definition."""
    if find_spec("transformers"):
        importlib.import_module("transformers.integrations.moe")
        return

    def definition(rows: Tensor, matrices: Tensor, offs: Tensor) -> Tensor:
        output, start = rows.new_zeros(rows.size(0), matrices.size(2)), 0
        for matrix, end in zip(matrices, offs.tolist(), strict=True):
            output[start:end] = rows[start:end] @ matrix
            start = end
        return output

    schema = "(Tensor input, Tensor weight, Tensor offs) -> Tensor"
    operator = torch.library.custom_op("transformers::grouped_mm_fallback", definition, mutates_args=(), schema=schema)
    operator.register_fake(lambda rows, matrices, offs: rows.new_empty(rows.size(0), matrices.size(2)))


@pytest.mark.usefixtures("operator_of_transformers")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("count", "ends"),
    [
        (13, (2, 5, 13)),
        (13, (0, 7, 7)),
        (3, (0, 0, 0, 0)),
        (2, (0, 1, 1, 2)),
        (5, (7,)),
        (11, (5, 3, 7)),
        (3, (1, 5, 2, 9)),
    ],
)
def test_rows_of_no_group_are_zeros(count: int, ends: tuple[int, ...], dtype: torch.dtype, device: Device) -> None:
    torch.manual_seed(0)
    given = [torch.randn(count, 7), torch.randn(len(ends), 7, 11), torch.tensor(ends, dtype=dtype)]
    traced = torch.jit.trace(OfTransformers(), given, check_trace=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    torch.testing.assert_close(program.run("forward", given), OfTransformers()(*given))
    assert not program.plan_report(given).fallbacks


class Inverted(nn.Module):
    def forward(self, x: Tensor, order: Tensor) -> Tensor:
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.size(0))
        return x[inverse]


def test_memory_that_nobody_wrote_has_no_large_integers(device: Device) -> None:
    given = [torch.arange(7.0), torch.tensor([3, 0, 6, 2, 5, 1, 4])]
    torch.full((7,), 2**62)  # what is given back may be what ``empty`` gets
    traced = torch.jit.trace(Inverted(), given, check_trace=False)  # type: ignore[no-untyped-call]
    program = VulkanProgram(program_from_script_module(traced), device)
    assert torch.equal(program.run("forward", given), Inverted()(*given))
    assert not program.plan_report(given).fallbacks
