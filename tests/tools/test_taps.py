"""Tapped files: what they return, that they compute what the file without taps does, and what a dump is said to be."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from comparison_models import net
from torch import nn

import mobopt
from mobopt import TapOptions, compare_dump, optimize_for_mobile, tap
from mobopt.bundle import read_bundle
from mobopt.errors import InputError, MoboptError, UnsupportedError
from mobopt.runtimes.cpu import Interpreter
from mobopt.tools import comparison_page
from mobopt.tools.comparison_results import AGREES, DIFFERS, INHERITS, ROUNDING, WRONG
from mobopt.tools.taps.observation import run_watched
from mobopt.tools.taps.places import places_of
from mobopt.tools.taps.statistics import sampling_step
from mobopt.tools.taps.table import TABLE_FILE, table_of

GOLDEN = Path(__file__).parents[1] / "golden"
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
Fault = Callable[[torch.Tensor], torch.Tensor]


def phone_dump(file: Path, faults: Mapping[str, Fault], name: str = "phone.npz") -> Path:
    """What a phone saves whose kernels of some taps are wrong: what comes after them is given their results."""
    program = read_bundle(file, prefer="code")
    table = table_of(program.metadata["extra_files"], file.name)
    places = {
        place.value: faults[key] for key, place in places_of(program.methods[table.tapped]).items() if key in faults
    }
    assert len(places) == len(faults)

    def see(value: Any, result: Any) -> Any:
        return places[value](result) if value in places else result

    (inputs,) = Interpreter(program).run(f"get_all_bundled_inputs_for_{table.tapped}", [])
    taps = run_watched(program, table.tapped, list(inputs), see)
    numpy.savez(file.with_name(name), **{key: tensor.numpy() for key, tensor in taps.items()})
    return file.with_name(name)


@pytest.fixture
def tapped(tmp_path: Path) -> Path:
    script, x = net()
    return tap(script, tmp_path / "net_tapped.ptl", example_inputs=[x], runtime="2.6").file


def test_a_tapped_file_computes_what_it_did(tmp_path: Path) -> None:
    script, x = net()
    plain = optimize_for_mobile(script, backend="vulkan", example_inputs=[x], runtime="2.6")
    done = tap(plain, tmp_path / "net_tapped.ptl", example_inputs=[x])
    program = read_bundle(done.file)
    before = Interpreter(plain.program).run("forward", [x])
    assert torch.equal(Interpreter(program).run("forward", [x]), before)
    taps = Interpreter(program).run("tapped", [x])
    again = Interpreter(program).run("tapped_example", [])
    assert torch.equal(taps["output"], before) and torch.equal(taps["input.x"], x)
    assert list(taps) == list(again) == [item.key for item in done.table.taps]
    assert all(torch.equal(taps[key], again[key]) for key in taps)
    (bundled,) = Interpreter(program).run("get_all_bundled_inputs_for_tapped", [])
    assert torch.equal(bundled[0], x)
    with numpy.load(done.expected) as expected:
        assert all(numpy.array_equal(expected[key], taps[key].numpy()) for key in taps)
    operators = [node.qualified_op for node in plain.program.methods["forward"].walk()]
    assert [node.qualified_op for node in program.methods["forward"].walk() if node.op != "prim::Constant"] == operators


def test_values_are_those_of_the_model_and_what_has_none_is_named(tmp_path: Path) -> None:
    script, x = net()
    done = tap(script, tmp_path / "t.ptl", example_inputs=[x], runtime="2.6")
    taps = Interpreter(read_bundle(done.file)).run("tapped", [x])
    by_end = {item.origin[-1].partition(" %")[0]: taps[item.key] for item in done.table.taps if item.origin}
    model = script
    stem = torch.relu(model.norm(model.stem(x)))
    torch.testing.assert_close(
        by_end["aten::mean"], torch.tanh(2 * torch.relu(model.body(stem) + stem)).mean([2, 3]), **CLOSE
    )
    first = next(item for item in done.table.taps if item.node.startswith("vulkan_prepack::run_conv2d_context"))
    torch.testing.assert_close(taps[first.key], stem, **CLOSE)
    assert [text.partition(" %")[0] for text in first.inside] == ["aten::conv2d", "aten::batch_norm"]
    assert {text.partition(" %")[0] for text in done.vanished} == {"aten::conv2d", "aten::batch_norm"}
    assert first.key in done.vanished.values()


def test_globs_choose(tmp_path: Path) -> None:
    script, x = net()

    def chosen(*nodes: str) -> list[str]:
        done = tap(script, tmp_path / "t.ptl", example_inputs=[x], nodes=nodes, runtime="2.6")
        return [item.node.partition(" %")[0] for item in done.table.taps if item.key[0].isdigit()]

    assert chosen("tanh") == chosen("aten::tanh") == ["aten::tanh"]
    assert chosen("batch_norm")[-1] == "vulkan_prepack::run_conv2d_context"  # of which it is a part
    assert "vulkan_prepack::run_linear_context" in chosen("head")
    assert chosen("tanh", "aten::me*") == ["aten::tanh", "aten::mean"]
    assert not tap(script, tmp_path / "t.ptl", example_inputs=[x], nodes=["tanh"], runtime="2.6").vanished
    with pytest.raises(InputError, match=r"no node is named 'tan'; such names are .*tanh"):
        chosen("tan")
    with pytest.raises(InputError, match="no node is named 'softmax'"):
        chosen("tanh", "softmax")


def test_a_wrong_kernel_is_told_from_what_it_is_given(tapped: Path) -> None:
    table = table_of(read_bundle(tapped).metadata["extra_files"], "")
    key = next(item.key for item in table.taps if item.node.startswith("aten::tanh"))
    found = compare_dump(tapped, phone_dump(tapped, {key: lambda value: 2 * value}))
    verdicts = {layer.name: layer.verdict for layer in found.layers}
    assert not found.agrees and [layer.name for layer in found.culprits] == [key]
    at = list(verdicts).index(key)
    assert set(list(verdicts.values())[:at]) == {AGREES} and set(list(verdicts.values())[at + 1 :]) == {INHERITS}
    assert found.layers[at].own is not None and found.layers[at].own.error == pytest.approx(1.0)
    assert all(layer.own is not None and layer.own.error == 0 for layer in found.layers[at + 1 :])
    assert found.outputs[0].difference.error > 0.01


def test_what_the_cpu_saves_agrees(tapped: Path) -> None:
    found = compare_dump(tapped, tapped.with_suffix(".expected.npz"))
    assert found.agrees and found.first is None and not found.unmatched and not found.remarks
    assert all(layer.total.error == 0 for layer in found.layers) and found.unseen == 0
    double = compare_dump(tapped, tapped.with_suffix(".expected.npz"), float64=True, tolerance=0)
    assert double.agrees and {layer.verdict for layer in double.layers} <= {AGREES, ROUNDING}
    assert 0 < double.outputs[0].difference.error < 1e-6


def test_inputs_of_the_app_are_compared_on(tapped: Path) -> None:
    taps = Interpreter(read_bundle(tapped)).run("tapped", [torch.randn(1, 3, 17, 13)])
    numpy.savez(tapped.with_name("app.npz"), **{key: tensor.numpy() for key, tensor in taps.items()})
    found = compare_dump(tapped, tapped.with_name("app.npz"))
    assert found.agrees and found.inputs == "input.x"


def test_large_values_are_seen_by_statistics(tmp_path: Path) -> None:
    script, x = net()
    options = TapOptions(most=50, samples=64)
    done = tap(
        script, tmp_path / "t.ptl", example_inputs=[x], nodes=["run_conv2d_context", "mean", "tanh"], options=options
    )
    forms = {item.key: item.form for item in done.table.taps}
    assert set(forms.values()) == {"elements", "statistics"}
    taps = Interpreter(read_bundle(done.file)).run("tapped", [x])
    key = next(item.key for item in done.table.taps if item.node.startswith("aten::tanh"))
    stem = torch.relu(script.norm(script.stem(x)))
    value = torch.tanh(2 * torch.relu(script.body(stem) + stem)).double()
    flat, step = value.flatten(), next(item.step for item in done.table.taps if item.key == key)
    expected = [value.min(), value.max(), value.mean(), value.std(unbiased=False), torch.tensor(0.0), torch.tensor(0.0)]
    torch.testing.assert_close(taps[key], torch.cat([torch.stack(expected).double(), flat[::step]]), **CLOSE)
    assert 32 <= len(taps[key]) - 6 <= 64
    assert compare_dump(done.file, done.expected).agrees
    found = compare_dump(done.file, phone_dump(done.file, {key: lambda value: value * 1.1}))
    verdicts = [layer.verdict for layer in found.layers]
    assert verdicts == [AGREES, AGREES, WRONG, INHERITS]
    assert any("a few wrong elements may not be seen" in remark for remark in found.remarks)

    def with_nan(value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        value[0, 0, 0, 1] = float("nan")
        return value

    broken = compare_dump(done.file, phone_dump(done.file, {key: with_nan}))
    layer = next(layer for layer in broken.layers if layer.name == key)
    assert layer.verdict == WRONG and layer.total.nans == (0, 1)
    assert next(layer for layer in broken.layers if layer.name > key).verdict in (INHERITS, DIFFERS)


@pytest.mark.parametrize(("numel", "samples"), [(5000, 64), (64 * 64, 100), (3, 1024), (1, 1), (224 * 224 * 64, 1024)])
def test_samples_run_through_all_rows(numel: int, samples: int) -> None:
    step = sampling_step(numel, samples)
    assert 1 <= len(range(0, numel, step)) <= samples and numpy.gcd(step, numel) == 1


class Writing(nn.Module):
    """Writes over what was tapped, gives a nest, and takes more than tensors."""

    def forward(
        self, x: torch.Tensor, scale: float, more: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        y = x * scale
        y.relu_()
        flags = y > 0.5
        halves = y.half()
        for item in more:
            y = y + item
        return y, {"a": flags, "b": halves}


def test_values_are_copied_before_they_are_written_over(tmp_path: Path) -> None:
    x, more = torch.randn(3, 5), [torch.randn(3, 5), torch.ones(5)]
    script = torch.jit.script(Writing().eval())
    done = tap(script, tmp_path / "t.ptl", example_inputs=[x, -2.0, more], backend="cpu")
    taps = Interpreter(read_bundle(done.file)).run("tapped_example", [])
    by_node = {item.node.partition(" %")[0]: taps[item.key] for item in done.table.taps if item.key in taps}
    assert torch.equal(by_node["aten::mul"], -2 * x) and torch.equal(by_node["aten::gt"], (-2 * x > 0.5).byte())
    result = script(x, -2.0, more)
    assert torch.equal(taps["output.0"], result[0]) and taps["output.1.a"].dtype == torch.uint8
    assert torch.equal(taps["output.1.b"], result[1]["b"].float())
    assert {item.key: item.dtype for item in done.table.taps}["output.1.a"] == "bool"
    found = compare_dump(done.file, done.expected)
    assert found.agrees and found.inputs == "input.x"


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 0:
            x = torch.tanh(x)
        else:
            x = torch.cos(x) + 1
        return x * 2


def save(taps: Mapping[str, torch.Tensor], file: Path) -> Path:
    numpy.savez(file, **{key: tensor.numpy() for key, tensor in taps.items()})
    return file


def test_branches_return_what_they_come_to(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    script = torch.jit.script(Branching())
    done = tap(script, tmp_path / "t.ptl", example_inputs=[x], backend="cpu")
    assert any("that the example does not come to: aten::cos" in remark for remark in done.remarks)
    seen, cosine, sum_ = (item for item in done.table.taps if item.repeats)
    assert seen.sizes == (2, 3) and cosine.sizes is None and cosine.node.startswith("aten::cos")
    program = read_bundle(done.file)
    taps = Interpreter(program).run("tapped", [x])
    assert torch.equal(taps[f"{seen.key}.0"], torch.tanh(x)) and compare_dump(done.file, done.expected).agrees
    assert not any(name.startswith((cosine.key, sum_.key)) for name in taps)


def test_branches_that_the_example_does_not_come_to_return_where_a_phone_does(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    script = torch.jit.script(Branching())
    done = tap(script, tmp_path / "t.ptl", example_inputs=[x], backend="cpu", nodes=["cos", "tanh"])
    tanh, cosine = (item for item in done.table.taps if item.repeats)
    other = Interpreter(read_bundle(done.file)).run("tapped", [-x])
    assert torch.equal(other[f"{cosine.key}.0"], torch.cos(-x))
    assert not any(name.startswith(tanh.key) for name in other)
    found = compare_dump(done.file, save(other, tmp_path / "other.npz"))
    assert found.agrees and [layer.sizes for layer in found.layers] == [(2, 3)]
    larger = Interpreter(read_bundle(done.file)).run("tapped", [torch.ones(5, 7)])
    found = compare_dump(done.file, save(larger, tmp_path / "larger.npz"))
    assert found.agrees and {item.sizes for item in (*found.layers, *found.outputs)} == {(5, 7)}
    wrong = {**other, f"{cosine.key}.0": other[f"{cosine.key}.0"] + 0.5}
    found = compare_dump(done.file, save(wrong, tmp_path / "wrong.npz"))
    assert [layer.verdict for layer in found.layers] == ["wrong"]


class Masks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) > 0:
            mask = x > 0.5
            return mask.float() + x.double().long().float()
        return x


def test_what_is_not_reached_comes_as_float32(tmp_path: Path) -> None:
    x = torch.tensor([[0.25, 0.75, 3.0]])
    done = tap(torch.jit.script(Masks()), tmp_path / "t.ptl", example_inputs=[-x], backend="cpu")
    taps = Interpreter(read_bundle(done.file)).run("tapped", [x])
    by_node = {item.node.partition(" %")[0]: taps.get(f"{item.key}.0") for item in done.table.taps if item.repeats}
    assert by_node["aten::gt"].equal(torch.tensor([[0.0, 1.0, 1.0]]))
    assert all(tensor.dtype == torch.float32 for tensor in by_node.values())


def test_a_phone_that_went_another_way_is_told(tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    done = tap(torch.jit.script(Branching()), tmp_path / "t.ptl", example_inputs=[x], backend="cpu")
    program = read_bundle(done.file)
    here, there = (Interpreter(program).run("tapped", [given]) for given in (x, -x))
    found = compare_dump(done.file, save({**there, "input.x": x}, tmp_path / "phone.npz"))
    assert not found.agrees and found.unseen == 1
    assert any("missing where the phone went another way" in remark for remark in found.remarks)
    found = compare_dump(done.file, save({**here, "input.x": -x}, tmp_path / "back.npz"))
    assert any("for which there is nothing on the CPU: a branch" in text for text in found.unmatched)


class Turning(nn.Module):
    """Nested loops that carry values, fill a list, and write over what they made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor, turns: int) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for turn in range(turns):
            x = torch.tanh(self.layer(x))
            if turn > 0:
                for _ in range(turns - 1):
                    x = torch.sin(x)
            kept.append(x)
            x = x * 1.5
            x.add_(1)
        return torch.cat(kept) - 1


def test_each_turn_of_a_loop_is_returned(tmp_path: Path) -> None:
    torch.manual_seed(3)
    script, x = torch.jit.script(Turning().eval()), torch.randn(3, 5)
    done = tap(script, tmp_path / "t.ptl", example_inputs=[x, 3], backend="cpu")
    taps = Interpreter(read_bundle(done.file)).run("tapped", [x, 3])
    keys = {item.node.partition(" %")[0].rpartition("::")[2]: item.key for item in done.table.taps if item.repeats}
    expected: dict[str, list[torch.Tensor]] = {"tanh": [], "sin": [], "mul": []}
    y = x
    for turn in range(3):
        y = torch.tanh(script.layer(y))
        expected["tanh"].append(y)
        for _ in range(2 if turn else 0):
            y = torch.sin(y)
            expected["sin"].append(y)
        y = y * 1.5
        expected["mul"].append(y)
        y = y + 1
    for name, values in expected.items():
        found = [taps.get(f"{keys[name]}.{turn}") for turn in range(len(values) + 1)]
        assert found.pop() is None
        torch.testing.assert_close(found, values, **CLOSE)
    agreed = compare_dump(done.file, done.expected)
    assert agreed.agrees and agreed.unseen == 0 and all(layer.own is not None for layer in agreed.layers)
    assert [layer.turn for layer in agreed.layers if layer.name.startswith(keys["sin"])] == [0, 1, 2, 3]


def test_the_turn_that_is_wrong_is_told_from_those_after_it(tmp_path: Path) -> None:
    torch.manual_seed(3)
    script, x = torch.jit.script(Turning().eval()), torch.randn(3, 5)
    done = tap(script, tmp_path / "t.ptl", example_inputs=[x, 3], backend="cpu")
    key = next(item.key for item in done.table.taps if item.node.startswith("aten::tanh"))
    turns: list[int] = []

    def in_the_second_turn(value: torch.Tensor) -> torch.Tensor:
        turns.append(len(turns))
        return value * 2 if len(turns) == 2 else value

    found = compare_dump(done.file, phone_dump(done.file, {key: in_the_second_turn}))
    assert [layer.name for layer in found.culprits] == [f"{key}.1"] and found.first is found.culprits[0]
    at = found.layers.index(found.culprits[0])
    assert {layer.verdict for layer in found.layers[:at]} == {AGREES}
    assert {layer.verdict for layer in found.layers[at + 1 :]} == {INHERITS}
    assert all(layer.own is not None and layer.own.error < 1e-6 for layer in found.layers[at + 1 :])


def test_large_values_of_loops_are_seen_by_statistics(tmp_path: Path) -> None:
    script, x = torch.jit.script(Turning().eval()), torch.randn(3, 5)
    done = tap(script, tmp_path / "t.pt", example_inputs=[x, 2], backend="cpu", options=TapOptions(most=4, samples=5))
    assert compare_dump(done.file, done.expected).agrees
    key = next(item.key for item in done.table.taps if item.node.startswith("aten::tanh"))
    found = compare_dump(done.file, phone_dump(done.file, {key: lambda value: value * 1.1}))
    assert found.first is not None and (found.first.name, found.first.verdict) == (f"{key}.0", WRONG)


def test_values_are_copied_at_the_end_or_at_once(tmp_path: Path) -> None:
    script, x = net()
    for at_once in (False, True):
        done = tap(script, tmp_path / "t.ptl", example_inputs=[x], options=TapOptions(at_once=at_once))
        nodes = [node.op for node in read_bundle(done.file).methods["tapped"].walk() if not node.op.startswith("prim")]
        assert (nodes[nodes.index("aten::tanh") + 1] == "aten::to") == at_once
        assert compare_dump(done.file, done.expected).agrees


@pytest.mark.parametrize(
    ("release", "name"),
    [
        *(("pt1.13.1", name) for name in ("vulkan.ptl", "vulkan.pt", "metal.ptl", "cpu.pt")),
        *(("pt2.13.0", name) for name in ("vulkan.ptl", "vulkan_notransfer.pt", "metal.pt")),
    ],
)
def test_files_of_pytorch_are_tapped_as_they_are(release: str, name: str, tmp_path: Path) -> None:
    file = GOLDEN / release / "convbnrelu6" / name
    x = torch.from_numpy(numpy.load(file.with_name("input_0.npy")))
    done = tap(file, tmp_path / f"t{file.suffix}", example_inputs=[x])
    program = read_bundle(done.file)
    taps = Interpreter(program).run("tapped", [x])
    assert torch.equal(taps["output"], Interpreter(read_bundle(file)).run("forward", [x]))
    moves = name.startswith("cpu") or (release, name) == ("pt2.13.0", "vulkan.ptl")
    assert bool(done.table.example) == moves and any("the app must" in remark for remark in done.remarks) != moves
    copies = [node for node in program.methods["tapped"].walk() if node.op == "metal::copy_to_host"]
    assert bool(copies) == name.startswith("metal")
    assert compare_dump(done.file, done.expected).agrees
    with pytest.raises(InputError, match="optimised already"):
        tap(file, tmp_path / "u.ptl", example_inputs=[x], backend="vulkan")
    with pytest.raises(UnsupportedError, match="it has taps already"):
        tap(done.file, tmp_path / "u.ptl", example_inputs=[x])


def test_another_method_and_an_older_bytecode(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @torch.jit.export
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x) * 3

    module = optimize_for_mobile(torch.jit.script(Two()), preserved_methods=["encode"], backend="CPU")
    buffer = tmp_path / "two.ptl"
    from mobopt.bundle import write_lite

    write_lite(module.program, buffer, bytecode_version=6)
    x = torch.randn(4)
    done = tap(buffer, tmp_path / "t.ptl", method="encode", example_inputs={"encode": [x]})
    program = read_bundle(done.file)
    assert program.metadata["bytecode_version"] == 6
    taps = Interpreter(program).run("tapped_encode_example", [])
    assert torch.equal(taps["output"], torch.tanh(x) * 3) and torch.equal(taps["001.tanh"], torch.tanh(x))
    assert compare_dump(done.file, done.expected).agrees
    with pytest.raises(InputError, match="has no method 'decode'; its methods are"):
        tap(buffer, tmp_path / "t.ptl", method="decode")


def test_bad_dumps_are_refused_with_one_message(tapped: Path, tmp_path: Path) -> None:
    def refused(dump: Path, text: str) -> None:
        with pytest.raises(InputError, match=text):
            compare_dump(tapped, dump)

    refused(tmp_path / "none.npz", "can't read the dump")
    (tmp_path / "text.npz").write_text("no archive")
    refused(tmp_path / "text.npz", "can't be read")
    numpy.savez(tmp_path / "other.npz", image=numpy.zeros(3))
    refused(tmp_path / "other.npz", "is not of this file: its names are image")
    numpy.save(tmp_path / "one.npy", numpy.zeros(3))
    refused(tmp_path / "one.npy", "it is no archive of arrays with names")
    with numpy.load(tapped.with_suffix(".expected.npz")) as archive:
        arrays = dict(archive)
    numpy.savez(tmp_path / "sizes.npz", **{**arrays, "output": arrays["output"][:, 1:]})
    refused(tmp_path / "sizes.npz", r"output has the sizes \[\d+, 10\] in sizes.npz, and")
    numpy.savez(tmp_path / "objects.npz", **{**arrays, "output": numpy.array(["text"])})
    refused(tmp_path / "objects.npz", "it has elements of <U4")
    numpy.savez(tmp_path / "inputs.npz", **{"input.x": arrays["input.x"]})
    refused(tmp_path / "inputs.npz", "has the inputs alone")
    with zipfile.ZipFile(tmp_path / "cut.npz", "w") as archive:
        archive.writestr("output.npy", b"\x93NUMPY\x01\x00")
    refused(tmp_path / "cut.npz", "can't be read")


def test_a_folder_and_a_part_of_the_taps(tapped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    with numpy.load(tapped.with_suffix(".expected.npz")) as archive:
        for key in archive.files[1:]:
            numpy.save(folder / f"{key}.npy", archive[key])
    numpy.save(folder / "more.npy", numpy.zeros(3))
    found = compare_dump(tapped, folder)
    assert found.agrees and found.unseen == 1 and found.inputs == "those that the file holds"
    assert found.unmatched == ("more, which is no tap of the file",)
    assert any("not in the dump: input.x" in remark for remark in found.remarks)
    (folder / "output.npy").unlink()
    without = compare_dump(tapped, folder)
    assert not without.outputs and "The layers agree; no output was compared." in comparison_page.page(without)


def test_tables_of_files_are_checked(tapped: Path) -> None:
    extra = read_bundle(tapped).metadata["extra_files"]
    data = json.loads(extra[TABLE_FILE])
    for change in (
        {"format": 1},
        {"taps": [{**data["taps"][0], "sizes": ["a"]}]},
        {"taps": [{**data["taps"][0], "form": "all"}]},
        {"taps": [{**data["taps"][0], "step": 0}]},
        {"taps": 3},
        {"tapped": 4},
    ):
        with pytest.raises(InputError, match=r"mobopt_taps\.json can't be read"):
            table_of({TABLE_FILE: json.dumps({**data, **change}).encode()}, "t.ptl")
    with pytest.raises(InputError, match="has no taps; make a file"):
        table_of({}, "t.ptl")


def test_bad_options_write_nothing(tmp_path: Path) -> None:
    script, x = net()
    torch.jit.save(script, str(tmp_path / "m.pt"))
    before = sorted(tmp_path.iterdir())
    bad: list[tuple[dict[str, Any], str]] = [
        ({"output": tmp_path / "t.onnx"}, "name it .ptl"),
        ({"output": tmp_path / "no" / "t.ptl"}, "there is no folder"),
        ({"output": tmp_path / "m.pt"}, "it is read as well"),
        ({"options": TapOptions(samples=0)}, "a sample of 0"),
        ({"options": TapOptions(most=-1)}, "give 0 or more"),
        ({"package": "a b"}, "package"),
        ({"nodes": []}, "no node is named"),
        ({"example_inputs": [torch.zeros(3)]}, "can't be run"),
    ]
    for change, text in bad:
        arguments = {"output": tmp_path / "t.ptl", "example_inputs": [x], **change}
        with pytest.raises(MoboptError, match=re.escape(text)):
            tap(tmp_path / "m.pt", arguments.pop("output"), **arguments)
    assert sorted(tmp_path.iterdir()) == before


def test_snippets_call_what_the_api_has(tapped: Path) -> None:
    import tomllib

    api = tomllib.loads((Path(__file__).parent / "app_kit" / "mobile_api.toml").read_text())["java"]
    kotlin, swift = (
        tapped.with_name("NetTappedTaps.kt").read_text(),
        tapped.with_name("NetTappedTaps.swift").read_text(),
    )
    for receiver, name in (
        ("tensor", "Tensor"),
        ("taps", "IValue"),
        ("module", "Module"),
        ("LiteModuleLoader", "LiteModuleLoader"),
    ):
        methods = {re.search(r"(\w+)\(", text)[1] for text in api[f"org.pytorch.{name}"]["methods"]}  # type: ignore[index]
        called = set(re.findall(rf"\b{receiver}\.(\w+)\(", kotlin))
        assert called and called <= methods, (receiver, called - methods)
    assert set(re.findall(r"DType\.(\w+)", kotlin)) <= set(api["org.pytorch.DType"]["constants"])
    assert 'module.runMethod("tapped_example")' in kotlin and "package com.example.model\n" in kotlin
    assert "[String: NetTappedTensor]" in swift and not re.search(r"\$[A-Z]", swift + kotlin)
    for text in (kotlin, swift):
        plain = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)
        assert all(plain.count(left) == plain.count(right) for left, right in ("()", "[]", "{}"))
    kit = mobopt.app_kit(tapped, tapped.with_name("kit"))  # the class that the Swift code is for
    assert kit.class_name == "NetTapped" and {"forward", "tapped"} == set(kit.tested)


def test_npy_headers_of_the_snippets_are_numpy_s() -> None:
    """The arithmetic of the Kotlin and Swift code, in Python."""
    for sizes in ((), (3,), (1, 64, 112, 112), tuple(range(1, 40))):
        text = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "".join(f"{size}, " for size in sizes) + "), }"
        length = (len(text) + 74) // 64 * 64 - 10
        header = b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"
        assert len(header) % 64 == 0
        stream = io.BytesIO(header)
        assert numpy.lib.format.read_magic(stream) == (1, 0)
        assert numpy.lib.format.read_array_header_1_0(stream) == (sizes, False, numpy.dtype("<f4"))
