"""Every example in the README runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mobopt.commands import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def run(arguments: list[str], folder: Path) -> None:
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert result.returncode == 0, f"{arguments}\n{result.stdout}\n{result.stderr}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Python examples, one after the other in one process, have left their files."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "example.py").write_text("\n".join(blocks("python")), encoding="utf-8")
    run(["-W", "ignore", "example.py"], folder)
    return folder


def test_python_examples_write_what_the_commands_read(folder: Path) -> None:
    assert {"model.ptl", "model.pt", "scripted.pt"} <= {path.name for path in folder.iterdir()}


SHORTER = {"tune": ["--seconds", "1"], "bench": ["--seconds", "0", "--no-starts"], "stress": ["--replays", "5"]}
"""For commands that measure for a minute."""


@pytest.mark.usefixtures("own_costs")
def test_commands_run_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: that the program itself starts is tested with its commands."""
    monkeypatch.chdir(folder)
    commands = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    assert len(commands) >= 5
    for command in commands:
        name, *arguments = shlex.split(command)
        assert name == "mobopt"
        result = CliRunner().invoke(main, [*arguments, *SHORTER.get(arguments[0], [])])
        assert result.exit_code == 0, f"{command}\n{result.output}"
    assert (folder / "y.npy").exists() and (folder / "trace.json").exists()


def test_cli_commands_exist() -> None:
    from mobopt.commands.group import COMMANDS

    for line in "".join(blocks("bash")).splitlines():
        _python, script, command, *_ = shlex.split(line)
        assert script == "cli.py" and command in (*COMMANDS, "test")
