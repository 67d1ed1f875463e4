"""``inspect`` says what a file needs: releases, backend, transfers, loaders, and why."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import GOLDEN, bundle_id
from click.testing import CliRunner
from torch import nn

import mobopt
from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.commands import main
from mobopt.ir import Program
from mobopt.ops.contexts import CONTEXT_CLASSES
from mobopt.ops.schemas import schemas_of
from mobopt.runtimes.cpu import Interpreter
from mobopt.tools.requirements import CLASSES, REGISTERED, Need, Needs, inspect_bundle, needs_of


def needs(path: str) -> Needs:
    return inspect_bundle(GOLDEN / path)[1]


@pytest.mark.parametrize(
    ("path", "oldest", "backend", "decides"),
    [
        ("pt1.13.1/mixed/vulkan.pt", "1.13", "vulkan", "vulkan_prepack::run_tconv2d_context"),
        ("pt1.13.1/mixed/vulkan.ptl", "1.13", "vulkan", "class vulkan.Conv2dPackedContext"),
        ("pt2.13.0/layernorm/vulkan.ptl", "2.2", "vulkan", "vulkan_prepack::run_layernorm_context"),
        ("pt2.13.0/lstm/vulkan_fixedstate.pt", "1.13", "vulkan", "vulkan_prepack::run_lstm_context"),
        ("pt2.13.0/lstm/vulkan.pt", None, "vulkan", "state of LstmPackedContext"),
        ("pt1.13.1/mixed/metal.ptl", "1.11", "metal", "bytecode version 8"),
        ("pt1.13.1/mixed/cpu.ptl", "1.11", "xnnpack", "bytecode version 8"),
        ("pt2.13.0/mlp/model.ptl", "1.11", "cpu", "bytecode version 8"),
    ],
)
def test_release_and_backend(path: str, oldest: str | None, backend: str, decides: str) -> None:
    found = needs(path)
    assert (found.oldest, found.backend) == (oldest, backend)
    assert decides in [need.what for need in found.decisive]
    assert set(found.decisive) <= set(found.needs)
    assert found.opens_here == (backend == "cpu")


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*/*/*.pt*")), ids=bundle_id)
def test_release_that_wrote_a_file_reads_it(path: Path) -> None:
    found = inspect_bundle(path)[1]
    wrote = path.parent.parent.name.removeprefix("pt").rpartition(".")[0]
    if path.parent.name == "lstm" and path.stem in ("vulkan", "vulkan_notransfer"):
        assert found.oldest is None  # PyTorch's own packed state, which it can't load
        return
    assert found.oldest is not None
    assert [int(part) for part in found.oldest.split(".")] <= [int(part) for part in wrote.split(".")]
    assert found.newest == ""


def test_loaders_differ() -> None:
    assert needs("pt1.13.1/mlp/model.ptl").loaders == {"torchscript": "1.9", "lite": "1.11"}
    assert needs("pt1.13.1/mlp/model.pt").loaders == {"torchscript": "1.9"}
    assert "releases before 1.13" in needs("pt1.13.1/mlp/model.pt").notes[-1]
    assert needs("pt1.13.1/mlp/vulkan.ptl").loaders == {"torchscript": "1.13", "lite": "1.13"}


@pytest.mark.parametrize(("version", "oldest"), [(4, "1.9"), (5, "1.9"), (6, "1.10"), (7, "1.10"), (8, "1.11")])
def test_bytecode_versions(version: int, oldest: str, tmp_path: Path) -> None:
    write_lite(read_bundle(GOLDEN / "pt1.13.1/mlp/model.ptl"), tmp_path / "model.ptl", version)
    found = inspect_bundle(tmp_path / "model.ptl")[1]
    assert found.oldest == oldest
    assert Need(f"bytecode version {version}", oldest, "", "the lite interpreter's format") in found.needs


def needs_of_module(module: nn.Module) -> Needs:
    file = io.BytesIO(torch.jit.script(module).save_to_buffer())
    return needs_of(read_bundle(file), ["torchscript"])


def test_archive_version_and_young_operators() -> None:
    class Gelu(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.gelu(x)

    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x)

    found = needs_of_module(Gelu())
    assert (found.oldest, [need.what for need in found.decisive]) == ("1.12", ["archive version 10"])
    found = needs_of_module(Attention())
    assert (found.oldest, [need.what for need in found.decisive]) == ("2.0", ["aten::scaled_dot_product_attention"])
    assert "came with PyTorch 2.0" in str(found.decisive[0])


def test_transfers() -> None:
    assert needs("pt2.13.0/mlp/vulkan.pt").transfers == ("to the device", "to the CPU")
    assert not needs("pt2.13.0/mlp/vulkan.pt").notes
    without = needs("pt2.13.0/mlp/vulkan_notransfer.pt")
    assert without.transfers == () and "from 2.1 on the caller must give Vulkan tensors" in without.notes[0]
    metal = needs("pt2.13.0/mlp/metal.pt")
    assert metal.transfers == () and "the caller must give Metal tensors" in metal.notes[0]


def test_operators_that_are_gone() -> None:
    from mobopt.ir import parse_graph

    text = (
        "graph(%self : __torch__.M,\n      %x : Tensor,\n"
        "      %c : __torch__.torch.classes.vulkan.Conv2dOpContext):\n"
        "  %y : Tensor = vulkan_prepack::conv2d_clamp_run(%x, %c)\n  return (%y)\n"
    )
    program = Program({"forward": parse_graph(text)}, metadata={"archive_version": 3})
    assert needs_of(program, ["torchscript"]).oldest == "1.9"
    (node,) = program.methods["forward"].block.nodes
    node.op = "vulkan_prepack::linear_run"
    found = needs_of(program, ["torchscript"])
    assert (found.oldest, found.newest) == ("1.9", "1.12")
    assert str(found.decisive[0]) == "vulkan_prepack::linear_run: PyTorch 1.9 to 1.12 (the Vulkan backend)"
    node.op = "app::own"
    found = needs_of(program, ["torchscript"])
    assert found.oldest is None and "the app must bring it" in str(found.decisive[0])


def test_operators_that_torch_has_dropped() -> None:
    """A file that names them is read as what they have become; stock torch from 2.14 on doesn't open it."""
    from mobopt.ir import parse_graph

    text = (
        "graph(%self : __torch__.M,\n      %x : Tensor):\n  %upper : bool = prim::Constant[value=1]()\n"
        "  %some : bool = prim::Constant[value=0]()\n  %t : Tensor = aten::cholesky(%x, %upper)\n"
        "  %q : Tensor, %r : Tensor = aten::qr(%x, %some)\n"
        "  %all : (Tensor, Tensor, Tensor) = prim::TupleConstruct(%t, %q, %r)\n  return (%all)\n"
    )
    x = torch.rand(5, 5, generator=torch.Generator().manual_seed(3)) + 5 * torch.eye(5)
    x = x + x.mT
    for write in (write_torchscript, write_lite):
        file = io.BytesIO()
        write(Program({"forward": parse_graph(text)}, class_name="__torch__.M"), file)
        file.seek(0)
        program = read_bundle(file)
        assert {node.op for node in program.methods["forward"].walk()} >= {"aten::linalg_cholesky", "aten::linalg_qr"}
        found = Interpreter(program).run("forward", [x])
        torch.testing.assert_close(found, (torch.linalg.cholesky(x, upper=True), *torch.linalg.qr(x, "complete")))
        needs = needs_of(program, ["torchscript"])
        assert (needs.newest, needs.opens_here) == ("2.13", bool(schemas_of_torch("aten::qr")))
        assert str(needs.decisive[0]).startswith("aten::cholesky: PyTorch 1.9 to 2.13 (later releases have dropped")


def schemas_of_torch(name: str) -> list[Any]:
    return list(torch._C._jit_get_schemas_for_operator(name))


def test_tables_know_every_operator_and_class() -> None:
    assert {name.removeprefix("__torch__.torch.classes.") for name in CONTEXT_CLASSES} <= set(CLASSES)
    ours = [name for name in REGISTERED if schemas_of(name)]
    assert len(ours) >= 25
    for node_op in ("vulkan_prepack::run_conv2d_context", "metal_prepack::linear_run", "prepacked::linear_clamp_run"):
        assert node_op in ours


@pytest.mark.parametrize("backend", ["cpu", "vulkan"])
def test_own_files(backend: str, tmp_path: Path) -> None:
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU()).eval())
    mobopt.optimize_for_mobile(model, backend=backend)._save_for_lite_interpreter(tmp_path / "own.ptl")
    found = inspect_bundle(tmp_path / "own.ptl")[1]
    assert (found.backend, found.oldest) == (backend, {"cpu": "1.11", "vulkan": "1.13"}[backend])
    assert found.transfers == ({"cpu": (), "vulkan": ("to the device", "to the CPU")}[backend])


def test_command() -> None:
    path = GOLDEN / "pt2.13.0/layernorm/vulkan.ptl"
    text = CliRunner().invoke(main, ["inspect", str(path)]).stdout
    assert "PyTorch 2.2 or newer, built with Vulkan (USE_VULKAN=1)" in text
    assert "vulkan_prepack::run_layernorm_context: PyTorch 2.2 (the Vulkan backend)" in text
    assert "in the graph: to the device, to the CPU" in text and "archive 3, bytecode 8" in text
    data = json.loads(CliRunner().invoke(main, ["inspect", str(path), "--json"]).stdout)["needs"]
    assert (data["oldest"], data["backend"], data["opens_here"]) == ("2.2", "vulkan", False)
    assert {"what": "archive version 3", "since": "1.9", "until": "", "why": "the file format"} in data["needs"]
    broken = CliRunner().invoke(main, ["inspect", str(GOLDEN / "pt2.13.0/lstm/vulkan.pt")]).stdout
    assert "of no release of PyTorch" in broken and "its loader takes 4 for each layer" in broken
