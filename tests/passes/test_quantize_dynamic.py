"""Linear layers that round their inputs in each call: the graph, files for phones' CPUs, the own runtime, bad input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.jit.mobile import _load_for_lite_interpreter

import mobopt
from mobopt import MobileModule, PassPipeline, optimize_for_mobile
from mobopt.errors import InputError
from mobopt.frontends.open_source import source_of
from mobopt.ir import Program, print_graph
from mobopt.ops.quantized import quantized
from mobopt.options import INT8_DYNAMIC, Quantization
from mobopt.passes.canonicalize import Canonicalize
from mobopt.passes.manager import run_passes
from mobopt.passes.note_kinds import QUANTIZED, STAYS
from mobopt.passes.quantize_dynamic import QuantizeDynamic


class Tagger(torch.nn.Module):
    """Rows of three ranks, a layer without bias, and one that isn't linear."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(53, 67)
        self.encoder = torch.nn.Sequential(torch.nn.Linear(67, 41), torch.nn.GELU(), torch.nn.Linear(41, 67))
        self.head = torch.nn.Linear(67, 53, bias=False)
        self.mix = torch.nn.Conv1d(5, 5, 3, padding=1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.encoder(self.mix(self.words(words)))
        return self.head(x) + self.head(x.mean((0, 1)))


# It takes 8 bits of inputs, which is what is wanted of it.
pytestmark = pytest.mark.filterwarnings("ignore:Currently, qnnpack incorrectly ignores reduce_range:UserWarning")
WORDS = torch.tensor([[3, 52, 0, 17, 9], [5, 5, 41, 2, 30]])


def rounded(x: torch.Tensor) -> torch.Tensor:
    """In 255 steps from the least to the greatest element, zero among them."""
    least, greatest = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    step = (greatest - least) / 255
    zero = round(-least / step)
    return ((x / step).round() + zero).clamp(0, 255).sub(zero).mul(step)


def oracle(linear: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """What a layer is to compute, in float64."""
    weight = quantized(linear.weight.detach(), 8, (1, linear.in_features)).floats()
    bias = None if linear.bias is None else linear.bias.detach().double()
    return torch.nn.functional.linear(rounded(x).double(), weight.double(), bias).float()


def expected_of(model: Tagger, words: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x = model.mix(model.words(words))
        x = oracle(model.encoder[2], model.encoder[1](oracle(model.encoder[0], x)))
        return oracle(model.head, x) + oracle(model.head, x.mean((0, 1)))


def optimized(model: torch.nn.Module, x: torch.Tensor, **options: object) -> MobileModule:
    given = {"backend": "cpu", "quantize": INT8_DYNAMIC, **options}
    return optimize_for_mobile(torch.jit.script(model.eval()), example_inputs=[x], **given)  # type: ignore[arg-type]


def program_of(model: torch.nn.Module) -> Program:
    program = source_of(torch.jit.script(model.eval()), []).program.clone()
    run_passes(program, [Canonicalize()])
    return program


def test_a_layer_before_and_after() -> None:
    torch.manual_seed(0)
    program = program_of(torch.nn.Sequential(torch.nn.Linear(67, 41)))
    assert "aten::linear(%input, %self.0.weight, %self.0.bias)" in print_graph(program.methods["forward"])
    notes = run_passes(program, [QuantizeDynamic(Quantization(INT8_DYNAMIC))], check=True)[0].result.notes
    text = print_graph(program.methods["forward"])
    assert re.search(
        r"%(\S+) : Tensor = aten::unsqueeze\(%input, %\S+\)\n"
        r"  %(\S+) : Tensor = quantized::linear_dynamic\(%\1, %self.0.weight.packed, %\S+\)\n"
        r"  %(\S+) : Tensor = aten::squeeze\(%\2, %\S+\)\n  return \(%\3\)",
        text,
    )
    (note,) = notes
    assert note.kind is QUANTIZED and note.parameters["layer"] == "0" and note.parameters["bits"] == 8


@pytest.mark.usefixtures("qnnpack")
@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
def test_files_for_phones(tmp_path: Path, runtime: str) -> None:
    model = Tagger()
    module = optimized(model, WORDS, runtime=runtime)
    expected = expected_of(model, WORDS)
    torch.jit.save(module, tmp_path / "net.pt")
    module._save_for_lite_interpreter(str(tmp_path / "net.ptl"))
    scripted, lite = torch.jit.load(tmp_path / "net.pt"), _load_for_lite_interpreter(str(tmp_path / "net.ptl"))
    assert str(scripted.code).count("quantized.linear_dynamic") == 4
    for made in (module(WORDS), scripted(WORDS), lite(WORDS), mobopt.load(tmp_path / "net.ptl")(WORDS)):
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
    assert (tmp_path / "net.ptl").stat().st_size < 0.7 * sum(item.nbytes for item in model.state_dict().values())


def test_what_stays_is_said() -> None:
    module = optimized(Tagger(), WORDS, keep_float=["head"])
    notes = [note for note in module.notes if note.pass_name == "quantize_dynamic"]
    assert [note.parameters["layer"] for note in notes if note.kind is QUANTIZED] == ["encoder.0", "encoder.2"]
    assert {note.parameters["reason"] for note in notes if note.kind is STAYS} == {
        "only linear layers round their inputs in each call",
        "head is to keep its weight, by 'head'",
    }


def test_on_the_own_runtime() -> None:
    """Floats that are rounded alike; weights stay integers on the device."""
    model = Tagger()
    module = optimized(model, WORDS, backend="vulkan", runtime="mobopt")
    expected = expected_of(model, WORDS)
    # A value that lies halfway between two steps may take either.
    assert (module(WORDS) - expected).abs().max() < 0.01 * expected.abs().max()
    assert (module(WORDS) - expected).abs().median() < 1e-5
    memory = module.plan_report(WORDS).memory
    assert memory is not None
    assert memory.constant_bytes < 0.65 * sum(item.nbytes for item in model.state_dict().values())


def test_on_the_own_runtime_there_is_no_batch_of_one() -> None:
    """Rows have the dimensions that they had: what is between layers can be a part of them."""
    module = optimized(Tagger(), WORDS, backend="vulkan", runtime="mobopt")
    text = print_graph(module.program.methods["forward"])
    steps = [line.split(" = ")[1].split("(")[0] for line in text.splitlines() if " = " in line]
    assert "aten::linear" in steps and steps[steps.index("aten::min") - 1] != "aten::unsqueeze"


def test_other_inputs_have_steps_of_their_own() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(40, 24))
    module = optimized(model, torch.rand(3, 40), backend="vulkan", runtime="mobopt")
    for x in (torch.rand(3, 40) * 1e3 - 700, torch.rand(3, 40) * 1e-3, torch.zeros(3, 40), -torch.rand(7, 40)):
        found = module(x)
        expected = oracle(model[0], x) if x.any() else model[0].bias.detach().expand(3, -1)
        assert (found - expected).abs().max() <= 0.02 * expected.abs().max()


@pytest.mark.usefixtures("qnnpack")
def test_a_quantised_module_of_torch_is_saved_by_torch(tmp_path: Path) -> None:
    model = torch.ao.quantization.quantize_dynamic(Tagger().encoder.eval(), {torch.nn.Linear})
    x = torch.rand(3, 67)
    module = optimize_for_mobile(torch.jit.script(model), backend="cpu", example_inputs=[x])
    torch.jit.save(module, tmp_path / "net.pt")
    torch.testing.assert_close(torch.jit.load(tmp_path / "net.pt")(x), model(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "vulkan", "runtime": "2.6"}, "int8_dynamic is for the backend cpu and for the runtime mobopt"),
        ({"backend": "metal"}, "the backend is metal, whose kernels compute no such layers"),
        ({"backend": "cpu", "quantize": "int8_weights"}, "int8_dynamic and int8_static are for phones' CPUs"),
        ({"quantize_group": 32}, "quantize_group is 32 with int8_dynamic"),
        ({"keep_float": ["haed"]}, "no layer matches 'haed'.*did you mean head"),
    ],
)
def test_what_can_not_be_asked_for(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        optimized(Tagger(), WORDS, **options)


def test_the_pipeline_without_rounding() -> None:
    for backend, runtime in (("cpu", "2.1"), ("vulkan", "mobopt")):
        pipeline = PassPipeline.default(backend, runtime=runtime, quantize=INT8_DYNAMIC)
        assert "quantize_dynamic" in pipeline.names
        assert "quantize_dynamic" not in pipeline.without_rounding().names


@pytest.mark.usefixtures("qnnpack")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_models_in_halves(dtype: torch.dtype, tmp_path: Path) -> None:
    """Layers take and give floats, between conversions: one for all layers that read the same."""
    torch.manual_seed(1)
    first, second = torch.nn.Linear(67, 41), torch.nn.Linear(67, 41, bias=False)

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) * 2 + self.second(x).relu()

    model = Two().to(dtype).eval()
    x = torch.randn(5, 67).to(dtype)
    expected = oracle(first.float(), x.float()) * 2 + oracle(second.float(), x.float()).relu()
    model.to(dtype)
    script = torch.jit.script(model)
    module = optimize_for_mobile(script, backend="cpu", quantize=INT8_DYNAMIC, example_inputs=[x])
    graph = print_graph(module.program.methods["forward"])
    inputs = re.findall(r"quantized::linear_dynamic\((%\S+),", graph)
    assert len(inputs) == 2
    assert inputs[0] == inputs[1]
    torch.jit.save(module, tmp_path / "net.pt")
    own = optimize_for_mobile(script, backend="vulkan", runtime="mobopt", quantize=INT8_DYNAMIC, example_inputs=[x])
    for found in (torch.jit.load(tmp_path / "net.pt")(x), module(x), own(x)):
        assert found.dtype == dtype
        assert (found - expected).abs().max() <= 4 * torch.finfo(dtype).eps * expected.abs().max()
