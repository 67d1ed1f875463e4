"""Runs that must give the same bits: what a stress finds of planted faults, and that it finds nothing without."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from comparison_models import Magnifying, doubled, net
from torch import nn

from mobopt import stress
from mobopt.errors import InputError
from mobopt.frontends.open_source import whole_source_of
from mobopt.ir import Node
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.lane import Lane
from mobopt.runtimes.vulkan.engine.poison import WORD
from mobopt.runtimes.vulkan.engine.quirks import SWITCHES, quirks, quirks_of, switches_for, workgroup
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.engine.tensor import DeviceTensor
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.runtimes.vulkan.lowerings import registry
from mobopt.tools import stress_layers
from mobopt.tools.stress import DIFFERS, REFUSED, SAME, WRONG, Stress
from mobopt.tools.stress_layers import first_wrong


def verdicts(found: Stress) -> dict[str, str]:
    return {item.name: item.verdict for item in found.conditions}


@contextmanager
def faulty(operator: str, change: object) -> Iterator[None]:
    """The dispatches that a lowering appends are changed: ``change(plan, first)`` gets the place of the first."""
    registry.load_lowerings()
    right = registry.lowering_of(operator)
    assert right is not None

    def wrong(plan: Plan, call: Node) -> DeviceTensor:
        first = len(plan.stream.operations)
        made = right.function(plan, call)
        change(plan, first)  # type: ignore[operator]
        assert isinstance(made, DeviceTensor)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry._LOWERINGS, operator, replace(right, function=wrong))
        yield


def writes_nothing(plan: Plan, first: int) -> None:
    """The last dispatch is gone: what it should have written is whatever lies there."""
    last = plan.stream.operations.pop()
    assert isinstance(last, Dispatch) and len(plan.stream.operations) >= first


def test_a_right_model_is_the_same_under_every_condition(device: Device) -> None:
    script, x = net()
    sizes = [[torch.randn(2, 3, 8, 9)]]
    found = stress(script, device=device.info.index, example_inputs=[x], replays=6, pause=0.001, sizes=sizes)
    assert found.passes and set(verdicts(found).values()) == {SAME}
    names = {
        "replays",
        "NaN in memory before each",
        "2 threads",
        "sizes 2x3x8x9",
        "after sizes 2x3x8x9",
        "pauses of 0.001 s",
    }
    assert names | {"workgroups-32", "second-product", "shared-products"} <= set(verdicts(found))
    assert all(item.runs >= 3 and item.distinct == 1 and item.error < 1e-5 for item in found.conditions)
    assert device.info.switches == frozenset(found.switches) and not device.poisons
    assert {"loops-end-early", "subnormals-flushed"} <= set(found.quirks) or not device.info.is_cpu


def test_a_read_of_what_nobody_wrote_is_found_by_nan(device: Device) -> None:
    script, x = net()
    with faulty("aten::mean.dim", writes_nothing):
        found = stress(script, device=device.info.index, example_inputs=[x], replays=3, threads=0, variants=())
    poisoned = found.conditions[1]
    assert not found.passes and poisoned.verdict in (DIFFERS, WRONG) and poisoned.error == float("inf")
    assert "aten::mean" in poisoned.layer, poisoned


def test_what_changes_from_run_to_run_is_found_with_its_layer(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody wrote is another number each time: the lane leaves a counter there, as another tenant would."""
    script, x = torch.jit.script(nn.Sequential(nn.Softmax(1), nn.Linear(17, 11)).eval()), torch.randn(1, 17)
    counter = itertools.count(1)
    prepare = Lane._prepare

    def leaving_numbers(lane: Lane, values: object) -> None:
        for buffer in lane._temporary:
            assert buffer.mapped is not None
            torch.frombuffer(buffer.mapped, dtype=torch.float32, count=buffer.nbytes // 4).fill_(float(next(counter)))
        prepare(lane, values)  # type: ignore[arg-type]

    monkeypatch.setattr(Lane, "_prepare", leaving_numbers)
    with faulty("aten::softmax.int", writes_nothing):
        found = stress(script, device=device.info.index, example_inputs=[x], replays=4, threads=0, variants=())
    first = found.conditions[0]
    assert first.verdict == DIFFERS and first.distinct == 4 and first.runs == 4
    assert first.layer.startswith("aten::softmax 1x17")
    assert first.spot is not None and first.spot.output == 0 and first.spot.index == (0, 0)
    assert first.spot.values[0] != first.spot.values[1] and first.spot.elements == first.spot.of == 11


def test_a_wrong_kernel_is_named(device: Device) -> None:
    script, x = net()
    with doubled("aten::mean.dim"):
        found = stress(script, device=device.info.index, example_inputs=[x], replays=2, threads=0, variants=())
    assert verdicts(found)["replays"] == WRONG and found.conditions[0].layer.startswith("aten::mean 1x8")


def test_a_kernel_that_is_wrong_for_some_workgroups_only(device: Device) -> None:
    """As a driver that fails for one shape: half of the invocations do nothing where the workgroups have 32."""

    def fails_for_32(plan: Plan, first: int) -> None:
        if plan.device.workgroup(128) == 32:
            for number in range(first, len(plan.stream.operations)):
                item = plan.stream.operations[number]
                assert isinstance(item, Dispatch)
                plan.stream.operations[number] = replace(item, groups=(max(item.groups[0] // 2, 1), *item.groups[1:]))

    x = torch.randn(1, 64, 17)
    model = torch.jit.script(nn.Sequential(nn.Tanh(), nn.Flatten(1)).eval())
    with faulty("mobopt::pointwise", fails_for_32), faulty("aten::tanh", fails_for_32):
        found = stress(model, device=device.info.index, example_inputs=[x], replays=4, threads=0)
    bad = {name for name, verdict in verdicts(found).items() if verdict != SAME}
    assert bad == {"workgroups-32"}
    item = next(item for item in found.conditions if item.name == "workgroups-32")
    assert "aten::tanh" in item.layer


class Counting(nn.Module):
    """Has state: each call gives another result, and so does each replay if it does not begin anew."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


def test_state_begins_anew_and_bad_sizes_are_named(device: Device) -> None:
    script = torch.jit.script(Counting())
    found = stress(
        script,
        device=device.info.index,
        example_inputs=[torch.randn(3)],
        replays=3,
        variants=(),
        sizes=[[torch.zeros(2), 3]],
    )
    assert found.passes and REFUSED in verdicts(found).values()
    assert any("takes 1" in item.message for item in found.conditions)


def test_sizes_within_the_bounds_of_an_export(device: Device) -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x * 3, 1)

    rows = torch.export.Dim("rows", min=3, max=40)
    exported = torch.export.export(Scaled(), (torch.randn(5, 7),), dynamic_shapes=({0: rows},))
    found = stress(
        exported, device=device.info.index, example_inputs=[torch.randn(5, 7)], replays=2, threads=0, variants=()
    )
    names = set(verdicts(found))
    assert found.passes and {"sizes 3x7", "sizes 20x7"} <= names and len(names) == 8


def test_memory_is_filled(device: Device) -> None:
    assert torch.tensor([WORD], dtype=torch.int32).view(torch.float32).isnan().all()
    assert torch.tensor([WORD], dtype=torch.int32).view(torch.float16).isnan().all()
    assert torch.tensor([WORD], dtype=torch.int32).view(torch.bfloat16).isnan().all()


def test_quirks_are_data_that_is_checked() -> None:
    for quirk in quirks():
        assert quirk.evidence in ("tried", "reported") and quirk.reason and quirk.source
        assert set(quirk.switches) <= set(SWITCHES)
    assert [quirk.name for quirk in quirks_of(8, 0x5143, 1)] == [
        "subnormals-flushed",
        "nan-assumed-away",
        "workgroups-of-64",
    ]
    adreno, lavapipe = quirks_of(8, 0x5143, 1), quirks_of(13, 0x10005, 1)
    assert switches_for(adreno, "") == {"no-64"} and switches_for(lavapipe, "") == frozenset()
    assert switches_for(adreno, "none") == switches_for(adreno, "-workgroups-of-64") == frozenset()
    assert switches_for(lavapipe, "workgroups-of-64, no-texels") == {"no-64", "no-texels"}
    with pytest.raises(InputError, match=r"there is no quirk 'fast' \(MOBOPT_QUIRKS\)"):
        switches_for(lavapipe, "fast")
    assert workgroup({"no-64"}, 64, 1024) == 32 and workgroup({"no-64"}, 128, 1024) == 128
    assert workgroup({"workgroups-256"}, 128, 1024) == 256 and workgroup({"workgroups-256"}, 128, 128) == 128


def test_versions_bound_a_quirk() -> None:
    quirk = replace(quirks()[0], drivers=(8,), vendors=(), since=10, until=20)
    assert [quirk.holds_for(8, 1, version) for version in (9, 10, 20, 21)] == [False, True, True, False]
    assert not quirk.holds_for(9, 1, 15) and replace(quirk, until=0).holds_for(8, 1, 21)


def test_runs_end_when_their_share_of_the_time_is_over(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second whenever it is looked at."""
    steps: list[str] = []
    script, x = net()
    given = {"device": device.info.index, "example_inputs": [x], "threads": 3, "variants": ()}
    monkeypatch.setattr(time, "monotonic", map(float, itertools.count()).__next__)
    cut = stress(script, replays=9, seconds=15.0, show=steps.append, **given)  # type: ignore[arg-type]
    assert cut.passes and [item.runs for item in cut.conditions] == [7, 7, 7]
    assert [item.wanted for item in cut.conditions] == [9] * 3 and cut.cut == ("replays", *list(verdicts(cut))[1:])
    assert "replays: 7 of 9" in steps and "replays: 8 of 9" not in steps and "3 threads: 1 of 9" in steps
    whole = stress(script, replays=9, seconds=0.0, **given)  # type: ignore[arg-type]
    assert [item.runs for item in whole.conditions] == [9] * 3 and not whole.cut
    with doubled("aten::mean.dim"):
        found = stress(script, replays=3, seconds=0.5, **given)  # type: ignore[arg-type]
    assert [item.runs for item in found.conditions] == [3] * 3
    assert found.conditions[0].layer.startswith("aten::mean") and "the time is over" in found.conditions[1].layer


def test_bad_arguments_are_refused() -> None:
    script, x = net()
    with pytest.raises(InputError, match="replays=1: give at least 2 replays"):
        stress(script, example_inputs=[x], replays=1)
    for change in ({"threads": -1}, {"pause": -1.0}, {"seconds": -1.0}):
        (name, value), *_ = change.items()
        with pytest.raises(InputError, match=f"^{name}={value}: give a number that is not negative"):
            stress(script, example_inputs=[x], **change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the tolerance is nan; give a number from 0 on"):
        stress(script, example_inputs=[x], tolerance=float("nan"))
    with pytest.raises(InputError, match="there is no variant 'workgroups-7'; choose of workgroups-32"):
        stress(script, example_inputs=[x], variants=["workgroups-7"])
    with pytest.raises(InputError, match="no inputs are known that"):
        stress(script, example_inputs=[x], method="encode")


def test_the_wrong_layer_is_found_behind_those_that_magnify(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    program, x = whole_source_of(torch.jit.script(Magnifying().eval())).program, [torch.randn(3, 31)]
    for tried in (0, 3):  # all layers alone at once, or first those over the tolerance
        monkeypatch.setattr(stress_layers, "_TRIED", tried)
        assert first_wrong(program, device, "forward", x, 1e-4, print).startswith("aten::mul + aten::sin 3x7")
        with doubled("aten::linear"):
            assert first_wrong(program, device, "forward", x, 1e-4, print).startswith("aten::linear 3x7")
        with doubled("aten::sum.dim_IntList"):
            assert first_wrong(program, device, "forward", x, 1e-4, print).startswith("aten::sum 3")
    assert first_wrong(program, device, "forward", x, 10.0, print) == ""
