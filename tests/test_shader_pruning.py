"""What is left of SPIR-V where specialization constants choose: as text, and operation by operation."""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
import subprocess

import numpy
import pytest

from mobopt import shaders
from mobopt.shaders.pruning import Module, pruned

needs_tools = pytest.mark.skipif(
    shutil.which("spirv-as") is None and not os.environ.get("CI"),
    reason="spirv-as is not installed (Debian: spirv-tools)",
)

HEAD = """
OpCapability Shader
OpMemoryModel Logical GLSL450
OpEntryPoint GLCompute %main "main"
OpExecutionMode %main LocalSize 1 1 1
OpName %main "main"
OpDecorate %kind SpecId 3
OpDecorate %flag SpecId 4
{decorations}
%void = OpTypeVoid
%function = OpTypeFunction %void
%bool = OpTypeBool
%int = OpTypeInt 32 1
%float = OpTypeFloat 32
%zero = OpConstant %int 0
%one = OpConstant %int 1
%two = OpConstant %int 2
%half = OpConstant %float 0.5
%kind = OpSpecConstant %int 0
%flag = OpSpecConstantFalse %bool
%next = OpSpecConstantOp %int IAdd %kind %one
%main = OpFunction %void None %function
%entry = OpLabel
"""


def assembled(body: str) -> bytes:
    """A module whose one function has that body."""
    exact = [f"OpDecorate {name} NoContraction" for name in ("%odd", "%even") if name in body]
    text = HEAD.format(decorations="\n".join(exact)) + body + "\nOpFunctionEnd\n"
    command = ["spirv-as", "--target-env", "vulkan1.1", "--preserve-numeric-ids", "-", "-o", "-"]
    return subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout


def body_of(spirv: bytes) -> list[str]:
    """The function's instructions after its first label, in the words of the input: ids count in their order."""
    command = ["spirv-dis", "--raw-id", "--no-header", "--no-indent", "-"]
    text = subprocess.run(command, input=spirv, capture_output=True, check=True).stdout.decode()
    lines = text.splitlines()
    return lines[next(n for n, line in enumerate(lines) if "OpFunction " in line) + 2 : -1]


def renamed(lines: list[str]) -> list[str]:
    """The same with ids by the order in which they come, so that texts of two modules can be compared."""
    names: dict[str, str] = {}
    return [re.sub(r"%\w+", lambda found: names.setdefault(found[0], f"%{len(names)}"), line) for line in lines]


def check(body: str, left: str, **values: int) -> bytes:
    """See what is left of a body by constants 3 (kind) and 4 (flag); give the module."""
    result = pruned(assembled(body), struct.pack("<5I", 0, 0, 0, values.get("kind", 0), values.get("flag", 0)))
    validate(result)
    assert renamed(body_of(result)) == renamed([line.strip() for line in left.strip().splitlines()])
    return result


def validate(spirv: bytes, environment: str = "vulkan1.1") -> None:
    command = ["spirv-val", "--target-env", environment, "-"]
    done = subprocess.run(command, input=spirv, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


CHOICE = """
OpSelectionMerge %end None
OpBranchConditional %flag %then %else
%then = OpLabel
%odd = OpFAdd %float %half %half
OpBranch %end
%else = OpLabel
%even = OpFMul %float %half %half
OpBranch %end
%end = OpLabel
%value = OpPhi %float %odd %then %even %else
%sum = OpFAdd %float %value %value
OpReturn
"""


@needs_tools
@pytest.mark.parametrize(("flag", "operation"), [(1, "OpFAdd"), (0, "OpFMul")])
def test_a_choice_of_two_becomes_a_branch(flag, operation):
    result = check(
        CHOICE,
        f"""
        OpBranch %then
        %then = OpLabel
        %odd = {operation} %float %half %half
        OpBranch %end
        %end = OpLabel
        %value = OpPhi %float %odd %then
        %sum = OpFAdd %float %value %value
        OpReturn
        """,
        flag=flag,
    )
    text = subprocess.run(["spirv-dis", "-"], input=result, capture_output=True, check=True).stdout.decode()
    assert text.count("NoContraction") == 1  # of the operation that is left
    assert "OpName" not in text


SWITCH = """
OpSelectionMerge %end None
OpSwitch %next %other 1 %first 2 %second
%first = OpLabel
OpBranch %second
%second = OpLabel
%odd = OpFAdd %float %half %half
OpBranch %end
%other = OpLabel
%even = OpFMul %float %half %half
OpBranch %end
%end = OpLabel
OpReturn
"""


@needs_tools
def test_a_switch_keeps_its_case_and_what_that_falls_to():
    check(
        SWITCH,
        """
        OpSelectionMerge %end None
        OpSwitch %next %first
        %first = OpLabel
        OpBranch %second
        %second = OpLabel
        %odd = OpFAdd %float %half %half
        OpBranch %end
        %end = OpLabel
        OpReturn
        """,
        kind=0,
    )
    check(
        SWITCH,
        """
        OpSelectionMerge %end None
        OpSwitch %next %other
        %other = OpLabel
        %even = OpFMul %float %half %half
        OpBranch %end
        %end = OpLabel
        OpReturn
        """,
        kind=7,
    )


LOOP = """
OpBranch %header
%header = OpLabel
%turn = OpPhi %int %zero %entry %following %continue
OpLoopMerge %end %continue None
OpBranch %test
%test = OpLabel
%more = OpSLessThan %bool %turn %kind
%runs = OpLogicalAnd %bool %more %flag
OpBranchConditional %runs %body %end
%body = OpLabel
OpBranch %continue
%continue = OpLabel
%following = OpIAdd %int %turn %one
OpBranch %header
%end = OpLabel
%last = OpIAdd %int %turn %one
OpReturn
"""


@needs_tools
def test_a_loop_that_never_runs_goes_on_from_an_empty_block():
    check(
        LOOP,
        """
        OpBranch %header
        %header = OpLabel
        %turn = OpPhi %int %zero %entry %undefined %continue
        OpLoopMerge %end %continue None
        OpBranch %test
        %test = OpLabel
        %more = OpSLessThan %bool %turn %kind
        %runs = OpLogicalAnd %bool %more %flag
        OpBranch %end
        %continue = OpLabel
        OpBranch %header
        %end = OpLabel
        %last = OpIAdd %int %turn %one
        OpReturn
        """,
        flag=0,
    )


@needs_tools
def test_a_loop_that_runs_is_left_alone():
    check(LOOP, LOOP, flag=1, kind=3)


@needs_tools
def test_an_end_that_nothing_reaches_stays():
    body = """
    OpSelectionMerge %end None
    OpSwitch %kind %other 1 %first
    %first = OpLabel
    OpBranch %end
    %other = OpLabel
    OpReturn
    %end = OpLabel
    %sum = OpFAdd %float %half %half
    OpReturn
    """
    left = """
    OpSelectionMerge %end None
    OpSwitch %kind %other
    %other = OpLabel
    OpReturn
    %end = OpLabel
    OpUnreachable
    """
    check(body, left, kind=5)


@needs_tools
def test_constants_that_are_not_given_are_what_the_module_says():
    code = assembled(CHOICE)
    assert pruned(code, b"") == pruned(code, struct.pack("<5I", 9, 9, 9, 9, 0))


SIGNED, UNSIGNED = numpy.int32, numpy.uint32
REFERENCES = {
    126: (SIGNED, lambda a: -a),
    128: (SIGNED, lambda a, b: a + b),
    130: (SIGNED, lambda a, b: a - b),
    132: (SIGNED, lambda a, b: a * b),
    134: (UNSIGNED, lambda a, b: a // b),
    135: (SIGNED, lambda a, b: numpy.trunc(a.astype(float) / b).astype(numpy.int64).astype(SIGNED)),
    137: (UNSIGNED, lambda a, b: a % b),
    138: (SIGNED, lambda a, b: numpy.fmod(a, b)),
    139: (SIGNED, lambda a, b: numpy.mod(a, b)),
    170: (SIGNED, lambda a, b: a == b),
    171: (SIGNED, lambda a, b: a != b),
    172: (UNSIGNED, lambda a, b: a > b),
    173: (SIGNED, lambda a, b: a > b),
    174: (UNSIGNED, lambda a, b: a >= b),
    175: (SIGNED, lambda a, b: a >= b),
    176: (UNSIGNED, lambda a, b: a < b),
    177: (SIGNED, lambda a, b: a < b),
    178: (UNSIGNED, lambda a, b: a <= b),
    179: (SIGNED, lambda a, b: a <= b),
    194: (UNSIGNED, lambda a, b: a >> (b & 31)),
    195: (SIGNED, lambda a, b: a >> (b & 31)),
    196: (UNSIGNED, lambda a, b: a << (b & 31)),
    197: (SIGNED, lambda a, b: a | b),
    198: (SIGNED, lambda a, b: a ^ b),
    199: (SIGNED, lambda a, b: a & b),
    200: (SIGNED, lambda a: ~a),
}
"""By opcode, for numpy."""
EDGES = (0, 1, 2, 7, 31, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFD)


@pytest.mark.parametrize("opcode", REFERENCES)
def test_operations(opcode):
    from mobopt.shaders.pruning import _OPERATIONS

    kind, reference = REFERENCES[opcode]
    operation, count = _OPERATIONS[opcode], reference.__code__.co_argcount
    words = [*EDGES, *(random.getrandbits(32) for _ in range(20))]
    shifts, divides = opcode in (194, 195, 196), opcode in (134, 135, 137, 138, 139)
    for a in words:
        for b in words if count > 1 else [0]:
            given = (a, b % 32 if shifts else b)[:count]
            if divides and (b == 0 or (kind is SIGNED and (a, b) == (0x80000000, 0xFFFFFFFF))):
                continue  # undefined
            arrays = [numpy.array([word], UNSIGNED).view(kind) for word in given]
            with numpy.errstate(over="ignore"):
                result = reference(*arrays)
            wanted = int(result[0]) if result.dtype == bool else int(result.astype(kind).view(UNSIGNED)[0])
            assert int(operation(*given)) & 0xFFFFFFFF == wanted, (opcode, given)


def test_what_is_not_defined_is_not_known():
    from mobopt.shaders.pruning import _OPERATIONS

    assert [_OPERATIONS[opcode](1, 0) for opcode in (134, 135, 137, 138, 139)] == [None] * 5
    assert [_OPERATIONS[opcode](1, 32) for opcode in (194, 195, 196)] == [None] * 3


@pytest.mark.parametrize("bad", [b"", b"\x07\x23\x02\x03" + bytes(16), bytes(40)])
def test_other_files_are_refused(bad):
    with pytest.raises(ValueError, match="no SPIR-V module"):
        Module(bad)


@needs_tools
@pytest.mark.sweep
@pytest.mark.parametrize("name", shaders.variants())
def test_every_variant_stays_valid(name):
    """Whatever its constants are: they choose branches, and nothing here runs."""
    needs_memory_model = {"matrix_units", "device_memory_model"} & set(shaders.variants()[name].requires)
    code = shaders.load(name)
    whole = subprocess.run(["spirv-val", "--target-env", "vulkan1.2", "-"], input=code, capture_output=True)
    if whole.returncode:
        pytest.skip("this spirv-val is older than what the variant uses")
    for _ in range(4):
        values = struct.pack("<64I", *(random.choice((0, 1, 1, 2, 4, 5, 32)) for _ in range(64)))
        validate(pruned(code, values), "vulkan1.2" if needs_memory_model else "vulkan1.1")
