"""ExportedPrograms and .pt2 files as sources."""

from __future__ import annotations

import copy
import io
import json
import math
import random
import re
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from exported_nets import TURNS, example, exported, net, turns_net
from torch.export import ExportedProgram
from torch.jit.mobile import _load_for_lite_interpreter
from torch.utils import _pytree as pytree

from mobopt import optimize_for_mobile
from mobopt.bundle.container import ArchiveReader, ArchiveWriter
from mobopt.errors import BundleError, InputError, MissingInputError, MoboptError, UnsupportedError
from mobopt.frontends.exported.exported_program import ExportedFileSource, ExportedProgramSource, _archived
from mobopt.frontends.exported.nodes import source_of_metadata
from mobopt.frontends.open_source import source_of
from mobopt.frontends.source import Source
from mobopt.ir import print_graph
from mobopt.ir.arguments import bind_arguments
from mobopt.ir.input_rules import Condition
from mobopt.runtimes.cpu import Interpreter
from mobopt.samples.agreement import compare


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return exported()


@pytest.fixture(scope="module")
def file(program: ExportedProgram, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "net.pt2"
    torch.export.save(program, path)
    return path


@pytest.fixture(scope="module")
def source(program: ExportedProgram) -> Source:
    return source_of(program)


def graph_text(source: Source) -> str:
    return print_graph(source.program.methods["forward"])


def test_a_program_and_its_file_become_the_same_graph(source: Source, file: Path) -> None:
    from_file = source_of(file)
    assert (type(source), type(from_file)) == (ExportedProgramSource, ExportedFileSource)
    assert graph_text(from_file) == graph_text(source)
    assert set(from_file.program.attributes) == set(source.program.attributes) == {"count", "mean"}


@pytest.mark.parametrize("size", [(2, 8), (5, 6), (9, 10), (3, 1)])
def test_results_and_state_are_those_of_the_model(source: Source, file: Path, size: tuple[int, int]) -> None:
    model, interpreter = net(), Interpreter(source.program)
    calls = [source.caller(), source_of(file).caller()]
    calls.append(lambda given: interpreter.run("forward", bind_arguments(source.program, "forward", given, {})))
    for _ in range(3):  # the state counts calls
        expected = pytree.tree_leaves(model(*example(*size)))
        results = [call(copy.deepcopy(example(*size))) for call in calls]
        for result in results:
            assert compare(result, results[0]).relative <= 1e-6
            leaves = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in expected]
            assert compare(pytree.tree_leaves(result), leaves).relative <= 1e-6


def test_nests_keep_their_names(source: Source) -> None:
    named, pair, *_ = source.caller()(example())
    assert named._fields == ("z", "parts", "rows") and named.rows == 2
    assert pair._fields == ("first", "second")


def kinds_of_nodes(source: Source, pattern: str) -> list[str]:
    lines = (line.strip() for line in graph_text(source).splitlines())
    return [re.sub(r"%[^\s,()]+", "%", line) for line in lines if re.search(pattern, line)]


def test_sizes_are_computed_in_the_graph(source: Source) -> None:
    assert kinds_of_nodes(source, "int = aten") == [
        "% : int = aten::size(%, %)",
        "% : int = aten::size(%, %)",
        "% : int = aten::mul(%, %)",
        "% : int = aten::floordiv(%, %)",
        "% : int = aten::add(%, %)",
        "% : int = aten::sub(%, %)",
    ]


@pytest.fixture(scope="module")
def turns() -> Source:
    return source_of(TURNS)


@pytest.mark.parametrize("scale", [1.0, -1.0, 3.0])
def test_branches_and_loops(turns: Source, scale: float) -> None:
    x = torch.tensor([[0.5, 1.0], [1.5, -0.25], [1.0, 1.0]]) * scale
    with torch.no_grad():
        expected = turns_net()(x)
    for call in (turns.caller(), lambda inputs: Interpreter(turns.program).run("forward", inputs)):
        assert compare(call([x]), expected).relative <= 1e-6


def test_the_text_of_branches_and_loops(turns: Source) -> None:
    assert kinds_of_nodes(turns, r"Tensor = prim::(If|Loop)|aten::item|Raise") == [
        "% : Tensor, % : Tensor = prim::If(%)",
        "% : Tensor, % : Tensor = prim::Loop(%, %, %, %)",
        "% : Scalar = aten::item(%)",
        *["= prim::RaiseException(%, %)"] * 3,
    ]


def test_checks_of_numbers_are_kept(turns: Source) -> None:
    with pytest.raises(InputError, match="Runtime assertion failed for expression u1 <= 39"):
        Interpreter(turns.program).run("forward", [torch.full((3, 2), 20.0)])


def test_origins_are_lines_of_the_users_file(source: Source) -> None:
    lines = {node.op: node.source for node in source.program.methods["forward"].walk()}
    assert re.fullmatch(r"exported_nets\.py:\d+ in conv", lines["aten::conv2d"])
    assert lines["aten::size"] == ""


def test_lines_of_torchs_own_files_stand_in_only_where_there_are_no_others() -> None:
    own, torchs = 'File "/home/me/net.py", line 3, in forward', 'File "/x/torch/nn/modules/conv.py", line 9, in forward'
    stack = {"nn_module_stack": "L__self__,,Net;L__self__a,a.b,torch.nn.Conv2d"}
    assert source_of_metadata({"stack_trace": f"{own}\n  y\n{torchs}\n z"} | stack) == "net.py:3 in a.b"
    assert source_of_metadata({"stack_trace": torchs}) == "conv.py:9"
    assert source_of_metadata({"stack_trace": 'File "torch/fx/passes/runtime_assert.py", line 24, in x'}) == ""
    assert source_of_metadata({}) == ""


def test_examples_come_with_a_program(source: Source) -> None:
    (call,) = source.example_calls()
    assert torch.equal(call[0], example()[0]) and call[2:] == [2.0, None]
    assert source.example_calls("encode") == []


def test_ranges_of_sizes_are_kept(source: Source) -> None:
    rules = source.program.metadata["input_rules"]["forward"]
    rows, _, height, _ = rules.inputs["x"].sizes
    assert (rows.lower, rows.upper, height.lower) == (0, 9, 0)


def changed(change: Callable[[list[Any]], Any]) -> list[Any]:
    inputs = example()
    change(inputs)
    return inputs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i.__setitem__(0, torch.zeros(10, 3, 8, 8)), "dimension 0 of the input 'x' is 10.*takes 0 to 9"),
        (lambda i: i.__setitem__(0, torch.zeros(2, 3, 8, 9)), "dimension 3 of the input 'x' is 9.*exported for 8"),
        (lambda i: i.__setitem__(0, torch.zeros(2, 3, 8)), "'x' has 3 dimensions, .* for 4"),
        (lambda i: i.__setitem__(0, i[0].double()), "'x' is of torch.float64, .* for torch.float32"),
        (lambda i: i.__setitem__(0, "x"), "'x' is a str, and the model takes a tensor"),
        (lambda i: i.__setitem__(1, [torch.ones(2)]), "'pair' is a list, .* takes a list or tuple of 2"),
        (lambda i: i[1][1].clear(), r"'pair'\[1\] is a dict, and the model takes a dictionary of 1"),
        (lambda i: i.append(3.0), "'scale' is 3.0, and the model was exported for 2.0"),
        (lambda i: i.extend([2.0, torch.ones(1)]), "'mask' is a tensor.*exported for None"),
    ],
)
def test_inputs_that_the_graph_was_not_made_for_are_refused(
    source: Source, change: Callable[[list[Any]], Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        bind_arguments(source.program, "forward", changed(change), {})


class Chosen(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, flag: bool, count: int, name: str, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        y = x * count if flag else x - count
        return y if mask is None else y + mask


_OTHERS = [(1, False, "flag = True"), (2, 3, "count = 2"), (3, "b", "name = 'a'"), (4, torch.ones(2, 3), "mask = None")]


@pytest.mark.parametrize("form", ["pt", "ptl"])
def test_a_phones_file_refuses_what_it_would_ignore(form: str, tmp_path: Path) -> None:
    inputs = [torch.randn(2, 3), True, 2, "a", None]
    program = torch.export.export(Chosen(), tuple(inputs))
    module = optimize_for_mobile(program, example_inputs=inputs)
    path = tmp_path / f"model.{form}"
    if form == "pt":
        torch.jit.save(module, path)  # type: ignore[no-untyped-call]
        loaded = torch.jit.load(path)  # type: ignore[no-untyped-call]
    else:
        module._save_for_lite_interpreter(str(path))
        loaded = _load_for_lite_interpreter(str(path))
    assert torch.equal(loaded(*inputs), inputs[0] * 2)
    for place, value, message in _OTHERS:
        with pytest.raises((RuntimeError, torch.jit.Error), match=f"exported for {message}, and ignores other values"):
            loaded(*inputs[:place], value, *inputs[place + 1 :])


def test_a_missing_input_is_named(source: Source) -> None:
    with pytest.raises(MissingInputError, match="pair missing"):
        bind_arguments(source.program, "forward", example()[:1], {})


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("L['x'].size()[0] <= 2*L['x'].size()[1]", True),
        ("(L['x'].size()[1] % 2) == 1 and not L['x'].size()[0] == 3", True),
        ("L['z'][1].size()[0] == 5 and (2*math.ceil((1 + L['z'][0].size()[1]) / 2)) == 8", True),
        ("math.trunc(torch.sym_float(L['x'].size()[0] * 8) ** 0.5) == 4 and L['z'][2].size()[0] == 1", False),
        ("max(L['x'].size()[0], 3) != 3 or -L['y'][0].size()[0] // 2 > 0", False),
        ("(64*L['x'].size()[1]) != torch.sym_max(1, (-1) + 2*torch.sym_min(L['x'].size()[0], 7))", True),
    ],
)
def test_conditions_on_sizes(text: str, holds: bool) -> None:
    """``z`` are two inputs, of ``*z``."""
    inputs = {"x": torch.zeros(2, 3), "y": [torch.zeros(4)], "z_0": torch.zeros(1, 6), "z_1": torch.zeros(5)}
    assert Condition(text).holds(inputs) is holds


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "torch.load(1)", "L['x'].data_ptr() == 0", "L.__class__", "x", "1 +", "L['x']()", "9**9 > 1"],
)
def test_conditions_are_no_code(text: str) -> None:
    with pytest.raises(MoboptError):
        Condition(text)


class Scaled(torch.nn.Module):
    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.norm, self.rate = torch.nn.BatchNorm1d(3), rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(self.norm(x), self.rate, self.training)


def test_a_program_in_training_mode_is_refused() -> None:
    program = torch.export.export(Scaled().train(), (torch.ones(4, 3),))
    with pytest.raises(InputError, match=r"batch_norm.*in training mode; call eval\(\)"):
        source_of(program)


def test_regions_of_autocast_are_refused() -> None:
    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return x @ x

    with pytest.raises(UnsupportedError, match=r"torch\.autocast"):
        source_of(torch.export.export(Mixed(), (torch.ones(2, 2),)))


OLDER = sorted((Path(__file__).parents[1] / "golden" / "exported").glob("*.pt2"))


@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.stem)
def test_files_of_older_releases(path: Path) -> None:
    """Their weights are pickles; those of 2.6 and 2.7 have no folder around their records."""
    expected = {name: torch.from_numpy(value) for name, value in numpy.load(path.parent / "expected.npz").items()}
    x = expected.pop("x")
    module = optimize_for_mobile(path, backend="vulkan", runtime="mobopt")
    for calls in (1, 2):
        torch.testing.assert_close(module(x), expected, rtol=0, atol=1e-6)
        assert dict(module.named_buffers())["calls"] == calls
    assert module(x[:1].repeat(7, 1, 1, 1))["classes"].shape == (7, 7)
    with pytest.raises(InputError, match="dimension 0 of the input 'x' is 9"):
        module(x[:1].repeat(9, 1, 1, 1))


@pytest.mark.parametrize(
    ("record", "content", "message"),
    [
        ("serialized_state_dict.pt", [1], "it is no dictionary"),
        ("serialized_state_dict.pt", {"conv.weight": 3}, "int for 'conv.weight'"),
        ("serialized_state_dict.pt", {"conv.weight": Fraction(1, 3)}, "names the global fractions.Fraction"),
        ("serialized_exported_program.json", None, "damaged record"),
    ],
)
def test_damaged_and_hostile_files_of_older_releases(record: str, content: Any, message: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    changed = tmp_path / "changed.pt2"
    with zipfile.ZipFile(OLDER[0]) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            new.writestr(name, buffer.getvalue() if name == record else old.read(name))
    with pytest.raises(BundleError, match=message):
        source_of(changed)


def rewritten(file: Path, folder: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    archive = ArchiveReader(file)
    records = {name: archive.read(name) for name in archive.records}
    change(records)
    path = folder / "changed.pt2"
    with open(path, "wb") as output:
        writer = ArchiveWriter(output, archive.root)
        for name, content in records.items():
            writer.write(name, content)
        writer.close(serialization_id=False)
    return path


def in_model(change: Callable[[Any], Any]) -> Callable[[dict[str, bytes]], None]:
    def apply(records: dict[str, bytes]) -> None:
        (name,) = (name for name in records if name.startswith("models/"))
        model = json.loads(records[name])
        change(model)
        records[name] = json.dumps(model).encode()

    return apply


def nodes_of(model: Any) -> Any:
    return model["graph_module"]["graph"]["nodes"]


def first(model: Any, part: str) -> Any:
    return next(node for node in nodes_of(model) if part in node["target"])


def pickled(records: dict[str, bytes]) -> None:
    name = next(name for name in records if name.endswith("weights_config.json"))
    records[name] = records[name].replace(b'"use_pickle": false', b'"use_pickle": true', 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda records: records.pop("archive_format"), "a zip archive without a model"),
        (lambda records: records.update({"archive_format": b"pt3"}), "archive format b'pt3'"),
        (lambda records: records.update({"models/other.json": b"{}"}), "holds 2 models"),
        (lambda records: records.update({"models/net.json": b"[" * 99999}), "models|damaged"),
        (lambda records: records.pop("data/weights/weight_0"), "weight_0"),
        (lambda records: records.update({"data/weights/weight_0": b"1234"}), "reaches beyond its storage"),
        (pickled, "as a pickle, which could run any code"),
        (in_model(lambda model: model.update(schema_version={"major": 5})), "version 5 of torch.export's schema"),
        (in_model(lambda model: model.pop("graph_module")), "damaged model record: KeyError"),
        (in_model(lambda model: model.update(range_constraints=3)), "damaged"),
        (
            in_model(lambda model: model.update(guards_code=["__import__('os').system('x')"])),
            "can't read the condition",
        ),
        (in_model(lambda model: first(model, "conv2d").update(target="torch.ops.aten.save.default")), "save"),
        (in_model(lambda model: first(model, "conv2d").update(target="torch.ops.aten.from_file.default")), "from_file"),
        (in_model(lambda model: first(model, "conv2d").update(target="os.system")), "os.system"),
        (in_model(lambda model: first(model, "conv2d").update(target="torch.ops.higher_order.scan")), "scan"),
        (in_model(lambda model: first(model, "conv2d")["outputs"].clear()), "nothing before makes"),
        (in_model(lambda model: nodes_of(model).reverse()), "nothing before makes"),
    ],
)
def test_damaged_and_hostile_files_are_refused(
    file: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], None], message: str
) -> None:
    with pytest.raises((BundleError, UnsupportedError), match=message):
        source_of(rewritten(file, tmp_path, change))


VALUES = (None, True, -1, 10**30, 1.5, "", "x", "__import__('os').abort()", "(" * 300, [], {}, [[[]]], {"as_int": 3})


def mutated(value: Any, rng: random.Random) -> None:
    """Put something else in the place of some part of a nest of JSON."""
    places = [value]
    for place in places:
        items = place.values() if isinstance(place, dict) else place
        places += [item for item in items if isinstance(item, (dict, list)) and item]
    place = rng.choice(places)
    key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    match rng.randrange(4):
        case 0:
            del place[key]
        case 1:
            place[key] = copy.deepcopy(rng.choice(places))
        case _:
            place[key] = rng.choice(VALUES)


def test_files_with_changed_json_are_read_or_refused(tmp_path: Path) -> None:
    rng = random.Random(0)
    refused = 0
    for _ in range(120):

        def change(records: dict[str, bytes]) -> None:
            name = rng.choice([name for name in records if name.endswith(".json")])
            model = json.loads(records[name])
            mutated(model, rng)
            records[name] = json.dumps(model).encode()

        try:
            source_of(rewritten(TURNS, tmp_path, change))
        except MoboptError:
            refused += 1
    assert 40 < refused < 120


def test_a_truncated_file_is_refused(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    for part in (0.2, 0.7, 0.99):
        (tmp_path / "short.pt2").write_bytes(content[: int(part * len(content))])
        with pytest.raises(BundleError):
            source_of(tmp_path / "short.pt2")


def test_numbers_in_the_place_of_tensors_and_odd_arguments() -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor, index: torch.Tensor) -> list[Any]:
            y = torch.clamp(x, min=0.5).div(3, rounding_mode="floor") ** 2
            z = torch.nn.functional.avg_pool2d(x, 2).to(torch.float64).to(memory_format=torch.channels_last)
            w = x[:, index, None].sum(dtype=torch.int64) + torch.arange(3, device=x.device)
            return [
                y,
                z.float() - 1,
                w,
                torch.full_like(x, float("inf")),
                x.new_zeros(2).add_(7),
                x.index_select(1, index),
                x.max(1),
                -3 // x,
                2.5 // index,
                7 << index.int(),
            ]

    torch.manual_seed(1)
    inputs = [torch.randn(2, 3, 4, 4), torch.tensor([2, 0])]
    source = source_of(torch.export.export(Odd(), tuple(inputs)))
    expected = Odd()(*inputs)
    assert compare(Interpreter(source.program).run("forward", inputs), expected).absolute == 0


def test_multiples_of_a_size() -> None:
    program = torch.export.export(
        torch.nn.Linear(2, 2).eval(),
        (torch.ones(8, 2),),
        dynamic_shapes={"input": {0: 2 * torch.export.Dim("half", max=9)}},
    )
    source = source_of(program)
    assert len(bind_arguments(source.program, "forward", [torch.ones(4, 2)], {})) == 1
    with pytest.raises(InputError, match=r"is 5, and the model takes s\d+\*2"):
        bind_arguments(source.program, "forward", [torch.ones(5, 2)], {})
    with pytest.raises(InputError, match="is 10, and the model takes 0 to 9"):
        bind_arguments(source.program, "forward", [torch.ones(20, 2)], {})


class RoundedSizes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean() + torch.ones(math.ceil(x.shape[1] / 2) + math.floor(x.shape[1] / 3)).sum()


class PoweredSizes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[1] // 2
        return x.mean() + torch.ones(1 + half**2).sum() + torch.ones(2**half).sum()


@pytest.mark.parametrize("model", [PoweredSizes(), RoundedSizes()], ids=["powers", "rounded"])
def test_arithmetic_of_sizes(model: torch.nn.Module) -> None:
    """Powers are integers; torch itself doesn't save what rounds up."""
    sizes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    exported = torch.export.export(model, (torch.zeros(2, 8),), dynamic_shapes=(sizes,))
    module = optimize_for_mobile(exported, backend="vulkan", runtime="mobopt")
    for x in (torch.ones(2, 8), torch.ones(3, 11)):
        torch.testing.assert_close(module(x), model(x))


class Tied(torch.nn.Module):
    """An embedding whose rows are the weight of the last layer, and a buffer that shows every other of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(23, 8)
        self.head = torch.nn.Linear(8, 23, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("some", torch.randn(12, 5).t()[1:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x)).sum(1) + self.some.sum()


def test_weights_are_copied_once_with_what_they_share() -> None:
    model = Tied().eval()
    x = torch.tensor([[3, 5]])
    expected = model(x).detach()
    program = torch.export.export(model, (x,))
    tensors = _archived(program).tensors
    embed, head, some = (tensors[name] for name in ("embed.weight", "head.weight", "some"))
    assert embed.data_ptr() == head.data_ptr() != program.state_dict["embed.weight"].data_ptr()
    assert torch.equal(some, model.some) and some.stride() == model.some.stride()
    module = optimize_for_mobile(program, backend="vulkan", runtime="mobopt")
    with torch.no_grad():
        for value in program.state_dict.values():
            value.fill_(7.0)
    torch.testing.assert_close(module(x), expected)
