"""Packed contexts: the objects that hold an operator's weights in an optimised file, and their state on the wire.

The order of a dataclass's fields is the order of its state's elements. Source: ``aten/src/ATen/native/vulkan/ops/``,
``aten/src/ATen/native/metal/`` and ``aten/src/ATen/native/xnnpack/`` of PyTorch 1.13.1 and 2.6.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import torch

from mobopt.errors import BundleError
from mobopt.ir.types import ANY, ListType, Type
from mobopt.ops.affine_tensor import AffineTensor


@dataclass(frozen=True, eq=False)
class PackedContext:
    """Base of all contexts; ``state()`` and ``from_state()`` are the wire form."""

    qualified_name: ClassVar[str]
    """The class's name in files: ``__torch__.torch.classes.<namespace>.<class>``."""
    state_is_list: ClassVar[bool] = True
    """Whether the state is a generic list (``List[Any]``), as Vulkan's are, or a tuple."""
    with_integers: ClassVar[type[PackedContext] | None] = None
    """What the class's objects are where the weight, the first element, is quantised."""

    def state(self) -> list[Any]:
        """The elements of the state, in wire order."""
        return [getattr(self, item.name) for item in fields(self)]

    @property
    def state_type(self) -> Type | None:
        """Of the state; None for a tuple whose elements tell their types."""
        return ListType(ANY) if self.state_is_list else None

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> PackedContext:
        """Make a context from its state.

        Raises:
            BundleError: the state has another number of elements, or an element has a wrong type.
        """
        if cls.with_integers is not None and isinstance(next(iter(state), None), AffineTensor):
            return cls.with_integers.from_state(state)
        names = [item.name for item in fields(cls)]
        if len(state) != len(names):
            raise BundleError(
                f"the packed state of {cls.qualified_name} has {len(state)} elements where {len(names)} belong "
                f"({', '.join(names)}); the file is damaged or from an unknown release"
            )
        for name, value in zip(names, state, strict=True):
            _check_element(cls, name, value)
        return cls(*state)


_INT_LISTS = {"stride", "padding", "dilation", "output_padding"}
_TENSORS = {"weight", "bias", "running_mean", "running_var"}


def _check_element(cls: type[PackedContext], name: str, value: Any) -> None:
    if name in _INT_LISTS:
        good = isinstance(value, list) and all(isinstance(item, int) for item in value)
    elif name == "weight" and issubclass(cls, QuantizedContext):
        good = isinstance(value, AffineTensor)
    elif name == "quantized":
        good = value is issubclass(cls, QuantizedContext)
    elif name in _TENSORS:
        good = isinstance(value, torch.Tensor) or (value is None and name != "weight")
    elif name in ("output_min", "output_max"):
        good = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    else:
        good = value is not None
    if not good:
        raise BundleError(
            f"the packed state of {cls.qualified_name} has {type(value).__name__} for {name!r}; the file is damaged"
        )


@dataclass(frozen=True, eq=False)
class _Conv2dSettings(PackedContext):
    """What follows weight and bias in the state of a 2-d convolution."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.vulkan.Conv2dPackedContext"
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    quantized: bool
    output_padding: list[int]
    groups: int
    output_min: int | float | None
    output_max: int | float | None


@dataclass(frozen=True, eq=False)
class QuantizedContext(PackedContext):
    """Base of those whose weight is quantised; Vulkan's kernels take a bias of floats, and need one."""

    weight: AffineTensor
    bias: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class QuantizedConv2dContext(_Conv2dSettings, QuantizedContext):
    """A :class:`Conv2dPackedContext` whose weight is quantised."""

    @cached_property
    def in_floats(self) -> Conv2dPackedContext:
        """The layer that it rounds the result of."""
        settings = (self.stride, self.padding, self.dilation, self.transposed, False, self.output_padding, self.groups)
        return Conv2dPackedContext(self.weight.floats(), self.bias, *settings, self.output_min, self.output_max)


@dataclass(frozen=True, eq=False)
class QuantizedLinearContext(QuantizedContext):
    """A :class:`LinearPackedContext` whose weight is quantised; (in, out)."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.vulkan.LinearPackedContext"

    @cached_property
    def in_floats(self) -> LinearPackedContext:
        """The layer that it rounds the result of."""
        return LinearPackedContext(self.weight.floats(), self.bias)


@dataclass(frozen=True, eq=False)
class _FloatWeight(PackedContext):
    """What stands before the settings of a convolution of floats."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class Conv2dPackedContext(_Conv2dSettings, _FloatWeight):
    """A 2-d convolution or transposed convolution with its output clamp.

    ``weight`` is as torch has it: (out, in/groups, kh, kw), or (in, out/groups, kh, kw) if ``transposed``.
    """

    with_integers: ClassVar[type[PackedContext] | None] = QuantizedConv2dContext


@dataclass(frozen=True, eq=False)
class Conv1dPackedContext(PackedContext):
    """A 1-d convolution; weight (out, in/groups, k)."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.vulkan.Conv1dPackedContext"
    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


@dataclass(frozen=True, eq=False)
class LinearPackedContext(PackedContext):
    """A linear layer; weight is transposed: (in, out)."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.vulkan.LinearPackedContext"
    with_integers: ClassVar[type[PackedContext] | None] = QuantizedLinearContext
    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class LayernormPackedContext(PackedContext):
    """A layer normalisation."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.vulkan.LayernormPackedContext"
    weight: torch.Tensor
    bias: torch.Tensor | None
    eps: float


@dataclass(frozen=True, eq=False)
class BatchNormPackedContext(PackedContext):
    """A batch normalisation in evaluation mode."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.vulkan.BatchNormPackedContext"
    weight: torch.Tensor
    bias: torch.Tensor | None
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    eps: float


@dataclass(frozen=True, eq=False)
class GruPackedContext(PackedContext):
    """A GRU; ``params`` are w_ih, w_hh, b_ih, b_hh of each layer, or their per-gate parts (12 a layer) as stock
    builds write them."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.vulkan.GruPackedContext"
    gates: ClassVar[int] = 3
    params: list[torch.Tensor]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @cached_property
    def layer_parameters(self) -> list[torch.Tensor]:
        """As ``aten::gru`` and ``aten::lstm`` take them: w_ih, w_hh, b_ih, b_hh of each layer.

        Genuine builds write each layer split into gates, (w_ih, b_ih, w_hh, b_hh) of the first gate, then of the next;
        those parts are put together once.
        """
        parts = 4 * self.gates
        if len(self.params) != parts * self.num_layers:
            return list(self.params)
        layers = (self.params[start : start + parts] for start in range(0, len(self.params), parts))
        return [torch.cat(layer[kind::4]) for layer in layers for kind in (0, 2, 1, 3)]

    @property
    def flags(self) -> tuple[bool, int, float, bool, bool, bool]:
        """The arguments of ``aten::gru`` and ``aten::lstm`` after their parameters."""
        return (self.has_biases, self.num_layers, self.dropout, self.train, self.bidirectional, self.batch_first)


@dataclass(frozen=True, eq=False)
class LstmPackedContext(GruPackedContext):
    """An LSTM; as :class:`GruPackedContext`, with 16 parts a layer in the split form."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.vulkan.LstmPackedContext"
    gates: ClassVar[int] = 4


@dataclass(frozen=True, eq=False)
class ClampedConvContext(PackedContext):
    """A convolution with its clamp, in the tuple state of three backends; weight (out, in/groups, kh, kw)."""

    state_is_list: ClassVar[bool] = False
    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    output_min: int | float | None
    output_max: int | float | None


@dataclass(frozen=True, eq=False)
class VulkanConv2dOpContext(ClampedConvContext):
    """The convolution context of releases up to 1.12, which later runtimes still read."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.vulkan.Conv2dOpContext"


@dataclass(frozen=True, eq=False)
class MetalConv2dOpContext(ClampedConvContext):
    """Metal's convolution."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.metal.Conv2dOpContext"


@dataclass(frozen=True, eq=False)
class XnnpackConv2dOpContext(ClampedConvContext):
    """XNNPACK's convolution."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.xnnpack.Conv2dOpContext"


@dataclass(frozen=True, eq=False)
class XnnpackTransposeConv2dOpContext(PackedContext):
    """XNNPACK's transposed convolution; weight (in, out/groups, kh, kw)."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.xnnpack.TransposeConv2dOpContext"
    state_is_list: ClassVar[bool] = False
    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: list[int]
    padding: list[int]
    output_padding: list[int]
    dilation: list[int]
    groups: int
    output_min: int | float | None
    output_max: int | float | None


@dataclass(frozen=True, eq=False)
class ClampedLinearContext(PackedContext):
    """A linear layer with its clamp; weight (out, in)."""

    state_is_list: ClassVar[bool] = False
    weight: torch.Tensor
    bias: torch.Tensor | None
    output_min: int | float | None
    output_max: int | float | None


@dataclass(frozen=True, eq=False)
class MetalLinearOpContext(ClampedLinearContext):
    """Metal's linear layer."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.metal.LinearOpContext"


@dataclass(frozen=True, eq=False)
class XnnpackLinearOpContext(ClampedLinearContext):
    """XNNPACK's linear layer."""

    qualified_name: ClassVar[str] = "__torch__.torch.classes.xnnpack.LinearOpContext"


CONTEXT_CLASSES: dict[str, type[PackedContext]] = {
    cls.qualified_name: cls
    for cls in (
        Conv2dPackedContext,
        Conv1dPackedContext,
        LinearPackedContext,
        LayernormPackedContext,
        BatchNormPackedContext,
        GruPackedContext,
        LstmPackedContext,
        VulkanConv2dOpContext,
        MetalConv2dOpContext,
        MetalLinearOpContext,
        XnnpackConv2dOpContext,
        XnnpackTransposeConv2dOpContext,
        XnnpackLinearOpContext,
    )
}
"""Every context that files may hold, by qualified class name."""
