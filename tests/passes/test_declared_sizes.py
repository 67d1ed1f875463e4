"""Sizes that inputs were declared to have: what is known of tensors, and what the GPU is given, holds for all."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from declared_harness import KINDS, bounds_for, within
from device_check import run_judged
from nets import NETS
from pass_harness import assert_close, program_of
from sampling import sampled
from torch import nn
from torch.export import Dim

from mobopt import optimize_for_mobile
from mobopt.errors import InputError
from mobopt.frontends.open_source import source_of
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program, parse_graph, print_graph
from mobopt.ir.types import INT, TENSOR
from mobopt.ops.targets import Target
from mobopt.options import Settings
from mobopt.passes.facts import Examples, record_facts
from mobopt.passes.inference import check_facts, values_of
from mobopt.passes.manager import run_passes
from mobopt.passes.notes import Note
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.bounds import DeclaredBounds


def known(text: str, inputs: list[Any], bounds: Any, attributes: Any = None) -> dict[str, str]:
    """What is known of each tensor of a graph, by its name."""
    program = program_of(text, attributes=attributes)
    record_facts(program, Examples({"forward": inputs}, bounds={"forward": bounds}))
    check_facts(program)
    graph = program.methods["forward"]
    assert print_graph(parse_graph(print_graph(graph), guards=program.size_symbols)) == print_graph(graph)
    return {value.name: value.facts.text for value in values_of(graph.block) if value.type == TENSOR}


def test_sizes_follow_through_operators_and_numbers() -> None:
    found = known(
        """
        graph(%self : __torch__.M, %x : Tensor):
          %n0 : int = prim::Constant[value=0]()
          %n1 : int = prim::Constant[value=1]()
          %n2 : int = prim::Constant[value=2]()
          %none : NoneType = prim::Constant()
          %p : int[] = prim::Constant[value=[2, 2]]()
          %o : int[] = prim::Constant[value=[1, 1]]()
          %z : int[] = prim::Constant[value=[0, 0]]()
          %f : bool = prim::Constant[value=0]()
          %y : Tensor = aten::max_pool2d(%x, %p, %p, %z, %o, %f)
          %h : int = aten::size(%x, %n2)
          %half : int = aten::floordiv(%h, %n2)
          %b : int = aten::size(%x, %n0)
          %l : int[] = prim::ListConstruct(%b, %n2, %half)
          %e : Tensor = aten::zeros(%l, %none, %none, %none, %none)
          %t : Tensor = aten::transpose(%e, %n0, %n2)
          %c : Tensor[] = prim::ListConstruct(%x, %x)
          %d : Tensor = aten::cat(%c, %n0)
          %r : (Tensor, Tensor, Tensor) = prim::TupleConstruct(%y, %t, %d)
          return (%r)
        """,
        [torch.randn(2, 3, 8, 7)],
        [[(1, 4), None, (6, 20), None]],
    )
    assert found == {
        "x": "float32[s0, 3, s1, 7]",
        "y": "float32[s0, 3, s1//2, 3]",
        "e": "float32[s0, 2, s1//2]",
        "t": "float32[s1//2, 2, s0]",
        "d": "float32[s0*2, 3, s1, 7]",
    }


BRANCH = """
    graph(%self : __torch__.M, %x : Tensor):
      %n0 : int = prim::Constant[value=0]()
      %n1 : int = prim::Constant[value=1]()
      %n5 : int = prim::Constant[value=5]()
      %n : int = aten::size(%x, %n0)
      %c : bool = aten::gt(%n, %n5)
      %y : Tensor = prim::If(%c)
        block0():
          %a : Tensor = aten::sum(%x, %dims, %keep, %none)
          -> (%a)
        block1():
          %b : Tensor = aten::relu(%x)
          -> (%b)
      %z : Tensor = aten::relu(%y)
      return (%z)
""".replace(
    "%n5 :",
    "%dims : int[] = prim::Constant[value=[0]]()\n      %keep : bool = prim::Constant[value=1]()\n"
    "      %none : NoneType = prim::Constant()\n      %n5 :",
)


@pytest.mark.parametrize(
    ("example", "bound", "expected"),
    [
        (3, (1, 5), "float32[s0, 4]"),  # never taken
        (7, (6, 9), "float32[1, 4]"),  # always
        (7, (2, 9), "float32[1, 4] several varying"),  # by the size
        (3, (2, 9), "float32[3, 4] several ranks varying"),
        (3, (3, 3), "float32[3, 4]"),
    ],
)
def test_a_branch_is_believed_where_the_range_decides_it(example: int, bound: tuple[int, int], expected: str) -> None:
    found = known(BRANCH, [torch.randn(example, 4)], [[bound]])
    assert found["z"] == expected


def test_a_loop_keeps_sizes_that_a_trip_keeps() -> None:
    text = """
        graph(%self : __torch__.M, %x : Tensor):
          %n3 : int = prim::Constant[value=3]()
          %n0 : int = prim::Constant[value=0]()
          %true : bool = prim::Constant[value=1]()
          %kept : Tensor, %grown : Tensor = prim::Loop(%n3, %true, %x, %x)
            block0(%i : int, %k : Tensor, %g : Tensor):
              %k1 : Tensor = aten::relu(%k)
              %l : Tensor[] = prim::ListConstruct(%g, %k1)
              %g1 : Tensor = aten::cat(%l, %n0)
              -> (%true, %k1, %g1)
          %r : (Tensor, Tensor) = prim::TupleConstruct(%kept, %grown)
          return (%r)
    """
    found = known(text, [torch.randn(2, 5)], [[(1, 4)]])
    assert {found[name] for name in ("k", "k1", "kept")} == {"float32[s0, 5]"}
    assert all("varying" in found[name] for name in ("g", "g1", "grown"))


def test_what_has_no_rule_or_rank_by_sizes_is_not_known() -> None:
    text = """
        graph(%self : __torch__.M, %x : Tensor):
          %n1 : int = prim::Constant[value=1]()
          %false : bool = prim::Constant[value=0]()
          %none : NoneType = prim::Constant()
          %s : Tensor = aten::squeeze(%x)
          %u : Tensor, %i : Tensor = aten::_unique(%x, %false, %false)
          %r : (Tensor, Tensor) = prim::TupleConstruct(%s, %u)
          return (%r)
    """
    found = known(text, [torch.randn(2, 3)], [[(1, 4)]])
    assert found["s"] == "float32[2, 3] several ranks varying"
    assert found["u"] == "float32[6] several varying"


def test_an_attribute_that_changes_is_not_believed() -> None:
    text = """
        graph(%self : __torch__.M, %x : Tensor):
          %n0 : int = prim::Constant[value=0]()
          %n1 : int = prim::Constant[value=1]()
          %n : int = prim::GetAttr[name="n"](%self)
          %y : Tensor = aten::narrow(%x, %n1, %n0, %n)
          return (%y)
    """
    found = known(text, [torch.randn(2, 3)], [[(1, 4)]], {"n": (INT, 2)})
    assert "varying" in found["y"]


class Images(nn.Module):
    """Layers of which genuine kernels compute some for one sample, or for even sizes, only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 5, 1)
        self.last = nn.Linear(5, 7)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.second(nn.functional.max_pool2d(torch.relu(self.norm(self.first(x))), 3, 2, 1))
        y = torch.cat([y, y * 2], 1)[:, :5]
        return self.last(y.mean((2, 3))), torch.softmax(y, 1)


def converted(
    program: Program, runtime: str, inputs: list[torch.Tensor], bounds: DeclaredBounds
) -> tuple[Program, list[Note]]:
    """A program as a file of ``runtime`` has it, whose facts and rules of inputs are forgotten, and all notes."""
    examples = Examples({"forward": inputs}, bounds=bounds)
    runs = run_passes(program, pipeline_for(Settings("vulkan", runtime), examples), check=True)
    program.metadata = {}
    return program, [note for run in runs for note in run.result.notes]


@pytest.mark.parametrize("runtime", ["1.13", "2.1", "2.6"])
@pytest.mark.parametrize("dims", [(0,), (2, 3), (0, 3)])
def test_an_export_is_right_for_all_sizes_that_it_takes(dims: tuple[int, ...], runtime: str) -> None:
    torch.manual_seed(3)
    module, example = Images().eval(), torch.randn(1 if 0 not in dims else 2, 3, 30, 41)
    sizes = {dim: Dim(f"d{dim}", min=1 if dim == 0 else 17, max=3 if dim == 0 else 50) for dim in dims}
    exported = torch.export.export(module, (example,), dynamic_shapes=(sizes,))
    program, _ = converted(source_of(exported, [], None).program.clone(), runtime, [example], {})
    assert "s0" in print_graph(program.methods["forward"])
    for batch, height, width in ((1, 17, 50), (3, 50, 17), (2, 23, 29)):
        given = torch.randn(
            batch if 0 in dims else len(example), 3, height if 2 in dims else 30, width if 3 in dims else 41
        )
        found, _ = run_judged(program, Target("vulkan", runtime), [given])
        with torch.no_grad():
            assert_close(found, module(given))


def test_bounds_leave_what_they_do_not_name_to_the_export() -> None:
    torch.manual_seed(3)
    module, example = Images().eval(), torch.randn(2, 3, 30, 41)
    sizes = {0: Dim("batch", min=1, max=16), 3: Dim("width", min=17, max=50)}
    program = source_of(torch.export.export(module, (example,), dynamic_shapes=(sizes,)), [], None).program.clone()
    record_facts(program, Examples({"forward": [example]}, bounds={"forward": [[(2, 2)]]}))
    assert program.methods["forward"].inputs[1].facts.text == "float32[2, 3, 30, s0]"
    record_facts(program, Examples({"forward": [example]}, bounds={"forward": [[(1, 4)]]}))
    assert {str(item).partition(": ")[2] for item in program.size_symbols.symbols.values()} >= {"1..4", "17..50"}


@pytest.mark.parametrize(
    ("name", "kind", "runtime"), sampled(product(sorted(NETS), KINDS, ["1.13", "2.1", "2.6"]), one_in=9)
)
def test_nets_are_right_for_all_declared_sizes(name: str, kind: str, runtime: str) -> None:
    net = NETS[name]
    module, inputs = net.module(), net.inputs()
    rows = bounds_for(kind, inputs)
    if not any(map(any, rows)):
        pytest.skip("no input has such a dimension")
    with torch.no_grad():
        is_script = "scripted" in net.ways
        script = torch.jit.script(module) if is_script else torch.jit.trace(module, tuple(inputs), check_trace=False)
    program, _ = converted(program_from_script_module(script, []), runtime, inputs, {"forward": rows})
    for call in (within(rows, inputs, min), within(rows, inputs, max), inputs):
        try:
            with torch.no_grad():
                expected = script(*call)
        except (RuntimeError, torch.jit.Error):
            assert call is not inputs
            continue  # the net itself takes no such sizes
        found, _ = run_judged(program, Target("vulkan", runtime), call)
        assert_close(found, expected)


def test_the_way_out_of_the_cpu_is_told() -> None:
    torch.manual_seed(4)
    script, example = torch.jit.script(Images().eval()), torch.randn(1, 3, 16, 16)
    with pytest.warns(
        UserWarning, match=r"2 operators run on the phone's CPU, .* \(s0, dimension 0 of the input x: 1 to 4\)"
    ):
        module = optimize_for_mobile(
            script, backend="vulkan", runtime="2.6", example_inputs=[example], bounds={"forward": [[(1, 4)]]}
        )
    told = [str(note) for note in module.notes if note.parameters.get("is_by_size")]
    assert told[0].endswith(
        "runs on the CPU: only the first sample of a batch is right, and s0 >= 2 is true of only some of the sizes "
        "that inputs may have"
    )
    with pytest.raises(InputError, match="dimension 0 of input 0 is 5, and its upper bound is 4"):
        module(torch.randn(5, 3, 16, 16))
    assert (
        optimize_for_mobile(
            script,
            backend="vulkan",
            runtime="2.6",
            example_inputs=[example],
            bounds={"forward": [[None, None, (8, 99)]]},
        )
        .program.methods["forward"]
        .inputs[1]
        .facts.symbolic_sizes
        is not None
    )


def test_a_safe_rewrite_serves_all_sizes() -> None:
    program = program_of(
        """
        graph(%self : __torch__.M, %x : Tensor, %y : Tensor):
          %n1 : int = prim::Constant[value=1]()
          %z : Tensor = aten::add(%y, %x, %n1)
          return (%z)
        """
    )
    inputs = [torch.randn(2, 3, 4, 5), torch.randn(1, 3, 4, 5)]
    program, notes = converted(program, "1.13", inputs, {"forward": [[(1, 3)]]})
    assert any("rewritten by swap_operands" in str(note) for note in notes)
    for batch in (1, 3):
        given = [torch.randn(batch, 3, 4, 5), inputs[1]]
        found, _ = run_judged(program, Target("vulkan", "1.13"), given)
        assert_close(found, given[0] + given[1])


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"forward": [[(2, 4)]]}, "dimension 0 of input 0 is 1, and its lower bound is 2"),
        ({"forward": [[(5, 4)]]}, "have no size in them"),
        ({"forward": [[], [(1, 4)]]}, "bounds are given for input 1 of forward, and it has 1"),
        ({"forward": [[None] * 4 + [(1, 4)]]}, "dimension 4 of input 0 of forward, which has 4 dimensions"),
        ({"backward": [[(1, 4)]]}, "bounds are given for the method 'backward', and the methods are forward"),
    ],
)
def test_bounds_that_do_not_fit_are_one_clear_error(bounds: Any, message: str) -> None:
    script = torch.jit.script(Images().eval())
    with pytest.raises(InputError, match=message):
        optimize_for_mobile(script, backend="vulkan", example_inputs=[torch.randn(1, 3, 16, 16)], bounds=bounds)
