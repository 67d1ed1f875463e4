"""Which views of a tensor are known to show other elements of it, and in-place operators on them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Graph, Value, parse_graph
from mobopt.ops.parts import Parts
from mobopt.ops.records import is_in_place
from mobopt.passes.functionalize import Functionalize
from mobopt.passes.manager import run_passes
from mobopt.runtimes.cpu import Interpreter


def _graph(body: str, result: str = "%x") -> Graph:
    numbers = (-9, -4, -2, -1, 0, 1, 2, 3, 4, 6, 9223372036854775807)
    constants = "".join(
        f"  %{'m' if number < 0 else 'n'}{abs(number)} : int = prim::Constant[value={number}]()\n" for number in numbers
    )
    nothing = "  %none : NoneType = prim::Constant()\n  %false : bool = prim::Constant[value=0]()\n"
    lines = "".join(f"  {line.strip()}\n" for line in body.splitlines() if line.strip())
    head = "graph(%self : __torch__.M,\n      %x : Tensor,\n      %i : int):\n"
    return parse_graph(f"{head}{constants}{nothing}{lines}  return ({result})\n")


def _values(graph: Graph) -> dict[str, Value]:
    return {output.name: output for node in graph.walk() for output in node.outputs}


_END = "n9223372036854775807"
_FRESH = "%a : Tensor = aten::neg(%x)\n"
_APART = {
    "two chunks": """%l : Tensor[] = aten::unsafe_chunk(%a, %n4, %n1)
        %p : Tensor, %q : Tensor, %r : Tensor, %s : Tensor = prim::ListUnpack(%l)""",
    "items of a list": """%l : Tensor[] = aten::split(%a, %n4, %n1)
        %p : Tensor = aten::__getitem__(%l, %n0)
        %q : Tensor = aten::__getitem__(%l, %n2)""",
    "views of items": """%l : Tensor[] = aten::unbind(%a, %n0)
        %u : Tensor, %v : Tensor = prim::ListUnpack(%l)
        %p : Tensor = aten::unsqueeze(%u, %n0)
        %q : Tensor = aten::t(%v)""",
    "results of in-place operators on items": """%l : Tensor[] = aten::chunk(%a, %n2, %n1)
        %u : Tensor, %v : Tensor = prim::ListUnpack(%l)
        %p : Tensor = aten::relu_(%u)
        %q : Tensor = aten::sigmoid_(%v)""",
    "slices": f"""%p : Tensor = aten::slice(%a, %n1, %none, %n3, %n1)
        %q : Tensor = aten::slice(%a, %n1, %n3, %{_END}, %n1)""",
    "slices from the end": f"""%p : Tensor = aten::slice(%a, %m1, %m2, %{_END}, %n1)
        %q : Tensor = aten::slice(%a, %m1, %n0, %m2, %n1)""",
    "rows": "%p : Tensor = aten::select(%a, %n0, %n0)\n%q : Tensor = aten::select(%a, %n0, %n1)",
    "the last row and others": """%p : Tensor = aten::select(%a, %n0, %m1)
        %q : Tensor = aten::slice(%a, %n0, %n0, %m1, %n1)""",
    "narrow": "%p : Tensor = aten::narrow(%a, %n1, %n0, %n2)\n%q : Tensor = aten::narrow(%a, %n1, %n2, %n1)",
    "columns of the same row, taken twice": """%u : Tensor = aten::select(%a, %n0, %i)
        %v : Tensor = aten::select(%a, %n0, %i)
        %p : Tensor = aten::narrow(%u, %n0, %n0, %n2)
        %q : Tensor = aten::narrow(%v, %n0, %n2, %n2)""",
    "two tensors": "%p : Tensor = aten::relu(%x)\n%b : Tensor = aten::relu(%x)\n%q : Tensor = aten::t(%b)",
}
_MEETING = {
    "the tensor and its view": "%p : Tensor = aten::t(%a)\n%q : Tensor = aten::relu_(%a)",
    "one item twice": """%l : Tensor[] = aten::chunk(%a, %n2, %n0)
        %p : Tensor = aten::__getitem__(%l, %n1)
        %q : Tensor = aten::__getitem__(%l, %m1)""",
    "items of a list that changes": """%l : Tensor[] = aten::chunk(%a, %n2, %n0)
        %p : Tensor = aten::__getitem__(%l, %n0)
        %k : Tensor[] = aten::_set_item(%l, %n1, %p)
        %q : Tensor = aten::__getitem__(%l, %n1)""",
    "an item that is not known": """%l : Tensor[] = aten::chunk(%a, %n2, %n0)
        %p : Tensor = aten::__getitem__(%l, %n0)
        %q : Tensor = aten::__getitem__(%l, %i)""",
    "parts by indices, which may go back": """%k : int[] = prim::ListConstruct(%n3, %n1)
        %l : Tensor[] = aten::tensor_split.indices(%a, %k, %n0)
        %p : Tensor, %q : Tensor, %r : Tensor = prim::ListUnpack(%l)""",
    "slices that overlap": """%p : Tensor = aten::slice(%a, %n0, %n0, %n3, %n1)
        %q : Tensor = aten::slice(%a, %n0, %n2, %n6, %n1)""",
    "slices of two dimensions": """%p : Tensor = aten::slice(%a, %n0, %n0, %n2, %n1)
        %q : Tensor = aten::slice(%a, %n1, %n2, %n6, %n1)""",
    "perhaps two dimensions": """%p : Tensor = aten::slice(%a, %n1, %n0, %n2, %n1)
        %q : Tensor = aten::slice(%a, %m1, %n2, %n6, %n1)""",
    "ends that sizes decide": f"""%p : Tensor = aten::slice(%a, %n0, %n0, %n2, %n1)
        %q : Tensor = aten::slice(%a, %n0, %m2, %{_END}, %n1)""",
    "rows that are not known": """%p : Tensor = aten::select(%a, %n0, %n0)
        %q : Tensor = aten::select(%a, %n0, %i)""",
    "rows of one row that stands twice": """%k : int[] = prim::ListConstruct(%n2, %n4)
        %e : Tensor = aten::expand(%a, %k, %false)
        %p : Tensor = aten::select(%e, %n0, %n0)
        %q : Tensor = aten::select(%e, %n0, %n1)""",
    "windows": """%e : Tensor = aten::unfold(%a, %n0, %n2, %n1)
        %p : Tensor = aten::select(%e, %n0, %n0)
        %q : Tensor = aten::select(%e, %n0, %n1)""",
    "rows of what the caller gave": """%p : Tensor = aten::select(%x, %n0, %n0)
        %q : Tensor = aten::select(%x, %n0, %n1)""",
    "perhaps a copy": "%c : Tensor = aten::contiguous(%a, %n0)\n%p : Tensor = aten::t(%c)\n%q : Tensor = aten::t(%a)",
    "memory seen otherwise": """%p : Tensor = aten::select(%a, %n0, %n0)
        %b : Tensor = aten::t_(%a)
        %q : Tensor = aten::select(%a, %n0, %n1)""",
    "strides of its own": """%k : int[] = prim::ListConstruct(%n2)
        %u : Tensor = aten::select(%a, %n0, %n0)
        %p : Tensor = aten::as_strided(%u, %k, %k, %n4)
        %q : Tensor = aten::select(%a, %n0, %n1)""",
    "containers": "%p : Tensor[] = prim::ListConstruct(%a)\n%q : Tensor = aten::neg(%x)",
}


@pytest.mark.parametrize("body", list(_APART.values()), ids=list(_APART))
def test_parts_that_never_meet(body: str) -> None:
    graph = _graph(_FRESH + body)
    values = _values(graph)
    assert Parts(graph).share_nothing(values["p"], values["q"]) and Parts(graph).share_nothing(values["q"], values["p"])


@pytest.mark.parametrize("body", list(_MEETING.values()), ids=list(_MEETING))
def test_parts_that_may_meet(body: str) -> None:
    graph = _graph(_FRESH + body)
    values = _values(graph)
    parts = Parts(graph)
    assert not parts.share_nothing(values["p"], values["q"]) and not parts.share_nothing(values["q"], values["p"])


@pytest.mark.parametrize("first", [(None, 3), (-2, None), (0, -2), (-4, -2), (3, None), (2, 2), (4, 1)])
@pytest.mark.parametrize("second", [(3, None), (None, -2), (-2, -1), (1, 3), (2, 6), (-9, -4)])
def test_slices_that_are_said_to_be_apart_are(
    first: tuple[int | None, int | None], second: tuple[int | None, int | None]
) -> None:
    def bound(number: int | None) -> str:
        return "%none" if number is None else f"%{'m' if number < 0 else 'n'}{abs(number)}"

    lines = [
        f"%{name} : Tensor = aten::slice(%a, %n0, {bound(start)}, {bound(stop)}, %n1)"
        for name, (start, stop) in (("p", first), ("q", second))
    ]
    graph = _graph(_FRESH + "\n".join(lines))
    values = _values(graph)
    meets = any(set(range(size)[slice(*first)]) & set(range(size)[slice(*second)]) for size in range(12))
    if Parts(graph).share_nothing(values["p"], values["q"]):
        assert not meets
    elif not meets:
        bounds = (*first, *second)
        empty = any(start is not None and stop is not None and stop <= start for start, stop in (first, second))
        assert empty or (min(bound or 0 for bound in bounds) < 0 <= max(bound or 0 for bound in bounds))


class Parted(nn.Module):
    """In-place operators on parts, whose tensor, neighbours or overlapping parts are read before and afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 6))

    def forward(self, x: Tensor) -> list[Tensor]:
        a = x * 2
        i, f = a.chunk(2, 1)
        cell = i.sigmoid_() * f.tanh_() + i * f.relu_()
        b = x * 3
        rows = b.unbind(0)
        rows[0].neg_()
        overlapping = b[0:2]
        first, second = b[:2], b[2:]
        first.mul_(second.exp_())
        c = x * 5
        expanded = c[:, :1].expand(4, 6)
        expanded[:, 0].add_(1.0)
        d = x * 7
        left = d[:, :3].relu_()
        right = d[:, 3:]
        for _ in range(2):
            e = right + left
            g, h = e.split(2, 0)
            g.neg_()
            h.add_(g[0])
            right = torch.cat([h, g], 0)
        self.kept[0].add_(1.0)
        return [cell, overlapping, expanded, left, right, self.kept + x, d.sum(), first, second]


def test_numbers_are_those_of_eager() -> None:
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    module = Parted().eval()
    program = program_from_script_module(torch.jit.script(module))
    run_passes(program, [Functionalize()], check=True)
    in_place = [node.op for node in program.methods["forward"].walk() if is_in_place(node.op)]
    assert in_place == ["aten::neg_", "aten::mul_", "aten::add_", "aten::relu_", "aten::add_"]
    expected = module(x)
    for found, right in zip(Interpreter(program).run("forward", [x]), expected, strict=True):
        torch.testing.assert_close(found, right)
