"""What a kit says of a file: its methods with forms, examples and expected results."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mobopt.bundle import BundleInfo
from mobopt.errors import InputError, MoboptError
from mobopt.frontends.open_source import read_program
from mobopt.frontends.source import HELPER_METHODS
from mobopt.ir import Program
from mobopt.ir.arguments import argument_name
from mobopt.ir.nests import leaves_of
from mobopt.ir.types import NONE, TupleType, Type
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.cpu.precision import HalfInterpreter
from mobopt.samples.agreement import RELATIVE_TOLERANCE, compare
from mobopt.samples.example_inputs import ExampleInputs, choose_inputs_of_bundle
from mobopt.tools.app_kit.forms import Form, Maybe, Nothing, Record, form_of, opaque_reason, records_of
from mobopt.tools.app_kit.names import identifier, pascal_case
from mobopt.tools.requirements import Needs

JAVA_DTYPES = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float64)
"""Dtypes of org.pytorch.DType; tensors of others can't cross to Java."""
ALL_DTYPES = (*JAVA_DTYPES, torch.float16, torch.int16, torch.bool)
"""Dtypes that test data is written of."""
_VULKAN_TOLERANCE = 1e-3
_METAL_TOLERANCE = 0.01


@dataclass(frozen=True)
class Argument:
    """An argument of a method."""

    name: str
    """As the file has it."""
    identifier: str
    form: Form
    type: str
    """In TorchScript's spelling."""


@dataclass(frozen=True)
class Example:
    """Arguments of a call, and what it returns."""

    arguments: tuple[Any, ...]
    result: Any
    tolerance: float
    """How far a phone's result may be off, of the largest magnitude of each tensor."""
    origin: str
    """Where the arguments come from, in words."""


@dataclass(frozen=True)
class Method:
    """A method of a file."""

    name: str
    identifier: str
    arguments: tuple[Argument, ...]
    form: Form
    """Of the result."""
    type: str
    """Of the result, in TorchScript's spelling."""
    example: Example | None

    @property
    def records(self) -> list[Record]:
        """Records of the arguments and of the result, inner ones first."""
        forms = [*(argument.form for argument in self.arguments), self.form]
        return [record for form in forms for record in records_of(form)]

    @property
    def reason_not_carried(self) -> str:
        """Why no language's code can call it; empty if it can be called."""
        for argument in self.arguments:
            reason = opaque_reason(argument.form)
            if reason:
                return f"in the argument {argument.name}, {reason}"
        reason = opaque_reason(self.form)
        return f"in the result, {reason}" if reason else ""

    @property
    def reason_not_in_java(self) -> str:
        """Why Java and Kotlin can't call it; empty if they can, as far as the example tells."""
        if self.reason_not_carried or self.example is None:
            return self.reason_not_carried
        for where, values in (("an argument", self.example.arguments), ("the result", self.example.result)):
            for tensor in leaves_of(values, torch.Tensor):
                if tensor.dtype not in JAVA_DTYPES:
                    return f"{where} is a tensor of {dtype_name(tensor)}, which org.pytorch.Tensor has not"
        return ""


@dataclass(frozen=True)
class Description:
    """A phone file, as kits describe it."""

    file: str
    """The name that the file has in the kit."""
    source: Path
    class_name: str
    package: str
    info: BundleInfo
    needs: Needs
    operators: tuple[str, ...]
    methods: tuple[Method, ...]

    @property
    def is_lite(self) -> bool:
        """Whether the lite interpreter opens it."""
        return "lite" in self.info.kinds

    @property
    def moves_tensors(self) -> bool:
        """Whether the app must move tensors to the GPU and back, as the graph does not."""
        return self.needs.backend in ("vulkan", "metal") and "to the device" not in self.needs.transfers

    def tested(self, method: Method) -> Example | None:
        """The example of a method, if its tensors can be written."""
        example = method.example
        if example is None or method.reason_not_carried:
            return None
        tensors = leaves_of((example.arguments, example.result), torch.Tensor)
        return example if all(tensor.dtype in ALL_DTYPES for tensor in tensors) else None

    @property
    def tests(self) -> tuple[tuple[Method, Example], ...]:
        """The methods with a test, and its example; without any, a kit has no files of tests."""
        return tuple((method, example) for method in self.methods if (example := self.tested(method)) is not None)

    @property
    def kotlin_tests(self) -> tuple[tuple[Method, Example], ...]:
        """Those that Kotlin can call."""
        return tuple((method, example) for method, example in self.tests if not method.reason_not_in_java)


def describe_methods(path: Path, backend: str, given: ExampleInputs | None) -> tuple[Method, ...]:
    """The methods of a file that an app calls, with examples where arguments are given, bundled or guessed.

    Raises:
        InputError: the file can't be run on arguments that are given, or has no method for an app.
    """
    program = read_program(path)
    names = [name for name in program.methods if not name.startswith(HELPER_METHODS)]
    if not names:
        raise InputError(f"{path} has no method that an app could call; it has {', '.join(program.methods) or 'none'}")
    chosen = choose_inputs_of_bundle(program, given)
    examples = {}
    for name, arguments in chosen.by_method.items():
        is_given = given is not None and name in (given if isinstance(given, dict) else ("forward",))
        origin = chosen.origin if name == "forward" else ("given" if is_given else "bundled with the model")
        examples[name] = _example(program, name, arguments, origin, backend)
    methods: list[Method] = []
    for name in names:
        own = identifier(name, taken=[method.identifier for method in methods])
        methods.append(_method(program, name, own, examples.get(name)))
    return tuple(methods)


def _method(program: Program, name: str, own: str, example: Example | None) -> Method:
    graph = program.methods[name]
    arguments: list[Argument] = []
    for value in graph.inputs[1:]:
        given = argument_name(value.name)
        short = identifier(given, taken=[argument.identifier for argument in arguments])
        form = form_of(value.type, f"{pascal_case(own)}{pascal_case(short)}")
        arguments.append(Argument(given, short, form, _type_text(value.type)))
    types = [value.type for value in graph.outputs]
    returned = types[0] if len(types) == 1 else TupleType(tuple(types))
    form = form_of(returned, f"{pascal_case(own)}Result") if types else Nothing()
    return Method(name, own, tuple(arguments), form, _type_text(returned) if types else "None", example)


def _type_text(kind: Type) -> str:
    if isinstance(kind, TupleType) and kind.name:
        return str(kind)
    return "None" if kind == NONE else kind.annotation


def _example(program: Program, name: str, arguments: Sequence[Any], origin: str, backend: str) -> Example:
    result = copy.deepcopy(Interpreter(program).run(name, copy.deepcopy(list(arguments))))
    tolerance = RELATIVE_TOLERANCE
    if backend == "vulkan":
        tolerance = _VULKAN_TOLERANCE
    elif backend == "metal":
        tolerance = max(_METAL_TOLERANCE, _cost_of_halves(program, name, arguments, result))
    return Example(tuple(arguments), result, tolerance, origin)


def _cost_of_halves(program: Program, name: str, arguments: Sequence[Any], exact: Any) -> float:
    """Twice what rounding every result to half precision, as Metal's kernels do, costs; rounded up to one digit."""
    try:
        halves = HalfInterpreter(program).run(name, copy.deepcopy(list(arguments)))
    except MoboptError:  # the model asks for single precision
        return 0.0
    cost = 2 * compare(halves, exact).relative
    if not 0 < cost < math.inf:
        return 0.0
    digit = 10.0 ** math.floor(math.log10(cost))
    return float(f"{math.ceil(cost / digit) * digit:.1g}")


def tried_texts(method: Method) -> list[str]:
    """For each argument, what tensor the example has for it, in words that follow its type; else nothing."""
    values = [None] * len(method.arguments) if method.example is None else method.example.arguments
    return [
        f", such as {dtype_name(value)} {sizes_text(value)}" if isinstance(value, torch.Tensor) else ""
        for value in values
    ]


def dtype_name(tensor: torch.Tensor) -> str:
    """``float32`` and so on."""
    return str(tensor.dtype).removeprefix("torch.")


def sizes_text(tensor: torch.Tensor) -> str:
    """``1 x 3 x 224 x 224``; of rank 0: ``scalar``."""
    return " x ".join(map(str, tensor.shape)) or "scalar"


def named_tensors(method: Method) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a method's example by the names that the test data has for them."""
    example = method.example
    if example is None:
        return
    for argument, value in zip(method.arguments, example.arguments, strict=True):
        yield from _named(f"{method.identifier}.input.{argument.identifier}", argument.form, value)
    yield from _named(f"{method.identifier}.output", method.form, example.result)


def _named(name: str, form: Form, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    for part, inner, item in children(name, form, value):
        yield from _named(part, inner, item)


def children(name: str, form: Form, value: Any) -> list[tuple[str, Form, Any]]:
    """What lies directly in a value that is no single one: names, forms and values."""
    while isinstance(form, Maybe):
        form = form.element
    if isinstance(form, Record) and value is not None:
        return [(f"{name}.{field}", inner, item) for (field, inner), item in zip(form.fields, value, strict=True)]
    if isinstance(value, dict):
        inner = getattr(form, "value", form)
        return [(f"{name}[{number}]", inner, item) for number, item in enumerate(value.values())]
    if isinstance(value, (list, tuple)):
        inner = getattr(form, "element", form)
        return [(f"{name}[{number}]", inner, item) for number, item in enumerate(value)]
    return []
