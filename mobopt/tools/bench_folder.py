"""A model in every form that rivals take, with inputs and its own result, to be measured where there is no network."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mobopt.bundle import write_lite
from mobopt.errors import InputError, MoboptError
from mobopt.exporters.formats import target_of
from mobopt.exporters.plain import plain_model
from mobopt.exporters.targets import Order
from mobopt.files import check_writable, whole_file
from mobopt.ir.nests import leaves_of
from mobopt.samples.example_inputs import ExampleInputs
from mobopt.tools.bench_peers import PEERS, Mobopt
from mobopt.tools.bench_rival import Bench
from mobopt.tools.measured_model import MeasuredModel, read_measured

_TABLE = "bench.json"
_EXPECTED = "expected.pt"
_FORMAT = 1


@dataclass(frozen=True)
class Prepared:
    """What is measured, in a folder.

    Attributes:
        name: of the model.
        method: which of its methods.
        inputs: in words.
        expected: the tensors that the model itself returns.
        model: what missing forms are written of; None of a folder that was saved.
        problems: by ending, why there is no file of a form.
    """

    name: str
    method: str
    inputs: str
    expected: list[torch.Tensor]
    model: MeasuredModel | None
    problems: Mapping[str, str] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """See that the model is there in the form that a file's ending asks for, with the inputs' sizes.

        Raises:
            MoboptError: it can't be written so, or was not when the folder was saved.
        """
        if file.exists():
            return
        if self.model is None:
            raise InputError(self.problems.get(file.suffix, f"the folder has no {file.name}"))
        if file.suffix == Mobopt.form:
            write_lite(self.model.program, file)
        else:
            order = Order(plain_model(self.model.source.program), self.method, tuple(self.model.args), "fixed")
            target_of(file).write(order, file)


def prepare(
    path: Path,
    folder: Path,
    example_inputs: ExampleInputs | None,
    method: str,
    show: Callable[[str], None],
) -> Prepared:
    """Read a model, run it as it is, and put its inputs into a folder; forms come as they are asked for.

    Raises:
        MoboptError: the model or an input can't be used.
    """
    show(f"reading {path.name}")
    model = read_measured(path, method, example_inputs, show)
    expected = list(leaves_of(model.source.caller(method)(copy.deepcopy(model.args)), torch.Tensor))
    torch.save(model.args, Bench(folder).args_file)
    return Prepared(model.name, method, model.inputs_text, expected, model)


def save_bench(
    path: Path,
    folder: Path,
    example_inputs: ExampleInputs | None = None,
    *,
    method: str = "forward",
    show: Callable[[str], None] = lambda step: None,
) -> dict[str, str]:
    """Write a folder that ``mobopt bench`` measures elsewhere, with nothing to download or to export there.

    Args:
        path: a model, or a file that is optimised for any backend.
        folder: the new folder.
        example_inputs: arguments by method; without them, those bundled, of shapes traced or declared, or guessed.
        method: which method.
        show: is told each step.

    Returns:
        By ending, why there is no file of a form: rivals that take it can't be measured.

    Raises:
        InputError: the folder is there, or can't be written.
        MoboptError: the model or an input can't be used.
    """
    if folder.exists():
        raise InputError(f"{folder} is there already; choose another folder, or remove it")
    check_writable(folder, [path])
    folder.mkdir()
    prepared = prepare(path, folder, example_inputs, method, show)
    problems: dict[str, str] = {}
    for form in dict.fromkeys(peer.form for peer in PEERS.values()):
        show(f"writing {form}")
        try:
            prepared.write(Bench(folder).file(form))
        except MoboptError as error:
            if form == Mobopt.form:
                raise
            problems[form] = str(error)
    torch.save(prepared.expected, folder / _EXPECTED)
    table = {"format": _FORMAT, "name": prepared.name, "method": method, "inputs": prepared.inputs}
    with whole_file(folder / _TABLE) as file:  # the last one: a folder without it is no whole one
        file.write(json.dumps({**table, "problems": problems}, indent=2).encode())
    return problems


def open_saved(folder: Path) -> Prepared:
    """What :func:`save_bench` wrote.

    Raises:
        InputError: the folder is another one, or was not written to its end.
    """
    try:
        table: dict[str, Any] = json.loads((folder / _TABLE).read_text(encoding="utf-8"))
        if table["format"] != _FORMAT:
            raise InputError(
                f"{folder} was written by another release of mobopt; save it again with mobopt bench --save"
            )
        expected = torch.load(folder / _EXPECTED, weights_only=True)
        name, method, inputs = (str(table[key]) for key in ("name", "method", "inputs"))
        problems = {str(key): str(value) for key, value in table["problems"].items()}
        return Prepared(name, method, inputs, list(expected), None, problems)
    except InputError:
        raise
    except Exception as error:  # damaged in any way
        raise InputError(f"{folder} is no folder of mobopt bench --save: {error}") from error
