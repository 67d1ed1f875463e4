"""Results that lie as halves: the host gets these and widens them, arrays hold the floats that their dtype says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Value
from mobopt.ir.nests import leaves_of
from mobopt.options import PrecisionChoice
from mobopt.runtimes.bounds import InputBounds
from mobopt.runtimes.half_ranges import ValueRanges
from mobopt.runtimes.specialize import specialize
from mobopt.runtimes.vulkan import mirrors as mirrors_module
from mobopt.runtimes.vulkan.call_plan import on_host
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.compile.precision import Halving
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Copy, Dispatch, Stream, moved_bytes
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.mirrors import Mirrors
from mobopt.runtimes.vulkan.program import VulkanProgram

FP16 = PrecisionChoice.of("fp16")
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def numbers(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(len(sizes)))


def seeded(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module.eval()


def program_of(module: nn.Module, device: Device, **options: object) -> VulkanProgram:
    script = torch.jit.script(seeded(module))
    return VulkanProgram(program_from_script_module(script), device, precision=FP16, **options)  # type: ignore[arg-type]


# Streams: all that is returned lies as halves.


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], list[Tensor]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.function(x)


VIEWS: dict[str, tuple[Callable[[Tensor], list[Tensor]], tuple[int, ...]]] = {
    "one": (lambda y: [y], ()),
    "rows": (lambda y: [y], (7,)),
    "pairs": (lambda y: [y], (3, 5)),
    "image": (lambda y: [y], (1, 3, 7, 5)),
    "images": (lambda y: [y], (2, 5, 3, 11)),
    "volume": (lambda y: [y], (2, 3, 1, 5, 7)),
    "transposed": (lambda y: [y.transpose(0, 1)], (5, 13)),
    "permuted": (lambda y: [y.permute(2, 0, 3, 1)], (3, 5, 1, 7)),
    "from an odd place": (lambda y: [y[1:]], (4, 7)),
    "columns": (lambda y: [y[:, 1:6]], (3, 7)),
    "every third": (lambda y: [y[::3, 2]], (11, 3)),
    "seen again": (lambda y: [y.expand(3, 5, 7)], (5, 1)),
    "many single halves": (lambda y: [y.t()], (67, 101)),
    "parts": (lambda y: [*y.unbind(1)], (5, 3, 7)),
    "read later": (lambda y: [y, y[1:] * 2.0, y.t() - 1.0], (3, 5)),
    "joined": (lambda y: [torch.cat([y, torch.tanh(y)], 1), y], (3, 5)),
}


def lowered(
    device: Device, function: Callable[[Tensor], list[Tensor]], x: Tensor, precision: str, as_arrays: bool
) -> tuple[Stream, list[Tensor]]:
    """What is built of a function whose results may lie as halves, and what it gives."""
    program = program_from_script_module(torch.jit.trace(Function(function), x))
    segment = specialize(program, "forward", [x])
    halving = Halving(precision, (), ValueRanges(), lambda: [torch.ones_like(x)])
    halving.observed = lambda value: True

    def arrays() -> list[Value]:
        return segment.graph.outputs if as_arrays else []

    stream = build_stream(segment, device.info, ConstantStore(), halving=halving, arrays=arrays).stream
    executable = Executable(device, stream)
    found = [on_host(tensor) for tensor in executable.run([x])]
    executable.close()
    return stream, found


def elements_of(stream: Stream) -> list[torch.dtype]:
    return [tensor.elements for tensor in stream.outputs if isinstance(tensor, DeviceTensor)]


def result_dispatches(stream: Stream) -> int:
    return sum(isinstance(one, Dispatch) and one.label == "result" for one in stream.operations)


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("name", VIEWS)
def test_the_host_widens_to_what_the_device_would(any_road: Device, name: str, precision: str) -> None:
    view, sizes = VIEWS[name]
    x = numbers(*sizes)
    stream, found = lowered(any_road, lambda x: view(torch.tanh(x * 1.5)), x, precision, as_arrays=False)
    wide, expected = lowered(any_road, lambda x: view(torch.tanh(x * 1.5)), x, precision, as_arrays=True)
    assert set(elements_of(stream)) == {HALVES[precision]} and set(elements_of(wide)) == {torch.float32}
    for one, other, real in zip(found, expected, view(torch.tanh(x * 1.5)), strict=True):
        assert one.dtype == torch.float32 and one.is_contiguous()
        assert torch.equal(one, other)
        torch.testing.assert_close(one, real, rtol=8e-3, atol=8e-3)
    assert result_dispatches(stream) <= result_dispatches(wide)


@pytest.mark.parametrize(("name", "dispatches"), [("rows", 0), ("read later", 0), ("image", 1), ("transposed", 1)])
def test_only_what_is_not_dense_is_copied(device: Device, name: str, dispatches: int) -> None:
    view, sizes = VIEWS[name]
    stream, _ = lowered(device, lambda x: view(torch.tanh(x * 1.5)), numbers(*sizes), "fp16", as_arrays=False)
    assert result_dispatches(stream) == dispatches


def test_halves_at_the_ends_of_their_range(device: Device) -> None:
    x = torch.tensor([2.0**-14, -65504.0, 65520.0, -1e30, float("inf"), float("nan"), -0.0])
    _, (found,) = lowered(device, lambda x: [-x], x, "fp16", as_arrays=False)
    torch.testing.assert_close(found, (-x).half().float(), rtol=0, atol=0, equal_nan=True)
    assert bool(found[-1].signbit()) is False


# Programs: keys that a product reads and the caller gets.


class Keys(nn.Module):
    """Attention that returns what a cache keeps: keys where a product left them, values in another layout."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.key, self.value, self.query = nn.Linear(7, width), nn.Linear(7, width), nn.Linear(7, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        key, value = torch.tanh(self.key(x)), torch.tanh(self.value(x))
        weights = torch.softmax(self.query(x) @ key.transpose(-2, -1), -1)
        return weights @ value, key, value.transpose(1, 2), key


def check_arrays(arrays: list[DeviceArray], expected: list[Tensor]) -> None:
    for array, tensor in zip(arrays, expected, strict=True):
        assert (array.dtype, array.elements) == (torch.float32, torch.float32)
        assert torch.equal(array.tensor(), tensor)


@pytest.mark.parametrize("sizes", [(3, 11, 7), (1, 1, 7), (2, 13, 7)])
def test_arrays_have_floats(any_road: Device, sizes: tuple[int, ...]) -> None:
    x, model = numbers(*sizes), Keys()
    program = program_of(model, any_road)
    found = program.run("forward", [x])
    for one, real in zip(found, model(x), strict=True):
        torch.testing.assert_close(one, real, rtol=2e-3, atol=2e-3)
    assert torch.equal(found[1], found[1].half().float()) and torch.equal(found[2], found[2].half().float())
    assert found[1].data_ptr() == found[3].data_ptr()
    arrays = program.run_on_device("forward", [x])
    check_arrays(list(arrays), list(found))
    again = program.run_on_device("forward", [DeviceArray.from_tensor(any_road, x)])
    check_arrays(list(again), list(found))
    if arrays[1].memory.is_host_visible:
        assert torch.equal(torch.from_dlpack(arrays[1]), found[1])


def operations_of(program: VulkanProgram, x: Tensor, label: str) -> list[Dispatch | Copy]:
    found = (time.operation for time in program.profile([x]))
    return [one for one in found if isinstance(one, (Dispatch, Copy)) and one.label == label]


def test_keys_take_no_dispatch_and_half_of_the_bytes(device_across_a_bus: Device) -> None:
    x = numbers(3, 32, 7)
    program = program_of(Keys(8), device_across_a_bus)
    fp32 = VulkanProgram(program.program, device_across_a_bus)
    keys = 3 * 32 * 8
    *_, copy = operations_of(program, x, "result")  # of the values
    assert moved_bytes(copy) == (2 * keys, 2 * keys)
    (download,) = operations_of(program, x, "download")  # of the keys, which the product reads too
    assert moved_bytes(download) == (2 * keys, 2 * keys)
    half, single = program.plan_report([x]).memory, fp32.plan_report([x]).memory
    assert half is not None and single is not None
    assert single.io_bytes - half.io_bytes == 2 * (4 - 2) * keys


def test_two_calls_in_flight(any_road: Device) -> None:
    program = program_of(Keys(), any_road)
    inputs = [numbers(3, 11, 7) * scale for scale in (1.0, 0.5, 2.0)]
    expected = [program.run("forward", [x]) for x in inputs]
    for results in ([call.result() for call in [program.submit("forward", [x]) for x in inputs]], expected):
        for found, single in zip(results, expected, strict=True):
            assert all(map(torch.equal, found, single))


def test_sizes_that_follow(device: Device) -> None:
    model = Keys()
    program = program_of(model, device, bounds=InputBounds({"forward": [[None, (1, 32), None]]}))
    for length in (11, 2, 17, 1, 31):
        x = numbers(3, length, 7)
        found = program.run("forward", [x])
        for one, real in zip(found, model(x), strict=True):
            torch.testing.assert_close(one, real, rtol=2e-3, atol=2e-3)
        check_arrays(list(program.run_on_device("forward", [x])), list(found))


class Remembering(nn.Module):
    """Keeps keys in its state: those that it doesn't return, and those that it does."""

    def __init__(self, returns: bool) -> None:
        super().__init__()
        self.key, self.returns = nn.Linear(7, 5), returns
        self.keys = nn.Buffer(torch.zeros(3, 5))
        self.written = nn.Buffer(torch.zeros(3, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key = torch.tanh(self.key(x))
        products = key @ key.t() + self.keys @ self.written.t()
        self.keys = key
        self.written.copy_(key)
        return products, key if self.returns else products


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_state_is_kept_in_floats(any_road: Device, returns: bool, on_device: bool) -> None:
    model = Remembering(returns)
    program = program_of(model, any_road)
    run = program.run_on_device if on_device else program.run
    for scale in (1.0, 0.3, 2.0):
        x = numbers(3, 7) * scale
        found, real = run("forward", [x]), model(x)
        for one, other in zip(found, real, strict=True):
            tensor = one.tensor() if isinstance(one, DeviceArray) else one
            torch.testing.assert_close(tensor, other, rtol=4e-3, atol=4e-3)
        kept = [kept.array for kept in program._state_arrays._kept.values()]
        assert all(array.elements == torch.float32 for array in (*kept, *leaves_of(found, DeviceArray)))
    for name, tensor in program.model_state.values.items():
        torch.testing.assert_close(tensor, getattr(model, name), rtol=4e-3, atol=4e-3)


class Looking(nn.Module):
    """Looks at an element before it goes on with keys."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        key = torch.tanh(self.key(x))
        products = key @ key.t()
        if products.sum().item() > 0.0:
            return products * 2.0, key
        return products, key * 2.0


def test_what_is_carried_past_a_look_is_floats(any_road: Device) -> None:
    model, x = Looking(), numbers(3, 7)
    program = program_of(model, any_road)
    for one, real in zip(program.run("forward", [x]), model(x), strict=True):
        torch.testing.assert_close(one, real, rtol=4e-3, atol=4e-3)


class Taking(nn.Module):
    def forward(self, key: Tensor) -> Tensor:
        return key * 2.0


def test_a_program_that_takes_keys_finds_floats(device_across_a_bus: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors_module, "LEAST_BYTES", 1)
    giver = program_of(Keys(), device_across_a_bus, mirrors=True)
    taker = VulkanProgram(program_from_script_module(torch.jit.script(Taking())), device_across_a_bus, mirrors=True)
    mirrors, x = device_across_a_bus.shared(Mirrors), numbers(3, 11, 7)
    found: list[Tensor] = []
    for number, hits in enumerate((0, 1, 1)):
        before = mirrors.found
        found.append(giver.run("forward", [x])[1])
        assert torch.equal(taker.run("forward", [found[-1]]), found[-1] * 2.0)
        assert mirrors.found - before == hits, number
        assert all(mirror.array.elements == torch.float32 for mirror in mirrors._mirrors.values())
    assert torch.equal(found[0], found[1])  # of halves, and of floats that stayed on the device too
    mirrors.close()
