"""ExecuTorch's ``.pte`` files, by its own package: lowered for XNNPACK, Vulkan, or its portable kernels."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mobopt.errors import InputError, UnsupportedError
from mobopt.exporters.exported_program import read_again
from mobopt.exporters.missing_operators import with_known_operators
from mobopt.exporters.targets import Call, Order, Target, Written
from mobopt.options import FORMATS

_LOG = logging.getLogger("mobopt.exporters")
_PARTITIONERS = {
    "xnnpack": ("executorch.backends.xnnpack.partition.xnnpack_partitioner", "XnnpackPartitioner"),
    "vulkan": ("executorch.backends.vulkan.partitioner.vulkan_partitioner", "VulkanPartitioner"),
    "portable": None,
}
DELEGATES = tuple(_PARTITIONERS)
"""What a file may be lowered for."""
_WITHOUT_RUNTIME = ("vulkan",)
"""Delegates that the runtime in ExecuTorch's pip package lacks."""


class ExecutorchFile(Target):
    """A ``.pte`` file of one method."""

    name = FORMATS[".pte"]
    draws_as_torch = False

    def write(self, order: Order, path: Path) -> Written:
        """Lower and write; sizes are fixed unless ranges are asked for: ExecuTorch plans memory for the largest."""
        if order.delegate not in DELEGATES:
            raise InputError(f"ExecuTorch files for {order.delegate!r} can't be made; use {', '.join(DELEGATES)}")
        if importlib.util.find_spec("executorch") is None:
            raise UnsupportedError(
                ".pte files are written by the package executorch, which is missing: pip install mobopt[executorch]"
            )
        exported = replace(order, sizes="fixed" if order.sizes == "auto" else order.sizes).exported()
        program = with_known_operators(read_again(exported))
        content, left = _lowered(program, order.delegate)
        path.write_bytes(content)
        call, runner = _runner(path, program, order)
        remarks = [exported.remark] if exported.remark else []
        if left and order.delegate != "portable":
            names = ", ".join(f"{count} {name}" for name, count in sorted(left.items()))
            remarks.append(f"not lowered for {order.delegate}, so on ExecuTorch's portable kernels: {names}")
        return Written(lambda method: call, runner, (order.method,), exported.sizes, tuple(remarks))


def _lowered(program: torch.export.ExportedProgram, delegate: str) -> tuple[bytes, Counter[str]]:
    """The file's content, and the operators that no delegate took."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exir: Any = importlib.import_module("executorch.exir")
            place = _PARTITIONERS[delegate]
            partitioners = [] if place is None else [getattr(importlib.import_module(place[0]), place[1])()]
            edge = exir.to_edge_transform_and_lower(program, partitioner=partitioners)
            nodes = [node for node in edge.exported_program().graph.nodes if node.op == "call_function"]
            names = [getattr(node.target, "__name__", str(node.target)) for node in nodes]
            left = Counter(name for name in names if "delegate" not in name and name != "getitem")
            return bytes(edge.to_executorch().buffer), left
    except Exception as error:
        _LOG.debug("ExecuTorch failed", exc_info=True)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedError(f"ExecuTorch can't lower the model for {delegate}: {lines[0]}") from error


def _runner(path: Path, program: torch.export.ExportedProgram, order: Order) -> tuple[Call, str]:
    """What runs the file, and what it is called; where no runtime is at hand, the program before it was lowered."""
    if order.delegate in _WITHOUT_RUNTIME:
        module = program.module()
        text = "torch, before it was lowered (ExecuTorch's pip package has no runtime for Vulkan)"
        return lambda arguments: module(*arguments), text
    data = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its API is experimental
        runtime: Any = importlib.import_module("executorch.runtime").Runtime.get()
        loaded = runtime.load_program(data)
        method = loaded.load_method("forward")

    def call(arguments: list[Any], kept: tuple[Any, ...] = (data, loaded)) -> Any:  # a method reads memory of both
        leaves = method.execute(pytree.tree_leaves(arguments))
        return pytree.tree_unflatten(list(leaves), program.call_spec.out_spec)

    return call, "ExecuTorch's runtime"
