"""How listings of machine code are read by ``tests/benchmarks/instructions.py``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "benchmarks" / "instructions.py"
LISTING = """
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/              @!P1 IMAD.MOV.U32 R1, RZ, RZ, R0 ;
        /*0020*/                   HMMA.16816.F32 R4, R8, R12.reuse, R4 ;
        /*0030*/               @P0 BRA 0x10 ;
        /*0040*/                   FADD.FTZ R1, R1, R1 ;
        /*0050*/                   FADD.FTZ R1, R1, R1 ;
        /*0060*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0070*/              @!P2 BRA P3, 0x40 ;
        /*0080*/                   BRA 0x90 ;
        /*0090*/                   EXIT ;
"""


@pytest.fixture
def instructions(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import instructions

    return instructions


def test_the_main_loop_has_the_most_products_in_the_fewest_instructions(instructions: object) -> None:
    code = instructions.instructions_of(LISTING)  # type: ignore[attr-defined]
    kinds = ["S2R", "IMAD", "HMMA", "BRA", "FADD", "FADD", "HMMA", "BRA", "BRA", "EXIT"]
    assert [line.kind for line in code] == kinds
    loops = list(instructions.loops_of(code))  # type: ignore[attr-defined]
    assert [(loop[0].address, loop[-1].address) for loop in loops] == [(0x10, 0x30), (0x40, 0x70)]
    assert instructions.main_loop(code) == loops[0]  # type: ignore[attr-defined]
    assert instructions.main_loop(code[4:6]) == []  # type: ignore[attr-defined]


def test_other_pipeline_caches_are_named(instructions: object) -> None:
    with pytest.raises(SystemExit, match="no code of NVIDIA's compiler"):
        instructions.machine_code(b"lavapipe")  # type: ignore[attr-defined]


def test_a_missing_disassembler_is_named() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "resnet18"], capture_output=True, text=True, env={"PATH": ""}, check=False
    )
    assert done.returncode == 1
    assert "nvdisasm isn't on the path" in done.stderr
