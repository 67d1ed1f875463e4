"""A Segment computes what the model computes, and holds nothing but functional nodes on tensors."""

from typing import Optional

import pytest
import torch
from torch import nn

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program, Value, named_constants, parse_graph, print_graph, verify_graph
from mobopt.ir.nests import leaves_of, map_leaves
from mobopt.runtimes import recorder
from mobopt.runtimes.cpu.kernels import is_mutating, kernel
from mobopt.runtimes.results import Results
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.specialize import go_on, specialize


def program_of(module: nn.Module) -> Program:
    return program_from_script_module(torch.jit.script(module))


def evaluate(segment: Segment, inputs: list[torch.Tensor]) -> tuple[object, list[torch.Tensor]]:
    """Run a Segment with torch's kernels, checking the sizes and dtypes that it promises, and that it is a sound graph
    which its text says as it is; also what it hands on."""
    verify_graph(segment.graph)
    text = print_graph(segment.graph, sources=True)
    assert print_graph(parse_graph(text, named_constants(segment.graph)), sources=True) == text
    values = dict(zip(segment.inputs, inputs, strict=True))

    def value_of(value: Value) -> torch.Tensor:
        return value.constant if value.is_constant else values[value]

    for call in segment.graph.block.nodes:
        assert not is_mutating(call.qualified_op)
        results = list(leaves_of(kernel(call.qualified_op)(*map_leaves(call.args, Value, value_of)), torch.Tensor))
        for ref, result in zip(call.outputs, results, strict=True):
            assert (ref.sizes, ref.dtype) == (tuple(result.shape), result.dtype)
            values[ref] = result
    of_call = segment.inputs[segment.taken :]
    computed = {
        value: values[value] for value in segment.graph.outputs if not value.is_constant and value not in of_call
    }
    carried = [value_of(segment.value_of(leaf)) for leaf in segment.carried]
    return Results(segment, computed, inputs).deliver()[0], carried


def run(module: nn.Module, *args: object) -> tuple[object, list[Segment]]:
    """The result by way of Segments, one more for each look at elements, and the Segments."""
    program = program_of(module)
    inputs = list(leaves_of(list(args), torch.Tensor))
    segments, carried, values = [specialize(program, "forward", args)], [], []
    while True:
        segment = segments[-1]
        hosted = [values[ref.number] for ref in segment.hosted]
        result, passed_on = evaluate(segment, [*carried, *hosted, *inputs])
        if segment.following is None:
            return result, segments
        carried = passed_on
        answers, numbers = segment.handed_on(values, result)
        segments.append(go_on(program, segment.following, answers, numbers))
        leaf = segment.following.decisions.add(segments[-1].tape)
        found, values = segment.following.decisions.find([*answers, *numbers])
        assert found is leaf


def operators(segment: Segment) -> list[str]:
    return [node.qualified_op for node in segment.graph.block.nodes]


class InPlace(nn.Module):
    """Writes through views, and reads before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(6.0).view(2, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x.clone()
        before = y.sum()
        row = y[1]
        flat = y.view(-1)
        row.add_(1.0)
        flat[0] = 7.0
        y[:, 1:].mul_(self.table[:, 1:])
        y.transpose_(0, 1)
        y[2, 0] = 9.0
        part = y[1:]
        part.relu_()
        z = torch.zeros_like(y)
        z.copy_(flat.view(2, 3).t())
        z[0].fill_(3.0)
        return y, row * before, z


def test_in_place_operators_become_functional():
    x = torch.randn(2, 3)
    kept = x.clone()
    found, _ = run(InPlace(), x)
    for ours, theirs in zip(found, InPlace()(x), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.equal(x, kept)


class WritesToParts(nn.Module):
    """Slices and selections, of each other too, some of which are the whole tensor."""

    def __init__(self, is_cut_alone: bool) -> None:
        super().__init__()
        self.is_cut_alone = is_cut_alone

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, :].mul_(2.0)
        y[1] = 3.0
        y[1:, 2:5:2] += x[1:, :2]
        y[:2][1:][0, -1] = y[0, 0]
        if not self.is_cut_alone:
            y.t()[1:3].relu_()
        return y


@pytest.mark.parametrize("is_cut_alone", [True, False])
def test_parts_are_written_without_tables_of_places(is_cut_alone: bool) -> None:
    x = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    found, (segment,) = run(WritesToParts(is_cut_alone), x)
    assert torch.equal(found, WritesToParts(is_cut_alone)(x))
    assert ("aten::index_select" not in operators(segment)) == is_cut_alone
    assert operators(segment).count("aten::select_scatter") == 3


class ChangesInputAndWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        self.total += 1.0
        return x + self.total


def test_inputs_and_weights_are_never_changed():
    program = program_of(ChangesInputAndWeight())
    x = torch.ones(3)
    for _ in range(2):
        assert torch.equal(evaluate(specialize(program, "forward", [x]), [x])[0], torch.full((3,), 3.0))
    assert torch.equal(x, torch.ones(3))


class Unrolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, times: int, extra: Optional[torch.Tensor]) -> torch.Tensor:  # noqa: UP045
        for _ in range(times):
            for layer in self.layers:
                x = layer(x)
        if extra is not None:
            x = x + extra
        unused = torch.relu(x)  # noqa: F841
        if x.size(0) > 2:
            return x.sum()
        return x


def test_loops_branches_and_optionals_are_gone():
    module, x = Unrolled(), torch.randn(2, 4)
    found, (segment,) = run(module, x, 2, None)
    assert operators(segment) == ["aten::linear"] * 6
    torch.testing.assert_close(found, module(x, 2, None))
    found, (segment,) = run(module, torch.ones(3, 4), 0, torch.ones(4))
    assert operators(segment) == ["aten::add.Tensor", "aten::sum"]


class Constants(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = torch.arange(x.size(1)).float()[None] * 0.5
        noise = torch.rand_like(grid) * 0.0
        return x + torch.exp(grid) + noise + torch.zeros_like(x)


def test_what_follows_from_constants_is_folded_but_random_numbers_are_not():
    x = torch.randn(2, 5)
    found, (segment,) = run(Constants(), x)
    torch.testing.assert_close(found, x + torch.exp(torch.arange(5.0) * 0.5))
    assert operators(segment) == ["aten::rand_like", "aten::mul.Scalar", *["aten::add.Tensor"] * 3]


class Looks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2.0
        while bool(y.sum() < 50.0):
            y = y + 10.0
        if bool((y > 20.0).any()):
            y = y - 1.0
        return y[y > 15.0]


@pytest.mark.parametrize("seed", range(4))
def test_looks_at_elements(seed):
    x = torch.randn(4, generator=torch.Generator().manual_seed(seed))
    found, segments = run(Looks(), x)
    assert len(segments) > 3
    torch.testing.assert_close(found, Looks()(x))


class Nest(nn.Module):
    def forward(
        self, x: torch.Tensor, pair: tuple[torch.Tensor, list[torch.Tensor]]
    ) -> tuple[torch.Tensor, dict[str, list[torch.Tensor]], int, torch.Tensor]:
        return x, {"a": [pair[0], x + pair[1][0]]}, x.size(0), x[:0]


def test_nests_in_and_out():
    x, y, z = torch.randn(2), torch.randn(3), torch.randn(2)
    segment = specialize(program_of(Nest()), "forward", [x, (y, [z])])
    found, _ = evaluate(segment, [x, y, z])
    assert found[0] is x and found[1]["a"][0] is y and found[2] == 2 and found[3].shape == (0,)
    assert torch.equal(found[1]["a"][1], x + z)


def test_shape_errors_name_operator_and_shapes():
    with pytest.raises(InputError, match=r"aten::conv2d.*float32\[1, 4, 8, 8\]"):
        specialize(program_of(nn.Conv2d(3, 8, 3)), "forward", [torch.zeros(1, 4, 8, 8)])


def test_an_alias_of_a_constant_keeps_its_values():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight.t()
            changed = weight.clone()
            changed[0].zero_()
            return x @ weight + x @ changed

    module, x = Tied(), torch.randn(2, 4)
    found, (segment,) = run(module, x)
    assert operators(segment) == ["aten::matmul", "aten::matmul", "aten::add.Tensor"]
    torch.testing.assert_close(found, module(x))


@pytest.mark.parametrize("sizes, wrap", [((5, 7), False), ((7, 3), True), ((4, 4, 4), False)])
def test_diagonals_are_filled(sizes, wrap):
    """As ProphetNet does to its masks."""

    class Diagonal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wrap = wrap

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            y.fill_diagonal_(3.5, self.wrap)
            return y

    x = torch.randn(sizes)
    found, (segment,) = run(Diagonal(), x)
    assert operators(segment) == ["aten::mul.Scalar", "aten::masked_fill.Scalar"]
    torch.testing.assert_close(found, Diagonal()(x))


def test_traced_arithmetic_on_sizes_is_gone():
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(x.size(0) // 2, -1) * 2.0

    program = program_from_script_module(torch.jit.trace(Halves(), torch.zeros(4, 4)))
    segment = specialize(program, "forward", [torch.zeros(6, 2)])
    assert operators(segment) == ["aten::view", "aten::mul.Scalar"]
    assert segment.graph.outputs[0].sizes == (3, 4)


class Layers(nn.Module):
    """One of each kind of layer that models are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6(), nn.MaxPool2d(2))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.linear = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 5), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.interpolate(torch.cat([self.convolution(x)] * 2, 1), scale_factor=2.0)[:, 4:12]
        x = x.flatten(2).transpose(1, 2).contiguous()
        return self.linear(x + self.attention(x, x, x, need_weights=False)[0]).softmax(-1).mean(1)


def test_rules_tell_what_layers_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no meta kernel is asked whose first use imports hundreds of modules; views are cheap."""
    asked = []
    monkeypatch.setattr(recorder, "kernel", lambda op: (asked.append(op), kernel(op))[1])
    torch.manual_seed(0)
    module, x = Layers().eval(), torch.rand(2, 3, 6, 8)
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            program = program_from_script_module(torch.jit.trace(module, x, check_trace=False))
            expected = module(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    segment = specialize(program, "forward", [x])
    torch.testing.assert_close(evaluate(segment, [x])[0], expected)
    told = [
        "_convolution",
        "batch_norm",
        "hardtanh",
        "max_pool2d",
        "cat",
        "layer_norm",
        "gelu",
        "softmax.int",
        "mean.dim",
    ]
    told += ["upsample_nearest2d.vec", "scaled_dot_product_attention"]
    names = {f"aten::{name}" for name in told}
    assert names <= set(operators(segment)) and names.isdisjoint(asked)
