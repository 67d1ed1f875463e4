from __future__ import annotations

import os
from pathlib import Path

import pytest

from mobopt import shaders
from mobopt.shaders.build import build
from mobopt.shaders.table import ShaderError, parse_table

_SHADER = """#version 450
#extension GL_GOOGLE_include_directive : require
#include "value.glsl"
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) writeonly buffer Target { float target[]; };
void main() { target[0] = VALUE * FACTOR; }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "value.glsl").write_text("#define VALUE 1.0\n")
    (tmp_path / "one.comp").write_text(_SHADER)
    (tmp_path / "variants.toml").write_text(
        '[one]\nsource = "one.comp"\ndefines = { FACTOR = "2.0" }\n'
        '[two]\nsource = "one.comp"\ndefines = { FACTOR = 3 }\n'
    )
    return tmp_path


def _build(folder: Path):
    return build(folder, folder / "spirv", folder / "variants.toml")


def test_only_what_changed_is_compiled(folder):
    assert _build(folder).compiled == ("one", "two")
    assert _build(folder).compiled == ()
    (folder / "value.glsl").write_text("#define VALUE 4.0\n")
    assert _build(folder).compiled == ("one", "two")
    (folder / "spirv" / "two.spv").write_bytes(b"damaged")
    assert _build(folder).compiled == ("two",)
    (folder / "spirv" / "one.spv").unlink()
    assert _build(folder).compiled == ("one",)


def test_variants_that_are_gone_are_removed(folder):
    _build(folder)
    (folder / "variants.toml").write_text('[one]\nsource = "one.comp"\ndefines = { FACTOR = "2.0" }\n')
    _build(folder)
    assert [path.name for path in (folder / "spirv").glob("*.spv")] == ["one.spv"]


def test_each_failure_is_named_and_the_rest_is_built(folder):
    table = folder / "variants.toml"
    table.write_text(table.read_text() + '[bad]\nsource = "one.comp"\n')
    with pytest.raises(ShaderError, match=r"1 of 3 .*\nbad: (.|\n)*one.comp:6.*FACTOR"):
        _build(folder)
    assert (folder / "spirv" / "one.spv").exists()
    with pytest.raises(ShaderError, match="bad"):
        _build(folder)


def test_a_missing_compiler_names_the_package(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(ShaderError, match="apt install glslc"):
        _build(folder)


def test_a_missing_source_is_named(folder):
    (folder / "value.glsl").unlink()
    with pytest.raises(ShaderError, match=r"'one' needs .*value.glsl"):
        _build(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[one\n", "can't be parsed"),
        ("[one]\n", "needs source"),
        ('[one]\nsource = "a.comp"\nmacros = {}\n', "macros"),
    ],
)
def test_a_malformed_table(text, message):
    with pytest.raises(ShaderError, match=message):
        parse_table(text)


def test_loading_an_unknown_variant():
    with pytest.raises(ShaderError, match="no shader variant 'no_such'"):
        shaders.load("no_such")


def test_every_variant_is_built():
    for name in shaders.variants():
        assert shaders.load(name)[:4] == b"\x03\x02\x23\x07", name


def test_no_file_is_left_behind(folder):
    _build(folder)
    assert sorted(os.listdir(folder / "spirv")) == ["manifest.json", "one.spv", "two.spv"]
