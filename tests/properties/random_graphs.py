"""Random modules: layers with random parameters, called by random source, which torch scripts or traces."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

_MAX_ELEMENTS = 4096
"""Elements of a tensor; a statement that makes a larger one is taken back."""
_counter = itertools.count()


@dataclass(repr=False)
class RandomModule:
    """A module, arguments that it takes, and whether to script or trace it."""

    source: str
    layers: dict[str, nn.Module]
    inputs: list[torch.Tensor]
    how: str
    features: set[str] = field(default_factory=set)
    """Kinds of the statements."""

    def module(self) -> nn.Module:
        """The module, in evaluation mode."""
        return _class_of(self.source)(self.layers).eval()

    def arguments(self) -> list[torch.Tensor]:
        """Copies of the arguments, for the module may change them."""
        return [value.clone() for value in self.inputs]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How hypothesis shows an example that fails."""
        printer.text(repr(self))

    def __repr__(self) -> str:
        layers = "".join(f"\n#   {name} = {layer}" for name, layer in self.layers.items())
        shapes = ", ".join(str(list(value.shape)) for value in self.inputs)
        return f"# {self.how}, inputs {shapes}{layers}\n{self.source}"


def _class_of(source: str) -> Any:
    """The class in a source text, which torch can find again to script it."""
    name = f"<random module {next(_counter)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": __name__, "torch": torch, "nn": nn, "F": nn.functional}
    exec(compile(source, name, "exec"), space)
    return space["Net"]


_HEAD = """\
class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, {parameters}):
"""


class Author:
    """Draws one module, statement by statement; each is run at once, so that shapes are known."""

    def __init__(self, draw: st.DrawFn, how: str) -> None:
        self.draw = draw
        self.how = how
        self.layers: dict[str, nn.Module] = {}
        self.lines: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}
        """An example of each variable."""
        self.features: set[str] = set()
        self.indent = "        "
        self.count = 0

    # What is drawn.

    def integer(self, low: int, high: int) -> int:
        """A number in a closed range."""
        return self.draw(st.integers(low, high))

    def pick(self, items: list[Any]) -> Any:
        """One of these."""
        return self.draw(st.sampled_from(items))

    def flag(self) -> bool:
        """Yes or no."""
        return self.draw(st.booleans())

    def variable(self, accepts: Callable[[torch.Tensor], bool] = lambda value: True) -> str | None:
        """A variable whose example is accepted, late ones more often than early ones."""
        names = [name for name, value in self.tensors.items() if accepts(value)]
        return self.pick(names[-3:] + names) if names else None

    # What is written.

    def fresh(self, stem: str) -> str:
        """A new name."""
        self.count += 1
        return f"{stem}{self.count}"

    def layer(self, layer: nn.Module) -> str:
        """A layer under a new name, as it is called."""
        name = self.fresh(type(layer).__name__.lower() + "_")
        _randomise(layer, self.integer(0, 1 << 16))
        self.layers[name] = layer.eval()
        return f"self.{name}"

    def write(self, feature: str, expression: str) -> None:
        """A statement that makes a tensor, if it can be run and the result is not too large."""
        name = self.fresh("t")
        if self.run(f"{name} = {expression}", name):
            self.lines.append(f"{self.indent}{name} = {expression}")
            self.features.add(feature)

    def run(self, statement: str, name: str) -> bool:
        """Whether a statement can be run and makes a tensor that is small; its variable is known from then on."""
        space = {"torch": torch, "F": nn.functional, "self": self._layers_as_self(), **self.tensors}
        try:
            with torch.no_grad():
                exec(statement, space)
        except (RuntimeError, ValueError, IndexError):
            return False
        value = space[name]
        if not isinstance(value, torch.Tensor) or not 0 < value.numel() <= _MAX_ELEMENTS or value.dim() > 5:
            return False
        self.tensors[name] = value
        return True

    def _layers_as_self(self) -> SimpleNamespace:
        return SimpleNamespace(training=False, **self.layers)


def _randomise(layer: nn.Module, seed: int) -> None:
    """Parameters and statistics that are not those of a fresh layer, and keep the scale of what flows through."""
    generator = torch.Generator().manual_seed(seed)

    def fill(tensor: torch.Tensor | None, low: float, high: float) -> None:
        if tensor is not None:
            tensor.data.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)

    for parameter in layer.parameters():
        bound = (3.0 / max(1, parameter[0].numel())) ** 0.5 if parameter.dim() > 1 else 0.5
        fill(parameter, -bound, bound)
    if isinstance(layer, (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)):
        fill(getattr(layer, "weight", None), 0.5, 1.5)
        fill(getattr(layer, "running_mean", None), -0.5, 0.5)
        fill(getattr(layer, "running_var", None), 0.2, 2.0)


# Layers.


def _convolution(author: Author) -> None:
    x = author.variable(lambda value: value.dim() in (3, 4))
    if x is None:
        return
    shape = author.tensors[x].shape
    rank, channels = len(shape) - 2, shape[1]
    groups = author.pick([count for count in (1, 1, 2, 3, channels) if channels % count == 0])
    out = groups * author.integer(1, 3)
    sizes = {
        "kernel_size": tuple(author.integer(1, 3) for _ in range(rank)),
        "stride": tuple(author.integer(1, 2) for _ in range(rank)),
        "dilation": tuple(author.integer(1, 2) for _ in range(rank)),
    }
    bias = author.flag()
    kind: Any
    if author.integer(0, 3) == 0:
        padding = tuple(author.integer(0, 1) for _ in range(rank))
        more = tuple(min(author.integer(0, 1), step - 1) for step in sizes["stride"])
        kind = nn.ConvTranspose1d if rank == 1 else nn.ConvTranspose2d
        layer = kind(channels, out, padding=padding, output_padding=more, groups=groups, bias=bias, **sizes)
    else:
        kind = nn.Conv1d if rank == 1 else nn.Conv2d
        mode = author.pick(["zeros", "zeros", "zeros", "zeros", "circular", "reflect", "replicate"])
        paddings: Any = tuple(author.integer(0, 2) for _ in range(rank))
        if author.integer(0, 4) == 0:
            paddings = author.pick(["same", "valid"])
            sizes["stride"] = (1,) * rank if paddings == "same" else sizes["stride"]
        layer = kind(channels, out, padding=paddings, padding_mode=mode, groups=groups, bias=bias, **sizes)
    author.write(f"conv{rank}d", f"{author.layer(layer)}({x})")


def _convolution_3d(author: Author) -> None:
    x = author.variable(lambda value: value.dim() == 5)
    if x is not None:
        channels = author.tensors[x].shape[1]
        layer = nn.Conv3d(channels, author.integer(1, 3), 2, padding=1, bias=author.flag())
        author.write("conv3d", f"{author.layer(layer)}({x})")


def _linear(author: Author) -> None:
    x = author.variable()
    assert x is not None
    layer = nn.Linear(author.tensors[x].shape[-1], author.integer(1, 6), bias=author.flag())
    author.write("linear", f"{author.layer(layer)}({x})")


def _matrix(author: Author) -> None:
    x = author.variable(lambda value: value.dim() in (2, 3))
    if x is not None:
        name = author.layer(nn.Linear(author.tensors[x].shape[-1], author.integer(1, 5)))
        form = author.pick(["torch.matmul({x}, {w}.weight.t()) + {w}.bias", "torch.matmul({x}, {w}.weight.t())"])
        author.write("matmul", form.format(x=x, w=name))


def _batch_norm(author: Author) -> None:
    x = author.variable(lambda value: value.dim() in (2, 3, 4, 5))
    if x is None:
        return
    shape = author.tensors[x].shape
    kind: Any = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    layer = kind(shape[1], eps=author.pick([1e-5, 1e-3]), affine=author.flag())
    author.write("batch_norm", f"{author.layer(layer)}({x})")


def _other_norm(author: Author) -> None:
    x = author.variable(lambda value: value.dim() >= 3 and value.shape[-1] > 1)
    if x is None:
        return
    shape, affine = author.tensors[x].shape, author.flag()
    layer: nn.Module
    if author.flag():
        layer = nn.LayerNorm(list(shape[-author.integer(1, 2) :]), elementwise_affine=affine)
    else:
        groups = author.pick([count for count in (1, 2, shape[1]) if shape[1] % count == 0])
        layer = nn.GroupNorm(groups, shape[1], affine=affine)
    author.write("norm", f"{author.layer(layer)}({x})")


def _pool(author: Author) -> None:
    x = author.variable(lambda value: value.dim() in (3, 4))
    if x is None:
        return
    rank = author.tensors[x].dim() - 2
    kernel = author.integer(2, 3)
    window = f"{kernel}, stride={author.integer(1, 3)}, padding={author.integer(0, 1)}, ceil_mode={author.flag()}"
    size = author.integer(1, 3)
    forms = [
        f"F.max_pool{rank}d({x}, {window}, dilation={author.integer(1, 2)})",
        f"F.avg_pool{rank}d({x}, {window}, count_include_pad={author.flag()})",
        f"F.adaptive_avg_pool{rank}d({x}, {size})",
        f"F.adaptive_avg_pool{rank}d({x}, 1)",
    ]
    author.write("pool", author.pick(forms))


_ACTIVATIONS = (
    "torch.relu({})",
    "F.relu6({})",
    "F.hardtanh({}, -0.5, 0.75)",
    "torch.clamp({}, -0.25, 0.5)",
    "torch.clamp({}, min=-0.25)",
    "torch.sigmoid({})",
    "torch.tanh({})",
    "F.gelu({})",
    "F.silu({})",
    "F.hardswish({})",
    "F.hardsigmoid({})",
    "F.leaky_relu({}, 0.1)",
    "F.elu({})",
    "torch.abs({})",
    "F.softmax({}, dim=-1)",
    "F.dropout({}, 0.5, training=self.training)",
)
_IN_PLACE = (
    "torch.relu_({})",
    "F.relu({}, inplace=True)",
    "F.relu6({}, inplace=True)",
    "F.hardtanh({}, -0.5, 0.75, inplace=True)",
    "F.leaky_relu({}, 0.1, inplace=True)",
    "F.silu({}, inplace=True)",
    "{}.clamp_(-0.25, 0.5)",
    "{}.sigmoid_()",
    "{}.mul_(0.5)",
    "{}.add_(0.25)",
)


def _activation(author: Author) -> None:
    x = author.variable()
    expression = author.pick(list(_ACTIVATIONS)).format(x)
    author.write("activation", expression.replace("self.training", "False") if author.how == "trace" else expression)


def _in_place(author: Author) -> None:
    author.write("in place", author.pick(list(_IN_PLACE)).format(author.variable()))


def _aliases(author: Author) -> None:
    """Writes through one name, with reads through others between them."""
    x = author.variable()
    assert x is not None
    shape = author.tensors[x].shape
    names = [author.fresh("t")]
    author.tensors[names[0]] = author.tensors[x]
    author.lines.append(f"{author.indent}{names[0]} = {x} * 1")
    views = ["{}.view_as({})", "{0}.transpose(0, -1).transpose(-1, 0)", "{0}.flatten().view(" + str(list(shape)) + ")"]
    for _ in range(author.integer(2, 5)):
        a, b = author.pick(names), author.pick(names)
        forms = [author.pick(list(_IN_PLACE)).format(a), f"{a}.add_({b})", f"torch.relu_({a})", f"{a} * 0.5"]
        forms += [author.pick(views).format(a, a), f"{a} + {b}", f"torch.relu({a})"]
        names.append(author.fresh("t"))
        statement = f"{names[-1]} = {author.pick(forms)}"
        if not author.run(statement, names[-1]):
            names.pop()
            continue
        author.lines.append(author.indent + statement)
    author.features.add("aliases")


# Shapes and combinations.


def _view(author: Author) -> None:
    x = author.variable()
    assert x is not None
    shape = author.tensors[x].shape
    rank = len(shape)
    first, second = author.integer(0, rank - 1), author.integer(0, rank - 1)
    order = author.draw(st.permutations(range(rank)))
    length = author.integer(1, shape[first])
    forms = [
        f"{x}.flatten({min(first, second)}, {max(first, second)})",
        f"{x}.reshape({x}.size(0), -1)",
        f"{x}.view({x}.shape[0], -1)",
        f"{x}.reshape({author.pick([-1, shape.numel()])})" if author.flag() else f"{x}.flatten(1)",
        f"{x}.permute({', '.join(map(str, order))})",
        f"{x}.permute({', '.join(map(str, order))}).contiguous()",
        f"{x}.transpose({first}, {second})",
        f"{x}.unsqueeze({author.integer(0, rank)})",
        f"{x}.unsqueeze({author.pick([1, 2])})",
        f"{x}.squeeze({first})",
        f"{x}.narrow({first}, {author.integer(0, shape[first] - length)}, {length})",
        f"{x}[{', '.join([':'] * first)}{', ' if first else ''}::2]",
        f"{x}.select({first}, {author.integer(0, shape[first] - 1)}).unsqueeze(0)",
        f"F.pad({x}, ({author.integer(0, 2)}, {author.integer(0, 1)}))",
        f"{x}.expand_as({x})",
    ]
    author.write("view", author.pick(forms))


def _reduction(author: Author) -> None:
    x = author.variable(lambda value: value.dim() > 1)
    if x is not None:
        rank = author.tensors[x].dim()
        dims = sorted(author.draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=rank - 1)))
        keep = author.flag()
        form = author.pick(
            [f"{x}.mean({dims}, {keep})", f"{x}.amax({dims}, {keep})", f"{x}.sum({dims}, {keep}) * 0.25"]
        )
        author.write("reduction", form)


def _addition(author: Author) -> None:
    x = author.variable()
    assert x is not None
    shape = author.tensors[x].shape
    y = author.variable(lambda value: value.shape == shape)
    z = author.variable(lambda value: value.dim() == len(shape) and (1 in value.shape or value.shape == shape))
    forms = [f"{x} + {y}", f"{x} + {y}", f"torch.relu({x} + {y})", f"F.relu({x} + {y}, inplace=True)", f"{x}.add_({y})"]
    forms += [f"torch.relu_({x}.add_({y}))", f"torch.add({x}, {y}, alpha=2)", f"{x} * torch.sigmoid({y})", f"{x} * 0.5"]
    author.write("addition", author.pick([*forms, f"{x} * torch.sigmoid({z})", f"torch.maximum({x}, {y})"]))


def _concatenation(author: Author) -> None:
    x = author.variable()
    assert x is not None
    shape = author.tensors[x].shape
    dim = author.integer(0, len(shape) - 1)

    def fits(value: torch.Tensor) -> bool:
        left, right = list(value.shape), list(shape)
        return len(left) == len(right) and left[:dim] + left[dim + 1 :] == right[:dim] + right[dim + 1 :]

    others = [author.variable(fits) for _ in range(author.integer(1, 2))]
    author.write("cat", f"torch.cat([{', '.join(str(item) for item in [x, *others])}], {dim})")


def _split(author: Author) -> None:
    x = author.variable()
    assert x is not None
    shape = author.tensors[x].shape
    dims = [dim for dim, size in enumerate(shape) if size > 1]
    if not dims:
        return
    dim = author.pick(dims)
    first = author.integer(1, shape[dim] - 1)
    sizes = f"[{first}, {shape[dim] - first}]"
    size = max(first, shape[dim] - first)
    form = author.pick(["torch.split({x}, {sizes}, {dim})", "torch.split({x}, {size}, {dim})"])
    if shape[dim] % 2 == 0 and author.flag():
        form = "torch.chunk({x}, 2, {dim})"
    names = author.fresh("t"), author.fresh("t")
    statement = f"{', '.join(names)} = {form.format(x=x, sizes=sizes, size=size, dim=dim)}"
    if all(author.run(statement, name) for name in names):
        author.lines.append(author.indent + statement)
        author.features.add("split")


def _shared_layer(author: Author) -> None:
    if author.layers:
        name = author.pick(list(author.layers))
        x = author.variable()
        author.write("shared layer", f"self.{name}({x})")


# Control flow, which only scripts keep.


def _branch(author: Author) -> None:
    x = author.variable()
    assert x is not None
    dim = author.integer(0, author.tensors[x].dim() - 1)
    size = author.tensors[x].shape[dim]
    condition = author.pick(
        [
            f"{x}.shape[{dim}] > {size - author.integer(0, 1)}",
            f"{x}.dim() == {author.integer(1, 4)}",
            f"{x}.size(0) % 2 == 0",
        ]
    )
    name = author.fresh("t")
    sides = [author.pick(list(_ACTIVATIONS[:9] + _IN_PLACE)).format(x) for _ in range(2)]
    if all(author.run(f"{name} = {side}", name) for side in sides):
        pad = author.indent
        author.lines += [
            f"{pad}if {condition}:",
            f"{pad}    {name} = {sides[0]}",
            f"{pad}else:",
            f"{pad}    {name} = {sides[1]}",
        ]
        author.features.add("branch")


def _loop(author: Author) -> None:
    """A few statements on one tensor and what is carried, whose shapes stay the same."""
    x = author.variable()
    assert x is not None
    dim = author.integer(0, author.tensors[x].dim() - 1)
    trips = author.pick(["2", f"{x}.shape[{dim}]", f"{x}.dim()"])
    name, pad = author.fresh("t"), author.indent
    lines = [f"{name} = {author.pick([x, f'{x} * 1'])}"]
    names = [x, name]
    if not author.run(lines[0], name):
        return
    for _ in range(author.integer(1, 3)):
        target = author.pick([name, author.fresh("u")])
        forms = [
            "torch.relu({a})",
            "{a}.mul_(0.5)",
            "{a} * 0.5 + {b}",
            "{a}.add_({b})",
            "torch.tanh({b})",
            "{a}.relu_()",
        ]
        lines.append(f"{target} = {author.pick(forms).format(a=author.pick(names), b=author.pick(names))}")
        if not author.run(lines[-1], target):
            return
        names.append(target)
    lines.append(f"{name} = ({name} + {names[-1]}) * 0.5")
    author.run(lines[-1], name)
    for item in names[2:]:
        if item != name:
            author.tensors.pop(item, None)
    body = [f"{pad}    {line}" for line in lines[1:]]
    author.lines += [pad + lines[0], f"{pad}for i in range({trips}):", *body]
    author.features.add("loop")


def _list(author: Author) -> None:
    x = author.variable()
    assert x is not None
    parts, name, pad = author.fresh("l"), author.fresh("t"), author.indent
    item = author.pick(["part * 0.5", "torch.relu(part)", "part.mul_(0.5)"])
    if author.run(f"{name} = torch.stack([{item.replace('part', 'part.clone()')} for part in {x}])", name):
        author.lines += [
            f"{pad}{parts} = [{x}[0]]",
            f"{pad}for part in torch.unbind({x}, 0):",
            f"{pad}    {parts}.append({item})",
            f"{pad}{name} = torch.stack({parts}[1:])",
        ]
        author.features.add("list")


_ALWAYS = [_convolution, _convolution, _convolution, _linear, _matrix, _batch_norm, _batch_norm, _other_norm, _pool]
_ALWAYS += [_activation, _activation, _in_place, _view, _view, _reduction, _addition, _addition, _concatenation, _split]
_ALWAYS += [_shared_layer, _convolution_3d, _aliases]
_SCRIPTED = [_branch, _loop, _list]


@st.composite
def random_modules(draw: st.DrawFn, statements: int = 12) -> RandomModule:
    """Modules with a quarter of so many statements to all of them; some of them fit nothing and write nothing."""
    how = draw(st.sampled_from(["script", "script", "trace"]))
    author = Author(draw, how)
    inputs = []
    for index in range(draw(st.integers(1, 2))):
        rank = draw(st.sampled_from([4, 4, 4, 3, 2, 5]))
        shape = [
            draw(st.integers(1, 2)),
            draw(st.integers(1, 6)),
            *[draw(st.integers(3, 8 if rank < 5 else 4)) for _ in range(rank - 2)],
        ]
        value = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
        author.tensors[f"x{index}"] = value.clone()
        inputs.append(value)
    parameters = ", ".join(author.tensors)
    kinds = _ALWAYS + (_SCRIPTED if how == "script" else [])
    for _ in range(draw(st.integers(statements // 4, statements))):
        author.pick(kinds)(author)
    author.lines.append(f"{author.indent}return {_result(author)}")
    source = _HEAD.format(parameters=parameters) + "\n".join(author.lines) + "\n"
    return RandomModule(source, author.layers, inputs, how, author.features)


def _result(author: Author) -> str:
    """What is returned: a tensor, a tuple, or, from scripts, a list, a dictionary or a nest of them."""
    last = list(author.tensors)[-1]
    first, second = author.variable(), author.variable()
    forms = [last, last, last, f"({last}, {first})", f"({last}, ({first}, {second}))"]
    if author.how == "script":
        forms += [
            f"[{last}, {first}]",
            f"{{'a': {last}, 'b': {first}}}",
            f"({last}, [{first}, {second}], {last}.shape[0])",
        ]
    return str(author.pick(forms))
