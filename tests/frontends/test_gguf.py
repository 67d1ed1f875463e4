"""Weights of GGUF files in nn.Modules: as they are, on the device as integers, and damaged files."""

from __future__ import annotations

import copy
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from gguf_elements import ELEMENTS, blocks_of
from gguf_files import BF16, F16, F32, Q4_0, Q8_0, Llama, encoded, gguf, llama_file, text, value
from torch import nn

import mobopt
from mobopt.errors import BundleError, InputError, UnsupportedError
from mobopt.frontends.gguf.file import GgufFile
from mobopt.ops.quantized import DEQUANTIZE

TOKENS = torch.randint(0, 97, (2, 7), generator=torch.Generator().manual_seed(1))
KINDS = {"Q8_0": Q8_0, "Q4_0": Q4_0, "F16": F16, "BF16": BF16, "F32": F32}


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "weights.gguf"
    path.write_bytes(content)
    return path


def random(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_meta", [False, True])
def test_a_llama_has_the_weights_of_the_file(kind: str, on_meta: bool, tmp_path: Path) -> None:
    content, expected = llama_file(Llama(), KINDS[kind])
    with torch.device("meta" if on_meta else "cpu"):
        model = Llama()
    assert mobopt.load_gguf(written(tmp_path, content), model) is model
    with torch.no_grad():
        assert torch.equal(model(TOKENS), expected(TOKENS))
        pairs = mobopt.load_gguf(tmp_path / "weights.gguf", Llama(pairs=True), rotation="pairs")
        torch.testing.assert_close(pairs(TOKENS), expected(TOKENS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_on_the_device_matrices_stay_integers(kind: str, tmp_path: Path) -> None:
    content, expected = llama_file(Llama(), KINDS[kind])
    model = mobopt.load_gguf(written(tmp_path, content), Llama())
    exported = torch.export.export(model, (TOKENS,))
    optimised = mobopt.optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", example_inputs=[TOKENS])
    with torch.no_grad():
        torch.testing.assert_close(optimised(TOKENS), expected(TOKENS), rtol=1e-4, atol=1e-5)
    nodes = [n for n in optimised.program.methods["forward"].block.nodes if n.qualified_op == DEQUANTIZE]
    assert len(nodes) == 1 + 2 * 7 + 1
    assert {node.inputs[4].constant for node in nodes} == {int(kind[1])}
    optimised._save_for_lite_interpreter(str(tmp_path / "small.ptl"))
    integers, scales = (sum(p.numel() for p in model.parameters() if p.dtype == d) for d in (torch.int8, torch.float32))
    assert (tmp_path / "small.ptl").stat().st_size < integers * int(kind[1]) / 8 + 4 * scales + 40_000


def test_for_phones_they_become_floats(tmp_path: Path) -> None:
    content, expected = llama_file(Llama(), Q8_0)
    model = mobopt.load_gguf(written(tmp_path, content), Llama())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimised = mobopt.optimize_for_mobile(model, backend="vulkan", runtime="2.6", example_inputs=[TOKENS])
    with torch.no_grad():
        torch.testing.assert_close(optimised(TOKENS), expected(TOKENS), rtol=1e-4, atol=1e-5)


def test_other_architectures_and_tied_heads(tmp_path: Path) -> None:
    content, expected = llama_file(Llama(bias=True), Q8_0, "qwen2")
    model = mobopt.load_gguf(written(tmp_path, content), Llama(bias=True))
    assert torch.equal(model(TOKENS), expected(TOKENS))
    content, expected = llama_file(Llama(is_tied=True), Q4_0)
    for is_tied in (True, False):
        model = mobopt.load_gguf(written(tmp_path, content), Llama(is_tied=is_tied))
        assert torch.equal(model(TOKENS), expected(TOKENS))


LAYER = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q_norm": "self_attn.q_norm",
}
FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_norm": "post_attention_layernorm"}


@pytest.mark.parametrize(
    ("architecture", "names", "surplus", "order"),
    [
        ("gemma", {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj"}, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("gemma2", LAYER, 1, []),
        ("gemma3", LAYER, 1, []),
        ("granite", {"attn_q": "self_attn.q_proj", "ffn_up": "mlp.up_proj"}, 0, [0, 2, 1, 3, 4, 6, 5, 7]),
        ("olmo2", {name: LAYER[name] for name in ("post_attention_norm", "post_ffw_norm", "attn_q_norm")}, 0, []),
        ("phi3", FUSED, 0, []),
        ("smollm3", {"attn_k": "self_attn.k_proj"}, 0, [0, 2, 1, 3, 4, 6, 5, 7]),
    ],
)
def test_names_of_architectures(
    architecture: str, names: dict[str, str], surplus: int, order: list[int], tmp_path: Path
) -> None:
    """Norms are of one dimension; rows of queries and keys lie in ``order`` in the module."""
    model, tensors, expected = nn.Module(), {}, {}
    model.model = nn.Module()
    for name, place in names.items():
        weight = random(*(() if "norm" in name else (8,)), 8) + len(expected)
        owner = model.model
        for part in f"layers.3.{place}".split("."):
            if not hasattr(owner, part):
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        owner.weight = nn.Parameter(torch.zeros_like(weight))
        tensors[f"blk.3.{name}.weight"] = tuple(weight.shape), F32, encoded(weight, F32)[0]
        expected[f"model.layers.3.{place}.weight"] = (
            weight - surplus if "norm" in name else weight[order] if order and name in ("attn_q", "attn_k") else weight
        )
    heads = {f"{architecture}.attention.head_count": ("u32", 2)}
    content = gguf({"general.architecture": architecture, **heads}, tensors)
    state = mobopt.load_gguf(written(tmp_path, content), model).state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[place], weight) for place, weight in expected.items())


def test_modules_with_names_of_their_own(tmp_path: Path) -> None:
    kinds = {"blk.0.a.weight": Q8_0, "blk.1.a.weight": F16, "table": Q4_0, "cube": Q8_0, "scale": BF16}
    sizes = {"blk.0.a.weight": (5, 64), "blk.1.a.weight": (3, 5), "table": (7, 32), "cube": (3, 2, 32), "scale": ()}
    parts = {name: encoded(random(*sizes[name]), kind) for name, kind in kinds.items()}
    content = gguf(
        {"general.architecture": "mine", "general.alignment": ("u32", 64)},
        {name: (sizes[name], kinds[name], parts[name][0]) for name in kinds},
        version=2,
        alignment=64,
    )
    model = nn.Module()
    model.parts = nn.ModuleList([nn.Linear(64, 5, bias=False), nn.Linear(5, 3, bias=False, dtype=torch.float16)])
    model.embed = nn.Embedding(7, 32)
    model.cube, model.scale = nn.Parameter(torch.zeros(3, 2, 32)), nn.Parameter(torch.zeros(()))
    names = {"blk.{}.a.weight": "parts.{}.weight", "table": "embed.weight"}
    mobopt.load_gguf(written(tmp_path, content), model, names=names)
    found = [model.parts[0].weight, model.parts[1].weight, model.embed.weight, model.cube, model.scale]
    for (_, expected), weight in zip(parts.values(), found, strict=True):
        assert torch.equal(weight.float(), expected)
    assert model.parts[1].weight.dtype == torch.float16 and not model.cube.requires_grad


def test_metadata(tmp_path: Path) -> None:
    file = GgufFile(written(tmp_path, llama_file(Llama(), F32)[0]))
    assert file.metadata["general.sampling"] == [["x", "y"], ["z"]]
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b\u00e9", ""]
    assert file.metadata["general.rate"] == 0.5 and file.metadata["general.flag"] is True


LLAMA = {"general.architecture": "llama"}
NORM = {"output_norm.weight": ((64,), F32, bytes(256))}


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"GGML", BundleError, "is no GGUF file"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), BundleError, "is big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), BundleError, "is of version 1; versions 2 and 3"),
        (gguf(LLAMA, NORM)[:-1], BundleError, "256 more were to come"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), BundleError, "8 more were to come"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), BundleError, "more were to come"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 77), BundleError, "is of type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (text("k") + value("v")) * 2, BundleError, "'k' is there twice"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 99,
            BundleError,
            "is of type 9",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2) + b"\xff\xff", BundleError, "is not text"),
        (gguf(LLAMA, {"w": ((2, 33), Q8_0, bytes(102))}), BundleError, "blocks of 32"),
        (gguf(LLAMA, {"w": ((1,) * 5, F32, bytes(4))}), BundleError, "has 5 dimensions"),
        (
            gguf(LLAMA, NORM).replace(struct.pack("<QIQ", 64, F32, 0), struct.pack("<QIQ", 64, F32, 7)),
            BundleError,
            "no multiple of 32",
        ),
        (gguf({"general.alignment": ("u32", 3)}, {}), BundleError, "general.alignment is 3"),
        (gguf({"general.architecture": "mamba"}, NORM), UnsupportedError, "architecture 'mamba'"),
        (gguf(LLAMA, {"ssm.weight": ((3,), F32, bytes(12))}), InputError, "no parameter: ssm.weight"),
        (gguf(LLAMA, NORM), InputError, "no tensor for lm_head.weight, model.embed_tokens.weight, .* and 15 more"),
        (llama_file(Llama(), F32, drop="blk.1.ffn_up.weight")[0], InputError, "no tensor for model.layers.1.mlp.up"),
    ],
)
def test_bad_files(content: bytes, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        mobopt.load_gguf(written(tmp_path, content), Llama())


def test_what_does_not_fit(tmp_path: Path) -> None:
    content, _ = llama_file(Llama(), F32)
    small = Llama()
    small.lm_head = nn.Linear(64, 96, bias=False)
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=r"output.weight .* has the sizes \(97, 64\), and lm_head.weight .* \(96, 64"):
        mobopt.load_gguf(path, small)
    rotation: Any = "thirds"
    with pytest.raises(InputError, match="no rotation 'thirds'; give halves or pairs"):
        mobopt.load_gguf(path, Llama(), rotation=rotation)
    grid = {**NORM, "output.weight": ((97, 64), 16, bytes(97 * 44))}
    names = {"output_norm.weight": "weight", "output.weight": "head"}
    norm = nn.RMSNorm(64)
    norm.head = nn.Parameter(torch.zeros(97, 64))
    before = copy.deepcopy(norm.state_dict())
    with pytest.raises(UnsupportedError, match=r"'output.weight' is IQ2_XXS, which .* quantise the model again"):
        mobopt.load_gguf(written(tmp_path, gguf(LLAMA, grid)), norm, names=names)
    assert all(torch.equal(one, other) for one, other in zip(before.values(), norm.state_dict().values(), strict=True))


class Lines(nn.Module):
    """Rows of a table, through a layer that is as wide as a block of any kind."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 512), nn.Linear(512, 11, bias=False)
        self.gain = nn.Parameter(torch.zeros(512))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(rows) * self.gain)


FOUR_BITS = ("Q4_0", "Q4_1", "Q2_K", "Q3_K", "Q4_K", "TQ1_0", "TQ2_0")


@pytest.mark.parametrize("kind", ELEMENTS)
@pytest.mark.parametrize("count", [1, 5])
def test_blocks_of_every_kind(kind: str, count: int, tmp_path: Path) -> None:
    sizes = {"table.weight": (7, 512), "layer.weight": (11, 512), "gain": (512,)}
    made = {name: blocks_of(kind, torch.Size(size).numel()) for name, size in sizes.items()}
    expected = {name: values.reshape(sizes[name]) for name, (_, values) in made.items()}
    content = gguf(
        {"general.architecture": "mine"},
        {name: (sizes[name], ELEMENTS[kind][0], raw) for name, (raw, _) in made.items()},
    )
    model = mobopt.load_gguf(written(tmp_path, content), Lines(), names={"gain": "gain"})
    for name, parameter in (
        ("table.weight", model.table.weight),
        ("layer.weight", model.layer.weight),
        ("gain", model.gain),
    ):
        torch.testing.assert_close(
            parameter.double(), expected[name], rtol=3e-7, atol=3e-7 * float(expected[name].abs().max())
        )
    rows = torch.arange(count)
    y = (expected["table.weight"][:count] * expected["gain"]) @ expected["layer.weight"].t()
    exported = torch.export.export(model, (rows,))
    optimised = mobopt.optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", example_inputs=[rows])
    torch.testing.assert_close(optimised(rows).double(), y, rtol=0, atol=2e-6 * float(y.abs().max()))
    assert not optimised.plan_report(rows).fallbacks
    nodes = [n for n in optimised.program.methods["forward"].block.nodes if n.qualified_op == DEQUANTIZE]
    assert [node.inputs[4].constant for node in nodes] == [4 if kind in FOUR_BITS else 8] * 2


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16", "BF16"])
def test_files_of_the_package_gguf(kind: str, tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    weight = random(5, 96)
    number = package.GGMLQuantizationType[kind]
    raw = package.quants.quantize(weight.numpy(), number)
    path = tmp_path / "weights.gguf"
    writer = package.GGUFWriter(path, "llama")
    writer.add_array("tokens", ["a", "b"])
    writer.add_tensor("weight", raw, raw_dtype=number)
    step: list[Callable[[], None]] = [
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ]
    for call in step:
        call()
    layer = mobopt.load_gguf(path, nn.Linear(96, 5, bias=False))
    assert torch.equal(layer.weight, torch.from_numpy(package.quants.dequantize(raw, number)))


@pytest.mark.parametrize("kind", ELEMENTS)
def test_blocks_are_those_of_the_package_gguf(kind: str) -> None:
    package = pytest.importorskip("gguf")
    raw, expected = blocks_of(kind, 1024)
    number, size, count, _ = ELEMENTS[kind]
    assert package.GGML_QUANT_SIZES[number] == (size, count)
    found = package.quants.dequantize(numpy.frombuffer(raw, "u1").reshape(1, -1), package.GGMLQuantizationType(number))
    torch.testing.assert_close(torch.from_numpy(found[0].copy()).double(), expected, rtol=1e-6, atol=1e-8)
