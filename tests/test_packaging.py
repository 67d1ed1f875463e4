"""Tests of what a wheel has: every module and every file of data that the repository has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("mobopt", "passes", "shaders", "runtimes")
COLLECTED = """
import sys
import setuptools
from distutils.core import run_setup

distribution = run_setup("setup.py", stop_after="init")
distribution.parse_config_files()
distribution.get_command_obj("egg_info").egg_base = sys.argv[1]
command = distribution.get_command_obj("build_py")
command.ensure_finalized()
files = [source for module in command.find_all_modules() for source in module[2:]]
files += [f"{folder}/{name}" for _, folder, _, names in command.data_files for name in names]
print(*files, sep="\\n")
"""


def written_files() -> set[str]:
    """Return the files of the rooms which are packages, without what Python makes of them."""
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


def test_a_wheel_has_every_file_of_the_rooms(tmp_path: Path) -> None:
    # an editable install finds what a wheel lacks, so nothing else would tell
    command = [sys.executable, "-c", COLLECTED, str(tmp_path)]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    written = written_files()
    assert {"mobopt/py.typed", "shaders/variants.toml"} <= written
    assert written - set(collected.splitlines()) == set()
