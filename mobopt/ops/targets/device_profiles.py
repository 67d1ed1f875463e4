"""Limits of named devices, and what PyTorch Mobile's tensors and packed weights ask of them.

Tensors: ``aten/src/ATen/native/vulkan/api/Tensor.cpp``: a 3-D image whose texels hold four channels; Metal: an
``MPSImage``, a texture array whose slices hold four channels. Weights on Vulkan: ``ops/Convolution.cpp``
(``pack_weights_2d``, since 2.0 ``rearrange_weights_2d``) and ``ops/Mm.cpp`` (``pack_weights``, since 2.1
``pack_weights_using_height_packing``).
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from mobopt.errors import InputError
from mobopt.ops.targets.table import FLAT_LIMIT, IMAGE_LIMIT, release_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Extent = tuple[int, int, int]
"""Width, height and depth (or slices) in texels of four channels."""

_TEXEL_BYTES = 16
_MOST_RANK = 4


@dataclass(frozen=True)
class DeviceProfile:
    """Limits of a device; None where they are not known. The file ``device_profiles.toml`` explains each."""

    name: str
    backend: str
    device: str
    source: str
    """Where the figures come from."""
    image_3d: int
    image_2d: int
    layers: int | None = None
    storage_buffer: int | None = None
    uniform_buffer: int | None = None
    invocations: int | None = None
    float16: bool | None = None

    def misfit(self, extent: Extent, is_flat: bool = False) -> str:
        """Why the device can't hold an image; empty if it can.

        Args:
            extent: of the image.
            is_flat: whether a Vulkan image is 2-D.
        """
        width, height, depth = extent
        edge = self.image_2d if is_flat or self.backend == "metal" else self.image_3d
        most = edge if self.backend == "vulkan" else self.layers
        if max(width, height) > edge or (most is not None and depth > most):
            limits = f"{edge}x{edge}x{most or '?'}"
            return f"needs an image of {width}x{height}x{depth} texels, and the limit is {limits}"
        size = width * height * depth * _TEXEL_BYTES
        if self.backend == "vulkan" and self.storage_buffer is not None and size > self.storage_buffer:
            return f"is copied through a buffer of {size} bytes, and the limit is {self.storage_buffer}"
        return ""


ANY_PHONE = DeviceProfile(
    name="",
    backend="vulkan",
    device="most phones",
    source="the limit that target rows are judged by",
    image_3d=IMAGE_LIMIT,
    image_2d=FLAT_LIMIT,
)
"""What stands in where no device is named."""


@cache
def device_profiles() -> dict[str, DeviceProfile]:
    """Every profile by name."""
    text = (resources.files("mobopt.ops.targets") / "device_profiles.toml").read_text(encoding="utf-8")
    return {name: DeviceProfile(name, **entry) for name, entry in tomllib.loads(text)["profile"].items()}


def find_profile(name: str, backend: str) -> DeviceProfile:
    """A profile of a backend.

    Raises:
        InputError: there is none of this name, or it is of another backend.
    """
    known = device_profiles()
    names = [item.name for item in known.values() if item.backend == backend]
    if not names:
        raise InputError(f"there are no device profiles for the backend {backend}; leave the profile out")
    if name not in known:
        near = difflib.get_close_matches(name.lower(), names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(names)}"
        raise InputError(f"there is no device profile {name!r}; {hint}")
    if known[name].backend != backend:
        raise InputError(
            f"the device profile {name} is for {known[name].backend}, and the backend is {backend}; choose one of "
            f"{', '.join(names)}"
        )
    return known[name]


def image_limit_of(name: str | None, backend: str) -> int | None:
    """Largest extent of a 3-D image on a named device, for a conversion; None without a name.

    Raises:
        InputError: there is no such profile, or the backend has no images of that kind.
    """
    if name is None:
        return None
    if backend != ANY_PHONE.backend:
        raise InputError(
            f"a conversion asks a device profile for the limit of {ANY_PHONE.backend}'s images, and the backend is "
            f"{backend}; leave --device-profile out, and give it to mobopt audit"
        )
    return find_profile(name, backend).image_3d


def tensor_extent(sizes: Sequence[int]) -> Extent | None:
    """The image of a tensor of 1 to 4 dimensions with elements; None for others, which can't be on a GPU at all."""
    if not 1 <= len(sizes) <= _MOST_RANK or math.prod(sizes) == 0:
        return None
    batch, channels, height, width = (1, 1, 1, 1, *sizes)[-4:]
    return width, height, batch * _fours(channels)


def weight_extent(operator: str, sizes: Sequence[int], groups: int, transposed: bool, runtime: str) -> Extent | None:
    """The image of a packed weight on Vulkan; None for operators whose weights are packed in other ways.

    Args:
        operator: ``aten::conv2d``, ``aten::conv_transpose2d.input`` or ``aten::linear``.
        sizes: of the weight as torch has it.
        groups: of a convolution.
        transposed: whether the convolution is.
        runtime: release of PyTorch.
    """
    if operator == "aten::linear" and len(sizes) == 2:
        outputs, inputs = sizes
        if release_key(runtime) < (2, 1):  # blocks of 2 by 2
            return -(-outputs // 2), -(-inputs // 2), 1
        return outputs, inputs, 1  # uploaded as it is, packed on the GPU
    if operator not in ("aten::conv2d", "aten::conv_transpose2d.input") or len(sizes) != 4:
        return None
    outputs, inputs, rows, columns = sizes
    if transposed:
        outputs, inputs = inputs, outputs
    if groups > 1 and not transposed and inputs == 1:
        return rows * columns, _fours(outputs), 1
    return columns * _fours(inputs) * 4, rows * _fours(outputs), 1


def _fours(count: int) -> int:
    return -(-count // 4)
