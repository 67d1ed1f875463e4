"""Arguments of a Program's methods: their names, and how a call's are bound to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mobopt.errors import InputError, MissingInputError
from mobopt.ir.input_rules import InputRules
from mobopt.ir.program import Program
from mobopt.ir.types import ListType, OptionalType


def argument_name(name: str) -> str:
    """The name of a method's argument from its value's: ``x`` from ``x.1``."""
    return re.sub(r"(?<=[^.])(\.\d+)+$", "", name)


def bind_arguments(program: Program, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Arguments of a method in order, defaults filled in; an optional input that is not given is None.

    Inputs are told apart by their positions, for those of a traced model may have one name.

    Raises:
        MissingInputError: an argument is missing.
        InputError: there is no such method, an argument is unknown or given twice, or the model was made for others.
    """
    if method not in program.methods:
        raise InputError(f"the model has no method {method!r}; its methods are {', '.join(program.methods)}")
    bound = _bound(program, method, args, kwargs)
    for parameter, value in zip(program.methods[method].inputs[1:], bound, strict=True):
        if isinstance(parameter.type, ListType) and isinstance(value, torch.Tensor):
            name = argument_name(parameter.name)
            raise InputError(
                f"{method}: the input {name!r} is a list ({parameter.type}), not a tensor: give [x], or on the command "
                "line --random [1,3,64,64] or --input [x.npy]"
            )
    rules: InputRules | None = program.metadata.get("input_rules", {}).get(method)
    if rules is not None:
        try:
            rules.check(bound)
        except InputError as error:
            raise InputError(f"{method}: {error}") from None
    return bound


def _bound(program: Program, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    parameters = program.methods[method].inputs[1:]
    if len(args) == len(parameters) and not kwargs:
        return list(args)
    names = [argument_name(value.name) for value in parameters]
    takes = f"{method} takes {len(names)} inputs ({', '.join(names)})"
    if len(args) > len(names):
        raise InputError(f"{takes}, got {len(args)}")
    given = dict(enumerate(args))
    for name, value in kwargs.items():
        positions = [position for position, other in enumerate(names) if other == name]
        if not positions:
            raise InputError(f"{method}: the input {name!r} is unknown; its inputs are {', '.join(names)}")
        if len(positions) > 1:
            raise InputError(f"{method} has {len(positions)} inputs named {name!r}; give them by position")
        if positions[0] in given:
            raise InputError(f"{method}: the input {name!r} is given twice")
        given[positions[0]] = value
    declared = program.metadata.get("defaults", {}).get(method, {})
    for position, (name, parameter) in enumerate(zip(names, parameters, strict=True)):
        # A lite bundle can't tell "no default" from "None by default".
        if position not in given and (name in declared or isinstance(parameter.type, OptionalType)):
            given[position] = declared.get(name)
    missing = [name for position, name in enumerate(names) if position not in given]
    if missing:
        raise MissingInputError(f"{takes}; {', '.join(missing)} missing")
    return [given[position] for position in range(len(names))]
