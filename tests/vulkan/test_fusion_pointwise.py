"""Pointwise fusion and what runs before it, as text before and after, and that the result is the same."""

from __future__ import annotations

import re

import pytest
import torch
from graph_texts import SIZES, expect, graph_of, text_of
from harness import assert_close, run_graph

from mobopt.ir import Graph, Value, parse_graph
from mobopt.runtimes.segment import Returned, Segment
from mobopt.runtimes.vulkan.compile.build import build_stream
from mobopt.runtimes.vulkan.compile.fusion_pointwise import FUSED, fuse_pointwise
from mobopt.runtimes.vulkan.compile.simplify import simplify
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.executable import Executable
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.kernels.pointwise_program import ProgramBuilder
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.shaders.enumerations import Opcode

load_lowerings()


def fused(text: str, **options: bool) -> tuple[Graph, str]:
    graph = graph_of(text)
    fuse_pointwise(graph, **options)
    return graph, text_of(graph)


def test_a_chain_becomes_one_node(any_device) -> None:
    graph, text = fused(
        """
        graph(%x : F, %y : F, %bias : Float(5, 1, 1)):
          %a : F = aten::add.Tensor(%x, %bias, 1)
          %b : F = aten::silu(%a)
          %c : F = aten::mul.Tensor(%b, %y)
          %d : F = aten::clamp(%c, -0.5, 0.7)
          return (%d)
        """
    )
    assert text == expect(
        """
        graph(%x : F,
              %y : F,
              %bias : Float(5, 1, 1)):
          %d : F = mobopt::pointwise()
            block0():
              %a : F = aten::add.Tensor(%x, %bias, 1)
              %b : F = aten::silu(%a)
              %c : F = aten::mul.Tensor(%b, %y)
              %0 : F = aten::clamp(%c, -0.5, 0.7)
              -> (%0)
          return (%d)
        """
    )
    values = [torch.randn(SIZES), torch.randn(SIZES), torch.randn(5, 1, 1)]
    (found,) = run_graph(any_device, graph, values)
    assert_close(found, (torch.nn.functional.silu(values[0] + values[2]) * values[1]).clamp(-0.5, 0.7))


DIAMOND = """
    graph(%x : F):
      %a : F = aten::sigmoid(%x)
      %b : F = aten::mul.Tensor(%a, %a)
      %c : F = aten::add.Tensor(%b, %x, 1)
      return (RETURNED)
    """


def test_a_diamond_becomes_one_node_only_if_nothing_else_reads_its_parts(device) -> None:
    graph, _ = fused(DIAMOND.replace("RETURNED", "%c"))
    assert [node.op for node in graph.block.nodes] == [FUSED]
    graph, text = fused(DIAMOND.replace("RETURNED", "%c, %b"))
    assert text == expect(
        """
        graph(%x : F):
          %b : F = mobopt::pointwise()
            block0():
              %a : F = aten::sigmoid(%x)
              %0 : F = aten::mul.Tensor(%a, %a)
              -> (%0)
          %c : F = aten::add.Tensor(%b, %x, 1)
          return (%c, %b)
        """
    )
    value = torch.randn(SIZES)
    found = run_graph(device, graph, [value])
    assert_close(found[0], value.sigmoid() ** 2 + value)
    assert_close(found[1], value.sigmoid() ** 2)


def test_two_chains_that_meet_become_one_node(device) -> None:
    graph, text = fused(
        """
        graph(%x : F, %y : F):
          %a : F = aten::exp(%x)
          %b : F = aten::neg(%a)
          %c : F = aten::exp(%y)
          %d : F = aten::abs(%c)
          %e : F = aten::add.Tensor(%b, %d, 1)
          return (%e)
        """
    )
    assert text == expect(
        """
        graph(%x : F,
              %y : F):
          %e : F = mobopt::pointwise()
            block0():
              %c : F = aten::exp(%y)
              %d : F = aten::abs(%c)
              %a : F = aten::exp(%x)
              %b : F = aten::neg(%a)
              %0 : F = aten::add.Tensor(%b, %d, 1)
              -> (%0)
          return (%e)
        """
    )
    x, y = torch.randn(SIZES), torch.randn(SIZES)
    (found,) = run_graph(device, graph, [x, y])
    assert_close(found, y.exp().abs() - x.exp())


def test_operands_that_grow_are_not_computed_again() -> None:
    before = expect(
        """
        graph(%x : F,
              %small : Float(2, 5, 1, 1)):
          %gate : Float(2, 5, 1, 1) = aten::sigmoid(%small)
          %result : F = aten::mul.Tensor(%x, %gate)
          return (%result)
        """
    )
    assert fused(before)[1] == before


def test_kinds_change_within_a_chain(device) -> None:
    graph, _ = fused(
        """
        graph(%x : F):
          %mask : Bool(2, 5, 7, 6) = aten::gt.Scalar(%x, 0.25)
          %count : Long(2, 5, 7, 6) = aten::mul.Scalar(%mask, 3)
          %result : F = aten::div.Scalar(%count, 2)
          return (%result)
        """
    )
    assert len(graph.block.nodes) == 1
    value = torch.randn(SIZES)
    (found,) = run_graph(device, graph, [value])
    assert_close(found, (value > 0.25) * 3 / 2)


def test_long_chains_are_cut_where_the_shader_is_full(device) -> None:
    lines = [f"%v{i + 1} : F = aten::add.Scalar(%v{i}, {float(i)}, 1)" for i in range(25)]
    graph, _ = fused("graph(%v0 : F):\n" + "\n".join(lines) + "\nreturn (%v25)")
    assert 3 <= len(graph.block.nodes) <= 4
    value = torch.randn(SIZES)
    (found,) = run_graph(device, graph, [value])
    assert_close(found, value + sum(range(25)))


SHARED = """
    graph(%x : F, %y : F):
      %a : F = aten::add.Tensor(%x, %y, 1)
      %b : F = aten::sigmoid(%a)
      %c : F = aten::neg(%a)
      %d : F = aten::mul.Tensor(%b, %c)
      return (%d)
    """


def test_what_several_steps_of_one_node_read_is_a_step_too(any_device) -> None:
    graph, text = fused(SHARED)
    assert text == expect(
        """
        graph(%x : F,
              %y : F):
          %d : F = mobopt::pointwise()
            block0():
              %a : F = aten::add.Tensor(%x, %y, 1)
              %c : F = aten::neg(%a)
              %b : F = aten::sigmoid(%a)
              %0 : F = aten::mul.Tensor(%b, %c)
              -> (%0)
          return (%d)
        """
    )
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(SIZES, generator=generator) for _ in "xy")
    (found,) = run_graph(any_device, graph, [x, y])
    assert_close(found, (x + y).sigmoid() * -(x + y))


def test_what_others_read_too_stays(any_device) -> None:
    """Elements are made once; so are they where one of the readers can't be a step."""
    _, text = fused(SHARED.replace("return (%d)", "return (%d, %a)"))
    assert text.count("mobopt::pointwise") == 1
    assert text.index("aten::add.Tensor") < text.index("mobopt::pointwise")
    rows = SHARED.replace("aten::neg(%a)", "aten::softmax.int(%a, 3, None)")
    _, text = fused(rows)
    assert text.count("aten::add.Tensor") == 1
    assert text.index("aten::add.Tensor") < text.index("aten::softmax.int")


NUMBERS = """
    graph(%low : Float(), %high : Float(), %x : F):
      %l : Float() = aten::clamp_max(%low, 0)
      %h : Float() = aten::clamp_min(%high, 0)
      %e : Float() = aten::sub.Tensor(%h, %l, 1)
      %s : Float() = aten::div.Scalar(%e, 255.0)
      %n : Float() = aten::neg(%l)
      %q : Float() = aten::div.Tensor(%n, %s)
      %z : Float() = aten::round(%q)
      %y : F = aten::div.Tensor(%x, %s)
      %w : F = aten::add.Tensor(%y, %z, 1)
      return (%w)
    """


def check_numbers(device: Device, graph: Graph) -> None:
    """Compare what is left of :data:`NUMBERS` with torch."""
    low, high = torch.tensor(-1.5), torch.tensor(2.5)
    x = torch.randn(SIZES, generator=torch.Generator().manual_seed(0))
    (found,) = run_graph(device, graph, [low, high, x])
    step = (high - low) / 255
    assert_close(found, x / step + (-low / step).round())


def test_numbers_are_made_anew_where_they_are_read(any_device) -> None:
    """As layers that round their inputs in each call have them: ``%l`` is a step of both nodes."""
    graph, text = fused(NUMBERS)
    assert text == expect(
        """
        graph(%low : Float(),
              %high : Float(),
              %x : F):
          %s : Float() = mobopt::pointwise()
            block0():
              %0 : Float() = aten::clamp_max(%low, 0)
              %h : Float() = aten::clamp_min(%high, 0)
              %e : Float() = aten::sub.Tensor(%h, %0, 1)
              %1 : Float() = aten::div.Scalar(%e, 255.0)
              -> (%1)
          %z : Float() = mobopt::pointwise()
            block0():
              %l : Float() = aten::clamp_max(%low, 0)
              %n : Float() = aten::neg(%l)
              %q : Float() = aten::div.Tensor(%n, %s)
              %2 : Float() = aten::round(%q)
              -> (%2)
          %w : F = mobopt::pointwise()
            block0():
              %y : F = aten::div.Tensor(%x, %s)
              %3 : F = aten::add.Tensor(%y, %z, 1)
              -> (%3)
          return (%w)
        """
    )
    check_numbers(any_device, graph)


def test_numbers_are_made_anew_for_each_element_where_that_takes_less_time(any_device) -> None:
    graph, text = fused(NUMBERS, repeats_numbers=True)
    assert text == expect(
        """
        graph(%low : Float(),
              %high : Float(),
              %x : F):
          %w : F = mobopt::pointwise()
            block0():
              %0 : Float() = aten::clamp_max(%low, 0)
              %1 : Float() = aten::clamp_min(%high, 0)
              %2 : Float() = aten::sub.Tensor(%1, %0, 1)
              %3 : Float() = aten::div.Scalar(%2, 255.0)
              %l : Float() = aten::clamp_max(%low, 0)
              %n : Float() = aten::neg(%l)
              %q : Float() = aten::div.Tensor(%n, %3)
              %z : Float() = aten::round(%q)
              %4 : Float() = aten::clamp_max(%low, 0)
              %h : Float() = aten::clamp_min(%high, 0)
              %e : Float() = aten::sub.Tensor(%h, %4, 1)
              %s : Float() = aten::div.Scalar(%e, 255.0)
              %y : F = aten::div.Tensor(%x, %s)
              %5 : F = aten::add.Tensor(%y, %z, 1)
              -> (%5)
          return (%w)
        """
    )
    check_numbers(any_device, graph)


def test_numbers_of_rows_are_made_anew_for_each_element(any_device) -> None:
    """As layers that round each row by its own extremes have them."""
    text = """
        graph(%x : F, %r : Float(2, 5, 7, 1)):
          %a : Float(2, 5, 7, 1) = aten::clamp(%r, 0.1, None)
          %b : Float(2, 5, 7, 1) = aten::reciprocal(%a)
          %y : F = aten::mul.Tensor(%x, %b)
          %z : F = aten::round(%y)
          %w : F = aten::mul.Tensor(%z, %a)
          return (%w)
        """
    graph, _ = fused(text, repeats_numbers=True)
    assert [node.op for node in graph.block.nodes] == [FUSED]
    again, _ = fused(text)
    assert len(list(again.block.nodes)) == 3
    generator = torch.Generator().manual_seed(0)
    x, r = torch.randn(SIZES, generator=generator), torch.rand(*SIZES[:-1], 1, generator=generator)
    (found,) = run_graph(any_device, graph, [x, r])
    a = r.clamp(0.1)
    assert_close(found, (x * a.reciprocal()).round() * a)


def test_views_of_numbers_are_steps(any_device) -> None:
    text = """
        graph(%x : F, %n : Float(1, 1, 1)):
          %a : Float(1, 1, 1) = aten::neg(%n)
          %b : Float() = aten::reshape(%a, [])
          %c : Float() = aten::exp(%b)
          %d : Float(1, 1, 1, 1) = aten::reshape(%c, [1, 1, 1, 1])
          %y : F = aten::mul.Tensor(%x, %d)
          return (%y)
        """
    graph, _ = fused(text, repeats_numbers=True)
    assert [node.op for node in graph.block.nodes] == [FUSED]
    again, _ = fused(text)
    assert [node.op for node in again.block.nodes] == [FUSED, "aten::reshape", "aten::mul"]
    x, n = torch.randn(SIZES, generator=torch.Generator().manual_seed(0)), torch.tensor([[[0.3]]])
    for each in (graph, again):
        (found,) = run_graph(any_device, each, [x, n])
        assert_close(found, x * (-n).exp())


def test_numbers_that_something_else_reads_stay_as_well(device) -> None:
    text = """
        graph(%x : F, %n : Float()):
          %a : Float() = aten::neg(%n)
          %b : Float() = aten::exp(%a)
          %y : F = aten::mul.Tensor(%x, %b)
          return (%y, %b)
        """
    graph, _ = fused(text, repeats_numbers=True)
    assert [node.op for node in graph.block.nodes] == [FUSED, FUSED]
    x, n = torch.randn(SIZES, generator=torch.Generator().manual_seed(0)), torch.tensor(0.3)
    y, b = run_graph(device, graph, [x, n])
    assert_close(b, (-n).exp())
    assert_close(y, x * (-n).exp())


def test_a_step_that_is_there_twice_is_one_instruction() -> None:
    builder = ProgramBuilder()
    x = builder.tensor(Value.of_tensor(torch.float32, (3,)))
    one, other = (builder.step(Opcode.ADD, builder.step(Opcode.NEG, x), x) for _ in range(2))
    assert one == other
    program = builder.program(builder.step(Opcode.MUL, one, other))
    assert [item.opcode for item in program.instructions] == [Opcode.NEG, Opcode.ADD, Opcode.MUL]


def test_a_result_in_the_middle_is_moved_to_the_end() -> None:
    builder = ProgramBuilder()
    x = builder.tensor(Value.of_tensor(torch.float32, (3,)))
    moved = builder.step(Opcode.MOVE, x)
    builder.step(Opcode.NEG, x)
    program = builder.program(moved)
    assert [item.opcode for item in program.instructions] == [Opcode.MOVE, Opcode.NEG, Opcode.MOVE]


def test_long_numbers_are_made_once() -> None:
    """What a copy would hold isn't known to have 64 bits."""
    text = """
        graph(%i : Long()):
          %a : Long() = aten::add.Scalar(%i, 1, 1)
          %b : Long() = aten::mul.Scalar(%a, 3)
          %c : Long() = aten::neg(%a)
          return (%b, %c)
        """
    graph = graph_of(text)
    fuse_pointwise(graph, long={value for node in graph.block.nodes for value in node.outputs})
    assert [node.qualified_op for node in graph.block.nodes].count("aten::add.Scalar") == 1
    graph = graph_of(text)
    fuse_pointwise(graph)
    assert [node.op for node in graph.block.nodes] == [FUSED, FUSED]


BATCH_NORM = """
    graph(%x : F):
      %w : Float(5) = prim::Constant[value=<Tensor>]()
      %s : Float(5) = prim::Constant[value=<Tensor>]()
      %m : Float(5) = prim::Constant[value=<Tensor>]()
      %v : Float(5) = prim::Constant[value=<Tensor>]()
      %a : F = aten::batch_norm(%x, %w, %s, %m, %v, False, 0.1, 1e-05, False)
      %b : F = aten::relu(%a)
      return (%b)
    """


def test_batch_norm_and_relu_are_one_dispatch(any_device) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(5), torch.randn(5), torch.randn(5), torch.rand(5) + 0.5]
    graph = graph_of(BATCH_NORM, dict(zip("wsmv", parts, strict=True)))
    simplify(graph)
    fuse_pointwise(graph)
    assert text_of(graph) == expect(
        """
        graph(%x : F):
          %0 : Float(5, 1, 1) = prim::Constant[value=<Tensor float32 [5, 1, 1]>]()
          %1 : Float(5, 1, 1) = prim::Constant[value=<Tensor float32 [5, 1, 1]>]()
          %b : F = mobopt::pointwise()
            block0():
              %a : F = aten::addcmul(%0, %x, %1, 1)
              %2 : F = aten::relu(%a)
              -> (%2)
          return (%b)
        """
    )
    value = torch.randn(SIZES)
    (found,) = run_graph(any_device, graph, [value])
    weight, bias, mean, var = parts
    assert_close(found, torch.nn.functional.batch_norm(value, mean, var, weight, bias).relu())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("of_parts", ["of the same", "float32"])
def test_batch_norm_of_halves_and_relu_are_one_dispatch(any_device, dtype: torch.dtype, of_parts: str) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(5), torch.randn(5), torch.randn(5), torch.rand(5) + 0.5]
    parts = parts if of_parts == "float32" else [part.to(dtype) for part in parts]
    name = {torch.float16: "Half", torch.bfloat16: "BFloat16"}[dtype]
    half = f"{name}(2, 5, 7, 6)"
    source = re.sub(r": F\b", f": {half}", BATCH_NORM)
    source = source if of_parts == "float32" else source.replace("Float(5)", f"{name}(5)")
    graph = graph_of(source, dict(zip("wsmv", parts, strict=True)))
    simplify(graph)
    fuse_pointwise(graph)
    assert text_of(graph) == expect(
        f"""
        graph(%x : {half}):
          %0 : Float(5, 1, 1) = prim::Constant[value=<Tensor float32 [5, 1, 1]>]()
          %1 : Float(5, 1, 1) = prim::Constant[value=<Tensor float32 [5, 1, 1]>]()
          %b : {half} = mobopt::pointwise()
            block0():
              %2 : F = aten::to.dtype(%x, torch.float32, False, False, None)
              %3 : F = aten::addcmul(%0, %2, %1, 1)
              %a : {half} = aten::to.dtype(%3, {dtype}, False, False, None)
              %4 : {half} = aten::relu(%a)
              -> (%4)
          return (%b)
        """
    )
    value = torch.randn(SIZES).to(dtype)
    (found,) = run_graph(any_device, graph, [value])
    weight, bias, mean, var = parts
    expected = torch.nn.functional.batch_norm(value, mean, var, weight, bias).relu()
    assert found.dtype == dtype
    # One rounding, of float32 numbers that may differ in the last place.
    torch.testing.assert_close(found, expected, rtol=torch.finfo(dtype).eps, atol=1e-6)
    assert int((found != expected).sum()) <= 2


def test_results_go_where_they_are_reserved(any_device) -> None:
    """A slice of channels of something larger, whose neighbours must stay."""
    graph = parse_graph(
        "graph(%x : Float(1, 8, 4, 4)):\n"
        "  %p : Float(1, 8, 4, 4) = aten::max_pool2d(%x, [3, 3], [1, 1], [1, 1], [1, 1], False)\n"
        "  %b : Float(1, 8, 4, 4) = aten::silu(%x)\n"
        "  %c : Float(1, 16, 4, 4) = aten::cat([%p, %b], 1)\n"
        "  return (%c)\n"
    )
    value = torch.randn(1, 8, 4, 4)
    built = build_stream(Segment(graph, Returned(0)), any_device.info, ConstantStore())
    operations = [operation.label for operation in built.stream.operations if isinstance(operation, Dispatch)]
    executable = Executable(any_device, built.stream)
    (found,) = executable.run([value])
    executable.close()
    expected = torch.cat([torch.nn.functional.max_pool2d(value, 3, 1, 1), torch.nn.functional.silu(value)], 1)
    assert_close(found, expected)
    # Two kernels, and the two copies between the caller's layout and the device's.
    assert len(operations) <= 4
