"""The command line: one click command per file, imported when it is asked for."""

from mobopt.commands.group import main

__all__ = ["main"]
