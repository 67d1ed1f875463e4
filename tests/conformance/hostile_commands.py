"""Runs commands on mutated files, in a process of little memory and time that may start nothing; a line for each.

Run as ``python hostile_commands.py FOLDER FIRST COUNT``: the cases with these numbers, in a folder of their own that is
watched for new files. Prints ``case NUMBER`` before and ``done OUTCOME`` after each; the process that started it knows
by that which case a death belongs to.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from mutations import mutated

GOLDEN = Path(__file__).parent.parent / "golden"
SEEDS = [
    GOLDEN / name
    for name in (
        "pt2.13.0/mixed/model.pt",
        "pt1.13.1/convbnrelu6/model.ptl",
        "pt2.13.0/mlp/model.pt",
        "pt1.13.1/mixed/vulkan.ptl",
        "pt2.13.0/lstm/vulkan_fixedstate.ptl",
        "pt1.13.1/mixed/metal.ptl",
        "pt1.13.1/lstm/cpu.pt",
        "pt2.13.0/layernorm/model.pt",
        "pt2.13.0/mlp/model.ff",
        "pt2.13.0/mixed/vulkan.ff",
    )
]
COMMANDS = (
    ("inspect", "FILE"),
    ("opnames", "FILE"),
    ("audit", "FILE", "--backend", "cpu"),
    ("audit", "FILE"),
    ("convert", "FILE", "-o", "OUT", "--backend", "cpu"),
    ("convert", "FILE", "-o", "OUT", "--force"),
    ("run", "FILE", "--device", "cpu", "--random", "1,3,32,32"),
    ("migrate", "FILE", "-o", "PLAIN"),
    ("compare", "FILE", "FILE", "--device-a", "cpu", "--random", "1,3,32,32"),
    ("report", "FILE", "-o", "PAGE", "--device", "cpu", "--random", "1,3,32,32"),
    ("tap", "FILE", "-o", "OUT", "--random", "1,3,32,32"),
    ("app-kit", "FILE", "-o", "KIT", "--force", "--random", "1,3,32,32"),
)
_READING = ("inspect", "opnames")
SECONDS, SECONDS_PER_MEGABYTE = 2.0, 4.0
"""Of the processor, for reading a file and for its size as it is unpacked."""
COMPUTING_SECONDS = 25.0
"""More for commands that compute with the model, ten of which loops that do not end may take."""
MEMORY = 768 << 20
_GIVEN, _INTERRUPTED, _GRACE = "--random", 130, 3
"""On inputs that a user gives, a model may compute for as long as it likes; Ctrl-C ends the command at once."""
_FORBIDDEN = ("os.exec", "os.system", "os.posix_spawn", "subprocess.", "socket.", "pickle.", "shutil.move")


def _limit(second: int, is_interrupted: bool) -> None:
    """Let the process die when it has taken so much of the processor, and a while more; or interrupt it before."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (second + _GRACE, resource.RLIM_INFINITY))
        raise KeyboardInterrupt

    signal.signal(signal.SIGXCPU, interrupt if is_interrupted else signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (second + _GRACE * (not is_interrupted), resource.RLIM_INFINITY))


def case_file(number: int) -> tuple[tuple[str, ...], bytes]:
    """Command and file of a case, the same in every process."""
    source = random.Random(f"hostile {number}")
    return source.choice(COMMANDS), mutated(source.choice(SEEDS).read_bytes(), source)


def main(folder: Path, first: int, count: int) -> None:
    """Warm up, set limits, run the cases."""
    from mobopt.commands import main as command

    for words in COMMANDS:
        _run(command, words, SEEDS[0].read_bytes(), folder)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
    events: list[str] = []
    sys.addaudithook(lambda event, args: events.append(event) if event.startswith(_FORBIDDEN) else None)
    for number in range(first, first + count):
        words, data = case_file(number)
        print(f"case {number} {' '.join(words)}", flush=True)
        events.clear()
        outcome = _run(command, words, data, folder)
        print(f"done {f'ran {events[0]}' if events else outcome}", flush=True)


def _run(command: Any, words: tuple[str, ...], data: bytes, folder: Path) -> str:
    """``ok``, or what went wrong."""
    file, out, watched = folder / "case.pt", folder / "out.ptl", folder / "watched"
    named = {
        "FILE": file,
        "OUT": out,
        "PLAIN": folder / "plain.pt",
        "PAGE": folder / "page.html",
        "KIT": folder / "kit",
    }
    watched.mkdir(exist_ok=True)
    file.write_bytes(data)
    out.unlink(missing_ok=True)
    os.chdir(watched)
    seconds = SECONDS + SECONDS_PER_MEGABYTE * _unpacked(data) / (1 << 20)
    seconds += 0 if words[0] in _READING else COMPUTING_SECONDS
    started = time.process_time()
    _limit(int(started + seconds), _GIVEN in words)
    text, errors = io.StringIO(), io.StringIO()
    arguments = [str(named.get(word, word)) for word in words]
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(errors):
            command(arguments, standalone_mode=True)
        code: Any = 0
    except SystemExit as error:
        code = error.code
    except BaseException:
        return f"traceback {traceback.format_exc()[-900:]!r}"
    spent, shown = time.process_time() - started, text.getvalue() + errors.getvalue()
    if code not in (0, 1, 2, None) and not (code == _INTERRUPTED and _GIVEN in words):
        return f"exit {code}"
    if spent > seconds + _GRACE * (code == _INTERRUPTED):
        return f"time {spent:.1f} s of {seconds:.1f}"
    if "Traceback" in shown:
        return f"traceback {shown[-900:]!r}"
    if any((ord(character) < 32 and character not in "\n\t\r") or character == "\u202e" for character in shown):
        return f"controls {shown[:300]!r}"
    if list(watched.iterdir()):
        return f"wrote {list(watched.iterdir())}"
    return "ok" if code == 0 else f"ok {errors.getvalue().strip()[-100:]!r}"


def _unpacked(data: bytes) -> int:
    """Bytes of the records, as far as they can be read."""
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return max(len(data), min(sum(item.file_size for item in archive.infolist()), 40 << 20))
    except Exception:  # whatever zipfile says of a damaged file
        return len(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
