"""Attention that is written as products and a softmax: what becomes of it, as text, and that the result is the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mobopt import optimize_for_mobile
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, parse_graph, print_graph, verify_graph
from mobopt.runtimes.vulkan.compile import attention
from mobopt.runtimes.vulkan.compile.attention import ATTENTION, find_attention, share_heads
from mobopt.runtimes.vulkan.compile.projections import join_projections
from mobopt.runtimes.vulkan.engine.stream import Dispatch
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings
from mobopt.runtimes.vulkan.program import VulkanProgram

load_lowerings()

Q, T, V = "Float(1, 2, 5, 8)", "Float(1, 2, 8, 7)", "Float(1, 2, 7, 12)"
S, Y = "Float(1, 2, 5, 7)", "Float(1, 2, 5, 12)"
TENSORS = {
    "two": torch.tensor(2.0),
    "none": torch.tensor(0.0),
    "mask": torch.randn(5, 7),
    "hidden": torch.full((5, 7), -torch.inf).triu(-1),
    "factors": torch.randn(5, 7),
}
SCORES = f"%s : {S} = aten::matmul(%q, %t)"
RESULT = f"%y : {Y} = aten::matmul(%w, %v)"


SCALED = [
    f"%q1 : {Q} = aten::mul.Tensor(%q, %two)",
    f"%t1 : {T} = aten::mul.Scalar(%t, 0.5)",
    f"%s : {S} = aten::matmul(%q1, %t1)",
]


def found(*lines: str, scores: Sequence[str] = (SCORES,), inputs: str = "") -> Graph:
    constants = "".join(
        f"  %{name} : Float{tuple(value.shape)} = prim::Constant[value=<Tensor>]()\n" for name, value in TENSORS.items()
    )
    head = f"graph(%q : {Q}, %t : {T}, %v : {V}{inputs}):\n{constants}"
    text = head + "".join(f"  {line}\n" for line in (*scores, *lines, RESULT)) + "  return (%y)\n"
    graph = parse_graph(text, TENSORS)
    find_attention(graph)
    verify_graph(graph)
    return graph


def softmax(of: str, rest: str = "-1, None") -> str:
    return f"%w : {S} = aten::softmax.int(%{of}, {rest})"


@pytest.mark.parametrize(
    ("lines", "mask", "scale"),
    [
        ([softmax("s")], "None", "1.0"),
        ([f"%m : {S} = aten::mul.Scalar(%s, 0.5)", softmax("m", "3, None")], "None", "0.5"),
        ([f"%m : {S} = aten::div.Tensor(%s, %two)", softmax("m")], "None", "0.5"),
        (
            [
                f"%m : {S} = aten::mul.Tensor(%s, %two)",
                f"%n : {S} = aten::div.Scalar(%m, 8)",
                f"%a : {S} = aten::add.Tensor(%n, %mask, 1)",
                softmax("a"),
            ],
            "%mask",
            "0.25",
        ),
    ],
)  # fmt: skip
def test_what_is_found(lines: list[str], mask: str, scale: str) -> None:
    text = [line.strip() for line in print_graph(found(*lines)).splitlines() if " = aten::" in line]
    assert [line.split(" = ")[1] for line in text] == [
        "aten::transpose.int(%t, -2, -1)",
        f"aten::scaled_dot_product_attention(%q, {text[0].split()[0]}, %v, {mask}, 0.0, False, {scale}, False)",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [softmax("s", "-2, None")],
        [f"%m : {S} = aten::mul.Tensor(%s, %factors)", softmax("m")],
        [f"%a : {S} = aten::add.Tensor(%s, %mask, 2)", softmax("a")],
        [f"%a : {S} = aten::add.Tensor(%s, %hidden, 1)", softmax("a")],
        [f"%a : {S} = aten::add.Tensor(%s, %s, 1)", softmax("a")],
        [f"%r : {S} = aten::relu(%s)", softmax("r")],
    ],
)
def test_what_is_left(lines: list[str]) -> None:
    graph = found(*lines)
    assert [node.op for node in graph.block.nodes if "matmul" in node.op] == ["aten::matmul"] * 2


G = "%g : Bool(1, 2, 5, 7) = aten::isnan(%w)"


def guarded(zero: str = "none", of: str = "w") -> list[str]:
    """Zeros in the place of NaN, as torch.onnx writes them; the last product reads ``%w``."""
    return [softmax("a").replace("%w", "%p"), G.replace("%w", "%p"), f"%w : {S} = aten::where.self(%g, %{zero}, %{of})"]


def test_what_torch_onnx_writes_is_found() -> None:
    """Queries and keys are scaled, any mask is added, and zeros stand for NaN."""
    lines = [f"%a : {S} = aten::add.Tensor(%s, %hidden, 1)", *guarded(of="p")]
    graph = found(*lines, scores=SCALED)
    text = [line.strip() for line in print_graph(graph).splitlines() if " = aten::" in line]
    assert [line.split(" = ")[1] for line in text] == [
        "aten::transpose.int(%t, -2, -1)",
        f"aten::scaled_dot_product_attention(%q, {text[0].split()[0]}, %v, %hidden, 0.0, False, 1.0, False)",
    ]
    turned = [
        "%k3 : Float(2, 7, 8) = aten::reshape(%keys, [-1, 7, 8])",
        "%t3 : Float(2, 8, 7) = aten::permute(%k3, [0, 2, 1])",
        f"%t4 : {T} = aten::reshape(%t3, [1, 2, 8, 7])",
        f"%s : {S} = aten::matmul(%q, %t4)",
    ]
    graph = found(*lines, scores=turned, inputs=", %keys : Float(1, 2, 7, 8)")
    text = [line.strip() for line in print_graph(graph).splitlines() if " = aten::" in line]
    assert [line.split(" = ")[1] for line in text] == [
        "aten::scaled_dot_product_attention(%q, %keys, %v, %hidden, 0.0, False, 1.0, False)"
    ]
    graph = found(*lines, scores=turned, inputs=", %keys : Float(1, 1, 2, 7, 8)")  # heads that were spread
    text = [line.strip() for line in print_graph(graph).splitlines() if " = aten::" in line]
    assert [line.split(" = ")[1] for line in text] == [
        "aten::reshape(%keys, [1, 2, 7, 8])",
        f"aten::scaled_dot_product_attention(%q, {text[0].split()[0]}, %v, %hidden, 0.0, False, 1.0, False)",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [f"%a : {S} = aten::add.Tensor(%s, %hidden, 1)", *guarded(zero="two", of="p")],
        [f"%a : {S} = aten::add.Tensor(%s, %hidden, 1)", *guarded(of="a")],
        [f"%a : {S} = aten::mul.Tensor(%s, %factors)", *guarded(of="p")],
    ],
)
def test_other_choices_are_left(lines: list[str]) -> None:
    graph = found(*lines, scores=SCALED)
    assert [node.op for node in graph.block.nodes if "matmul" in node.op] == ["aten::matmul"] * 2


WINDOWS = "Float(1, 1, 2, 5, 7)"
IN_WINDOWS = [
    f"%a : {S} = aten::add.Tensor(%s, %mask, 1)",
    f"%b : {WINDOWS} = aten::view(%a, [1, 1, 2, 5, 7])",
    f"%c : {WINDOWS} = aten::add.Tensor(%b, %factors, 1)",
    f"%d : {S} = aten::view(%c, [1, 2, 5, 7])",
    softmax("d"),
]


def test_several_masks_are_joined() -> None:
    graph = found(*IN_WINDOWS)
    (node,) = [node for node in graph.block.nodes if node.op == ATTENTION]
    assert torch.equal(node["attn_mask"].elements, (TENSORS["mask"] + TENSORS["factors"]).expand(1, 2, 5, 7))


def test_a_mask_of_other_sizes_alone_is_joined() -> None:
    graph = found(f"%b : {WINDOWS} = aten::view(%s, [1, 1, 2, 5, 7])", *IN_WINDOWS[2:])
    (node,) = [node for node in graph.block.nodes if node.op == ATTENTION]
    assert torch.equal(node["attn_mask"].elements, TENSORS["factors"].expand(1, 2, 5, 7))


@pytest.mark.parametrize(
    "lines, most",
    [
        ([line.replace("%mask", "%hidden") for line in IN_WINDOWS], 70),
        (IN_WINDOWS, 69),
        ([IN_WINDOWS[0], f"%b : {S} = aten::view(%a, [1, 2, 5, 7])", f"%d : {S} = aten::relu(%b)", softmax("d")], 70),
        ([line.replace("%mask", "%v2") for line in IN_WINDOWS], 70),
    ],
    ids=["no key counts", "too large", "something else", "not known"],
)
def test_masks_that_are_left(lines: list[str], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_MOST_JOINED", most)
    assert all(node.op != ATTENTION for node in found(*lines, inputs=", %v2 : Float(5, 7)").block.nodes)


class Windows(nn.Module):
    """Attention in windows, of which some hide keys from each other; those of each image have the same masks."""

    def __init__(self, windows: int, heads: int, rows: int) -> None:
        super().__init__()
        self.windows = windows
        self.bias = nn.Parameter(torch.randn(1, heads, rows, rows))
        self.register_buffer("mask", torch.randint(-1, 1, (windows, rows, rows)) * 100.0)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q * 0.3) @ k.transpose(-2, -1) + self.bias
        every, heads, rows, _ = scores.shape
        apart = scores.view(every // self.windows, self.windows, heads, rows, rows)
        apart = apart + self.mask.unsqueeze(1).unsqueeze(0)
        weights = torch.softmax(apart.view(every, heads, rows, rows), -1)
        return (weights @ v).transpose(1, 2).reshape(every, rows, -1)


@pytest.mark.parametrize("images", [1, 2])
def test_windows(device: Any, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the device's own way and by that of GPUs."""
    torch.manual_seed(0)
    model = Windows(3, 2, 7).eval()
    inputs = [torch.randn(3 * images, 2, 7, 8) for _ in range(3)]
    with torch.no_grad():
        expected = model(*inputs)
    module = optimize_for_mobile(torch.export.export(model, tuple(inputs)), backend="vulkan", runtime="mobopt")
    for kind in (device.info.kind, "discrete"):
        monkeypatch.setattr(device, "info", replace(device.info, kind=kind))
        program = VulkanProgram(module.program, device)
        found = program(*inputs)
        shaders = [item.operation.shader for item in program.profile(inputs) if isinstance(item.operation, Dispatch)]
        assert kind != "discrete" or any(shader.startswith("attention") for shader in shaders)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


class Attention(nn.Module):
    """Heads apart, scores by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.register_buffer("mask", torch.full((11, 11), -torch.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(2, 11, 3, 8).transpose(1, 2) for layer in (self.query, self.key, self.value))
        weights = (q @ k.transpose(2, 3) * 8**-0.5 + self.mask).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(2, 11, 24)


def test_model(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    model, x = Attention().eval(), torch.randn(2, 11, 24)
    program = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), device)
    with torch.no_grad():
        result, expected = program(x), model(x)
    assert isinstance(result, Tensor)
    operations = [item.operation for item in program.profile([x])]
    program.close()
    assert float((result - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    assert [item.shader for item in operations if isinstance(item, Dispatch)].count("attention") == 1
    assert sum(item.shader.startswith("product_") for item in operations if isinstance(item, Dispatch)) == 1


class GuardedAttention(Attention):
    """As torch.onnx writes it, with a mask that the caller brings, which may hide all keys of a query."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = (layer(x).view(2, 11, 3, 8).transpose(1, 2) for layer in (self.query, self.key, self.value))
        turned = k.reshape(-1, 11, 8).permute(0, 2, 1).reshape(2, 3, 8, 11)
        weights = ((q * 8**-0.25) @ (turned * 8**-0.25) + mask).softmax(-1, dtype=torch.float32)
        weights = torch.where(weights.isnan(), torch.tensor(0.0), weights)
        return (weights @ v).transpose(1, 2).reshape(2, 11, 24)


def test_guarded_model(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    mask = torch.where(torch.rand(2, 1, 11, 11) < 0.5, 0.0, -torch.inf)
    mask[1, 0, 3] = -torch.inf
    model, x = GuardedAttention().eval(), torch.randn(2, 11, 24)
    program = VulkanProgram(program_from_script_module(torch.jit.trace(model, (x, mask))), device)
    with torch.no_grad():
        result, expected = program(x, mask), model(x, mask)
    assert isinstance(result, Tensor)
    operations = [item.operation for item in program.profile([x, mask])]
    program.close()
    assert expected.isfinite().all()
    assert float((result - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    assert [item.shader for item in operations if isinstance(item, Dispatch)].count("attention") == 1


LAYERS = {name: torch.randn(16, 12) for name in ("w0", "w1", "w2")} | {"b": torch.randn(16)}
IN, OUT = "Float(2, 5, 12)", "Float(2, 5, 16)"


def joined(*lines: str, returned: str = "%y") -> Graph:
    """A graph after layers of one input were joined."""
    constants = "".join(
        f"  %{name} : Float{tuple(value.shape)} = prim::Constant[value=<Tensor>]()\n" for name, value in LAYERS.items()
    ).replace("(16,)", "(16)")
    text = f"graph(%x : {IN}, %z : {IN}):\n{constants}" + "".join(f"  {line}\n" for line in lines)
    graph = parse_graph(f"{text}  return ({returned})\n", LAYERS)
    join_projections(graph, ConstantStore())
    verify_graph(graph)
    return graph


GATE, UP = f"%g : {OUT} = aten::linear(%x, %w0, None)", f"%u : {OUT} = aten::linear(%x, %w1, None)"
GATED = [f"%s : {OUT} = aten::silu(%g)", f"%y : {OUT} = aten::mul.Tensor(%s, %u)"]


def test_a_gate_and_what_passes_it_are_joined() -> None:
    graph = joined(GATE, UP, *GATED)
    operators = [node.op.removeprefix("aten::") for node in graph.block.nodes if node.op.startswith("aten::")]
    assert operators == ["linear", "slice", "slice", "silu", "mul"]


@pytest.mark.parametrize(
    ("lines", "returned"),
    [
        ([GATE, UP.replace("%x", "%z"), *GATED], "%y"),  # of another input
        ([GATE, UP.replace("None", "%b"), *GATED], "%y"),  # one has a bias
        ([GATE, UP], "%g, %u"),  # they are returned
        ([GATE, UP, f"%s : {OUT} = aten::relu(%g)", f"%y : {OUT} = aten::add.Tensor(%s, %u, 1)"], "%y"),  # epilogues
        ([GATE, UP, f"%s : {OUT} = aten::silu(%g)", f"%y : {OUT} = aten::softmax.int(%s, -1, None)"], "%y, %u"),
    ],
)
def test_layers_that_stay_apart(lines: list[str], returned: str) -> None:
    assert sum(node.op == "aten::linear" for node in joined(*lines, returned=returned).block.nodes) == 2


@pytest.mark.parametrize("scheme", ["int8_weights", "int4_weights"])
def test_layers_of_few_bits_are_joined(device: Any, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """With the same numbers as apart."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.gate, self.up, self.down = nn.Linear(64, 40), nn.Linear(64, 40), nn.Linear(40, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(nn.functional.silu(self.gate(x)) * self.up(x))

    model, x = Gated().eval(), torch.randn(2, 11, 64, generator=torch.Generator().manual_seed(0))
    exported = torch.export.export(model, (x,))
    module = optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", quantize=scheme)
    with torch.no_grad():
        expected = module(x)
        monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
        program = VulkanProgram(module.program, device)
        result = program(x)
    operations = [item.operation for item in program.profile([x])]
    program.close()
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    shaders = [item.shader for item in operations if isinstance(item, Dispatch)]
    assert sum(name.startswith("product_") and name != "product_sum" for name in shaders) == 2, shaders


def test_projections_of_one_input_are_joined() -> None:
    graph = joined(
        f"%q : {OUT} = aten::linear(%z, %w0, %b)",
        f"%k : {OUT} = aten::linear(%x, %w1, %b)",
        f"%v : {OUT} = aten::linear(%x, %w2, %b)",
        f"%y : {OUT} = aten::scaled_dot_product_attention(%q, %k, %v, None, 0.0, False, None, False)",
    )
    nodes = [node for node in graph.block.nodes if node.op.startswith("aten::")]
    assert [node.op for node in nodes] == [
        *("aten::linear", "aten::linear", "aten::slice", "aten::slice", "aten::scaled_dot_product_attention")
    ]
    layer = nodes[1]
    assert torch.equal(layer["weight"].elements, torch.cat([LAYERS["w1"], LAYERS["w2"]]))
    assert layer["bias"].numel == 32 and layer.output.sizes == (2, 5, 32)
    assert [node.args[1:] for node in nodes[2:4]] == [(2, 0, 16, 1), (2, 16, 32, 1)]


K8, KEYS = "Float(1, 8, 7, 4)", "Float(1, 2, 7, 4)"
ATTEND = "%y : Float(1, 8, 5, 4) = aten::scaled_dot_product_attention(%q, %k, %v, None, 0.0, False, None, False)"
REPEATS = [
    f"%{name} : {K8} = aten::repeat_interleave.self_int(%{of}, 4, 1, None)" for name, of in (("k", "a"), ("v", "b"))
]


def spread(name: str, source: str, dim: int = 2) -> list[str]:
    one, many = ("1, 2, 1, 7, 4", "1, 2, 4, 7, 4") if dim == 2 else ("1, 1, 2, 7, 4", "1, 4, 2, 7, 4")
    return [
        f"%{name}1 : Float({one}) = aten::unsqueeze(%{source}, {dim})",
        f"%{name}2 : Float({many}) = aten::expand(%{name}1, [{many}], False)",
        f"%{name} : {K8} = aten::reshape(%{name}2, [1, 8, 7, 4])",
    ]


def shared(*lines: str, returned: str = "%y") -> list[str]:
    """The operators that are left when heads are shared."""
    text = f"graph(%q : Float(1, 8, 5, 4), %a : {KEYS}, %b : {KEYS}):\n" + "".join(f"  {line}\n" for line in lines)
    graph = parse_graph(f"{text}  return ({returned})\n", {})
    share_heads(graph)
    verify_graph(graph)
    nodes = [node for node in graph.block.nodes if node.op.startswith("aten::")]
    assert nodes[-1]["enable_gqa"] == (len(nodes) == 1 or returned != "%y")
    return [node.op.removeprefix("aten::") for node in nodes]


def test_repeated_heads_are_shared() -> None:
    attention = "scaled_dot_product_attention"
    assert shared(*REPEATS, ATTEND) == [attention]
    assert shared(*spread("k", "a"), *spread("v", "b"), ATTEND) == [attention]
    assert shared(*REPEATS, ATTEND, returned="%y, %k") == ["repeat_interleave", attention]


def test_a_query_for_all_heads_stays() -> None:
    first = "%o : Float(1, 1, 5, 4) = aten::slice.Tensor(%q, 1, 0, 1, 1)"
    assert len(shared(*REPEATS, first, ATTEND.replace("%q", "%o"))) == 4


@pytest.mark.parametrize(
    "lines",
    [
        [REPEATS[0], "%v : Float(1, 8, 7, 4) = aten::repeat(%b, [1, 4, 1, 1])"],  # heads in another order
        [*spread("k", "a", 1), *spread("v", "b", 1)],
        [REPEATS[0], f"%v : {K8} = aten::cat([%b, %b, %b, %b], 1)"],
    ],
)
def test_other_repetitions_stay(lines: list[str]) -> None:
    assert len(shared(*lines, ATTEND)) > 1


class Grouped(nn.Module):
    """Attention as Llama's: rotary positions, and heads that share keys and values."""

    def __init__(self, heads: int, groups: int, size: int, is_by_hand: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.size, self.is_by_hand = heads, groups, size, is_by_hand
        width = heads * size
        self.q, self.k, self.v = (nn.Linear(width, n * size, bias=False) for n in (heads, groups, groups))
        angle = torch.outer(torch.arange(40.0), 1.0 / 100 ** (torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotated(self, x: Tensor) -> Tensor:
        half = self.size // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * self.cos[: x.size(2)] + turned * self.sin[: x.size(2)]

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = (layer(x).view(n, t, -1, self.size).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = self.rotated(q), self.rotated(k)
        times = self.heads // self.groups
        k, v = (
            y[:, :, None].expand(n, self.groups, times, t, self.size).reshape(n, self.heads, t, self.size)
            for y in (k, v)
        )
        if self.is_by_hand:
            return torch.softmax(q @ k.transpose(2, 3) / 2, -1) @ v
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("is_by_hand", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 11), (3, 7)])
@pytest.mark.parametrize("shape", [(4, 2, 8), (6, 1, 24), (3, 3, 16), (2, 1, 12)])
def test_rotary_grouped_attention(
    device: Any, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], sizes: tuple[int, int], is_by_hand: bool
) -> None:
    """Queries, keys and values are one product, both rotations one dispatch, if heads have whole vec4s in their halves,
    and nothing is repeated."""
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    torch.manual_seed(0)
    model = Grouped(*shape, is_by_hand).eval()
    x = torch.randn(*sizes, shape[0] * shape[2], generator=torch.Generator().manual_seed(1))
    program = VulkanProgram(program_from_script_module(torch.jit.trace(model, x)), device)
    with torch.no_grad():
        result, expected = program(x), model.double()(x.double())
    assert isinstance(result, Tensor)
    operations = [item.operation for item in program.profile([x])]
    program.close()
    assert float((result - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    shaders = [item.shader for item in operations if isinstance(item, Dispatch)]
    assert sum(name.startswith("product_") and name != "product_sum" for name in shaders) == 1, shaders
    assert sum(name.startswith("attention") for name in shaders) == 1
    labels = [item.label for item in operations if isinstance(item, Dispatch)]
    rotations = [label for label in labels if label.startswith("mobopt::rotary")]
    assert len(rotations) == int(shape[2] % 8 == 0), labels
