"""Pages of docs/ name commands and options that exist, and messages that PyTorch does give."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import torch
from torch.utils.mobile_optimizer import optimize_for_mobile

from mobopt.commands import main
from mobopt.commands.group import COMMANDS

DOCS = Path(__file__).parent.parent / "docs"
ERRORS = (DOCS / "errors.md").read_text(encoding="utf-8")


def commands_in(text: str) -> list[str]:
    """Command lines that a page shows, in its text and in its blocks."""
    return re.findall(r"(?:`|^(?:\$ )?)(mobopt [a-z][^`\n]*)", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["errors.md", "sweeps.md", "debugging.md", "migrating.md"])
def test_commands_and_options_exist(name: str) -> None:
    found = commands_in((DOCS / name).read_text(encoding="utf-8"))
    assert len(found) >= 4
    for line in found:
        _, command_name, *words = shlex.split(line.partition("  #")[0])
        assert command_name in COMMANDS, line
        command = main.get_command(click.Context(main), command_name)
        assert command is not None
        if isinstance(command, click.Group):
            chosen = words[0] if words and words[0] in command.commands else "run"
            command = command.commands[chosen]
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= options, line


def messages() -> list[str]:
    """The messages of the tables, without what stands for anything."""
    cells = [line.split("|")[1] for line in ERRORS.splitlines() if line.startswith("| ")]
    return [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]


def is_on_the_page(text: str) -> bool:
    return any(all(part in text for part in message.split("...")) for message in messages())


@pytest.mark.parametrize("backend", ["vulkan", "metal"])
def test_what_pytorch_says_is_on_the_page(backend: str) -> None:
    script = torch.jit.script(torch.nn.Conv2d(3, 4, 3).eval())
    with pytest.raises(RuntimeError) as caught:
        optimize_for_mobile(script, backend=backend)
    assert is_on_the_page(str(caught.value)), str(caught.value)


def test_what_pytorch_says_of_devices_is_on_the_page() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.rand(2).to("vulkan")
    assert is_on_the_page(str(caught.value)), str(caught.value)
    with pytest.raises(TypeError) as refused:
        optimize_for_mobile(torch.nn.ReLU(), backend="vulkan")  # type: ignore[arg-type]
    assert is_on_the_page(str(refused.value)), str(refused.value)


def test_the_page_can_be_missed() -> None:
    assert len(messages()) > 25
    assert not is_on_the_page("another message")
