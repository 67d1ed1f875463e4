"""Executables that take and give arrays, and two calls of one executable in flight."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from engine_shaders import chain, engine_shaders, engine_spirv, scale, tensor  # noqa: F401

from mobopt.errors import DeviceError, InputError
from mobopt.runtimes.vulkan.engine import buffers
from mobopt.runtimes.vulkan.engine import lane as lane_module
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.array_memory import ArrayPool
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Copy, HostCall, Stream
from mobopt.runtimes.vulkan.engine.tensor import StorageKind
from mobopt.runtimes.vulkan.engine.transfers import Transfers


def with_arrays(device: Device, stream: Stream) -> Executable:
    """An executable with nothing but arrays."""
    return Executable(device, stream, range(len(stream.inputs)), range(len(stream.outputs)))


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (7, 0, 2), (33,), (3, 5, 7)])
def test_a_chain_of_executables_copies_nothing(any_road: Device, sizes: tuple[int, ...]) -> None:
    first, second = with_arrays(any_road, chain(3, *sizes)), with_arrays(any_road, chain(2, *sizes))
    assert not [operation for operation in first._staged.operations if isinstance(operation, Copy)]
    x = torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)
    array = DeviceArray.from_tensor(any_road, x)
    transfers = any_road.shared(Transfers)
    before = transfers.uploads, transfers.downloads
    for _ in range(3):
        (middle,) = first.run([array])
        (result,) = second.run([middle])
    assert (transfers.uploads, transfers.downloads) == before
    assert isinstance(result, DeviceArray)
    assert torch.equal(result.tensor(), x + 5)
    assert torch.equal(middle.tensor(), x + 3)
    assert torch.equal(array.tensor(), x)
    first.close()
    second.close()
    assert torch.equal(result.tensor(), x + 5)


def test_results_are_new_each_time(any_road: Device) -> None:
    executable = with_arrays(any_road, chain(1, 9))
    kept = [executable.run([torch.full((9,), float(number))])[0] for number in range(lane_module.MAX_RECORDINGS + 4)]
    for number, array in enumerate(kept):
        assert torch.equal(array.tensor(), torch.full((9,), number + 1.0))
    (recorded,) = executable._owned.lanes
    assert len(recorded._recordings) == lane_module.MAX_RECORDINGS
    executable.close()


def test_commands_are_recorded_once_for_the_same_arrays(any_road: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = with_arrays(any_road, chain(2, 40))
    x = DeviceArray.from_tensor(any_road, torch.ones(40))
    result = executable.run([x])
    result = executable.run([x])  # beside the result before
    monkeypatch.setattr(lane_module.Lane, "_record", None)
    for _ in range(4):
        result = executable.run([x])
    assert torch.equal(result[0].tensor(), torch.full((40,), 3.0))
    executable.close()


def test_outputs_that_have_no_storage_of_their_own(any_road: Device) -> None:
    """An input, a constant, one storage twice, a part of a temporary, and one that is read later."""
    weights = tensor(StorageKind.CONSTANT, 8)
    weights.storage.data = torch.arange(8.0)
    x, y, z = (tensor(kind, 8) for kind in (StorageKind.INPUT, StorageKind.OUTPUT, StorageKind.OUTPUT))
    wide = tensor(StorageKind.TEMPORARY, 8)
    stream = Stream([scale(x, wide, 2.0), scale(wide, y, 3.0), scale(y, z, 1.0, 1.0)], [x])
    stream.outputs = [x, weights, y, y.view((2, 4), (4, 1)), wide.view((4,), (1,), 4), z]
    values = torch.randn(8, generator=torch.Generator().manual_seed(1))
    wanted = [values, torch.arange(8.0), values * 6, (values * 6).reshape(2, 4), (values * 2)[4:], values * 6 + 1]
    for arrays in ([0, 1, 2, 3, 4, 5], [2], [3], [0, 5], []):
        for given in ([0], []):
            executable = Executable(any_road, stream, given, arrays)
            found = executable.run([values])
            assert [index for index, value in enumerate(found) if isinstance(value, DeviceArray)] == arrays
            memories = {value.memory for value in found if isinstance(value, DeviceArray)}
            assert len(memories) == len(arrays)
            for value, expected in zip(found, wanted, strict=True):
                torch.testing.assert_close(value.tensor() if isinstance(value, DeviceArray) else value, expected)
            executable.close()


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.bool, torch.uint8])
def test_dtypes_go_through(any_road: Device, dtype: torch.dtype) -> None:
    x = tensor(StorageKind.INPUT, 5, dtype=dtype)
    executable = with_arrays(any_road, Stream([], [x], [x]))
    values = torch.tensor([0, 1, 0, 1, 1]).to(dtype)
    (result,) = executable.run([values])
    assert isinstance(result, DeviceArray)
    assert result.tensor().dtype == dtype
    assert torch.equal(result.tensor(), values)
    executable.close()


def test_views_and_other_dtypes_are_made_dense(any_road: Device) -> None:
    executable = with_arrays(any_road, chain(1, 3, 4))
    values = torch.arange(24.0).reshape(4, 6)
    whole = DeviceArray.from_tensor(any_road, values)
    for view in (values[:, 1:4].T, values[::2].reshape(3, 4), values[1:, 2:]):
        if view.untyped_storage().data_ptr() == values.untyped_storage().data_ptr():
            given = whole.as_strided(view.shape, view.stride(), view.storage_offset())
        else:
            given = DeviceArray.from_tensor(any_road, view)
        assert torch.equal(executable.run([given])[0].tensor(), view + 1)
    integers = DeviceArray.from_tensor(any_road, torch.arange(12).reshape(3, 4))
    assert torch.equal(executable.run([integers])[0].tensor(), torch.arange(12).reshape(3, 4) + 1.0)
    with pytest.raises(InputError, match=r"\(4, 6\) was given where the plan takes \(3, 4\)"):
        executable.run([whole])
    executable.close()


def test_arrays_where_the_host_takes_part(any_road: Device) -> None:
    x, y = tensor(StorageKind.INPUT, 4, 6), tensor(StorageKind.OUTPUT, 4, 6)
    stream = Stream([HostCall(lambda values: (values.cumsum(0),), (x,), (y,), "cumsum")], [x], [y])
    values = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))
    executable = with_arrays(any_road, stream)
    for _ in range(2):
        torch.testing.assert_close(executable.run([values])[0].tensor(), values.cumsum(0))
    executable.close()


def test_arrays_live_as_long_as_a_call_needs_them(device: Device) -> None:
    gc.collect()
    pool = device.shared(ArrayPool)
    before = pool.live_bytes
    executable = with_arrays(device, chain(2, 5000))
    call = executable.begin([DeviceArray.from_tensor(device, torch.ones(5000))])
    assert pool.live_bytes >= before + 40000
    (result,) = call.finish()
    assert pool.live_bytes < before + 40000
    assert torch.equal(result.tensor(), torch.full((5000,), 3.0))
    del result, call
    assert pool.live_bytes == before
    executable.close()


@pytest.mark.parametrize("arrays", [False, True])
def test_two_calls_in_flight(any_road: Device, arrays: bool) -> None:
    executable = with_arrays(any_road, chain(4, 100)) if arrays else Executable(any_road, chain(4, 100))
    for _ in range(3):
        calls = [executable.begin([torch.full((100,), number)]) for number in (1.0, 2.0)]
        for number, call in zip((2.0, 1.0), reversed(calls), strict=True):
            (value,) = call.finish()
            found = value.tensor() if isinstance(value, DeviceArray) else value
            assert torch.equal(found, torch.full((100,), number + 4))
    assert len(executable._owned.lanes) == 2
    executable.close()


def test_one_call_at_a_time_takes_one_lane(device: Device) -> None:
    executable = Executable(device, chain(2, 10))
    for _ in range(3):
        executable.begin([torch.ones(10)]).finish()
        executable.run([torch.ones(10)])
    assert len(executable._owned.lanes) == 1
    executable.close()


def test_a_third_call_waits_for_one_of_two(device: Device) -> None:
    executable = Executable(device, chain(2, 10))
    calls = [executable.begin([torch.full((10,), number)]) for number in (0.0, 1.0)]
    found: list[torch.Tensor] = []
    third = threading.Thread(target=lambda: found.extend(executable.run([torch.full((10,), 5.0)])))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    calls[0].finish()
    third.join(30)
    assert torch.equal(found[0], torch.full((10,), 7.0))
    assert torch.equal(calls[1].finish()[0], torch.full((10,), 3.0))
    executable.close()


def test_memory_for_one_call_only(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = Executable(device, chain(2, 10))
    allocate = buffers._allocate
    full = lambda device, scope, nbytes, types, action: allocate(device, scope, nbytes, [], action)  # noqa: E731
    call = executable.begin([torch.zeros(10)])
    monkeypatch.setattr(buffers, "_allocate", full)
    found: list[torch.Tensor] = []
    other = threading.Thread(target=lambda: found.extend(executable.run([torch.ones(10)])))
    other.start()
    other.join(0.05)
    call.finish()
    other.join(30)
    assert torch.equal(found[0], torch.full((10,), 3.0))
    executable.close()


def test_closing_waits_for_calls_in_flight(device: Device) -> None:
    executable = Executable(device, chain(2, 10))
    call = executable.begin([torch.zeros(10)])
    closing = threading.Thread(target=executable.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    assert torch.equal(call.finish()[0], torch.full((10,), 2.0))
    closing.join(30)
    assert not executable.is_open
    with pytest.raises(DeviceError, match="closed"):
        executable.begin([torch.zeros(10)])


def test_a_call_that_can_not_begin_leaves_its_lane(device: Device) -> None:
    executable = Executable(device, chain(2, 10))
    for _ in range(3):
        with pytest.raises(InputError):
            executable.begin([torch.zeros(11)])
    assert torch.equal(executable.run([torch.zeros(10)])[0], torch.full((10,), 2.0))
    executable.close()
