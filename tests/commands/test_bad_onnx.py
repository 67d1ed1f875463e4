"""ONNX models that can't be used, through the commands: one message that names what is wrong, no file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
from bad_onnx_models import BAD, external, linear_model, model_of, tensor_info
from command_harness import Invoke, assert_empty, assert_refused
from onnx import helper, numpy_helper

COMMANDS = (
    ("audit", "FILE"),
    ("convert", "FILE", "-o", "out/new.ptl"),
    ("convert", "FILE", "-o", "out/new.ptl", "--backend", "cpu", "--force"),
    ("run", "FILE", "--device", "cpu", "--random", "1,3"),
    ("migrate", "FILE", "-o", "out/new.pt", "--force"),
)
_WAYS_OUT = (
    "export",
    "give each",
    "names must be made once; give it",
    "put it",
    "copy",
    "cut that part off",
    "smaller",
    "hostile",  # where the only way out is not to use it
)


def check(invoke: Invoke, file: Path, words: str, commands: Sequence[tuple[str, ...]] = COMMANDS) -> None:
    """Each command that reads the model refuses it; ``inspect`` says why, if it can be told at all what it is."""
    Path("out").mkdir(exist_ok=True)  # the commands run in the test's folder
    for command in commands:
        result = invoke(*(file if word == "FILE" else word for word in command))
        assert_refused(result, file.name)
        text = " ".join(result.stderr.split())
        assert re.search(words, text), text
        assert any(way in text for way in _WAYS_OUT), text
        assert_empty(Path("out"))
    inspected = invoke("inspect", file)
    assert inspected.exit_code in (0, 2)
    assert "Traceback" not in inspected.output
    assert re.search(words, inspected.output.replace("\n", " ")) or inspected.exit_code == 0, inspected.output


NAMES = [name for name in BAD if name not in ("empty", "bomb")]
"""Without one whose message is of no byte, and one that takes seconds."""


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_model(name: str, invoke: Invoke, tmp_path: Path) -> None:
    """With one of the commands, which all read it in the same way."""
    make, _, words = BAD[name]
    (tmp_path / "net.onnx").write_bytes(make().SerializeToString())
    check(invoke, tmp_path / "net.onnx", words, [COMMANDS[NAMES.index(name) % len(COMMANDS)]])


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_a_bad_model_with_every_command(name: str, invoke: Invoke, tmp_path: Path) -> None:
    make, _, words = BAD[name]
    (tmp_path / "net.onnx").write_bytes(make().SerializeToString())
    check(invoke, tmp_path / "net.onnx", words)


@pytest.mark.parametrize(
    ("location", "length", "words"),
    [
        ("../secret.bin", 24, "'../secret.bin' does not lie beside the model"),
        ("/etc/passwd", 24, "'/etc/passwd' does not lie beside the model"),
        ("missing.bin", 24, "'missing.bin' is missing; put it beside"),
        ("short.bin", 24, "'w' lies in bytes 0 to 24 of short.bin, which has 7"),
        ("short.bin", 1 << 60, "'w': 1152921504606846976 bytes of external data"),
    ],
)
def test_bad_external_data(location: str, length: int, words: str, invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    (folder / "short.bin").write_bytes(bytes(7))
    check(invoke, external(location, folder, 0, length), words, COMMANDS[-1:])


@pytest.mark.parametrize("content", ["half", "noise", "text"])
def test_a_damaged_file(content: str, invoke: Invoke, tmp_path: Path) -> None:
    whole = linear_model().SerializeToString()
    data = {"half": whole[: len(whole) // 2], "noise": numpy.random.bytes(300), "text": b"weights, please"}
    (tmp_path / "net.onnx").write_bytes(data[content])
    check(invoke, tmp_path / "net.onnx", "no ONNX model, or it is damaged or cut short; copy it again")


def test_results_larger_than_memory(invoke: Invoke, tmp_path: Path) -> None:
    sizes = numpy_helper.from_array(numpy.array([1 << 42, 3]), "sizes")
    node = helper.make_node("Expand", ["x", "sizes"], ["y"])
    model = model_of([node], [tensor_info("x", [1, 3])], [tensor_info("y")], [sizes])
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "out").mkdir()
    for command in (COMMANDS[1], COMMANDS[3]):
        result = invoke(*(str(tmp_path / "net.onnx") if word == "FILE" else word for word in command))
        assert_refused(result, "memory")
        assert_empty(tmp_path / "out")
