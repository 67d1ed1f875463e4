"""Times each convolution and linear layer of MobileNetV2 and ResNet18 on a device, beside torch on the CPU.

Run as ``python -m tests.benchmarks.kernels [--device NAME] [--model NAME] [--repeat N]``. Times are the least of many
runs, the two engines taking turns. ``busy/2`` is the processor time of the driver's threads, for two of them: on a CPU
driver it doesn't grow when other processes hold the cores.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind, default_strides
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings import convolution, matmul, pointwise  # noqa: F401
from mobopt.runtimes.vulkan.lowerings.registry import lower
from tests.model_zoo import ZOO


@dataclass(frozen=True)
class Layer:
    """A layer's sizes; a linear layer has no stride."""

    source: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int = 0
    padding: int = 0
    groups: int = 1

    def __str__(self) -> str:
        taps = "x".join(map(str, self.weight[2:])) or "linear"
        kind = f"{taps} /{self.stride}" if self.stride else taps
        depth = " depthwise" if self.groups > 1 else ""
        size = "x".join(map(str, self.source[2:]))
        return f"{kind}{depth} {self.source[1]}->{self.weight[0]} {size}"

    @property
    def output(self) -> tuple[int, ...]:
        """Sizes of the result."""
        spatial = [
            (size + 2 * self.padding - taps) // self.stride + 1
            for size, taps in zip(self.source[2:], self.weight[2:], strict=True)
        ]
        return (self.source[0], self.weight[0], *spatial)

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        result, weight = torch.Size(self.output), torch.Size(self.weight)
        return 2 * result.numel() * (weight.numel() // weight[0])

    def call(self, source: Value) -> Node:
        """The layer with seeded weights."""
        fan = torch.Size(self.weight[1:]).numel()
        weight, bias = torch.randn(self.weight) / fan**0.5, torch.randn(self.weight[0])
        refs = [Value.of_elements(tensor) for tensor in (weight, bias)]
        output = Value.of_tensor(torch.float32, self.output)
        if not self.stride:
            return Node.call("aten::linear", (source, *refs), (output,))
        parameters = ([self.stride] * 2, [self.padding] * 2, [1, 1], self.groups)
        return Node.call("aten::conv2d", (source, *refs, *parameters), (output,))


def layers_of(name: str) -> Counter[Layer]:
    """The distinct layers of a model of the zoo, with how often each occurs."""
    found: Counter[Layer] = Counter()

    def note(module: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        shape, weight = tuple(inputs[0].shape), tuple(module.weight.shape)
        if isinstance(module, torch.nn.Conv2d):
            found[Layer(shape, weight, module.stride[0], int(module.padding[0]), module.groups)] += 1
        else:
            found[Layer(shape, weight)] += 1

    model = ZOO[name].build()
    for module in model.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            module.register_forward_hook(note)
    with torch.no_grad():
        model(torch.randn(1, 3, 224, 224))
    return found


def executable_of(device: Device, layer: Layer) -> tuple[Executable, str]:
    """The layer alone on a device, its input already in the layout that kernels prefer; and the kernel's name."""
    plan = Plan(device.info)
    ref = Value.of_tensor(torch.float32, layer.source)
    strides = default_strides(layer.source, torch.float32)
    elements = plan.empty(layer.source).storage.nbytes // 4
    storage = Storage(elements * 4, StorageKind.INPUT)
    plan.stream.inputs.append(DeviceTensor(storage, torch.float32, (elements,), (1,)))
    plan.place(ref, DeviceTensor(storage, torch.float32, layer.source, strides))
    result = lower(plan, layer.call(ref))
    assert isinstance(result, DeviceTensor)
    result.storage.kind = StorageKind.OUTPUT
    whole = result.storage.nbytes // 4
    plan.stream.outputs.append(DeviceTensor(result.storage, torch.float32, (whole,), (1,)))
    kernels = Counter(operation.shader for operation in plan.stream.operations)  # type: ignore[union-attr]
    return Executable(device, plan.stream), " ".join(f"{n}x{k}" if n > 1 else k for k, n in kernels.items())


def torch_layer(layer: Layer) -> Callable[[], torch.Tensor]:
    """The layer in torch."""
    fan = torch.Size(layer.weight[1:]).numel()
    source, weight, bias = torch.randn(layer.source), torch.randn(layer.weight) / fan**0.5, torch.randn(layer.weight[0])
    if not layer.stride:
        return lambda: torch.nn.functional.linear(source, weight, bias)
    return lambda: torch.conv2d(source, weight, bias, layer.stride, layer.padding, 1, layer.groups)


@dataclass
class Timing:
    """Least milliseconds of a layer: torch's, the kernels' on the device, and the processor's for them."""

    torch: float = float("inf")
    device: float = float("inf")
    busy: float = float("inf")
    kernels: str = ""


def measure(device: Device, layer: Layer, repeat: int) -> Timing:
    """Run torch and the device in turns."""
    executable, kernels = executable_of(device, layer)
    timing = Timing(kernels=kernels)
    inputs = [torch.randn(executable_elements(layer))]
    run_torch = torch_layer(layer)
    for _ in range(3):
        for _ in range(repeat):
            start = time.perf_counter()
            run_torch()
            timing.torch = min(timing.torch, (time.perf_counter() - start) * 1e3)
        for _ in range(repeat):
            start = time.process_time() - time.thread_time()
            _, times = executable.profile(inputs)
            timing.busy = min(timing.busy, (time.process_time() - time.thread_time() - start) * 1e3)
            timing.device = min(timing.device, sum(item.duration_ns for item in times) / 1e6)
    executable.close()
    return timing


def executable_elements(layer: Layer) -> int:
    """Elements of a layer's input with its padding."""
    strides = default_strides(layer.source, torch.float32)
    return layer.source[0] * strides[0]


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device")
    parser.add_argument("--model", action="append")
    parser.add_argument("--repeat", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    device = open_device(arguments.device)
    for name in arguments.model or ["mobilenet_v2", "resnet18"]:
        Console(width=150).print(table_of(device, name, arguments.repeat))


def table_of(device: Device, name: str, repeat: int) -> Table:
    """Every layer of a model, and the sums over the model."""
    table = Table(title=f"{name} on {device.info.name}, 1x3x224x224, ms")
    for column in ("layer", "times", "torch", "device", "busy/2", "GFLOP/s", "ratio", "kernels"):
        table.add_column(column, justify="left" if column in ("layer", "kernels") else "right")
    total = Timing(0.0, 0.0, 0.0)
    for layer, count in layers_of(name).items():
        found = measure(device, layer, repeat)
        total = Timing(
            total.torch + count * found.torch, total.device + count * found.device, total.busy + count * found.busy
        )
        table.add_row(str(layer), str(count), *_cells(found, layer.operations), found.kernels)
    table.add_section()
    table.add_row("all", "", *_cells(total, sum(layer.operations * n for layer, n in layers_of(name).items())), "")
    return table


def _cells(timing: Timing, operations: int) -> tuple[str, ...]:
    speed = operations / timing.device / 1e6
    times = (timing.torch, timing.device, timing.busy / 2)
    return (*(f"{value:.3f}" for value in times), f"{speed:.1f}", f"{timing.device / timing.torch:.1f}")


if __name__ == "__main__":
    main()
