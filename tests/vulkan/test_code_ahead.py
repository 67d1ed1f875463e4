"""Instructions of kernels that are read some steps before they are needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeAlias

import pytest
import torch
from device_infos import device_info, known_device
from torch import nn

from mobopt import shaders
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.engine import lane as lane_module
from mobopt.runtimes.vulkan.engine import recording as recording_module
from mobopt.runtimes.vulkan.engine.code_ahead import RESTING_SOURCES, emptied, plan_code_ahead
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.hazards import Barrier
from mobopt.runtimes.vulkan.engine.pipelines import pipeline_key
from mobopt.runtimes.vulkan.engine.quirks import WHOLE_SHADERS
from mobopt.runtimes.vulkan.engine.stream import Binding, Dispatch
from mobopt.runtimes.vulkan.engine.tensor import Storage
from mobopt.runtimes.vulkan.kernels.device_costs import code_ahead_bytes
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.shaders.compilers import find_compiler, need_compiler
from mobopt.shaders.expand import expand
from mobopt.shaders.push_constants import CHAIN_END, ProductPush
from mobopt.shaders.table import GLSL_FOLDER

FLUSH = Barrier(after_writes=True)


PUSH = ProductPush(7, 500, 3, 2, 5, start_row=4)


def step(shader: str = "product_fragments", constant: int = 0, push: ProductPush = PUSH) -> Dispatch:
    return Dispatch(shader, (Binding(Storage(64), 0, 64),), (3, 1, 1), 0, (constant,), push.pack())


def planned(
    steps: list[Dispatch], barriers: dict[int, Barrier] | None = None, unchained: Collection[int] = ()
) -> dict[int, list[int]]:
    keys = {one: pipeline_key(one, (), number not in unchained) for number, one in enumerate(steps)}
    found = plan_code_ahead(steps, [(barriers or {}).get(number) for number in range(len(steps))], keys)
    return {place: [steps.index(one) for one in ones] for place, ones in found.items()}


def test_each_pipeline_once_and_eight_steps_before() -> None:
    steps = [step(constant=number % 11) for number in range(23)]
    assert planned(steps) == {0: [2, 3, 4, 5, 6, 7, 8], 1: [9], 2: [10]}


def test_kernels_that_would_not_rest_are_left_alone() -> None:
    names = ["pool", "product_shared", "product_rows", "depthwise", "product_shared_joins", "attention_matrix"]
    assert planned([step(name) for name in names]) == {}
    assert planned([step("pool"), step("pool"), step("product_matrix")], unchained=[2]) == {}


def test_large_products_keep_all_cores_to_themselves() -> None:
    large = replace(PUSH, rows=3136, columns=64, inner=16, taps_high=3, taps_wide=3)
    assert planned([step("pool"), step("pool"), step(push=large)]) == {0: [2]}
    assert planned([step("pool"), step("pool"), step(push=replace(large, rows=8 * 3136))]) == {}


def test_no_barrier_waits_for_them() -> None:
    steps = [step("pool", number) for number in range(5)] + [step()]
    assert planned(steps, {1: FLUSH, 2: FLUSH}) == {2: [5]}
    assert planned(steps, dict.fromkeys(range(1, 6), FLUSH)) == {}


def test_a_product_without_rows_and_columns() -> None:
    assert ProductPush.unpack(PUSH.pack()) == PUSH
    empty = emptied(step())
    assert empty.groups == (1, 1, 1)
    assert empty.push_constants == replace(PUSH, rows=0, columns=0, inner=128).pack()
    for inner, kept in ((500, 14), (13, 13)):
        spatial = replace(PUSH, taps_high=3, taps_wide=3, inner=inner)
        empty = emptied(step(push=spatial))
        assert ProductPush.unpack(empty.push_constants) == replace(spatial, rows=0, columns=0, inner=kept)


def test_which_devices_have_it() -> None:
    h200 = known_device("nvidia_h200")
    limits, features = replace(h200.limits, max_push_constants_size=256), h200.features | {"device_memory_model"}
    able = replace(h200, limits=limits, features=features, driver_id=4)
    assert code_ahead_bytes(able) == 20_000_000
    assert code_ahead_bytes(replace(able, switches=frozenset({"no-code-ahead"}))) is None
    assert code_ahead_bytes(replace(able, switches=frozenset({"no-chains"}))) is None
    assert code_ahead_bytes(device_info("discrete")) is None


class Products(nn.Module):
    """By most kernels of matrix units: images, rows, normalised rows, scaled inputs, sums in parts, residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.Conv2d(16, 24, 3, padding=1)
        self.norm, self.third = nn.BatchNorm2d(24), nn.Conv2d(24, 24, 1)
        self.rows, self.layer_norm, self.last = nn.Linear(24, 40), nn.LayerNorm(40), nn.Linear(40, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        rows = self.rows((self.third(torch.relu(self.norm(x))) + x).flatten(2).transpose(1, 2))
        return torch.relu(self.last(self.layer_norm(rows)))


@pytest.fixture
def emulating(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that counts and multiplies by matrix units, both emulated."""
    if device.info.limits.max_push_constants_size < CHAIN_END:
        pytest.skip(f"{device.info.name} has push constants of {device.info.limits.max_push_constants_size} bytes")
    switches = frozenset({"emulated-chains", "no-texels", "shared-products", "emulated-matrix-units"})
    monkeypatch.setattr(device, "info", replace(device.info, switches=switches))
    monkeypatch.setattr(device, "chains", True)
    return device


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("switch", ["", "no-fragments"])
def test_results_are_the_same_bits(
    emulating: Device, monkeypatch: pytest.MonkeyPatch, precision: str, switch: str
) -> None:
    emulating.info = replace(emulating.info, switches=emulating.info.switches | {switch})
    brought: list[Dispatch] = []

    def plan(*args: object) -> dict[int, list[Dispatch]]:
        found = plan_code_ahead(*args)  # type: ignore[arg-type]
        brought.extend(dispatch for ones in found.values() for dispatch in ones)
        return found

    monkeypatch.setattr(lane_module, "plan_code_ahead", plan)
    torch.manual_seed(11)
    x = torch.randn(2, 3, 13, 11)
    program = program_from_script_module(torch.jit.trace(Products().eval(), x))
    found = VulkanProgram(program, emulating, precision=PrecisionChoice.of(precision))(x)
    names = {dispatch.shader for dispatch in brought}
    emulating.info = replace(emulating.info, switches=emulating.info.switches | {"no-code-ahead"})
    brought.clear()
    expected = VulkanProgram(program, emulating, precision=PrecisionChoice.of(precision))(x)
    assert not brought
    assert torch.equal(found, expected)
    assert len(names) >= 2, names


class Residual(nn.Module):
    """A convolution whose sums have something added."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x) + x)


RESTING = {
    "image": (nn.Conv2d(3, 24, 3, padding=1), (1, 3, 17, 13)),
    "scaled": (nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 1)), (1, 16, 7, 11)),
    "residual": (Residual(), (1, 16, 11, 7)),
    "normalised": (nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 24)), (1, 19, 32)),
    "rows": (nn.Linear(40, 24), (1, 37, 40)),
    "narrow": (nn.Linear(37, 23), (1, 29, 37)),
}


Rest: TypeAlias = "Callable[[str, set[str], str], tuple[torch.Tensor, list[str]]]"


@pytest.fixture
def resting(emulating: Device, monkeypatch: pytest.MonkeyPatch) -> Rest:
    """Results of a model all of whose products rest: what memory was filled with, if nothing is stored; and shaders."""

    def run(name: str, switches: set[str], precision: str) -> tuple[torch.Tensor, list[str]]:
        emulating.info = replace(emulating.info, switches=emulating.info.switches | switches)
        monkeypatch.setattr(emulating, "poisons", True)
        record = recording_module._record_dispatch
        emptied_ones: list[str] = []

        def record_empty(commands: object, dispatch: Dispatch, run: recording_module.Recordable) -> None:
            is_resting = shaders.variants()[dispatch.shader].source in RESTING_SOURCES and dispatch in run.links
            if is_resting:
                emptied_ones.append(f"{dispatch.shader}{shaders.CHAINED}")
            (recording_module._record_empty if is_resting else record)(commands, dispatch, run)

        model, sizes = RESTING[name]
        x = torch.randn(sizes)
        program = program_from_script_module(torch.jit.trace(model.eval(), x))
        monkeypatch.setattr(recording_module, "_record_dispatch", record_empty)
        found = VulkanProgram(program, emulating, precision=PrecisionChoice.of(precision))(x)
        monkeypatch.setattr(recording_module, "_record_dispatch", record)
        assert emptied_ones
        right = VulkanProgram(program, emulating, precision=PrecisionChoice.of(precision))(x)
        assert right.isfinite().all()
        return found, emptied_ones

    return run


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("switch", ["", "no-fragments"])
@pytest.mark.parametrize("name", RESTING)
def test_they_store_nothing(resting: Rest, name: str, switch: str, precision: str) -> None:
    found, _ = resting(name, {switch}, precision)
    assert found.isnan().all()


_LOAD = "#define WORD(name, index) name##_words[(index) + after_wait]"
TELLING: set[str] = set()
"""Of which pipelines were made."""
_CONSTANTS = ("weights", "biases", "gains", "column_sums")


def telling(name: str) -> bytes:
    """SPIR-V of a product that puts a zero among its results when it reads what other dispatches may write."""
    text = expand(shaders.variants()[name], GLSL_FOLDER)
    assert _LOAD in text
    told = (
        "layout(set = 0, binding = 4, std430) buffer Told { int told_words[]; };\n"
        "int told(int index) { told_words[0] = 0; return index; }\n"
    )
    for item in sorted(set(re.findall(r"READS\(\w+, (\w+)\)", text)) - {"name"}):
        told += f"#define TOLD_{item}(index) {'(index)' if item in _CONSTANTS else 'told(index)'}\n"
    text = text.replace(_LOAD, told + _LOAD)
    for kind in ("words", "pairs", "quads"):
        plain, telling_all = (f" name##_{kind}[{index} + after_wait]\n" for index in ("(index)", "TOLD_##name(index)"))
        assert plain in text
        text = text.replace(plain, telling_all)
    return need_compiler(find_compiler()).compile(text)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("switch", ["", "no-fragments"])
@pytest.mark.parametrize("name", RESTING)
def test_they_read_weights_alone(
    resting: Rest,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    switch: str,
    precision: str,
) -> None:
    """What else they read would be in a core's cache as it was, while others write to it."""
    load = shaders.load

    def load_telling(shader: str) -> bytes:
        if shaders.variants()[shader].source not in RESTING_SOURCES or not shader.endswith(shaders.CHAINED):
            return load(shader)
        TELLING.add(shader)
        return telling(shader)

    monkeypatch.setattr(shaders, "load", load_telling)
    # Pipelines of whole shaders are others than those of other tests.
    found, rested = resting(name, {switch, WHOLE_SHADERS}, precision)
    assert set(rested) <= TELLING
    assert found.isnan().all()
