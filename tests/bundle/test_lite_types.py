"""What files for the lite interpreter say of types: its loaders take it to the letter."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.jit.mobile import _load_for_lite_interpreter

from mobopt import optimize_for_mobile
from mobopt.bundle.bytecode import bytecode_type
from mobopt.ir.types import INT, TENSOR, DictType, ListType, OptionalType, TupleType


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Whole(NamedTuple):
    left: Pair
    right: Pair
    rest: Tensor


class Nested(nn.Module):
    """As transformers' CLIP returns outputs of towers."""

    def forward(self, x: Tensor) -> Whole:
        return Whole(Pair(x + 1, x * 2), Pair(x - 1, x), x.relu())


class Indexed(nn.Module):
    """Masks of transformers take rows and columns by numbers."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = torch.arange(3).unsqueeze(1), torch.arange(2) + 1
        return x[rows, columns], x[:, columns]


X = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))


def _bytecode(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("bytecode.pkl")]
        return archive.read(name)


@pytest.mark.parametrize("backend", ["cpu", "vulkan"])
def test_lists_of_constant_indices(tmp_path: Path, backend: str) -> None:
    """PyTorch 2.6 refuses a List[Tensor] where an operator takes a List[Optional[Tensor]]."""
    made = optimize_for_mobile(torch.export.export(Indexed().eval(), (X,)), backend=backend)
    made._save_for_lite_interpreter(str(tmp_path / "model.ptl"))
    text = _bytecode(tmp_path / "model.ptl")
    assert b"build_tensorlist" not in text and b"List[Optional[Tensor]]" in text
    for found, wanted in zip(made(X), Indexed()(X), strict=True):
        assert torch.equal(found, wanted)


def test_named_tuples_within_others(tmp_path: Path) -> None:
    made = optimize_for_mobile(torch.jit.script(Nested().eval()), backend="cpu")
    made._save_for_lite_interpreter(str(tmp_path / "model.ptl"))
    text = _bytecode(tmp_path / "model.ptl").decode("latin-1")
    inner, outer = text.index("Pair[NamedTuple, ["), text.index("Whole[NamedTuple, [")
    assert inner < outer and "Pair]" in text[outer:] and "[NamedTuple" not in text[outer + 20 : outer + 120]
    found = _load_for_lite_interpreter(str(tmp_path / "model.ptl"))(X)
    assert torch.equal(found.rest, X.relu()) and torch.equal(found.right.second, X)
    again = optimize_for_mobile(str(tmp_path / "model.ptl"), backend="cpu")(X)
    assert torch.equal(again.left.second, X * 2)


def test_text_of_types() -> None:
    pair = TupleType((TENSOR, TENSOR), "__torch__.Pair", ("a", "b"))
    whole = TupleType((pair, ListType(pair), DictType(INT, OptionalType(pair))), "__torch__.Whole", ("c", "d", "e"))
    written = "__torch__.Pair[NamedTuple, [[a, Tensor],[b, Tensor]]]"
    assert bytecode_type(pair) == bytecode_type(pair, {"__torch__.Whole"}) == written
    fields = "[[c, __torch__.Pair],[d, List[__torch__.Pair]],[e, Dict[int, Optional[__torch__.Pair]]]]"
    assert bytecode_type(whole, {"__torch__.Pair"}) == f"__torch__.Whole[NamedTuple, {fields}]"
    assert bytecode_type(TupleType((INT, pair)), {"__torch__.Pair"}) == "Tuple[int, __torch__.Pair]"


class Mixed(nn.Module):
    """Dictionaries of values of several types are named tuples, all of the same name at first."""

    def forward(self, x: Tensor) -> dict[str, object]:
        first, second = {"a": x + 1, "b": (x, x * 2)}, {"a": x - 1, "c": [x], "d": x}
        return {"first": first, "again": dict(first), "second": second, "rest": x.relu()}


@pytest.mark.parametrize("suffix", ["pt", "ptl"])
def test_named_tuples_of_one_name(tmp_path: Path, suffix: str) -> None:
    made = optimize_for_mobile(torch.export.export(Mixed().eval(), (X,)), backend="cpu")
    path = str(tmp_path / f"model.{suffix}")
    if suffix == "ptl":
        made._save_for_lite_interpreter(path)
        found = _load_for_lite_interpreter(path)(X)
    else:
        torch.jit.save(made, path)
        found = torch.jit.load(path)(X)
    assert torch.equal(found.first.b[1], X * 2) and torch.equal(found.again.a, X + 1)
    assert torch.equal(found.second.c[0], X) and torch.equal(found.rest, X.relu())
    again = optimize_for_mobile(path, backend="cpu")(X)
    assert torch.equal(again.second.a, X - 1)
