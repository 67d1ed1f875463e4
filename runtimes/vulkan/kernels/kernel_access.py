"""How kernels reach tensors: vec4, splat or single loads of elements of each type, texel buffers or storage buffers.

And how a grid is spread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from mobopt.errors import UnsupportedError
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Binding, bind
from mobopt.runtimes.vulkan.engine.tensor import WORD_BYTES, DeviceTensor
from mobopt.shaders.enumerations import ElementForm, LoadMode

VECTOR = 4


FORMS_OF_ELEMENTS = {
    torch.float32: ElementForm.WORDS,
    torch.int32: ElementForm.WORDS,
    torch.float16: ElementForm.HALVES,
    torch.bfloat16: ElementForm.BFLOATS,
    torch.int16: ElementForm.SHORTS,
    torch.int8: ElementForm.BYTES,
    torch.uint8: ElementForm.OCTETS,
    torch.bool: ElementForm.OCTETS,
    torch.int64: ElementForm.LONGS,
}


def element_form(tensor: DeviceTensor) -> ElementForm:
    """How the elements of a tensor's storage lie in its words. Halves that stand for float32 are converted faster."""
    if tensor.storage.elements == torch.float16 and tensor.dtype == torch.float32:
        return ElementForm.ROUNDED
    return FORMS_OF_ELEMENTS[tensor.storage.elements]


def read_access(tensor: DeviceTensor, mode: LoadMode) -> int:
    """The specialization constant that says how a shader reads an operand; for words it is the mode."""
    return mode | element_form(tensor) << 2


def write_access(tensor: DeviceTensor, whole: bool) -> int:
    """The specialization constant that says how a shader writes a result, in ``whole`` vec4s or by single elements."""
    return int(whole) | element_form(tensor) << 1


def load_mode(offset: int, strides: Sequence[int]) -> LoadMode:
    """The cheapest way to read four lanes along the last of ``strides``, each run starting at a multiple of four."""
    if strides[-1] == 0:
        return LoadMode.SPLAT
    return LoadMode.VECTOR if is_vector_run(offset, strides) else LoadMode.SINGLES


def is_vector_run(offset: int, strides: Sequence[int]) -> bool:
    """Whether lanes along the last dimension are neighbours and every run of them starts on a vec4."""
    return strides[-1] == 1 and offset % VECTOR == 0 and all(stride % VECTOR == 0 for stride in strides[:-1])


def reading(tensor: DeviceTensor, mode: LoadMode, texels: bool) -> Binding:
    """Bind an operand for the macros of ``access.glsl``."""
    texel_words = read_words(tensor, mode)
    step = WORD_BYTES * texel_words
    nbytes = tensor.storage.nbytes // step * step
    return Binding(tensor.storage, 0, nbytes, texel_words=texel_words if texels else 0, tensor=tensor)


def read_words(tensor: DeviceTensor, mode: LoadMode) -> int:
    """How many words a shader reads at once: four elements, or the word that one is in."""
    return VECTOR * tensor.storage.elements.itemsize // WORD_BYTES if mode == LoadMode.VECTOR else 1


def writing(tensor: DeviceTensor, *, reads: bool = False, by_element: bool = False) -> Binding:
    """Bind a result, which the kernel may read back."""
    return bind(tensor, reads=reads, writes=True, by_element=by_element)


def owns_storage(tensor: DeviceTensor) -> bool:
    """Whether nothing but the tensor and its padding is in its storage, so that the padding may be overwritten."""
    return tensor.offset == 0 and -(-tensor.span[1] // VECTOR) * VECTOR == tensor.storage.capacity


def reads_texels(device: DeviceInfo) -> bool:
    """Whether kernels read through texel buffers at all."""
    return device.is_cpu and "texel_formats" in device.features and "no-texels" not in device.switches


def uses_texels(device: DeviceInfo, operands: Sequence[tuple[DeviceTensor, LoadMode]]) -> bool:
    """Whether to read through texel buffers: CPU drivers do that faster; the device's limit on their size must hold."""
    if not operands or not reads_texels(device):
        return False
    limit = device.limits.max_texel_buffer_elements
    return all(tensor.storage.nbytes // (WORD_BYTES * read_words(tensor, mode)) <= limit for tensor, mode in operands)


def local_size(device: DeviceInfo, invocations: int) -> int:
    """Invocations of a workgroup: large ones are cheaper, but every core of a CPU wants some."""
    return device.workgroup(128 if not device.is_cpu or invocations >= 1024 else 8)


def spread(groups: int, limit: int = 65535) -> tuple[int, int, int]:
    """A count of workgroups as a grid that Vulkan accepts everywhere; ``invocation_index()`` in GLSL reads it back."""
    if groups <= limit:
        return (max(groups, 1), 1, 1)
    rows = -(-groups // limit)
    if rows > limit:
        raise UnsupportedError(
            f"a kernel of {groups} workgroups exceeds the grid of {limit} x {limit}; use smaller tensors"
        )
    return (-(-groups // rows), rows, 1)


def placed(tensors: Iterable[DeviceTensor], strides: Iterable[Sequence[int]]) -> list[int]:
    """Offset and strides of tensors, one after the other, as push constants have them."""
    numbers: list[int] = []
    for tensor, own in zip(tensors, strides, strict=True):
        numbers += (tensor.offset, *own)
    return numbers
