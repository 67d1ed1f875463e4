"""Files that can't be read or written: one message each, which names the value and the way out."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import GOLDEN, archive, records

from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.errors import BundleError, InputError
from mobopt.ir import Program, parse_graph

LITE = (GOLDEN / "pt1.13.1/mixed/vulkan.ptl").read_bytes()
SOURCE = (GOLDEN / "pt1.13.1/mixed/vulkan.pt").read_bytes()
CODE = next(name for name in records(SOURCE) if name.endswith("mangle_1065.py") or "nets" in name)


def refused(data: bytes, match: str) -> None:
    with pytest.raises(BundleError, match=match):
        read_bundle(io.BytesIO(data))


def edited(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """A change of a record."""
    return lambda content: content.replace(old, new)


def changed(data: bytes, **replacements: bytes | Callable[[bytes], bytes] | None) -> bytes:
    """An archive with some records replaced (``data_pkl`` stands for ``data.pkl``) or, with None, left out."""
    contents = records(data)
    for key, value in replacements.items():
        name = CODE if key == "code" else key.replace("_", ".")
        if value is None:
            del contents[name]
        else:
            contents[name] = value(contents[name]) if callable(value) else value
    return archive(contents)


def bytecode(
    instructions: Any = (("STORE", 1, 0), ("MOVE", 1, 0), ("RET", 0, 0)),
    operators: Any = (),
    constants: Any = (),
    types: Any = (),
    registers: Any = 4,
) -> bytes:
    """An archive with one hand-made method, pickled by Python."""
    code = (
        ("instructions", instructions),
        ("operators", operators),
        ("constants", constants),
        ("types", types),
        ("register_size", registers),
    )
    entry = (("name", "self"), ("type", "__torch__.M"), ("default_value", None))
    schema = (("arguments", (entry,)), ("returns", ((("name", ""), ("type", "Any"), ("default_value", None)),)))
    table = pickle.dumps((8, ("__torch__.M.forward", code, schema)), protocol=2)
    module = b"\x80\x02c__torch__\nM\n)\x81}b."
    return archive({"version": b"3\n", "data.pkl": module, "bytecode.pkl": table})


_DOUBLED = b"\x80\x02)" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60)) + b"."


def test_hand_made_bytecode_is_read() -> None:
    program = read_bundle(io.BytesIO(bytecode((("DROP", 0, 0), ("LOADC", 0, 0), ("RET", 0, 0)), constants=(7,))))
    assert program.methods["forward"].outputs[0].constant == 7


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "empty|not a readable zip"),
        (b"hello", "begins with other bytes than a zip"),
        (LITE[: len(LITE) // 2], "is truncated"),
        (archive({"version": b"3\n"}), "a zip archive without a model"),
        (changed(LITE, version=None), "no record 'version'"),
        (changed(LITE, version=b"11\n"), "versions 1 to 10"),
        (changed(SOURCE, constants_pkl=None), "no record 'constants.pkl'"),
        (changed(LITE, data_pkl=b""), "not a pickle of protocol 2"),
        (changed(LITE, data_pkl=lambda data: data[:60]), "damaged|truncated"),
        (changed(LITE, data_pkl=edited(b"_rebuild_tensor_v2", b"_rebuild_v9")), "global torch._utils._rebuild_v9"),
        (changed(LITE, data_pkl=b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R."), "names the global os.system"),
        (changed(LITE, data_pkl=pickle.dumps(print, 2)), "names the global (__builtin__|builtins).print"),
        (changed(LITE, data_pkl=b"\x80\x04N."), "protocol 2"),
        (changed(LITE, data_pkl=b"\x80\x02i."), "opcode 0x69"),
        (changed(LITE, data_pkl=b"\x80\x02]q\x00(h\x00e."), "before it is complete"),
        (changed(LITE, data_pkl=b"\x80\x02" + b")" + b"\x85" * 100 + b"."), "nested"),
        (changed(LITE, data_pkl=_DOUBLED), "more than any model"),
        (changed(LITE, bytecode_pkl=b"\x80\x02K\x03\x85."), "version 3; versions 4 to 9"),
        (changed(SOURCE, code=b"class"), "can't be parsed"),
        (changed(SOURCE, code=edited(b"run_conv2d", b"run_conv9d")), "unknown operator vulkan_prepack::run_conv9d"),
        (changed(SOURCE, code=edited(b"return _", b"return __")), r"\.py:\d+: the variable '__\d+' is not defined"),
        (changed(SOURCE, code=edited(b"torch.dim(v)", b"CONSTANTS.c7")), "CONSTANTS.c7 does not exist"),
        (changed(SOURCE, code=edited(b"torch.dim(v)", b"fork(v)")), r"fork\(\) is not read"),
        (changed(SOURCE, code=edited(b"for _4 in range(dim)", b"for _4 in v")), "only loops over a range"),
        (bytecode((("LOADC", 3, 0), ("RET", 0, 0))), "constant 3, which is outside"),
        (bytecode((("LOAD", 9, 0), ("RET", 0, 0))), "register 9, which is outside"),
        (bytecode((("LOAD", 2, 0), ("RET", 0, 0))), "register 2, which is not set"),
        (bytecode((("OP", 0, 0), ("RET", 0, 0))), "operator 0, which is outside"),
        (bytecode((("JMP", 70, 0), ("RET", 0, 0))), "jump 70, which is outside"),
        (bytecode((("JF", 1, 0), ("RET", 0, 0))), "no JMP precedes"),
        (bytecode((("NOSUCH", 0, 0), ("RET", 0, 0))), "'NOSUCH', which mobopt does not read"),
        (bytecode((("DROP", 0, 0), ("DROP", 0, 0), ("RET", 0, 0))), "empty stack"),
        (bytecode((("LOADC", 0, 0),), constants=(1,)), "does not end with RET"),
        (bytecode((("GET_ATTR", 5, 0), ("RET", 0, 0))), "attribute 5 of the model is read, which has 0"),
        (bytecode(operators=(("aten::nothing", "", 1), ("foo::bar", "x", 1))), "aten::nothing, foo::bar.x"),
        (bytecode(instructions=((1, 2, 3),)), "is not an instruction"),
        (bytecode(registers=-1), "register_size is -1"),
        (bytecode(types=("List[",), instructions=(("RET", 0, 0),)), "can't read the type 'List\\['"),
    ],
    ids=lambda item: item if isinstance(item, str) and len(item) < 80 else "",
)  # fmt: skip
def test_damaged_files(data: bytes, match: str) -> None:
    refused(data, match)


def own_source(text: str) -> bytes:
    """An archive whose model is of class ``M`` in this text."""
    module = b"\x80\x02c__torch__\nM\n)\x81}b."
    return archive(
        {"version": b"3\n", "data.pkl": module, "constants.pkl": b"\x80\x02).", "code/__torch__.py": text.encode()}
    )


def method(*lines: str) -> str:
    """A class ``M`` with this body of ``forward``."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"class M(Module):\n  def forward(self: __torch__.M,\n    x: Tensor) -> Tensor:\n{body}"


def test_hand_made_source_is_read() -> None:
    program = read_bundle(io.BytesIO(own_source(method("return torch.add(x, 1)"))))
    assert [node.qualified_op for node in program.methods["forward"].walk()] == ["aten::add.Scalar"]


_TWICE = "".join(
    f"def f{i}(x: Tensor) -> Tensor:\n  return __torch__.f{i + 1}(__torch__.f{i + 1}(x, ), )\n" for i in range(40)
)
_NESTED = "".join(f"class T{i}(NamedTuple):\n  a : __torch__.T{i + 1}\n  b : __torch__.T{i + 1}\n" for i in range(40))


_TWICE += "def f40(x: Tensor) -> Tensor:\n  return x\n"
_NESTED += "class T40(NamedTuple):\n  a : Tensor\n"
_RECURSION = "def f(x: Tensor) -> Tensor:\n  return __torch__.f(x, )\n"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (method("return __torch__.f0(x, )") + _TWICE, "over \\d+ steps"),
        (method(*["x = (x, x)"] * 60, "return x"), "a type has over 2000 parts"),
        (method("y = annotate(__torch__.T0, x)", "return x") + _NESTED, "over 2000 parts"),
        (method("return " + "-" * 3000 + "x"), "nested too deeply"),
        (method("return " + "(" * 9000 + "x" + ")" * 9000), "nested|can't be parsed"),
        (method("return x" + ".a" * 20000), "nested too deeply"),
        (method("return __torch__.f(x, )") + _RECURSION, "recursion is not read"),
        (method("return 1"), "a int is given where Tensor is declared"),
        (method("return x") + "import os\n", r"__torch__\.py:5: 'import os' is neither a class nor a function"),
    ],
    ids=lambda item: item if isinstance(item, str) and len(item) < 80 else "",
)  # fmt: skip
def test_hostile_source(text: str, match: str) -> None:
    refused(own_source(text), match)


def test_hostile_bytecode() -> None:
    doubling = (
        ("DROP", 0, 0),
        ("LOADC", 0, 0),
        *[("STORE", 1, 0), ("LOAD", 1, 0), ("LOAD", 1, 0), ("TUPLE_CONSTRUCT", 2, 0)] * 60,
    )
    refused(bytecode((*doubling, ("RET", 0, 0)), constants=(1,)), "a type has over 2000 parts")
    stores = [item for register in range(1, 20000) for item in (("LOADC", 0, 0), ("STORE", register, 0))]
    branches = [("LOADC", 0, 0), ("JF", 2, 0), ("JMP", 1, 0)] * 20000
    code = (("DROP", 0, 0), *stores, *branches, ("LOADC", 0, 0), ("RET", 0, 0))
    refused(bytecode(code, constants=(True,), registers=20000), "over \\d+ steps")


def test_wrong_checksum() -> None:
    entry = zipfile.ZipFile(io.BytesIO(LITE)).getinfo("vulkan/bytecode.pkl")
    damaged = bytearray(LITE)
    damaged[entry.header_offset + 200] ^= 1
    refused(bytes(damaged), "damaged record 'bytecode.pkl': its checksum")


def test_tensor_outside_its_storage() -> None:
    contents = records((GOLDEN / "pt2.13.0/mlp/model.pt").read_bytes())
    contents["data/0"] = contents["data/0"][:-4]
    refused(archive(contents), "'data/0' where 512 elements of torch.float32 need 2048")
    contents = records((GOLDEN / "pt2.13.0/mlp/model.pt").read_bytes())
    contents["data.pkl"] = contents["data.pkl"].replace(b"(K K\x10t", b"(K K\x11t")
    refused(archive(contents), r"sizes \(32, 17\).*reaches beyond its storage of 512")


def test_names_that_leave_the_archive() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as target:
        target.writestr("model/version", "3\n")
        target.writestr("model/../../etc/passwd", "x")
    refused(out.getvalue(), "passwd', which is not a record below its root folder")


def test_two_records_of_one_name() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as target:
        target.writestr("model/version", "3\n")
        with pytest.warns(UserWarning, match="Duplicate"):
            target.writestr("model/version", "4\n")
    refused(out.getvalue(), "two records named 'version'")


def test_zip_bomb() -> None:
    bomb = bytearray(archive({"version": b"3\n", "data.pkl": bytes(1 << 20)}, method=zipfile.ZIP_DEFLATED))
    position = bomb.rindex(b"PK\x01\x02")
    struct.pack_into("<I", bomb, position + 24, 1 << 30)
    refused(bytes(bomb), "declares 1073741824 bytes for the compressed record 'data.pkl'")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"can't read .*absent.pt: No such file"):
        read_bundle(tmp_path / "absent.pt")
    with pytest.raises(BundleError, match=r"is a folder; give the path"):
        read_bundle(tmp_path)
    with pytest.raises(BundleError, match="prefer='both'"):
        read_bundle(tmp_path, prefer="both")


def identity() -> Program:
    program = Program()
    program.methods["forward"] = parse_graph("graph(%self : __torch__.Module, %x : Tensor):\n  return (%x)\n")
    return program


def test_unwritable_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"can't write .*absent/model.ptl: No such file.*choose another output path"):
        write_lite(identity(), tmp_path / "absent" / "model.ptl")
    with pytest.raises(InputError, match="can't write"):
        write_torchscript(identity(), tmp_path)
    assert os.listdir(tmp_path) == []


def test_failure_leaves_no_partial_file(tmp_path: Path) -> None:
    program = identity()
    program.methods["forward"] = parse_graph(
        "graph(%self : __torch__.Module, %x : Tensor):\n  %y : Tensor = aten::nothing(%x)\n  return (%y)\n"
    )
    (tmp_path / "model.ptl").write_bytes(b"old")
    with pytest.raises(BundleError, match="aten::nothing"):
        write_lite(program, tmp_path / "model.ptl")
    program.methods["forward"] = identity().methods["forward"]
    from mobopt.ir import Attribute
    from mobopt.ir.types import TENSOR

    program.attributes["w"] = Attribute(TENSOR, torch.empty(2, device="meta"))
    with pytest.raises(BundleError, match="a meta tensor of sizes"):
        write_lite(program, tmp_path / "model.ptl")
    assert os.listdir(tmp_path) == ["model.ptl"]
    assert (tmp_path / "model.ptl").read_bytes() == b"old"


def test_unknown_bytecode_version() -> None:
    with pytest.raises(BundleError, match="bytecode version 9 can't be written; versions 4 to 8 can"):
        write_lite(identity(), io.BytesIO(), 9)
