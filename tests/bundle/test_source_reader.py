"""Serialised TorchScript source in: against what torch computes from the same files, and what is refused."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripted_modules as modules
import torch
from archives import archive
from model_zoo import ZOO, tensors_of
from sampling import sampled
from torch import Tensor, nn

from mobopt.bundle import read_bundle
from mobopt.errors import BundleError, InputError
from mobopt.ir import Program, verify
from mobopt.runtimes.cpu import Interpreter


def parse_file(path: Path) -> Program:
    return read_bundle(path, prefer="code")


def parse_module(module: nn.Module, folder: Path) -> Program:
    scripted = module if isinstance(module, torch.jit.ScriptModule) else torch.jit.script(module)
    path = folder / "model.pt"
    torch.jit.save(scripted, str(path))
    return parse_file(path)


def pickled_object(name: str, state: dict[str, str]) -> bytes:
    """The pickle of an object of a class whose attributes are strings."""
    module, _, cls = name.rpartition(".")
    items = b"".join(b"X" + len(t).to_bytes(4, "little") + t.encode() for pair in state.items() for t in pair)
    return f"\x80\x02c{module}\n{cls}\n)\x81}}(".encode("latin-1") + items + b"ub."


def parse_text(text: str, attributes: dict[str, str] | None = None) -> Program:
    """A program from the text of one class ``M`` and what it needs, in ``code/__torch__.py``."""
    records = {
        "version": b"4\n",
        "data.pkl": pickled_object("__torch__.M", attributes or {}),
        "constants.pkl": b"\x80\x02).",
        "code/__torch__.py": text.encode(),
    }
    return read_bundle(io.BytesIO(archive(records)), prefer="code")


def forward(body: str, arguments: str = "x: Tensor") -> str:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return f"class M(Module):\n  def forward(self: __torch__.M,\n    {arguments}) -> Tensor:\n{lines}\n"


def assert_same(actual: Any, expected: Any) -> None:
    """Equal in structure; tensors and floats within rounding."""
    if isinstance(expected, (Tensor, float)):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
        return
    assert isinstance(actual, tuple) if isinstance(expected, tuple) else type(actual) is type(expected)
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for left, right in zip(actual, expected, strict=True):
            assert_same(left, right)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        assert_same(list(actual.values()), list(expected.values()))
    else:
        assert actual == expected


_X = torch.arange(9.0).view(3, 3) - 4

CASES: dict[str, tuple[Callable[[], nn.Module], list[tuple[Any, ...]]]] = {
    "branches": (modules.Branches, [(_X,), (_X, True, None), (_X[:1], False, [3, 1]), (_X[0], False, None)]),
    "early returns": (modules.EarlyReturns, [(_X, -1), (_X, 0), (_X, 2), (_X, 9)]),
    "loops": (modules.Loops, [(_X, 0), (_X, 5)]),
    "lists": (modules.Lists, [(_X,)]),
    "dictionaries": (modules.Dictionaries, [(_X,)]),
    "optionals": (modules.Optionals, [(_X,)]),
    "named tuples": (modules.NamedTuples, [(_X,)]),
    "strings": (modules.Strings, [(_X, "abc"), (_X, "xyzzy")]),
    "arithmetic": (modules.Arithmetic, [(_X, 7, 2.5), (_X, 2, 3.75)]),
    "indexing": (modules.Indexing, [(_X,)]),
    "conversions": (modules.Conversions, [(_X,)]),
    "containers": (modules.Containers, [(torch.arange(8.0).view(2, 4) - 3,)]),
    "modules by number": (modules.ModulesByNumber, [(torch.arange(8.0).view(2, 4) - 3,)]),
    "no gradient": (modules.NoGradient, [(_X,)]),
    "any": (modules.AnyInput, [(3,), (2.5,), (_X,)]),
    "assertions": (modules.Assertions, [(_X, 1)]),
    "constants": (modules.Constants, [(torch.arange(6.0),)]),
    "lstm": (modules.Recurrent, [(_X.view(3, 1, 3),)]),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16).eval(), [(torch.arange(48.0).view(2, 3, 8).sin(),)]),
    "padding": (lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), [(_X.view(1, 1, 3, 3),)]),
}


def defaults_filled(program: Program, arguments: tuple[Any, ...]) -> list[Any]:
    names = [value.name for value in program.methods["forward"].inputs[1:]]
    defaults = program.metadata.get("defaults", {}).get("forward", {})
    return [*arguments, *(defaults[name] for name in names[len(arguments) :])]


@pytest.mark.parametrize("name", CASES)
def test_language(name: str, tmp_path: Path) -> None:
    make, calls = CASES[name]
    torch.manual_seed(0)
    module = make()
    program = parse_module(module, tmp_path)
    scripted = torch.jit.script(module)
    for arguments in calls:
        actual = Interpreter(program).run("forward", defaults_filled(program, arguments))
        assert_same(actual, scripted(*arguments))


def test_named_tuples_keep_names(tmp_path: Path) -> None:
    program = parse_module(modules.NamedTuples(), tmp_path)
    pair = Interpreter(program).run("forward", [_X])[0]
    assert pair._fields == ("values", "count")
    assert set(program.methods) == {"forward", "pair"}


def test_the_model_raises_its_own_errors(tmp_path: Path) -> None:
    interpreter = Interpreter(parse_module(modules.Assertions(), tmp_path))
    with pytest.raises(InputError, match="seven"):
        interpreter.run("forward", [_X, 7])
    with pytest.raises(InputError, match="1 dimensions"):
        interpreter.run("forward", [_X[0], 1])


def test_attributes_are_named_from_the_root(tmp_path: Path) -> None:
    program = parse_module(modules.Containers().eval(), tmp_path)
    assert program.attributes["layers.0.0.weight"].is_parameter
    assert program.attributes["table.odd name.weight"].value.shape == (3, 4)
    assert program.attributes["training"].value is False


def test_a_module_that_an_input_chooses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="which module of 'layers' it calls is known when it runs"):
        parse_module(modules.ModuleByInput().eval(), tmp_path)


def test_defaults_are_kept(tmp_path: Path) -> None:
    program = parse_module(modules.Branches(), tmp_path)
    assert [value.name for value in program.methods["forward"].inputs] == ["self", "x", "flag", "size"]
    assert program.metadata["defaults"] == {"forward": {"flag": False, "size": None}}


def test_assigned_attributes_last(tmp_path: Path) -> None:
    program = parse_module(modules.State(), tmp_path)
    interpreter, scripted = Interpreter(program), torch.jit.script(modules.State())
    for _ in range(3):
        assert_same(interpreter.run("forward", [_X + 5]), scripted(_X + 5))


# Whole models.


def operators(block: Any) -> set[str]:
    """Operators of torch's graph with their overloads."""
    found: set[str] = set()
    for node in block.nodes():
        overload = re.match(r"[\w:]+\.(\w+)\(", node.schema())
        found.add(f"{node.kind()}.{overload[1]}" if overload else node.kind())
        for nested in node.blocks():
            found |= operators(nested)
    return found - {"prim::Constant"}


@pytest.mark.parametrize("name", sampled(["mobilenet_v3_large", "googlenet", "deeplabv3_mobilenet"], one_in=2))
def test_scripted_models(name: str, tmp_path: Path) -> None:
    module = ZOO[name].build()
    x = ZOO[name].example(2, 65, 97)
    with torch.no_grad():
        expected = module(x)
    actual = Interpreter(parse_module(module, tmp_path)).run("forward", [x])
    for left, right in zip(tensors_of(actual), tensors_of(expected), strict=True):
        assert (left - right).abs().max() <= 1e-5 * right.abs().max()


@pytest.mark.parametrize("name", ["unet_bilinear", "shufflenet_v2_x1_0"])
def test_overloads_are_those_that_torch_chooses(name: str, tmp_path: Path) -> None:
    module = ZOO[name].build()
    traced = torch.jit.trace(module, ZOO[name].example(1, 64, 64))
    program = parse_module(traced, tmp_path)
    loaded = torch.jit.load(str(tmp_path / "model.pt"))  # keeps the graph alive
    graph = loaded._c._get_method("forward").graph
    torch._C._jit_pass_inline(graph)
    assert {node.qualified_op for node in program.methods["forward"].walk()} | _BOOKKEEPING == operators(
        graph
    ) | _BOOKKEEPING


_BOOKKEEPING = {"prim::GetAttr", "prim::TupleConstruct", "prim::TupleUnpack"}
"""What inlining leaves more or less of."""


GOLDEN = Path(__file__).parent.parent / "golden"
BUNDLES = [path for path in sorted(GOLDEN.glob("*/*/*.pt")) if path.name.startswith(("model", "vulkan"))]


@pytest.mark.parametrize("path", BUNDLES, ids=lambda path: "-".join(path.parts[-3:]))
def test_golden_bundles(path: Path) -> None:
    inputs = [torch.from_numpy(np.load(item)) for item in sorted(path.parent.glob("input_*.npy"))]
    expected = [torch.from_numpy(np.load(item)) for item in sorted(path.parent.glob("expected_*.npy"))]
    actual = tensors_of(Interpreter(parse_file(path)).run("forward", inputs))
    for left, right in zip(actual, expected, strict=True):
        assert (left - right).abs().max() <= 1e-5 * right.abs().max()


# What is refused.


def test_text_of_our_own() -> None:
    program = parse_text(forward("y = torch.mul(x, 2)\nreturn y"))
    verify(program)
    assert_same(Interpreter(program).run("forward", [_X]), _X * 2)


INFIX = """
y = (x + 1) * 2 - x / 4 if len([x]) == 1 and not False else -x
n : Optional[int] = None
for i in range(3):
  n = i if n is None else unchecked_unwrap_optional(n) + i
a, b = {"k": 1.5}["k"], (1, x)[1:][0]
while 1 < 2 and "a" in ["b"] or x is None:
  y = b
assert a > 1 and 3 not in [1, 2], "never"
return y.add(unchecked_cast(int, n)) * a ** -2
"""


def test_infix_operators_of_hand_written_source() -> None:

    program = parse_text(forward(INFIX))
    verify(program)
    assert_same(Interpreter(program).run("forward", [_X]), ((_X + 1) * 2 - _X / 4 + 3) * 1.5**-2)


_TWICE = "def f{0}(x: Tensor) -> Tensor:\n  return __torch__.f{1}(__torch__.f{1}(x, ), )\n"

REFUSED: dict[str, str] = {
    "syntax": "class M(Module:\n",
    "top level": "print(1)\n",
    "missing class": "class N(Module):\n  pass\n",
    "class body": "class M(Module):\n  print(1)\n",
    "unknown operator": forward("return torch.nope(x)"),
    "unknown namespace": forward("return ops.a.b.c(x)"),
    "wrong arguments": forward("return torch.conv2d(x, 1)"),
    "unknown variable": forward("return y"),
    "one branch only": forward("if torch.gt(x, 0):\n  y = x\nelse:\n  pass\nreturn y"),
    "constant index": forward("return CONSTANTS.c0"),
    "attribute": forward("return self.weight"),
    "method": forward("return (self).other(x, )"),
    "global function": forward("return __torch__.os.system(x, )"),
    "import": forward("import os\nreturn x"),
    "lambda": forward("return (lambda: x)()"),
    "comprehension": forward("return [y for y in x]"),
    "closure": forward("def f():\n  return x\nreturn x"),
    "fork": forward("y = fork(x)\nreturn x"),
    "early return": forward("if torch.gt(x, 0):\n  return x\nelse:\n  pass\nreturn x"),
    "builtin": forward("return open(x)"),
    "class instance": forward("y = __torch__.M.__new__(__torch__.M)\nreturn x"),
    "with": forward("with x:\n  pass\nreturn x"),
    "unpack": forward("a, b, = (x, x, x)\nreturn a"),
    "device": forward('return torch.to(x, torch.device("nowhere"))'),
    "result type": forward("return 1"),
    "loop type": forward("y = x\nfor i in range(3):\n  y = [x]\nreturn y"),
    "hooks": 'class M(Module):\n  __forward_hooks__ = ["h", ]\n',
    "twice": "class M(Module):\n  pass\nclass M(Module):\n  pass\n",
    "recursion": (
        forward("return __torch__.f(x, )") + "def f(x: Tensor) -> Tensor:\n  return __torch__.g(x, )\n"
        "def g(x: Tensor) -> Tensor:\n  return __torch__.f(x, )\n"
    ),
    "deep calls": (
        forward("return __torch__.f0(x, )")
        + "".join(f"def f{i}(x: Tensor) -> Tensor:\n  return __torch__.f{i + 1}(x, )\n" for i in range(99))
    ),
    "deep expression": forward("return " + "-" * 2000 + "x"),
    "brackets": forward("return " + "(" * 5000 + "x" + ")" * 5000),
    "chain": forward("return x" + ".a" * 20000),
    "unlike elements": forward("y = ((x, 1))[i]\nreturn x", "x: Tensor, i: int"),
    "far element": forward("y = ((x, x))[2]\nreturn x"),
    "element by a tensor": forward("y = ((x, x))[x]\nreturn x"),
    "own tuple": (forward("y = annotate(__torch__.T, x)\nreturn x") + "class T(NamedTuple):\n  a : __torch__.T\n"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with pytest.raises(BundleError, match=r"__torch__|nested too deeply") as caught:
        parse_text(REFUSED[name])
    assert "\n" not in str(caught.value)


_DOUBLING: dict[str, str] = {
    "calls": (
        forward("return __torch__.f0(x, )")
        + "".join(_TWICE.format(i, i + 1) for i in range(40))
        + "def f40(x: Tensor) -> Tensor:\n  return x\n"
    ),
    "tuples": forward("".join("x = (x, x)\n" for _ in range(60)) + "return x"),
    "named tuples": (
        forward("y = annotate(__torch__.T0, x)\nreturn x")
        + "".join(f"class T{i}(NamedTuple):\n  a : __torch__.T{i + 1}\n  b : __torch__.T{i + 1}\n" for i in range(40))
        + "class T40(NamedTuple):\n  a : Tensor\n"
    ),
}


@pytest.mark.parametrize("name", _DOUBLING)
def test_doubling_is_bounded(name: str) -> None:
    with pytest.raises(BundleError):
        parse_text(_DOUBLING[name])


def test_attributes_have_their_declared_type() -> None:
    text = "class M(Module):\n  weight : Tensor\n" + forward("return self.weight").partition("\n")[2]
    with pytest.raises(BundleError, match="weight"):
        parse_text(text, {"weight": "no tensor"})


class Limits(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.masked_fill(x < 0, -(2**63)), x.clamp(min=2**63 - 1)


def test_the_ends_of_the_integers(tmp_path: Path) -> None:
    x = torch.tensor([-1, 1])
    traced = torch.jit.trace(Limits(), x)
    low, high = Interpreter(parse_module(traced, tmp_path)).run("forward", [x])
    assert low.tolist() == [-(2**63), 1]
    assert high.tolist() == [2**63 - 1] * 2
    with pytest.raises(BundleError, match="9223372036854775808 is not a 64-bit integer"):
        parse_text(forward("return torch.add(x, 9223372036854775808)"))
