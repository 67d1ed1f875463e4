"""Flatbuffer files: read as the archive of the same model is, whether PyTorch or the tests' own writer wrote them."""

from __future__ import annotations

import io
import random
import struct
import time
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import GOLDEN, archive, arrays, bundle_id, records
from click.testing import CliRunner
from flatbuffers import CUSTOM, FIELDS, SETSTATE, Inline, Model, Number, Numbers, Tab, from_archive, written
from stock_torch import InStockTorch, lite_result
from test_golden_bundles import contents
from test_hostile_bundles import read_all
from torch import Tensor, nn

import mobopt
from mobopt.bundle import describe_bundle, read_bundle
from mobopt.commands import main
from mobopt.errors import BundleError
from mobopt.runtimes.cpu import Interpreter

LITE = sorted(path for path in GOLDEN.glob("*/*/*.ptl") if path.parent.name != "mobilenetv2")


def program_of(data: bytes, prefer: str = "bytecode") -> mobopt.ir.Program:
    return read_bundle(io.BytesIO(data), prefer=prefer)


def by_torch(module: nn.Module) -> tuple[bytes, bytes]:
    """The archive and the flatbuffer that PyTorch writes of a module."""
    script = torch.jit.script(module.eval())
    both = [script._save_to_buffer_for_lite_interpreter(_use_flatbuffer=form) for form in (False, True)]
    assert both[1][4:8] == b"PTMF"
    return both[0], both[1]


class Colour(Enum):
    RED = 2
    GREEN = 5


class Restored(nn.Module):
    """Stores its state by code."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale, self.names = torch.arange(3.0), 2, {"a": 1.5}

    @torch.jit.export
    def __getstate__(self) -> tuple[tuple[Tensor, int], dict[str, float], bool]:
        return (self.weight, self.scale), self.names, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[tuple[Tensor, int], dict[str, float], bool]) -> None:
        (self.weight, self.scale), self.names, self.training = state

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.scale + self.names["a"]


class Everything(nn.Module):
    """Attributes of every kind of value, read by ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Restored()
        base = torch.arange(12.0)
        self.weight = nn.Parameter(base.reshape(3, 4).t())
        self.register_buffer("part", base[2:5])
        self.register_buffer("nothing", torch.empty(0, 3))
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16):
            self.register_buffer(f"of_{str(dtype).partition('.')[2]}", torch.tensor([1, 2, 3], dtype=dtype))
        self.register_buffer("of_float64", torch.tensor([1.25, -2.5, 3.0], dtype=torch.float64))
        self.register_buffer("of_bool", torch.tensor([True, False, True]))
        self.register_buffer("of_complex", torch.tensor([1 + 2j, 0j, -1j]))
        self.flag, self.count, self.ratio, self.turn, self.name = True, -(1 << 40), 0.1, 1 - 2j, "näme"
        self.flags, self.counts, self.ratios = [True, False], [1, -2, 1 << 40], [0.5, float("inf")]
        self.names, self.tensors = ["a", "b", "a"], [torch.ones(3), base[1:4]]
        self.pair, self.nested = (3, (torch.zeros(3), "x")), [[1, 2], [3]]
        self.table = {"a": [1, 2], "b": [4]}
        self.by_number = {7: torch.full((3,), 7.0)}
        self.device, self.colour = torch.device("cpu"), Colour.GREEN
        self.absent: Tensor | None = None

    def forward(self, x: Tensor, times: int = 2, other: Tensor | None = None) -> tuple[Tensor, str, dict[str, Tensor]]:
        y = self.inner(x) + self.weight.sum() + self.part + self.of_int16 + self.of_bool + self.of_complex.real
        for number in range(times):
            y = y * self.ratio + self.counts[0] + self.nested[0][number % 2] + self.tensors[1] + self.by_number[7]
        if self.flag and self.flags[0] and self.absent is None and other is None:
            y = y + self.pair[0] + self.pair[1][0] + self.table["a"][1] + self.ratios[0]
        y = y.to(self.device) + (y * self.turn).real
        return y, self.name + self.names[1], {"y": y + self.count}


def test_every_kind_of_value_as_in_an_archive() -> None:
    zipped, flat = by_torch(Everything())
    for prefer in ("bytecode", "code"):
        zip_form, found = program_of(zipped, prefer), program_of(flat, prefer)
        assert contents(found) == contents(zip_form)
        assert found.metadata["archive_version"] == zip_form.metadata["archive_version"]
    x = torch.tensor([0.5, -1.0, 2.0])
    result = Interpreter(program_of(flat)).run("forward", [x, 2, None])
    expected = Everything().eval()(x)
    assert result[1] == expected[1]
    torch.testing.assert_close((result[0], result[2]), (expected[0], expected[2]), rtol=0, atol=0)
    attributes = program_of(flat).attributes
    assert attributes["part"].value.data_ptr() - attributes["weight"].value.data_ptr() == 8  # one storage, as in memory


@pytest.mark.parametrize("path", LITE, ids=bundle_id)
def test_optimised_files_as_in_an_archive(path: Path) -> None:
    data = path.read_bytes()
    flat = from_archive(data)
    for prefer in ("bytecode", "code"):
        assert contents(program_of(flat, prefer)) == contents(read_bundle(path, prefer=prefer))
    bare = {name: content for name, content in records(data).items() if not name.startswith("code/")}
    assert contents(program_of(from_archive(data, with_source=False))) == contents(program_of(archive(bare)))


@pytest.mark.parametrize("name", ["mixed", "lstm"])
def test_stock_torch_reads_what_the_tests_write(name: str, in_stock_torch: InStockTorch) -> None:
    path = GOLDEN / "pt2.13.0" / name / "model.ptl"
    inputs = arrays(path, "input")
    expected = in_stock_torch(lite_result, path.read_bytes(), inputs)
    found = in_stock_torch(lite_result, from_archive(path.read_bytes()), inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_without_source_a_state_is_restored_by_bytecode() -> None:
    _, flat = by_torch(Restored())
    program = program_of(without_source(flat))
    x = torch.ones(3)
    torch.testing.assert_close(Interpreter(program).run("forward", [x]), Restored()(x))
    assert program.metadata["kind"] == "lite" and next(iter(program.attributes)) == "0"


def without_source(data: bytes) -> bytes:
    """The file with an empty list of sources."""
    changed = bytearray(data)
    root = struct.unpack_from("<I", data)[0]
    description = root - struct.unpack_from("<i", data, root)[0]
    struct.pack_into("<H", changed, description + 4 + 2 * 8, 0)
    return bytes(changed)


def test_extra_files_and_jit_sources(tmp_path: Path) -> None:
    script = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval())
    torch.jit.save_jit_module_to_flatbuffer(script, str(tmp_path / "m.ff"), {"labels.txt": "cat\ndog"})
    info = describe_bundle(tmp_path / "m.ff")
    assert info.kinds == ("torchscript", "lite") and info.bytecode_version == 9
    assert read_bundle(tmp_path / "m.ff").metadata["extra_files"] == {"labels.txt": b"cat\ndog"}
    x = torch.rand(1, 3, 7, 5)
    torch.testing.assert_close(mobopt.load(tmp_path / "m.ff", device="cpu")(x), script(x))


def test_no_release_changed_what_an_old_file_means() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.div(x, 2)

    zipped, flat = by_torch(Halves())
    assert program_of(flat).metadata["archive_version"] == program_of(zipped).metadata["archive_version"] == 4
    old = bytearray(flat)
    root = struct.unpack_from("<I", flat)[0]
    description = root - struct.unpack_from("<i", flat, root)[0]
    struct.pack_into("<H", old, description + 4 + 2 * 10, 0)
    with pytest.raises(BundleError, match="had another meaning in archives of version 3"):
        program_of(bytes(old))


COMMANDS = (
    ["inspect", "--json"],
    ["opnames", "--yaml"],
    ["audit", "--backend", "cpu"],
    ["run", "--device", "cpu", "--random", "1,4,16,16"],
    ["migrate", "-o", "OUT", "--random", "1,4,16,16"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_commands_take_both_forms(command: list[str], tmp_path: Path) -> None:
    path = GOLDEN / "pt1.13.1/mixed/vulkan.ptl"
    if command[0] == "audit":
        path = GOLDEN / "pt2.13.0/mixed/model.ptl"
    (tmp_path / "zip.ptl").write_bytes(path.read_bytes())
    (tmp_path / "flat.ptl").write_bytes(from_archive(path.read_bytes()))
    for form in ("zip", "flat"):
        words = [str(tmp_path / f"{form}.pt") if word == "OUT" else word for word in command]
        result = CliRunner().invoke(main, [words[0], str(tmp_path / f"{form}.ptl"), *words[1:]])
        assert result.exit_code == 0, result.output
    if command[0] == "opnames":
        names = [mobopt.export_opnames(tmp_path / f"{form}.ptl") for form in ("zip", "flat")]
        assert names[0] == names[1]
    if command[0] == "migrate":
        texts = [contents(read_bundle(tmp_path / f"{form}.pt")) for form in ("zip", "flat")]
        assert texts[0] == texts[1]


class Held(nn.Module):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("table", tensor)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner.table.dequantize()


def test_quantised_tensors_are_named_with_their_module() -> None:
    _, flat = by_torch(Held(torch.quantize_per_tensor(torch.randn(3, 3), 0.1, 0, torch.qint8)))
    with pytest.raises(BundleError, match=r"the module inner \(torch.nn.*, attribute 'table', holds .* quantised"):
        program_of(flat)
    assert mobopt.export_opnames(io.BytesIO(flat)) == ["aten::add.Tensor", "aten::dequantize.self"]


_PLAIN = {
    "instructions": (("STORE", 1, 0), ("MOVE", 1, 0), ("RET", 0, 0)),
    "operators": (),
    "constants": (),
    "types": (),
    "register_size": 4,
}


def method(model: Model, name: str = "__torch__.M.forward", **tables: Any) -> int:
    """A method of these tables, which returns its module."""
    entry = (("name", "self"), ("type", "__torch__.M"), ("default_value", None))
    result = (("name", ""), ("type", "Any"), ("default_value", None))
    return model.function(name, _PLAIN | tables, {"arguments": (entry,), "returns": (result,)})


def finished(model: Model, attribute: int, **root: Any) -> bytes:
    """A model with one method and one attribute, whose value has this number."""
    kind, function = model.add_class("__torch__.M", FIELDS, ["w"]), method(model)
    state = model.add(10, Tab({0: Number("I", kind), 2: Numbers("I", [attribute])}))
    model.root = {2: Numbers("I", [function]), 3: Number("I", state), 10: Number("I", 3)}
    model.root |= {int(name[1:]): item for name, item in root.items()}
    return model.data()


def with_value(kind: int, value: Any, **root: Any) -> bytes:
    """A model whose attribute is this."""
    model = Model()
    return finished(model, model.add(kind, value), **root)


def tensor(storage: int = 0, kind: int = 6, offset: int = 0, sizes: tuple[int, ...] = (2,)) -> bytes:
    """A model with a tensor of a storage of four floats."""
    model = Model()
    model.storages.append(bytes(16))
    fields = {0: Number("I", storage), 1: Number("b", kind), 2: Number("i", offset)}
    fields |= {3: Numbers("i", sizes), 4: Numbers("i", (1,) * len(sizes))}
    return finished(model, model.add(5, Tab(fields)))


def restoring(name: str, slots: int = 1, **tables: Any) -> bytes:
    """A model with an object that bytecode restores."""
    model = Model()
    setstate, state = method(model, f"{name}.__setstate__", **tables), model.store((1, 2))
    kind = model.add_class(name, SETSTATE)
    fields = {0: Number("I", kind), 1: Number("I", state), 3: Number("I", setstate)}
    return finished(model, model.add(10, Tab(fields)))


def doubled(times: int) -> bytes:
    """A tuple that holds the one before twice, so many times."""
    model = Model()
    number = model.store("leaf")
    for _ in range(times):
        number = model.add(8, Tab({0: Numbers("I", [number, number])}))
    return finished(model, number)


def test_hand_written_models_are_read() -> None:
    assert program_of(with_value(6, Tab({0: "text"}))).attributes["w"].value == "text"
    assert program_of(tensor()).attributes["w"].value.tolist() == [0.0, 0.0]
    assert len(program_of(doubled(14)).attributes["w"].value) == 2
    stored = (("STOREN", 1, 2), ("LOAD", 1, 0), ("LOAD", 2, 0), ("SET_ATTR", 1, 0), ("LOADC", 0, 0), ("RET", 0, 0))
    assert program_of(restoring("__torch__.N", instructions=stored, constants=(5,))).attributes["w.1"].value == (1, 2)


_BAD: dict[str, tuple[bytes, str]] = {
    "no root": (b"\xff\xff\xff\x7fPTMF" + bytes(64), "lie outside of the file"),
    "root is nothing": (bytes(4) + b"PTMF" + bytes(64), "points nowhere"),
    "empty": (written(Tab({})), "a flatbuffer without methods"),
    "unknown kind": (with_value(40, Tab({})), "value 1 is of kind 40"),
    "itself": (with_value(8, Tab({0: Numbers("I", [1])})), "value 1 refers to value 1, which is not before it"),
    "later": (with_value(8, Tab({0: Numbers("I", [900])})), "refers to value 900"),
    "no state": (with_value(1, Inline(bytes(8)), _3=Number("I", 99)), "refers to value 99 of"),
    "state is no module": (with_value(1, Inline(bytes(8)), _3=Number("I", 1)), "the model is a int"),
    "no method": (with_value(1, Inline(bytes(8)), _2=Numbers("I", [1])), "value 1 is not a method"),
    "version": (with_value(1, Inline(bytes(8)), _10=Number("I", 77)), "operators of version 77"),
    "bytecode version": (with_value(1, Inline(bytes(8)), _0=Number("I", 77)), "bytecode is of version 77"),
    "storages elsewhere": (with_value(1, Inline(bytes(8)), _5=Number("i", 3)), "0 storages where it says 3"),
    "source name": (with_value(1, Inline(bytes(8)), _8=[Tab({0: "../x", 1: b""})]), "is not a module's name"),
    "tuple tagged": (with_value(7, Tab({0: Numbers("I", []), 1: "Dict[str, int]"})), "a list is tagged as"),
    "no type": (with_value(7, Tab({0: Numbers("I", []), 1: "List[[" * 9})), "has the type tag"),
    "uneven": (
        with_value(9, Tab({0: Numbers("I", [0]), 1: Numbers("I", []), 2: "Dict[str, int]"})),
        "1 keys and 0 values",
    ),
    "key": (with_value(9, Tab({0: Numbers("I", [0]), 1: Numbers("I", [0]), 2: "Dict[str, int]"})), "neither string"),
    "device": (with_value(14, Tab({0: "mars"})), "'mars' is not a device"),
    "enumeration": (with_value(15, Tab({0: "os.system", 1: Number("I", 0)})), "the enumeration 'os.system'"),
    "class": (with_value(10, Tab({0: Number("I", 9)})), "refers to class 9 of"),
    "quantised": (tensor(kind=12), "quantised"),
    "scalar type": (tensor(kind=99), "scalar type 99"),
    "no storage": (tensor(storage=5), "has no 'data/5'"),
    "beyond": (tensor(offset=3), "reaches beyond its storage"),
    "negative": (tensor(sizes=(-1,)), "the file is damaged"),
    "restored by call": (
        restoring("__torch__.N", instructions=(("OP", 0, 0), ("RET", 0, 0)), operators=(("aten::save", "", 2),)),
        "does more than store attributes",
    ),
    "restored by loop": (
        restoring("__torch__.N", instructions=(("JMP", 0, 0), ("RET", 0, 0))),
        "does more than store attributes",
    ),
    "deep": (doubled(200), "nested"),
    "broad": (doubled(40), "nested"),
}


@pytest.mark.parametrize(("data", "message"), list(_BAD.values()), ids=list(_BAD))
def test_bad_files_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        program_of(data)


def test_unknown_class_of_pytorch_is_named() -> None:
    model = Model()
    kind = model.add_class("__torch__.torch.classes.quantized.EmbeddingPackedParamsBase", CUSTOM)
    data = finished(model, model.add(10, Tab({0: Number("I", kind), 1: Number("I", 0)})))
    with pytest.raises(BundleError, match="holds quantised weights"):
        program_of(data)


def test_storages_that_overlap_are_refused() -> None:
    model = Model()
    model.storages += [b"\1" * 32, b"\2" * 32]
    data = bytearray(finished(model, 0))
    at = data.index(b"\1" * 32) - 4
    struct.pack_into("<I", data, at, 96)
    with pytest.raises(BundleError, match="'data/0' and 'data/1' overlap"):
        program_of(bytes(data))


def test_mutated_files_are_read_or_refused() -> None:
    """Whatever a word or byte becomes: a Program or an error, soon."""
    _, genuine = by_torch(Restored())
    seeds = [genuine, from_archive((GOLDEN / "pt1.13.1/mlp/vulkan.ptl").read_bytes(), with_source=False)]
    started, outcomes = time.process_time(), Counter[str]()
    for number in range(240):
        source = random.Random(f"flatbuffer {number}")
        data = bytearray(seeds[number % 2])
        for _ in range(source.choice((1, 1, 3))):
            at = 4 * source.randrange(len(data) // 4)
            (word,) = struct.unpack_from("<I", data, at)
            other = source.choice((word + 1, word - 4, word << 8, 0, 0xFFFFFFFF, 0x7FFFFFFF, source.randrange(256)))
            struct.pack_into("<I", data, at, other & 0xFFFFFFFF)
        try:
            program_of(bytes(data[: source.choice((len(data), len(data), source.randrange(len(data))))]))
            outcomes["read"] += 1
        except BundleError:
            outcomes["refused"] += 1
    assert outcomes["read"] > 20 and outcomes["refused"] > 60
    assert time.process_time() - started < 60


def repeated_vector(count: int) -> bytes:
    """So many lists of numbers that are all the same bytes of the file."""
    data = bytearray(with_value(11, Tab({0: Numbers("q", range(1 << 15))})))
    root = struct.unpack_from("<I", data)[0]
    description = root - struct.unpack_from("<i", data, root)[0]
    place = root + struct.unpack_from("<H", data, description + 4 + 2 * 4)[0]
    values = place + struct.unpack_from("<I", data, place)[0]
    first = values + 8 + struct.unpack_from("<I", data, values + 8)[0]
    table = bytes(data)
    at = len(data) + -len(data) % 4
    data.extend(bytes(at - len(data)) + struct.pack("<I", count) + bytes(4 * count))
    # Offsets point forwards only, so the whole table is written once more behind the list of values.
    end = len(data)
    data.extend(table[first - first % 8 - 64 :])
    shifted = end + 64 + first % 8
    for index in range(count):
        struct.pack_into("<I", data, at + 4 + 4 * index, shifted - (at + 4 + 4 * index))
    struct.pack_into("<I", data, place, at - place)
    return bytes(data)


def test_what_is_referred_to_again_and_again_is_bounded(tmp_path: Path) -> None:
    found = read_all(tmp_path, {"vectors": repeated_vector(50_000), "storages": many_storages(120_000)})
    assert all(outcome.startswith("refused: ") for outcome in found.values()), found


def many_storages(count: int) -> bytes:
    """A model of very many storages without bytes."""
    model = Model()
    model.storages = [b""] * count
    return finished(model, 0)
