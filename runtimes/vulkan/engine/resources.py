"""Vulkan objects with one owner: a scope creates them and destroys them, last made first."""

from __future__ import annotations

from collections import Counter

from mobopt.runtimes.vulkan.engine import vk


class ResourceScope:
    """Owns Vulkan objects of one logical device until :meth:`close`; ``live`` counts them by type, over all scopes."""

    def __init__(self, device: vk.Handle, live: Counter[str]) -> None:
        self._device = device
        self._live = live
        self._owned: list[tuple[str, vk.Handle]] = []

    def create(self, kind: str, info: vk.Handle, action: str) -> vk.Handle:
        """Make an object with ``vkCreate<kind>``.

        Args:
            kind: its type without ``Vk``: ``Buffer``, ``Fence``.
            info: the create structure.
            action: what an error says was tried.

        Raises:
            DeviceError: the driver refused.
        """
        handle = vk.ffi.new(f"Vk{kind}*")
        vk.check(getattr(vk.lib, f"vkCreate{kind}")(self._device, info, vk.ffi.NULL, handle), action)
        self.adopt(kind, handle[0])
        return handle[0]

    def adopt(self, kind: str, handle: vk.Handle) -> None:
        """Own an object that was made elsewhere."""
        self._owned.append((kind, handle))
        self._live[kind] += 1

    def close(self) -> None:
        """Destroy everything; a second call does nothing."""
        while self._owned:
            kind, handle = self._owned.pop()
            verb = "Free" if kind == "Memory" else "Destroy"
            getattr(vk.lib, f"vk{verb}{kind}")(self._device, handle, vk.ffi.NULL)
            self._live[kind] -= 1
