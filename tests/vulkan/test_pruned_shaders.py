"""Shaders without the branches that their constants rule out give the numbers of the whole ones."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import product

import pytest
import torch
from engine_shaders import GROUP_SIZE, engine_shaders, engine_spirv, tensor  # noqa: F401

from mobopt import shaders
from mobopt.runtimes.vulkan.engine import vk
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.quirks import WHOLE_SHADERS, quirks_of, switches_for
from mobopt.runtimes.vulkan.engine.stream import Dispatch, Stream, bind
from mobopt.runtimes.vulkan.engine.tensor import StorageKind
from mobopt.shaders.pruning import pruned

COUNT = 17
NVIDIA = 4
LAVAPIPE = 13


def turned(x: int, value: int, k: int, kind: int) -> int:
    """As in branches.comp."""
    if kind == 0:
        return value if x > 5 else value + 1
    if kind in (1, 2):
        value = (2 * value if kind == 1 else value) - 3
        return -1 if value < -20 else value
    for j in range(4):
        if j * j > x:
            break
        if kind % 3 != 1 or j != k:
            value += j
    return value


def expected(x: int, kind: int, turns: int, skips: bool) -> int:
    value = 0
    for k in range(turns):
        if skips and x > 3 and k == 1:
            continue
        if skips and x == 9:
            break
        value = turned(x, value, k, kind)
    return value + 100 if (turns > 1 or x > 7) and not skips else value


def branches(kind: int, turns: int, skips: bool) -> Stream:
    source = tensor(StorageKind.INPUT, COUNT, dtype=torch.int32, name="x")
    target = tensor(StorageKind.OUTPUT, COUNT, dtype=torch.int32, name="y")
    dispatch = Dispatch(
        "branches",
        (bind(source), bind(target, writes=True)),
        (1, 1, 1),
        0,
        (GROUP_SIZE, kind, turns, skips),
        struct.pack("<I", COUNT),
    )
    return Stream([dispatch], [source], [target])


@pytest.mark.parametrize(("kind", "turns", "skips"), list(product(range(5), (0, 1, 5), (False, True))))
def test_numbers(any_device, kind, turns, skips):
    executable = Executable(any_device, branches(kind, turns, skips))
    (y,) = executable.run([torch.arange(COUNT, dtype=torch.int32)])
    assert y.tolist() == [expected(x, kind, turns, skips) for x in range(COUNT)]
    executable.close()


def test_the_switch_holds_for_pipelines_that_a_device_has_without_it(any_device, monkeypatch):
    """As ``mobopt stress`` turns it, on one device."""
    usual, sizes = any_device.info, []
    made = vk.struct

    def seen(name, **fields):
        if name == "VkShaderModuleCreateInfo":
            sizes.append(fields["codeSize"])
        return made(name, **fields)

    monkeypatch.setattr(vk, "struct", seen)
    for switches in (usual.switches - {WHOLE_SHADERS}, usual.switches | {WHOLE_SHADERS}):
        monkeypatch.setattr(any_device, "info", replace(usual, switches=switches))
        executable = Executable(any_device, branches(0, 7, True))
        (y,) = executable.run([torch.arange(COUNT, dtype=torch.int32)])
        assert y.tolist() == [expected(x, 0, 7, True) for x in range(COUNT)]
        executable.close()
    assert sizes[0] < sizes[1] == len(shaders.load("branches"))


def test_what_is_ruled_out_is_not_there():
    code = shaders.load("branches")
    sizes = {kind: len(pruned(code, struct.pack("<4I", GROUP_SIZE, kind, 5, 0))) for kind in range(4)}
    assert sizes[0] < sizes[3] < len(code)


def test_drivers_that_gain_nothing_get_whole_shaders():
    assert WHOLE_SHADERS in switches_for(quirks_of(NVIDIA, 0x10DE, 0), "")
    assert WHOLE_SHADERS not in switches_for(quirks_of(LAVAPIPE, 0, 0), "")
