"""Stock torch, given files for other builds, stops at the names that it doesn't know, and at nothing before them."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stock_torch
import torch
from archives import GOLDEN, arrays, as_tuple, bundle_id
from sampling import sampled
from stock_torch import InStockTorch
from torch.jit.mobile import _get_model_bytecode_version, _load_for_lite_interpreter

import mobopt
from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.ir import Program

NAMESPACES = {"vulkan": "vulkan_prepack", "metal": "metal_prepack", "xnnpack": "prepacked"}
NOTHING_PACKED = ("lstm", "metal"), ("lstm", "cpu")
"""Nets for which a backend has no operators of its own, so that stock torch opens their files."""
GENUINE = [
    path
    for path in sorted(GOLDEN.glob("*/*/*.pt*"))
    if path.stem != "model" and (path.parent.name, path.stem) not in NOTHING_PACKED
]
MODELS = sorted(GOLDEN.glob("*/*/model.pt"))
OWN = [
    (path, backend)
    for path in MODELS
    for backend in ("vulkan", "metal")
    if (path.parent.name, backend) not in NOTHING_PACKED
]


def assert_stops_at_unknown_names(program: Program, backend: str, in_stock_torch: InStockTorch) -> None:
    """Both loaders, on all bytecode versions; and what reads operator tables only."""
    file = io.BytesIO()
    write_torchscript(program, file)
    text = in_stock_torch(stock_torch.full_error, file.getvalue())
    assert text.startswith(f"Unknown type name '__torch__.torch.classes.{backend}."), text[:300]
    namespace = NAMESPACES[backend]
    for version in range(4, 9):
        lite = io.BytesIO()
        write_lite(program, lite, version)
        text = in_stock_torch(stock_torch.lite_error, lite.getvalue())
        assert re.match(rf"Following ops cannot be found: \[{namespace}::(run_|\w+_run)", text), text[:300]
        found, counts = in_stock_torch(stock_torch.lite_table, lite.getvalue())
        assert found == version
        assert sorted(counts) == mobopt.export_opnames(io.BytesIO(lite.getvalue()))
        packed = {count for name, count in counts.items() if name.startswith(namespace)}
        assert packed and packed <= ({None} if version < 6 else {2, 3, 4}), counts


@pytest.mark.parametrize("path", sampled(GENUINE, one_in=2, key=bundle_id))
def test_genuine_files_written_again(path: Path, in_stock_torch: InStockTorch) -> None:
    program = read_bundle(path)
    file = io.BytesIO()
    write_lite(program, file)
    file.seek(0)
    backend = {"cpu": "xnnpack", "metal": "metal"}.get(path.stem, "vulkan")
    assert_stops_at_unknown_names(read_bundle(file), backend, in_stock_torch)


@pytest.mark.parametrize(
    ("path", "backend"), sampled(OWN, one_in=2, key=lambda case: f"{bundle_id(case[0])} {case[1]}")
)
def test_own_files(path: Path, backend: str, in_stock_torch: InStockTorch) -> None:
    module = torch.jit.load(path)
    optimized = mobopt.optimize_for_mobile(module, backend=backend, example_inputs=arrays(path, "input"))
    assert_stops_at_unknown_names(optimized.program, backend, in_stock_torch)


@pytest.mark.parametrize("path", MODELS, ids=bundle_id)
def test_files_for_the_cpu_run_in_stock_torch(path: Path) -> None:
    inputs: list[Any] = arrays(path, "input")
    optimized = mobopt.optimize_for_mobile(torch.jit.load(path), backend="cpu", example_inputs=inputs)
    expected = arrays(path, "expected")
    file = io.BytesIO(optimized.save_to_buffer())
    for result, wanted in zip(as_tuple(torch.jit.load(file)(*inputs)), expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
    for version in range(4, 9):
        lite = io.BytesIO()
        write_lite(optimized.program, lite, version)
        loaded = _load_for_lite_interpreter(io.BytesIO(lite.getvalue()))
        assert _get_model_bytecode_version(io.BytesIO(lite.getvalue())) == version
        for result, wanted in zip(as_tuple(loaded(*inputs)), expected, strict=True):
            torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)


SCRIPT = """
import sys, torch, mobopt
from torch.jit.mobile import _load_for_lite_interpreter

source, folder = sys.argv[1:]
x = torch.ones(1, 16)
optimized = mobopt.optimize_for_mobile(torch.jit.load(source), backend="metal")
assert "metal_prepack::linear_run" in mobopt.export_opnames(optimized)
optimized.save(f"{folder}/model.pt")
optimized._save_for_lite_interpreter(f"{folder}/model.ptl")
again = mobopt.load(f"{folder}/model.pt", device="cpu")
assert torch.equal(again.forward(x), again(x))
assert mobopt.export_opnames(f"{folder}/model.pt") == mobopt.export_opnames(again)
try:
    _load_for_lite_interpreter(f"{folder}/model.ptl")
except RuntimeError as error:
    assert "Following ops cannot be found: [metal_prepack::linear_run" in str(error), error
    assert "metal_prepack::linear_run" in str(again.graph)
    print("refused")
"""


def test_a_module_in_the_same_process_does_not_hide_it(tmp_path: Path) -> None:
    """Optimising, running, saving and naming operators declare nothing to torch."""
    command = [sys.executable, "-c", SCRIPT, str(GOLDEN / "pt2.13.0" / "mlp" / "model.pt"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "refused\n", done.stderr
