"""Example inputs of several methods, and what is said where there are none."""

import io
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.utils.bundled_inputs import bundle_inputs

import mobopt
from mobopt.errors import InputError
from mobopt.frontends.file_source import FileSource
from mobopt.frontends.script_module_source import ScriptModuleSource
from mobopt.options import Settings
from mobopt.samples.example_inputs import choose_inputs
from mobopt.samples.inputs import InputOptions


class Coder(nn.Module):
    """Two methods with layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv2d(3, 4, 3), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.encoder(x))

    @torch.jit.export
    def decode(self, rows: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return self.decoder(rows) * scale


IMAGE, ROWS = torch.ones(1, 1, 1, 1).expand(1, 3, 7, 5), torch.ones(1, 1).expand(3, 6)  # small enough to be bundled
BOTH = {"forward": [IMAGE], "decode": [ROWS]}


def script() -> torch.jit.ScriptModule:
    torch.manual_seed(3)
    return torch.jit.script(Coder().eval())


def optimized(example_inputs: object) -> tuple[mobopt.MobileModule, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        module = mobopt.optimize_for_mobile(
            script(), preserved_methods=["decode"], backend="vulkan", runtime="1.13", example_inputs=example_inputs
        )
    return module, [str(item.message) for item in caught if item.category is UserWarning]


def test_each_method_has_inputs_of_its_own() -> None:
    module, said = optimized(BOTH)
    assert said == []
    assert "run_linear_context" in module.decode.code and "run_conv2d_context" in module.code


def test_a_method_without_inputs_runs_on_the_cpu_with_a_warning() -> None:
    module, (said,) = optimized([IMAGE])
    assert "run_linear_context" not in module.decode.code and "run_conv2d_context" in module.code
    assert "decode" in said and "example_inputs" in said and "no example input" in said


def test_inputs_of_another_method_alone() -> None:
    module, _ = optimized({"decode": [ROWS]})
    assert "run_linear_context" in module.decode.code and "run_conv2d_context" in module.code  # guessed


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"encode": [ROWS]}, "'encode'.*forward, decode.*preserve"),
        ({"decode": [IMAGE]}, "decode can't be run on the example inputs"),
        ({"decode": []}, "decode.*rows missing"),
        ({"forward": [ROWS]}, "the model can't be run on the example inputs"),
    ],
)
def test_inputs_that_do_not_fit(given: dict[str, list[torch.Tensor]], text: str) -> None:
    with pytest.raises(InputError, match=text):
        optimized(given)


def test_a_method_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method with inputs is compared."""
    source = ScriptModuleSource(script(), ["decode"])
    inputs = choose_inputs(source, BOTH)
    broken = source.program.clone()
    (scale,) = (node for node in broken.methods["decode"].walk() if node.op == "aten::mul")
    scale.output.replace_all_uses_with(scale.inputs[0])
    assert not mobopt.optimizer.agreement_of(source, broken, inputs).agrees
    assert mobopt.optimizer.agreement_of(source, source.program, inputs).agrees


@pytest.mark.parametrize("from_file", [False, True])
def test_bundled_inputs_of_every_method(from_file: bool, tmp_path: Path) -> None:
    module = script()
    bundled = bundle_inputs(module, {module.forward: [(IMAGE,)], module.decode: [(ROWS, 3.0)]})
    if from_file:
        torch.jit.save(bundled, str(tmp_path / "m.pt"))
    source = FileSource(tmp_path / "m.pt", ["decode"]) if from_file else ScriptModuleSource(bundled, ["decode"])
    found = choose_inputs(source)
    assert {method: len(arguments) for method, arguments in found.by_method.items()} == {"forward": 1, "decode": 2}
    assert torch.equal(found.others["decode"][0], ROWS) and found.others["decode"][1] == 3.0
    assert set(mobopt.optimizer.optimize(source, Settings("vulkan")).inputs.examples.arguments) == {"forward", "decode"}


def test_audits_look_at_every_method() -> None:
    found = mobopt.audit(script(), runtime="1.13", preserved_methods=["decode"], example_inputs=BOTH)
    assert {line.operator: line.verdict for line in found.lines}["aten::linear"] == "rewritten"
    assert "decode: float32[3, 6], float" in found.inputs and found.is_good
    unseen = mobopt.audit(script(), runtime="1.13", preserved_methods=["decode"], example_inputs=[IMAGE])
    (line,) = (line for line in unseen.lines if line.operator == "aten::linear")
    assert line.verdict == "cpu" and "no example input came here" in line.reason


def test_unknown_is_not_good() -> None:
    """A file as PyTorch makes it, whose method nothing is known of."""
    module = mobopt.optimize_for_mobile(
        script(), preserved_methods=["decode"], backend="vulkan", runtime="1.13", legalize="off"
    )
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    found = mobopt.audit(module, runtime="1.13", example_inputs=[IMAGE])
    assert not found.is_good and found.problems == ["1 unknown"]
    one = {"forward": [IMAGE], "decode": [ROWS[:1]]}
    assert mobopt.audit(module, runtime="1.13", example_inputs=one).is_good
    assert mobopt.audit(module, runtime="1.13", example_inputs=BOTH).problems == ["1 wrong"]


def test_options_name_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = InputOptions.parse((), ("1,3,7,5", "decode:3,6", "decode:2:int64", "decode::bool"))
    assert options.shapes == {"forward": ["1,3,7,5"], "decode": ["3,6", "2:int64", ":bool"]}
    made = options.tensors()
    assert made is not None and [str(item.dtype) for item in made["decode"]] == [
        "torch.float32", "torch.int64", "torch.bool"
    ]  # fmt: skip
    (tmp_path / "odd:name.npy").touch()
    files = InputOptions.parse(("odd:name.npy", "decode:rows.npy", "x.npy"), ())
    assert files.paths == {"forward": ["odd:name.npy", "x.npy"], "decode": ["rows.npy"]}
    assert files.files == [Path("odd:name.npy"), Path("x.npy"), Path("rows.npy")]
    assert InputOptions.parse((), ()).tensors() is None
    listed = InputOptions.parse((), ("[1,3 ; 2:int64]", "decode:[]")).tensors()
    assert listed is not None and listed["decode"] == [[]]
    assert [[tuple(item.shape) for item in items] for items in listed["forward"]] == [[(1, 3), (2,)]]
    saved = torch.rand(2, 3)
    numpy.save(tmp_path / "x.npy", saved.numpy())
    read = InputOptions.parse(("[x.npy;x.npy]",), ())
    assert read.files == [Path("x.npy")] * 2
    [[first, second]] = (read.tensors() or {})["forward"]
    assert first.equal(saved) and second.equal(saved)
    with pytest.raises(InputError, match="--input or --random"):
        InputOptions.parse(("x.npy",), ("1",))


@pytest.mark.parametrize("runtime", ["1.13", "2.6"])
def test_half_models_are_in_single_precision_where_the_cpu_lacks_their_kernels(runtime: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(60, 2), nn.Softmax(1)).half().eval()
    found = mobopt.audit(torch.jit.script(model), runtime=runtime, example_inputs=[IMAGE.half()])
    assert found.is_good
    rewritten = {line.operator for line in found.lines if line.verdict == "rewritten"}
    assert rewritten == (
        {"aten::conv2d", "aten::relu", "aten::linear", "aten::softmax.int"} if runtime == "1.13" else set()
    )
    unsized = mobopt.audit(torch.jit.script(model), runtime=runtime)
    missing = {line.operator: line.help for line in unsized.lines if line.verdict == "missing"}
    assert set(missing) == ({"aten::conv2d", "aten::linear"} if runtime == "1.13" else set())
    assert all("model.float()" in text for text in missing.values())
