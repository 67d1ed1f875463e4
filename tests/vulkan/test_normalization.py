from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import check_op

from mobopt.ir import Node, Value
from mobopt.runtimes.vulkan.kernels import normalization_in_registers as in_registers
from mobopt.runtimes.vulkan.kernels import normalization_kernel
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, why_unsupported

load_lowerings()

IMAGE = torch.randn(2, 12, 5, 3)
ROWS = torch.randn(13, 37)
W, B, MEAN, VAR = torch.randn(12), torch.randn(12), torch.randn(12), torch.rand(12) + 0.5

CALLS = [
    ("layer_norm", (IMAGE, [3], torch.randn(3), torch.randn(3))),
    ("layer_norm", (IMAGE, [5, 3], None, None)),
    ("layer_norm", (torch.randn(2, 9, 64), [64], torch.randn(64), None)),
    ("native_layer_norm", (ROWS, [37], torch.randn(37), torch.randn(37), 1e-5)),
    ("group_norm", (IMAGE, 3, W, B)),
    ("group_norm", (IMAGE, 4, None, None)),
    ("group_norm", (torch.randn(2, 6, 9), 2, torch.randn(6), torch.randn(6))),
    ("native_group_norm", (IMAGE, W, B, 2, 12, 15, 3, 1e-5)),
    ("instance_norm", (IMAGE, W, B, None, None, True, 0.1, 1e-5, False)),
    ("instance_norm", (IMAGE, W, B, MEAN, VAR, False, 0.1, 1e-5, False)),
    ("batch_norm", (IMAGE, W, B, MEAN, VAR, False, 0.1, 1e-5, False)),
    ("batch_norm", (IMAGE, None, None, MEAN, VAR, False, 0.1, 1e-5, False)),
    ("batch_norm", (ROWS, None, torch.randn(37), torch.randn(37), torch.rand(37) + 0.5, False, 0.1, 1e-5, False)),
    ("rms_norm", (ROWS, [37], torch.randn(37), 1e-6)),
]


@pytest.mark.parametrize("op, args", CALLS, ids=[f"{op}-{n}" for n, (op, _) in enumerate(CALLS)])
def test_operators(any_device, op, args):
    check_op(any_device, f"aten::{op}", *args)


def test_training_is_refused():
    x, vector = Value.of_tensor(torch.float32, (2, 3, 4, 4)), Value.of_tensor(torch.float32, (3,))
    call = Node.call("aten::batch_norm", (x, None, None, vector, vector, True, 0.1, 1e-5, False), (x,))
    assert "eval()" in str(why_unsupported(call))


def dispatches(op: str, args: tuple, kind: str) -> list[str]:
    from test_loop_bounds import lowered

    return [each.shader for each in lowered(kind, op, tuple(to_meta(arg) for arg in args))]


def to_meta(arg):
    return arg.to("meta") if isinstance(arg, torch.Tensor) else arg


def test_a_normalisation_is_one_dispatch() -> None:
    for op, args in CALLS:
        if op in ("layer_norm", "group_norm", "rms_norm"):
            assert dispatches(op, args, "discrete") == ["normalize"], op
    long = ("layer_norm", (torch.randn(1, 5, 40_009), [40_009]))
    wide = ("layer_norm", (torch.randn(97, 2052), [2052]))
    assert len(dispatches(*long, "discrete")) > 1  # divided, as a walk of one invocation would be long
    assert len(dispatches(*wide, "cpu")) == 2 and dispatches(*wide, "discrete") == ["normalize"]
    assert len(dispatches("layer_norm", (torch.randn(197, 768), [768]), "cpu")) == 1


@pytest.mark.parametrize("op, args", [CALLS[n] for n in (4, 13)], ids=["group", "rms"])
def test_threads_share_a_normalisation(device, monkeypatch, op, args):
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    check_op(device, f"aten::{op}", *args, relative=2e-6, device_layout=False)


@pytest.fixture
def by_subgroups(device, monkeypatch):
    """The device, as if its subgroups were known to normalise rows fast, which they are checked to do afterwards."""
    if "subgroup_arithmetic" not in device.info.features:
        pytest.skip("the device's subgroups don't add")
    costs = replace(in_registers.device_costs(device.info), normalizing_lanes=device.info.subgroup_size)
    monkeypatch.setattr(in_registers, "device_costs", lambda info: costs)
    done = []
    rows, held = normalization_kernel.append_rows, normalization_kernel.append_held
    monkeypatch.setattr(normalization_kernel, "append_rows", lambda *args: done.append(rows(*args)) or done[-1])
    monkeypatch.setattr(normalization_kernel, "append_held", lambda *args: held(*args) and not done.append(True))
    yield device
    # The harness also gives operands that aren't dense, and wider subgroups hold some rows that are for workgroups.
    assert done[0] and (device.info.subgroup_size > 8 or done.count(True) >= len(done) // 2)


@pytest.mark.parametrize("vectors", [1, 3, 16, 31, 61, 65, 129, 1024])
@pytest.mark.parametrize(("weighted", "biased"), [(True, True), (True, False), (False, False)])
def test_rows_in_the_registers_of_a_subgroup_or_a_workgroup(by_subgroups, vectors, weighted, biased):
    generator = torch.Generator().manual_seed(vectors)
    width = 4 * vectors
    x = torch.randn(7, 5, width, generator=generator) * 3 + 40
    weight, bias = torch.randn(2, width, generator=generator)
    check_op(by_subgroups, "aten::layer_norm", x, [width], weight if weighted else None, bias if biased else None)
    check_op(by_subgroups, "aten::rms_norm", x, [width], weight if weighted else None, 1e-6)
    check_op(by_subgroups, "aten::layer_norm", x[:, ::2], [width], weight if weighted else None)


@pytest.mark.parametrize(("channels", "groups"), [(12, 1), (24, 3), (8, 2), (64, 16)])
@pytest.mark.parametrize("space", [(5, 7), (13, 11), (1, 37)])
def test_groups_in_the_registers_of_a_workgroup(by_subgroups, channels, groups, space):
    generator = torch.Generator().manual_seed(channels)
    x = torch.randn(2, channels, *space, generator=generator) * 2 - 30
    weight, bias = torch.randn(2, channels, generator=generator)
    check_op(by_subgroups, "aten::group_norm", x, groups, weight, bias, relative=2e-6)
    check_op(by_subgroups, "aten::group_norm", x, groups, None, None, relative=2e-6)


def test_rows_in_registers_with_infinities_and_equal_elements(by_subgroups):
    for width in (24, 260):
        x = torch.randn(3, width, generator=torch.Generator().manual_seed(2))
        x[0], x[1, 5], x[2, 7] = 17.3, torch.inf, torch.nan
        check_op(by_subgroups, "aten::layer_norm", x, [width], torch.ones(width), torch.zeros(width))


def test_which_rows_a_subgroup_normalises():
    from device_infos import known_device
    from test_loop_bounds import lowered

    h200 = known_device("nvidia_h200")
    for sizes, shader in (
        ((128, 384), "normalize_rows"),
        ((2, 3, 1024), "normalize_rows"),
        ((1, 768), "normalize_rows"),
        ((128, 1028), "normalize_held"),
        ((1, 8192), "normalize_held"),
        ((1, 32768), "normalize_held"),
        ((128, 386), "normalize"),
    ):
        call = ("layer_norm", (torch.empty(sizes, device="meta"), [sizes[-1]], None, None))
        assert [each.shader for each in lowered(h200, *call)] == [shader], sizes
    for sizes, groups, shaders in (
        ((1, 128, 4, 16), 1, ["normalize_held"]),
        ((1, 96, 4, 64), 1, ["normalize_held"]),
        ((1, 256, 32, 32), 32, ["normalize_held"]),
        ((1, 320, 32, 32), 32, ["channel_moments", "normalize_channels"]),  # ten channels of a group
        ((1, 64, 32, 64), 1, ["moments_part", "moments_merge", "pointwise_2_0"]),
    ):
        call = ("group_norm", (torch.empty(sizes, device="meta"), groups, None, None))
        assert [each.shader for each in lowered(h200, *call)] == shaders, sizes
    assert dispatches("layer_norm", (torch.randn(128, 384), [384], None, None), "discrete") == ["normalize"]
