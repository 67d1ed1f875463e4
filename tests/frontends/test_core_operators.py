"""Exports after ``run_decompositions``: operators of core ATen become the layers that they came from."""

from __future__ import annotations

import copy
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from applied import Applied
from torch import Tensor, nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.frontends.exported.core_operators import recompose
from mobopt.frontends.open_source import source_of
from mobopt.ir import Program, parse_graph, print_graph
from mobopt.runtimes.cpu import Interpreter
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.program import VulkanProgram

Function = Callable[..., Any]


def seeded(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def decomposed(module: nn.Module, inputs: Sequence[Tensor], shapes: Any = None) -> torch.export.ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module.eval(), tuple(inputs), dynamic_shapes=shapes).run_decompositions()


def read(function: Function, inputs: Sequence[Tensor]) -> Program:
    """What a decomposed function is read as, which computes what the function does."""
    program = source_of(decomposed(Applied(function), inputs)).program
    expected = function(*inputs)
    torch.testing.assert_close(Interpreter(program).run("forward", list(inputs)), expected, rtol=1e-5, atol=1e-6)
    return program


def operators(program: Program) -> list[str]:
    return [node.qualified_op for node in program.methods["forward"].walk()]


WEIGHTS, MORE = seeded(6).abs() + 0.5, seeded(5).abs() + 0.5
X = (seeded(2, 6, 7, 5),)
GAINS = seeded(12).abs() + 0.5
ONE, ROW = (seeded(2, 1, 7, 5),), (seeded(5),)
WHOLE = ((X[0] * 3).int(),)
QUERIES, KEYS, VALUES = seeded(2, 4, 7, 8), seeded(2, 4, 5, 8), seeded(2, 4, 5, 3)
FEW_KEYS, FEW_VALUES = seeded(2, 2, 5, 8), seeded(2, 2, 5, 3)
MASK = seeded(7, 5)
attention = functional.scaled_dot_product_attention

LAYERS: dict[str, tuple[Function, Sequence[Tensor], str]] = {
    "layer norm": (lambda x: functional.layer_norm(x, (5,), MORE, MORE), X, "aten::layer_norm"),
    "plain layer norm": (lambda x: functional.layer_norm(x, (7, 5)), X, "aten::layer_norm"),
    "group norm": (lambda x: functional.group_norm(x, 3, WEIGHTS), X, "aten::group_norm"),
    "batch norm": (lambda x: functional.batch_norm(x, WEIGHTS, WEIGHTS, WEIGHTS, None), X, "aten::batch_norm"),
    "instance norm": (lambda x: functional.instance_norm(x, weight=WEIGHTS), X, "aten::instance_norm"),
    "softmax": (lambda x: x.softmax(1), X, "aten::softmax.int"),
    "logarithm of softmax": (lambda x: x.log_softmax(-1), X, "aten::log_softmax.int"),
    "largest of windows": (lambda x: functional.max_pool2d(x, 3, 2, 1), X, "aten::max_pool2d"),
    "largest of boxes": (lambda x: functional.max_pool3d(x, 2, 1), X, "aten::max_pool3d"),
    "adaptive means": (lambda x: functional.adaptive_avg_pool2d(x, (3, 2)), X, "aten::adaptive_avg_pool2d"),
    "adaptive means of boxes": (lambda x: functional.adaptive_avg_pool3d(x, (4, 3, 2)), X, "aten::adaptive_avg_pool3d"),
    "hardswish": (lambda x: functional.hardswish(x * 4), X, "aten::hardswish"),
    "hardsigmoid": (lambda x: functional.hardsigmoid(x * 4), X, "aten::hardsigmoid"),
    "silu": (functional.silu, X, "aten::silu"),
    "softplus": (lambda x: functional.softplus(x * 15), X, "aten::softplus"),
    "mish": (functional.mish, X, "aten::mish"),
    "one slope": (lambda x: functional.prelu(x, WEIGHTS[:1]), X, "aten::prelu"),
    "slopes of channels": (lambda x: functional.prelu(x, WEIGHTS), X, "aten::prelu"),
    "slopes of columns of a matrix": (lambda x: functional.prelu(x[0, 0], MORE), X, "aten::prelu"),
    "bounds": (lambda x: x.clamp(-0.5).clamp(max=0.25), X, "aten::clamp"),
    "products": (lambda x, y: x @ y.mT, (QUERIES, KEYS), "aten::matmul"),
    "products of five": (lambda x, y: x[None] @ y[None].mT, (QUERIES, KEYS), "aten::matmul"),
    "spread products": (lambda x, y: x[:, :1] @ y[:1].mT, (QUERIES, KEYS), "aten::matmul"),
    "attention": (attention, (QUERIES, KEYS, VALUES), "aten::scaled_dot_product_attention"),
    "masked attention": (
        lambda *x: attention(*x[:3], attn_mask=x[3]),
        (QUERIES, KEYS, VALUES, MASK),
        "aten::scaled_dot_product_attention",
    ),
    "attention to some": (
        lambda *x: attention(*x[:3], attn_mask=x[3] > 0, scale=0.3),
        (QUERIES, KEYS, VALUES, MASK),
        "aten::scaled_dot_product_attention",
    ),
    "attention to none": (
        lambda *x: attention(*x[:3], attn_mask=x[3] > 9),
        (QUERIES, KEYS, VALUES, MASK),
        "aten::scaled_dot_product_attention",
    ),
    "causal attention": (
        lambda *x: attention(*x, is_causal=True),
        (QUERIES, KEYS, VALUES),
        "aten::scaled_dot_product_attention",
    ),
    "grouped attention": (
        lambda *x: attention(*x, enable_gqa=True),
        (QUERIES, FEW_KEYS, FEW_VALUES),
        "aten::scaled_dot_product_attention",
    ),
}

WHOLE_LAYERS: dict[str, tuple[Function, Sequence[Tensor], list[str]]] = {
    "instance norm": (functional.instance_norm, X, ["aten::instance_norm"]),
    "instance norm with gains": (
        lambda x: functional.instance_norm(x, weight=WEIGHTS, bias=WEIGHTS + 1, eps=1e-3),
        X,
        ["aten::instance_norm"],
    ),
    "norms of items' own": (
        lambda x: functional.instance_norm(x.reshape(1, 12, 7, 5), weight=GAINS).reshape(2, 6, 7, 5),
        X,
        ["aten::view", "aten::instance_norm", "aten::view"],
    ),
}


@pytest.mark.parametrize("name", WHOLE_LAYERS)
def test_nothing_is_left_beside_a_layer(name: str) -> None:
    function, inputs, expected = WHOLE_LAYERS[name]
    assert operators(read(function, inputs)) == expected


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_itself_again(name: str) -> None:
    function, inputs, layer = LAYERS[name]
    assert operators(read(function, inputs)).count(layer) == 1


def _scaled_apart(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    weights = torch.ops.aten._safe_softmax((x * 0.5) @ (y.mT * 0.25), -1)
    return weights @ z


STEPS: dict[str, tuple[Function, Sequence[Tensor], str]] = {
    "a mean that is read": (
        lambda x: torch.native_layer_norm(x, (5,), MORE, MORE, 1e-5)[:2],
        X,
        "aten::native_layer_norm",
    ),
    "indices that are read": (
        lambda x: functional.max_pool2d(x, 2, return_indices=True),
        X,
        "aten::max_pool2d_with_indices",
    ),
    "bounds out of order": (lambda x: x.clamp(0.5).clamp(max=0.25), X, "aten::clamp"),
    "two scales": (_scaled_apart, (QUERIES, KEYS, VALUES), "aten::_safe_softmax"),
    "a product that is cut otherwise": (
        lambda x, y: torch.bmm(x.reshape(8, 7, 8), y.reshape(8, 5, 8).mT).view(4, 2, 7, 5),
        (QUERIES, KEYS),
        "aten::bmm",
    ),
    "a gate of another's": (lambda x: x * torch.sigmoid(x + 1), X, "aten::sigmoid"),
    "whole numbers and a gate": (lambda x: x * torch.sigmoid(x), WHOLE, "aten::sigmoid"),
    "whole numbers, cut": (lambda x: x * (x + 3).clamp(0, 6) / 6, WHOLE, "aten::clamp"),
    "whole numbers and slopes": (lambda x: torch.where(x > 0, x, WEIGHTS[:1] * x), WHOLE, "aten::where.self"),
    "slopes of another dtype": (lambda x: torch.where(x > 0, x, WEIGHTS[:1].double() * x), X, "aten::where.self"),
    "more slopes than channels": (lambda x: torch.where(x > 0, x, WEIGHTS[:, None, None] * x), ONE, "aten::where.self"),
    "a slope of more dimensions": (
        lambda x: torch.where(x > 0, x, WEIGHTS[:1, None, None] * x),
        ROW,
        "aten::where.self",
    ),
    "slopes of items": (lambda x: torch.where(x > 0, x, WEIGHTS[:2, None, None, None] * x), X, "aten::where.self"),
    "slopes of columns": (lambda x: torch.where(x > 0, x, MORE[None] * x), X, "aten::where.self"),
    "other bounds": (lambda x: (x + 3).clamp(0, 5) / 6, X, "aten::clamp"),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_is_no_layer_stays(name: str) -> None:
    function, inputs, step = STEPS[name]
    assert step in operators(read(function, inputs))


BEFORE = """
graph(%self : __torch__.M,
      %x : Tensor):
  %none : NoneType = prim::Constant()
  %false : bool = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %shape : int[] = prim::Constant[value=[8]]()
  %eps : float = prim::Constant[value=1.0000000000000001e-05]()
  %n : Tensor float32[4, 8], %mean : Tensor, %rstd : Tensor = aten::native_layer_norm(%x, %shape, %none, %none, %eps)
  %s : Tensor = aten::sigmoid(%n)
  %g : Tensor = aten::mul(%n, %s)
  %w : Tensor = aten::_softmax(%g, %one, %false)
  return (%w)
"""
AFTER = """
  %n : Tensor = aten::layer_norm(%x, %shape, %none, %none, %eps, %0)
  %g : Tensor = aten::silu(%n)
  %w : Tensor = aten::softmax(%g, %one, %1)
  return (%w)
"""


def test_before_and_after() -> None:
    program = Program(methods={"forward": parse_graph(textwrap.dedent(BEFORE).lstrip("\n"))})
    recompose(program)
    lines = print_graph(program.methods["forward"], facts=False).splitlines()
    body = [line for line in lines[2:] if "prim::Constant" not in line]
    assert body == AFTER.strip("\n").splitlines()


def test_sizes_may_be_open() -> None:
    def attend(x: Tensor) -> Tensor:
        heads = x.reshape(x.shape[0], x.shape[1], 4, 8).transpose(1, 2)
        return attention(heads, heads, heads).transpose(1, 2).reshape(x.shape)

    sizes = {0: torch.export.Dim("batch", max=9), 1: torch.export.Dim("length", max=99)}
    program = decomposed(Applied(attend), [seeded(2, 7, 32)], ((sizes,),))
    source = source_of(program)
    assert "aten::scaled_dot_product_attention" in operators(source.program)
    for given in (seeded(2, 7, 32), seeded(3, 11, 32)):
        torch.testing.assert_close(Interpreter(source.program).run("forward", [given]), attend(given))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, 2, bias=False), nn.BatchNorm2d(24), nn.Hardswish())
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(24, 4, 48, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            attended = layer.self_attn(tokens, tokens, tokens, need_weights=False)[0]
            tokens = layer.norm1(tokens + attended)
            tokens = layer.norm2(tokens + layer.linear2(functional.gelu(layer.linear1(tokens))))
        return tokens.mean(1)


@pytest.fixture(scope="module")
def encoder() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = Encoder().eval()
    for weights in module.parameters():
        weights.requires_grad_(False)
    return module


def test_a_model_takes_no_more_dispatches_than_before(encoder: nn.Module) -> None:
    x = seeded(1, 3, 13, 11)
    counts = []
    for source in (torch.export.export(encoder, (x,)), decomposed(encoder, [x])):
        optimized = optimize_for_mobile(source, backend="vulkan", runtime="mobopt", example_inputs=[x])
        torch.testing.assert_close(optimized(x), encoder(x), rtol=1e-4, atol=1e-5)
        counts.append(optimized.plan_report(x).dispatches)
    assert counts[1] <= counts[0]


def test_products_and_softmax_take_as_many_dispatches_on_gpus(device: Device) -> None:
    """Decompositions expand operands to sizes that they have."""

    def attend(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return (x @ y.mT * 0.3).softmax(-1) @ z

    gpu = copy.copy(device)
    gpu.info = replace(device.info, switches=device.info.switches | {"shared-products", "no-texels"})
    inputs, counts = (QUERIES, KEYS, VALUES), []
    for exported in (torch.export.export(Applied(attend), inputs), decomposed(Applied(attend), inputs)):
        runner = VulkanProgram(source_of(exported).program, gpu)
        torch.testing.assert_close(runner.run("forward", list(inputs)), attend(*inputs), rtol=1e-4, atol=1e-5)
        counts.append(runner.plan_report(list(inputs)).dispatches)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
def test_files_for_phones(encoder: nn.Module, runtime: str) -> None:
    x = seeded(1, 3, 13, 11)
    made = optimize_for_mobile(decomposed(encoder, [x]), backend="vulkan", runtime=runtime, example_inputs=[x])
    assert "vulkan_prepack::run_conv2d_context" in operators(made.program)
    torch.testing.assert_close(made(x), encoder(x), rtol=1e-4, atol=1e-5)
