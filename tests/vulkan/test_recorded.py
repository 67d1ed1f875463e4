"""What recordings give for a size is what lowering gives for it, in every word: on CPU drivers and on GPUs."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import torch
from device_infos import DEVICES, device_info, known_device
from nets import NETS
from sampling import sampled
from torch import Tensor, nn

from mobopt.errors import MoboptError
from mobopt.frontends.torchscript import program_from_script_module
from mobopt.ir import Program
from mobopt.ir.guards import UndecidedError
from mobopt.runtimes.segment import Segment
from mobopt.runtimes.specializations import Specializations
from mobopt.runtimes.vulkan.compile.build import Built, build_stream
from mobopt.runtimes.vulkan.compile.placement import integer_class
from mobopt.runtimes.vulkan.compile.recorded import LoweredTemplates, LoweringGuards
from mobopt.runtimes.vulkan.engine.device_info import DeviceInfo
from mobopt.runtimes.vulkan.engine.stream import Binding, Dispatch
from mobopt.runtimes.vulkan.engine.tensor import Storage
from mobopt.runtimes.vulkan.kernels.plan import ConstantStore, Plan

TRIALS = 6
RECORDED = (
    *("RepVGG", "Res2Net", "StyleGAN", "SKNet", "Video", "Mask", "KeyWords", "PointMLP", "CoordConv", "GPT", "PSPNet"),
)


def words_of(segment: Segment, built: Built) -> list[Any]:
    """All that a Stream does, with storages by the order in which they come."""
    numbers: dict[Storage, int] = {}

    def storage(one: Storage) -> tuple[Any, ...]:
        return numbers.setdefault(one, len(numbers)), one.nbytes, one.kind, one.elements, one.name

    def binding(one: Binding) -> tuple[Any, ...]:
        kind = (one.offset, one.nbytes, one.reads, one.writes, one.texel_words, one.used_bytes)
        return storage(one.storage), *kind

    words: list[Any] = []
    for one in built.stream.operations:
        assert isinstance(one, Dispatch)
        words.append((one.shader, one.groups, one.iterations, one.specialization, one.push_constants))
        words.append((one.label, one.source, one.call.operators, one.call.flops, tuple(map(binding, one.bindings))))
    for tensor in (*built.stream.inputs, *built.stream.outputs):
        words.append((storage(tensor.storage), tensor.dtype, tensor.sizes, tensor.strides, tensor.offset))
    words.append((built.inputs, [(value.dtype, value.sizes) for value in built.outputs], segment.result))
    words.append([(segment.inputs.index(value), limits) for value, limits in built.assumed.items()])
    return words


class Checked:
    """Compares recordings with lowerings of each size by itself."""

    def __init__(self, program: Program, device: DeviceInfo) -> None:
        self._device, self._constants = device, ConstantStore()
        self._made, self._templates = Specializations(program), LoweredTemplates(self._constants)
        self.hits = 0
        self.shaders: set[str] = set()

    def check(self, args: list[Any]) -> None:
        """One call; those that the model refuses are as they are."""
        try:
            segment = self._made.segment("forward", args)
        except MoboptError:
            return
        found = self._made.matching("forward", args)
        if found is None or not segment.is_complete:
            return
        integers = tuple(integer_class(value) for value in args if value.dtype == torch.int64)
        recorded = self._templates.built(*found, integers, self._device, self._record)
        if recorded is None:
            return
        self.hits += 1
        self.shaders |= {step.shader for step in recorded[1].stream.operations if isinstance(step, Dispatch)}
        assert words_of(*recorded) == words_of(segment, self._build(segment, integers)), [one.shape for one in args]

    def _record(self, segment: Segment, integers: Any, make_plan: Any) -> Built:
        return build_stream(segment, self._device, self._constants, True, integers, make_plan=make_plan)

    def _build(self, segment: Segment, integers: Any) -> Built:
        wide = [value for value in segment.inputs if value.dtype == torch.int64]
        return build_stream(segment, self._device, self._constants, True, dict(zip(wide, integers, strict=True)))


def scripted(module: nn.Module) -> Program:
    return program_from_script_module(torch.jit.script(module.eval()))


def of_other_sizes(inputs: list[Tensor], draw: random.Random) -> list[Tensor]:
    """Inputs where some sizes are others, the same ones for sizes that were equal."""
    sizes: dict[tuple[bool, int], int] = {}

    def size(tensor: Tensor, dim: int) -> int:
        old = tensor.shape[dim]
        if dim == 1 and tensor.dim() > 3:
            return old
        others = [old, max(1, old + draw.choice([-3, -1, 1, 2, 8, 16])), draw.randint(1, 2 * old + 2)]
        return sizes.setdefault((dim == 0, old), draw.choice(others))

    return [torch.zeros([size(tensor, dim) for dim in range(tensor.dim())], dtype=tensor.dtype) for tensor in inputs]


def hits_of_net(name: str, device: DeviceInfo, trials: int) -> int:
    """How many of random sizes of a net a recording is for."""
    net, draw = NETS[name], random.Random(5)
    inputs, module = list(net.inputs()), net.module()
    is_scripted = "scripted" in net.ways
    program = scripted(module) if is_scripted else program_from_script_module(torch.jit.trace(module, inputs))
    checked = Checked(program, device)
    for args in [inputs, *(of_other_sizes(inputs, draw) for _ in range(trials))]:
        checked.check(args)
    return checked.hits


@pytest.mark.parametrize(("name", "device"), sampled(product(RECORDED, ["nvidia_h200", "cpu"]), one_in=2))
def test_recordings_of_nets(name: str, device: str) -> None:
    assert hits_of_net(name, device_info("cpu") if device == "cpu" else known_device(device), TRIALS) >= 3


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "device"), sampled(product(NETS, ["cpu", *DEVICES]), one_in=3, others=pytest.mark.long)
)
def test_recordings_of_all_nets(name: str, device: str) -> None:
    hits_of_net(name, device_info("cpu") if device == "cpu" else known_device(device), 4 * TRIALS)


class Branch(nn.Module):
    """A kernel of its own for each of several sizes, on either side of the limits that choose."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 9, 3, padding=1), nn.Hardswish(), nn.Conv2d(9, 9, 3, padding=1, groups=9), nn.Conv2d(9, 4, 1)
        )
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x).flatten(2).transpose(1, 2)
        weights = torch.softmax(y @ y.transpose(1, 2), -1)
        return self.norm(weights @ y).mean(1) + torch.cat([y, y * 2], 1).amax(1)


@pytest.mark.parametrize("device", ["nvidia_h200", "arm_mali_g78", "cpu"])
def test_kernels_are_chosen_for_each_size(device: str) -> None:
    checked = Checked(scripted(Branch()), device_info("cpu") if device == "cpu" else known_device(device))
    sides = [(5, 7), (5, 8), (7, 8), (31, 17), (2, 2), (1, 7), (7, 1), (13, 19), (47, 61), (3, 3), (100, 3), (64, 64)]
    for height, width in sides:
        checked.check([torch.zeros(2, 3, height, width)])
    assert checked.hits >= 8


class Recurrent(nn.Module):
    """Layers that are one dispatch, and one that on some devices has a dispatch for each step."""

    def __init__(self) -> None:
        super().__init__()
        self.few = nn.GRU(8, 16, bidirectional=True, num_layers=2)
        self.many = nn.LSTM(32, 700)

    def forward(self, x: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        y, end = self.few(x, state)
        y, _ = self.many(y, (cell, cell))
        return y, end


@pytest.mark.parametrize("device", ["nvidia_h200", "arm_mali_g78", "cpu"])
def test_lengths_of_sequences(device: str) -> None:
    checked = Checked(scripted(Recurrent()), device_info("cpu") if device == "cpu" else known_device(device))
    for steps, rows in ((5, 3), (9, 3), (7, 2), (12, 5), (1, 1), (31, 4), (700, 1)):
        checked.check([torch.zeros(steps, rows, 8), torch.zeros(4, rows, 16), torch.zeros(1, rows, 700)])
    assert checked.hits >= 3


class EqualLayers(nn.Module):
    """Layers of one size, and places that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.rand(50, 12))
        self.layers = nn.ModuleList([nn.Linear(12, 12) for _ in range(4)])
        self.norms = nn.ModuleList([nn.LayerNorm(12) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places[: x.size(1)]
        for layer, norm in zip(self.layers, self.norms):  # noqa: B905  (TorchScript)
            x = x + layer(norm(x))
        return x


def test_equal_layers_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    repeated: list[int] = []
    repeat = Plan.repeat

    def counting(plan: Plan, done: Any, storages: Any, others: Any) -> bool:
        repeated.append(len(done))
        return repeat(plan, done, storages, others)

    monkeypatch.setattr(Plan, "repeat", counting)
    checked = Checked(scripted(EqualLayers()), device_info("cpu"))
    for length in (5, 7, 11, 17, 23, 29, 50):
        checked.check([torch.zeros(1, length, 12)])
    assert checked.hits == 6
    assert len(repeated) == 6 * 6, "three of four layers, and of four norms, are repeated for each size"


def test_layers_whose_weights_lie_in_another_order_have_each_its_own() -> None:
    """As kernels with matrix units read them: what was made of the first layer's weights is no other layer's."""
    device = replace(known_device("nvidia_h200"), driver_id=4)  # whose fragments' order is known
    checked = Checked(scripted(nn.Sequential(*(nn.Linear(256, 256) for _ in range(3)))), device)
    for length in (33, 41, 50, 17):
        checked.check([torch.zeros(12, length, 256)])
    assert checked.hits == 3 and any(name.startswith("product_fragments_split") for name in checked.shaders)


class FewerRows(nn.Module):
    """Multiplies by a size, and fills with one."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.size(0) + torch.full([x.size(1)], x.size(0), dtype=x.dtype)


def test_sizes_as_numbers_are_not_taken_for_others() -> None:
    checked = Checked(scripted(FewerRows()), device_info("cpu"))
    for rows in (3, 4, 5, 6, 5, 4):
        checked.check([torch.zeros(rows, 7)])
    assert not checked.hits


def test_expressions_of_recordings_are_no_keys() -> None:
    size = LoweringGuards().symbol("s", 2, 9, example=3)
    for use in (hash, lambda one: {one}, lru_cache(lambda one: one + 1)):
        with pytest.raises(UndecidedError, match="can't be a key"):
            use(size)
