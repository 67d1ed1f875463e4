"""Generated code calls only what the API of PyTorch Mobile has, with that number and those types of arguments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kotlin_checker import API, Checker, KotlinError

import mobopt

GOLDEN = Path(__file__).parents[2] / "golden"
CALLS = {name: counts for item in API["cpp"].values() for name, counts in item["calls"].items()}
STANDARD = {".what", ".data", ".size", ".empty", ".push_back", ".emplace"}
"""Calls of the standard library."""
TYPES = {"at::ScalarType", "at::Tensor"}
"""What stands before the name of a function that is defined."""


@pytest.fixture(scope="module")
def kotlin(every_kind: Path) -> str:
    return (every_kind / "android" / "EveryKind.kt").read_text(encoding="utf-8")


def test_kotlin_calls_what_the_api_has(kotlin: str) -> None:
    calls = Checker(kotlin).check()
    wanted = {"from", "listFrom", "tupleFrom", "dictStringKeyFrom", "optionalNull", "toTensorList", "toDictLongKey"}
    assert {f"IValue.{name}" for name in wanted} | {"Module.runMethod", "LiteModuleLoader.load"} <= calls


@pytest.mark.parametrize("path", ["pt2.13.0/convbnrelu6/vulkan.ptl", "pt1.13.1/lstm/model.pt", "pt1.13.1/mlp/cpu.pt"])
def test_kotlin_of_golden_files(path: str, tmp_path: Path) -> None:
    if path.endswith("model.pt"):
        with pytest.raises(mobopt.UnsupportedError, match=r"model\.pt is a model before conversion.*mobopt convert"):
            mobopt.app_kit(GOLDEN / path, tmp_path / "kit")
        return
    kit = mobopt.app_kit(GOLDEN / path, tmp_path / "kit")
    text = (tmp_path / "kit" / "android" / f"{kit.class_name}.kt").read_text(encoding="utf-8")
    loader = "LiteModuleLoader" if path.endswith("ptl") else "Module"
    assert {f"{loader}.load", "Module.forward", "IValue.from", "IValue.toTensor"} == Checker(text).check() - {
        "Module.destroy"
    }
    assert ("Device.VULKAN" in text) == ("vulkan" in path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("toTensorList()", "toTensors()"),
        ("IValue.from(image)", "IValue.from(image, scale)"),
        ("IValue.from(image)", "IValue.listFrom(image, scale)"),
        ("IValue.listFrom(*sizes)", "IValue.from(sizes)"),
        ("items[1].toLongList()", "items[1].toDoubleList()"),
        ("LiteModuleLoader.load(modelPath)", "LiteModuleLoader.load(modelPath, Device.VULKAN)"),
        ("LiteModuleLoader.load(modelPath)", "LiteModuleLoader.load(modelPath, null, Device.GPU)"),
        ("IValue.from(classValue)", "IValue.from(number)"),
        ('module.runMethod("pair", IValue.from(x))', "module.runMethod(IValue.from(x))"),
        ("item -> item.toLongList()", "item -> item.toLong()"),
    ],
)
def test_the_checker_sees_wrong_calls(kotlin: str, old: str, new: str) -> None:
    kotlin = kotlin.replace("moduleValue", "classValue")
    assert old in kotlin
    with pytest.raises(KotlinError):
        Checker(kotlin.replace(old, new, 1)).check()


def cpp_calls(text: str) -> list[tuple[str, int]]:
    """Calls of the mobile API in C++ with the number of their arguments."""
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', re.sub(r"//[^\n]*", "", text))
    found = []
    pattern = r"((?:\btorch|\bat|\bc10)(?:::\w+)+|(?<=[\w)\]])\.\w+)(?: \w+)?\("
    for match in re.finditer(pattern, text):
        if match[1] not in TYPES:
            found.append((match[1], _argument_count(text, match.end())))
    return found


def _argument_count(text: str, start: int) -> int:
    text = text[start:]
    while (plain := re.sub(r"(?<=\w)<[\w:, *&]*>", "", text)) != text:
        text = plain  # commas of templates
    depth, commas, at = 1, 0, 0
    while depth:
        depth += (text[at] in "([{") - (text[at] in ")]}")
        commas += text[at] == "," and depth == 1
        at += 1
    return commas + 1 if text[: at - 1].strip() else 0


def test_cpp_calls_what_the_api_has(every_kind: Path) -> None:
    for name in ("cpp/every_kind_model.cpp", "ios/EveryKind.mm"):
        calls = cpp_calls((every_kind / name).read_text(encoding="utf-8"))
        assert len(calls) > 10
        for call, count in calls:
            assert call in CALLS or call in STANDARD, f"{name}: {call}"
            assert call in STANDARD or count in CALLS[call], f"{name}: {call} with {count} arguments"


def test_cpp_moves_tensors_that_the_graph_does_not(tmp_path: Path) -> None:
    for path, move in (("pt1.13.1/mlp/metal.ptl", ".metal"), ("pt1.13.1/mlp/vulkan.ptl", ".vulkan")):
        kit = mobopt.app_kit(GOLDEN / path, tmp_path / Path(path).stem)
        source = next((kit.folder / "cpp").glob("*_model.cpp")).read_text(encoding="utf-8")
        assert f"c10::IValue(x{move}())" in source and ".toTensor().cpu()" in source
        assert {(move, 0), (".cpu", 0), ("torch::jit::_load_for_mobile", 1)} <= set(cpp_calls(source))
        assert all(count in CALLS[call] for call, count in cpp_calls(source))
    mobopt.app_kit(GOLDEN / "pt2.13.0/mlp/vulkan.ptl", tmp_path / "moved")
    assert ".vulkan()" not in (tmp_path / "moved" / "cpp" / "vulkan_model.cpp").read_text(encoding="utf-8")


def test_the_bridge_calls_what_the_cpp_class_has(every_kind: Path) -> None:
    header = (every_kind / "cpp" / "every_kind_model.h").read_text(encoding="utf-8")
    bridge = (every_kind / "ios" / "EveryKind.mm").read_text(encoding="utf-8")
    declared = re.search(r"explicit Model\(.*?\);(.*?)private:", header, re.S)
    assert declared
    counts = {
        match[1]: _argument_count(declared[1], match.end())
        for match in re.finditer(r"^  [\w:<>, ]+ (\w+)\(", declared[1], re.M)
    }
    called = {match[1]: _argument_count(bridge, match.end()) for match in re.finditer(r"_model->(\w+)\(", bridge)}
    assert called == counts and len(called) == 9


def test_brackets_close_in_every_language(every_kind: Path) -> None:
    for file in every_kind.rglob("*.*"):
        if file.suffix in (".kt", ".swift", ".h", ".mm", ".cpp"):
            text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', file.read_text(encoding="utf-8"))
            text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
            for opening, closing in ("()", "[]", "{}"):
                assert text.count(opening) == text.count(closing), f"{file.name}: {opening}"
