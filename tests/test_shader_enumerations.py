"""Shaders have the numbers of the host's enumerations, from the same table."""

import re

import pytest

from mobopt.shaders.enumerations import GENERATED, Opcode
from mobopt.shaders.expand import expand
from mobopt.shaders.table import GLSL_FOLDER, TABLE, Variant, parse_table

_CONSTANT = re.compile(r"^const int (\w+) = (\d+);$", re.MULTILINE)
ROWS = parse_table(TABLE.read_text(encoding="utf-8"))
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in sorted(GLSL_FOLDER.iterdir())}


def users_of(name: str) -> list[Variant]:
    """A variant of each shader whose text has what an enumeration makes."""
    by_source = {row.source: row for row in ROWS.values()}
    return [row for row in by_source.values() if f'#line 1 "{name}"' in expand(row, GLSL_FOLDER)]


@pytest.mark.parametrize("name", GENERATED)
def test_a_shader_has_the_numbers_of_the_host(name: str) -> None:
    users = users_of(name)
    assert users
    for row in users:
        constants = dict(_CONSTANT.findall(expand(row, GLSL_FOLDER)))
        for member in GENERATED[name]:
            assert int(constants[member.name]) == member.value


@pytest.mark.parametrize("name", GENERATED)
def test_no_shader_writes_them_down_again(name: str) -> None:
    assert name not in SOURCES
    users = [text for text in SOURCES.values() if f'#include "{name}"' in text]
    assert users
    for text in users:
        written = set(re.findall(r"\bconst int (\w+) =", text))
        assert not written & {member.name for member in GENERATED[name]}


def test_numbers_are_consecutive() -> None:
    for enumeration in GENERATED.values():
        assert [member.value for member in enumeration] == list(range(len(enumeration)))
    assert Opcode.MOVE == 0


def test_lines_after_an_enumeration_are_those_of_the_file() -> None:
    row = next(row for row in ROWS.values() if row.source == "factor.comp")
    lines = expand(row, GLSL_FOLDER).splitlines()
    place = lines.index('#line 1 "method.glsl"')
    following = lines.index("const int CHOLESKY = 2;") + 1
    number = SOURCES["factor.comp"].splitlines().index('#include "method.glsl"') + 1
    assert place < following and lines[following] == f'#line {number + 1} "glsl/factor.comp"'
