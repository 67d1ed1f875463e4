"""Arrays on a device: made, viewed, copied, read, counted."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy
import pytest
import torch

from mobopt.errors import DeviceError, DeviceLostError, InputError
from mobopt.runtimes.vulkan.engine import buffers
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.array_memory import ArrayPool
from mobopt.runtimes.vulkan.engine.buffer_pool import BufferPool
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.engine.transfers import Transfers


@pytest.fixture(params=[False, True], ids=["seen by the host", "across a bus"])
def any_road(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device, and the device with memory that the host doesn't see."""
    if request.param:
        pool = ArrayPool(device)
        pool._use = buffers.MemoryUse.DEVICE
        monkeypatch.setitem(device._shared, ArrayPool, pool)
    return device


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (3, 0, 2), (5,), (3, 5, 7), (2, 3, 1, 4, 1)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.bool]
)
def test_elements_come_back(any_road: Device, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    values = (torch.randn(sizes, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)
    array = DeviceArray.from_tensor(any_road, values)
    assert (array.shape, array.dtype, array.ndim) == (values.shape, dtype, len(sizes))
    found = array.tensor()
    assert found.dtype == dtype
    assert torch.equal(found, values)
    assert array.memory.is_host_visible == (any_road.shared(ArrayPool)._use is buffers.MemoryUse.UPLOAD)


def test_strided_tensors_and_views(any_road: Device) -> None:
    values = torch.arange(60.0).reshape(3, 4, 5)
    array = DeviceArray.from_tensor(any_road, values.permute(2, 0, 1)[::2])
    assert torch.equal(array.tensor(), values.permute(2, 0, 1)[::2])
    whole = DeviceArray.from_tensor(any_road, values)
    for view in (values[1:, 2], values.transpose(0, 2), values[..., 1::3], values[0, 0, :1].expand(4)):
        assert torch.equal(whole.as_strided(view.shape, view.stride(), view.storage_offset()).tensor(), view)
    assert numpy.array_equal(numpy.asarray(whole), values.numpy())
    with pytest.raises(ValueError, match="copy"):
        whole.__array__(copy=False)


def test_copies_are_made_again(any_road: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mobopt.runtimes.vulkan.engine.transfers._MAX_KEPT_BYTES", 1 << 17)
    values = torch.rand(50021, generator=torch.Generator().manual_seed(0))
    whole = DeviceArray.from_tensor(any_road, values)  # more than is kept between copies
    for _ in range(2):
        for count in (1, 7, 19000, *range(2, 23), 50021):  # more than there are commands for
            assert torch.equal(whole.as_strided((count,), (1,), 50021 - count).tensor(), values[-count:])
            assert torch.equal(DeviceArray.from_tensor(any_road, values[:count]).tensor(), values[:count])


@pytest.mark.parametrize("large", [False, True], ids=["on the device", "through the host"])
def test_copies_between_views(any_road: Device, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr("mobopt.runtimes.vulkan.engine.array._MAX_REGIONS", 1)
    values, other = torch.arange(60.0).reshape(3, 4, 5), -torch.ones(3, 4, 5)
    target, source = DeviceArray.from_tensor(any_road, values), DeviceArray.from_tensor(any_road, other)
    before = any_road.shared(Transfers).downloads
    inner, piece = values[1:, ::2], other[1:, ::2]
    target.as_strided(inner.shape, inner.stride(), inner.storage_offset()).copy_(
        source.as_strided(piece.shape, piece.stride(), piece.storage_offset())
    )
    assert (any_road.shared(Transfers).downloads > before) == large
    inner.copy_(piece)
    assert torch.equal(target.tensor(), values)
    twin = target.clone()
    target.copy_(source)
    assert torch.equal(twin.tensor(), values)
    assert torch.equal(target.tensor(), other)
    with pytest.raises(InputError, match="same shape, dtype and device"):
        target.copy_(DeviceArray.from_tensor(any_road, torch.zeros(3)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(2, dtype=torch.float64), "no elements for torch.float64"),
        (torch.zeros(2, dtype=torch.complex128), "no elements for torch.complex128"),
        (torch.zeros(2).to_sparse(), "dense"),
    ],
)
def test_what_has_no_elements_is_refused(device: Device, values: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DeviceArray.from_tensor(device, values)


def test_int64_arrays_know_their_bounds(device: Device) -> None:
    array = DeviceArray.from_tensor(device, torch.tensor([-3, 70000]))
    assert array.bounds == (-3, 70000)
    assert array.clone().bounds == (-3, 70000)
    assert DeviceArray.empty(device, (2,), torch.int64).bounds == (-(2**31), 2**31 - 1)


def test_int64_arrays_are_as_wide_as_they_must_be(any_road: Device) -> None:
    wide, narrow = (DeviceArray.from_tensor(any_road, torch.tensor(values)) for values in ([2**40, 1], [1, 2]))
    assert (wide.elements, wide.nbytes, wide.bounds) == (torch.int64, 16, (1, 2**40))
    assert (narrow.elements, narrow.nbytes) == (torch.int32, 8)
    assert wide.clone().tensor().tolist() == [2**40, 1]
    with pytest.raises(InputError, match="32 bits"):
        narrow.copy_(wide)
    assert (narrow.tensor().tolist(), narrow.bounds) == ([1, 2], (1, 2))
    wide.copy_(narrow)
    assert (wide.tensor().tolist(), wide.bounds) == ([1, 2], (1, 2))


def test_memory_goes_with_the_last_reference(device: Device) -> None:
    gc.collect()
    pool = device.shared(ArrayPool)
    before = pool.live_bytes
    array = DeviceArray.from_tensor(device, torch.ones(1000))
    view = array.as_strided((3,), (1,), 5)
    assert pool.live_bytes == before + 4096
    del array
    assert torch.equal(view.tensor(), torch.ones(3))
    assert pool.live_bytes == before + 4096
    buffers_now = device.live_objects["Buffer"]
    del view
    assert pool.live_bytes == before
    again = DeviceArray.empty(device, (990,))  # the same memory
    assert device.live_objects["Buffer"] == buffers_now
    del again


def test_idle_memory_is_bounded(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr("mobopt.runtimes.vulkan.engine.buffer_pool._MAX_IDLE_BYTES", 0)
    before = device.live_objects["Memory"]
    array = DeviceArray.empty(device, (12345,))
    assert device.live_objects["Memory"] > before
    del array
    assert device.live_objects["Memory"] <= before


def test_exhausted_memory_frees_what_is_idle_first(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    DeviceArray.empty(device, (54321,))
    pool = device.shared(BufferPool)
    allocate, refused = buffers._allocate, []

    def scarce(device: Device, scope: object, nbytes: int, types: object, action: str) -> object:
        if pool._idle_bytes:
            refused.append(nbytes)
            return allocate(device, scope, nbytes, [], action)
        return allocate(device, scope, nbytes, types, action)

    monkeypatch.setattr(buffers, "_allocate", scarce)
    array = DeviceArray.empty(device, (65432,))
    assert refused
    monkeypatch.setattr(
        buffers, "_allocate", lambda device, scope, nbytes, types, action: allocate(device, scope, nbytes, [], action)
    )
    with pytest.raises(DeviceError, match=r"allocate .* MiB.*OUT_OF_DEVICE_MEMORY"):
        DeviceArray.empty(device, (76543,))
    del array


def test_an_array_of_a_closed_device_says_so(device: Device) -> None:
    device = open_device(device.info.name, validation=False)
    array = DeviceArray.from_tensor(device, torch.ones(3))
    device.close()
    assert not any(device.live_objects.values())
    with pytest.raises(DeviceError, match="is closed; copy arrays to the CPU before that"):
        array.tensor()
    del array


def test_an_array_of_a_lost_device_says_so(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    array = DeviceArray.from_tensor(device, torch.ones(3))
    monkeypatch.setattr(device.in_use, "is_lost", True)
    with pytest.raises(DeviceLostError, match="was lost, and its elements with it"):
        array.tensor()


def test_a_named_device_without_unified_memory_gives_memory_of_its_own(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    assert ArrayPool(device)._use is buffers.MemoryUse.DEVICE


@pytest.fixture
def seen_device(device: Device) -> Device:
    """A device whose memory the host sees."""
    if not buffers.hosts_arena(device):
        pytest.skip(f"the host doesn't see the memory of {device.info.name}")
    return device


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("sizes", [(), (0,), (3, 5, 2)])
def test_dlpack_shares_memory_that_the_host_sees(
    seen_device: Device, dtype: torch.dtype, sizes: tuple[int, ...]
) -> None:
    values = torch.randint(0, 2, sizes, generator=torch.Generator().manual_seed(0)).to(dtype)
    array = DeviceArray.from_tensor(seen_device, values)
    assert array.__dlpack_device__() == (1, 0)
    seen = torch.from_dlpack(array)
    assert torch.equal(seen, values)
    seen.fill_(1)
    assert torch.equal(array.tensor(), torch.ones(sizes, dtype=dtype))
    if len(sizes) == 3:
        view = array.as_strided((2, 3), (1, 2), 4)
        assert torch.equal(torch.from_dlpack(view), values.fill_(1).as_strided((2, 3), (1, 2), 4))
    again = DeviceArray.from_dlpack(seen_device, values.numpy())
    assert torch.equal(again.tensor(), values)


def test_dlpack_keeps_the_memory(seen_device: Device) -> None:
    gc.collect()
    before = seen_device.shared(ArrayPool).live_bytes
    seen = numpy.from_dlpack(DeviceArray.from_tensor(seen_device, torch.arange(300.0)))
    assert seen_device.shared(ArrayPool).live_bytes > before
    assert seen_device.is_lending
    assert numpy.array_equal(seen, numpy.arange(300.0))
    del seen
    assert seen_device.shared(ArrayPool).live_bytes == before
    assert not seen_device.is_lending


def test_dlpack_outlives_the_device(seen_device: Device) -> None:
    other = open_device(seen_device.info.name, validation=False)
    seen = torch.from_dlpack(DeviceArray.from_tensor(other, torch.arange(300.0)))
    other.close()
    assert not other.is_open
    assert torch.equal(seen + 0, torch.arange(300.0))
    again = open_device(seen_device.info.name, validation=False)
    assert again is not other
    assert torch.equal(DeviceArray.from_tensor(again, seen).tensor(), torch.arange(300.0))


def test_what_dlpack_can_not_give(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    if buffers.hosts_arena(device):
        integers = DeviceArray.from_tensor(device, torch.arange(3))
        with pytest.raises(BufferError, match=r"elements of torch.int32 there; copy it with tensor\(\)"):
            torch.from_dlpack(integers)
        assert integers.__dlpack__(copy=True) is not None
    with pytest.raises(InputError, match="a str can't be read through DLPack"):
        DeviceArray.from_dlpack(device, "text")
    pool = ArrayPool(device)
    pool._use = buffers.MemoryUse.DEVICE
    with monkeypatch.context() as patch:
        patch.setitem(device._shared, ArrayPool, pool)
        hidden = DeviceArray.from_tensor(device, torch.ones(3))
        with pytest.raises(BufferError, match="memory that the CPU doesn't see"):
            torch.from_dlpack(hidden)
    del hidden
    pool.close()
