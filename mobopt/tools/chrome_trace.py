"""Dispatch times in Chrome's trace event format, which Perfetto and chrome://tracing open.

Source: "Trace Event Format" of the Chromium project; complete events (``ph: X``), times in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mobopt.runtimes.vulkan.engine.stream import Dispatch, moved_bytes

if TYPE_CHECKING:
    from mobopt.runtimes.vulkan.engine.profiling import OperationTime

_PROCESS = 1
_THREAD = 1


def chrome_trace(times: Sequence[OperationTime], device: str, model: str) -> dict[str, Any]:
    """The trace of a run, ready for ``json.dump``."""
    events: list[dict[str, Any]] = [
        _name("process_name", device),
        _name("thread_name", model),
    ]
    events += [
        {
            "name": time.label,
            "cat": "dispatch",
            "ph": "X",
            "ts": time.start_ns / 1000,
            "dur": time.duration_ns / 1000,
            "pid": _PROCESS,
            "tid": _THREAD,
            "args": _arguments(time),
        }
        for time in times
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"device": device, "model": model}}


def _arguments(time: OperationTime) -> dict[str, Any]:
    read, written = moved_bytes(time.operation)
    found: dict[str, Any] = {
        "source": str(time.source),
        "nodes": [node.text for node in time.source.nodes],
        "bytes read": read,
        "bytes written": written,
    }
    if isinstance(time.operation, Dispatch):
        found |= {"shader": time.operation.shader, "workgroups": list(time.operation.groups)}
    return found | {"reason": time.reason} if time.reason else found


def _name(kind: str, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": _THREAD, "args": {"name": name}}
