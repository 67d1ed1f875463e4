"""``mobopt stress``, and the quirks of ``mobopt devices``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_harness import DEVICE, Invoke, assert_refused

from mobopt.runtimes.vulkan.engine import lane
from mobopt.runtimes.vulkan.engine.device import Device

QUICK = ("--random", "1,3,5,5", "--replays", "3", "--variant", "workgroups-32", "--device", DEVICE)


def test_a_table_and_json(device: Device, invoke: Invoke, files: Path) -> None:
    result = invoke("stress", files / "scripted.pt", *QUICK)
    assert result.exit_code == 0, result.output
    assert "nothing differs" in result.stdout and "NaN in memory before each" in result.stdout
    result = invoke("stress", files / "bundle.ptl", *QUICK, "--json", "--threads", "0")
    data = json.loads(result.stdout)
    assert result.exit_code == 0 and data["passes"] and ("loops-end-early" in data["quirks"] or not device.info.is_cpu)
    assert [item["name"] for item in data["conditions"]] == ["replays", "NaN in memory before each", "workgroups-32"]


def test_what_differs_ends_in_one(device: Device, invoke: Invoke, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, calls = lane.Lane.finish, iter(range(1000))

    def finish(self: lane.Lane) -> list[lane.Value]:
        found = read(self)
        found[0].reshape(-1)[1] += next(calls) == 1  # type: ignore[union-attr]
        return found

    monkeypatch.setattr(lane.Lane, "finish", finish)
    result = invoke("stress", files / "scripted.pt", *QUICK)
    assert result.exit_code == 1, result.output
    assert "it is not steady and right" in result.stdout and "differs in 1 of" in result.stdout
    assert "the layer was not found" in result.stdout


def test_bad_input(device: Device, invoke: Invoke, files: Path) -> None:
    model = files / "scripted.pt"
    assert_refused(invoke("stress", model, *QUICK[:2], "--replays", "1"), "give at least 2 replays")
    assert_refused(invoke("stress", model, *QUICK, "--size", "1,a"), "can't read the shape '1,a'")
    assert_refused(invoke("stress", model, *QUICK, "--variant", "fast"), "there is no variant 'fast'")
    assert_refused(invoke("stress", model, *QUICK[:-1], "no such device"), "there is no Vulkan device")


def test_devices_know_their_quirks(device: Device, invoke: Invoke) -> None:
    data = json.loads(invoke("devices", "--json").stdout)
    assert all(item["switches"] == [] and item["quirks"][0]["reason"] for item in data if item["kind"] == "cpu")
