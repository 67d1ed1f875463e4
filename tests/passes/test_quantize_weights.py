"""Weights rounded to few bits: the graph, what stays, bad input, and what files and the CPU make of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mobopt
from mobopt import MobileModule, PassPipeline, optimize_for_mobile
from mobopt.errors import InputError
from mobopt.frontends.open_source import source_of
from mobopt.ops.quantized import DEQUANTIZE, Quantized, dequantized, quantized, relative_error
from mobopt.options import Quantization
from mobopt.passes.expand_weights import ExpandWeights
from mobopt.passes.manager import run_passes
from mobopt.passes.note_kinds import QUANTIZED, QUANTIZED_POORLY, STAYS
from mobopt.passes.notes import Note


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(53, 67)
        self.encoder = torch.nn.Sequential(torch.nn.Linear(67, 41), torch.nn.GELU(), torch.nn.Linear(41, 67))
        self.head = torch.nn.Linear(67, 53)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.words(words)))


WORDS = torch.tensor([[3, 52, 0, 17, 9]])


def optimized(model: torch.nn.Module, x: torch.Tensor, **options: object) -> MobileModule:
    script = torch.jit.script(model.eval())
    return optimize_for_mobile(script, backend="vulkan", runtime="mobopt", example_inputs=[x], **options)


def constants_of(module: MobileModule) -> list[Quantized]:
    nodes = [node for node in module.program.methods["forward"].walk() if node.qualified_op == DEQUANTIZE]
    return [Quantized(*(value.constant for value in node.inputs)) for node in nodes]


def noted(notes: tuple[Note, ...], kind: object) -> list[Note]:
    return [note for note in notes if note.kind is kind and note.pass_name == "quantize_weights"]


@pytest.mark.parametrize(
    "bits, block, error", [(8, (1, 67), 0.008), (4, (1, 32), 0.1), (4, (1, 67), 0.13), (8, (13, 5), 0.008)]
)
def test_rounding_loses_little_and_uses_all_numbers(bits: int, block: tuple[int, int], error: float) -> None:
    weight = torch.randn(39, 67, generator=torch.Generator().manual_seed(0))
    stored = quantized(weight, bits, block)
    assert relative_error(weight, stored) < error
    assert stored.integers().abs().max() == (8 if bits == 4 else 127)
    torch.testing.assert_close(stored.transposed().floats(), stored.floats().t())
    again = quantized(stored.floats(), bits, block)
    torch.testing.assert_close(again.floats(), stored.floats())


def test_zeros_stay_zeros() -> None:
    assert not quantized(torch.zeros(3, 40), 4, (1, 32)).floats().any()
    assert relative_error(torch.zeros(3, 40), quantized(torch.zeros(3, 40), 8, (1, 40))) == 0


@pytest.mark.parametrize(
    "change",
    [{"columns": 9}, {"bits": 3}, {"block_size": [0, 4]}, {"block_size": [4]}, {"scales": torch.ones(3, 2)}],
)
def test_arguments_that_do_not_fit(change: dict[str, object]) -> None:
    given = {"values": torch.zeros(3, 4, dtype=torch.uint8), "scales": torch.ones(3, 1), "zero_points": None}
    with pytest.raises(InputError, match="dequantize"):
        dequantized(**{**given, "block_size": [1, 8], "bits": 4, "columns": 8, **change})


@pytest.mark.parametrize(
    "scheme, bits, error", [("int8_weights", [8, 8, 8], 0.02), ("int4_weights", [8, 4, 4, 4], 0.3)]
)
def test_layers_read_integers(scheme: str, bits: list[int], error: float, tmp_path: Path) -> None:
    model = Tagger()
    module = optimized(model, WORDS, quantize=scheme)
    stored = constants_of(module)
    assert [item.bits for item in stored] == bits
    made, expected = module(WORDS), model(WORDS)
    assert 1e-4 < (made - expected).abs().max() / expected.abs().max() < error
    floats = sum(item.nbytes for item in model.state_dict().values() if item.dim() == 2)
    assert sum(item.nbytes for item in stored) < floats * (0.3 if bits[1] == 8 else 0.26)
    for name in ("net.pt", "net.ptl"):
        if name == "net.pt":
            torch.jit.save(module, tmp_path / name)
        else:
            module._save_for_lite_interpreter(str(tmp_path / name))
        assert torch.equal(mobopt.load(tmp_path / name)(WORDS), made)
        torch.testing.assert_close(mobopt.load(tmp_path / name, device="cpu")(WORDS), made, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scheme, bits", [("int8_weights", [8, 8, 8]), ("int4_weights", [8, 4, 4, 4])])
def test_models_in_halves(scheme: str, bits: list[int], dtype: torch.dtype, tmp_path: Path) -> None:
    """Integers and scales are those of the same floats; what is computed with them is rounded as the model is."""
    model = Tagger().to(dtype)
    module = optimized(model, WORDS, quantize=scheme)
    stored = constants_of(module)
    assert [item.bits for item in stored] == bits
    assert {item.scales.dtype for item in stored} == {torch.float32}
    made, wide = module(WORDS), optimized(model.float(), WORDS, quantize=scheme)(WORDS)
    assert (made.dtype, wide.dtype) == (dtype, torch.float32)
    assert (made - wide).abs().max() <= 6 * torch.finfo(dtype).eps * wide.abs().max()
    torch.jit.save(module, tmp_path / "net.pt")
    assert torch.equal(mobopt.load(tmp_path / "net.pt")(WORDS), made)
    on_cpu = mobopt.load(tmp_path / "net.pt", device="cpu")(WORDS)
    assert (on_cpu - made).abs().max() <= 6 * torch.finfo(dtype).eps * wide.abs().max()


def test_names_of_layers_that_keep_their_floats() -> None:
    module = optimized(Tagger(), WORDS, quantize="int4_weights", quantize_group=64, keep_float=["encoder.*", "words"])
    notes = noted(module.notes, QUANTIZED)
    assert [note.parameters["layer"] for note in notes] == ["head"]
    assert [note.parameters["reason"] for note in noted(module.notes, STAYS)] == [
        "words is to keep its weight, by 'words'",
        "encoder.0 is to keep its weight, by 'encoder.*'",
        "encoder.2 is to keep its weight, by 'encoder.*'",
    ]
    (stored,) = constants_of(module)
    assert stored.block_size == [1, 64] and stored.scales.shape == (53, 2)


def test_convolutions_after_their_normalisations() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(5, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    layers += [torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.ConvTranspose2d(8, 6, 2, 2, groups=2)]
    model, x = torch.nn.Sequential(*layers).eval(), torch.rand(1, 5, 9, 11)
    model[1].running_var.uniform_(0.5, 2.0)
    module = optimized(model, x, quantize="int8_weights")
    expected = model(x)
    assert (module(x) - expected).abs().max() < 0.02 * expected.abs().max()
    assert [note.parameters["layer"] for note in noted(module.notes, QUANTIZED)] == ["0", "4"]
    assert [note.parameters["reason"] for note in noted(module.notes, STAYS)] == [
        "a scale would be for 9 elements, which saves nothing"
    ]


def test_layers_that_lose_much_are_named() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 32), torch.nn.Linear(32, 3))
    with torch.no_grad():
        model[0].weight[:, 0] = 200.0  # all else of a row becomes zero
        model[0].weight[:, 1:] = torch.linspace(0.5, 0.78, 255)
    with pytest.warns(UserWarning, match=r"loses much of the weights of 0 \(\d+%\).*keep_float"):
        module = optimized(model, torch.rand(2, 256), quantize="int8_weights")
    assert [note.parameters["layer"] for note in noted(module.notes, QUANTIZED_POORLY)] == ["0"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"quantize": "int2"}, "quantize is 'int2'; choose one of int8_weights, int4_weights"),
        ({"quantize": "int4_weights", "quantize_group": 48}, "quantize_group is 48 .*takes 32, 64, 128"),
        ({"quantize": "int8_weights", "quantize_group": 32}, "quantize_group is 32 with int8_weights"),
        ({"keep_float": ["head"]}, "are for quantize='int8_weights'"),
        ({"quantize": "int8_weights", "keep_float": ["haed"]}, "no layer matches 'haed'.*did you mean head"),
        ({"quantize": "int8_weights", "runtime": "2.6"}, "quantised for the runtime mobopt, and the runtime is 2.6"),
    ],
)
def test_what_can_not_be_asked_for(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        optimize_for_mobile(torch.jit.script(Tagger()), backend="vulkan", **{"runtime": "mobopt", **options})


def test_targets_without_such_weights_get_floats() -> None:
    module = optimized(Tagger(), WORDS, quantize="int8_weights")
    program = module.program.clone()
    run_passes(program, [ExpandWeights()], check=True)
    assert not any(node.qualified_op == DEQUANTIZE for node in program.methods["forward"].walk())


def test_the_pipeline_is_stable_and_can_be_changed() -> None:
    pipeline = PassPipeline.default("vulkan", runtime="mobopt", quantize="int4_weights", keep_float=["head"])
    assert pipeline.names.index("quantize_weights") == pipeline.names.index("fold_batch_norm") + 1
    assert "quantize_weights" not in pipeline.without_rounding().names
    step = next(item for item in pipeline if item.name == "quantize_weights")
    assert step.quantization == Quantization("int4_weights", 32, ("head",))
    program = source_of(torch.jit.script(Tagger().eval()), []).program.clone()
    run_passes(program, pipeline, check=True)
