"""A process of a task that imports nothing large: the model's file is text that says what to do."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    task = json.loads(sys.stdin.readline())
    folder, model = Path(sys.argv[1]), Path(sys.argv[2])
    word, _, argument = model.read_text().partition(" ")
    print(f"doing {word}", flush=True)
    if word == "sleep":
        time.sleep(60)
    if word == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "killed-once" and not Path(argument).exists():
        Path(argument).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "bad_alloc":
        print("terminate called after throwing an instance of 'std::bad_alloc'", flush=True)
        os.abort()
    if word == "silent":
        return
    if word == "wait-once" and not Path(argument).exists():
        Path(argument).write_text(str(os.getpid()))
        sys.stdin.read()
        Path(f"{argument}.ended").touch()
        return
    state = word if word in ("bad", "refused") else "good"
    data = {"ms": [float(argument)] * 3} if word == "takes" else {"threads": os.environ.get("OMP_NUM_THREADS")}
    result = {"state": state, "text": f"{task['job']['do']} of {word}", "data": data}
    (folder / "result.json").write_text(json.dumps(result))


main()
