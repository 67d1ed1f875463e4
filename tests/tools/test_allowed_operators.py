"""Operator lists of app builds, in both forms, and what is none."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from mobopt.errors import InputError
from mobopt.tools.allowed_operators import AllowedOperators, read_allowed_operators
from mobopt.tools.operator_names import selective_build_yaml

NAMES = ["aten::add.Tensor", "aten::relu", "prepacked::conv2d_clamp_run"]


def read(tmp_path: Path, text: str) -> AllowedOperators:
    (tmp_path / "ops.yaml").write_text(textwrap.dedent(text), encoding="utf-8")
    return read_allowed_operators(tmp_path / "ops.yaml")


@pytest.mark.parametrize("form", ["list", "dict"])
def test_what_opnames_writes_is_read(tmp_path: Path, form: str) -> None:
    allowed = read(tmp_path, selective_build_yaml(NAMES, form))
    assert allowed.names == set(NAMES)
    assert allowed.lacking([*NAMES, "aten::sub.Tensor", "aten::cat"]) == ["aten::cat", "aten::sub.Tensor"]


@pytest.mark.parametrize("form", ["list", "dict"])
def test_an_empty_list_has_nothing(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, selective_build_yaml([], form)).lacking(["aten::relu"]) == ["aten::relu"]


def test_list_with_comments_quotes_and_blank_lines(tmp_path: Path) -> None:
    allowed = read(
        tmp_path,
        """\
        # operators of the camera model
        ---
        - aten::add.Tensor   # used twice

        - "aten::relu"
        - 'aten::cat'
        """,
    )
    assert allowed.names == {"aten::add.Tensor", "aten::relu", "aten::cat"}


def test_a_name_without_overload_in_a_list_has_all_overloads(tmp_path: Path) -> None:
    allowed = read(tmp_path, "- aten::add\n- aten::sub.Scalar\n")
    assert allowed.lacking(["aten::add.Tensor", "aten::add", "aten::sub.Tensor"]) == ["aten::sub.Tensor"]


def test_dictionary_of_a_real_build(tmp_path: Path) -> None:
    allowed = read(
        tmp_path,
        """\
        build_features:
        - a
        -   b
        custom_classes: []
        debug_info:
          - "model.ptl: v1"
        include_all_non_op_selectives: true
        include_all_operators: false
        kernel_metadata:
          add.kernel:
          - Float
        operators:
          aten::add:
            include_all_overloads: true
            is_root_operator: true
            debug_info:
            - model.ptl
          aten::sub:
            include_all_overloads: false
            is_root_operator: true
          aten::mul.Tensor:
            include_all_overloads: false
          aten::div: {}
        """,
    )
    assert allowed.lacking(["aten::add.Tensor", "aten::sub", "aten::mul.Tensor", "aten::div.Scalar"]) == []
    assert allowed.lacking(["aten::sub.Tensor", "aten::mul.Scalar"]) == ["aten::mul.Scalar", "aten::sub.Tensor"]


def test_include_all_operators_has_everything(tmp_path: Path) -> None:
    assert read(tmp_path, "include_all_operators: true\n").lacking(["aten::anything.at_all"]) == []


def test_include_all_overloads_is_the_default_of_an_entry(tmp_path: Path) -> None:
    allowed = read(tmp_path, "operators:\n  aten::add:\n    is_root_operator: true\n")
    assert allowed.has("aten::add.Tensor")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("hello", "'key: value'"),
        ("- aten::add.Tensor\n- 17\n", "'17'"),
        ("- aten::add.Tensor\n- not an operator\n", "not an operator"),
        ("- aten::add.Tensor\n  - aten::relu\n", "ops.yaml:2"),
        ("- [aten::add.Tensor, aten::relu]\n", "ops.yaml:1"),
        ("- &anchor aten::relu\n", "ops.yaml:1"),
        ("- |\n  aten::relu\n", "ops.yaml:1"),
        ("operators:\n\taten::add: {}\n", "tab"),
        ("operators: {aten::add: {}}\n", "ops.yaml:1"),
        ("operators: 5\n", "maps names"),
        ("operators:\n  aten::add: 5\n", "settings of aten::add"),
        ("operators:\n  aten::add:\n    include_all_overloads: maybe\n", "maybe"),
        ("operators:\n  aten::add: {}\n  aten::add: {}\n", "twice"),
        ("include_all_operators: perhaps\noperators: {}\n", "perhaps"),
        ("include_all_operators: false\n", "no key 'operators'"),
        ("operators:\n  aten::add: {}\n - x\n", "ops.yaml:3"),
        ("operators:\n  nonsense: {}\n", "nonsense"),
        ("- - - aten::add\n", "aten::add"),
        ("- " * 5000 + "aten::add\n", "nested"),
    ],
)
def test_what_is_no_operator_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)
    assert "ops.yaml" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml"):
        read_allowed_operators(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_allowed_operators(tmp_path / "binary.yaml")
