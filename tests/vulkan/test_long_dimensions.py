"""Dimensions longer than one invocation may walk: values against float64.

The tolerance is relative to the largest element of the float64 result (of the indices: none): 1e-6 for what adds up,
which is 16 roundings of float32, 4e-6 for products of matrices, as torch's own float32 is no nearer there.
"""

from __future__ import annotations

import pytest
import torch
from harness import run_op, torch_operator
from products import check_product
from sampling import sampled

from mobopt.ir.nests import map_leaves
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.lowerings import convolution
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings

load_lowerings()


def check(device, op, *args, relative=1e-6, **kwargs):
    """Compare with torch in float64."""
    wide = map_leaves(args, torch.Tensor, lambda x: x.double() if x.is_floating_point() else x)
    expected = torch_operator(f"aten::{op}")(*wide, **kwargs)
    wanted = expected if isinstance(expected, (list, tuple)) else [expected]
    for found, reference in zip(run_op(device, f"aten::{op}", *args, **kwargs), wanted, strict=True):
        assert found.shape == reference.shape
        if not reference.is_floating_point():
            assert torch.equal(found, reference), op
            continue
        assert torch.isfinite(found).all(), op
        error = (found.double() - reference).abs().max() / reference.abs().max()
        assert error <= relative, f"{op}: {error:.1e}"


@pytest.fixture(params=["cpu", "gpu"])
def either(request, device, monkeypatch):
    """The choices for CPU drivers, and those for GPUs, on a CPU driver."""
    if request.param == "gpu":
        monkeypatch.setattr(DeviceInfo, "is_cpu", property(lambda self: False))
    return device


@pytest.fixture
def random():
    return torch.Generator().manual_seed(7)


def test_ones_are_counted(either):
    check(either, "sum.dim_IntList", torch.ones(70_000, 2), [0], relative=0)
    check(either, "sum", torch.ones(300_000), relative=0)
    check(either, "sum", torch.ones(300_007, dtype=torch.int32), relative=0)
    check(either, "mean", torch.full((1_000_003,), 0.1))


@pytest.mark.parametrize("dims", [[2, 3], [0, 1, 2, 3], [1, 3]])
def test_images(either, random, dims):
    x = torch.rand(1, 3, 641, 643, generator=random)
    check(either, "mean.dim", x, dims)
    check(either, "amax", x, dims, relative=0)
    check(either, "var.correction", x, dims)


def test_dimensions_that_no_view_makes_one(either, random):
    x = torch.rand(43, 52, 64, generator=random)[1:, 1:, :61]
    for dims in ([0, 1, 2], [0, 2]):
        check(either, "sum.dim_IntList", x, dims)
        check(either, "var_mean.correction", x, dims)
    check(either, "argmax", x)


def test_expanded_and_reversed_layouts(either, random):
    x = torch.rand(7, 3, 10_007, generator=random)
    check(either, "sum.dim_IntList", x.permute(2, 0, 1), [0])
    check(either, "sum.dim_IntList", torch.rand(10_007, 1, generator=random).expand(10_007, 9), [0, 1])
    check(either, "cumsum", x.permute(2, 1, 0), 0)


@pytest.mark.parametrize("op", ["var", "std"])
def test_spread_far_from_zero(either, random, op):
    check(either, op, 1e6 + torch.randn(1_000_003, generator=random), True)
    check(either, f"{op}.correction", 1e6 + torch.randn(5, 70_001, generator=random), [1], correction=3)
    check(either, f"{op}_mean.correction", 1e6 + torch.randn(13, 211, generator=random), [1])


def test_statistics_of_normalisations_far_from_zero(either, random):
    """Mean and reciprocal deviation; a normalised element is a difference of elements, whose rounding stays."""
    x = 1e4 + torch.randn(2, 6, 100, 101, generator=random)
    rows = 1e4 + torch.randn(2, 100_003, generator=random)
    assert_statistics(run_op(either, "aten::native_layer_norm", rows, [100_003], None, None, 1e-5), rows, [1])
    found = run_op(either, "aten::native_group_norm", x, None, None, 2, 6, 10_100, 3, 1e-5)
    assert_statistics(found, x.reshape(2, 3, -1), [2])


def assert_statistics(found, groups, dims):
    variance, mean = torch.var_mean(groups.double(), dims, correction=0)
    for result, wanted in zip(found[1:], (mean, torch.rsqrt(variance + 1e-5)), strict=True):
        torch.testing.assert_close(result.flatten().double(), wanted.flatten(), rtol=1e-6, atol=0)
    normalised = (groups.double() - mean.unsqueeze(-1)) * torch.rsqrt(variance + 1e-5).unsqueeze(-1)
    # Half a unit of the mean's last place, in deviations.
    assert (found[0].double().reshape(groups.shape) - normalised).abs().max() < 1e-3


def test_normalisations(either, random):
    x = torch.randn(1, 2, 300, 301, generator=random)
    check(either, "instance_norm", x, None, None, None, None, True, 0.1, 1e-5, False, relative=2e-6)
    check(either, "rms_norm", x.reshape(2, -1), [90_300], relative=2e-6)


@pytest.mark.parametrize("order", [0, 1, 2, 3, float("inf")])
def test_norms(either, random, order):
    check(either, "linalg_vector_norm", 1e4 + torch.randn(100_003, generator=random), order)


def test_softmax(either, random):
    x = torch.randn(131_071, generator=random)
    check(either, "softmax.int", x, 0)
    check(either, "log_softmax.int", x, 0)
    check(either, "logsumexp", x, [0])
    check(either, "softmax.int", torch.randn(2, 40_009, generator=random), 1)  # few rows, each long for a workgroup


def test_softmax_along_columns_of_many(either, random):
    check(either, "softmax.int", torch.randn(9_001, 7, generator=random), 0)


@pytest.mark.parametrize("size", [70_000, 1_000_000])
def test_running_sums(either, random, size):
    check(either, "cumsum", torch.rand(size, generator=random), 0)
    check(either, "cumsum", torch.ones(size, dtype=torch.int64), 0)


def test_running_products(either, random):
    """A product has as many roundings as factors, so these are few enough."""
    check(either, "cumprod", 1 + 1e-3 * torch.randn(5_003, 3, generator=random), 0, relative=5e-5)
    check(either, "prod", 1 + 1e-3 * torch.randn(20_011, generator=random), relative=5e-4)


def test_running_sums_pass_infinities_on(either):
    x = torch.ones(5_000)
    x[3_000] = float("inf")
    (found,) = run_op(either, "aten::cumsum", x, 0)
    assert torch.equal(found, x.cumsum(0))


def test_the_first_of_equal_elements(either, random):
    x = torch.randint(0, 50, (1_000_003,), generator=random)
    check(either, "argmax", x)
    check(either, "argmin", x.float())
    check(either, "max.dim", x.reshape(1, -1).float(), 1)
    late = torch.zeros(1_000_003)
    late[700_001:] = 1
    check(either, "argmax", late)
    check(either, "argmax", torch.randn(70_001, 3, generator=random), 0)


def test_nan_is_the_largest(either):
    x = torch.ones(100_003)
    x[[50_000, 70_000]] = float("nan")
    assert run_op(either, "aten::argmax", x)[0].item() == 50_000
    assert run_op(either, "aten::amax", x, [0])[0].isnan()


def test_truth(either):
    x = torch.zeros(300_007)
    x[299_999] = 1
    for op in ("any", "all"):
        check(either, op, x > 0.5)
        check(either, op, x < 0.5)


PRODUCTS = [
    ("dot", (300_007,), (300_007,)),
    ("linear", (2, 300_007), (3, 300_007)),
    ("mm", (3, 300_007), (300_007, 5)),
    ("bmm", (2, 3, 70_001), (2, 70_001, 2)),
]


@pytest.mark.parametrize("op, left, right", PRODUCTS, ids=[op for op, *_ in PRODUCTS])
def test_products(either, random, op, left, right):
    a, b = torch.randn(left, generator=random), torch.randn(right, generator=random)
    check(either, op, a, b, relative=4e-6)


def test_product_with_an_epilogue_and_constant_weights(either, random):
    a, b = torch.randn(3, 70_001, generator=random), torch.randn(5, 70_001, generator=random)
    check_product(either, "aten::linear", a, b, torch.randn(5, generator=random), constants=(1, 2))


def test_convolutions(either, random, monkeypatch):
    monkeypatch.setattr(convolution, "road_of", lambda *_: None)  # the kernel that convolutions have if all else fails
    x, weight = torch.randn(1, 40_001, 2, 3, generator=random), torch.randn(3, 40_001, 2, 2, generator=random)
    check(either, "conv2d", x, weight, relative=4e-6)
    check_product(either, "aten::conv2d", x, weight, torch.randn(3, generator=random), constants=(1, 2))
    wide = torch.randn(1, 2, 301, 303, generator=random), torch.randn(2, 2, 300, 301, generator=random)
    check(either, "conv2d", *wide, relative=4e-6)


def test_many_batches(device, random):
    a, b = torch.randn(70_000, 2, 3, generator=random), torch.randn(70_000, 3, 1, generator=random)
    check(device, "bmm", a, b)
    check(device, "baddbmm", torch.randn(70_000, 2, 1, generator=random), a, b)


def test_many_rows(device, random):
    weight, bias = torch.randn(2, 3, generator=random), torch.randn(2, generator=random)
    check(device, "linear", torch.randn(600_011, 3, generator=random), weight, bias)
    check(device, "softmax.int", torch.randn(300_007, 3, generator=random), 1)
    check(device, "index_select", weight, 0, torch.randint(0, 2, (600_011,), generator=random))


POOLS = [
    ("avg_pool2d", (301, 303), [200, 201], [50, 51], [7, 9], True, False),
    ("avg_pool2d", (301, 303), [200, 201], [50, 51], [7, 9], False, True),
    ("avg_pool2d", (131, 129), [101, 103], [1, 1], [50, 51]),
    ("avg_pool2d", (301, 303), [200, 201], [50, 51], [0, 0], False, True, 7),
    ("avg_pool3d", (31, 33, 35), [21, 22, 23], [5, 5, 5], [3, 0, 2]),
    ("avg_pool1d", (70_001,), [20_001], [9_973], [100], False, False),
    ("max_pool2d", (301, 303), [200, 201], [50, 51], [7, 9]),
    ("max_pool2d", (131, 129), [101, 103], [1, 1], [50, 51]),
    ("max_pool2d", (301, 303), [70, 71], [9, 8], [0, 0], [3, 2]),
    ("max_pool1d", (70_001,), [20_001], [9_973], [100]),
    ("adaptive_avg_pool2d", (401, 403), [3, 2]),
    ("adaptive_avg_pool1d", (70_001,), [3]),
]


@pytest.mark.parametrize("op, space, arguments", sampled([(op, space, rest) for op, space, *rest in POOLS], one_in=2))
def test_large_windows(device, random, op, space, arguments):
    check(device, op, torch.randn(2, 3, *space, generator=random), *arguments)


WITH_INDICES = [("max_pool2d_with_indices", [200, 201], [50, 51], [7, 9]), ("adaptive_max_pool2d", [3, 2])]


@pytest.mark.parametrize("op, arguments", [(op, rest) for op, *rest in WITH_INDICES])
def test_indices_of_large_windows(device, random, op, arguments):
    x = torch.randint(0, 9, (2, 3, 301, 303), generator=random).float()  # many are equal
    check(device, op, x, *arguments, relative=0)


def test_resampling_from_many_places(device, random):
    x = torch.rand(1, 2, 700, 601, generator=random)
    for op in ("_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa"):
        check(device, op, x, [3, 2], False, relative=4e-6)


@pytest.mark.sweep
def test_sixteen_million(either, random):
    x = torch.rand(16 * 2**20 + 3, generator=random)
    check(either, "sum", x)
    check(either, "var", x, True)
    check(either, "argmax", x)
    check(either, "linalg_vector_norm", x)
