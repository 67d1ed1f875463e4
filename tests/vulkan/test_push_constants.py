"""Push constants: what the table says is what GLSL declares, what SPIR-V has, and what the host packs."""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
from device_infos import device_info

from mobopt import shaders
from mobopt.errors import UnsupportedError
from mobopt.runtimes.vulkan.kernels.plan import Plan
from mobopt.shaders.expand import expand
from mobopt.shaders.push_blocks import Array, Named, PushConstants, Structure, Uint, Words, glsl_of_block, members
from mobopt.shaders.push_constants import BLOCKS, CHAIN_END, Link, ProductPush, SearchPush
from mobopt.shaders.reduction_push import NormalizePush
from mobopt.shaders.table import GLSL_FOLDER, TABLE, ShaderError, Variant, parse_table

ROWS = parse_table(TABLE.read_text(encoding="utf-8"))
SOURCES = {path.name: path.read_text(encoding="utf-8") for path in sorted(GLSL_FOLDER.iterdir())}
_PUSH_CONSTANT_STORAGE, _OFFSET = 9, 35
_OP_TYPE_POINTER, _OP_MEMBER_DECORATE = 32, 72

FLOAT2, FLOAT3 = Annotated[Sequence[float], "vec2"], Annotated[Sequence[float], "vec3"]


@dataclass
class Mixed(PushConstants):
    """One of everything."""

    count: int
    place: FLOAT3
    weight: float
    size: Annotated[Sequence[int], Named(("h", "w"))]
    corner: FLOAT2
    pair: Annotated[Sequence[float], Array(2, "vec3")]
    nest: Annotated[Sequence[int], Structure("Nest", ("offset", "step"))]
    seed: Uint


@dataclass
class Large(PushConstants):
    """A word too many."""

    numbers: Annotated[Sequence[int], Array(33)]


@dataclass
class Late(PushConstants):
    """Beyond another."""

    first: ClassVar[int] = 8
    corner: FLOAT2
    last: float


@dataclass
class Runs(PushConstants):
    """Of words."""

    sizes: Annotated[Sequence[int], Words("RANK")]
    tensor: Annotated[Sequence[int], Words("RANK + 1", each="2")]
    length: int
    scale: float


def mixed() -> Mixed:
    return Mixed(-3, (1.0, 2.0, 3.0), 0.5, (7, 11), (4.0, 5.0), (*range(6),), (13, 17), 2**32 - 1)


def test_numbers_lie_by_the_rules_of_std430() -> None:
    offsets = {member.name: member.offset for member in members(Mixed)}
    assert offsets == {
        "count": 0,
        "place": 16,  # three floats lie as four
        "weight": 28,  # and leave room for one
        "size_h": 32,
        "size_w": 36,
        "corner": 40,
        "pair": 48,
        "nest": 80,
        "seed": 88,
    }


def test_bytes_are_where_offsets_say() -> None:
    packed = mixed().pack()
    assert len(packed) == 128
    assert struct.unpack_from("<i", packed, 0) == (-3,)
    assert struct.unpack_from("<4f", packed, 16) == (1.0, 2.0, 3.0, 0.5)
    assert struct.unpack_from("<2i2f", packed, 32) == (7, 11, 4.0, 5.0)
    assert struct.unpack_from("<3f4x3f", packed, 48) == (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    assert struct.unpack_from("<2iI", packed, 80) == (13, 17, 2**32 - 1)
    assert packed[12:16] == packed[60:64] == b"\0" * 4 and not any(packed[92:])
    assert Late((1.0, 2.0), 3.0).pack()[:12] == struct.pack("<3f", 1.0, 2.0, 3.0)


def test_glsl_has_the_same_offsets() -> None:
    lines = glsl_of_block(Mixed)
    assert lines[0] == "struct Nest { int offset, step; };"
    assert "    layout(offset = 48) vec3 pair[2];" in lines
    assert "    layout(offset = 80) Nest nest;" in lines
    assert "    layout(offset = 88) uint seed;" in lines


def test_kernels_for_cpus_copy_what_is_pushed() -> None:
    lines = glsl_of_block(Mixed)
    start, end = lines.index("} pushed;"), lines.index("#else")
    assert lines[lines.index("#ifdef TEXELS") + 1].endswith("Mixed {")
    held = lines[start + 1 : end]
    assert "vec3 pair[2] = pushed.pair;" in held and "Nest nest = pushed.nest;" in held
    assert [line.split(" = pushed.")[1] for line in held] == [f"{member.name};" for member in members(Mixed)]
    assert "int words[32] = pushed.words;" in glsl_of_block(Runs)


def test_words_are_found_by_constants() -> None:
    lines = glsl_of_block(Runs)
    assert lines[lines.index("#endif") + 1 :] == [
        "const int SIZES_WORD = 0;",
        "int tensor_word(int number) { return RANK + number * (RANK + 1); }",
        "const int LENGTH_WORD = RANK + (2) * (RANK + 1);",
        "const int SCALE_WORD = LENGTH_WORD + 1;",
    ]
    packed = Runs((3, 5), (1, 2, 3, 4, 5, 6), 7, 0.25).pack()
    assert packed == struct.pack("<9if", 3, 5, 1, 2, 3, 4, 5, 6, 7, 0.25).ljust(128, b"\0")


def test_a_block_that_adds_to_another_says_only_where_its_own_words_are() -> None:
    assert [line.split()[2] for line in glsl_of_block(NormalizePush)] == [
        "WEIGHT_WORD",
        "BIAS_WORD",
        "SHARE_WORD",
        "EPS_WORD",
    ]


def test_too_many_bytes_are_refused() -> None:
    with pytest.raises(ShaderError, match="Large has 132 bytes of push constants; there are 128"):
        glsl_of_block(Large)
    with pytest.raises(ShaderError, match="Large has 132 bytes"):
        Large(range(33)).pack()
    with pytest.raises(ShaderError, match="33 words of push constants; there are 32"):
        Runs(range(3), range(28), 1, 1.0).pack()


def test_a_dispatch_of_too_many_words_is_unsupported() -> None:
    plan = Plan(device_info("discrete"))
    with pytest.raises(UnsupportedError, match="33 words of push constants"):
        plan.dispatch("search", (), (1, 1, 1), (), SearchPush(range(6), range(25), 1, 1), iterations=1)


@pytest.mark.parametrize(
    "block",
    [Runs((2**31,), range(2), 1, 1.0), Runs((1.5,), range(2), 1, 1.0), Late((1.0,), 2.0)],  # type: ignore[arg-type]
)
def test_numbers_that_do_not_fit_are_refused(block: PushConstants) -> None:
    with pytest.raises(struct.error):
        block.pack()


def test_products_pack_all_words() -> None:
    numbers = range(1, 33)
    assert ProductPush(*numbers).pack() == struct.pack("<32i", *numbers)


def test_links_lie_beyond_all_blocks() -> None:
    assert glsl_of_block(Link) == [
        "#define CHAIN_FIELDS layout(offset = 128) uint arrivals_settled; layout(offset = 132) uint arrivals_before; "
        "layout(offset = 136) uint arrivals_in_all;"
    ]
    assert Link(1, 3, 2**31).pack() == struct.pack("<3I", 1, 3, 2**31)
    assert Link.first == 128 and CHAIN_END == 140


def test_no_shader_declares_push_constants_by_hand() -> None:
    by_hand = [name for name, text in SOURCES.items() if "push_constant" in re.sub(r"//.*", "", text)]
    assert not by_hand, f"declare them in shaders/push_constants.py: {by_hand}"
    assert not set(BLOCKS) & set(SOURCES)


@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_is_used_by_a_shader(name: str) -> None:
    assert any(f'#include "{name}"' in text for text in SOURCES.values())


def _variants() -> list[Variant]:
    """All that were built but for twins with texel buffers; of pointwise programs the shortest."""
    built = [row for row in ROWS.values() if shaders.is_built(row.name) and not row.name.endswith("_texels")]
    return [row for row in built if "pointwise" not in row.name or row.name.startswith("pointwise_2_0")]


def _offsets(spirv: bytes) -> list[int]:
    """Offsets of the members of the block of push constants."""
    words, at = struct.unpack(f"<{len(spirv) // 4}I", spirv), 5
    decorated: dict[int, dict[int, int]] = {}
    blocks: list[int] = []
    while at < len(words):
        count, opcode = words[at] >> 16, words[at] & 0xFFFF
        given = words[at + 1 : at + count]
        if opcode == _OP_MEMBER_DECORATE and given[2] == _OFFSET:
            decorated.setdefault(given[0], {})[given[1]] = given[3]
        if opcode == _OP_TYPE_POINTER and given[1] == _PUSH_CONSTANT_STORAGE and given[2] in decorated:
            blocks.append(given[2])
        at += count
    return [offset for block in blocks[:1] for _, offset in sorted(decorated[block].items())]


@pytest.mark.parametrize("row", _variants(), ids=lambda row: row.name)
def test_compiled_shaders_have_the_offsets_of_the_table(row: Variant) -> None:
    text = expand(row, GLSL_FOLDER)
    blocks = [block for block in BLOCKS.values() if f"uniform {block.__name__} {{" in text]
    offsets = _offsets(shaders.load(row.name))
    if row.source == "convolution_general.comp":
        assert not blocks  # its numbers lie in a buffer
        return
    link = [member.offset for member in members(Link)] if row.is_chained else []
    own = [_own_offsets(block) for block in blocks] or [[]]  # sort.comp chooses from two by a macro
    assert offsets in [[*each, *link] for each in own]


def _own_offsets(block: type[PushConstants]) -> list[int]:
    return [0] if "    int words[32];" in glsl_of_block(block) else [member.offset for member in members(block)]
