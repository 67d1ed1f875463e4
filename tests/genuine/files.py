"""Write optimised files of many models, with inputs and expected outputs, for ``check.py`` to run on PyTorch's kernels.

``python tests/genuine/files.py FOLDER`` makes a folder for each model: ``model.pt`` and ``model.ptl``, ``in0.npy``...,
``out0.npy``... (what eager gives), ``call.json`` (the method, and its arguments: names of files, or numbers), and
``what.txt``. Needs what the tests need.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.extend(str(Path(__file__).resolve().parents[1] / name) for name in (".", "passes", "properties"))
from applied import Applied
from check import leaves
from layer_cases import Layer
from model_zoo import ZOO
from nets import NETS
from probes import probes
from random_graphs import RandomModule, random_modules
from strided_cases import CASES as STRIDED
from tensor_cases import ALL
from torchvision_operators import torchvision_with_operators
from vulkan_cases import cases
from wild import NETS as PUBLISHED
from wild.net import batch_of

import mobopt
from mobopt.errors import MoboptError
from mobopt.options import WITH_INPUTS
from mobopt.runtimes.cpu import Interpreter

ZOO_SIZES = (1, 3, 96, 80)


class UntraceableError(Exception):
    """torch can't trace a module."""


def _traced(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    try:
        return torch.jit.trace(module, inputs, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
    except (RuntimeError, TypeError, ValueError) as error:
        raise UntraceableError(error) from error


def _scripted(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    return torch.jit.script(module)


def _itself(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    return module


def _onnx(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    return torch.onnx.export(module, inputs, dynamo=True, verbose=False).model_proto  # type: ignore[union-attr]


FORMS = {"traced": _traced, "scripted": _scripted, "module": _itself, "onnx": _onnx}
"""What mobopt is given of a module; an nn.Module goes through torch.export."""


@dataclass(frozen=True)
class Model:
    """A module, what to call it with, and the ways in which it becomes TorchScript.

    Attributes:
        example: what the conversion sees; None: the inputs.
        method: what is called.
    """

    name: str
    module: torch.nn.Module
    inputs: Sequence[Any]
    scripts: Sequence[str]
    text: str
    example: Sequence[Any] | None = None
    method: str = "forward"


def write(folder: Path, model: Model, form: str, runtime: str, backend: str, scheme: str | None = None) -> None:
    """Optimise a module for a release and save it with its numbers; says so if that is refused, or not as asked.

    What is expected is what eager gives, but with a scheme of quantisation what mobopt's interpreter does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        expected = getattr(model.module.eval(), model.method)(*copies(model.inputs))
    example = model.inputs if model.example is None else model.example
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with torch.no_grad():
                source = FORMS[form](model.module, tuple(copies(example)))
            made = mobopt.optimize_for_mobile(
                source,
                backend=backend,
                runtime=runtime,
                example_inputs=list(example),
                preserved_methods=[model.method] if model.method != "forward" else [],
                quantize=scheme,
            )
            if scheme is not None:
                expected = Interpreter(made.program).run(model.method, copies(model.inputs))
            made.save(folder / "model.pt")
            made._save_for_lite_interpreter(folder / "model.ptl")
        except MoboptError as error:
            print(f"{folder}: refused: {error}", flush=True)
        except torch.onnx.OnnxExporterError as error:
            print(f"{folder}: no ONNX: {str(error).splitlines()[0]}", flush=True)
        except UntraceableError as error:
            print(f"{folder}: no trace: {str(error).splitlines()[0]}", flush=True)
    for warning in told:
        if "was traced" in str(warning.message):
            print(f"{folder}: {warning.message}", flush=True)
    tensors = {f"in{index}.npy": value for index, value in enumerate(model.inputs) if isinstance(value, torch.Tensor)}
    outputs = {f"out{index}.npy": torch.as_tensor(value) for index, value in enumerate(leaves(expected))}
    for name, value in {**tensors, **outputs}.items():
        np.save(folder / name, np.asarray(value.detach()))
    arguments = [
        f"in{index}.npy" if isinstance(value, torch.Tensor) else value for index, value in enumerate(model.inputs)
    ]
    (folder / "call.json").write_text(json.dumps({"method": model.method, "arguments": arguments}))
    (folder / "what.txt").write_text(f"{model.text}\n")


def copies(values: Sequence[Any]) -> list[Any]:
    """The same arguments, which a call may change."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def known_models() -> Iterator[Model]:
    """Cases tried on PyTorch's kernels before, calls of the tests, the benchmarks' models, small nets, and probes."""
    torch.manual_seed(1)
    for name, case in cases().items():
        yield _model(f"case {name}", case.make(), (torch.randn(case.sizes),), ["traced"])
    for name, (call, inputs) in ALL.items():
        yield _model(f"call {name}", Layer(call), [value.contiguous() for value in inputs], ["traced"])
    for name, (call, sizes) in STRIDED.items():
        yield _model(f"strided {name}", Applied(call), (torch.rand(sizes),), ["traced"])
    for name, item in ZOO.items():
        yield _model(f"model {name}", item.build(), (torch.rand(ZOO_SIZES),), ["scripted"])
    for name, net in NETS.items():
        yield _model(f"net {name}", net.module(), net.inputs(), net.ways)
    for name, probe in probes().items():
        is_scripted = probe.method != "forward" or not all(isinstance(value, torch.Tensor) for value in probe.inputs)
        way = "scripted" if is_scripted or not isinstance(probe.module, Applied) else "traced"
        model = _model(f"probe {name}", probe.module, probe.inputs, [way])
        yield replace(model, example=probe.example, method=probe.method)


def _model(name: str, module: torch.nn.Module, inputs: Sequence[torch.Tensor], scripts: Sequence[str]) -> Model:
    return Model(name, module, inputs, scripts, str(module))


def published_models(batch: int, pattern: str) -> Iterator[Model]:
    """Networks of ``tests/wild`` whose packages are installed, with that many items at a time."""
    torchvision_with_operators()  # before timm and transformers import it
    for key, net in PUBLISHED.items():
        name = f"published {key}"
        if net.is_here and re.search(pattern, name):
            module, inputs = net.build()
            yield Model(name, module, batch_of(inputs, batch), ["traced"], key)


def random_models(count: int, start: int) -> Iterator[Model]:
    """The same modules for the same seed."""
    found: list[RandomModule] = []

    @seed(start)
    @settings(
        max_examples=max(count, 1),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(random_modules())
    def collect(module: RandomModule) -> None:
        found.append(module)

    collect()
    for index, item in enumerate(found[:count]):
        how = "scripted" if item.how == "script" else "traced"
        yield Model(f"random {start} {index}", item.module(), item.arguments(), [how], repr(item))


def main() -> None:
    """Write everything for each release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", default="vulkan", choices=["vulkan", "cpu"])
    parser.add_argument("--runtime", nargs="+", default=["1.13", "2.1", "2.6"])
    parser.add_argument("--random", type=int, default=100, help="number of random models")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--published", type=int, default=0, metavar="BATCH", help="networks of tests/wild, too")
    parser.add_argument("--only", default="", metavar="PATTERN", help="regular expression in names of models")
    parser.add_argument("--source", default="script", choices=["script", "module", "onnx"], help="what mobopt is given")
    parser.add_argument("--quantize", choices=WITH_INPUTS, help="a scheme that the backend has")
    options = parser.parse_args()
    for runtime in options.runtime:
        published = published_models(options.published, options.only) if options.published else ()
        for model in chain(known_models(), random_models(options.random, options.seed), published):
            if not re.search(options.only, model.name):
                continue
            for form in model.scripts if options.source == "script" else [options.source]:
                folder = options.folder / runtime / re.sub(r"\W+", "_", f"{model.name} {form}")
                write(folder, model, form, runtime, options.backend, options.quantize)


if __name__ == "__main__":
    main()
