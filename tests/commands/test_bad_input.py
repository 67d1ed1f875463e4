"""Bad input: one clear message, exit code 2, no traceback, no partial file."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from command_harness import DEVICE, Invoke, assert_empty, assert_refused, rewrite, run_mobopt

from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device

READERS = (("inspect",), ("opnames",), ("run", "--random", "1,3,5,5", "--device", "cpu"))


@pytest.fixture(params=READERS, ids=lambda command: command[0])
def reader(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """A command that reads a bundle, and its options."""
    command: tuple[str, ...] = request.param
    return command


def assert_unreadable(invoke: Invoke, reader: tuple[str, ...], path: Path, *texts: str) -> None:
    assert_refused(invoke(reader[0], path, *reader[1:]), *texts)


def test_not_a_zip(invoke: Invoke, reader: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "m.ptl").write_bytes(b"not a zip" * 100)
    assert_unreadable(invoke, reader, tmp_path / "m.ptl", "m.ptl", "zip")


def test_empty_file(invoke: Invoke, reader: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "m.ptl").touch()
    assert_unreadable(invoke, reader, tmp_path / "m.ptl", "m.ptl")


def test_truncated_zip(invoke: Invoke, reader: tuple[str, ...], files: Path, tmp_path: Path) -> None:
    whole = (files / "bundle.ptl").read_bytes()
    (tmp_path / "m.ptl").write_bytes(whole[: len(whole) // 2])
    assert_unreadable(invoke, reader, tmp_path / "m.ptl", "m.ptl")


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("owned",)


def test_foreign_global(invoke: Invoke, reader: tuple[str, ...], files: Path, tmp_path: Path) -> None:
    path = rewrite(files / "bundle.ptl", tmp_path / "m.ptl", {"data.pkl": pickle.dumps(_Evil(), protocol=2)})
    assert_unreadable(invoke, reader, path, "mkdir")
    assert not (tmp_path / "owned").exists()


def test_missing_record(invoke: Invoke, reader: tuple[str, ...], files: Path, tmp_path: Path) -> None:
    path = rewrite(files / "bundle.ptl", tmp_path / "m.ptl", {"data.pkl": None})
    assert_unreadable(invoke, reader, path, "data.pkl")


MODEL_CLASS = "__torch__.torch.nn.modules.container.Sequential"
"""Of the model that the files here hold."""


def bytecode(operator: str, index: int) -> bytes:
    """A lite function that applies operator number ``index`` of a table that has one."""
    tensor = (("name", "x"), ("type", "Tensor"), ("default_value", None))
    module = (("name", "self"), ("type", MODEL_CLASS), ("default_value", None))
    code = (
        ("instructions", (("STOREN", 1, 2), ("MOVE", 2, 0), ("OP", index, 0), ("RET", 0, 0))),
        ("operators", ((operator, "", 1),)),
        ("constants", ()),
        ("types", ()),
        ("register_size", 2),
    )
    schema = (("arguments", (module, tensor)), ("returns", (tensor,)))
    return pickle.dumps((8, (f"{MODEL_CLASS}.forward", code, schema)), protocol=2)


def test_index_out_of_range(invoke: Invoke, reader: tuple[str, ...], files: Path, tmp_path: Path) -> None:
    path = rewrite(files / "bundle.ptl", tmp_path / "m.ptl", {"bytecode.pkl": bytecode("aten::relu", 7)})
    assert_unreadable(invoke, reader, path, "7")


def test_unknown_operator(invoke: Invoke, files: Path, tmp_path: Path) -> None:
    path = rewrite(files / "bundle.ptl", tmp_path / "m.ptl", {"bytecode.pkl": bytecode("nowhere::nothing", 0)})
    assert_refused(invoke("run", path, "--random", "1,3,5,5", "--device", DEVICE), "nowhere::nothing")


def test_missing_file(invoke: Invoke, reader: tuple[str, ...]) -> None:
    assert_unreadable(invoke, reader, Path("absent.ptl"), "absent.ptl", "does not exist")


def test_convert_of_other_files(invoke: Invoke, files: Path, tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, tmp_path / "checkpoint.pt")
    (tmp_path / "text.pt").write_text("hello")
    whole = (files / "scripted.pt").read_bytes()
    (tmp_path / "half.pt").write_bytes(whole[: len(whole) // 2])
    damaged = rewrite(files / "scripted.pt", tmp_path / "damaged.pt", {"constants.pkl": b"\x80\x02garbage"})
    for path, text in (
        (tmp_path / "checkpoint.pt", "is a checkpoint of torch.save (a state_dict"),
        (tmp_path / "text.pt", "not a readable zip archive"),
        (tmp_path / "half.pt", "not a readable zip archive"),
        (damaged, "constants.pkl"),
        (files / "bundle.ptl", "optimised already"),
    ):
        assert_refused(invoke("convert", path, "-o", "out.ptl"), path.name, text)
        assert not Path("out.ptl").exists()


@pytest.mark.parametrize("command", ["convert", "report"])
def test_an_output_as_a_second_argument(files: Path, command: str) -> None:
    """As many tools take it."""
    line = [sys.executable, "-m", "mobopt", command, str(files / "scripted.pt"), "out.ptl"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unexpected extra argument (out.ptl); the output is named by -o or --output" in done.stderr


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (("--blocklist", "CONV_BN_FUSON"), ("'CONV_BN_FUSON'", "did you mean CONV_BN_FUSION?")),
        (("--preserve", "backward"), ("no method or attribute 'backward' to preserve",)),
        (("--backend", "opencl"), ("Unknown backend", "'Vulkan'")),
        (("--xnnpack",), ("xnnpack is for the backend cpu", "vulkan")),
        (("--copy-to-host",), ("copy-to-host is for the backend metal", "vulkan")),
        (("--legalize", "some"), ("'some'", "off, safe, full")),
        (("--runtime", "0.9"), ("'0.9'", "2.1")),
        (("--bytecode-version", "9"), ("9", "4<=x<=8")),
        (("--random", "1,x"), ("'1,x'", "1,3,224,224")),
        (("--random", "1,3:float8"), ("'1,3:float8'", "float32")),
        (("--random", "1,7,5,5"), ("example inputs", "7 channels")),
        (("--input", "absent.npy"), ("absent.npy", "No such file")),
        (("--random", "1", "--input", "absent.npy"), ("--input or --random",)),
    ],
)
def test_convert_options(
    invoke: Invoke, files: Path, tmp_path: Path, options: tuple[str, ...], texts: tuple[str, ...]
) -> None:
    assert_refused(invoke("convert", files / "scripted.pt", "-o", "out.ptl", *options), *texts)
    assert_empty(tmp_path)


@pytest.mark.parametrize("output", ["missing/out.ptl", ".", "out.onnx", "out"])
def test_convert_to_a_bad_path(invoke: Invoke, files: Path, tmp_path: Path, output: str) -> None:
    assert_refused(invoke("convert", files / "scripted.pt", "-o", output), output)
    assert_empty(tmp_path)


@pytest.mark.parametrize(("command", "option"), [("run", "--output"), ("profile", "--trace"), ("profile", "--html")])
def test_run_to_a_bad_path(invoke: Invoke, files: Path, tmp_path: Path, command: str, option: str) -> None:
    result = invoke(command, files / "bundle.ptl", "--random", "1,3,5,5", option, "missing/file")
    assert_refused(result, "missing/file", "choose another output path")
    assert_empty(tmp_path)


@pytest.mark.parametrize("device", ["cpu", DEVICE])
@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (("1,4,5,5",), "[1, 4, 5, 5]"),
        (("1,3,5,5:int64",), "int64"),
        (("1,3,6,6",), "linear"),
        (("1,3,5,5", "1"), "takes 1 input"),
        ((), "takes 1 input"),
    ],
)
def test_wrong_inputs(invoke: Invoke, files: Path, device: str, shapes: tuple[str, ...], text: str) -> None:
    options = [option for shape in shapes for option in ("--random", shape)]
    assert_refused(invoke("run", files / "bundle.ptl", *options, "--device", device), text)


def test_input_files_that_are_no_arrays(invoke: Invoke, files: Path, tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("hello")
    numpy.save(tmp_path / "objects.npy", numpy.array([_Evil()], dtype=object), allow_pickle=True)
    for name in ("text.npy", "objects.npy"):
        assert_refused(invoke("run", files / "bundle.ptl", "--input", name), name, "numpy.save")
    assert not (tmp_path / "owned").exists()


def test_unknown_method(invoke: Invoke, files: Path) -> None:
    result = invoke("run", files / "bundle.ptl", "--random", "1,3,5,5", "--method", "backward")
    assert_refused(result, "'backward'", "it has forward")


@pytest.mark.parametrize("device", ["99", "GeForce 256"])
def test_unknown_device(invoke: Invoke, files: Path, device: str) -> None:
    result = invoke("run", files / "bundle.ptl", "--random", "1,3,5,5", "--device", device)
    assert_refused(result, device, DEVICE)


def test_profile_of_the_cpu(invoke: Invoke, files: Path) -> None:
    options = ("--random", "1,3,5,5", "--device", "cpu", "--trace", "t.json")
    assert_refused(invoke("profile", files / "bundle.ptl", *options), "--device cpu")


def test_over_the_limits(invoke: Invoke, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device(DEVICE)
    limits = dataclasses.replace(device.info.limits, max_storage_buffer_range=256)
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, limits=limits))
    command = ("run", files / "bundle.ptl", "--random", "1,3,5,5", "--device", DEVICE)
    assert_refused(invoke(*command, "--fallback", "error"), "a tensor of 1x3x5x5", "maxStorageBufferRange", "is 256")
    found = invoke(*command)
    assert found.exit_code == 0
    assert "runs on the CPU" in found.stderr and "maxStorageBufferRange" in found.stderr


@pytest.mark.parametrize(
    "command", [pytest.param("devices", marks=pytest.mark.sweep), "run bundle.ptl --random 1,3,5,5"]
)
def test_no_vulkan_loader(files: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "vulkan.py").write_text("raise OSError('cannot find the Vulkan SDK')")
    (tmp_path / "bundle.ptl").symlink_to(files / "bundle.ptl")
    done = run_mobopt(*command.split(), cwd=tmp_path, PYTHONPATH=str(tmp_path / "stub"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: no Vulkan loader") and "apt install" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_files_are_made_without_a_vulkan_loader(files: Path, tmp_path: Path) -> None:
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "vulkan.py").write_text("raise OSError('cannot find the Vulkan SDK')")
    done = run_mobopt("convert", files / "scripted.pt", "-o", "m.ptl", cwd=tmp_path, PYTHONPATH=str(tmp_path / "stub"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command", ["devices", pytest.param("run bundle.ptl --random 1,3,5,5", marks=pytest.mark.sweep)]
)
def test_no_vulkan_device(files: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "bundle.ptl").symlink_to(files / "bundle.ptl")
    environment = {"VK_DRIVER_FILES": "/nowhere.json", "MOBOPT_VALIDATION": "0"}
    done = run_mobopt(*command.split(), cwd=tmp_path, **environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "mesa-vulkan-drivers" in done.stderr and "Traceback" not in done.stderr


def test_unknown_command(invoke: Invoke) -> None:
    assert_refused(invoke("transmogrify"), "No such command 'transmogrify'")


@pytest.mark.parametrize(
    "command",
    [
        ("convert", "scripted.pt", "-o", "scripted.pt", "--input", "input.npy"),
        ("convert", "scripted.pt", "-o", "./linked.ptl", "--input", "input.npy"),
        ("run", "bundle.ptl", "--input", "input.npy", "--output", "input.npy"),
        ("profile", "bundle.ptl", "--input", "input.npy", "--trace", "bundle.ptl"),
        ("profile", "bundle.ptl", "--input", "input.npy", "--html", "input.npy"),
        ("audit", "scripted.pt", "--input", "input.npy", "--html", "scripted.pt"),
    ],
    ids=lambda command: " ".join(command[0::3]),
)
def test_no_output_replaces_what_is_read(invoke: Invoke, files: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    for name in ("scripted.pt", "bundle.ptl", "input.npy"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    (tmp_path / "linked.ptl").symlink_to("scripted.pt")
    assert_refused(invoke(*command), "it is read as well, and would be lost; choose another output path")
    for name in ("scripted.pt", "bundle.ptl", "input.npy"):
        assert (tmp_path / name).read_bytes() == (files / name).read_bytes()


def test_missing_inputs_name_the_options(invoke: Invoke, files: Path) -> None:
    result = invoke("run", files / "bundle.ptl", "--device", "cpu")
    assert_refused(result, "input missing; give each with --input x.npy or --random 1,3,224,224")


@pytest.mark.parametrize("shape", ["1,3,2000000,2000000", "1,3,2000000,2000000:int64"])
def test_random_inputs_that_no_memory_holds(invoke: Invoke, files: Path, shape: str) -> None:
    for command in (("run", files / "bundle.ptl"), ("convert", files / "scripted.pt", "-o", "m.ptl")):
        result = invoke(*command, "--random", shape)
        assert_refused(result, f"can't make '{shape}': it has 12,000,000,000,000 elements; use smaller sizes")


def test_standard_output_that_can_not_be_written(files: Path, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mobopt", "inspect", str(files / "bundle.ptl")],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "Error: can't write to standard output: No space left on device\n",
    )


def test_interrupt(device: Device, files: Path, tmp_path: Path) -> None:
    if not device.info.is_cpu:
        pytest.skip("no word tells when it has begun")
    command = ["run", str(files / "bundle.ptl"), "--random", "1,3,5,5", "--device", DEVICE, "--repeat", "100000000"]
    with subprocess.Popen(
        [sys.executable, "-m", "mobopt", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "MOBOPT_VALIDATION": "0"},  # it reports what an interrupted start leaves
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells start jobs with it ignored
    ) as process:
        try:
            assert process.stderr is not None
            assert b"computes on the CPU" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, stdout) == (130, b"")
    assert stderr.decode().strip() == "interrupted"
    assert_empty(tmp_path)


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ("0=2", "can't read the bound '0=2'"),
        ("0=2..4", "dimension 0 of input 0 is 1, and its lower bound is 2"),
        ("9=1..4", "dimension 9 of input 0 of forward, which has 4 dimensions"),
        ("1.0=1..4", "bounds are given for input 1 of forward, and it has 1"),
        ("encode:0=1..4", "the method 'encode', and the methods are forward"),
    ],
)
@pytest.mark.parametrize("command", [("convert", "-o", "m.ptl"), ("audit",)])
def test_bounds_that_do_not_fit(
    invoke: Invoke, files: Path, command: tuple[str, ...], bound: str, message: str
) -> None:
    name, *options = command
    assert_refused(invoke(name, files / "scripted.pt", *options, "--random", "1,3,5,5", "--bound", bound), message)
