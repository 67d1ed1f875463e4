"""Mutated files through every command: no crash, no code run, no file written, no traceback, soon, in little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits of memory are set as Linux has them"
)

_CASES_OF_A_PROCESS = 100
"""What commands leave in memory, where each has a process to itself, adds up."""


def run_cases(first: int, count: int, folder: Path) -> list[str]:
    """What went wrong, by case; a process that dies is started anew behind the case that it died of."""
    wrong: list[str] = []
    command = [sys.executable, "-X", "faulthandler", str(Path(__file__).with_name("hostile_commands.py"))]
    at, sound = first, 0
    while at < first + count:
        some = min(first + count - at, _CASES_OF_A_PROCESS)
        child = subprocess.run([*command, str(folder), str(at), str(some)], capture_output=True, text=True, check=False)
        last = ""
        for line in child.stdout.splitlines():
            if line.startswith("case "):
                last, at = line, int(line.split()[1]) + 1
            elif line.startswith("done ok"):
                sound, last = sound + 1, ""
            elif line.startswith("done "):
                wrong.append(f"{last}: {line[5:]}")
                last = ""
        if child.returncode:
            assert last, child.stderr[-3000:]
            wrong.append(f"{last}: died of {child.returncode}: {child.stderr[-3000:]}")
    assert sound + len(wrong) == count
    return wrong


def test_some_mutations(tmp_path: Path) -> None:
    wrong = run_cases(0, 40, tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(20))
def test_ten_thousand_mutations(part: int, tmp_path: Path) -> None:
    wrong = run_cases(1000 + 500 * part, 500, tmp_path)
    assert not wrong, "\n".join(wrong)
