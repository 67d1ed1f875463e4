"""Samples of PyTorch's own operator database (OpInfo): every operator of ``torch``, ``torch.nn.functional``,
``torch.linalg`` and so on, with the inputs that PyTorch tests its own kernels with."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
"""The dtypes that samples are asked for; they hold tensors of others beside them (indices, masks)."""

_GENERATED = 200
"""At most so many samples of one kind are generated, for a few operators have thousands."""
_LARGEST = 2**20
"""Samples with more elements than this are left out: they take seconds, and say nothing more."""

_ASKS_SIGN_OF_NAN = {"signbit"}
"""Operators that get no samples with NaN: torch's own conversions from float32 to bfloat16 change its sign."""


@dataclass(frozen=True)
class Sample:
    """One call of an operator: a function of tensors alone, the tensors that are inputs, and further ones."""

    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]
    text: str
    """The call's arguments, in short."""
    constants: tuple[torch.Tensor, ...] = ()
    """What the function takes behind the inputs."""

    def of_first(self) -> Sample:
        """The same call as a function of its first tensor; the others are constants, as weights are."""
        text = f"{self.text}, all but the first constant"
        return Sample(self.function, self.tensors[:1], text, self.tensors[1:])

    def in_float64(self) -> Sample:
        """The same call of wider floats."""
        inputs, constants = (
            tuple(tensor.double() if tensor.is_floating_point() else tensor.clone() for tensor in tensors)
            for tensors in (self.tensors, self.constants)
        )
        return Sample(self.function, inputs, self.text, constants)


@cache
def operators() -> dict[str, Any]:
    """Every OpInfo by the name of its operator and variant, such as ``nn.functional.pad.circular``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {info.full_name: info for info in op_db}


def dtypes_of(name: str) -> list[torch.dtype]:
    """Those of :data:`DTYPES` that PyTorch's CPU computes an operator on."""
    given = operators()[name].supported_dtypes("cpu")
    return [dtype for dtype in DTYPES if dtype in given]


def samples_of(name: str, dtype: torch.dtype, count: int) -> list[Sample]:
    """At most ``count`` samples of an operator, the same ones each time: chosen evenly from PyTorch's sample inputs
    and, where it has such, its reference inputs. Every other one of several tensors has constants."""
    info = operators()[name]
    kinds = [info.sample_inputs]
    if info.reference_inputs_func is not None and count > 1:
        kinds.append(info.reference_inputs)
    shares = [count] if len(kinds) == 1 else [count - count // 2, count // 2]
    found: list[Sample] = []
    for generate, share in zip(kinds, shares, strict=True):
        torch.manual_seed(0)
        found += _evenly(list(_generated(info, generate, dtype)), share)
    return [
        sample.of_first() if number % 2 and len(sample.tensors) > 1 else sample for number, sample in enumerate(found)
    ]


def in_place_samples_of(name: str, dtype: torch.dtype, count: int) -> list[Sample]:
    """As :func:`samples_of`, of the operator's form that writes to its first argument, if it has one: what is written
    to is a view of a computed tensor, and both come back."""
    info = operators()[name]
    write = info.inplace_variant
    if write is None:
        return []

    def written(first: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        base = first.clone()
        view = base.view(base.shape)
        write(view, *args, **kwargs)
        return base, view

    torch.manual_seed(0)
    return _evenly(list(_generated(info, info.sample_inputs, dtype, written)), count)


def _generated(
    info: Any, generate: Callable[..., Any], dtype: torch.dtype, operator: Callable[..., Any] | None = None
) -> Iterator[Sample]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for item in itertools.islice(generate("cpu", dtype, requires_grad=False), _GENERATED):
            if operator is not None and item.broadcasts_input:
                continue
            sample = _as_sample(operator or info.op, item)
            if sum(tensor.numel() for tensor in sample.tensors) <= _LARGEST and not (
                info.name in _ASKS_SIGN_OF_NAN and any(tensor.isnan().any() for tensor in sample.tensors)
            ):
                yield sample


def _as_sample(operator: Callable[..., Any], item: Any) -> Sample:
    leaves, spec = _pytree.tree_flatten((item.input, item.args, item.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        first, args, kwargs = _pytree.tree_unflatten(filled, spec)
        return operator(first, *args, **kwargs)

    named = [f"{key}={_describe(value)}" for key, value in item.kwargs.items()]
    text = ", ".join([*map(_describe, (item.input, *item.args)), *named])
    return Sample(function, tuple(leaves[place] for place in places), text)


def _evenly(items: Sequence[Sample], count: int) -> list[Sample]:
    if len(items) <= count:
        return list(items)
    return [items[round(index * (len(items) - 1) / max(count - 1, 1))] for index in range(count)]


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_describe, value))}]"
    return repr(value) if isinstance(value, str) else str(value)
