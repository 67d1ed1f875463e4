"""Vulkan's packed operators by release: recurrent layers, normalisations, conv1d."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from golden_comparison import (
    NETS,
    assert_equal_contexts,
    assert_equal_states,
    contexts,
    genuine,
    ours,
    tensor_operators,
)
from pass_harness import apply, expect, operators, optimise, program_of, randomize_norms
from torch import Tensor, nn

from mobopt.errors import InputError
from mobopt.ir import Program
from mobopt.ops.contexts import (
    BatchNormPackedContext,
    Conv1dPackedContext,
    GruPackedContext,
    LayernormPackedContext,
    LstmPackedContext,
)
from mobopt.options import RUNTIMES, Settings
from mobopt.passes.insert_prepack import InsertPrepack
from mobopt.passes.pipelines import pipeline_for
from mobopt.runtimes.cpu import Interpreter

HEAD = """
graph(%self : __torch__.M,
      %x : Tensor,
      %h : Tensor,
      %c : Tensor):
  %w : Tensor = prim::Constant[value=<Tensor>]()
  %row : Tensor = prim::Constant[value=<Tensor>]()
  %wide : Tensor = prim::Constant[value=<Tensor>]()
  %params : Tensor[] = prim::Constant[value=<Tensors>]()
  %gru : Tensor[] = prim::Constant[value=<Tensors>]()
  %none : NoneType = prim::Constant()
  %no : bool = prim::Constant[value=0]()
  %yes : bool = prim::Constant[value=1]()
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %zero : float = prim::Constant[value=0.0]()
  %rate : float = prim::Constant[value=0.3]()
  %eps : float = prim::Constant[value=1e-05]()
  %ones : int[] = prim::Constant[value=[1]]()
  %five : int[] = prim::Constant[value=[5]]()
"""


def recurrent_weights(gates: int, layers: int = 1) -> list[Tensor]:
    """w_ih, w_hh, b_ih, b_hh of layers of 5 inputs and 5 outputs."""
    sizes = [(gates * 5, 5), (gates * 5, 5), (gates * 5,), (gates * 5,)]
    return [torch.rand(size) - 0.5 for _ in range(layers) for size in sizes]


CONSTANTS: dict[str, Any] = {
    "w": torch.rand(7, 5, 3),
    "row": torch.rand(5) + 0.5,
    "wide": torch.rand(5, dtype=torch.float64),
    "params": recurrent_weights(4),
    "gru": recurrent_weights(3),
}
LSTM = LstmPackedContext.qualified_name
FIRST = {
    "gru": ("1.13", GruPackedContext),
    "lstm": ("1.13", LstmPackedContext),
    "batchnorm": ("2.0", BatchNormPackedContext),
    "layernorm": ("2.2", LayernormPackedContext),
    "conv1d": ("2.6", Conv1dPackedContext),
}
LINES = {
    "gru": "  %y : Tensor, %z : Tensor = aten::gru(%x, %h, %gru, %yes, %one, %zero, %no, %no, %yes)",
    "lstm": "  %l : Tensor[] = prim::ListConstruct(%h, %c)\n"
    "  %y : Tensor, %z : Tensor, %v : Tensor = aten::lstm(%x, %l, %params, %yes, %one, %zero, %no, %no, %yes)",
    "batchnorm": "  %y : Tensor = aten::batch_norm(%x, %none, %row, %row, %row, %no, %rate, %eps, %yes)",
    "layernorm": "  %y : Tensor = aten::layer_norm(%x, %five, %none, %row, %eps, %yes)",
    "conv1d": "  %y : Tensor = aten::conv1d(%x, %w, %none, %ones, %ones, %ones, %one)",
}
INPUTS = {
    "gru": [(1, 7, 5), (1, 1, 5), (1,)],
    "lstm": [(1, 7, 5), (1, 1, 5), (1, 1, 5)],
    "batchnorm": [(2, 5, 3, 7), (1,), (1,)],
    "layernorm": [(2, 3, 5), (1,), (1,)],
    "conv1d": [(2, 5, 11), (1,), (1,)],
}


def program(line: str) -> Program:
    """A program of these lines, which returns %y."""
    made = program_of(f"{HEAD}{line}\n  return (%y)", CONSTANTS)
    for node in made.methods["forward"].walk():
        if node.op in ("aten::gru", "aten::lstm"):
            node.overload = "input"
    return made


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("kind", list(FIRST))
def test_each_release_gets_its_operators(kind: str, runtime: str) -> None:
    source = program(LINES[kind])
    values = [torch.randn(size) for size in INPUTS[kind]]
    expected = Interpreter(source).run("forward", values)
    _, notes = apply(InsertPrepack(runtime=runtime), source)
    since, context = FIRST[kind]
    found = [op for op in operators(source) if not op.startswith("prim::")]
    if RUNTIMES.index(runtime) >= RUNTIMES.index(since):
        assert found == [f"vulkan_prepack::create_{kind}_context", f"vulkan_prepack::run_{kind}_context"]
        create = source.methods["forward"].block.nodes[-2]
        assert str(create.output.type) == context.qualified_name
    else:
        assert notes[0].endswith(f"not packed: the runtime of {runtime} has no operator for it, that of {since} has")
        assert found[0].startswith("aten::")
    torch.testing.assert_close(Interpreter(source).run("forward", values), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("runtime", ["2.10", "10.0", "2.6.1"])
def test_releases_are_compared_by_number(runtime: str) -> None:
    source = program(LINES["conv1d"])
    apply(InsertPrepack(runtime=runtime), source)
    assert operators(source)[-1] == "vulkan_prepack::run_conv1d_context"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "cuda"}, "backend is 'cuda'; layers are packed for vulkan, metal, xnnpack"),
        ({"runtime": "latest"}, "runtime is 'latest'; give a release of PyTorch, such as 2.1"),
        ({"runtime": ""}, "runtime is ''; give a release of PyTorch"),
    ],
)
def test_options_are_checked(options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        InsertPrepack(**options)


def test_lstm_takes_the_two_states_of_the_list() -> None:
    after, _ = apply(InsertPrepack(), program(LINES["lstm"]))
    assert after == expect(
        f"""
        %l : Tensor[] = prim::ListConstruct(%h, %c)
        %0 : {LSTM} = vulkan_prepack::create_lstm_context(%params, %yes, %one, %zero, %no, %no, %yes)
        %y.1 : Tensor, %z.1 : Tensor, %v.1 : Tensor = vulkan_prepack::run_lstm_context(%x, %h, %c, %0)
        return (%y.1)
        """
    )


def test_lstm_unpacks_a_list_of_elsewhere() -> None:
    text = LINES["lstm"].replace("prim::ListConstruct(%h, %c)", "aten::unbind(%h, %rank)")
    source = program_of(f"{HEAD}  %rank : int = prim::Constant[value=0]()\n{text}\n  return (%y)", CONSTANTS)
    for node in source.methods["forward"].walk():
        node.overload = "int" if node.op == "aten::unbind" else "input"
    x, states = torch.randn(1, 7, 5), torch.randn(2, 1, 1, 5)
    expected = Interpreter(source).run("forward", [x, states, x])
    apply(InsertPrepack(), source)
    assert operators(source) == [
        "aten::unbind",
        "prim::ListUnpack",
        "vulkan_prepack::create_lstm_context",
        "vulkan_prepack::run_lstm_context",
    ]
    assert torch.equal(Interpreter(source).run("forward", [x, states, x]), expected)


def test_dropout_of_a_recurrent_layer_is_nothing_outside_training() -> None:
    source = program(LINES["gru"].replace("%one, %zero", "%one, %rate"))
    apply(InsertPrepack(), source)
    assert [value.constant for value in source.methods["forward"].block.nodes[0].inputs[1:]] == [
        True,
        1,
        0.0,
        False,
        False,
        True,
    ]


def test_missing_weights_and_biases_are_filled_in() -> None:
    source = program(LINES["layernorm"].replace("%none, %row", "%none, %none"))
    apply(InsertPrepack(runtime="2.2"), source)
    weight, bias, _ = source.methods["forward"].block.nodes[0].inputs
    assert torch.equal(weight.constant, torch.ones(5))
    assert torch.equal(bias.constant, torch.zeros(5))
    source = program(LINES["conv1d"])
    apply(InsertPrepack(runtime="2.6"), source)
    assert torch.equal(source.methods["forward"].block.nodes[0].inputs[1].constant, torch.zeros(7))


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("gru", ("%gru, %yes", "%gru, %no"), "it has no biases"),
        ("gru", ("%zero, %no, %no", "%zero, %yes, %no"), "it is in training"),
        ("gru", ("%no, %no, %yes", "%no, %yes, %yes"), "it is bidirectional"),
        ("lstm", ("%no, %no, %yes", "%no, %no, %no"), "its batch is not the first dimension"),
        ("lstm", ("%yes, %one", "%yes, %two"), "it has 4 weights where 2 layers have 4 each (a projection, perhaps)"),
        ("lstm", ("(%h, %c)", "(%h, %c, %c)"), "it has 3 initial states where 2 belong"),
        ("gru", ("%gru, %yes", "%l, %yes"), "its weights or settings are not constant"),
        ("batchnorm", ("%no, %rate", "%yes, %rate"), "it takes the statistics of the batch"),
        ("batchnorm", ("%row, %row, %no", "%none, %none, %no"), "it has no running statistics"),
        ("batchnorm", ("%none, %row", "%x, %row"), "its weight, bias, statistics or settings are not constant"),
        ("batchnorm", ("%none, %row", "%wide, %row"), "its weight is float64, and contexts hold float32"),
        ("layernorm", ("%none, %row", "%x, %row"), "its weight, bias or eps is not constant"),
        ("layernorm", ("%five", "%s"), "it has no weight, and its shape is not constant"),
        ("conv1d", ("%w, %none", "%w, %x"), "its weight or bias is not constant"),
    ],
)
def test_layers_that_stay(kind: str, change: tuple[str, str], reason: str) -> None:
    extra = "  %l : Tensor[] = prim::ListConstruct(%x, %x)\n" if "%l" in change[1] else ""
    extra += "  %s : int[] = aten::size(%x)\n" if "%s" in change[1] else ""
    after, notes = apply(InsertPrepack(runtime="2.6"), program(extra + LINES[kind].replace(*change)))
    assert "vulkan_prepack" not in after
    assert [note.partition(" not packed: ")[2] for note in notes] == [reason]


class Recurrent(nn.Module):
    """A recurrent layer from given states, over (1, time, 5)."""

    def __init__(self, kind: type[nn.RNNBase], layers: int) -> None:
        super().__init__()
        self.layer = kind(5, 7, layers, batch_first=True, dropout=0.5 if layers > 1 else 0.0)


class Gru(Recurrent):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y, last = self.layer(x, h)
        return torch.relu(y), last


class Lstm(Recurrent):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (hidden, cell) = self.layer(x, (h, h * 0.5))
        return y, hidden, cell


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("kind", "layer"), [(Gru, nn.GRU), (Lstm, nn.LSTM)])
def test_numbers_of_recurrent_layers(kind: type[Recurrent], layer: type[nn.RNNBase], layers: int, how: str) -> None:
    name = "gru" if layer is nn.GRU else "lstm"
    inputs = [torch.randn(1, 11, 5), torch.randn(layers, 1, 7)]
    pipeline = pipeline_for(Settings("vulkan", legalize="off"))
    found, _ = optimise(kind(layer, layers), inputs, pipeline, how)
    assert f"vulkan_prepack::run_{name}_context" in operators(found)
    (context,) = contexts(found)
    assert isinstance(context, GruPackedContext)
    assert (len(context.params), context.num_layers, context.dropout) == (4 * layers, layers, 0.0)


class Norms(nn.Module):
    """Normalisations that no convolution takes in."""

    def __init__(self, affine: bool) -> None:
        super().__init__()
        self.batch = nn.BatchNorm2d(6, affine=affine)
        self.layer = nn.LayerNorm([5, 7], elementwise_affine=affine)
        self.row = nn.Conv1d(6, 3, 3, groups=3, bias=affine)

    def forward(self, x: Tensor) -> Tensor:
        return self.row(self.layer(torch.relu(self.batch(x))).flatten(2))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_numbers_of_normalisations(runtime: str, affine: bool) -> None:
    pipeline = pipeline_for(Settings("vulkan", runtime, legalize="off"))
    found, _ = optimise(randomize_norms(Norms(affine)), [torch.randn(1, 6, 5, 7)], pipeline)
    packed = [
        kind for kind in ("batchnorm", "layernorm", "conv1d") if runtime in RUNTIMES[RUNTIMES.index(FIRST[kind][0]) :]
    ]
    runs = [op for op in operators(found) if op.startswith("vulkan_prepack::")]
    assert runs == [f"vulkan_prepack::run_{kind}_context" for kind in packed]


def test_a_blocklist_leaves_the_layers() -> None:
    pipeline = pipeline_for(Settings("vulkan", "2.6", legalize="off")).without({"INSERT_FOLD_PREPACK_OPS"})
    found, _ = optimise(Norms(True), [torch.randn(1, 6, 5, 7)], pipeline)
    assert not [op for op in operators(found) if op.startswith("vulkan_prepack::")]


@pytest.mark.parametrize("net", NETS)
def test_as_genuine_builds_have_it(net: str) -> None:
    found = ours("pt1.13.1", net, Settings("vulkan", "1.13", legalize="off"))
    expected = genuine("pt1.13.1", net, "vulkan.ptl")
    assert not tensor_operators(found) - tensor_operators(expected)
    theirs = contexts(expected)
    if net == "lstm":  # genuine builds write the weights split by gate, and can't read them again
        (mine,), (split,) = contexts(found), theirs
        assert isinstance(split, LstmPackedContext)
        assert_equal_states(mine.state(), [split.layer_parameters, *split.state()[1:]])
    else:
        assert_equal_contexts(contexts(found), theirs)


@pytest.mark.parametrize(
    ("net", "file", "runtime"), [("lstm", "vulkan_fixedstate.ptl", "2.1"), ("layernorm", "vulkan.ptl", "2.6")]
)
def test_as_genuine_newer_builds_have_it(net: str, file: str, runtime: str) -> None:
    found = ours("pt2.13.0", net, Settings("vulkan", runtime, legalize="off"))
    expected = genuine("pt2.13.0", net, file)
    assert_equal_contexts(contexts(found), contexts(expected))
    assert tensor_operators(found) == tensor_operators(expected)
