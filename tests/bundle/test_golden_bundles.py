"""Files that genuine PyTorch builds wrote: all are read, compute what they should, and lose nothing."""

from __future__ import annotations

import io
import pickletools
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import BUNDLES, arrays, as_tuple, bundle_id, records
from sampling import sampled

from mobopt.bundle import describe_bundle, read_bundle, write_lite, write_torchscript
from mobopt.ir import Graph, Program, Value
from mobopt.ops.contexts import PackedContext
from mobopt.runtimes.cpu import Interpreter

# fmt: off
ALLOWED = {
    "PROTO", "EMPTY_LIST", "EMPTY_TUPLE", "EMPTY_DICT", "MARK", "NEWTRUE", "NEWFALSE", "NONE", "BININT",
    "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPENDS",
    "SETITEMS", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "GLOBAL", "NEWOBJ", "BUILD", "REDUCE",
    "BINPERSID", "STOP",
}
# fmt: on


def run(program: Program, path: Path) -> tuple[Any, ...]:
    return as_tuple(Interpreter(program).run("forward", arrays(path, "input")))


def plain(value: Any) -> Any:
    """A value that ``==`` compares, tensors by dtype, layout and bytes."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.stride(), value.tolist()
    if isinstance(value, PackedContext):
        return value.qualified_name, plain(value.state())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def steps(graph: Graph) -> list[Any]:
    """What a graph does, without its names: each node, its constants, and numbers for the values that it reads."""
    numbers: dict[Value, int] = {}

    def reading(value: Value) -> Any:
        return plain(value.constant) if value.is_constant else numbers.setdefault(value, len(numbers))

    nodes = [*graph.walk(), graph.block.returns]
    return [
        (
            node.qualified_op,
            node.attributes,
            [reading(v) for v in node.inputs],
            [(reading(v), v.type) for v in node.outputs],
        )
        for node in nodes
    ]


def contents(program: Program) -> dict[str, Any]:
    """Everything that a program says, comparable."""
    return {
        "attributes": {name: (item.type, plain(item.value)) for name, item in program.attributes.items()},
        "graphs": {name: steps(graph) for name, graph in program.methods.items()},
        "class": program.class_name,
        "defaults": program.metadata["defaults"],
    }


_FORMS = [(path, "code") for path in BUNDLES] + [(path, "bytecode") for path in BUNDLES if path.suffix == ".ptl"]


@pytest.mark.parametrize(
    ("path", "prefer"), _FORMS, ids=lambda item: item if isinstance(item, str) else bundle_id(item)
)
def test_computes_what_it_should(path: Path, prefer: str) -> None:
    program = read_bundle(path, prefer=prefer)
    assert program.metadata["kind"] == ("lite" if prefer == "bytecode" else "torchscript")
    for result, expected in zip(run(program, path), arrays(path, "expected"), strict=True):
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["torchscript", "lite"])
@pytest.mark.parametrize(
    "path", sampled([path for path in BUNDLES if path.stem.startswith("vulkan")], one_in=2, key=bundle_id)
)
def test_nothing_is_lost(path: Path, form: str) -> None:
    def copy(program: Program) -> Program:
        file = io.BytesIO()
        (write_torchscript if form == "torchscript" else write_lite)(program, file)
        for name, data in records(file.getvalue()).items():
            if name.endswith(".pkl"):
                assert {op.name for op, _, _ in pickletools.genops(data)} <= ALLOWED
        file.seek(0)
        return read_bundle(file)

    first = copy(read_bundle(path))
    second = copy(first)
    assert contents(first) == contents(second)
    original = {name: plain(item.value) for name, item in read_bundle(path).attributes.items()}
    assert original.items() <= {name: plain(item.value) for name, item in first.attributes.items()}.items()
    for result, expected in zip(run(second, path), run(read_bundle(path), path), strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("path", BUNDLES, ids=bundle_id)
def test_describes(path: Path) -> None:
    info = describe_bundle(path)
    assert info.kinds == (("torchscript",) if path.suffix == ".pt" else ("torchscript", "lite"))
    assert info.size == path.stat().st_size
    tensors = [item.size for item in info.records if item.name.startswith(("data/", "constants/"))]
    assert info.tensor_bytes == sum(tensors) > 0
    assert bool(info.contexts) == any(name.startswith("vulkan_prepack::run_") for name in info.operators)
    assert all(context.bytes > 0 and context.weight_shape for context in info.contexts)
    assert info.methods[0].schema.startswith("forward(Tensor x")


def test_attribute_order_is_slot_order() -> None:
    path = next(path for path in BUNDLES if bundle_id(path) == "pt1.13.1/mixed/vulkan.ptl")
    program = read_bundle(path)
    names = [node.attributes["name"] for node in program.methods["forward"].walk() if node.op == "prim::GetAttr"]
    assert names == [f"prepack_folding_forward._jit_pass_packed_weight_{index}" for index in range(4)]
    assert list(program.attributes)[:4] == names
    assert [name for name, item in program.attributes.items() if not isinstance(item.value, PackedContext)] == [
        "optimized_for_vulkan"
    ]
