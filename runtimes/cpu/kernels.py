"""Operators by name as Python callables that take the schema's arguments in order: torch's CPU kernels and our own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from mobopt.errors import InputError, UnsupportedError
from mobopt.ir import Origin
from mobopt.ir.dtypes import SCALAR_TYPES
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.schemas import schema_of, schemas_of
from mobopt.ops.fake_quantize import FAKE_QUANTIZE, ROUNDED_GATE, fake_quantized, rounded_gate
from mobopt.ops.l2_normalize import L2_NORMALIZE, l2_normalized
from mobopt.ops.permitted import is_of_library, refusal
from mobopt.ops.quantized import DEQUANTIZE, dequantized
from mobopt.ops.records import Trait, has_trait
from mobopt.runtimes.cpu.argument_checks import check_attention, check_extreme, check_extreme_along
from mobopt.runtimes.cpu.packed import PACKED_KERNELS
from mobopt.runtimes.cpu.packed_quantized import on_qnnpack, quantize_per_tensor
from mobopt.runtimes.cpu.recurrent_checks import check_lstm, check_packed_lstm
from mobopt.runtimes.cpu.vision import VISION_KERNELS

Kernel = Callable[..., Any]
_CPU = torch.device("cpu")
_HALVES = {"not implemented for 'Half'": torch.float16, "not implemented for 'BFloat16'": torch.bfloat16}
"""Dtypes by what torch says where a kernel lacks them."""


def scalar_type(value: int | torch.dtype | None) -> torch.dtype | None:
    """The dtype that a TorchScript value stands for, which is a number there.

    Raises:
        UnsupportedError: no tensor of ours has that dtype.
    """
    if value is None or isinstance(value, torch.dtype):
        return value
    if value not in SCALAR_TYPES:
        raise UnsupportedError(
            f"the model asks for dtype number {value} (c10::ScalarType), which mobopt does not compute with"
        )
    return SCALAR_TYPES[value]


def _tensor_of(data: Any, dtype: Any, device: Any, requires_grad: bool) -> torch.Tensor:
    return torch.tensor(map_leaves(data, torch.Tensor, torch.Tensor.item), dtype=scalar_type(dtype))


def _as_tensor(data: Any, dtype: Any, device: Any) -> torch.Tensor:
    return data if isinstance(data, torch.Tensor) and dtype is None else _tensor_of(data, dtype, device, False)


def _convert(x: torch.Tensor, dtype: Any, copy: bool) -> torch.Tensor:
    return x.to(scalar_type(dtype) or x.dtype, copy=copy)


def _to_list(x: torch.Tensor, *_: Any) -> Any:
    return x.tolist()


# What torch.ops can't call, or what a device makes no difference to.
_OWN: dict[str, Kernel] = {
    **PACKED_KERNELS,
    **VISION_KERNELS,
    DEQUANTIZE: dequantized,
    FAKE_QUANTIZE: fake_quantized,
    ROUNDED_GATE: rounded_gate,
    L2_NORMALIZE: l2_normalized,
    "aten::quantize_per_tensor": quantize_per_tensor,
    **{f"aten::tensor{kind}": _tensor_of for kind in ("", ".bool", ".int", ".float", ".complex")},
    "aten::as_tensor": _as_tensor,
    "aten::as_tensor.list": _as_tensor,
    "aten::to.prim_Device": lambda x, device, dtype, non_blocking, copy: _convert(x, dtype, copy),
    "aten::to.prim_dtype": lambda x, dtype, non_blocking, copy: _convert(x, dtype, copy),
    "aten::to.prim_other": lambda x, non_blocking, copy: _convert(x, None, copy),
    "aten::cpu": lambda x: x,
    "aten::cuda": lambda x: x,
    "prim::tolist": _to_list,
    "prim::device": lambda x: _CPU,
    "prim::is_cpu": lambda x: True,
    "prim::is_meta": lambda x: False,
    "prim::is_vulkan": lambda x: False,
}


_CHECKED: dict[str, Callable[..., None]] = {
    "aten::lstm.input": check_lstm,
    "aten::lstm.data": check_packed_lstm,
    "aten::max": check_extreme,
    "aten::max.dim": check_extreme_along,
    "aten::min": check_extreme,
    "aten::min.dim": check_extreme_along,
    "aten::scaled_dot_product_attention": check_attention,
}
"""What looks at arguments first, where torch's kernel would read beyond them, or its meta kernel would take them."""


@cache
def _is_computed(op: str) -> bool:
    """Whether an operator has a kernel, and is not only declared."""
    return torch._C._dispatch_has_kernel_for_any_dispatch_key(op, torch._C._dispatch_keyset_full())


def kernel(op: str) -> Kernel:
    """The function that computes a qualified operator from all its schema's arguments, in order.

    Devices other than the CPU are taken for the CPU: where a tensor lies is not the model's business here. Halves of
    which torch has no kernel are computed in float32, and rounded.

    Raises:
        UnsupportedError: there is no such operator.
    """
    if op in _OWN:
        return _OWN[op]
    reason = "" if is_of_library(op) or not schemas_of(op.partition(".")[0]) else refusal(op)
    if reason:
        raise UnsupportedError(f"{reason}, so mobopt does not run it")
    name, _, overload = op.partition(".")
    namespace, _, short = name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), short)
        # Nodes of the language may come without overload; torch then chooses by the arguments.
        function = packet if namespace == "prim" and not overload else getattr(packet, overload or "default")
        if namespace not in ("aten", "prim") and not _is_computed(function.name()):
            raise AttributeError(op)
    except (AttributeError, RuntimeError):
        raise UnsupportedError(
            f"the CPU has no kernel for {op}; convert the model without that operator, or import the library that "
            "registers it"
        ) from None
    keywords = () if namespace == "prim" else _keyword_only(op)
    check = _CHECKED.get(op)
    if op.startswith("quantized::"):
        function = on_qnnpack(op, function)

    def call(*args: Any) -> Any:
        if check is not None:
            check(*args)
        values = [_CPU if isinstance(value, torch.device) and value.type != "meta" else value for value in args]
        positional = len(values) - len(keywords)
        named = dict(zip(keywords, values[positional:], strict=True))
        try:
            return function(*values[:positional], **named)
        except NotImplementedError as error:
            half = next((dtype for words, dtype in _HALVES.items() if words in str(error)), None)
            if half is None or is_mutating(op):
                raise
        return _through_floats(function, half, values[:positional], named)

    return call


def _through_floats(function: Kernel, half: torch.dtype, values: list[Any], named: dict[str, Any]) -> Any:
    """What a kernel that torch has for floats alone makes of halves: computed in float32, and rounded."""

    def changed(value: Any, before: torch.dtype, after: torch.dtype) -> Any:
        return map_leaves(value, torch.Tensor, lambda x: x.to(after) if x.dtype == before else x)

    wide = changed((values, named), half, torch.float32)
    return changed(function(*wide[0], **wide[1]), torch.float32, half)


def _keyword_only(op: str) -> tuple[str, ...]:
    return tuple(argument.name for argument in schema_of(op).arguments if argument.keyword_only)


@cache
def is_mutating(op: str) -> bool:
    """Whether a qualified operator changes an argument in place."""
    return not op.startswith("prim::") and schema_of(op).is_mutating


def operator_error(op: str, source: Origin, args: Any, error: Exception) -> InputError:
    """One clear message for an operator that refuses its arguments."""
    place = f" at {source}" if source else ""
    reason = str(error).split("\n", 1)[0].rstrip(".") or type(error).__name__
    return InputError(
        f"{op}{place} can't take these arguments: {reason} (arguments: {describe(args)}){_way_out(args, reason)}"
    )


def _way_out(args: Any, reason: str) -> str:
    """What to do about floats of several dtypes, which a model in halves meets in inputs of float32, and one in float32
    in inputs of float64, also where its weights are packed."""
    dtypes = dict.fromkeys(tensor.dtype for tensor in leaves_of(args, torch.Tensor) if tensor.is_floating_point())
    if torch.float64 in dtypes and (len(dtypes) > 1 or "(float)" in reason):
        return "; if an input is in float64, as NumPy makes them, give it in float32 (x.float(), x.npy:float32)"
    half = next((str(dtype).removeprefix("torch.") for dtype in dtypes if dtype in _HALVES.values()), None)
    if half is None or len(dtypes) == 1:
        return ""
    return (
        f"; if the model is in {half}, give its inputs in that (x.to(torch.{half}), --random 1,3:{half}, x.npy:{half})"
    )


def describe(value: Any) -> str:
    """Arguments in short: tensors as ``float32[1, 3, 224, 224]``."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        items = [describe(item) for item in value[:12]] + (["..."] if len(value) > 12 else [])
        return f"[{', '.join(items)}]" if isinstance(value, list) else ", ".join(items)
    return repr(value) if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__


def kernel_in_line(qualified_op: str) -> Callable[..., Any]:
    """As :func:`kernel`, for a node of a straight line, which has no strides: a view may be of a tensor that lies in
    another order than in the model, whose copies are gone, and memory is what lies row by row."""
    if has_trait(qualified_op, Trait.COUNTS_PLACES):
        function = kernel(qualified_op)
        return lambda x, *others: function(x.contiguous(), *others)
    return kernel("aten::reshape" if qualified_op in ("aten::view", "aten::_unsafe_view") else qualified_op)
