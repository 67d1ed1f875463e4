"""IREE as a rival: compiled ahead of time, for a GPU by Vulkan, or for the CPU where Vulkan only computes on it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from mobopt.errors import DeviceError
from mobopt.tools.bench_rival import Bench, Contestant, Peer

_ARCHITECTURES = {0x10DE: "ampere", 0x1002: "rdna3", 0x13B5: "valhall4", 0x5143: "adreno"}
"""What IREE tunes its shaders for, by the vendor's number in PCI."""


class Iree(Peer):
    """IREE's compiler and runtime, from ONNX."""

    name, form = "iree", ".onnx"

    def missing(self) -> str:
        """See :meth:`Peer.missing`."""
        has_iree = importlib.util.find_spec("iree") is not None
        absent = [
            f"iree-base-{part}"
            for part in ("compiler", "runtime")
            if not has_iree or importlib.util.find_spec(f"iree.{part}") is None
        ]
        return f"not installed: pip install {' '.join(absent)}" if absent else ""

    def open(self, bench: Bench) -> Contestant:
        """See :meth:`Peer.open`."""
        import iree.runtime as iree

        gpu = _gpu(bench.device)
        driver = "local-task" if gpu is None else "vulkan"
        compiled = bench.folder / f"model.{driver}.vmfb"
        if not compiled.exists():
            options = ["--iree-llvmcpu-target-cpu=host"] if gpu is None else _vulkan_options(gpu.vendor_id)
            _compile(bench.file(self.form), compiled, "llvm-cpu" if gpu is None else "vulkan-spirv", options)
        device = iree.get_device(driver) if gpu is None else _iree_device(gpu.name)
        context = iree.SystemContext(config=iree.Config(device=device))
        module = iree.VmModule.mmap(context.instance, str(compiled))
        context.add_vm_module(module)
        name = next(name for name in module.function_names if not name.startswith("__") and "$" not in name)
        function = getattr(context.modules[module.name], name)
        arrays = [item.numpy() for item in bench.args() if isinstance(item, torch.Tensor)]

        def call() -> Any:
            made = function(*arrays)
            results = made if isinstance(made, (list, tuple)) else [made]
            return [torch.from_numpy(_on_host(device, result)) for result in results]

        return Contestant(call, "CPU" if gpu is None else f"Vulkan, {gpu.name}")


def _gpu(selector: str | None) -> Any:
    """What mobopt would run on, if that is a GPU; None if Vulkan computes on the CPU, or there is none."""
    from mobopt.runtimes.vulkan.engine.devices import open_device

    try:
        info = open_device(selector).info
    except DeviceError:
        return None
    return None if info.is_cpu else info


def _vulkan_options(vendor: int) -> list[str]:
    return [f"--iree-vulkan-target={_ARCHITECTURES[vendor]}"] if vendor in _ARCHITECTURES else []


def _compile(model: Path, compiled: Path, backend: str, options: list[str]) -> None:
    import iree.compiler.tools as compiler

    text = compiled.with_suffix(".mlir")
    command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(model), "-o", str(text)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"IREE can't import the model: {done.stderr.strip().splitlines()[-1]}")
        compiler.compile_file(
            str(text), input_type="onnx", target_backends=[backend], extra_args=options, output_file=str(compiled)
        )
    finally:
        text.unlink(missing_ok=True)


def _iree_device(name: str) -> Any:
    import iree.runtime as iree

    driver = iree.get_driver("vulkan")
    for found in driver.query_available_devices():
        if name in found["name"]:
            return driver.create_device(found["device_id"])
    raise RuntimeError(f"IREE does not see the Vulkan device {name}")


def _on_host(device: Any, result: Any) -> Any:
    """A result as an array of numpy. IREE's own ``to_host`` fails where Vulkan imports host memory by pages only."""
    from iree.runtime import BufferUsage, HalElementType, HalFence, MemoryType

    view = result._buffer_view
    source = view.get_buffer()
    host = device.allocator.allocate_buffer(
        memory_type=int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE),
        allowed_usage=int(BufferUsage.TRANSFER_TARGET | BufferUsage.MAPPING_SCOPED),
        allocation_size=source.byte_length(),
    )
    done = device.create_semaphore(0)
    before, after = HalFence.create_at(done, 0), HalFence.create_at(done, 1)
    device.queue_copy(source, host, wait_semaphores=before, signal_semaphores=after)
    after.wait()
    return host.map().asarray(view.shape, HalElementType.map_to_dtype(view.element_type)).copy()
