"""Packed weights of torch's quantised layers, ``torch.classes.quantized``, as files hold them.

Source: ``aten/src/ATen/native/quantized/cpu/conv_serialization.h`` (versions 1 to 3) and
``aten/src/ATen/native/quantized/cpu/fbgemm_utils.cpp`` of PyTorch 2.13.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mobopt.errors import BundleError
from mobopt.ir.types import STR, TENSOR, ListType, OptionalType, TupleType, Type
from mobopt.ops.affine_tensor import AffineTensor
from mobopt.ops.contexts import PackedContext

NAMESPACE = "__torch__.torch.classes.quantized."


@dataclass(frozen=True, eq=False)
class QuantizedLayer(PackedContext):
    """Base: a weight, which is of halves in some linear layers, and a bias of floats."""

    state_is_list: ClassVar[bool] = False
    weight: AffineTensor | torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    @abstractmethod
    def packed(cls, weight: Any, bias: Any, layer: Mapping[str, Any]) -> QuantizedLayer:
        """What a layer of Python packs.

        Args:
            weight: as the layer holds it.
            bias: a tensor or None.
            layer: attributes of the layer, as ``torch.ao.nn.quantized`` has them.

        Raises:
            BundleError: they are something else.
        """


@dataclass(frozen=True, eq=False)
class QuantizedLinear(QuantizedLayer):
    """A linear layer; weight (out, in)."""

    qualified_name: ClassVar[str] = f"{NAMESPACE}LinearPackedParamsBase"

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> QuantizedLinear:
        """Make it from weight and bias.

        Raises:
            BundleError: the state is something else.
        """
        match state:
            case (AffineTensor() as weight, torch.Tensor() | None as bias) if weight.integers.dim() == 2:
                return cls(weight, _without_gradient(bias))
            case (torch.Tensor() as weight, torch.Tensor() | None as bias) if weight.is_floating_point():
                return cls(weight.detach(), _without_gradient(bias))
        raise _damaged(cls)

    def state(self) -> list[Any]:
        """Weight and bias."""
        return [self.weight, self.bias]

    @classmethod
    def packed(cls, weight: Any, bias: Any, layer: Mapping[str, Any]) -> QuantizedLinear:
        """What ``torch.ao.nn.quantized.Linear`` packs."""
        return cls.from_state((weight, bias))


@dataclass(frozen=True, eq=False)
class QuantizedConvolution(QuantizedLayer):
    """A convolution of any number of dimensions; weight as the plain operator takes it."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    groups: int
    transposed: bool

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> QuantizedConvolution:
        """Make it from the state of any version.

        Raises:
            BundleError: the state is something else.
        """
        match state:
            case ("2", [torch.Tensor() as packed, AffineTensor() as weight], optional):
                numbers, bias = packed.tolist(), optional[0] if optional else None
            case (3, list() as numbers, [_, AffineTensor() as weight, bias]):
                pass
            case (AffineTensor() as weight, bias, list() as stride, list() as padding, list() as dilation, groups):
                lists = [[int(item) for item in items] for items in (stride, padding, dilation)]
                numbers = [len(stride), *lists[0], *lists[1], *lists[2], *[0] * len(stride), int(groups), 0]
            case _:
                raise _damaged(cls)
        rank = numbers[0]
        if len(numbers) != 4 * rank + 3 or weight.integers.dim() != rank + 2 or not _is_bias(bias):
            raise _damaged(cls)
        stride, padding, dilation, output_padding = (
            numbers[1 + rank * place : 1 + rank * (place + 1)] for place in range(4)
        )
        plain = _without_gradient(bias)
        return cls(weight, plain, stride, padding, dilation, output_padding, numbers[-2], bool(numbers[-1]))

    def state(self) -> list[Any]:
        """That of version 2, which PyTorch writes and every release since 1.6 reads."""
        lists = (self.stride, self.padding, self.dilation, self.output_padding)
        numbers = [len(self.stride), *(number for items in lists for number in items), self.groups, self.transposed]
        return ["2", [torch.tensor(numbers, dtype=torch.int16), self.weight], [self.bias]]

    @property
    def state_type(self) -> Type:
        """Of version 2."""
        return TupleType((STR, ListType(TENSOR), ListType(OptionalType(TENSOR))))

    @classmethod
    def packed(cls, weight: Any, bias: Any, layer: Mapping[str, Any]) -> QuantizedConvolution:
        """What the convolutions of ``torch.ao.nn.quantized`` pack; those that pad by themselves pack no padding."""
        names = ("stride", "padding", "dilation", "output_padding")
        lists = [list(layer.get(name) or ()) for name in names]
        rank = len(lists[0])
        if layer.get("padding_mode", "zeros") != "zeros":
            lists[1] = [0] * rank
        if rank == 1 and isinstance(weight, AffineTensor):  # packed as of two dimensions
            rank, weight = 2, weight.unsqueezed(2)
            lists = [[neutral, *items] for items, neutral in zip(lists, (1, 0, 1, 0), strict=True)]
        numbers = [rank, *(number for items in lists for number in items), layer.get("groups"), layer.get("transposed")]
        return cls.from_state((3, numbers, [None, weight, bias]))


class QuantizedConv2d(QuantizedConvolution):
    """A convolution of one or two dimensions."""

    qualified_name: ClassVar[str] = f"{NAMESPACE}Conv2dPackedParamsBase"


class QuantizedConv3d(QuantizedConvolution):
    """A convolution of three dimensions."""

    qualified_name: ClassVar[str] = f"{NAMESPACE}Conv3dPackedParamsBase"


def _without_gradient(bias: torch.Tensor | None) -> torch.Tensor | None:
    """A bias as a constant: torch packs parameters as they are."""
    return None if bias is None else bias.detach()


def _is_bias(value: Any) -> bool:
    return value is None or isinstance(value, torch.Tensor)


def _damaged(cls: type[PackedContext]) -> BundleError:
    return BundleError(f"the packed state of {cls.qualified_name} is of no form that is known; the file is damaged")


QUANTIZED_CLASSES: dict[str, type[QuantizedLayer]] = {
    cls.qualified_name: cls for cls in (QuantizedLinear, QuantizedConv2d, QuantizedConv3d)
}
"""By qualified class name."""
