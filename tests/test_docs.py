"""Pages of docs/ name commands and options that exist, and messages that PyTorch does give."""

from __future__ import annotations

import io
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
    return re.findall(r"(?:`|^\$ )(mobopt [a-z][^`\n]*)", text, re.MULTILINE)


EVERY = (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")))
PAGES = [path for path in EVERY if commands_in(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    found = commands_in(page.read_text(encoding="utf-8"))
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
    with pytest.raises(RuntimeError) as caught:
        torch.jit.load(saved(torch.nn.Linear(2, 2)), map_location="vulkan")
    assert is_on_the_page(str(caught.value)), str(caught.value)
    with pytest.raises(TypeError) as refused:
        optimize_for_mobile(torch.nn.ReLU(), backend="vulkan")  # type: ignore[arg-type]
    assert is_on_the_page(str(refused.value)), str(refused.value)


def saved(module: torch.nn.Module) -> io.BytesIO:
    """A file of a module."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(module), file)
    file.seek(0)
    return file


SEEN = """
(sizes.size() >= 0 && sizes.size() <= 4) is false! Texture storage only valid for 0 <= ndim <= 4, received: 5
Not a supported Vulkan ScalarType!
Vulkan unsqueeze only supports up to 3d tensors as input!
Cannot access storage of VulkanOpaqueTensorImpl
Could not run 'aten::index_select' with arguments from the 'Vulkan' backend. This could be because
please report a bug to PyTorch. Only Tensors with 1 <= dim <= 4 can be represented as a Vulkan Image!
Vulkan vk_format(): no corresponding format for dtype
expected scalar type Float but found UNKNOWN_SCALAR
Vulkan cat expects 4 dimensional inputs
Vulkan mean expects 4-dimensional input!
Failed to load method forward, error: 0x:14
Missing operator: [4] aten::native_dropout.out
""".strip().splitlines()
"""What PyTorch's own Vulkan kernels of 2.6 and of 1.13.1 said to tensors that they don't take; then ExecuTorch."""


@pytest.mark.parametrize("message", SEEN)
def test_what_kernels_were_seen_to_say_is_on_the_page(message: str) -> None:
    assert is_on_the_page(message), message


def test_the_page_can_be_missed() -> None:
    assert len(messages()) > 25
    assert not is_on_the_page("another message")
