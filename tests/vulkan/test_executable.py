from __future__ import annotations

import gc
import threading
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from engine_shaders import chain, engine_shaders, engine_spirv, scale, tensor  # noqa: F401

from mobopt.errors import DeviceError, InputError
from mobopt.runtimes.vulkan.engine import buffers
from mobopt.runtimes.vulkan.engine import executable as executable_module
from mobopt.runtimes.vulkan.engine.buffer_pool import BufferPool
from mobopt.runtimes.vulkan.engine.buffers import Place
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Dispatch, HostCall, Stream, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind


@pytest.mark.parametrize("texel", [False, True])
def test_chain(any_device, texel):
    executable = Executable(any_device, chain(5, 3, 40, texel=texel))
    for _ in range(3):
        x = torch.randn(3, 40)
        (y,) = executable.run([x])
        torch.testing.assert_close(y, x + 5)
    # The results belong to the caller: a later run doesn't change them.
    kept = y.clone()
    executable.run([torch.zeros(3, 40)])
    assert torch.equal(y, kept)
    executable.close()


def test_profile_times_every_dispatch(any_device):
    executable = Executable(any_device, chain(4, 1000))
    x = torch.randn(1000)
    outputs, times = executable.profile([x])
    torch.testing.assert_close(outputs[0], x + 4)
    assert [(time.label, str(time.source)) for time in times] == [("scale 1000", "test.py:1")] * 4
    assert all(time.duration_ns > 0 for time in times)
    assert all(one.start_ns + one.duration_ns == two.start_ns for one, two in pairwise(times))
    executable.close()


def _with_constant(weights: DeviceTensor) -> Stream:
    result = tensor(StorageKind.OUTPUT, *weights.sizes)
    return Stream([scale(weights, result, 2.0)], [], [result])


def test_constants_are_uploaded_once_and_go_with_their_last_user(any_device):
    values = torch.randn(33)
    weights = tensor(StorageKind.CONSTANT, 33, name="weights")
    weights.storage.data = values
    first = Executable(any_device, _with_constant(weights))
    any_device.shared(BufferPool).free_idle()
    buffers = any_device.live_objects["Buffer"]
    second = Executable(any_device, _with_constant(weights))
    assert any_device.live_objects["Buffer"] == buffers + 1  # its arena; no second copy of the constant
    for executable in (first, second):
        torch.testing.assert_close(executable.run([])[0], values * 2)
    first.close()
    torch.testing.assert_close(second.run([])[0], values * 2)
    second.close()


def _free_what_is_left(device):
    gc.collect()
    device.shared(BufferPool).free_idle()


def test_the_memory_of_a_closed_executable_serves_smaller_ones(device):
    _free_what_is_left(device)
    Executable(device, chain(3, 100_000)).close()
    before = device.live_objects["Memory"]
    for length in (100_000, 99_991, 60_101):
        executable = Executable(device, chain(3, length))
        assert device.live_objects["Memory"] == before, length
        values = torch.randn(length, generator=torch.Generator().manual_seed(length))
        torch.testing.assert_close(executable.run([values])[0], values + 3.0)
        executable.close()
    for length in (110_000, 40_000):  # the one does not fit, the other would waste more than half
        executable = Executable(device, chain(3, length))
        assert device.live_objects["Memory"] > before, length
        executable.close()
        _free_what_is_left(device)
        Executable(device, chain(3, 100_000)).close()


def test_closing_leaves_no_object(device):
    Executable(device, chain(3, 8)).close()  # whatever test runs first makes the layouts, which stay
    _free_what_is_left(device)
    before = +device.live_objects
    executable = Executable(device, chain(3, 8))
    executable.profile([torch.zeros(8)])
    assert +device.live_objects != before
    executable.close()
    executable.close()
    device.shared(BufferPool).free_idle()
    # Layouts stay for the next plan; what another thread held of earlier tests may be gone by now.
    kept = {"PipelineLayout", "DescriptorSetLayout", "PipelineCache"}
    assert {kind for kind in device.live_objects - before if kind not in kept} == set()
    with pytest.raises(DeviceError, match="closed"):
        executable.run([torch.zeros(8)])


def test_an_executable_that_is_forgotten_is_closed(device):
    _free_what_is_left(device)
    before = device.live_objects["Memory"]
    executable = Executable(device, chain(3, 8))
    assert device.live_objects["Memory"] > before
    del executable
    _free_what_is_left(device)
    assert device.live_objects["Memory"] <= before


def test_temporaries_share_the_arena(device):
    executable = Executable(device, chain(20, 100_000))
    report = executable.memory
    assert report.peak_bytes == report.arena_bytes + report.io_bytes + report.constant_bytes
    # Inputs and outputs too, where a device has one kind of memory.
    assert report.arena_bytes <= 2 * 400_000 + 512
    assert report.io_bytes == (0 if buffers.hosts_arena(device) else 2 * 400_000)
    assert report.lower_bound_bytes == 800_000
    executable.close()


def test_host_calls_see_what_the_device_wrote_and_the_other_way_round(any_device):
    x, y = tensor(StorageKind.INPUT, 4, 6), tensor(StorageKind.OUTPUT, 4, 6)
    a, b = tensor(StorageKind.TEMPORARY, 4, 6), tensor(StorageKind.TEMPORARY, 6, 4)
    transposed = a.view((6, 4), (1, 6))
    seen = []

    def cumulative_sum(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen.append(values)
        return (values.cumsum(0),)

    stream = Stream([scale(x, a, 2.0), HostCall(cumulative_sum, (transposed,), (b,), "cumsum")], [x], [y])
    stream.append(scale(b, y, 1.0, 1.0))
    executable = Executable(any_device, stream)
    values = torch.randn(4, 6)
    for _ in range(2):
        (result,) = executable.run([values])
        torch.testing.assert_close(result.flatten(), (2 * values).T.cumsum(0).flatten() + 1)
    assert seen[0].is_contiguous()
    assert executable.host_calls == 1
    outputs, times = executable.profile([values])
    torch.testing.assert_close(outputs[0], result)
    assert [time.label for time in times if not time.label.endswith("load")] == ["scale 24", "cumsum", "scale 24"]
    executable.close()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.int32, torch.uint8])
def test_integers_cross_as_int32_and_come_back(any_device, dtype):
    x = tensor(StorageKind.INPUT, 5, dtype=dtype)
    executable = Executable(any_device, Stream([], [x], [x]))
    values = torch.tensor([0, 1, 0, 1, 1]).to(dtype)
    (result,) = executable.run([values])
    assert result.dtype == dtype
    assert torch.equal(result, values)
    executable.close()


def test_integers_over_32_bits_are_refused(device):
    x = tensor(StorageKind.INPUT, 2, dtype=torch.int64)
    executable = Executable(device, Stream([], [x], [x]))
    with pytest.raises(InputError, match="2147483648"):
        executable.run([torch.tensor([0, 2**31])])
    executable.close()


@pytest.mark.parametrize("sizes", [(), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors(any_device, sizes):
    executable = Executable(any_device, chain(2, *sizes))
    x = torch.ones(sizes)
    (y,) = executable.run([x])
    assert y.shape == x.shape
    torch.testing.assert_close(y, x + 2)
    executable.close()


@pytest.mark.parametrize("inputs", [[], [torch.zeros(3)], [torch.zeros(4), torch.zeros(4)]])
def test_wrong_inputs(device, inputs):
    executable = Executable(device, chain(1, 4))
    with pytest.raises(InputError):
        executable.run(inputs)
    executable.close()


def test_inputs_that_require_a_gradient(device):
    executable = Executable(device, chain(1, 4))
    for _ in range(2):
        (y,) = executable.run([torch.zeros(4, requires_grad=True)])
    assert not y.requires_grad
    executable.close()


def test_threads_take_turns(device):
    executable = Executable(device, chain(3, 64))
    wrong = []

    def work(number: int) -> None:
        for _ in range(20):
            (y,) = executable.run([torch.full((64,), float(number))])
            if not torch.equal(y, torch.full((64,), number + 3.0)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    executable.close()


def test_copies_through_staging_give_the_same(device, monkeypatch):
    """The road of a device across a bus, walked on lavapipe."""
    monkeypatch.setattr(executable_module, "has_fast_upload_memory", lambda device: False)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    weights = tensor(StorageKind.CONSTANT, 10)
    weights.storage.data = torch.arange(10.0)
    x, middle, y = (tensor(kind, 10) for kind in (StorageKind.INPUT, StorageKind.OUTPUT, StorageKind.OUTPUT))
    doubled = tensor(StorageKind.OUTPUT, 10)
    stream = Stream(
        [scale(x, middle, 2.0), scale(middle, y, 3.0), scale(weights, doubled, 2.0)], [x], [y, middle, doubled]
    )
    executable = Executable(device, stream)
    values = torch.randn(10)
    result = executable.run([values])
    for found, expected in zip(result, [values * 6, values * 2, torch.arange(10.0) * 2], strict=True):
        torch.testing.assert_close(found, expected)
    executable.close()


def _over_limit(dispatch_field: dict[str, object]) -> Stream:
    stream = chain(1, 64)
    stream.operations[0] = replace(stream.operations[0], **dispatch_field)
    return stream


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": (1, 70_000, 1)}, r"scale 64: 70000 workgroups in y.*maxComputeWorkGroupCount.*65535"),
        ({"push_constants": bytes(4096)}, r"4096 bytes of push constants.*maxPushConstantsSize"),
        ({"shader": "no_such_shader"}, r"no_such_shader"),
        ({"shader": "scale_half"}, r"no_such_feature"),
    ],
)
def test_limits_are_named(device, changes, message):
    with pytest.raises((DeviceError, OSError), match=message):
        Executable(device, _over_limit(changes))


def test_a_tensor_over_a_limit_is_named(device):
    limit = device.info.limits.max_storage_buffer_range
    huge = DeviceTensor(Storage(limit + 16, name="features.0"), torch.float32, (limit // 4 + 4,), (1,))
    stream = Stream([Dispatch("scale", (bind(huge, writes=True),), (1, 1, 1), 0, label="conv")])
    exceeded = rf"conv, tensor features.0: {limit + 16} bytes.*max(StorageBufferRange|MemoryAllocationSize)"
    with pytest.raises(DeviceError, match=exceeded):
        Executable(device, stream)
    large = DeviceTensor(Storage(4 * 65537), torch.float32, (65537,), (1,))
    texels = Stream([Dispatch("scale", (bind(large, texel_words=1),), (1, 1, 1), 0, label="conv")])
    small = replace(device.info, limits=replace(device.info.limits, max_texel_buffer_elements=65536))
    with pytest.raises(DeviceError, match="maxTexelBufferElements"):
        executable_module.check_limits(small, texels)


def test_exhausted_memory_is_an_error_that_leaves_nothing(device, monkeypatch):
    allocate = buffers._allocate
    full = lambda device, scope, nbytes, types, action: allocate(device, scope, nbytes, [], action)  # noqa: E731
    monkeypatch.setattr(buffers, "_allocate", full)
    _free_what_is_left(device)
    before = +device.live_objects
    exhausted = r"allocate .* MiB of (upload|device) memory.*OUT_OF_DEVICE_MEMORY.*smaller input"
    with pytest.raises(DeviceError, match=exhausted):
        Executable(device, chain(3, 1000))
    assert not device.live_objects - before


def test_the_arena_is_cut_where_one_allocation_ends(device, monkeypatch):
    limits = replace(device.info.limits, max_memory_allocation_size=100_000)
    monkeypatch.setattr(device, "info", replace(device.info, limits=limits))
    x, y = tensor(StorageKind.INPUT, 20_000), tensor(StorageKind.OUTPUT, 20_000)
    a, b, c = (tensor(StorageKind.TEMPORARY, 20_000) for _ in range(3))
    stream = Stream(
        [scale(x, a, 2.0), scale(a, b, 3.0), scale(a, c, 5.0), scale(b, c, 1.0), scale(c, y, 1.0)], [x], [y]
    )
    executable = Executable(device, stream)
    places: dict[Storage, Place] = executable._owned.lanes[0].memory.places
    assert len({id(places[one.storage].buffer) for one in (a, b, c)}) == 3
    values = torch.randn(20_000)
    torch.testing.assert_close(executable.run([values])[0], values * 6)
    executable.close()
