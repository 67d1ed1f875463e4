"""The interface ``onnx.backend.base.Backend`` over mobopt: ONNX models run on Vulkan, or on the CPU.

>>> from mobopt import onnx_backend
>>> prepared = onnx_backend.prepare(model, "VULKAN")
>>> (y,) = prepared.run([x])

Devices are ``VULKAN``, the best one or by number (``VULKAN:1``), and ``CPU``, the reference interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import onnx
import torch
from onnx.backend.base import Backend as _Backend
from onnx.backend.base import BackendRep as _BackendRep
from onnx.backend.base import namedtupledict

from mobopt.errors import InputError, MoboptError
from mobopt.frontends.onnx.elements import ELEMENT_TYPES, PACKED_BITS
from mobopt.frontends.onnx_source import OnnxSource
from mobopt.ir.nests import map_leaves
from mobopt.module import MobileModule
from mobopt.options import FallbackChoice

_VULKAN, _CPU = "VULKAN", "CPU"
_BEYOND_NUMPY = {
    torch.bfloat16: numpy.uint16,
    torch.float8_e4m3fn: numpy.uint8,
    torch.float8_e4m3fnuz: numpy.uint8,
    torch.float8_e5m2: numpy.uint8,
    torch.float8_e5m2fnuz: numpy.uint8,
}
"""Dtypes that NumPy has by an extension alone, with the plain one that their bits are read as."""


class PreparedModel(_BackendRep):  # type: ignore[misc]
    """A model that is ready to run.

    Attributes:
        module: what runs it.
        inputs: names, in the order of the arguments.
        outputs: names of the results.
    """

    def __init__(self, source: OnnxSource, device: int | str | None, fallback: FallbackChoice) -> None:
        self.inputs = tuple(item.name for item in source.inputs)
        self.outputs = source.outputs
        self.module = MobileModule(source.program, device, fallback=fallback)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for inputs.

        Args:
            inputs: arrays in order, or by name; one alone may stand for a list of one.
            kwargs: none is known.

        Returns:
            A named tuple of arrays; lists for sequences, None for empty optionals.

        Raises:
            InputError: inputs are missing, unknown or do not fit the model.
        """
        if kwargs:
            raise InputError(f"run takes no {next(iter(kwargs))!r}")
        result = self.module(*(_as_tensor(item) for item in self._in_order(inputs)))
        results = result if isinstance(result, tuple) else (result,)
        arrays = [map_leaves(item, torch.Tensor, _as_array) for item in results]
        named: tuple[Any, ...] = namedtupledict("Outputs", self.outputs)(*arrays)
        return named

    def _in_order(self, inputs: Any) -> Sequence[Any]:
        if isinstance(inputs, Mapping):
            lacking = [name for name in self.inputs if name not in inputs]
            unknown = [name for name in inputs if name not in self.inputs]
            if lacking or unknown:
                what = f"lacks {lacking[0]!r}" if lacking else f"has {unknown[0]!r}"
                raise InputError(f"the call {what}; the model's inputs are {', '.join(self.inputs)}")
            return [inputs[name] for name in self.inputs]
        listed = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(listed) != len(self.inputs):
            raise InputError(f"the call has {len(listed)} inputs, and the model takes {', '.join(self.inputs)}")
        return listed


class MoboptBackend(_Backend):  # type: ignore[misc]
    """Runs ONNX models with mobopt."""

    @classmethod
    def prepare(cls, model: Any, device: str = _VULKAN, **kwargs: Any) -> PreparedModel:
        """Read a model, and make it ready to run; its plans are made by the first call for each set of sizes.

        Args:
            model: an ``onnx.ModelProto``, or the path of a file.
            device: ``VULKAN``, ``VULKAN:1``, or ``CPU``.
            kwargs: ``fallback``: ``"cpu"``, so that operators without a kernel run on the CPU, or ``"error"``.

        Raises:
            MoboptError: the model can't be read, or an argument can't be used.
        """
        fallback = kwargs.pop("fallback", "cpu")
        if kwargs:
            raise InputError(f"prepare takes no {next(iter(kwargs))!r}; it takes fallback")
        read = model if isinstance(model, onnx.ModelProto) else Path(model)
        return PreparedModel(OnnxSource(read), _device_of(device), fallback)

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = _VULKAN, **kwargs: Any) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = _VULKAN, outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run one node.

        Args:
            node: an ``onnx.NodeProto``.
            inputs: arrays in order, one for each input that has a name.
            device: as for :meth:`prepare`.
            outputs_info: not needed.
            kwargs: ``opset_version``, the newest by default; others as for :meth:`prepare`.
        """
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        arrays = [numpy.asarray(item) for item in inputs]
        named = [name for name in node.input if name]
        graph = onnx.helper.make_graph(
            [node],
            "node",
            [
                onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in zip(named, arrays, strict=True)
            ],
            [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, version)])
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def is_compatible(cls, model: Any, device: str = _VULKAN, **kwargs: Any) -> bool:
        """Whether a model can be read."""
        try:
            cls.prepare(model, device, **kwargs)
        except MoboptError:
            return False
        return True

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a device is there."""
        try:
            number = _device_of(device)
        except InputError:
            return False
        if number == "cpu":
            return True
        from mobopt.runtimes.vulkan.engine.devices import list_devices

        try:
            found = list_devices()
        except MoboptError:
            return False
        return len(found) > (number if isinstance(number, int) else 0)


def _device_of(device: str) -> int | str | None:
    """What mobopt calls a device of ONNX's: ``VULKAN:1`` is 1, the best is None.

    Raises:
        InputError: it is neither ``VULKAN`` nor ``CPU``.
    """
    kind, _, number = device.upper().partition(":")
    if kind == _CPU:
        return "cpu"
    if kind != _VULKAN or (number and not number.isdigit()):
        raise InputError(f"the device {device!r} is unknown; it is VULKAN, VULKAN:1 and so on, or CPU")
    return int(number) if number else None


def _as_tensor(item: Any) -> Any:
    if item is None or isinstance(item, torch.Tensor):
        return item
    is_list = isinstance(item, (list, tuple))
    if is_list and not (item and all(isinstance(part, (int, float, bool)) for part in item)):  # an empty sequence too
        return [_as_tensor(part) for part in item]
    array = numpy.asarray(item)
    whole = numpy.ascontiguousarray(array).reshape(array.shape)
    for dtype, plain in _BEYOND_NUMPY.items():
        if array.dtype == _array_type(dtype):
            return torch.from_numpy(whole.view(plain).copy()).view(dtype)
    name = array.dtype.name.upper()
    if name in PACKED_BITS:
        return torch.from_numpy(whole.astype(numpy.int8 if PACKED_BITS[name][1] else numpy.uint8))
    try:
        return torch.from_numpy(whole)
    except TypeError:
        raise InputError(f"an input is an array of {array.dtype}, which torch has no tensors of") from None


def _as_array(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach().contiguous()
    if tensor.dtype not in _BEYOND_NUMPY:
        return tensor.numpy()
    return tensor.view(torch.uint16 if tensor.itemsize == 2 else torch.uint8).numpy().view(_array_type(tensor.dtype))


def _array_type(dtype: torch.dtype) -> Any:
    """What ONNX takes for a dtype that NumPy itself lacks."""
    return onnx.helper.tensor_dtype_to_np_dtype(ELEMENT_TYPES[dtype])


prepare = MoboptBackend.prepare
run_model = MoboptBackend.run_model
run_node = MoboptBackend.run_node
supports_device = MoboptBackend.supports_device
is_compatible = MoboptBackend.is_compatible
