"""Planted faults are found: a wrong pass, a wrong kernel, a wrong fusion."""

from __future__ import annotations

import functools
import math
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from comparison_models import cancelling_in_halves, doubled, net, scaled, wrong_factor
from torch import nn

from mobopt import PassPipeline
from mobopt.errors import InputError
from mobopt.ir import Value, parse_graph
from mobopt.passes.legalizations import site as legalization_site
from mobopt.passes.legalizations.site import Site, rewrites
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.tools.bisection import bisect
from mobopt.tools.bisection_results import FUSION, HALF, NODE, NOTHING, PASS, REWRITE, Bisection
from mobopt.tools.bisection_search import first_bad
from mobopt.tools.comparison import opened
from mobopt.tools.small_program import write_sample


def exit_code(found: Bisection, folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """What the files of the smallest program end with."""
    assert found.sample is not None
    written = write_sample(
        found.sample,
        folder,
        title=found.culprit,
        device=found.device,
        tolerance=found.tolerance,
        precision=found.precision,
    )
    assert {path.name for path in written} >= {"program.txt", "values.npz", "run.py"}
    monkeypatch.setattr(sys, "argv", ["run.py"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(folder / "run.py"))
    return end.value.code


def test_a_wrong_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script, x = net()
    right = PassPipeline.default("vulkan", runtime="2.6")
    found = bisect(
        script, device="cpu", passes=right.insert_before("fold_batch_norm", wrong_factor), example_inputs=[x]
    )
    assert found.kind == PASS and found.culprit.startswith("wrong_factor, number ")
    assert found.error > 1e-3 > found.error_before
    assert found.runs <= 2 + math.ceil(math.log2(len(right) + 1))
    assert found.sample is not None and [node.op for node in found.sample.part.block.nodes] == ["aten::mul"]
    assert exit_code(found, tmp_path, monkeypatch) == 1
    assert "value=2.5" in (tmp_path / "program.txt").read_text() and "value=2]" in (tmp_path / "before.txt").read_text()
    assert "on cpu: the error is 2.5e-01" in capsys.readouterr().out
    parse_graph((tmp_path / "program.txt").read_text())
    hostile = replace(found, culprit='"""\nraise ValueError("\x1b[2J") #\\')
    assert exit_code(hostile, tmp_path, monkeypatch) == 1 and "\x1b" not in (tmp_path / "run.py").read_text()
    assert bisect(script, device="cpu", passes=right, example_inputs=[x]).kind == NOTHING


class Pools(nn.Module):
    """Three that phones pad wrongly, and conversions rewrite."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.tanh(x) - 2, [3, 3], [1, 1], [1, 1])
        x = torch.max_pool2d(torch.tanh(x) - 3, [3, 3], [1, 1], [1, 1])
        return torch.max_pool2d(torch.sin(x) - 2, [3, 3], [1, 1], [1, 1])


def test_a_wrong_rewrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three that one function does."""
    script, x = torch.jit.script(Pools()), torch.randn(1, 3, 7, 5)
    right = rewrites()["pool_after_replication"]
    second = [
        node
        for node in opened(script, None, None)[0].program.methods["forward"].walk()
        if node.op == "aten::max_pool2d"
    ][1].origin

    @functools.wraps(right.apply)
    def wrong(site: Site) -> Value | tuple[Value, ...]:
        result = right.apply(site)
        assert isinstance(result, Value)
        return site.op("aten::mul.Scalar", result, 1.5) if site.node.origin == second else result

    monkeypatch.setitem(legalization_site._REWRITES, right.name, replace(right, apply=wrong))
    passes = PassPipeline.default("vulkan", runtime="2.1")
    found = bisect(script, device="cpu", passes=passes, example_inputs=[x])
    assert found.kind == REWRITE and found.culprit.startswith("pool_after_replication of aten::max_pool2d %")
    assert "number 2 of 3, by legalize, number " in found.culprit
    assert found.error > 1e-3 > found.error_before and found.candidates == 3
    assert any("zeros are read outside" in remark for remark in found.remarks)
    assert found.runs <= 4 + math.ceil(math.log2(len(passes))) + math.ceil(math.log2(3))
    assert exit_code(found, tmp_path, monkeypatch) == 1
    assert "aten::mul" in (tmp_path / "program.txt").read_text()


def test_a_wrong_kernel(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, x = net()
    with doubled("aten::mean.dim"):
        found = bisect(script, device=device.info.name, example_inputs=[x])
        assert exit_code(found, tmp_path, monkeypatch) == 1
    assert found.kind == NODE and found.culprit.startswith("aten::mean")
    assert found.runs <= 4 + math.ceil(math.log2(found.candidates)) and found.candidates == 10
    assert found.error > 1e-3 > found.error_before
    assert exit_code(found, tmp_path, monkeypatch) == 0


def test_a_wrong_fusion(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, x = net()
    with doubled("mobopt::product"):
        found = bisect(script, device=device.info.name, example_inputs=[x])
        assert exit_code(found, tmp_path, monkeypatch) == 1
    assert found.kind == FUSION and found.culprit.startswith("aten::conv2d, aten::add, which end in aten::add")
    assert found.error > 1e-3 > found.error_before
    assert exit_code(found, tmp_path, monkeypatch) == 0


def test_errors_that_only_several_layers_make(device: Device) -> None:
    script = torch.jit.script(nn.Sequential(*[nn.Linear(7, 7, bias=False) for _ in range(12)]).eval())
    with scaled("aten::linear", 1 + 4e-5):
        found = bisect(script, device=device.info.name, example_inputs=[torch.randn(5, 7)])
    assert found.kind == NODE and "node 3 of 12" in found.culprit
    assert found.sample is not None and len(found.sample.part.block.nodes) == 3
    assert found.sample_error is not None and 1e-4 < found.sample_error < 1.3e-4
    assert found.remarks == ("no layer shows it by itself, only several together",)


class Turned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).transpose(0, 1).contiguous().view(3, -1) * 2


def test_a_view_of_what_was_copied_runs_on_the_cpu(device: Device) -> None:
    script, x = torch.jit.script(Turned()), torch.randn(5, 3, 2)
    with doubled("aten::tanh"):
        found = bisect(script, device=device.info.name, example_inputs=[x])
    assert found.kind == NODE and found.culprit.startswith("aten::tanh") and not found.remarks


def test_what_halves_lose(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values near 200, which halves hold to an eighth, and layers that take their difference."""
    script, x = cancelling_in_halves()
    found = bisect(script, device=device.info.name, example_inputs=[x], precision="fp16")
    first = found.culprit.removesuffix(" in fp16, node 1 of 2")
    assert found.kind == HALF and first.startswith("aten::linear %") and found.source == ("linear.py:134 in 0",)
    advice = next(remark for remark in found.remarks if f"with --fp32-nodes '{first}'" in remark)
    assert "bisect again with that" in advice
    more = bisect(script, device=device.info.name, example_inputs=[x], precision="fp16", fp32_nodes=first)
    assert more.kind == HALF and "in fp16, node 2 of 2" in more.culprit
    assert found.error > 1e-2 > found.error_before and found.tolerance == 1e-2
    assert exit_code(found, tmp_path, monkeypatch) == 1
    assert bisect(script, device=device.info.name, example_inputs=[x]).kind == NOTHING
    kept = bisect(
        script, device=device.info.name, example_inputs=[x], precision="fp16", fp32_nodes="aten::linear", tolerance=1e-3
    )
    assert kept.kind == NOTHING
    for arguments, message in (
        ({"precision": "fp16", "fp32_nodes": "aten::gelu"}, "aten::gelu"),
        ({"precision": "fp8"}, "give 'fp32', 'fp16' or 'bf16'"),
        ({"precision": "fp16", "device": "cpu", "passes": PassPipeline.default("cpu")}, "what a Vulkan device stores"),
    ):
        with pytest.raises(InputError, match=message):
            bisect(script, **{"device": device.info.name, "example_inputs": [x], **arguments})  # type: ignore[arg-type]


def test_what_is_only_rounded_is_seen_in_the_program(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tanh that halves store with errors of 2e-4, between layers that they hold exactly."""
    first, second = nn.Linear(7, 7, bias=False), nn.Linear(7, 7, bias=False)
    for layer in (first, second):
        nn.init.eye_(layer.weight)
    script = torch.jit.script(nn.Sequential(first, nn.Tanh(), second).eval())
    x = (torch.randn(5, 7) * 64).round() / 64
    found = bisect(script, device=device.info.name, example_inputs=[x], precision="fp16", tolerance=1e-4)
    assert found.kind == HALF and found.culprit.startswith("aten::tanh")
    assert exit_code(found, tmp_path, monkeypatch) == 1


def test_nothing_to_find(device: Device) -> None:
    script, x = net()
    found = bisect(script, device=device.info.name, example_inputs=[x])
    assert found.kind == NOTHING and found.runs == 2 and 0 < found.error < 1e-5
    with pytest.raises(InputError, match="nothing to bisect"):
        bisect(script, device="cpu", example_inputs=[x])


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000])
def test_the_first_bad_number(count: int) -> None:
    for wanted in {1, count // 2 + 1, count}:
        asked: list[int] = []
        assert (
            first_bad(count, lambda number, wanted=wanted, asked=asked: asked.append(number) or number >= wanted)
            == wanted
        )
        assert len(asked) <= math.ceil(math.log2(count))
