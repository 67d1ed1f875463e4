"""Where nodes run: transfers around what the target lacks, with rows made for the test."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from device_check import run_on_devices
from pass_harness import apply, assert_close, expect, program_of
from torch import nn

from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ops.targets import Row, Target, verdicts
from mobopt.passes.backends import SIMPLIFY
from mobopt.passes.facts import Examples
from mobopt.passes.fold_prepack import FoldPrepack
from mobopt.passes.insert_prepack import InsertPrepack
from mobopt.passes.manager import run_passes
from mobopt.passes.transfer import FLAG, Transfer

TARGET = Target("vulkan", "2.1")
GPU, CPU = {"vulkan"}, {"cpu"}
NATIVE = (
    "relu",
    "relu_",
    "tanh",
    "add.Tensor",
    "mul.Tensor",
    "conv2d",
    "cat",
    "split.Tensor",
    "add_.Tensor",
    "mean.dim",
    "expand",
)


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU that has these operators only, and takes the weights of a convolution from the CPU."""
    kept = {"conv2d": ("weight", "bias")}
    table = {f"aten::{name}": (Row((f"aten::{name}",), "native", cpu_operands=kept.get(name, ())),) for name in NATIVE}
    monkeypatch.setattr(verdicts, "rows_for", lambda backend: table if backend == "vulkan" else {})
    yield


def transfer(*inputs: Any) -> Transfer:
    return Transfer(target=TARGET, examples=Examples({"forward": inputs} if inputs else {}))


def placed(module: nn.Module, *inputs: Any) -> dict[str, set[str]]:
    """A module through the pass: where its operators run; its numbers are those of eager."""
    with torch.no_grad():
        expected = module(*inputs)
    program = program_from_script_module(torch.jit.script(module.eval()))
    run_passes(program, [SIMPLIFY], check=True)
    run_passes(program, [transfer(*inputs), SIMPLIFY], check=True)
    result, places = run_on_devices(program, TARGET, inputs)
    assert_close(result, expected)
    return {name.removeprefix("aten::").partition(".")[0]: found for name, found in places.items()}


def test_a_node_without_a_kernel_reads_a_copy_on_the_cpu() -> None:
    text = """
    graph(%self : __torch__.M,
          %x : Tensor):
      %a : Tensor = aten::relu(%x)
      %b : Tensor = aten::erf(%a)
      %c : Tensor = aten::mul(%b, %a)
      return (%c)
    """
    after, notes = apply(transfer(), program_of(text))
    assert after == expect(
        """
        %x.vulkan : Tensor = aten::to(%x, %device.2, %7, %8, %8)
        %a : Tensor = aten::relu(%x.vulkan)
        %a.cpu : Tensor = aten::to(%a, %device.1, %3, %4, %4)
        %b : Tensor = aten::erf(%a.cpu)
        %b.contiguous : Tensor = aten::contiguous(%b, %6)
        %b.vulkan : Tensor = aten::to(%b.contiguous, %device, %0, %1, %1)
        %c : Tensor = aten::mul(%b.vulkan, %a)
        %c.cpu : Tensor = aten::to(%c, %device.3, %10, %11, %11)
        return (%c.cpu)
        """
    )
    assert any("aten::erf %b runs on the CPU: PyTorch 2.1 vulkan has no kernel" in note for note in notes)


def test_light_nodes_between_two_on_the_cpu_stay_there() -> None:
    class M(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.erf(torch.tanh(torch.erf(torch.relu(x))))

    assert placed(M(), torch.randn(2, 3)) == {"relu": GPU, "erf": CPU, "tanh": CPU}


def test_integers_never_go_to_the_gpu() -> None:
    class M(nn.Module):
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            picked = x.index_select(0, ids)
            return torch.relu(picked), ids + 1

    places = placed(M(), torch.randn(5, 3), torch.tensor([3, 0]))
    assert places == {"index_select": CPU, "relu": CPU, "add": CPU}


def test_more_than_four_dimensions_stay_on_the_cpu() -> None:
    class M(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.tanh(x).unsqueeze(0))

    assert placed(M(), torch.randn(1, 2, 3, 2)) == {"tanh": GPU, "unsqueeze": CPU, "relu": CPU}


def test_sizes_are_read_where_the_tensor_lies() -> None:
    """A tensor is not moved to be asked for its sizes."""
    program = program_of(
        """
        graph(%self : __torch__.M,
              %x : Tensor):
          %one : int = prim::Constant[value=1]()
          %c : Tensor = aten::erf(%x)
          %n : int = aten::size(%c, %one)
          %d : Tensor = aten::mul(%c, %n)
          %e : Tensor = aten::erf(%d)
          return (%e)
        """
    )
    after, _ = apply(transfer(torch.randn(2, 3)), program)
    assert "%n : int = aten::size(%c, %one)" in after and "aten::to" not in after


class Branch(nn.Module):
    """A branch on what is given, with an operator that the GPU computes for matrices."""

    def forward(self, x: torch.Tensor, wanted: bool) -> torch.Tensor:
        y = torch.relu(x)
        if wanted:
            y = torch.cumsum(torch.tanh(y), 0)
        return torch.tanh(y)


def with_row(monkeypatch: pytest.MonkeyPatch, row: Row) -> None:
    rows = dict(verdicts.rows_for("vulkan")) | {row.operators[0]: (row,)}
    monkeypatch.setattr(verdicts, "rows_for", lambda backend: rows if backend == "vulkan" else {})


@pytest.mark.parametrize("wanted", [False, True])
def test_a_branch_that_the_example_does_not_take(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    with_row(monkeypatch, Row(("aten::cumsum",), "native", when="self.rank == 2"))
    program = program_from_script_module(torch.jit.script(Branch()))
    _, notes = apply(transfer(torch.randn(2, 3), wanted), program)
    found = [note for note in notes if "cumsum" in note]
    assert bool(found) is not wanted
    assert wanted or "runs on the CPU: no example input came here" in found[0]


@pytest.mark.parametrize("rank", [2, 3])
def test_copies_have_the_sizes_of_their_originals(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """The second operand comes back from the CPU."""
    with_row(monkeypatch, Row(("aten::sub.Tensor",), "native", when=f"other.rank == {rank}"))

    class M(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) - torch.erf(x)

    assert placed(M(), torch.randn(2, 3))["sub"] == (GPU if rank == 2 else CPU)


class Lists(nn.Module):
    """Lists from operators on either side, and constants among their items."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("row", torch.randn(1, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        first, second = torch.split(torch.relu(x), 1)
        parts = torch.unbind(x, 1)
        whole = torch.cat([first, self.row, torch.erf(second)])
        return torch.relu(whole) + torch.tanh(parts[0]).sum(), list(torch.split(whole, 2))


def test_lists_of_tensors() -> None:
    places = placed(Lists(), torch.randn(2, 3))
    assert places["cat"] == GPU and places["erf"] == CPU and places["split"] == GPU


class Grids(nn.Module):
    """Slices of lists that the CPU makes: what they hold may not lie on the GPU."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.arange(x.size(0), dtype=self.dtype), torch.arange(x.size(1), dtype=self.dtype)
        both = torch.meshgrid(rows, columns, indexing="ij")
        whole = torch.cat(both[::-1], 1).float()
        return torch.relu(x) + whole[:, : x.size(1)] * torch.stack(both[1:], 0)[0]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
def test_slices_of_lists_from_the_cpu(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3)
    places = placed(Grids(dtype), x)
    assert places["meshgrid"] == CPU and places["relu"] == GPU
    assert places["cat"] == (GPU if dtype == torch.float32 else CPU)
    program = program_from_script_module(torch.jit.script(Grids(dtype).eval()))
    run_passes(program, [SIMPLIFY, transfer(x), SIMPLIFY], check=True)
    moves_lists = any(node.op == "aten::append" for node in program.methods["forward"].walk())
    assert moves_lists == (dtype == torch.float32), "a list is moved, an element at a time, if these may lie there"


class Named(nn.Module):
    """A dictionary that is empty at first, as torchvision's backbones return one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 1), nn.Conv2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        found: dict[str, torch.Tensor] = OrderedDict()
        found["first"] = self.first(x)
        return self.second(found["first"]), found


def test_dictionaries_that_are_filled() -> None:
    x = torch.randn(1, 2, 3, 5)
    places = placed(Named(), x)
    assert places["conv2d"] == GPU
    program = program_from_script_module(torch.jit.script(Named().eval()))
    run_passes(program, [SIMPLIFY, transfer(x), SIMPLIFY], check=True)
    nodes = program.methods["forward"].block.nodes
    (put,) = (node for node in nodes if node.op == "aten::_set_item")
    assert put.inputs[2].producer.op == "aten::conv2d"


class ToADevice(nn.Module):
    """What the CPU makes goes to the device of a tensor, which means nothing there, and on to the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        grid = torch.erf(x).to(y.device)
        return self.layer(y + self.layer(grid - torch.relu(grid.to(y.device))))


def test_what_the_model_moves_to_the_device_of_a_tensor() -> None:
    places = placed(ToADevice(), torch.randn(1, 2, 3, 5))
    assert places["erf"] == CPU and places["conv2d"] == GPU and places["add"] == GPU
    program = program_from_script_module(torch.jit.script(ToADevice().eval()))
    run_passes(program, [SIMPLIFY, transfer(torch.randn(1, 2, 3, 5)), SIMPLIFY], check=True)
    moves = [node for node in program.methods["forward"].walk() if node.op == "aten::to"]
    assert len(moves) == 3, "x and what erf makes go there, the result comes back"


class Flow(nn.Module):
    """Tensors through branches and loops, with a node on the CPU inside."""

    def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
        total = torch.relu(x)
        for index in range(count):
            if index % 2 == 0:
                total = total + torch.erf(x)
            else:
                total = torch.tanh(total)
        return torch.relu(total)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_branches_and_loops(count: int) -> None:
    places = placed(Flow(), torch.randn(2, 3), count)
    assert places["relu"] == (GPU if count else {"cpu", "vulkan"})  # nothing tells what a loop would have made
    assert places.get("erf", CPU) == CPU


class Views(nn.Module):
    """A part of a tensor is changed in place: the GPU's tensors share no memory, so the whole stays on the CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.erf(x) * 2
        y[:, 0].add_(torch.relu(x)[:, 1])
        return torch.tanh(y)


def test_memory_changed_under_another_name_stays_on_the_cpu() -> None:
    assert placed(Views(), torch.randn(2, 3))["add_"] == CPU


class Merged(nn.Module):
    """One branch gives memory that is changed under another name, the other a new tensor."""

    def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
        y = torch.erf(x)
        z = y.add_(1.0) if flag else torch.relu(x)
        y[:, 0].add_(torch.relu(x)[:, 1])
        return torch.tanh(z)


@pytest.mark.parametrize("flag", [True, False])
def test_branches_that_give_changed_memory_end_on_the_cpu(flag: bool) -> None:
    assert placed(Merged(), torch.randn(2, 3), flag)["add_"] == CPU


class Carried(nn.Module):
    """A loop carries memory that its body changes under another name."""

    def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
        y = torch.relu(x)
        for _ in range(count):
            y = y * 2.0
            y[:, 0].add_(1.0)
        return torch.tanh(y)


@pytest.mark.parametrize("count", [0, 2])
def test_loops_that_carry_changed_memory_carry_it_on_the_cpu(count: int) -> None:
    assert placed(Carried(), torch.randn(2, 3), count)["tanh"] == CPU


class Listed(nn.Module):
    """An element of a list that the caller gives is changed under another name."""

    def forward(self, x: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
        first = parts[0]
        first[0].zero_()
        return torch.relu(x) + first


def test_a_list_with_changed_memory_stays_on_the_cpu() -> None:
    places = placed(Listed(), torch.randn(2, 3), [torch.randn(2, 3)])
    assert places["zero_"] == CPU and places["add"] == CPU


class Twice(nn.Module):
    """A convolution of memory that is changed in part before and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y[:, 0].add_(1.0)
        z = self.second(y)
        y[:, 1].add_(1.0)
        return z + self.second(y)


class Gathered(nn.Module):
    """A convolution of what is put together from a list of parts that are changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        parts = [y[:1]]
        for part in torch.split(y, 1):
            parts.append(part.add_(0.5))
        return self.first(torch.cat(parts[1:]))


@pytest.mark.parametrize("kind", [Twice, Gathered])
def test_packed_operators_read_copies_of_changed_memory(kind: type[nn.Module]) -> None:
    """They exist on the GPU only; what they read is copied just then, and what they make goes to the CPU at once."""
    x, module = torch.randn(2, 4, 5, 3), kind().eval()
    with torch.no_grad():
        expected = module(x)
    program = program_from_script_module(torch.jit.script(module))
    run_passes(program, [SIMPLIFY, InsertPrepack("vulkan", "2.1"), FoldPrepack()], check=True)
    run_passes(program, [transfer(x), SIMPLIFY], check=True)
    result, places = run_on_devices(program, TARGET, [x])
    assert_close(result, expected)
    assert places["vulkan_prepack::run_conv2d_context"] == GPU and places["aten::add_.Scalar"] == CPU


def test_the_device_of_a_tensor_is_the_cpu() -> None:
    class M(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) + torch.ones(3, device=x.device)

    assert placed(M(), torch.randn(2, 3))["add"] == GPU


def test_without_automatic_transfers_only_the_cpu_nodes_have_some() -> None:
    class M(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.erf(torch.relu(x)))

    program = program_from_script_module(torch.jit.script(M()))
    item = Transfer(target=TARGET, examples=Examples({"forward": (torch.randn(2, 3),)}), automatic=False)
    (run,) = run_passes(program, [item], check=True)
    assert run.result.changed and FLAG not in program.attributes
    moves = [node for node in program.methods["forward"].walk() if node.op == "aten::to"]
    assert [node.inputs[1].constant.type for node in moves] == ["cpu", "vulkan"]
    (again,) = run_passes(program, [item], check=True)
    assert not again.result.changed


def test_a_method_without_tensors_is_left_alone() -> None:
    class M(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x)

        @torch.jit.export
        def samples(self) -> list[torch.Tensor]:
            return [torch.ones(2)]

    program = program_from_script_module(torch.jit.script(M()), ["samples"])
    run_passes(program, [transfer(torch.rand(2))], check=True)
    assert "aten::to" not in [node.op for node in program.methods["samples"].walk()]


def shapes(sizes: Sequence[int]) -> tuple[torch.Tensor]:
    return (torch.rand(*sizes),)


@pytest.mark.parametrize(("sizes", "is_on_gpu"), [((1, 3, 4, 2048), True), ((1, 3, 4, 2049), False), ((1, 0), False)])
def test_the_largest_image(sizes: Sequence[int], is_on_gpu: bool) -> None:
    class M(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x)

    assert placed(M(), *shapes(sizes))["relu"] == (GPU if is_on_gpu else CPU)


class Counting(nn.Module):
    """Adds to its buffer in place, which the next call reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 4, 3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return torch.tanh(x)


@pytest.mark.parametrize("inputs", [(), (torch.ones(1, 4, 3, 5),)], ids=["no example", "example"])
def test_what_the_next_call_reads_is_changed_on_the_cpu(inputs: tuple[torch.Tensor, ...]) -> None:
    program = program_from_script_module(torch.jit.script(Counting().eval()))
    run_passes(program, [SIMPLIFY, transfer(*inputs)], check=True)
    writer = next(node for node in program.methods["forward"].walk() if node.op == "aten::add_")
    assert writer.inputs[0].producer is not None and writer.inputs[0].producer.op == "prim::GetAttr"


class Spread(nn.Module):
    """A number of the file, which no image can hold, in a size that the call decides."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(0.5), requires_grad=False)
        self.weight = nn.Parameter(torch.rand(2, 3, 1, 1), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(self.number.expand(1, 3, 5, x.size(3)), self.weight, None) + torch.relu(x)


def test_what_is_made_of_constants_that_no_image_holds_is_moved() -> None:
    x = torch.randn(1, 2, 5, 7, generator=torch.Generator().manual_seed(0))
    found = placed(Spread(), x)
    assert found == {"expand": CPU, "contiguous": CPU, "conv2d": GPU, "relu": GPU, "add": GPU}
