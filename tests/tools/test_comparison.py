"""Two runs layer by layer: what is matched, what is said of each layer, and what can't be compared."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
import torch
from comparison_models import Cancelling, Loops, Magnifying, cancelling_in_halves, doubled, net
from torch import nn

from mobopt import PassPipeline, optimize_for_mobile
from mobopt.errors import InputError
from mobopt.frontends.open_source import whole_source_of
from mobopt.runtimes.cpu.double import in_double
from mobopt.runtimes.cpu.precision import HalfInterpreter
from mobopt.runtimes.line_run import LineRun
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.observed import ObservedProgram
from mobopt.runtimes.vulkan.program import VulkanProgram
from mobopt.tools import comparison_work
from mobopt.tools.comparison import compare
from mobopt.tools.comparison_page import page
from mobopt.tools.comparison_results import AGREES, AMPLIFIES, INHERITS, ROUNDING, WRONG
from mobopt.tools.differences import difference, rank_changes


def test_a_device_beside_the_cpu(device: Device) -> None:
    script, x = net()
    found = compare(script, device_b=device.info.name, example_inputs=[x])
    assert found.agrees and found.first is None and not found.unmatched and not found.remarks
    assert [layer.nodes for layer in found.layers] == [
        ("aten::conv2d",),
        ("aten::batch_norm", "aten::relu"),
        ("aten::conv2d", "aten::add", "aten::relu"),
        ("aten::mul", "aten::tanh"),
        ("aten::mean",),
        ("aten::linear",),
    ]
    assert found.unseen == 4
    assert all(0 <= layer.total.error < 1e-5 and layer.own is not None for layer in found.layers)
    assert found.layers[0].source[-1].endswith("in stem")
    assert found.outputs[0].difference.error == found.layers[-1].total.error
    assert found.outputs[0].ranks is not None and found.outputs[0].ranks.first == 0


def test_without_fusions_every_node_has_a_value(device: Device) -> None:
    script, x = net()
    found = compare(script, device_b=device.info.name, example_inputs=[x], fused=False)
    assert found.unseen == 0 and all(len(layer.nodes) == 1 for layer in found.layers) and len(found.layers) == 10


def test_a_wrong_kernel_is_told_from_what_inherits_its_error(device: Device) -> None:
    script, x = net()
    with doubled("aten::mean.dim"):
        found = compare(script, device_b=device.info.name, example_inputs=[x])
    assert not found.agrees
    assert [layer.verdict for layer in found.layers] == [*[AGREES] * 4, WRONG, INHERITS]
    assert found.first is found.layers[4] and found.culprits == (found.layers[4],)
    assert found.layers[4].own is not None and found.layers[4].own.error == pytest.approx(1.0)
    assert found.layers[5].own is not None and found.layers[5].own.error < 1e-5


def test_a_layer_that_magnifies_errors_is_right_by_itself(device: Device) -> None:
    found = compare(
        torch.jit.script(Magnifying()), device_b=device.info.name, example_inputs=[torch.randn(3, 31)], tolerance=1e-4
    )
    assert [layer.verdict for layer in found.layers] == [AGREES, AMPLIFIES, INHERITS]
    assert found.layers[1].amplification is not None and found.layers[1].amplification > 100


def test_float64_tells_ill_conditioned_from_wrong(device: Device) -> None:
    model, x = torch.jit.script(Cancelling()), torch.rand(3, 1018) * 1e-3 + 1
    single = compare(model, device_b=device.info.name, example_inputs=[x], tolerance=1e-7)
    assert not single.agrees
    double = compare(model, device_b=device.info.name, example_inputs=[x], tolerance=1e-7, float64=True)
    assert double.agrees and {layer.verdict for layer in double.layers} == {ROUNDING}
    with doubled("mobopt::product"):
        wrong = compare(model, device_b=device.info.name, example_inputs=[x], tolerance=1e-7, float64=True)
    assert not wrong.agrees and wrong.layers[-1].verdict == WRONG


def test_turns_of_loops_are_matched_one_by_one(device: Device) -> None:
    found = compare(torch.jit.script(Loops()), device_b=device.info.name, example_inputs=[torch.randn(3, 5)])
    assert found.agrees and not found.unmatched
    turns = {
        name: [layer.turn for layer in found.layers if layer.nodes[-1] == name] for name in ("aten::tanh", "aten::add")
    }
    assert turns == {"aten::tanh": [0, 1, 2], "aten::add": [0, 1, 2]}


class Draws(nn.Module):
    """Draws numbers, and computes with them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = torch.multinomial(torch.softmax(x, -1), 3)
        return torch.relu(x + torch.rand_like(x)) + chosen.sum()


def test_random_numbers_are_the_same_in_their_place_and_not_judged_alone(device: Device) -> None:
    x = torch.randn(2, 7, generator=torch.Generator().manual_seed(3))
    found = compare(torch.jit.script(Draws()), device_b=device.info.name, example_inputs=[x])
    random = [layer for layer in found.layers if {"aten::multinomial", "aten::rand_like"} & set(layer.nodes)]
    assert random and all(layer.own is None for layer in random)
    assert found.agrees and {layer.verdict for layer in found.layers} == {"agrees"}


class Recurrent(nn.Module):
    """A layer whose weights are a list among its arguments, and which would drop something in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(5, 7, num_layers=2, bidirectional=True, dropout=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0].relu()


def test_layers_that_drop_nothing_are_judged_alone(device: Device) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5)
    found = compare(torch.jit.script(Recurrent().eval()), device_b=device.info.name, example_inputs=[x])
    recurrent = [layer for layer in found.layers if "aten::lstm" in layer.nodes]
    assert found.agrees and recurrent and all(layer.own is not None for layer in recurrent)


def test_views_of_memory_that_is_written_to() -> None:
    """The reference makes them anew after each write; passes make new values in place of the writes."""

    class Cell(nn.LSTMCell):
        def __init__(self) -> None:
            super().__init__(7, 5)

        def forward(self, x: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return super().forward(x, (hidden, memory))

    torch.manual_seed(1)
    inputs = [torch.randn(3, 7), torch.randn(3, 5), torch.randn(3, 5)]
    cell = torch.jit.trace(Cell(), inputs)
    found = compare(cell, passes_b=PassPipeline.default("vulkan", runtime="mobopt"), example_inputs=inputs)
    assert found.agrees and {layer.verdict for layer in found.layers} == {AGREES}
    assert len([layer for layer in found.layers if layer.nodes[-1] == "aten::unsafe_chunk"]) == 4


def test_passes_are_compared_by_origin() -> None:
    script, x = net()
    found = compare(script, passes_b=PassPipeline.default("vulkan", runtime="2.6"), example_inputs=[x])
    assert found.agrees and not found.unmatched and "passes vulkan:2.6" in found.other
    assert {layer.matched_by for layer in found.layers} == {"origin"}
    first = found.layers[0]
    assert first.nodes[-1] == "vulkan_prepack::run_conv2d_context" and first.name.startswith("aten::relu")
    assert 0 < max(layer.total.error for layer in found.layers) < 1e-5


def test_a_bundle_beside_its_source(tmp_path: Path) -> None:
    script, x = net()
    optimize_for_mobile(script, backend="vulkan", example_inputs=[x])._save_for_lite_interpreter(
        str(tmp_path / "m.ptl")
    )
    found = compare(script, tmp_path / "m.ptl", example_inputs=[x])
    assert found.agrees and len(found.layers) == 8 and not found.unmatched
    assert any("no origins" in remark for remark in found.remarks)


def test_layers_whose_norm_and_activation_were_packed(tmp_path: Path) -> None:
    blocks = [(nn.Conv2d(size, size + 2, 3), nn.BatchNorm2d(size + 2), nn.ReLU6()) for size in (3, 5, 7)]
    for _, norm, _ in blocks:
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
    script, x = (
        torch.jit.script(nn.Sequential(*[item for block in blocks for item in block]).eval()),
        torch.randn(1, 3, 9, 9),
    )
    optimize_for_mobile(script, backend="vulkan", example_inputs=[x])._save_for_lite_interpreter(
        str(tmp_path / "m.ptl")
    )
    found = compare(script, tmp_path / "m.ptl", example_inputs=[x])
    assert found.agrees and not found.unmatched
    packed = [layer for layer in found.layers if "vulkan_prepack::run_conv2d_context" in layer.nodes]
    assert len(packed) == 3 and all(layer.nodes.count("vulkan_prepack::run_conv2d_context") == 1 for layer in packed)


def test_an_onnx_file_beside_a_module(tmp_path: Path) -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 5 * 7, 3)).eval(),
        torch.randn(1, 3, 7, 9),
    )
    script = torch.jit.script(model)
    weights = [onnx.numpy_helper.from_array(item.detach().numpy(), name) for name, item in model.named_parameters()]
    nodes = [
        onnx.helper.make_node("Conv", ["x", "0.weight", "0.bias"], ["a"]),
        onnx.helper.make_node("Relu", ["a"], ["b"]),
        onnx.helper.make_node("Flatten", ["b"], ["c"]),
        onnx.helper.make_node("Gemm", ["c", "3.weight", "3.bias"], ["y"], transB=1),
    ]
    kinds = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
        for name, sizes in (("x", [1, 3, 7, 9]), ("y", [1, 3]))
    ]
    graph = onnx.helper.make_graph(nodes, "net", kinds[:1], kinds[1:], weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), str(tmp_path / "m.onnx"))
    found = compare(script, tmp_path / "m.onnx", example_inputs=[x])
    assert found.agrees and not found.unmatched
    assert {layer.nodes[-1] for layer in found.layers} >= {"aten::relu", "aten::linear"}
    weights[0].CopyFrom(onnx.numpy_helper.from_array(-model[0].weight.detach().numpy(), "0.weight"))
    other = onnx.helper.make_graph(nodes, "net", kinds[:1], kinds[1:], weights)
    onnx.save(onnx.helper.make_model(other, opset_imports=[onnx.helper.make_opsetid("", 17)]), str(tmp_path / "n.onnx"))
    wrong = compare(script, tmp_path / "n.onnx", example_inputs=[x])
    assert not wrong.agrees and wrong.culprits == wrong.layers[:1]


def test_batches_give_the_same_and_keep_little(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    script, x = net()
    whole = compare(script, device_b=device.info.name, example_inputs=[x])
    monkeypatch.setattr(comparison_work, "BATCH_BYTES", 8 * 13 * 11 * 4)
    steps: list[str] = []
    parts = compare(script, device_b=device.info.name, example_inputs=[x], show=steps.append)
    assert sum(step.startswith("comparing") for step in steps) == 5
    assert parts.layers == whole.layers


def test_observed_values_are_those_of_plain_calls(device: Device) -> None:
    script, x = net()
    program = whole_source_of(script, [x]).program
    plain, seen = VulkanProgram(program, device), {}
    observed = ObservedProgram(program, device, wanted={f"0.{number}" for number in range(10)})
    result = observed.observe("forward", [x], lambda line, value, tensor: seen.setdefault(value.name, tensor))
    assert torch.equal(plain(x), result)
    assert set(seen) == {"0.in0", *observed.made[0]} and len(observed.made[0]) == 6
    assert torch.equal(seen["0.in0"], x)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        x.mul_(self.count)
        return x + self.count


def test_calls_begin_with_the_state_of_the_model(device: Device) -> None:
    script, x = torch.jit.script(Counter().eval()), torch.randn(2, 3)
    kept = x.clone()
    found = compare(script, device_b=device.info.name, example_inputs=[x])
    assert found.agrees and found.layers and torch.equal(x, kept)
    run = LineRun(whole_source_of(script).program, "forward")
    for _ in range(2):
        torch.testing.assert_close(run.run([x.clone()], lambda line, value, tensor: None), kept + 1)


def test_a_line_in_float64_is_exact() -> None:
    model, x = Cancelling().eval(), torch.rand(3, 1018)
    run = LineRun(whole_source_of(torch.jit.script(model)).program, "forward", in_double)
    found = run.run([x], lambda line, value, tensor: None)
    torch.testing.assert_close(found, model.double()(x.double()))


def test_differences_of_special_values() -> None:
    reference = torch.tensor([1.0, -4.0, math.nan, math.inf, 2.0])
    same = difference(reference, reference)
    assert (same.error, same.mean, same.nans, same.infinities, same.scale) == (0, 0, (1, 1), (1, 1), 4)
    assert same.cosine == pytest.approx(1)
    near = difference(reference, torch.tensor([1.5, -4.0, math.nan, math.inf, 2.0]))
    assert near.error == 0.125 and near.mean == pytest.approx(0.125 / 3)
    assert difference(reference, torch.tensor([1.0, -4.0, 1.0, math.inf, 2.0])).error == math.inf
    assert difference(reference, torch.tensor([1.0, -4.0, math.nan, -math.inf, 2.0])).error == math.inf
    assert difference(torch.zeros(3), torch.zeros(3)).cosine == 1
    assert difference(torch.zeros(3), torch.ones(3)).error == math.inf
    assert difference(torch.zeros(0), torch.zeros(0)).error == 0
    assert difference(torch.tensor([1, 5]), torch.tensor([1, 4])).error == 0.2
    assert difference(torch.tensor([1 + 1j]), torch.tensor([1 - 1j])).error == 2


def test_differences_of_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = torch.randn(7, 31), torch.randn(7, 31)
    whole = difference(one, two)
    monkeypatch.setattr("mobopt.tools.differences._PIECE", 10)
    parts = difference(one, two)
    assert parts.error == whole.error and parts.cosine == pytest.approx(whole.cosine)
    wide = one.double().flatten(), two.double().flatten()
    assert whole.cosine == pytest.approx(float(torch.cosine_similarity(*wide, 0)))
    assert whole.error == pytest.approx(float((wide[0] - wide[1]).abs().max() / wide[0].abs().max()))


def test_differences_are_found_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(
        "mobopt.tools.differences._wide", lambda tensor: counts.append(torch.get_num_threads()) or tensor
    )
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        difference(torch.ones(5), torch.ones(5))
        with pytest.raises(RuntimeError):
            difference(torch.ones(5), torch.ones(7))
        assert set(counts) == {1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_changes_of_ranks() -> None:
    one = torch.tensor([[5.0, 4, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0], [5, 4, 3, 2, 1, 0]])
    two = torch.tensor([[5.0, 4, 3, 2, 1, 0], [4, 5, 3, 2, 1, 0], [5, 4, 3, 1, 2, 0]])
    found = rank_changes(one, two)
    assert found is not None and (found.k, found.rows, found.first, found.order) == (5, 3, 1, 2)
    assert str(found) == "of 3 rows, the largest element is another in 1, the order of the 5 largest in 2"
    single = rank_changes(one[:1], two[2:])
    assert str(single) == "the largest element is the same, the order of the 5 largest another"
    maps = [tensor.T.reshape(1, 6, 3, 1).expand(1, 6, 3, 2) for tensor in (one, two)]
    of_maps = rank_changes(*maps)  # scores of six classes for each place of an image
    assert of_maps is not None and (of_maps.k, of_maps.rows, of_maps.first, of_maps.order) == (5, 6, 2, 4)
    assert rank_changes(torch.ones(3, 1), torch.ones(3, 1)) is None
    assert rank_changes(torch.tensor(1.0), torch.tensor(1.0)) is None


def test_text_of_files_is_escaped_in_pages() -> None:
    script, x = net()
    found = compare(script, device_b="cpu", example_inputs=[x])
    hostile = "<script>alert(1)</script>"
    layer = replace(found.layers[0], nodes=(hostile,), source=(hostile,), name=hostile, verdict=WRONG)
    text = page(replace(found, other=hostile, layers=(layer, *found.layers), unmatched=(hostile,), remarks=(hostile,)))
    assert hostile not in text and text.count("&lt;script&gt;") >= 6
    assert text.count('<li class="agrees"') == len(found.layers) + 1  # one is of the legend
    assert "http" not in text.replace("http-equiv", "")


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x + 2


def test_what_cannot_be_compared_is_said_in_one_message() -> None:
    x = torch.randn(3, 5)
    relu, pair = torch.jit.script(nn.ReLU()), torch.jit.script(Pair())
    with pytest.raises(InputError, match=r"the first returns one tensor \(3x5\), the second 2 tensors"):
        compare(relu, pair, example_inputs=[x])
    with pytest.raises(InputError, match="can't be run on the inputs of the first"):
        compare(relu, torch.jit.script(nn.Linear(4, 5)), example_inputs=[x])
    with pytest.raises(InputError, match="does not take the inputs"):
        compare(relu, torch.jit.script(nn.Bilinear(5, 5, 5)), example_inputs=[x])
    with pytest.raises(InputError, match="has no method 'encode'"):
        compare(relu, method="encode", example_inputs=[x])
    with pytest.raises(InputError, match="float64 is what the CPU computes"):
        compare(relu, device_a="vulkan", device_b="cpu", float64=True, example_inputs=[x])
    with pytest.raises(InputError, match="tolerance"):
        compare(relu, tolerance=math.nan, example_inputs=[x])


def test_precisions_of_both_sides(device: Device) -> None:
    """Values near 200, which halves hold to an eighth, and a layer that takes their difference."""
    script, x = cancelling_in_halves()
    on_cpu = compare(script, example_inputs=[x], device_b="cpu", precision="fp16")
    assert on_cpu.other.endswith("CPU in fp16") and on_cpu.tolerance == 1e-2 and not on_cpu.agrees
    rounded = HalfInterpreter(whole_source_of(script).program).run("forward", [x])
    exact = script(x).detach()
    worst = float((rounded - exact).abs().max() / exact.abs().max())
    assert on_cpu.outputs[0].difference.error == pytest.approx(worst, rel=1e-5)
    name = device.info.name
    alike = compare(script, example_inputs=[x], device_a=name, device_b=name, precision_a="fp16", precision="fp16")
    assert alike.agrees and alike.outputs[0].difference.error == 0 and "fp16" in alike.reference
    apart = compare(script, example_inputs=[x], device_a=name, device_b=name, precision_a="bf16")
    assert apart.tolerance == 8e-2 and "bf16" in apart.reference and not apart.agrees
    for arguments, message in (
        ({"precision": "fp16", "fp32_nodes": "aten::linear", "device_b": "cpu"}, "rounds every result"),
        ({"precision_a": "fp16", "float64": True}, "float64 or in fp16; leave out one"),
        ({"precision": "fp16", "fp32_nodes": "aten::gelu", "device_b": name}, "^fp32_nodes has 'aten::gelu', which no"),
    ):
        with pytest.raises(InputError, match=message):
            compare(script, **{"example_inputs": [x], **arguments})  # type: ignore[arg-type]


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = torch.tanh(torch.sin(x) * 2 + 1)
        right = torch.tanh(torch.cos(x) * 2 + 1)
        return torch.cat([left, right, nn.functional.max_pool2d(x, 1), nn.functional.avg_pool2d(x, 1)])


class OtherOrder(nn.Module):
    """The same, computed in another order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.avg_pool2d(x, 1)
        others = nn.functional.max_pool2d(x, 1)
        right = torch.tanh(torch.cos(x) * 2 + 1)
        left = torch.tanh(torch.sin(x) * 2 + 1)
        return torch.cat([left, right, others, pooled])


def test_branches_in_another_order() -> None:
    """Layers that are alike in all that files tell are given each other's partners: nothing is wrong for that."""
    x = torch.randn(2, 3, 5, 7)
    found = compare(torch.jit.script(Branches()), torch.jit.script(OtherOrder()), example_inputs=[x])
    assert found.agrees and {layer.verdict for layer in found.layers} == {AGREES}
    assert len(found.layers) >= 5
    wrong = torch.jit.script(Changed())
    found = compare(torch.jit.script(Branches()), wrong, example_inputs=[x])
    assert not found.agrees and found.culprits


class Changed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.avg_pool2d(x, 1)
        right = torch.tanh(torch.cos(x) * 2 + 1)
        left = torch.tanh(torch.sin(x) * 3 + 1)
        return torch.cat([left, right, nn.functional.max_pool2d(x, 1), pooled])
