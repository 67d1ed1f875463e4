"""Whether the elements of fragments lie where kernels expect them that fill fragments from registers.

Which elements of a cooperative matrix an invocation has is the driver's affair (``VK_KHR_cooperative_matrix`` leaves it
open), and ``matrix_fragments.glsl`` is written for one order, that of NVIDIA's units of 16 x 8 x 16. By another one
results would be wrong without a word. So each device computes a few small products, by every way into fragments and out
of them that kernels use, before any such kernel is chosen for it. The answer is kept for later processes.
"""

from __future__ import annotations

import logging
import math

import torch

from mobopt import shaders
from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine import matrix_units
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_cache import device_file, keep, read_kept
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Dispatch, Stream, bind
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor, Storage, StorageKind, contiguous_strides

ORDERED_FRAGMENTS = "ordered_fragments"
"""The feature of devices whose fragments are in that order."""
_KINDS = ("half", "bfloat")
"""Of what units multiply, as the shader's names end."""
_SUBGROUP_LANES = 32
_SUBGROUPS = 2
_MATRICES, _PRODUCTS = 3, 4
"""Of each subgroup."""
_LARGEST = 2
"""Of the numbers that are multiplied, so that sums are exact in bfloat16, too."""
_LOGGER = logging.getLogger("mobopt.vulkan")


def has_ordered_fragments(device: Device) -> bool:
    """Whether a device's fragments are in the order of ``matrix_fragments.glsl``: tried once, and kept.

    A device that fails at it counts as one with another order, which is logged.
    """
    kinds = _kinds(device.info)
    if not kinds:
        return False
    path = device_file("fragments", device.info, ".json")
    kept = read_kept(path).get("is_ordered")
    if isinstance(kept, bool):
        return kept
    matrices = example_matrices()
    try:
        is_ordered = all(are_right(matrices, multiplied(device, kind, matrices)) for kind in kinds)
    except DeviceError as error:
        _LOGGER.warning(
            "fragments of %s aren't filled from registers: %s; delete %s to try again", device.info.name, error, path
        )
        is_ordered = False
    keep(path, {"is_ordered": is_ordered})
    return is_ordered


def _kinds(info: DeviceInfo) -> list[str]:
    """Of what a device's units multiply; none if no kernel would fill its fragments."""
    if info.subgroup_size != _SUBGROUP_LANES:
        return []
    names = {kind: f"fragment_order_{kind}" for kind in _KINDS}
    able = info.features.issuperset
    return [kind for kind, name in names.items() if able(shaders.variants()[name].requires) and shaders.is_built(name)]


def example_matrices() -> torch.Tensor:
    """Small integers: of each subgroup a left side, and two right ones."""
    generator = torch.Generator().manual_seed(0)
    size = matrix_units.SHAPE[0]
    return torch.randint(-_LARGEST, _LARGEST + 1, (_SUBGROUPS, _MATRICES, size, size), generator=generator).float()


def multiplied(device: Device, kind: str, matrices: torch.Tensor) -> torch.Tensor:
    """The four products of each subgroup as a shader computes them: left times right by three ways, that times another.

    Args:
        device: what computes.
        kind: of what is multiplied, as the shader's name ends.
        matrices: from :func:`example_matrices`.

    Raises:
        DeviceError: the device failed.
    """
    size = matrix_units.SHAPE[0]
    source = _tensor(StorageKind.INPUT, tuple(matrices.shape))
    target = _tensor(StorageKind.OUTPUT, (_SUBGROUPS, _PRODUCTS, size, size))
    dispatch = Dispatch(
        f"fragment_order_{kind}",
        (bind(source), bind(target, writes=True)),
        (1, 1, 1),
        _PRODUCTS * size,
        (_SUBGROUPS * _SUBGROUP_LANES,),
        label="order of fragments",
    )
    executable = Executable(device, Stream([dispatch], [source], [target]))
    try:
        found = executable.run([matrices])[0]
        assert isinstance(found, torch.Tensor)
        return found
    finally:
        executable.close()


def are_right(matrices: torch.Tensor, products: torch.Tensor) -> bool:
    """Whether every product is what its factors give."""
    left, right, other = matrices.unbind(1)
    product = left @ right
    return torch.equal(products, torch.stack([product, product, product, product @ other], 1))


def _tensor(kind: StorageKind, sizes: tuple[int, ...]) -> DeviceTensor:
    storage = Storage(4 * math.prod(sizes), kind, elements=torch.float32)
    return DeviceTensor(storage, torch.float32, sizes, contiguous_strides(sizes))
