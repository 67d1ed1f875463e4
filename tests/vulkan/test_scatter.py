"""Elements put at places that indices say, beside torch: order, duplicates, dtypes, strides, divided lines."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from device_infos import known_device
from harness import check_op
from sampling import sampled
from torch import nn

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, contiguous_strides
from mobopt.runtimes.vulkan.kernels import scatter_kernel
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, lower
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.enumerations import Put

load_lowerings()
pytestmark = pytest.mark.filterwarnings("ignore:index_reduce")

EXACT = 1e-9
_RANDOM = torch.Generator().manual_seed(0)


def _randn(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=_RANDOM)


def _places(bound: int, *sizes: int) -> torch.Tensor:
    return torch.randint(0, bound, sizes, generator=_RANDOM)


X, SOURCE, INDEX = _randn(7, 11, 5) * 4, _randn(6, 10, 5) * 4, _places(7, 5, 9, 5)
TURNED = _randn(5, 3, 7, 11).permute(2, 3, 0, 1)
ROWS = torch.tensor([3, 0, 3, 6])
TWO, ONE = torch.tensor([[1, -2, 1], [1, 0, 1]]), torch.tensor([0, 4, 0])
MANY = _places(50, 9001)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8)

CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("scatter.src", (X, 0, INDEX, SOURCE)),
    ("scatter.src", (TURNED, -1, _places(3, 7, 10, 5, 9), _randn(5, 9, 7, 10).permute(2, 3, 0, 1))),
    ("scatter.value", (X, 0, INDEX, 2.5)),
    ("scatter_add", (X, 0, INDEX, SOURCE)),
    ("scatter_add", (X, 0, INDEX[:0], SOURCE)),
    ("scatter_add", (torch.zeros(50), 0, MANY, _randn(9001))),
    ("scatter_add", (torch.zeros(50, dtype=torch.int32), 0, MANY, MANY.int())),
    ("scatter_reduce.two", (torch.full((50,), 25, dtype=torch.int32), 0, MANY, MANY.int().flip(0), "amin")),
    ("scatter.src", (torch.zeros(50, dtype=torch.uint8), 0, MANY, MANY.flip(0).byte())),
    ("scatter.value", (torch.zeros(50, 3), 0, MANY[:700, None].expand(700, 3), 2.5)),  # in any order
    ("index_fill.int_Scalar", (torch.zeros(3, 70, dtype=torch.int32), 1, MANY[:700] - 50, 7)),
    ("index_fill.int_Scalar", (torch.zeros(3, 70).half(), 1, MANY[:700] - 50, 7.5)),
    ("index_copy", (X, 0, ROWS, _randn(4, 11, 5))),
    ("index_copy", (X > 0, 0, ROWS, _randn(4, 11, 5) > 0)),
    ("index_copy", (X, -2, ROWS[:2], _randn(5, 2, 7).permute(2, 1, 0))),
    ("index_copy", (X, 1, torch.tensor([10]), _randn(7, 1, 5))),
    ("index_copy", (TURNED, -3, torch.tensor([2]), _randn(5, 3, 7, 1).permute(2, 3, 0, 1))),
    ("index_copy", (X.half(), 0, torch.tensor([0]), _randn(1, 5, 11).half().mT)),
    ("index_copy", (X > 0, -1, torch.tensor([4]), _randn(7, 11, 1) > 0)),
    ("index_copy", (X.byte(), 0, torch.tensor([6]), SOURCE[:1, :1, :1].expand(1, 11, 5).byte())),
    ("index_copy", (X[:1, 0, 0], 0, torch.tensor([0]), torch.tensor([2.0]))),
    ("index_fill.int_Scalar", (X, 1, torch.tensor([-11]), 7)),
    ("index_fill.int_Scalar", (X.char(), 0, torch.tensor([3]), 2.75)),
    ("index_fill.int_Tensor", (X, 2, torch.tensor(-1), torch.tensor(3))),
    ("index_fill.int_Scalar", (X, 2, torch.tensor([-1, 0]), 7)),
    ("index_fill.int_Tensor", (X, 2, torch.tensor([-1, 0]), torch.tensor(3.0))),
    ("scatter.src", (torch.tensor(1.0), 0, torch.tensor(0), torch.tensor(2.0))),
    ("index_copy", (torch.tensor(1.0), 0, torch.tensor(0), torch.tensor(2.0))),
    ("index_add", (torch.tensor(1.0), 0, torch.tensor(0), torch.tensor(2.0))),
    ("slice_scatter", (X, _randn(7, 4, 5), 1, 2, 9, 2)),
    ("slice_scatter", (X.half(), _randn(7, 3, 5).half(), 1, -3)),
    ("select_scatter", (X, _randn(7, 5), 1, -2)),
    ("diagonal_scatter", (X.char(), _randn(11, 4).char(), -1, 2, 0)),
]


@pytest.fixture(params=[False, True], ids=["walked", "sorted"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CPUs walk lines, and as GPUs bring equal indices together; whatever the device."""
    monkeypatch.setattr(scatter_kernel, "_ORDERED", 1)
    is_ordered = scatter_kernel._is_ordered

    def answered(device: Any, tensors: Any) -> bool:
        return request.param and is_ordered(known_device("nvidia_h200"), tensors)

    monkeypatch.setattr(scatter_kernel, "_is_ordered", answered)


@pytest.mark.usefixtures("road")
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_put_at_places(any_device, number):
    op, args = CALLS[number]
    check_op(any_device, f"aten::{op}", *args, relative=EXACT)


def test_older_names_of_combinations(any_device):
    check_op(any_device, "aten::scatter.reduce", X, 0, INDEX, SOURCE, reduce="multiply", relative=EXACT)
    check_op(any_device, "aten::scatter.value_reduce", X, 0, INDEX, 2.5, reduce="add", relative=EXACT)


@pytest.mark.usefixtures("road")
@pytest.mark.parametrize("dtype", sampled(DTYPES, one_in=2))
def test_what_is_there_is_combined(any_device, dtype):
    """Element by element in torch's order, and rounded where torch does."""
    x, source, rows = X.to(dtype), SOURCE.to(dtype), (_randn(7, 4, 5) * 4).to(dtype)
    for how in ("sum", "prod", "mean", "amax", "amin"):
        for includes in (True, False):
            operands = (x, 0, INDEX, source, how)
            check_op(any_device, "aten::scatter_reduce.two", *operands, include_self=includes, relative=EXACT)
            if how != "sum":
                check_op(any_device, "aten::index_reduce", x, 1, ROWS, rows, how, include_self=includes, relative=EXACT)
    check_op(any_device, "aten::index_add", x, 1, ROWS, rows, relative=EXACT)
    check_op(any_device, "aten::index_add", x, 1, ROWS, rows, alpha=2, relative=EXACT)


@pytest.mark.usefixtures("road")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int8])
@pytest.mark.parametrize("accumulate", [False, True])
def test_indices_of_several_dimensions(any_device, dtype, accumulate):
    x = X.to(dtype)
    for indices, sizes in (
        ([TWO, None, ONE], (2, 3, 11)),
        ([None, TWO, ONE], (7, 2, 3)),
        ([None, TWO], ()),
        ([ONE], (5,)),
        ([TWO, TWO, ONE], (3,)),
        ([TWO[:, :0]], (11, 5)),
    ):
        values = (_randn(*sizes) * 5).to(dtype)
        check_op(any_device, "aten::index_put", x, indices, values, accumulate, relative=EXACT)


@pytest.mark.usefixtures("road")
def test_runs_of_equal_indices(any_device, monkeypatch):
    """That are divided among dispatches; of lines that share them, and of such that don't."""
    monkeypatch.setattr(scatter_kernel, "_RUN", 37)
    rows, own = _places(5, 211), _places(5, 211, 7)
    source, x = _randn(211, 7), _randn(5, 7)
    for op, args in (
        ("index_add", (x, 0, rows, source)),
        ("scatter_add", (x, 0, rows[:, None].expand(211, 7), source)),
        ("scatter_add", (x, 0, own, source)),
        ("scatter_add", (x.T.contiguous(), 1, own.T, source.T)),
        ("scatter_reduce.two", (x.half(), 0, own, source.half(), "prod")),
        ("scatter.src", (x, 0, own, source)),
        ("index_copy", (x.char(), 0, rows, (source * 9).char())),
    ):
        check_op(any_device, f"aten::{op}", *args, relative=EXACT)


class Adding(nn.Module):
    """Rows at places that are not known before."""

    def forward(self, x: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, places, rows)


@pytest.mark.usefixtures("road")
@pytest.mark.parametrize("wrong", [-1, 7])
def test_indices_out_of_range(any_device, wrong):
    program = VulkanProgram(program_from_script_module(torch.jit.script(Adding())), any_device)
    rows = _randn(4, 11, 5)
    assert torch.equal(program(X, ROWS, rows), X.index_add(0, ROWS, rows))
    places = ROWS.clone()
    places[2] = wrong
    with pytest.raises(InputError, match=r"index -?\d is out of bounds"):
        program(X, places, rows)


def test_many_lines_of_indices_are_walked(monkeypatch):
    """Sorting takes longer than walking where many lines have indices of their own, not where they share them."""
    h200 = known_device("nvidia_h200")

    def shaders_of(indices):
        plan = Plan(h200)
        target, source = (
            DeviceTensor(Storage(4 * math.prod(sizes)), torch.float32, sizes, contiguous_strides(sizes))
            for sizes in ((100, 600), tuple(indices.shape))
        )
        places = DeviceTensor(Storage(4 * indices.numel()), torch.int64, tuple(indices.shape), indices.stride())
        scatter_kernel.scatter_along(plan, target, source, places, 0, Put.ADD)
        return {dispatch.shader for dispatch in plan.stream.operations}

    assert "scatter_ordered" in shaders_of(_places(100, 80, 1).expand(80, 600))
    assert "scatter_ordered" in shaders_of(_places(100, 80, 500))
    assert shaders_of(_places(100, 80, 600)) == {"scatter"}
    assert shaders_of(_places(100, 63, 1).expand(63, 600)) == {"scatter"}


@pytest.mark.usefixtures("road")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_sums_of_many_elements(any_device, dtype):
    """Which torch rounds at each step or once, by the operator, the dimension and the dtype of its indices."""
    x, rows = (_randn(3, 7, 5) * 4).to(dtype), (_randn(5003, 7, 5) * 2 + 1).to(dtype)
    index = _places(2, 5003) + (torch.arange(5003) % 97 == 0)
    every, few = (index.view(-1, 1, 1).expand(5003, 7, size) for size in (5, 3))  # the other columns get nothing
    for includes in (True, False):
        check_op(
            any_device, "aten::scatter_reduce.two", x, 0, every, rows, "mean", include_self=includes, relative=EXACT
        )
        check_op(any_device, "aten::scatter_reduce.two", x, 0, few, rows, "mean", include_self=includes, relative=EXACT)
        check_op(any_device, "aten::index_reduce", x, 0, index, rows, "mean", include_self=includes, relative=EXACT)
    check_op(any_device, "aten::scatter_add", x, 0, every, rows, relative=EXACT)
    check_op(any_device, "aten::index_add", x, 0, index.int(), rows, relative=EXACT)
    check_op(any_device, "aten::index_add", x, 0, index, rows, alpha=2, relative=EXACT)
    for dim in range(3):
        turned = [tensor.movedim(0, dim).contiguous() for tensor in (x, rows)]
        check_op(any_device, "aten::index_add", turned[0], dim, index, turned[1], relative=EXACT)
    check_op(any_device, "aten::index_add", x[:, 0, 0], 0, index, rows[:, 0, 0], relative=EXACT)


def test_a_mean_sorts_its_indices_once() -> None:
    x, rows = (Value.of_tensor(torch.float32, (count, 64)) for count in (100, 5000))
    places = Value.of_tensor(torch.int64, (5000,))
    plan = Plan(known_device("nvidia_h200"))
    for value in (x, rows, places):
        plan.place(value, plan.empty(value.sizes, value.dtype))
    result = Value.of_tensor(torch.float32, x.sizes)
    lower(plan, Node.call("aten::index_reduce", (x, 0, places, rows, "mean", False), (result,)))
    shaders = [dispatch.shader for dispatch in plan.stream.operations]
    assert shaders.count("sort") == 1 and shaders.count("scatter_ordered") == 1
