"""The ``mobopt`` command: finds its subcommands lazily and turns errors into messages."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import click

from mobopt import __version__
from mobopt.errors import MoboptError

COMMANDS = ("convert", "audit", "run", "inspect", "opnames", "devices", "demo")
"""Each is an object of this name, in the module of this name."""


class ErrorMessage(click.ClickException):
    """One message on stderr and exit code 2: the input can't be used."""

    exit_code = 2


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order in which a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of this name, if there is one."""
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"mobopt.commands.{name}"), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error that mobopt raises on purpose becomes its message and exit code 2."""
        try:
            return super().invoke(ctx)
        except MoboptError as error:
            raise ErrorMessage(str(error)) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mobopt")
def main() -> None:
    """Make PyTorch models ready for mobile GPUs, and run them on any Vulkan device.

    Exit code: 0 done, 1 it ran and the answer is no, 2 the input can't be used.
    """
    logger = logging.getLogger("mobopt")
    if not logger.handlers:
        logger.addHandler(_Messages())


class _Messages(logging.Handler):
    """Warnings go to stderr, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            click.echo(f"{record.levelname.lower()}: {record.getMessage()}", err=True)
