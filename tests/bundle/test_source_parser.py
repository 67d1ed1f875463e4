"""The parser of serialised TorchScript source, against what torch computes from the same files."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mobopt.bundle import source_files, source_graph, source_parser
from mobopt.bundle.container import ArchiveReader
from mobopt.bundle.source_parser import parse_source
from mobopt.bundle.tensors import StorageLoader
from mobopt.bundle.unpickler import PickledObject, unpickle
from mobopt.errors import BundleError, InputError
from mobopt.ir import Program, verify
from mobopt.runtimes.cpu import Interpreter
from tests.model_zoo import ZOO, tensors_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Object:
    """An unpickled module."""

    def __init__(self, qualified_name: str, attributes: dict[str, Any]) -> None:
        self.qualified_name = qualified_name
        self.attributes = attributes


def as_object(value: Any, known: dict[int, Object]) -> Any:
    if not isinstance(value, PickledObject):
        return value
    if id(value) not in known:
        known[id(value)] = Object(value.class_name, {})
        known[id(value)].attributes = {name: as_object(item, known) for name, item in value.state.items()}
    return known[id(value)]


def parse_file(path: Path) -> Program:
    archive = ArchiveReader(path)

    def unpickled(record: str, folder: str) -> Any:
        return unpickle(archive.read(record), StorageLoader(archive, folder), record).value

    def load(record: str) -> str | None:
        return archive.read(f"code/{record}").decode() if f"code/{record}" in archive else None

    program = parse_source(load, unpickled("constants.pkl", "constants"), as_object(unpickled("data.pkl", "data"), {}))
    verify(program)
    return program


def parse_module(module: nn.Module, folder: Path) -> Program:
    scripted = module if isinstance(module, torch.jit.ScriptModule) else torch.jit.script(module)
    path = folder / "model.pt"
    torch.jit.save(scripted, str(path))
    return parse_file(path)


def parse_text(text: str, attributes: dict[str, Any] | None = None, constants: tuple[Any, ...] = ()) -> Program:
    """A program from the text of one class ``M`` and what it needs, in ``code/__torch__.py``."""
    files = {"__torch__.py": text}
    return parse_source(files.get, constants, Object("__torch__.M", attributes or {}))


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


# Modules whose methods show the language's constructs.


class Pair(NamedTuple):
    values: Tensor
    count: int


class Branches(nn.Module):
    def forward(self, x: Tensor, flag: bool = False, size: list[int] | None = None) -> Tensor:
        if flag:
            y = x + 1
        elif x.dim() == 2 and x.size(0) > 2:
            y = x * 2
        else:
            y = x - 1
        if size is not None:
            y = y.view(size)
        return y if y.dim() > 1 or flag else -y


class EarlyReturns(nn.Module):
    def pick(self, x: Tensor, n: int) -> Tensor:
        for i in range(n):
            if i == 3:
                return x * i
            if i * 2 > n:
                return x - i
        return x

    def forward(self, x: Tensor, n: int) -> Tensor:
        if n < 0:
            return x.neg()
        return self.pick(x, n)


class Loops(nn.Module):
    def forward(self, x: Tensor, n: int) -> tuple[Tensor, int]:
        total = 0
        y = x
        for i in range(n):
            for j in range(i, n, 2):
                if j == 3:
                    continue
                y = y + j
                total += i * j
        k = 0
        while k < 10:
            k += 3
            if k > 7:
                break
            y = y * 1.5
        return y, total


class Lists(nn.Module):
    def forward(self, x: Tensor) -> tuple[list[Tensor], list[int], list[list[float]], int]:
        parts: list[Tensor] = []
        for i in range(x.size(0)):
            parts.append(x[i])
        parts[0] = parts[0] + 1
        parts = parts[::-1] + [x.sum()]  # noqa: RUF005 (TorchScript has no unpacking here)
        sizes = [part.dim() for part in parts]
        sizes.extend([1, 2])
        sizes.insert(0, 7)
        last = sizes.pop()
        nested: list[list[float]] = [[0.5], torch.jit.annotate(list[float], [])]
        nested[1].append(float(last))
        return parts, sorted(sizes), nested, len(parts)


class Dictionaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = {"a": 1.5, "b": -2.0}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        result: dict[str, Tensor] = {"x": x}
        for name, scale in self.scales.items():
            result[name] = x * scale
        if "b" in result and "c" not in result:
            result["c"] = result.pop("b")
        counts: dict[int, int] = {}
        counts[3] = len(result)
        counts[3] += 1
        result["n"] = torch.tensor(counts[3])
        return result


class Optionals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias: Tensor | None = None

    def shift(self, x: Tensor, by: Tensor | None, scale: float | None = None) -> Tensor:
        previous: Tensor | None = None
        for _i in range(3):
            if previous is not None:
                x = x + previous
            previous = by
        if scale is not None:
            x = x * scale
        if self.bias is not None:
            x = x + self.bias
        return x if by is None else x + torch.jit._unwrap_optional(by)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.shift(x, None), self.shift(x, x, 2.0), self.bias


class NamedTuples(nn.Module):
    def pair(self, x: Tensor, n: int) -> Pair:
        if n > 3:
            return Pair(x, n)
        return Pair(x + 1, n * 2)

    def forward(self, x: Tensor) -> tuple[Pair, Tensor, int]:
        small, large = self.pair(x, 1), self.pair(x, 5)
        values, count = large
        return small, values + small.values, count + small[1]


class Strings(nn.Module):
    def forward(self, x: Tensor, name: str) -> tuple[str, str, int, bool, str]:
        text = f"{name} has {x.size(0)} rows\t\"'\\ é"
        upper = name.upper() if name.startswith("a") else name[1:3]
        joined = "-".join([name, str(len(name))])
        return text, upper, len(text), name == "abc", joined


class Arithmetic(nn.Module):
    def forward(self, x: Tensor, n: int, s: float) -> tuple[Tensor, list[float], list[int], bool]:
        floats = [n / 3, s // 2, s % 2, n**2.0, float("inf"), -s, min(s, 2.0), abs(s), math_floor(s)]
        ints = [n // 3, n % 3, -n, n << 2, n & 6, n | 8, n ^ 1, max(n, 3), int(s), round_up(s)]
        y = 2 - x / n + s * x**2 - (1 / (x.abs() + 1)) + (x @ x)
        flags = (y > 0) & (y < 5) | (y == 1)
        return torch.where(flags, y, -y), floats, ints, not (n > 3 or s < 0.0) and bool(n)


def math_floor(value: float) -> float:
    return float(int(value))


def round_up(value: float) -> int:
    return int(value) + 1


class Indexing(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y = x.clone()
        y[:, 0] = 3
        y[1] += x[0]
        mask = x > 0
        h, w = x.shape[-2:]
        return y, x[..., 1:, None], x[mask], x.expand([2, h, w])[:, ::2]


class Conversions(nn.Module):
    def forward(self, x: Tensor) -> tuple[int, float, bool, list[int], list[list[float]], Tensor, Tensor]:
        n = int(x.sum().abs())
        ints: list[int] = x[0].to(torch.long).tolist()
        rows: list[list[float]] = x.tolist()
        made = torch.zeros([n % 3 + 1, 2], dtype=x.dtype, device=x.device)
        return n, float(x[0, 0]), bool(x.max() > 0), ints, rows, made, torch.tensor([n, 1], dtype=torch.float)


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.calls = 0

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        self.calls += 1
        self.seen = self.seen + x.sum()
        return x * self.seen, self.calls


class Inner(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), scale))

    def forward(self, x: Tensor, twice: bool = True) -> Tensor:
        return x * self.weight * (2 if twice else 1)


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(Inner(1.5), nn.ReLU()), Inner(-2.0)])
        self.table = nn.ModuleDict({"first": nn.Linear(4, 4), "odd name": nn.Linear(4, 3, bias=False)})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.arange(4.0))])
        self.shared = self.layers[1]

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x) + index
        x = self.shared(x, twice=False) + self.weights[1]
        for _name, layer in self.table.items():
            x = layer(x)
        return x


class NoGradient(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        return y + 1


class AnyInput(nn.Module):
    def forward(self, y: Any) -> tuple[Tensor, bool]:
        result = torch.ones(2)
        if isinstance(y, int):
            result = result + y
        elif isinstance(y, float):
            result = result * y
        return result, isinstance(y, Tensor)


class Assertions(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        assert x.dim() == 2, f"{x.dim()} dimensions"
        if n == 7:
            raise ValueError("seven")
        return x + n


class Constants(nn.Module):
    sizes: tuple[int, int]

    def __init__(self) -> None:
        super().__init__()
        self.sizes = (2, 3)
        self.kernel = torch.arange(6.0).view(2, 3)
        self.names = ["b", "a"]

    def forward(self, x: Tensor) -> tuple[Tensor, int, list[str], Tensor]:
        return x.view(self.sizes) * self.kernel, self.sizes[1], self.names, torch.full(self.sizes, 1e-5)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.lstm(x)


_X = torch.arange(9.0).view(3, 3) - 4

CASES: dict[str, tuple[Callable[[], nn.Module], list[tuple[Any, ...]]]] = {
    "branches": (Branches, [(_X,), (_X, True, None), (_X[:1], False, [3, 1]), (_X[0], False, None)]),
    "early returns": (EarlyReturns, [(_X, -1), (_X, 0), (_X, 2), (_X, 9)]),
    "loops": (Loops, [(_X, 0), (_X, 5)]),
    "lists": (Lists, [(_X,)]),
    "dictionaries": (Dictionaries, [(_X,)]),
    "optionals": (Optionals, [(_X,)]),
    "named tuples": (NamedTuples, [(_X,)]),
    "strings": (Strings, [(_X, "abc"), (_X, "xyzzy")]),
    "arithmetic": (Arithmetic, [(_X, 7, 2.5), (_X, 2, 3.75)]),
    "indexing": (Indexing, [(_X,)]),
    "conversions": (Conversions, [(_X,)]),
    "containers": (Containers, [(torch.arange(8.0).view(2, 4) - 3,)]),
    "no gradient": (NoGradient, [(_X,)]),
    "any": (AnyInput, [(3,), (2.5,), (_X,)]),
    "assertions": (Assertions, [(_X, 1)]),
    "constants": (Constants, [(torch.arange(6.0),)]),
    "lstm": (Recurrent, [(_X.view(3, 1, 3),)]),
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
    program = parse_module(NamedTuples(), tmp_path)
    pair = Interpreter(program).run("forward", [_X])[0]
    assert pair._fields == ("values", "count")
    assert set(program.methods) == {"forward", "pair"}


def test_the_model_raises_its_own_errors(tmp_path: Path) -> None:
    interpreter = Interpreter(parse_module(Assertions(), tmp_path))
    with pytest.raises(InputError, match="seven"):
        interpreter.run("forward", [_X, 7])
    with pytest.raises(InputError, match="1 dimensions"):
        interpreter.run("forward", [_X[0], 1])


def test_attributes_are_named_from_the_root(tmp_path: Path) -> None:
    program = parse_module(Containers().eval(), tmp_path)
    assert program.attributes["layers.0.0.weight"].is_parameter
    assert program.attributes["table.odd name.weight"].value.shape == (3, 4)
    assert program.attributes["training"].value is False


def test_a_shared_module_has_one_path() -> None:
    inner = "class N(Module):\n  weight : Tensor\n"
    outer = "class M(Module):\n  a : __torch__.N\n  b : __torch__.N\n"
    body = forward("y = self.b.weight\nself.a.weight = torch.add(y, x)\nreturn self.b.weight").partition("\n")[2]
    shared = Object("__torch__.N", {"weight": _X})
    program = parse_text(inner + outer + body, {"a": shared, "b": shared})
    verify(program)
    assert list(program.attributes) == ["b.weight"]
    assert_same(Interpreter(program).run("forward", [_X]), _X * 2)


def test_defaults_are_kept(tmp_path: Path) -> None:
    program = parse_module(Branches(), tmp_path)
    assert [value.name for value in program.methods["forward"].inputs] == ["self", "x", "flag", "size"]
    assert program.metadata["defaults"] == {"forward": {"flag": False, "size": None}}


def test_assigned_attributes_last(tmp_path: Path) -> None:
    program = parse_module(State(), tmp_path)
    interpreter, scripted = Interpreter(program), torch.jit.script(State())
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


@pytest.mark.parametrize("name", ["mobilenet_v3_large", "googlenet", "deeplabv3_mobilenet"])
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


_TWICE = "def f{0}(x: Tensor) -> Tensor:\n  return __torch__.f{1}(__torch__.f{1}(x, ), )\n"

REFUSED: dict[str, tuple[str, str]] = {
    "syntax": ("class M(Module:\n", r"code/__torch__\.py:1: this is not TorchScript source"),
    "top level": ("print(1)\n", r"__torch__\.py:1: 'print\(1\)' is neither a class nor a function"),
    "missing class": ("class N(Module):\n  pass\n", "no source for the class __torch__.M"),
    "class body": ("class M(Module):\n  print(1)\n", "no place in a class"),
    "unknown operator": (forward("return torch.nope(x)"), r"py:4: unknown operator aten::nope"),
    "unknown namespace": (forward("return ops.a.b.c(x)"), "ops.a.b.c is not an operator"),
    "wrong arguments": (forward("return torch.conv2d(x, 1)"), "no overload of aten::conv2d"),
    "unknown variable": (forward("return y"), "the variable 'y' is not defined"),
    "one branch only": (forward("if torch.gt(x, 0):\n  y = x\nelse:\n  pass\nreturn y"), "'y' is not defined"),
    "constant index": (forward("return CONSTANTS.c0"), "constants.pkl has 0 entries"),
    "attribute": (forward("return self.weight"), "data.pkl has no attribute 'weight'"),
    "method": (forward("return (self).other(x, )"), "no method 'other'"),
    "global function": (forward("return __torch__.os.system(x, )"), "__torch__.os.system is not defined"),
    "module value": (forward("return self"), "which a graph has no value for"),
    "import": (forward("import os\nreturn x"), "'import os' is a statement"),
    "lambda": (forward("return (lambda: x)()"), "can't be called|construct"),
    "comprehension": (forward("return [y for y in x]"), "construct that serialised TorchScript does not have"),
    "closure": (forward("def f():\n  return x\nreturn x"), "a statement that serialised TorchScript"),
    "fork": (forward("y = fork(x)\nreturn x"), "don't fork it"),
    "early return": (forward("if torch.gt(x, 0):\n  return x\nelse:\n  pass\nreturn x"), "return inside a branch"),
    "builtin": (forward("return open(x)"), "no function 'open'"),
    "class instance": (forward("y = __torch__.M.__new__(__torch__.M)\nreturn x"), "makes an object of a class"),
    "with": (forward("with x:\n  pass\nreturn x"), "only context managers"),
    "loop range": (forward("for i in range(1, 2):\n  pass\nreturn x"), "over range\\(n\\) only"),
    "unpack": (forward("a, b, = (x, x, x)\nreturn a"), "has 3 values for 2 names"),
    "type": (forward("return annotate(Wrong, x)"), "'Wrong' is no type"),
    "device": (forward('return torch.to(x, torch.device("nowhere"))'), "is not a device"),
    "result type": (forward("return 1"), "is int where Tensor belongs"),
    "loop type": (forward("y = x\nfor i in range(3):\n  y = [x]\nreturn y"), "where Tensor belongs"),
    "hooks": ('class M(Module):\n  __forward_hooks__ = ["h", ]\n', "forward hooks"),
    "twice": ("class M(Module):\n  pass\nclass M(Module):\n  pass\n", "defined twice"),
    "recursion": (
        forward("return __torch__.f(x, )") + "def f(x: Tensor) -> Tensor:\n  return __torch__.g(x, )\n"
        "def g(x: Tensor) -> Tensor:\n  return __torch__.f(x, )\n",
        r"__torch__\.py:8: f calls itself",
    ),
    "deep calls": (
        forward("return __torch__.f0(x, )")
        + "".join(f"def f{i}(x: Tensor) -> Tensor:\n  return __torch__.f{i + 1}(x, )\n" for i in range(99)),
        "nested more than 60 deep",
    ),
    "deep expression": (forward("return " + "-" * 2000 + "x"), "nested too deeply"),
    "brackets": (forward("return " + "(" * 5000 + "x" + ")" * 5000), "too many nested|nested too deeply"),
    "chain": (forward("return x" + ".a" * 20000), "nested too deeply"),
    "own tuple": (
        forward("y = annotate(__torch__.T, x)\nreturn x") + "class T(NamedTuple):\n  a : __torch__.T\n",
        "contains itself",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises(BundleError, match=message):
        parse_text(text)


_DOUBLING: dict[str, tuple[str, str]] = {
    "calls": (
        forward("return __torch__.f0(x, )")
        + "".join(_TWICE.format(i, i + 1) for i in range(40))
        + "def f40(x: Tensor) -> Tensor:\n  return x\n",
        r"__torch__\.py:\d+: .* more than 1000000 steps",
    ),
    "tuples": (forward("".join("x = (x, x)\n" for _ in range(60)) + "return x"), "more than 2000 parts"),
    "named tuples": (
        forward("y = annotate(__torch__.T0, x)\nreturn x")
        + "".join(f"class T{i}(NamedTuple):\n  a : __torch__.T{i + 1}\n  b : __torch__.T{i + 1}\n" for i in range(40))
        + "class T40(NamedTuple):\n  a : Tensor\n",
        "more than 2000 parts",
    ),
}


@pytest.mark.parametrize("name", _DOUBLING)
def test_doubling_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_parser, "Budget", lambda: source_graph.Budget(20_000))
    text, message = _DOUBLING[name]
    with pytest.raises(BundleError, match=message):
        parse_text(text)


def test_source_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "MAX_SOURCE", 100)
    with pytest.raises(BundleError, match="larger than 100 characters"):
        parse_text(forward("return x") + "#" * 100)


def test_attributes_have_their_declared_type() -> None:
    text = "class M(Module):\n  weight : Tensor\n" + forward("return self.weight").partition("\n")[2]
    with pytest.raises(BundleError, match=r"__torch__\.py:2: attribute 'weight' is declared as Tensor, but .* a str"):
        parse_text(text, {"weight": "no tensor"})
    assert parse_text(text, {"weight": _X}).attributes["weight"].value is _X
