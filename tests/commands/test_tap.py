"""``mobopt tap``, and ``mobopt compare --dump``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
from command_harness import Invoke, assert_refused

RANDOM = ("--random", "1,3,5,5")


def test_from_a_model_to_a_dump_and_back(invoke: Invoke, files: Path, tmp_path: Path) -> None:
    result = invoke("tap", files / "scripted.pt", "-o", "tapped.ptl", *RANDOM, "--package", "org.example")
    assert result.exit_code == 0, result.output
    assert "tapped_example on the phone" in result.stdout and "input." in result.stdout
    names = {"tapped.ptl", "tapped.expected.npz", "TappedTaps.kt", "TappedTaps.swift"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert "package org.example\n" in (tmp_path / "TappedTaps.kt").read_text()
    command = ("compare", "tapped.ptl", "--dump", "tapped.expected.npz")
    result = invoke(*command, "--html", "page.html")
    assert result.exit_code == 0, result.output
    assert "the outputs agree" in result.stdout
    assert json.loads(invoke(*command, "--json").stdout)["agrees"]
    assert "tapped.expected.npz" in (tmp_path / "page.html").read_text()
    with numpy.load(tmp_path / "tapped.expected.npz") as expected:
        numpy.savez(tmp_path / "phone.npz", **{**expected, "output": expected["output"] * 1.5})
    result = invoke("compare", "tapped.ptl", "--dump", "phone.npz")
    assert result.exit_code == 1 and "the two differ" in result.stdout


def test_as_json(invoke: Invoke, files: Path) -> None:
    arguments = ("tap", files / "scripted.pt", "-o", "t.ptl", *RANDOM, "--json", "--most", "10", "--backend", "cpu")
    result = invoke(*arguments)
    data = json.loads(result.stdout)
    assert result.exit_code == 0 and data["example"] == "tapped_example"
    assert {tap["form"] for tap in data["taps"]} == {"elements", "statistics"}


def test_bad_input(invoke: Invoke, files: Path, tmp_path: Path) -> None:
    bundle, model = files / "bundle.ptl", files / "scripted.pt"
    assert_refused(invoke("tap", bundle, "-o", "t.ptl", *RANDOM, "--runtime", "2.6"), "optimised already")
    assert_refused(invoke("tap", model, "-o", "t.ptl", *RANDOM, "--nodes", "lstm"), "no node is named 'lstm'")
    assert_refused(invoke("tap", model, "-o", "t.ptl", *RANDOM, "--backend", "cuda"), "Unknown backend")
    assert_refused(invoke("compare", bundle, "--dump", bundle), "has no taps; make a file that has some")
    assert_refused(invoke("compare", bundle, "--dump", bundle, *RANDOM), "--random and --dump exclude each other")
    assert not list(tmp_path.iterdir())
