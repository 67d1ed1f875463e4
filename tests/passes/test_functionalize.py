import warnings

import pytest
import torch
from pass_harness import apply, operators, optimise, program_of
from torch import nn

from mobopt import optimize_for_mobile
from mobopt.ir.types import TENSOR
from mobopt.passes.functionalize import Functionalize
from mobopt.passes.manager import Pass
from mobopt.passes.pipelines import CPU, VULKAN

HEAD = """
graph(%self : __torch__.M,
      %x : Tensor,
      %c : bool):
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  %three : int = prim::Constant[value=3]()
  %true : bool = prim::Constant[value=1]()
"""


def functional(body: str) -> tuple[str, list[str]]:
    after, notes = apply(Functionalize(), program_of(HEAD + body, attributes={"kept": (TENSOR, torch.zeros(3))}))
    return after, [note.removeprefix("functionalize: ") for note in notes]


def test_later_readers_read_the_new_value() -> None:
    body = """  %a : Tensor = aten::neg(%x)
  %b : Tensor = aten::relu_(%a)
  %d : Tensor = aten::add_(%b, %x, %one)
  %e : Tensor = aten::mul(%a, %d)
  return (%e)"""
    after, notes = functional(body)
    assert after.splitlines()[1:] == [
        "%b : Tensor = aten::relu(%a)",
        "%d : Tensor = aten::add(%b, %x, %one)",
        "%e : Tensor = aten::mul(%d, %d)",
        "return (%e)",
    ]
    assert notes == ["aten::relu_ %b made functional", "aten::add_ %d made functional"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "  %b : Tensor = aten::relu_(%x)\n  return (%b)",
            "what it writes to, %x, may be an input, a weight or an attribute of the model",
        ),
        (
            """  %a : Tensor = aten::neg(%x)
  %v : Tensor = aten::select(%a, %zero, %zero)
  %b : Tensor = aten::relu_(%v)
  return (%a)""",
            "%a may be the same memory, and is read afterwards",
        ),
        (
            """  %a : Tensor = aten::neg(%x)
  %v : Tensor = aten::select(%a, %zero, %zero)
  %b : Tensor = aten::relu_(%a)
  return (%v)""",
            "%v may be the same memory, and is read afterwards",
        ),
        (
            """  %a : Tensor = aten::neg(%x)
  %l : Tensor[] = aten::unsafe_chunk(%a, %three, %one)
  %i : Tensor, %f : Tensor, %g : Tensor = prim::ListUnpack(%l)
  %b : Tensor = aten::sigmoid_(%i)
  %y : Tensor = aten::mul(%a, %f)
  return (%y)""",
            "%a may be the same memory, and is read afterwards",
        ),
        (
            """  %a : Tensor = aten::neg(%x)
  %l : Tensor[] = aten::unsafe_chunk(%a, %three, %one)
  %i : Tensor, %f : Tensor, %g : Tensor = prim::ListUnpack(%l)
  %v : Tensor = aten::slice(%a, %zero, %zero, %three, %one)
  %b : Tensor = aten::sigmoid_(%i)
  %y : Tensor = aten::mul(%v, %f)
  return (%y)""",
            "%v may be the same memory, and is read afterwards",
        ),
        (
            """  %a : Tensor = aten::neg(%x)
  %r : Tensor = prim::Loop(%three, %true, %x)
    block0(%i : int, %p : Tensor):
      %v : Tensor = aten::select(%a, %zero, %zero)
      %b : Tensor = aten::relu_(%v)
      -> (%true, %b)
  return (%r)""",
            "%a may be the same memory, and is read afterwards",
        ),
        (
            """  %a : Tensor = aten::neg(%x)
  %v : Tensor = aten::select(%a, %zero, %zero)
  %w : Tensor = aten::select(%a, %zero, %one)
   = prim::If(%c)
    block0():
      %b : Tensor = aten::relu_(%v)
      -> ()
    block1():
      -> ()
  return (%w)""",
            "%v is made in an outer block",
        ),
        (
            """  %k : Tensor = prim::GetAttr[name="kept"](%self)
  %v : Tensor = aten::select(%k, %zero, %zero)
  %b : Tensor = aten::relu_(%v)
  return (%b)""",
            "what it writes to, %v, may be an input, a weight or an attribute of the model",
        ),
        (
            """  %a : Tensor = aten::neg(%x)
  %l : Tensor[] = prim::ListConstruct(%a)
  %b : Tensor = aten::relu_(%a)
  %r : Tensor = aten::cat(%l, %zero)
  return (%r)""",
            "%l may be the same memory, and is read afterwards",
        ),
        (
            """  %a : Tensor = aten::neg(%x)
   = prim::If(%c)
    block0():
      %b : Tensor = aten::relu_(%a)
      -> ()
    block1():
      -> ()
  return (%a)""",
            "%a is made in an outer block",
        ),
        (
            """  %a : Tensor = aten::neg(%x)
  %r : Tensor = prim::Loop(%three, %true, %a)
    block0(%i : int, %p : Tensor):
      %b : Tensor = aten::relu_(%p)
      -> (%true, %b)
  %s : Tensor = aten::add(%r, %a, %one)
  return (%s)""",
            "%a may be the same memory, and is read afterwards",
        ),
        ("  %a : Tensor = aten::neg(%x)\n  %b : Tensor = aten::zero_(%a)\n  return (%b)", None),
    ],
)
def test_what_can_be_seen_under_another_name_stays_in_place(body: str, reason: str | None) -> None:
    after, notes = functional(body)
    assert "_(%" in after
    assert notes[-1].endswith(f"stays in place: {reason or 'PyTorch 1.13 has no functional form of it'}")


def test_an_operand_that_would_widen_the_result_keeps_it_in_place() -> None:
    text = """
    graph(%self : __torch__.M,
          %x : Tensor):
      %d : Tensor = prim::Constant[value=<Tensor>]()
      %a : Tensor = aten::neg(%x)
      %b : Tensor = aten::mul_(%a, %d)
      return (%b)
    """
    _, notes = apply(Functionalize(), program_of(text, {"d": torch.ones(3, dtype=torch.float64)}))
    assert notes[0].endswith("stays in place: its functional form gives float64")


@pytest.mark.parametrize("line", ["aten::lt_(%a, %zero)", "aten::logical_not_(%a)", "aten::eq_(%a, %a)"])
def test_comparisons_in_place_give_no_bool(line: str) -> None:
    after, notes = functional(f"  %a : Tensor = aten::neg(%x)\n  %b : Tensor = {line}\n  return (%b)")
    assert line.partition("(")[0] in after
    assert notes[-1].endswith("stays in place: its functional form gives bool")


class Scales(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        z.mul_(y)
        z.add_(y.sum())
        return z


_PAIRS = [
    (torch.bfloat16, torch.float32),
    (torch.int32, torch.int64),
    (torch.float32, torch.float16),
    (torch.float32, torch.int64),
]


@pytest.mark.filterwarnings("ignore:no inputs are known")
@pytest.mark.parametrize("runtime", ["mobopt", "2.6"])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("dtypes", _PAIRS)
def test_what_is_written_to_keeps_its_dtype(
    dtypes: tuple[torch.dtype, torch.dtype], is_known: bool, runtime: str
) -> None:
    """Phones' files are made as if all were float32 where nothing is known, as PyTorch's own are."""
    x, y = (torch.arange(5).to(dtype) for dtype in dtypes)
    examples = [x, y] if is_known else None
    if runtime != "mobopt" and not is_known and dtypes[0] != torch.float32:
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no inputs are known")
        module = optimize_for_mobile(
            torch.jit.script(Scales()), backend="vulkan", runtime=runtime, example_inputs=examples
        )
    expected = Scales()(x, y)
    found = module(x, y)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)
    text = str(module.graph)
    is_functional = "aten::mul_" not in text
    assert is_functional == (dtypes[0] == torch.float32 and (is_known or runtime != "mobopt"))


def test_views_taken_afterwards_are_no_obstacle() -> None:
    body = """  %a : Tensor = aten::neg(%x)
  %b : Tensor = aten::relu_(%a)
  %v : Tensor = aten::select(%a, %zero, %zero)
  return (%v)"""
    after, _ = functional(body)
    assert "aten::select(%b" in after


def test_gates_of_a_cell_become_functional() -> None:
    body = """  %a : Tensor = aten::neg(%x)
  %l : Tensor[] = aten::unsafe_chunk(%a, %three, %one)
  %i : Tensor, %f : Tensor, %g : Tensor = prim::ListUnpack(%l)
  %i.1 : Tensor = aten::sigmoid_(%i)
  %g.1 : Tensor = aten::tanh_(%g)
  %f.1 : Tensor = aten::add_(%f, %i, %one)
  %size : int = aten::size(%a, %one)
  %y : Tensor = aten::mul(%g, %f.1)
  %r : (Tensor, int) = prim::TupleConstruct(%y, %size)
  return (%r)"""
    after, notes = functional(body)
    assert after.splitlines()[3:] == [
        "%i.1 : Tensor = aten::sigmoid(%i)",
        "%g.1 : Tensor = aten::tanh(%g)",
        "%f.1 : Tensor = aten::add(%f, %i.1, %one)",
        "%size : int = aten::size(%a, %one)",
        "%y : Tensor = aten::mul(%g.1, %f.1)",
        "%r : (Tensor, int) = prim::TupleConstruct(%y, %size)",
        "return (%r)",
    ]
    assert len(notes) == 3


def test_other_parts_may_be_taken_afterwards() -> None:
    body = """  %a : Tensor = aten::neg(%x)
  %v : Tensor = aten::select(%a, %zero, %zero)
  %b : Tensor = aten::relu_(%v)
  %w : Tensor = aten::select(%a, %zero, %one)
  %y : Tensor = aten::add(%v, %w, %one)
  return (%y)"""
    after, _ = functional(body)
    assert after.splitlines()[2:5] == [
        "%b : Tensor = aten::relu(%v)",
        "%w : Tensor = aten::select(%a, %zero, %one)",
        "%y : Tensor = aten::add(%b, %w, %one)",
    ]


def test_a_part_of_what_each_round_makes_becomes_functional() -> None:
    body = """  %r : Tensor = prim::Loop(%three, %true, %x)
    block0(%i : int, %p : Tensor):
      %a : Tensor = aten::neg(%p)
      %v : Tensor = aten::select(%a, %zero, %zero)
      %b : Tensor = aten::relu_(%v)
      -> (%true, %v)
  return (%r)"""
    after, _ = functional(body)
    assert after.splitlines()[4:6] == ["    %b : Tensor = aten::relu(%v)", "    -> (%true, %b)"]


class InPlace(nn.Module):
    """In-place operators on views, in loops and on weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x * 2
        row = y[0]
        row.add_(1)
        z = y.clone()
        for _ in range(3):
            z.mul_(0.5)
            z = z.relu_().sub_(self.weight)
        y[:, 1:3] = 7.0
        view = z.view(-1)
        z.clamp_(min=-0.5)
        return y, z, view


@pytest.mark.parametrize("how", ["script", "trace"])
def test_results_are_those_of_eager(how: str) -> None:
    optimise(InPlace(), [torch.rand(3, 4) - 0.5], [Functionalize()], how)


def copied(body: str) -> tuple[list[str], list[str]]:
    """With inputs that a transfer copies."""
    after, notes = apply(Functionalize(copies_inputs=True), program_of(HEAD + body))
    return after.splitlines(), [note.removeprefix("functionalize: ") for note in notes]


def test_inputs_that_are_copied_need_no_writing() -> None:
    after, notes = copied("""  %b : Tensor = aten::relu_(%x)
  %d : Tensor = aten::mul(%x, %b)
  return (%d)""")
    assert after == ["%b : Tensor = aten::relu(%x)", "%d : Tensor = aten::mul(%b, %b)", "return (%d)"]
    assert notes == [
        "%x is changed in place: its copy on the GPU is, the caller's is not",
        "aten::relu_ %b made functional",
    ]


def test_a_copy_that_is_still_written_to_stays() -> None:
    after, _ = copied("""  %v : Tensor = aten::select(%x, %zero, %zero)
  %b : Tensor = aten::relu_(%v)
  return (%x)""")
    assert after[0].startswith("%x.copy : Tensor = aten::clone(%x, ") and after[-1] == "return (%x.copy)"


def test_inputs_that_nobody_writes_to_are_not_copied() -> None:
    after, notes = copied("""  %a : Tensor = aten::neg(%x)
  %b : Tensor = aten::relu_(%a)
  return (%b)""")
    assert after == ["%a : Tensor = aten::neg(%x)", "%b : Tensor = aten::relu(%a)", "return (%b)"]
    assert notes == ["aten::relu_ %b made functional"]


class Cupboard(nn.Module):
    """Changes what it takes out of a dictionary, in the ways that there are, and reads it there again."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        held: dict[str, torch.Tensor] = {"a": x * 2, "b": x * 3}
        other = x * 5
        held["a"].add_(1.0)
        held.get("c", other).add_(7.0)
        taken = held["b"]
        first = held.pop("b").mul_(2.0)
        return held["a"] + other, taken, first


@pytest.mark.parametrize("pipeline", [(Functionalize(),), VULKAN, CPU])
def test_what_a_dictionary_holds_is_changed_there(pipeline: tuple[Pass, ...]) -> None:
    optimise(Cupboard(), [torch.randn(2, 3)], pipeline)


class Features(nn.Module):
    """Puts tensors into a dictionary after it has changed them, as torchvision's backbones do."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        held: dict[str, torch.Tensor] = {}
        y = x * 2
        y.add_(1.0)
        held["a"] = torch.relu_(y)
        z = held["a"] * 3
        held["b"] = z.add_(2.0)
        return held


def test_what_is_put_into_a_dictionary_later_can_be_functional() -> None:
    program, _ = optimise(Features(), [torch.randn(2, 3)], (Functionalize(),))
    left = [op for op in operators(program) if op in ("aten::add_", "aten::relu_")]
    assert left == ["aten::add_"], "the second time, something is in the dictionary"


class Rounds(nn.Module):
    """A loop puts what it changed into a list; the list is empty in the first round only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held: list[torch.Tensor] = []
        y = x * 2
        for _ in range(3):
            y.add_(1.0)
            held.append(y)
        return held[0] + held[2] * 10


def test_a_list_that_a_loop_fills_is_not_empty() -> None:
    optimise(Rounds(), [torch.randn(2, 3)], (Functionalize(),))
    optimise(Rounds(), [torch.randn(2, 3)], VULKAN)


class _WrittenBySigns(nn.Module):
    def forward(self, x: torch.Tensor, bits: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        y, few, yes = x + 1.0, bits + 1, mask.clone()
        y **= 2
        few |= 8
        few &= bits
        few ^= 5
        few <<= 2
        few >>= 1
        yes &= x > 0.5
        yes |= mask
        return [y, few, yes, y.pow_(x), y.floor_divide_(2.0)]


@pytest.mark.parametrize("target", [{"backend": "vulkan", "runtime": "mobopt"}, {"backend": "cpu"}])
@pytest.mark.parametrize("has_examples", [False, True])
@pytest.mark.parametrize("how", ["script", "trace"])
def test_signs_that_write(how: str, has_examples: bool, target: dict[str, str]) -> None:
    """Their functional forms are called otherwise, or are another overload's."""
    given = torch.rand(3, 5), torch.randint(0, 9, (7,)), torch.rand(3, 5) < 0.5
    model = _WrittenBySigns()
    made = torch.jit.script(model) if how == "script" else torch.jit.trace(model, given, check_trace=False)
    optimized = optimize_for_mobile(made, example_inputs=list(given) if has_examples else None, **target)
    for found, expected in zip(optimized(*given), model(*given), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)


class _Truth(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x, x)
        x.masked_fill_(x > 0, 4)
        return z.logical_not_()


@pytest.mark.parametrize("how", ["script", "export"])
def test_truth_written_to_complex_numbers_is_complex(how: str) -> None:
    x = torch.tensor([[0.0, 1.0, -2.0]])
    model = torch.jit.script(_Truth()) if how == "script" else _Truth()
    optimized = optimize_for_mobile(model, backend="vulkan", runtime="mobopt", example_inputs=[x.clone()])
    found = optimized(x.clone())
    assert found.dtype == torch.complex64 and torch.equal(found, _Truth()(x.clone()))


class _Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1).mul_(self.scale)


def test_weights_of_another_dtype_leave_what_is_written_its_own() -> None:
    x = torch.rand(3, 5).half()
    optimized = optimize_for_mobile(torch.jit.script(_Halves()), backend="vulkan", runtime="mobopt")
    assert optimized(x).dtype == torch.float16


class _Running(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.cumsum_(0)
        return y.floor_divide(2)


@pytest.mark.parametrize("has_examples", [False, True])
@pytest.mark.filterwarnings("ignore:no inputs are known")
@pytest.mark.parametrize("runtime", ["mobopt", "2.6"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.float32])
def test_running_sums_in_place_keep_the_dtype(dtype: torch.dtype, runtime: str, has_examples: bool) -> None:
    """Their functional form adds integers up as int64."""
    x = torch.arange(7).to(dtype)
    given = [x] if has_examples else None
    optimized = optimize_for_mobile(
        torch.jit.script(_Running()), backend="vulkan", runtime=runtime, example_inputs=given
    )
    assert optimized(x).dtype == dtype and torch.equal(optimized(x), _Running()(x))
