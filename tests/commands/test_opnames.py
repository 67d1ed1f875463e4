"""Operator names are those that torch gives, for every kind of bundle, in the forms that PyTorch's builds take."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_harness import Invoke, assert_refused, rewrite
from model_zoo import ZOO
from torch import nn
from torch.jit.mobile import _export_operator_list, _load_for_lite_interpreter

import mobopt
from mobopt.bundle import read_bundle
from mobopt.errors import BundleError
from mobopt.ops.effects import handles_tensors
from mobopt.stand_in import is_in_torch
from mobopt.tools.operator_names import operator_names, selective_build_yaml

GOLDEN = Path(__file__).parent.parent / "golden"
BUNDLES = [
    path
    for path in sorted(GOLDEN.glob("*/*/*.pt*"))
    if path.stem in json.loads((path.parent / "opnames.json").read_text())
]


def torch_names(module: Any) -> list[str]:
    return torch.jit.export_opnames(module)


def stock_bytes(module: torch.jit.ScriptModule, suffix: str) -> io.BytesIO:
    data = module._save_to_buffer_for_lite_interpreter() if suffix == ".ptl" else module.save_to_buffer()
    return io.BytesIO(data)


def is_source(path: Path) -> bool:
    """Whether a golden file is a model before conversion, in source: torch drops branches of it that are dead."""
    return path.name == "model.pt"


def assert_names_of_source(ours: list[str], expected: list[str], file: Path | io.BytesIO) -> None:
    """All that torch names, and beside it only what the source calls; none of that is missing but instructions."""
    graphs = read_bundle(file, "code").methods.values()
    calls = {node.qualified_op for graph in graphs for node in graph.walk()}
    computing = {node.qualified_op for graph in graphs for node in graph.walk() if handles_tensors(node)}
    assert set(expected) <= set(ours) <= calls
    assert {name for name in computing if name.startswith("aten::")} - {"aten::dim"} <= set(ours)


@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.relative_to(GOLDEN).as_posix())
def test_golden_bundles(path: Path) -> None:
    names = mobopt.export_opnames(path)
    expected = json.loads((path.parent / "opnames.json").read_text())[path.stem]
    if is_source(path):
        assert_names_of_source(names, expected, path)
    else:
        assert names == expected


def test_golden_bundles_of_every_kind_are_there() -> None:
    kinds = {(path.parent.parent.name, path.name) for path in BUNDLES}
    for release, names in {
        "pt1.13.1": ("model", "vulkan", "metal", "cpu"),
        "pt2.13.0": ("model", "vulkan", "metal"),
    }.items():
        assert {(release, f"{name}{suffix}") for name in names for suffix in (".pt", ".ptl")} <= kinds


@pytest.mark.parametrize("path", [path for path in BUNDLES if path.name == "model.ptl"], ids=str)
def test_golden_models_as_torch_loads_them(path: Path) -> None:
    ours = mobopt.export_opnames(path)
    assert ours == torch_names(torch.jit.load(path))
    assert set(ours) == _export_operator_list(_load_for_lite_interpreter(str(path)))


FEW = ("mobilenet_v2",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.sweep]) for name in ZOO])
@pytest.mark.parametrize("form", ["scripted", pytest.param("traced", marks=pytest.mark.sweep)])
def test_models_of_the_zoo(name: str, form: str) -> None:
    model = ZOO[name].build()
    module = (
        torch.jit.script(model) if form == "scripted" else torch.jit.trace(model, ZOO[name].example(), strict=False)
    )
    expected = torch_names(module)
    assert mobopt.export_opnames(module) == expected
    assert mobopt.export_opnames(stock_bytes(module, ".ptl")) == expected
    loaded = torch_names(torch.jit.load(stock_bytes(module, ".pt")))  # a call of source may mean another overload
    assert_names_of_source(mobopt.export_opnames(stock_bytes(module, ".pt")), loaded, stock_bytes(module, ".pt"))
    lite = _load_for_lite_interpreter(stock_bytes(module, ".ptl"))
    assert _export_operator_list(lite) == set(expected)


class Names(nn.Module):
    """Operators that bytecode has instructions for, an operator that writes, a branch that is never taken, a cast."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = 3

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self.limit > 5:
            x = torch.tanh(x)
        if bias is not None:
            x = x + bias
        if x.dim() == 2 and x.dtype == torch.float32 and not x.is_cuda:
            torch.mul(x, x, out=x)
        assert x.size(0) > 0, f"empty: {x.size(0)}"
        return x


@pytest.mark.parametrize("suffix", [".pt", ".ptl"])
def test_rules_of_torch(suffix: str) -> None:
    module = torch.jit.script(Names()).eval()
    names = mobopt.export_opnames(stock_bytes(module, suffix))
    assert names == torch_names(module)
    assert {"aten::mul.out", "prim::unchecked_cast"} <= set(names)
    assert not {"aten::dim", "prim::dtype", "aten::__not__", "aten::format", "prim::RaiseException"} & set(names)


@pytest.mark.parametrize("suffix", [".pt", ".ptl"])
def test_quantised_module(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.quantized, "engine", "qnnpack")
    quantization = torch.ao.quantization
    model = quantization.QuantWrapper(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    ).eval()
    model.qconfig = quantization.default_qconfig
    prepared = quantization.prepare(model)
    prepared(torch.randn(1, 3, 5, 5))
    module = torch.jit.script(quantization.convert(prepared))
    if suffix == ".pt":  # packing the weights takes operators, too, which no graph of the file shows
        with pytest.raises(BundleError, match=r"restore themselves by code, .*_save_for_lite_interpreter"):
            mobopt.export_opnames(stock_bytes(module, suffix))
        return
    names = mobopt.export_opnames(stock_bytes(module, suffix))
    assert names == torch_names(module) and "quantized::conv2d.new" in names


@pytest.fixture(scope="module")
def convolution() -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    return torch.jit.script(nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).eval())


@pytest.mark.parametrize("backend", ["cpu", "vulkan"])
@pytest.mark.parametrize("suffix", [".pt", ".ptl"])
def test_optimised_module_and_its_files_agree(
    convolution: torch.jit.ScriptModule, backend: str, suffix: str, tmp_path: Path
) -> None:
    optimized = mobopt.optimize_for_mobile(convolution, backend=backend)
    path = tmp_path / f"model{suffix}"
    (torch.jit.save if suffix == ".pt" else type(optimized)._save_for_lite_interpreter)(optimized, str(path))
    names = mobopt.export_opnames(path)
    assert names == torch_names(optimized) == operator_names(read_bundle(path))
    assert ("vulkan_prepack::run_conv2d_context" in names) == (backend == "vulkan")


def test_operators_declared_by_a_stand_in_do_not_make_torch_load_the_file() -> None:
    path = next(path for path in BUNDLES if path.name == "vulkan.pt")
    first = mobopt.export_opnames(path)
    assert not is_in_torch("vulkan_prepack::run_linear_context")
    assert mobopt.export_opnames(path) == first


@pytest.mark.parametrize("suffix", [".pt", ".ptl"])
def test_file_objects_are_read(convolution: torch.jit.ScriptModule, suffix: str) -> None:
    dead = ["aten::relu_"] if suffix == ".pt" else []
    assert mobopt.export_opnames(stock_bytes(convolution, suffix)) == torch_names(convolution) + dead


def test_damaged_files_are_refused(convolution: torch.jit.ScriptModule, tmp_path: Path, invoke: Invoke) -> None:
    whole = tmp_path / "whole.pt"
    torch.jit.save(convolution, str(whole))
    broken = rewrite(whole, tmp_path / "broken.pt", {"constants.pkl": None})
    with pytest.raises(BundleError, match=r"broken\.pt has no record 'constants\.pkl'"):
        mobopt.export_opnames(broken)
    assert_refused(invoke("opnames", broken), "broken.pt", "constants.pkl")


LITE = next(path for path in BUNDLES if path.name == "vulkan.ptl")


def test_yaml_list_is_a_list(invoke: Invoke) -> None:
    lines = invoke("opnames", LITE, "--format", "list").stdout.splitlines()
    assert lines == [f"- {name}" for name in mobopt.export_opnames(LITE)]
    assert invoke("opnames", LITE, "--yaml").stdout.splitlines() == lines
    assert selective_build_yaml([]) == "[]\n"


def test_yaml_dictionary(invoke: Invoke) -> None:
    names = mobopt.export_opnames(LITE)
    lines = invoke("opnames", LITE, "--format", "dict").stdout.splitlines()
    assert lines[:2] == ["include_all_operators: false", "operators:"]
    assert lines[2::4] == [f"  {name}:" for name in names]
    assert lines[3::4] == ["    include_all_overloads: false"] * len(names)
    assert lines[4::4] == ["    is_root_operator: true"] * len(names)
    assert lines[5::4] == ["    is_used_for_training: false"] * len(names)


def test_yaml_is_what_torchs_build_reads() -> None:
    yaml = pytest.importorskip("yaml")
    from torchgen.selective_build.selector import SelectiveBuilder

    names = ["aten::add.Tensor", "aten::to.prim_Device", "vulkan_prepack::run_conv2d_context"]
    assert yaml.safe_load(selective_build_yaml(names)) == names
    builder = SelectiveBuilder.from_yaml_str(selective_build_yaml(names, "dict"))
    assert sorted(builder.operators) == names
    assert builder.is_operator_selected("aten::add.Tensor") and not builder.is_operator_selected("aten::add.Scalar")
    assert not any(operator.is_used_for_training for operator in builder.operators.values())
    assert SelectiveBuilder.from_yaml_str(selective_build_yaml([], "dict")).operators == {}


def test_unknown_form_is_refused(invoke: Invoke) -> None:
    with pytest.raises(ValueError, match="form is 'toml'"):
        selective_build_yaml([], "toml")
    assert_refused(invoke("opnames", LITE, "--format", "toml"), "'toml' is not one of")
    assert_refused(invoke("opnames", LITE, "--format", "list", "--json"), "not both")
