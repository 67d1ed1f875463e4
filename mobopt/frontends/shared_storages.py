"""Which tensors of a module lie in one storage: torch's copies of a module lose that, and files would grow by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

_View = tuple[torch.dtype, torch.Size]


class SharedStorages:
    """Copies of a module's tensors that share storages, or repeat elements, as the module's own do.

    A tensor is here only if copying it alone would need more memory: a transposed or sliced weight beside the whole
    one, or one element that is expanded to the sizes of an image. The copies share nothing with the module itself,
    which may be trained further.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        groups: dict[int, dict[tuple[Any, ...], torch.Tensor]] = {}
        for tensor in tensors:
            if tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized:
                key = (tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride())
                groups.setdefault(tensor.untyped_storage().data_ptr(), {})[key] = tensor.detach()
        self._views: dict[_View, list[torch.Tensor]] = {}
        for group in groups.values():
            self._add(list(group.values()))

    def _add(self, group: list[torch.Tensor]) -> None:
        """Copy a storage with the tensors that lie in it, if that needs less memory than copying them apart."""
        storage = group[0].untyped_storage()
        if sum(tensor.numel() * tensor.itemsize for tensor in group) <= storage.nbytes():
            return
        copy = storage.clone()  # type: ignore[no-untyped-call]
        for tensor in group:
            view = torch.empty(0, dtype=tensor.dtype)
            view.set_(copy, tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload]
            self._views.setdefault((tensor.dtype, tensor.shape), []).append(view)

    def restored(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the shared storage that has the same elements, or the tensor itself."""
        for view in self._views.get((tensor.dtype, tensor.shape), ()):
            if torch.equal(view, tensor):
                return view
        return tensor


def restore_views(module: torch.jit.ScriptModule, copy: torch.jit.ScriptModule) -> None:
    """Make parameters and buffers of a deep copy views of one storage where those of the module are."""
    groups: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in _named_tensors(module):
        if tensor.layout == torch.strided and tensor.numel() and not tensor.is_quantized:
            groups.setdefault(tensor.untyped_storage().data_ptr(), {})[name] = tensor.detach()
    for group in groups.values():
        if len({(tensor.shape, tensor.stride(), tensor.storage_offset()) for tensor in group.values()}) == 1:
            continue
        storage = next(iter(group.values())).untyped_storage().clone()  # type: ignore[no-untyped-call]
        for name, tensor in group.items():
            view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload]
            *path, last = name.split(".")
            owner: Any = copy._c
            for part in path:
                owner = owner.getattr(part)
            owner.setattr(last, view)


def _named_tensors(module: torch.jit.ScriptModule) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a nest of lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)
