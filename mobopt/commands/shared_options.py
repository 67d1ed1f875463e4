"""Options that several commands have, each said once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mobopt.options import PRECISIONS

Command = TypeVar("Command", bound=Callable[..., Any])


def input_options(command: Command) -> Command:
    """``--input`` and ``--random``: what a command runs a model on, for ``InputOptions.parse(inputs, shapes)``."""
    given = click.option(
        "--input",
        "inputs",
        multiple=True,
        help="A .npy input; converted: x.npy:bfloat16; of another method: encode:x.npy; a list: [a.npy;b.npy]; "
        "a number: =16000 or =16000:int64.",
    )
    random = click.option(
        "--random",
        "shapes",
        multiple=True,
        metavar="SHAPE",
        help="A random one: 1,3,224,224 or 1,16:int64; of another: encode:1,3; a list: [3,64,80;3,48,48]; a number: "
        "=16000, as a tensor =16000:int64.",
    )
    return given(random(command))


def bound_option(command: Command) -> Command:
    """``--bound``, for ``read_bounds``."""
    option = click.option(
        "--bound",
        "bounds",
        multiple=True,
        metavar="DIM=LEAST..MOST",
        help="Sizes that a dimension of the input may have: 0=1..16; of the second input 1.2=32..512; encode:0=1..4.",
    )
    return option(command)


def method_option(command: Command) -> Command:
    """``--method``."""
    return click.option("--method", default="forward", show_default=True, help="Method to run.")(command)


def precision_options(what: str) -> Callable[[Command], Command]:
    """``--precision`` and ``--fp32-nodes``.

    Args:
        what: the help of the first.
    """
    precision = click.option("--precision", default="fp32", show_default=True, type=click.Choice(PRECISIONS), help=what)
    nodes = click.option(
        "--fp32-nodes",
        multiple=True,
        metavar="PATTERN",
        help="Of fp16 and bf16: operators (aten::softmax) or lines ('*attention*') that keep fp32; may be repeated.",
    )
    return lambda command: precision(nodes(command))


def fallback_option(command: Command) -> Command:
    """``--fallback``."""
    option = click.option(
        "--fallback",
        default="cpu",
        show_default=True,
        type=click.Choice(["cpu", "error"]),
        help="What happens to operators without a GPU kernel.",
    )
    return option(command)


def json_option(command: Command) -> Command:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
