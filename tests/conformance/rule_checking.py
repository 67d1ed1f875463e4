"""Rules of shapes beside torch's CPU kernels: on the calls that samples are traced to, and with other sizes."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from opinfo_judging import _OfTensors
from opinfo_samples import Sample

from mobopt.errors import MoboptError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Node, Program
from mobopt.ir.dimensions import Dimension
from mobopt.ir.guards import Guards
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.ir.types import TensorType
from mobopt.ops.shapes import has_rule, infer, makes_new, order_of, strides_of
from mobopt.ops.shapes.layouts import dense
from mobopt.runtimes.cpu.interpreter import Interpreter
from mobopt.runtimes.cpu.kernels import kernel

MOST_ELEMENTS = 2**16
"""Calls with other sizes make no more elements than this."""


def type_of(tensor: torch.Tensor) -> TensorType:
    return TensorType(tensor.dtype, tuple(tensor.shape))


def types_of(value: Any) -> list[TensorType]:
    return [type_of(tensor) for tensor in leaves_of(value, torch.Tensor)]


@dataclass
class Findings:
    """What was found out about rules."""

    problems: list[str] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    """Operators whose rules told what a call made."""


class _Checker(Interpreter):
    """Runs a program on the CPU, and asks the rule of each operator what it will make."""

    def __init__(self, program: Program, trials: int) -> None:
        super().__init__(program)
        self.found = Findings()
        self._trials = trials

    def operator(self, node: Node, args: list[Any]) -> Any:
        op = node.qualified_op
        if not has_rule(op):
            return super().operator(node, args)
        given = map_leaves(list(args), torch.Tensor, type_of)
        lying = [(tuple(tensor.shape), tensor.stride()) for tensor in leaves_of(args, torch.Tensor)]
        is_row_major = all(tensor.is_contiguous() for tensor in leaves_of(args, torch.Tensor))
        storages = {tensor.untyped_storage().data_ptr() for tensor in leaves_of(args, torch.Tensor)}
        result = super().operator(node, args)
        found = infer(op, given)
        if found is not None:
            self.found.told.add(op)
            self._compare(f"{op}({given})", found, result)
            for number, tensor in enumerate(leaves_of(result, torch.Tensor)) if makes_new(op) else ():
                sizes = tuple(tensor.shape)
                order = order_of(op, args) if number == 0 else None
                strides = dense(sizes, order) if is_row_major else strides_of(op, sizes, lying)
                if strides is not None and not lie_alike(tensor, strides):
                    self.found.problems.append(f"{op}({given}), {lying}, lies {tensor.stride()} and not {strides}")
                if tensor.numel() and tensor.untyped_storage().data_ptr() in storages:
                    self.found.problems.append(f"{op}({given}) lies in an operand's memory")
            self.found.problems += other_sizes(op, given, self._trials)
        return result

    def _compare(self, call: str, found: Any, result: Any) -> None:
        if list(leaves_of(found, TensorType)) != types_of(result):
            self.found.problems.append(f"{call} makes {types_of(result)}, and its rule says {found}")


def lie_alike(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor has these strides, where it has more than one element."""
    return not tensor.numel() or all(
        size == 1 or stride == wanted
        for size, stride, wanted in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )


def check(sample: Sample, trials: int) -> Findings:
    """The rules of every operator that a sample is traced to, also with other sizes, so many times."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            traced = torch.jit.trace(_OfTensors(sample), sample.tensors, check_trace=False, strict=False)
            program = program_from_script_module(traced)
        except Exception:  # what can't be traced is not about rules
            return Findings()
        checker = _Checker(program, trials)
        with suppress(MoboptError, NotImplementedError):  # sparse tensors
            checker.run("forward", list(sample.tensors))
        return checker.found


def other_sizes(op: str, given: Sequence[Any], trials: int, seed: int = 0) -> list[str]:
    """Problems of a call with symbols for all sizes: where its guards hold, torch makes what the rule says."""
    guards = Guards()

    def symbolic(kind: TensorType) -> TensorType:
        sizes = [guards.symbol(lower=0, upper=4096, example=int(size)) for size in kind.sizes]
        return TensorType(kind.dtype, tuple(sizes))

    args = map_leaves(list(given), TensorType, symbolic)
    found = infer(op, args)
    if found is None:
        return [f"{op}({given}) has no rule with symbols"]
    examples = [guards.examples[name] for name in guards.symbols]
    if not guards.hold(examples):
        return [f"{op}({given}) has guards that its own sizes break: {guards}"]
    generator = random.Random(seed)
    for values in [examples, *(_changed(examples, generator) for _ in range(trials))]:
        if guards.hold(values):
            named: dict[str, Dimension] = dict(zip(guards.symbols, values, strict=True))
            problem = _compare_with_sizes(op, args, found, named, guards)
            if problem:
                return problem
    return []


def _changed(sizes: Sequence[int], generator: random.Random) -> list[int]:
    """Other sizes: one or a few changed, those that are equal mostly alike."""
    changed = list(sizes)
    for _ in range(generator.randint(1, 3) if sizes else 0):
        old = generator.choice(sizes)
        new = generator.choice([0, 1, old + 1, old + 2, old * 2, max(old - 1, 0), generator.randint(0, 12)])
        if generator.random() < 0.6:
            changed = [new if size == old else size for size in changed]
        else:
            changed[generator.randrange(len(changed))] = new
    return changed


def _compare_with_sizes(
    op: str, args: Sequence[Any], found: Any, values: dict[str, Dimension], guards: Guards
) -> list[str]:
    def concrete(kind: TensorType) -> TensorType:
        return TensorType(
            kind.dtype, tuple(size if isinstance(size, int) else size.substitute(values) for size in kind.sizes)
        )

    given, expected = (map_leaves(item, TensorType, concrete) for item in (list(args), found))
    kinds = [*leaves_of(given, TensorType), *leaves_of(expected, TensorType)]
    if any(kind.numel > MOST_ELEMENTS for kind in kinds):
        return []
    call = f"{op}({given})"
    plain = infer(op, given)
    if plain is not None and list(leaves_of(plain, TensorType)) != list(leaves_of(expected, TensorType)):
        return [f"{call}: with numbers the rule says {plain}, with symbols {expected}; {guards}"]
    try:
        result = kernel(op)(*map_leaves(given, TensorType, _zeros))
    except Exception as error:
        if "ZeroDivisionError" in str(error):  # of elements
            return []
        if "can't be cast to the desired output type" in str(error) and any(kind.numel == 0 for kind in kinds):
            return []  # factors of integers that are none, which torch cuts off but for empty tensors
        return [f"{call}: torch refuses it ({str(error).splitlines()[0][:120]}), the rule doesn't; {guards}"]
    if types_of(result) != list(leaves_of(expected, TensorType)):
        return [f"{call} makes {types_of(result)}, and its rule says {expected}; {guards}"]
    return []


def _zeros(kind: TensorType) -> torch.Tensor:
    return torch.zeros(kind.sizes, dtype=kind.dtype)  # type: ignore[arg-type]
