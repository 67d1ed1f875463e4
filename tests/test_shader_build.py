from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mobopt import shaders
from mobopt.shaders import build as build_module
from mobopt.shaders.build import build
from mobopt.shaders.compilers import CompileError, Compiler, Glslc, SlangGlslang, find_compiler
from mobopt.shaders.expand import expand
from mobopt.shaders.table import GLSL_FOLDER, ShaderError, Variant, parse_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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


@pytest.fixture
def loaded_from(folder, monkeypatch):
    """What loads variants as from a checkout that has just begun to run."""
    (folder / "pyproject.toml").touch()
    for name, path in (("GLSL_FOLDER", ""), ("SHADERS_FOLDER", "shaders"), ("SPIRV_FOLDER", "spirv")):
        monkeypatch.setattr(shaders, name, folder / path)
    monkeypatch.setattr(shaders, "TABLE", folder / "variants.toml")
    monkeypatch.setattr(shaders, "variants", lambda: parse_table((folder / "variants.toml").read_text()))

    def load(name):
        shaders._texts_to_check.cache_clear()
        return shaders.load(name)

    yield load
    shaders._texts_to_check.cache_clear()


def test_what_was_compiled_of_another_text_is_refused(folder, loaded_from):
    _build(folder)
    spirv = loaded_from("one")
    (folder / "value.glsl").touch()  # as a checkout may
    assert loaded_from("one") == spirv
    (folder / "value.glsl").write_text("#define VALUE 4.0\n")
    later = (folder / "spirv" / "manifest.json").stat().st_mtime + 1
    os.utime(folder / "value.glsl", (later, later))
    with pytest.raises(ShaderError, match=r"before its source changed.*shaders.build"):
        loaded_from("one")
    (folder / "pyproject.toml").unlink()  # what is installed lies as it was built
    assert loaded_from("one") == spirv
    (folder / "pyproject.toml").touch()
    _build(folder)
    assert loaded_from("one") != spirv
    (folder / "spirv" / "manifest.json").unlink()
    with pytest.raises(ShaderError, match="before its source changed"):
        loaded_from("one")


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


@pytest.mark.parametrize(
    ("needed", "extension"),
    [
        ("matrix_units", "GL_KHR_cooperative_matrix_of_tomorrow"),
        ("bfloat16_units", "GL_EXT_bfloat16_of_tomorrow"),
        ("float16", "GL_KHR_cooperative_matrix_of_tomorrow"),
    ],
)
def test_an_old_compiler_leaves_out_what_is_for_matrix_units(folder, needed, extension):
    lines = _SHADER.replace("#extension", f"#extension {extension} : require\n#extension", 1)
    (folder / "units.comp").write_text(lines)
    table = folder / "variants.toml"
    row = f'[units]\nsource = "units.comp"\nrequires = ["{needed}"]\ndefines = {{ FACTOR = 3 }}\n'
    table.write_text(table.read_text() + row)
    if needed == "float16":
        with pytest.raises(ShaderError, match="units"):
            _build(folder)
    else:
        _build(folder)
    assert sorted(path.name for path in (folder / "spirv").glob("*.spv")) == ["one.spv", "two.spv"]


class _NamedCompiler:
    """Gives its own name instead of SPIR-V."""

    def __init__(self, identity: str) -> None:
        self.identity = identity

    def compile(self, text: str) -> bytes:
        return self.identity.encode()


def test_another_compiler_compiles_all_again(folder, monkeypatch):
    for identity in ("glslang 1", "glslang 2"):
        monkeypatch.setattr(build_module, "find_compiler", lambda identity=identity: _NamedCompiler(identity))
        result = _build(folder)
        assert (result.compiled, result.compiler) == (("one", "two"), identity)
        assert (folder / "spirv" / "one.spv").read_text() == identity
        assert _build(folder).compiled == ()


def test_without_a_compiler_what_is_there_serves_until_it_is_stale(folder, monkeypatch):
    _build(folder)
    monkeypatch.setattr(build_module, "find_compiler", lambda: None)
    assert _build(folder).current == ("one", "two")
    (folder / "value.glsl").write_text("#define VALUE 4.0\n")
    with pytest.raises(ShaderError, match=r"pip install slangpy.*apt install glslc"):
        _build(folder)


def _no_compilers(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_the_first_compiler_that_is_there_is_used(folder, monkeypatch):
    monkeypatch.delenv("MOBOPT_GLSL_COMPILER", raising=False)
    with monkeypatch.context() as patch:
        _no_compilers(folder, patch)
        assert find_compiler() is None
        script = folder / "glslc"
        script.write_text("#!/bin/sh\necho shaderc 7\n")
        script.chmod(0o755)
        found = find_compiler()
        assert found is not None and found.identity.startswith("glslc shaderc 7 ")


def test_the_compiler_that_the_environment_names(folder, monkeypatch):
    _no_compilers(folder, monkeypatch)
    monkeypatch.setenv("MOBOPT_GLSL_COMPILER", "slangpy")
    with pytest.raises(ShaderError, match=r"MOBOPT_GLSL_COMPILER=slangpy, which isn't there: .*pip install slangpy"):
        find_compiler()
    monkeypatch.setenv("MOBOPT_GLSL_COMPILER", "gcc")
    with pytest.raises(ShaderError, match="MOBOPT_GLSL_COMPILER=gcc: mobopt knows slangpy and glslc"):
        find_compiler()


def test_a_slangpy_without_the_compiler(tmp_path):
    library = tmp_path / "libslang-glslang-1.so"
    library.write_bytes(b"no library")
    with pytest.raises(ShaderError, match=r"slangpy 9 has no GLSL compiler that mobopt can call: .*libslang-glslang-1"):
        SlangGlslang(library, "9")


@pytest.fixture(params=[SlangGlslang, Glslc])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """Each compiler of this machine."""
    found = request.param.find()
    if found is None:
        assert not (request.param is SlangGlslang and os.environ.get("CI")), "pyproject.toml's compiler isn't installed"
        pytest.skip("not installed")
    return found


def test_messages_name_the_file_and_the_line(folder, compiler):
    (folder / "value.glsl").write_text("#define VALUE 1.0\nfloat broken() { return nothing; }\n")
    source = expand(Variant("one", "one.comp", (("FACTOR", "2"), ("BARE", ""))), folder)
    with pytest.raises(CompileError, match=f"{folder.name}/value.glsl:2: .*nothing"):
        compiler.compile(source)
    (folder / "value.glsl").write_text("#define VALUE nothing\n")
    source = expand(Variant("one", "one.comp", (("FACTOR", "2"), ("BARE", ""))), folder)
    with pytest.raises(CompileError, match=f"{folder.name}/one.comp:6: .*nothing"):
        compiler.compile(source)


@pytest.mark.parametrize("name", ["product_shared", "softmax_texels"])
def test_each_compiler_knows_what_the_shaders_use(compiler, name):
    spirv = compiler.compile(expand(shaders.variants()[name], GLSL_FOLDER))
    magic, version = struct.unpack_from("<II", spirv)
    assert (magic, version) == (0x07230203, 0x00010300)


def test_expanded_text(folder):
    text = expand(Variant("one", "one.comp", (("BARE", ""), ("FACTOR", "2"))), folder)
    name = folder.name
    assert text.splitlines()[:9] == [
        "#version 450",
        "#define BARE",
        "#define FACTOR 2",
        f'#line 2 "{name}/one.comp"',
        "#extension GL_GOOGLE_include_directive : require",
        f'#line 1 "{name}/value.glsl"',
        "#define VALUE 1.0",
        f'#line 4 "{name}/one.comp"',
        "layout(local_size_x = 1) in;",
    ]


def test_what_can_not_be_expanded(folder):
    (folder / "value.glsl").write_text('#include "value.glsl"\n')
    with pytest.raises(ShaderError, match=r"'one': .*value.glsl includes itself"):
        _build(folder)
    (folder / "one.comp").write_text("void main() {}\n")
    with pytest.raises(ShaderError, match=r"'one': .*one.comp has no #version"):
        _build(folder)


@pytest.mark.parametrize(
    ("python", "system", "machine", "version"),
    [
        ("3.10", "linux", "x86_64", "0.42.0"),
        ("3.13", "linux", "aarch64", "0.42.0"),
        ("3.12", "win32", "AMD64", "0.42.0"),
        ("3.11", "darwin", "arm64", "0.42.0"),
        ("3.14", "linux", "x86_64", "0.43.1"),
        ("3.15", "linux", "x86_64", None),
        ("3.12", "darwin", "x86_64", None),
        ("3.12", "win32", "ARM64", None),
        ("3.12", "linux", "riscv64", None),
    ],
)
def test_the_build_asks_for_slangpy_where_it_has_a_wheel(python, system, machine, version):
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    environment = {"python_version": python, "sys_platform": system, "platform_machine": machine}
    asked = [Requirement(line) for line in tomllib.loads(text)["build-system"]["requires"] if "slangpy" in line]
    found = [str(one.specifier) for one in asked if one.marker is not None and one.marker.evaluate(environment)]
    assert found == ([f"=={version}"] if version else [])


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
        ('[one]\nsource = "a.comp"\nchains = "late"\n', "chains = 'late'"),
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
