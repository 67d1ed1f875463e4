"""The ``mobopt`` command: finds its subcommands lazily and turns errors into messages."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from mobopt import __version__
from mobopt.display import shown
from mobopt.environment import VARIABLES, warn_of_unknown
from mobopt.errors import MoboptError

COMMANDS = (
    "convert", "migrate", "app-kit", "audit", "compare", "bisect", "tap", "stress", "report", "sweep",
    "run", "profile", "bench", "tune", "inspect", "opnames", "devices", "demo",
)  # fmt: skip
"""Each is an object of this name, in the module of this name, with ``_`` for ``-``."""


_INTERRUPTED = 130
"""What shells give for a process that Ctrl-C has ended."""

_NO_MEMORY = "there is not enough memory; use a smaller model or smaller inputs"
_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"
"""How torch's own error begins, which is a plain RuntimeError."""

_ENVIRONMENT = "\b\nEnvironment variables:\n" + "".join(
    f"  {name:<21} {meaning}\n" for name, meaning in VARIABLES.items()
)


class ErrorMessage(click.ClickException):
    """One message on stderr and exit code 2: the input can't be used."""

    exit_code = 2


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed; each has ``--verbose``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order in which a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of this name, if there is one."""
        if name not in COMMANDS:
            return None
        own = name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"mobopt.commands.{own}"), own)
        subcommands = command.commands.values() if isinstance(command, click.Group) else ()
        for item in (command, *subcommands):
            if _VERBOSE not in item.params:
                item.params.append(_VERBOSE)
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line, and end the process with its exit code unless ``standalone_mode`` is false."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            _with_way_out(error).show()
            code = error.exit_code
        except click.Abort:
            click.echo("interrupted", err=True)
            code = _INTERRUPTED
        except OSError as error:  # of standard output: everything else has an error of its own
            code = _no_output(error)
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error that mobopt raises on purpose becomes its message and exit code 2."""
        try:
            return super().invoke(ctx)
        except MoboptError as error:
            raise ErrorMessage(shown(str(error))) from None
        except MemoryError:
            raise ErrorMessage(_NO_MEMORY) from None
        except RuntimeError as error:
            if _ALLOCATOR not in str(error):
                raise
            raise ErrorMessage(_NO_MEMORY) from None


def _with_way_out(error: click.ClickException) -> click.ClickException:
    """Many tools take the output as a second argument; these take an option."""
    if not isinstance(error, click.UsageError) or "unexpected extra argument" not in error.message or error.ctx is None:
        return error
    output = next((option for option in error.ctx.command.params if option.name == "output"), None)
    if output is None:
        return error
    return click.UsageError(f"{error.message}; the output is named by {' or '.join(output.opts)}", error.ctx)


def _no_output(error: OSError) -> int:
    """The exit code where standard output can't be written; what is still in its buffer is dropped."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes it at the end
    click.echo(f"Error: can't write to standard output: {error.strerror or error}", err=True)
    return ErrorMessage.exit_code


def _show_log(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        logger = logging.getLogger("mobopt")
        logger.setLevel(logging.DEBUG)
        ctx.call_on_close(lambda: logger.setLevel(logging.NOTSET))


_VERBOSE = click.Option(
    ["-v", "--verbose"],
    is_flag=True,
    expose_value=False,
    callback=_show_log,
    help="Show the log: plans, fallbacks, caches.",
)


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, params=[_VERBOSE], epilog=_ENVIRONMENT
)
@click.version_option(__version__, prog_name="mobopt")
def main() -> None:
    """Make PyTorch models ready for mobile GPUs, and run them on any Vulkan device.

    Exit code: 0 done, 1 it ran and the answer is no, 2 the input can't be used, 130 interrupted.
    """
    logger = logging.getLogger("mobopt")
    if not logger.handlers:
        logger.addHandler(_Messages())
    warn_of_unknown()


class _Messages(logging.Handler):
    """Warnings go to stderr, one line each; with ``--verbose``, everything that is logged does."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or logging.getLogger("mobopt").level == logging.DEBUG:
            click.echo(f"{record.levelname.lower()}: {shown(record.getMessage())}", err=True)
