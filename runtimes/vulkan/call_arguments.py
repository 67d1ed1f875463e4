"""What the arguments of a call are to a plan."""

from __future__ import annotations

from typing import Any

import torch

from mobopt.errors import InputError
from mobopt.ir.nests import leaves_of
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.lane import TensorOrArray

_PLAIN = (bool, int, float, str, complex, type(None), torch.device, torch.dtype)


class Key:
    """A nest of plain values as a part of keys, whose hash is computed once."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Any) -> None:
        self._value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Key) and self._value == other._value)


def signature_of(value: Any, tensors: list[Any], takes_arrays: bool) -> Any:
    """What a plan depends on: structure, shapes, dtypes, where tensors lie, and plain values. Tensors, and arrays where
    these are taken, are collected on the way."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        if value.is_meta:
            raise InputError("an argument is a meta tensor, which has no elements; give one with values")
        try:
            return value.dtype, value.shape
        except RuntimeError as error:
            raise InputError("an argument is a nested tensor, which has no sizes; give a dense one") from error
    if isinstance(value, (list, tuple)):
        return type(value), *[signature_of(item, tensors, takes_arrays) for item in value]
    if isinstance(value, dict):
        return dict, *[(key, signature_of(item, tensors, takes_arrays)) for key, item in value.items()]
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, DeviceArray):
        if takes_arrays:
            tensors.append(value)
            return DeviceArray, value.dtype, value.shape
        raise InputError("an argument is an array on the device; call run_on_device, or give its tensor()")
    raise InputError(
        f"an argument is a {type(value).__name__}; give tensors, numbers, strings, or lists, tuples and "
        "dictionaries of them"
    )


def is_on_host(value: TensorOrArray) -> bool:
    """Whether a value is a tensor with elements of its own on the CPU."""
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu"


def as_meta(array: DeviceArray) -> torch.Tensor:
    """What stands for an array while a model is specialised."""
    return torch.empty_strided(array.shape, array.stride(), dtype=array.dtype, device="meta")


def described(value: Any) -> str:
    """A value in a few words: dtype and sizes of a tensor."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    tensors = list(leaves_of(value, torch.Tensor))
    return f"{type(value).__name__} of {len(tensors)} tensors" if tensors else repr(value)
