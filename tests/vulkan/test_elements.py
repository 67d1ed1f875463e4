"""Elements of storages: what they take, how they are read, rounded and written, and that float32 pays nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from applied import Applied
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.stream import Dispatch, HostCall, Stream
from mobopt.runtimes.vulkan.engine.tensor import Storage, element_type
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.program import VulkanProgram

HALVES = (torch.float16, torch.bfloat16)
NARROW = (*HALVES, torch.int16, torch.int8, torch.uint8, torch.bool)


def _run(device: Device, function: Callable[..., Any], *args: torch.Tensor) -> Any:
    traced = torch.jit.trace(Applied(function), args, check_trace=False)
    return VulkanProgram(program_from_script_module(traced), device, fallback="error")(*args)


def _stream(device: Device, module: nn.Module, *args: torch.Tensor) -> Stream:
    program = program_from_script_module(torch.jit.trace(module.eval(), args, check_trace=False))
    return build_stream(specialize(program, "forward", args), device.info, ConstantStore()).stream


def _dispatches(stream: Stream) -> list[Dispatch]:
    return [operation for operation in stream.operations if isinstance(operation, Dispatch)]


def _storages(stream: Stream) -> Iterator[Storage]:
    for dispatch in _dispatches(stream):
        yield from (binding.storage for binding in dispatch.bindings)


def _same(result: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether elements are the same, NaN whatever its bits."""
    if result.dtype != wanted.dtype or result.shape != wanted.shape:
        return False
    return torch.equal(result.isnan(), wanted.isnan()) and torch.equal(result.nan_to_num(9.5), wanted.nan_to_num(9.5))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_half_is_read_and_written(any_device: Device, dtype: torch.dtype) -> None:
    """By whole vec4s, by single elements that share words with others, and as every third one."""
    halves = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    for function in (
        lambda x: (x.float(), x.neg()),
        lambda x: (x[1:-2].float(), x[1:-2].neg()),
        lambda x: (x[::3].float(), torch.stack([x, x.abs()], 1)),
    ):
        for result, wanted in zip(_run(any_device, function, halves), function(halves), strict=True):
            assert _same(result, wanted)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_stores_round_to_the_nearest_half(any_device: Device, dtype: torch.dtype) -> None:
    """Floats of any bits, and those that lie half-way between two halves, on which ties are seen."""
    generator = torch.Generator().manual_seed(3)
    halves = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).float()
    between = (halves + halves.roll(1)) / 2
    anything = torch.randint(-(2**31), 2**31 - 1, (2**16,), generator=generator).to(torch.int32).view(torch.float32)
    for floats in (between, anything, anything[:-3]):
        assert _same(_run(any_device, lambda x: x.to(dtype), floats), floats.to(dtype))


@pytest.mark.parametrize("dtype", NARROW[2:], ids=str)
def test_integers_wrap_where_they_are_stored(any_device: Device, dtype: torch.dtype) -> None:
    numbers = torch.arange(-70_000, 70_000, 7, dtype=torch.int32)
    for function in (
        lambda x: x.to(dtype),
        lambda x: x[1:].to(dtype).to(torch.int32),
        lambda x: x.to(dtype).reshape(-1, 8).t()[1:, ::3],
    ):
        assert torch.equal(_run(any_device, function, numbers), function(numbers))


@pytest.mark.parametrize("dtype", (torch.float32, torch.int32, *NARROW), ids=str)
def test_parts_that_share_words_are_joined(any_device: Device, dtype: torch.dtype) -> None:
    """Parts of odd lengths end within words, which several dispatches then write."""
    generator = torch.Generator().manual_seed(4)
    parts = [torch.randint(0, 2, (3, length), generator=generator).to(dtype) for length in (1, 2, 3, 5, 7)]
    assert torch.equal(_run(any_device, lambda *each: torch.cat(each, 1), *parts), torch.cat(parts, 1))
    chosen = torch.tensor([4, 0, 2, 2, 1])
    rows = parts[3].t().contiguous()
    assert torch.equal(_run(any_device, torch.embedding, rows, chosen), torch.embedding(rows, chosen))
    assert torch.equal(_run(any_device, lambda x: x.flip(0).roll(2), rows), rows.flip(0).roll(2))


def test_sums_of_bools_are_not_counted_in_bytes(any_device: Device) -> None:
    """Also where a long sum is made of sums of parts."""
    ones = torch.ones(300_000, dtype=torch.bool)
    assert _run(any_device, lambda x: x.sum(), ones).item() == ones.numel()
    assert _run(any_device, lambda x: x[:1001].cumsum(0), ones)[-1].item() == 1001
    values, indices = _run(any_device, lambda x: x.logical_not().max(0), ones)
    assert not values and indices == 0


class _Net(nn.Module):
    """Layers whose kernels read and write elements of any type themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 18, 3, padding=1)
        self.depthwise = nn.Conv2d(18, 18, 3, padding=1, groups=18)
        self.second = nn.Conv2d(18, 18, 1)
        self.up = nn.ConvTranspose2d(18, 8, 2, 2)
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) to probabilities (N, 5)."""
        x = nn.functional.relu6(self.first(x))
        x = nn.functional.silu(x + self.second(self.depthwise(x)))
        x = nn.functional.max_pool2d(self.up(x), 2)
        return self.last(x.mean((2, 3))).softmax(1)


def _net(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(5)
    return _Net().to(dtype).eval(), torch.rand(2, 3, 10, 12).to(dtype)


_LENGTHS = {"product_tiles": 17, "product_shared": 21, "product_rows": 19, "product_sum": 14, "depthwise": 20}
_PRODUCTS = {name + texels: length for name, length in _LENGTHS.items() for texels in ("", "_texels")}
_PRODUCTS["product_broadcast"] = _LENGTHS["product_tiles"]
"""The shaders of products, and their specialization constants without FORMS."""


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_net_of_halves_takes_half_the_bytes_and_no_more_dispatches(device: Device, dtype: torch.dtype) -> None:
    wide, narrow = (_dispatches(_stream(device, *_net(each))) for each in (torch.float32, dtype))
    assert len(narrow) <= len(wide)
    products = [each for each in narrow if each.shader in _PRODUCTS]
    assert [each.shader for each in products] == [each.shader for each in wide if each.shader in _PRODUCTS]
    for dispatch in products:
        activations, weights, _, _, result = (binding.storage for binding in dispatch.bindings)
        assert weights.elements == result.elements == dtype
        assert activations.elements in (dtype, torch.float32)  # the mean's kernel gives what it has summed


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_net_of_halves_is_as_close_to_float32_as_torch(device: Device, dtype: torch.dtype) -> None:
    """But for another rounding or two."""
    net, x = _net(dtype)
    with torch.no_grad():
        wanted = net(x)
        exact = net.float()(x.float())
        result = VulkanProgram(program_from_script_module(torch.jit.trace(_net(dtype)[0], x)), device)(x)
    limit = 2 * (wanted.float() - exact).abs().max() + torch.finfo(dtype).eps * exact.abs().max()
    assert (result.float() - exact).abs().max() <= limit


def test_float32_has_no_forms(device: Device) -> None:
    """Dispatches on float32 are those of a runtime that knows nothing else: no shader is told of another form."""
    stream = _stream(device, *_net(torch.float32))
    assert {storage.elements for storage in _storages(stream)} == {torch.float32}
    products = [each for each in _dispatches(stream) if each.shader in _PRODUCTS]
    assert len(products) >= 5
    for dispatch in products:
        assert len(dispatch.specialization) == _PRODUCTS[dispatch.shader]


@pytest.mark.parametrize("dtype", (torch.float32, torch.int32, *NARROW), ids=str)
def test_what_crosses_to_the_device_takes_its_true_size(device: Device, dtype: torch.dtype) -> None:
    x = torch.zeros(6, 4).to(dtype)
    stream = _stream(device, Applied(lambda value: value.t().contiguous().flip(0)), x)
    assert not any(isinstance(operation, HostCall) for operation in stream.operations)
    for exchanged in (*stream.inputs, *stream.outputs):
        assert isinstance(getattr(exchanged, "storage", None), Storage)
        assert exchanged.storage.nbytes == x.numel() * element_type(dtype).itemsize  # type: ignore[union-attr]


_ROUNDED_BY_STORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "layer_norm": lambda x: nn.functional.layer_norm(x, x.shape[-2:]),
    "group_norm": lambda x: nn.functional.group_norm(x, 3),
    "softmax": lambda x: x.softmax(1),
    "avg_pool2d": lambda x: nn.functional.avg_pool2d(x, 3, 2),
    "interpolate": lambda x: nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear"),
}


@pytest.mark.parametrize("name", _ROUNDED_BY_STORES)
def test_results_are_rounded_where_they_are_written(device: Device, name: str) -> None:
    """No dispatch of its own rounds what such an operator gives, and it is the nearest half of what float32 gives."""
    function, generator = _ROUNDED_BY_STORES[name], torch.Generator().manual_seed(6)
    x = torch.rand(2, 6, 7, 9, generator=generator).half()
    wide, narrow = (_dispatches(_stream(device, Applied(function), each)) for each in (x.float(), x))
    assert [dispatch.shader for dispatch in narrow] == [dispatch.shader for dispatch in wide]
    assert torch.equal(_run(device, function, x), _run(device, function, x.float()).half())
