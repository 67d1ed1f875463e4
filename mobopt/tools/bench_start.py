"""A process of its own that opens one rival and calls it once: ``python -m mobopt.tools.bench_start ORDER``.

The order is JSON: the fields of :class:`~mobopt.tools.bench_rival.Bench`, the rival's name, and the time at which the
process was started. It prints the seconds from then to the first result, those of importing torch, and peak memory.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Measure one start."""
    order = json.loads(sys.argv[1])
    importing = time.perf_counter()
    import torch  # noqa: F401

    imported = time.perf_counter() - importing
    from mobopt.tools.bench_peers import PEERS
    from mobopt.tools.bench_rival import Bench

    bench = Bench(Path(order["folder"]), order["method"], order["threads"], order["device"], order["keep_clock"])
    contestant = PEERS[order["peer"]].open(bench)
    contestant.call()
    seconds = time.time() - order["started"]
    device = None if contestant.device_bytes is None else contestant.device_bytes()
    print(json.dumps({"seconds": seconds, "torch": imported, "host": _peak_host_bytes(), "device": device}))


def _peak_host_bytes() -> int | None:
    """Peak memory of this process; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
