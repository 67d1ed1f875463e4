"""Reading and writing bundles beside a plain copy, and audits beside a run: ``python tests/benchmarks/files.py``.

Rounds alternate between the contestants, so that a busy machine slows them alike; the fastest counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from model_zoo import ZOO

import mobopt
from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.ir import Attribute, Program, parse_graph
from mobopt.ir.types import TENSOR

Contestants = dict[str, Callable[[], object]]


def weights(megabytes: int) -> Program:
    """A Program with this much in its attributes."""
    program = Program()
    program.methods["forward"] = parse_graph("graph(%self : __torch__.Module, %x : Tensor):\n  return (%x)\n")
    weight = torch.rand(megabytes << 18)
    program.attributes["weight"] = Attribute(TENSOR, weight, is_parameter=True)
    return program


def file_contestants(folder: Path, megabytes: int) -> Contestants:
    """A plain copy, first; then what reads and writes both kinds of bundles."""
    program = weights(megabytes)
    scripted, lite = folder / "model.pt", folder / "model.ptl"
    write_torchscript(program, scripted)
    write_lite(program, lite)
    return {
        "plain copy": lambda: (folder / "copy").write_bytes(lite.read_bytes()),
        "write .pt": lambda: write_torchscript(program, folder / "written.pt"),
        "write .ptl": lambda: write_lite(program, folder / "written.ptl"),
        "read .pt": lambda: read_bundle(scripted),
        "read .ptl": lambda: read_bundle(lite),
    }


def audit_contestants(folder: Path, name: str) -> Contestants:
    """A run of the model in eager mode, first; then its audits for each backend."""
    file = folder / f"{name}.pt"
    model, x = ZOO[name].build(), ZOO[name].example(1, 224, 224)
    torch.jit.save(torch.jit.script(model), str(file))
    found: Contestants = {f"run {name}": lambda: model(x)}
    for backend in ("vulkan", "metal", "cpu"):
        found[f"audit, {backend}"] = lambda backend=backend: mobopt.audit(file, backend, example_inputs=[x])
    return found


def print_table(contestants: Contestants, rounds: int) -> None:
    """The fastest of each, and its ratio to the first."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    with torch.no_grad():
        for _ in range(rounds):
            for name, run in contestants.items():
                started = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - started)
    reference = min(next(iter(times.values())))
    for name, each in times.items():
        print(f"  {name:28}{min(each):8.3f} s{min(each) / reference:9.2f}x", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="weights in the bundle")
    parser.add_argument("--model", default="resnet50", choices=list(ZOO), metavar="NAME", help="whose audit is timed")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)
    with tempfile.TemporaryDirectory() as folder:
        print(f"bundles of {options.megabytes} MB")
        print_table(file_contestants(Path(folder), options.megabytes), options.rounds)
        print(f"audits of {options.model}, torch {torch.__version__}, {torch.get_num_threads()} threads")
        print_table(audit_contestants(Path(folder), options.model), options.rounds)


if __name__ == "__main__":
    main()
