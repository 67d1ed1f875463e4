"""What a process must do that was forked after a Vulkan driver was loaded."""

from __future__ import annotations

import ctypes


def skip_exit_handlers() -> None:
    """Have this process end without the exit handlers that drivers have left in the C library.

    Mesa's handler joins the threads of its queues, and a forked process has none of them: it hangs or crashes there.
    The handler that is registered last runs first, and ``_exit`` ends the process with the status that ``exit`` was
    given; the C library's files are flushed just before. Only the GNU C library has ``on_exit``.
    """
    library = ctypes.CDLL(None)
    try:
        on_exit, at_exit = library.on_exit, library.__cxa_atexit
        end, flush = library._exit, library.fcloseall
    except AttributeError:
        return
    on_exit(end, None)
    at_exit(flush, None, None)
