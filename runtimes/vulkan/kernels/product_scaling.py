"""What a product does to its input as it reads it: ``then(x * factor + shift)``, by numbers of each channel.

So squeeze-and-excitation, and the normalisation before a convolution, take no dispatch of their own, also where what
they make is rounded to steps. The compiler's
``fusion_scaling.py`` finds them; the shaders' half is ``shaders/glsl/product_scaling.glsl``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mobopt.ir import Node, Value
from mobopt.ops.fake_quantize import FAKE_QUANTIZE
from mobopt.runtimes.vulkan.engine.stream import Binding, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, aligned_channels
from mobopt.runtimes.vulkan.kernels.activation import IDENTITY, Activation, activation_of
from mobopt.runtimes.vulkan.kernels.copies import copied
from mobopt.runtimes.vulkan.kernels.epilogue import is_folded
from mobopt.runtimes.vulkan.kernels.weight_packing import bias_vector

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.kernels.plan import Plan


@dataclass(frozen=True)
class ScaledInput:
    """A tensor (batch, C, height, width) that is ``then(source * factor + shift)``."""

    nodes: tuple[Node, ...]
    """What computes it, in order."""
    source: Value
    factor: Value
    shift: Value | None
    then: Activation

    @staticmethod
    def of(value: Value) -> ScaledInput | None:
        """What a tensor is a scaling of; None if it is none."""
        value, nodes, then = _before_activations(value)
        shift = None
        if (maker := _maker(value, "aten::addcmul")) is not None and maker["value"] == 1:
            shift = maker.args[0]
            image, factor = _image_and_vector(maker, *maker.args[1:3])
            if factor is None or not _is_vector(shift, image) or shift.numel != image.sizes[1]:
                return None
            return ScaledInput((maker, *nodes), image, factor, shift, then)
        if (maker := _maker(value, "aten::add.Tensor")) is not None and maker["alpha"] == 1:
            image, shift = _image_and_vector(maker, *maker.args[:2])
            if shift is None or shift.numel != image.sizes[1]:
                return None
            nodes, value = (maker, *nodes), image
        if (maker := _maker(value, "aten::mul.Tensor")) is None:
            return None
        image, factor = _image_and_vector(maker, *maker.args[:2])
        return None if factor is None else ScaledInput((maker, *nodes), image, factor, shift, then)

    @staticmethod
    def folded_into(product: Node) -> ScaledInput | None:
        """What the first operand of a product is a scaling of, if that was folded into it."""
        maker = product.args[0].producer
        return None if maker is None or not is_folded(maker, product) else ScaledInput.of(product.args[0])

    def lowered(self, plan: Plan) -> Scaling:
        """As the kernels take it."""
        varies = self.factor.numel != self.factor.sizes[-3]
        shifts = None if self.shift is None else _vectors(plan, self.shift)
        return Scaling(_vectors(plan, self.factor), shifts, varies, self.then)


def _before_activations(value: Value) -> tuple[Value, tuple[Node, ...], Activation]:
    """What a relu and a rounding were made of, either of which may be missing; they; and both as one."""
    nodes: tuple[Node, ...] = ()
    then: Activation = IDENTITY
    for operator in (FAKE_QUANTIZE, "aten::relu"):
        maker = _maker(value, operator)
        own = None if maker is None else activation_of(maker)
        both = own if own is None or then.is_identity else own.followed_by(then)
        if maker is not None and both is not None:
            value, nodes, then = maker.args[0], (maker, *nodes), both
    return value, nodes, then


def _maker(value: Value, operator: str) -> Node | None:
    """What makes a value, if it is a call of an operator."""
    return value.producer if value.producer is not None and value.producer.qualified_op == operator else None


def _image_and_vector(node: Node, left: Any, right: Any) -> tuple[Value, Value | None]:
    """The operands of a sum or a product of an image and of what is one number for each channel, maybe of each image;
    without the latter if they are others."""
    for image, vector in ((left, right), (right, left)):
        is_image = isinstance(image, Value) and image.sizes == node.output.sizes and len(image.sizes) == 4
        if is_image and _is_vector(vector, image):
            return image, vector
    return node.output, None


def _is_vector(value: Any, image: Value) -> bool:
    """Whether a value is one number for each channel of an image, maybe of each of several."""
    if not isinstance(value, Value) or not value.dtype == image.dtype == torch.float32:
        return False
    return value.sizes in [(*lead, image.sizes[1], 1, 1) for lead in ((), (1,), image.sizes[:1])]


@dataclass(frozen=True, eq=False)
class Scaling:
    """Factors and shifts as the shader reads them: dense vectors of float32 at offset 0, of whole vec4s."""

    factors: DeviceTensor
    shifts: DeviceTensor | None
    varies: bool
    """Whether each image has its own."""
    then: Activation

    def bindings(self) -> tuple[Binding, ...]:
        """The last bindings of the kernels."""
        return bind(self.factors), bind(self.shifts or self.factors)

    @property
    def constants(self) -> tuple[int | float, ...]:
        """The last specialization constants of the kernels."""
        then = self.then.code, float(self.then.first), float(self.then.second)
        return int(self.varies), int(self.shifts is not None), *then


def _vectors(plan: Plan, value: Value) -> DeviceTensor:
    """A value of sizes (C, 1, 1) or (batch, C, 1, 1)."""
    if value.elements is not None and value.numel == value.sizes[-3]:
        return bias_vector(plan, value.elements.reshape(-1))
    tensor = plan.tensor(value)
    batch, channels = (1, *value.sizes)[-4:-2]
    pitch = aligned_channels(channels)
    steps = (tensor.strides[0] if batch > 1 else pitch, tensor.strides[-3] if channels > 1 else 1)
    dense = steps == (pitch, 1) and tensor.offset == 0 and tensor.storage.capacity % 4 == 0
    if dense and tensor.elements == torch.float32:
        return tensor
    image = tensor.view((batch, channels, 1, 1), ((0, *tensor.strides)[-4], tensor.strides[-3], 0, 0))
    return copied(plan, image, dtype=torch.float32)
