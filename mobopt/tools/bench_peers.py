"""What can run a model beside mobopt."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from mobopt.samples.agreement import RELATIVE_TOLERANCE
from mobopt.tools.bench_iree import Iree
from mobopt.tools.bench_rival import Bench, Call, Contestant, Peer

_NCNN_CPU = 3
"""What ncnn calls a Vulkan driver that computes on the CPU."""
_TF32_TOLERANCE = 1e-2


class Mobopt(Peer):
    """Mobopt's own runtime on a Vulkan device."""

    name, form = "mobopt", ".ptl"

    def missing(self) -> str:
        """Nothing: without a device, opening says what is wrong."""
        return ""

    def open(self, bench: Bench) -> Contestant:
        """See :meth:`Peer.open`."""
        from mobopt.frontends.open_source import read_program
        from mobopt.frontends.torchscript import in_floats
        from mobopt.runtimes.vulkan.program import VulkanProgram

        program = in_floats(read_program(bench.file(self.form)), heeds_reduced_range=False)
        runtime = VulkanProgram(program, bench.device, keep_clock=bench.keep_clock)
        args = bench.args()

        def peak() -> int:
            memory = runtime.plan_report(args, bench.method).memory
            return 0 if memory is None else memory.peak_bytes

        return Contestant(lambda: runtime.run(bench.method, args), str(runtime.device.info), peak)


class Torch(Peer):
    """Torch on the CPU or a CUDA device: as it is, compiled, or replayed as one CUDA graph."""

    form = ".pt2"

    def __init__(
        self, name: str, *, on_cuda: bool = False, is_compiled: bool = False, is_graph: bool = False, tf32: bool = False
    ) -> None:
        self.name = name
        self._on_cuda, self._is_compiled, self._is_graph, self._tf32 = on_cuda, is_compiled, is_graph, tf32
        self.tolerance = _TF32_TOLERANCE if tf32 else RELATIVE_TOLERANCE

    def missing(self) -> str:
        """See :meth:`Peer.missing`."""
        return "torch has no CUDA device" if self._on_cuda and not torch.cuda.is_available() else ""

    def open(self, bench: Bench) -> Contestant:
        """See :meth:`Peer.open`."""
        from torch.utils._pytree import tree_map_only

        if bench.threads:
            torch.set_num_threads(bench.threads)
        device = "cuda" if self._on_cuda else "cpu"
        module: torch.nn.Module = torch.export.load(bench.file(self.form)).module().to(device)
        args = bench.args()
        model: Callable[..., Any] = torch.compile(module) if self._is_compiled else module

        def moved(values: Any, where: str) -> Any:
            return tree_map_only(torch.Tensor, lambda tensor: tensor.to(where), values)

        if self._is_graph:
            with self._precision():
                run = _cuda_graph(model, args)
        elif self._on_cuda:
            run = lambda: model(*moved(args, "cuda"))  # noqa: E731
        else:
            run = lambda: model(*args)  # noqa: E731

        # A graph has its kernels, so nothing is to be said of them at each replay.
        around = nullcontext if self._is_graph else self._precision

        def call() -> Any:
            with torch.no_grad(), around():
                return moved(run(), "cpu")

        where = torch.cuda.get_device_name() if self._on_cuda else f"CPU, {torch.get_num_threads()} threads"
        return Contestant(call, where, torch.cuda.max_memory_allocated if self._on_cuda else None)

    def _precision(self) -> AbstractContextManager[None]:
        """Float32 as it is, or torch's own default for convolutions on CUDA, which is less."""
        if not self._on_cuda:
            return nullcontext()
        chosen = torch.backends.cudnn.benchmark
        flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
            enabled=True, benchmark=chosen, allow_tf32=self._tf32
        )
        return flags


def _cuda_graph(model: Any, args: list[Any]) -> Call:
    """The model captured once; each call copies the inputs to where it was captured with them."""
    static = [item.cuda() if isinstance(item, torch.Tensor) else item for item in args]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            model(*static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = model(*static)

    def replay() -> Any:
        for place, item in zip(static, args, strict=True):
            if isinstance(item, torch.Tensor):
                place.copy_(item)
        graph.replay()
        return captured

    return replay


class OnnxRuntime(Peer):
    """Onnxruntime with one of its providers."""

    form = ".onnx"

    def __init__(self, name: str, provider: str) -> None:
        self.name = name
        self._provider = provider

    def missing(self) -> str:
        """See :meth:`Peer.missing`."""
        if importlib.util.find_spec("onnxruntime") is None:
            return "not installed: pip install onnxruntime"
        import onnxruntime

        known = onnxruntime.get_available_providers()
        return "" if self._provider in known else f"this onnxruntime has no {self._provider}; it has {', '.join(known)}"

    def open(self, bench: Bench) -> Contestant:
        """See :meth:`Peer.open`."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = bench.threads or torch.get_num_threads()
        session = onnxruntime.InferenceSession(str(bench.file(self.form)), options, providers=[self._provider])
        names = [item.name for item in session.get_inputs()]
        arrays = [item.numpy() for item in bench.args() if isinstance(item, torch.Tensor)]
        given = dict(zip(names, arrays, strict=True))

        def call() -> Any:
            return [torch.from_numpy(array) for array in session.run(None, given)]

        return Contestant(call, self._provider.removesuffix("ExecutionProvider"))


class Ncnn(Peer):
    """Ncnn on its best GPU, else on the CPU, from what pnnx makes of TorchScript; one sample, and one result."""

    name, form = "ncnn", ".pt"

    def missing(self) -> str:
        """See :meth:`Peer.missing`."""
        absent = [name for name in ("ncnn", "pnnx") if importlib.util.find_spec(name) is None]
        return f"not installed: pip install {' '.join(absent)}" if absent else ""

    def open(self, bench: Bench) -> Contestant:
        """See :meth:`Peer.open`."""
        import ncnn
        import pnnx

        args = bench.args()
        stem = bench.folder / "model.ncnn"
        if not stem.with_suffix(".ncnn.param").exists():
            pnnx.convert(str(bench.file(self.form)), args, fp16=False)
        net = ncnn.Net()
        has_gpu = bool(ncnn.get_gpu_count()) and ncnn.get_gpu_info(ncnn.get_default_gpu_index()).type() != _NCNN_CPU
        net.opt.use_vulkan_compute = has_gpu
        if bench.threads:
            net.opt.num_threads = bench.threads
        for name in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage"):
            setattr(net.opt, name, False)
        if net.load_param(f"{stem}.param") or net.load_model(f"{stem}.bin"):
            raise RuntimeError("ncnn can't load what pnnx made of the model")
        matrices = [ncnn.Mat(item.squeeze(0).contiguous().numpy()) for item in args]

        def call() -> Any:
            with net.create_extractor() as extractor:
                for number, matrix in enumerate(matrices):
                    extractor.input(f"in{number}", matrix)
                return torch.from_numpy(extractor.extract("out0")[1].numpy(format="f").copy()).unsqueeze(0)

        return Contestant(call, "Vulkan" if has_gpu else f"CPU, {net.opt.num_threads} threads")


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Mobopt(),
        Torch("eager"),
        Torch("compile", is_compiled=True),
        Torch("cuda", on_cuda=True),
        Torch("cuda-graph", on_cuda=True, is_graph=True),
        Torch("cuda-graph-tf32", on_cuda=True, is_graph=True, tf32=True),
        Torch("cuda-compile", on_cuda=True, is_compiled=True),
        OnnxRuntime("onnxruntime", "CPUExecutionProvider"),
        OnnxRuntime("onnxruntime-webgpu", "WebGpuExecutionProvider"),
        Ncnn(),
        Iree(),
    )
}
"""By name, in the order of the table; all but torch compiled are tried unless some are chosen."""
SLOW_TO_COMPILE = ("compile", "cuda-compile")
"""Take minutes, so they run where they are asked for."""
