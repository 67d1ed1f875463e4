"""PyTorch's own loaders open what is written here and compute the same; what it saves is read here."""

from __future__ import annotations

import io
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import BUNDLES, archive, arrays, as_tuple, bundle_id, records
from sampling import sampled
from scripted import CASES, Everything
from torch.jit.mobile import (
    _get_model_bytecode_version,
    _get_model_ops_and_info,
    _load_for_lite_interpreter,
)

import mobopt
from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.bundle.versions import BUMPED_AT
from mobopt.errors import BundleError
from mobopt.ir import Program
from mobopt.runtimes.cpu import Interpreter


def same(left: Any, right: Any) -> bool:
    """Whether two results agree, in structure too."""
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.allclose(left, right, rtol=1e-4, atol=1e-6, equal_nan=True)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


def written(program: Program, version: int | None = None) -> io.BytesIO:
    """A program as a file, lite if a bytecode version is given."""
    file = io.BytesIO()
    if version is None:
        write_torchscript(program, file)
    else:
        write_lite(program, file, version)
    file.seek(0)
    return file


def scripted(name: str) -> Any:
    torch.manual_seed(0)
    return torch.jit.script(CASES[name][0]()).eval()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.filterwarnings("ignore:positive")  # what one of the models says
@pytest.mark.parametrize("form", ["pt", "ptl"])
def test_scripted_module_is_read(case: str, form: str) -> None:
    module = scripted(case)
    data = module.save_to_buffer() if form == "pt" else module._save_to_buffer_for_lite_interpreter()
    for arguments in CASES[case][1]:
        expected = torch.jit.load(io.BytesIO(data))(*arguments)
        assert same(Interpreter(read_bundle(io.BytesIO(data))).run("forward", arguments), expected)


@pytest.mark.filterwarnings("ignore:positive")  # what one of the models says
@pytest.mark.parametrize(("version", "form"), sampled(product([None, 4, 5, 6, 7, 8], ["pt", "ptl"]), one_in=2))
def test_written_module_runs_in_stock_torch(case: str, form: str, version: int | None) -> None:
    module = scripted(case)
    data = module.save_to_buffer() if form == "pt" else module._save_to_buffer_for_lite_interpreter()
    program = read_bundle(io.BytesIO(data))
    loaders = [torch.jit.load] if version is None else [torch.jit.load, _load_for_lite_interpreter]
    for load in loaders:
        for arguments in CASES[case][1]:
            expected = torch.jit.load(io.BytesIO(data))(*arguments)
            assert same(load(written(program, version)).forward(*arguments), expected)


@pytest.mark.parametrize("version", [None, 4, 8])
def test_other_methods_run(version: int | None) -> None:
    program = read_bundle(io.BytesIO(scripted("everything").save_to_buffer()))
    loaded = torch.jit.load(written(program, version))
    assert loaded.edit({"a": 1, "b": 2, "c": 3}) == [1, 2, 1, 2, 3, 3]
    with pytest.raises(torch.jit.Error, match="zz is not allowed"):
        loaded.edit({"a": 1, "b": 2, "zz": 3})
    left, right = torch.zeros(1), torch.ones(1)
    assert same(loaded.swap(left, right, 3), (right, left))
    if version is not None:
        lite = _load_for_lite_interpreter(written(program, version))
        assert lite.run_method("edit", {"a": 1, "b": 2, "c": 3}) == [1, 2, 1, 2, 3, 3]
        assert same(lite.run_method("swap", left, right, 3), (right, left))


def test_defaults_of_arguments_survive() -> None:
    program = read_bundle(io.BytesIO(scripted("everything").save_to_buffer()))
    x = torch.ones(3, 3)
    expected = torch.jit.script(Everything()).eval()
    assert program.metadata["defaults"]["forward"] == {"k": 3, "other": None, "names": None}
    loaded = torch.jit.load(written(program))
    assert same(loaded(x), torch.jit.load(written(program))(x, 3))
    assert expected.forward.schema.arguments[2].default_value == loaded.forward.schema.arguments[2].default_value


def test_stock_reads_operators_and_version(tmp_path: Path) -> None:
    program = read_bundle(io.BytesIO(scripted("lists").save_to_buffer()))
    scripted("lists")._save_for_lite_interpreter(str(tmp_path / "stock.ptl"))
    stock = _get_model_ops_and_info(tmp_path / "stock.ptl")
    for version in (6, 7, 8):
        write_lite(program, tmp_path / "ours.ptl", version)
        assert _get_model_bytecode_version(tmp_path / "ours.ptl") == version
    ours = _get_model_ops_and_info(tmp_path / "ours.ptl")
    assert {name: info.num_schema_args for name, info in ours.items()} == {
        name: info.num_schema_args for name, info in stock.items()
    }


PLAIN = [path for path in BUNDLES if path.stem == "model"]


@pytest.mark.parametrize("path", sampled(PLAIN, one_in=2, key=bundle_id))
def test_golden_models_run_in_stock_torch(path: Path) -> None:
    program, inputs = read_bundle(path), arrays(path, "input")
    for load in (torch.jit.load, _load_for_lite_interpreter):
        assert same(as_tuple(load(written(program, 8))(*inputs)), tuple(arrays(path, "expected")))


def test_records_are_those_of_stock_torch() -> None:
    module = torch.jit.script(torch.nn.Linear(3, 3)).eval()
    stock = records(module._save_to_buffer_for_lite_interpreter())
    ours = records(written(read_bundle(io.BytesIO(module._save_to_buffer_for_lite_interpreter())), 8).getvalue())
    for name in ("version", "byteorder", "constants.pkl", "data/0", "data/1"):
        assert ours[name] == stock[name], name
    assert len(ours[".data/serialization_id"]) == 40
    assert [name for name in stock if not name.endswith(".debug_pkl")] == list(ours)


def test_deflated_and_unaligned_archives_are_read() -> None:
    import zipfile

    data = torch.jit.script(torch.nn.Linear(3, 3)).eval().save_to_buffer()
    program = read_bundle(io.BytesIO(archive(records(data), method=zipfile.ZIP_DEFLATED)))
    x = torch.ones(2, 3)
    assert same(Interpreter(program).run("forward", [x]), torch.jit.load(io.BytesIO(data))(x))


def test_versions_of_operators_are_those_of_torch() -> None:
    bumped = {
        name: max(entry.bumped_at_version for entry in entries)
        for name, entries in torch._C._get_operator_version_map().items()
    }
    assert bumped == BUMPED_AT


@pytest.mark.parametrize(("version", "expected"), [(3, "aten::div.Tensor had another meaning"), (4, "")])
def test_older_meaning_of_division(version: int, expected: str) -> None:
    class Divide(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x / y

    module = torch.jit.trace(Divide(), (torch.ones(1), torch.ones(1)))
    contents = records(module.save_to_buffer())
    contents["version"] = f"{version}\n".encode()
    if expected:
        with pytest.raises(BundleError, match=expected):
            read_bundle(io.BytesIO(archive(contents)))
    else:
        read_bundle(io.BytesIO(archive(contents)))


def test_version_record() -> None:
    class Gelu(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.gelu(x)

    module = torch.jit.trace(Gelu(), torch.ones(1))
    ours = records(written(read_bundle(io.BytesIO(module.save_to_buffer()))).getvalue())
    assert ours[".data/version"] == records(module.save_to_buffer())[".data/version"] == b"10\n"


class Bits(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.int32) + 1


def test_elements_taken_for_another_dtype() -> None:
    """PyTorch's compiler takes the dtype of ``view`` for sizes."""
    x = torch.rand(3)  # torch.int32 is 3
    module = mobopt.optimize_for_mobile(Bits(), example_inputs=[x])
    assert same(module(x), Bits()(x))
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    assert same(torch.jit.load(file)(x), Bits()(x))
