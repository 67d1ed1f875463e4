"""Models that look at elements: segments between the looks give what eager mode gives, and are made once."""

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from mobopt.errors import InputError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir.nests import map_leaves
from mobopt.runtimes.vulkan import program as program_module
from mobopt.runtimes.vulkan.call_plan import CallPlan
from mobopt.runtimes.vulkan.engine.array import DeviceArray
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.lane import Lane
from mobopt.runtimes.vulkan.program import VulkanProgram


def load(module: nn.Module, device: Device, methods: Sequence[str] = ()) -> VulkanProgram:
    return VulkanProgram(program_from_script_module(torch.jit.script(module), methods), device)


class Counter:
    """Counts plans that are made and runs of executables."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans = self.runs = 0
        make, begin = CallPlan.__init__, Lane.begin

        def counted_make(*args: Any, **options: Any) -> None:
            self.plans += 1
            make(*args, **options)

        def counted_begin(*args: Any) -> None:
            self.runs += 1
            begin(*args)

        monkeypatch.setattr(CallPlan, "__init__", counted_make)
        monkeypatch.setattr(Lane, "begin", counted_begin)

    def of(self, call: Callable[[], object]) -> tuple[int, int]:
        """How many plans a call makes, and how often it submits."""
        self.plans = self.runs = 0
        call()
        return self.plans, self.runs


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


class Climbs(nn.Module):
    """Goes round until the sum is large enough."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor, most: float) -> torch.Tensor:
        y = torch.relu(self.layer(x))
        while bool(y.sum() < most):
            y = y + torch.sigmoid(self.layer(x)).mean() * 0.0 + 0.1
        return y * 2.0


def test_a_loop_is_planned_once(device: Device, counter: Counter) -> None:
    module, x = Climbs(), torch.zeros(2, 5)
    with torch.no_grad():
        module.layer.weight.zero_()
        module.layer.bias.zero_()
    program = load(module, device)
    most = 26.5  # ten elements, 0.1 more in each trip

    def call() -> None:
        torch.testing.assert_close(program(x, most), module(x, most))

    plans, runs = counter.of(call)
    assert (plans, runs) == (4, 29)  # before the loop, its first trip, the others, after it
    assert counter.of(call) == (0, 29)
    report = program.plan_report([x, most])
    assert (report.looks, report.plans, report.segments) == (28, 4, 29)


def test_other_elements_take_other_ways_through_the_same_plans(device: Device, counter: Counter) -> None:
    module = Climbs()
    program = load(module, device)
    generator = torch.Generator().manual_seed(0)
    made = [
        counter.of(lambda: same(program, module, torch.rand(2, 5, generator=generator) * 3, 9.0))[0] for _ in range(6)
    ]
    assert sum(made[2:]) == 0, made


def same(program: VulkanProgram, module: nn.Module, *args: Any) -> None:
    """A call gives what eager mode gives, in tensors and in arrays; arguments stay as they are."""
    with torch.no_grad():
        expected = module(*[arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args])
    kept = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    found = program.run("forward", args)
    torch.testing.assert_close(found, expected)
    for one, other in zip(args, kept, strict=True):
        assert not isinstance(one, torch.Tensor) or torch.equal(one, other)


def same_in_arrays(program: VulkanProgram, module: nn.Module, *args: Any) -> None:
    """As :func:`same`, for calls that give arrays and for those that are submitted."""
    with torch.no_grad():
        expected = module(*[arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args])
    arrays = program.run_on_device("forward", args)
    torch.testing.assert_close(map_leaves(arrays, DeviceArray, DeviceArray.tensor), expected)
    torch.testing.assert_close(program.submit("forward", args).result(60), expected)


class WritesThroughViews(nn.Module):
    """Views that are made before a look are written to after it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x * 2.0
        row, column, square = y[1], y.t()[0], y.view(-1)[:4].view(2, 2)
        twin = y.expand_as(x)
        if bool(y.sum() > 0.0):
            row.add_(1.0)
        else:
            column.mul_(3.0)
        while bool(square.min() < 2.0):
            square.add_(0.5)
            row[0] = 7.0
        y.transpose_(0, 1)
        y[0].sub_(1.0)
        return y, row, twin, square


class Greedy(nn.Module):
    """Decodes tokens until one ends it; the tokens grow."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.cell = nn.GRUCell(6, 6)
        self.head = nn.Linear(6, 11)

    def forward(self, hidden: torch.Tensor, limit: int) -> tuple[torch.Tensor, int]:
        tokens = torch.zeros(1, 1, dtype=torch.int64)
        count = 0
        for _ in range(limit):
            hidden = self.cell(self.table(tokens[:, -1]), hidden)
            token = self.head(hidden).argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, token], 1)
            count += 1
            if bool(token == 3):
                break
        return tokens, count


class Beams(nn.Module):
    """The best of several sequences, in lists, until the best has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[int], list[float]]:
        scores = torch.tensor([0.0, -0.3, -0.7])  # else sequences tie, and torch does not say which is first
        states = x.expand(3, 4)
        parents: list[int] = []
        best: list[float] = []
        for turn in range(6):
            logits = torch.log_softmax(self.step(states), 1) + scores[:, None]
            scores, places = logits.view(-1).topk(3)
            beams = torch.div(places, 4, rounding_mode="floor")
            states = torch.tanh(states[beams] + self.step.weight[places % 4])
            parents.append(int(beams[0]))
            best.append(float(scores[0]))
            if int(places[0]) % 4 == 2 and turn > 1:
                break
        return scores, parents, best


class Suppresses(nn.Module):
    """Greedy suppression of boxes that overlap one of a higher score."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.nonzero(scores > 0.3).flatten()
        boxes, scores = boxes[kept], scores[kept]
        chosen: list[torch.Tensor] = []
        while boxes.size(0) > 0:
            best = int(scores.argmax())
            box = boxes[best]
            chosen.append(torch.cat([box, scores[best : best + 1]]))
            low, high = torch.maximum(box[:2], boxes[:, :2]), torch.minimum(box[2:], boxes[:, 2:])
            shared = (high - low).clamp(min=0.0).prod(1)
            areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
            apart = shared / (areas + areas[best] - shared) < 0.4
            boxes, scores = boxes[apart], scores[apart]
        return torch.stack(chosen), kept


class Scales(nn.Module):
    """Numbers of tensors in arithmetic, a nested look, an early exit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest = float(x.max())
        y = x / largest + largest
        if largest > 2.5:
            return y * 0.5
        for row in range(x.size(0)):
            if bool(y[row].sum() > 3.0):
                y[row] = y[row] * float(row) + x.mean().item()
                if bool(y[row, 0] > 4.0):
                    return y
        return y - int(y.sum())


def boxes_of(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(9, 2, generator=generator)
    sizes = torch.rand(9, 2, generator=generator) * 0.5 + 0.1
    return torch.cat([corners, corners + sizes], 1), torch.rand(9, generator=generator) * 0.7 + 0.2


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Any, ...]]]] = {
    "views that are written to": (
        WritesThroughViews,
        lambda seed: (torch.randn(3, 3, generator=torch.Generator().manual_seed(seed)),),
    ),
    "greedy decoding": (Greedy, lambda seed: (torch.randn(1, 6, generator=torch.Generator().manual_seed(seed)) * 3, 9)),
    "beams": (Beams, lambda seed: (torch.randn(1, 4, generator=torch.Generator().manual_seed(seed)),)),
    "suppression": (Suppresses, boxes_of),
    "numbers": (Scales, lambda seed: (torch.rand(4, 3, generator=torch.Generator().manual_seed(seed)) * 3 + 0.1,)),
}


@pytest.mark.parametrize("case", CASES)
def test_what_eager_mode_gives(case: str, device: Device, counter: Counter) -> None:
    make, inputs = CASES[case]
    torch.manual_seed(1)
    module = make().eval()
    program = load(module, device)
    for seed in (0, 1):
        same(program, module, *inputs(seed))
    if case in ("views that are written to", "greedy decoding"):
        same_in_arrays(program, module, *inputs(0))
    assert counter.of(lambda: program.run("forward", inputs(0)))[0] == 0


class Remembers(nn.Module):
    """Changes its state between looks, in place and by assignment."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("row", torch.zeros(4))
        self.total = torch.zeros(1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.row.add_(x)
        self.calls += 1
        part = self.row[:2]
        while bool(part.sum() < 3.0):
            part.add_(0.5)
            self.total = self.total + part.sum()
        if bool((x > 8.5).any()):
            raise ValueError("too large")
        self.row[3] = float(self.calls)
        return self.row * self.total

    @torch.jit.export
    def reset(self) -> torch.Tensor:
        if bool(self.total.sum() > 1.0):
            self.row.zero_()
        return self.row + self.total


def test_state_is_what_whole_calls_have_made_of_it(device: Device) -> None:
    module, eager = Remembers(), Remembers()
    program = load(module, device, ["reset"])
    x = torch.tensor([0.25, 0.5, -1.0, 2.0])
    for turn in range(5):
        if turn == 2:
            kept = copy.deepcopy(dict(program.model_state.values))
            with pytest.raises(InputError, match="too large"):
                program(x + 9.0 - x)  # after looks at what the call has made of the state
            torch.testing.assert_close(dict(program.model_state.values), kept)
        torch.testing.assert_close(program(x * turn), eager(x * turn))
        if turn % 2:
            torch.testing.assert_close(program.run("reset", []), eager.reset())
    torch.testing.assert_close(program.model_state.values["row"], eager.row)


def test_threads(device: Device) -> None:
    module = WritesThroughViews()
    program = load(module, device)
    inputs = [torch.randn(3, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    expected = [module(x.clone()) for x in inputs]
    wrong: list[str] = []

    def work(number: int) -> None:
        for turn in range(6):
            x, wanted = inputs[(number + turn) % 3], expected[(number + turn) % 3]
            found = program.submit("forward", [x]).result(60) if turn % 2 else program(x)
            for one, other in zip(found, wanted, strict=True):
                if not torch.allclose(one, other, rtol=1e-4, atol=1e-5):
                    wrong.append(f"{number}, {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    assert all(plan.users == 0 for plan in [*program._plans, *program._later_plans])


class Picks(nn.Module):
    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        y = x * 2.0
        if bool(y.sum() > 0.0):
            y = y[places]
        return y[places] + (1.0 if bool(y.min() > 1.0) else 2.0)


def test_a_bad_operand_after_a_look(device: Device) -> None:
    module, x = Picks(), torch.arange(4.0)
    program = load(module, device)
    for places in ([0, 3], [1, 1], [0, 2]):
        if max(places) < 2:
            same(program, module, x, torch.tensor(places))
            continue
        with pytest.raises(InputError, match="out of bounds"):
            program(x, torch.tensor(places))
        same(program, module, -x, torch.tensor(places))


def test_plans_of_segments_are_bounded(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "MAX_LATER_PLANS", 3)
    monkeypatch.setattr(program_module, "MAX_CHECKPOINTS", 2)
    torch.manual_seed(1)
    module = Greedy().eval()
    program = load(module, device)
    for _ in range(2):
        same(program, module, torch.ones(1, 6), 5)
        assert len(program._later_plans) <= 3
    live = device.live_objects["Buffer"]
    program.close()
    assert device.live_objects["Buffer"] < live and not len(program._later_plans)


def test_profiles_have_all_segments(device: Device) -> None:
    module = WritesThroughViews()
    program, x = load(module, device), torch.ones(3, 3)
    times = program.profile([x])
    assert len(times) >= program.plan_report([x]).dispatches > 3
    starts = [item.start_ns for item in times]
    assert starts == sorted(starts)


def test_a_look_at_an_input_computes_nothing(device: Device, counter: Counter) -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.relu(x * 2.0)[mask] + 1.0

    module, x = Chosen(), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    program, mask = load(module, device), torch.tensor([True, False, True, True, False])
    assert counter.of(lambda: same(program, module, x, mask)) == (2, 1)
    assert counter.of(lambda: same(program, module, x + 1.0, mask)) == (0, 1)


class Divides(nn.Module):
    """Numbers go into arithmetic, a comparison, a text, the result."""

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, float, dict[str, int], int]:
        largest = x.abs().max().item()
        y = (x * 3.0 / largest + 1.0) * (largest * 0.5 - 1.0)
        count = int(places.sum())
        y = y - count + places * count
        while y.abs().mean().item() > 2.0:
            y = y * 0.5
        half = y.half() * largest
        text = "large" if largest > 100.0 else "small"
        return torch.relu(y) + half.float() * 0.0, float(largest) + 1.0, {"count": count + 1}, len(text)


def test_numbers_are_inputs_of_segments(device: Device, counter: Counter) -> None:
    module = Divides()
    program = load(module, device)
    generator = torch.Generator().manual_seed(3)
    made = []
    for scale in (1.0, 2.0, 1.5, 3.0, 1.2):
        x, places = torch.rand(3, 4, generator=generator) * scale, torch.randint(100, (4,), generator=generator)
        made.append(counter.of(lambda x=x, places=places: same(program, module, x, places))[0])
        assert type(program(x, places)[2]["count"]) is int
    assert made[0] <= 8 and sum(made[3:]) == 0, made
    same_in_arrays(program, module, x, places)


class ManyNumbers(nn.Module):
    """What lists and dictionaries do with numbers."""

    def forward(self, x: torch.Tensor) -> tuple[list[int], dict[int, float], torch.Tensor, list[int], torch.Tensor]:
        numbers: list[int] = x.long().tolist()
        numbers.sort()
        total = 0
        table: dict[int, float] = {}
        for number in numbers:
            total += number
            table[number] = float(number) / 2
        if 3 in numbers:
            numbers.append(total)
        zeros = torch.zeros(numbers[0] + 1)
        repeated = [7] * numbers[1]
        return numbers, table, zeros + total, repeated, torch.full((2,), total / 2) * x[:2].double()


@pytest.mark.parametrize("values", [[1.0, 2.0, 4.0], [3.0, 0.0, 5.0], [2.0, 3.0, 2.0], [1.0, 2.0, 6.0]])
def test_numbers_that_decide(values: list[float], device: Device) -> None:
    module, x = ManyNumbers(), torch.tensor(values)
    program = load(module, device)
    same(program, module, x + 1.0 - 1.0)
    same(program, module, x + 1.0)
    same(program, module, x)


class Found(nn.Module):
    """Places that a mask has, and what is written there."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x * 2.0
        places = torch.nonzero(y > 1.0)
        rows = places[:, 0]
        chosen = y[rows] + x[y > 1.0][:, None]
        rows.add_(1)
        if bool(chosen.sum() > 1e6):
            return chosen, places, rows
        return chosen, places, y.masked_select(y < 0.5)


def test_places_are_inputs_of_segments(device: Device, counter: Counter) -> None:
    module = Found()
    program = load(module, device)
    x = torch.linspace(0.0, 0.85, 12).view(4, 3)
    same(program, module, x)
    for order in (torch.arange(12).flip(0), torch.randperm(12, generator=torch.Generator().manual_seed(0))):
        turned = x.flatten()[order].view(4, 3)
        assert counter.of(lambda turned=turned: same(program, module, turned))[0] == 0
    same_in_arrays(program, module, x)
    same(program, module, x + 0.2)
    same(program, module, x * 0.0)


class CountsAndDecays(nn.Module):
    """A loop with a bound, whose trips differ in plain numbers that go into arithmetic."""

    def forward(self, x: torch.Tensor, trips: int) -> tuple[torch.Tensor, float, int]:
        y, decay, taken = x * 1.0, 1.0, 0
        factor = int((x * 2.0).sum().item()) // 2
        for trip in range(trips):
            decay *= 0.5
            if bool(y.sum() + float(trip) < 20.0):
                y = y + float(trip) * factor * decay
                taken += trip
            else:
                y = y - 1.0
        return y, decay, taken


def test_trips_that_differ_in_numbers_share_plans(device: Device, counter: Counter) -> None:
    module = CountsAndDecays()
    program = load(module, device)
    for scale in (0.5, 2.0):
        same(program, module, torch.full((2, 3), scale), 4)
    for scale in (0.6, 0.7, 1.9):
        x = torch.full((2, 3), scale)
        assert counter.of(lambda x=x: same(program, module, x, 4)) == (0, 6)
    same_in_arrays(program, module, torch.full((2, 3), 1.3), 4)
    made, _ = counter.of(lambda: same(program, module, torch.full((2, 3), 0.5), 60))
    assert made <= 8


class NumbersFromBranches(nn.Module):
    """Two ways to one look, which make a number in a different number of steps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2.0
        if bool(x.sum() > 3.0):
            number = float(y.sum().item()) * 2.0 + 1.0
        else:
            number = float(y.max().item())
        z = y + 0.5
        if bool(y.min() > 100.0):
            z = z + 1.0
        return z * number


def test_each_way_to_a_checkpoint_hands_on_its_own_numbers(device: Device) -> None:
    module = NumbersFromBranches()
    program = load(module, device)
    for scale in (1.0, 0.1, 2.0, 0.2, 1.0):
        same(program, module, torch.full((2, 3), scale))


class Sizes(nn.Module):
    """Numbers that a loop counts decide sizes and places."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        y, seen = x * 1.0, [0]
        at = 0
        while bool(y[at].sum() < 3.0):
            y = y + x.narrow(0, 0, at + 1).sum() * 0.1
            seen.append(at)
            at = (at + 1) % x.size(0)
        return y[at : at + 2], seen


def test_numbers_of_loops_decide_where_sizes_need_them(device: Device) -> None:
    module = Sizes()
    program = load(module, device)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        same(program, module, torch.rand(5, 2, generator=generator))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64, torch.bool], ids=str)
def test_numbers_beside_tensors_without_dimensions(dtype: torch.dtype, device: Device) -> None:
    class Scalars(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
            whole = int(x.sum().item())
            part = whole / 3
            y = x[1]
            return y * whole, y + part, y > part, (y * 2.5) - whole

    module = Scalars()
    program = load(module, device)
    for first in (1, 0):
        same(program, module, torch.tensor([first, 1, 1]).to(dtype))


class KeepsParts(nn.Module):
    """Keeps one element of as many as the elements say, and looks again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = (x * 2)[x > 0]
        first, second = kept[0], kept[1:2]
        return first * second + x if bool(x.sum() > 0) else first - x


def test_views_of_memories_of_other_sizes(device: Device) -> None:
    """A view of one element is the same to a checkpoint only if what it lies in has the same size."""
    program = load(KeepsParts(), device)
    for x in (torch.tensor([3.0, -1, 2, -2, 1]), torch.tensor([3.0, 1, 2, -2, 1]), torch.tensor([3.0, 1, 2, 5, 1])):
        same(program, KeepsParts(), x)


class ListsOfDictionaries(nn.Module):
    """Changes a dictionary that lies in a list, after a look and before."""

    def forward(self, x: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        found: list[dict[str, torch.Tensor]] = []
        for row in range(x.size(0)):
            found.append({"all": x[row], "some": x[row][x[row] > 0]})
        for i, each in enumerate(found):
            found[i]["all"] = each["all"] * 2
            each["some"] = each["some"] + 1
            last = found.pop()
            last["last"] = x[0]
            found.append(last)
        return found


def test_dictionaries_in_lists_are_the_same_ones(device: Device) -> None:
    program, generator = load(ListsOfDictionaries(), device), torch.Generator().manual_seed(4)
    for rows in (1, 3):
        same(program, ListsOfDictionaries(), torch.randn(rows, 7, generator=generator))


class CountedKeys(nn.Module):
    """Numbers that were read are keys."""

    def forward(self, x: torch.Tensor) -> dict[int, torch.Tensor]:
        pairs: list[tuple[int, torch.Tensor]] = []
        for row in range(x.size(0)):
            pairs.append((int(x[row].sum()), x[row] * 2))
        return dict(pairs)


def test_numbers_that_were_read_are_keys(device: Device) -> None:
    program = load(CountedKeys(), device)
    for values in ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [2.0, 1.0]], [[5.0, 2.0], [3.0, 4.0]]):
        same(program, CountedKeys(), torch.tensor(values))
