"""Who uses a device now: a device is closed only when nobody does, and nobody may begin after that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from mobopt.errors import DeviceError, DeviceLostError


class DeviceGate:
    """Counts the calls that need a device open; ``with gate:`` is one of them, in any thread."""

    process_is_ending = False
    """Set at exit, for all gates: a daemon thread that comes then waits for the end of the process."""

    def __init__(self, name: str) -> None:
        """``name`` is the device's, for messages."""
        self.is_lost = False
        """Whether a call of the device has ended in :class:`DeviceLostError`."""
        self._name = name
        self._is_closed = False
        self._inside: list[None] = []
        """An item for each call that is in: a list grows and shrinks at once, without a lock."""
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        """Keep the device open.

        Raises:
            DeviceError: it is closed or lost.
        """
        self._inside.append(None)  # before the question, so that whoever closes it now waits
        if not (self._is_closed or self.is_lost):
            return
        self.__exit__(None, None, None)
        if self.process_is_ending and threading.current_thread().daemon:
            threading.Event().wait()  # An error would be printed over the last lines of the program.
        how = "was lost" if self.is_lost else "is closed"
        raise DeviceError(f"{self._name} {how}, and what was made for it can't run any more; call the module again")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let it be closed."""
        if isinstance(error, DeviceLostError):
            self.is_lost = True
        del self._inside[-1:]
        if self._is_closed:
            with self._changed:
                self._changed.notify_all()

    @property
    def is_lone(self) -> bool:
        """Whether no other call is in beside the caller's."""
        return len(self._inside) <= 1

    def stay(self) -> None:
        """Count a call once more, which is in: it ends in :meth:`leaving`, perhaps in another thread."""
        self._inside.append(None)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """The end of a call that :meth:`stay` was called for."""
        try:
            yield
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        self.__exit__(None, None, None)

    def close(self, wait_seconds: float | None = None) -> bool:
        """Let nobody in any more, and wait until all are out; False if they are not within ``wait_seconds``."""
        self._is_closed = True
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside, wait_seconds)

    def forget(self) -> None:
        """Be closed, and count nobody: the threads that were in stayed in the process that this one was forked from."""
        self._changed = threading.Condition()
        self._is_closed = True
        self._inside = []
