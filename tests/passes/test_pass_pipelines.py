import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pass_harness import operators, optimise, program_of, randomize_norms
from torch import nn

from mobopt import optimize_for_mobile
from mobopt.errors import InputError, PassError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, Program, print_graph
from mobopt.options import Settings
from mobopt.passes.facts import Examples
from mobopt.passes.manager import After, GraphPass, Pass, run_passes
from mobopt.passes.note_kinds import STAYS
from mobopt.passes.notes import NoteBook
from mobopt.passes.pipelines import CPU, OPTIMIZER_TYPES, VULKAN, PassPipeline, pipeline_for
from mobopt.passes.transfer import Transfer

AS_PYTORCH = pipeline_for(Settings("vulkan", legalize="off"))
"""Without a target, every layer is packed, whatever the sizes."""

GOLDEN = Path(__file__).parents[1] / "golden" / "pt1.13.1"


def test_blocklist_takes_names_members_and_passes() -> None:
    torchs = torch._C._MobileOptimizerType.VULKAN_AUTOMATIC_GPU_TRANSFER
    kept = VULKAN.without({torchs, "CONV_BN_FUSION", "remove_dropout"})
    assert set(VULKAN.names) - set(kept.names) == {"fold_batch_norm", "remove_dropout"}
    (transfer,) = [item for item in kept if isinstance(item, Transfer)]
    assert not transfer.automatic  # it still moves what runs on the CPU


@pytest.mark.parametrize("name", list(OPTIMIZER_TYPES))
def test_every_member_of_the_enumeration_names_a_pass(name: str) -> None:
    assert any(type(item) in OPTIMIZER_TYPES[name] for item in (*VULKAN, *CPU))


@pytest.mark.parametrize(
    ("entry", "hint"),
    [("CONV_BN_FUSE", "did you mean CONV_BN_FUSION?"), ("fuse_clmp", "did you mean fuse_clamp?")],
)
def test_unknown_names_get_a_suggestion(entry: str, hint: str) -> None:
    with pytest.raises(PassError) as raised:
        VULKAN.without({entry})
    assert hint in str(raised.value)


@dataclass(frozen=True)
class Liar(Pass):
    """Says that it changed something."""

    name = "liar"

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        return True


@dataclass(frozen=True)
class Breaker(Pass):
    """Leaves a node behind that reads what is not there."""

    name = "breaker"

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        block = program.methods["forward"].block
        for node in block.nodes:
            node.remove().insert_before(block.nodes.first or block.returns)
        return True


@pytest.mark.parametrize(("item", "message"), [(Liar(), "says changed=True"), (Breaker(), "left a broken graph")])
def test_checks_catch_bad_passes(item: Pass, message: str) -> None:
    program = program_of(
        "graph(%self : __torch__.M,\n      %x : Tensor):\n  %y : Tensor = aten::relu(%x)\n"
        "  %z : Tensor = aten::neg(%y)\n  return (%z)"
    )
    with pytest.raises(PassError, match=message):
        run_passes(program, [item], check=True)


@dataclass(frozen=True)
class Idle(GraphPass):
    """Changes nothing, after clamps are fused."""

    name = "idle"
    after = (After("fuse_clamp", "it waits"), After("fold_prepack", "it waits longer", is_needed=True))

    def rewrite_graph(self, graph: Graph, notes: NoteBook) -> bool:
        return False


def test_default_is_what_settings_ask_for() -> None:
    assert PassPipeline.default("Vulkan") == pipeline_for(Settings("vulkan"))
    assert PassPipeline.default("vulkan", legalize="off") != pipeline_for(Settings("vulkan"))
    blocked = PassPipeline.default("cpu", optimization_blocklist={"FUSE_ADD_RELU"})
    assert set(PassPipeline.default("cpu").names) - set(blocked.names) == {"fuse_add_relu"}


def test_passes_are_put_in_replaced_and_taken_out() -> None:
    pipeline = PassPipeline.default("vulkan")
    after = pipeline.insert_after("fold_prepack", Idle(), "to see")
    assert after.names[after.names.index("fold_prepack") + 1] == "idle" and len(after) == len(pipeline) + 1
    before = pipeline.insert_before("hoist_conv_packed_params", Idle())
    assert before == after, "reasons do not count"
    assert after.remove("idle") == pipeline != after
    last = pipeline.replace("simplify", Idle(), number=3)
    assert last[-2] == Idle() and last.steps[-2].reason == pipeline.steps[-2].reason
    assert pipeline.remove("simplify", number=1).names == pipeline.names[1:]


def test_printed_with_a_reason_for_each_pass() -> None:
    for backend in ("vulkan", "metal", "cpu"):
        pipeline = PassPipeline.default(backend)
        lines = str(pipeline).splitlines()
        assert len(lines) == len(pipeline) and all(len(line.split(maxsplit=2)) == 3 for line in lines)
    pipeline = PassPipeline.default("vulkan").insert_after("fold_prepack", Idle())
    words = [line.split(maxsplit=2)[1:] for line in str(pipeline).splitlines()]
    assert ["idle", "Changes nothing, after clamps are fused"] in words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.insert_before("fuse_clamp", Idle()), "idle must stand after fuse_clamp: it waits"),
        (lambda p: p.remove("fold_prepack").insert_after("fuse_clamp", Idle()), "idle needs fold_prepack before it"),
        (lambda p: p.remove("transfer"), "clear_lanes needs transfer before it: it asks what is moved to the GPU"),
        (lambda p: p.remove("fuse_clmp"), "the pipeline has no pass 'fuse_clmp'; did you mean fuse_clamp?"),
        (lambda p: p.remove("simplify"), "simplify stands 3 times in the pipeline; choose with number=1 to 3"),
        (lambda p: p.remove("simplify", number=4), "number is 4, and simplify stands 3 times"),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused_with_the_reason(
    change: Callable[[PassPipeline], PassPipeline], message: str
) -> None:
    with pytest.raises(PassError, match=re.escape(message)):
        change(PassPipeline.default("vulkan"))


@dataclass(frozen=True)
class Asking(Pass):
    """Remembers what it was given."""

    name = "asking"
    examples: Examples = field(default_factory=Examples)
    seen: list[Examples] = field(default_factory=list, compare=False)

    def rewrite(self, program: Program, notes: NoteBook) -> bool:
        self.seen.append(self.examples)
        notes.add(STAYS, "training", reason="nobody asked")
        return False


class Small(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def test_a_pipeline_of_the_user_is_run_on_the_example_inputs() -> None:
    asking, x = Asking(), torch.rand(1, 4, 5, 3)
    pipeline = PassPipeline.default("vulkan").insert_after("canonicalize", asking)
    module = optimize_for_mobile(torch.jit.script(Small()), backend="vulkan", example_inputs=[x], passes=pipeline)
    (seen,) = asking.seen
    assert seen.arguments["forward"][0] is x
    assert "asking: training stays: nobody asked" in map(str, module.notes)
    own = optimize_for_mobile(torch.jit.script(Small()), backend="vulkan", example_inputs=[x])
    assert print_graph(own.program.methods["forward"]) == print_graph(module.program.methods["forward"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "cpu"}, "backend is 'cpu', and the pipeline is made for 'vulkan'"),
        ({"backend": "vulkan", "runtime": "2.6"}, "runtime is '2.6', and the pipeline is made for"),
        ({"backend": "vulkan", "optimization_blocklist": {"FUSE_ADD_RELU"}}, "a blocklist and passes both say"),
        ({"backend": "vulkan", "passes": [Idle()]}, "passes is a list; give a PassPipeline"),
    ],
)
def test_a_pipeline_for_other_arguments_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        optimize_for_mobile(torch.jit.script(Small()), **{"passes": PassPipeline.default("vulkan"), **options})


def layers(channels: int, draw: st.DrawFn) -> Iterator[nn.Module]:
    """A convolution, maybe a normalisation, maybe an activation."""
    groups = draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
    out = groups * draw(st.integers(1, 3))
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    kind = draw(st.sampled_from([nn.Conv2d, nn.ConvTranspose2d]))
    bias = draw(st.booleans())
    stride = draw(st.integers(1, 2)) if kind is nn.ConvTranspose2d else 1
    yield kind(channels, out, kernel, stride=stride, padding=(kernel[0] // 2, 0), groups=groups, bias=bias)
    if draw(st.booleans()):
        yield nn.BatchNorm2d(out, affine=draw(st.booleans()))
    activations = [nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.Hardtanh(-0.3, 0.2), nn.Dropout(), nn.SiLU()]
    yield from draw(st.lists(st.sampled_from(activations), max_size=2))


class Branches(nn.Module):
    """Two chains on one input, whose results are added up if they can be."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.left(x)
        return y, self.right(x).sum() + y.mean()


@st.composite
def networks(draw: st.DrawFn) -> nn.Module:
    chains = []
    for _ in range(2):
        items: list[nn.Module] = []
        channels = 6
        for _ in range(draw(st.integers(1, 3))):
            for item in layers(channels, draw):
                items.append(item)
                channels = getattr(item, "out_channels", channels)
        chains.append(nn.Sequential(*items))
    return randomize_norms(Branches(*chains), draw(st.integers(0, 99)))


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), st.sampled_from(["script", "trace"]), st.sampled_from([AS_PYTORCH, CPU]))
def test_random_networks_give_the_numbers_of_eager(network: nn.Module, how: str, pipeline: PassPipeline) -> None:
    program, _ = optimise(network, [torch.rand(2, 6, 9, 8) - 0.5], pipeline, how)
    found = operators(program)
    assert not {"aten::dropout", "aten::_convolution"} & set(found)
    if pipeline is AS_PYTORCH:
        assert not {"aten::conv2d", "aten::conv_transpose2d"} & set(found)


@pytest.mark.parametrize("net", ["convbnrelu6", "mlp", "mixed"])
def test_at_least_as_fused_as_pytorchs_own_pass(net: str) -> None:
    """Operators that work on tensors, against the graph that PyTorch 1.13.1's Vulkan pass makes of the same net."""
    program = program_from_script_module(torch.jit.load(str(GOLDEN / net / "model.pt")))
    x = torch.from_numpy(numpy.load(GOLDEN / net / "input_0.npy"))
    choices = Settings("vulkan", clear_inputs=False)  # as PyTorch has them
    run_passes(program, pipeline_for(choices, Examples({"forward": (x,)})), check=True)
    ours = tensor_operators(print_graph(program.methods["forward"], facts=False))
    theirs = tensor_operators((GOLDEN / net / "vulkan.graph.txt").read_text())
    del ours["aten::to"]  # that release has no transfers
    assert ours <= theirs  # less are the branches for other ranks, which that release keeps
    assert ours.keys() >= {name for name in theirs if not name.endswith(("1d", "3d"))}


def tensor_operators(text: str) -> Counter[str]:
    """How often a graph's text has each operator that gives a tensor."""
    return Counter(re.findall(r" : Tensor = ((?!prim)\w+::\w+)", text))
