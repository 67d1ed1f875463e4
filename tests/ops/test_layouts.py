"""How results of operators on strided operands lie is what PyTorch's CPU kernels make."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mobopt.ir.schemas import Argument, schema_of
from mobopt.ir.types import TensorType
from mobopt.ops.shapes import infer, order_of, rules, strides_of
from mobopt.ops.shapes.layouts import as_exchanged_operands, as_operands, dense
from mobopt.runtimes.cpu.kernels import kernel


def strided(generator: random.Random, sizes: tuple[int, ...]) -> Tensor:
    """A tensor of these sizes that lies somehow: permuted, a slice, expanded, with some of it."""
    order = list(range(len(sizes)))
    if generator.random() < 0.8:
        generator.shuffle(order)
    steps = [generator.choice((1, 1, 1, 2, 3)) for _ in sizes]
    whole = [1 if generator.random() < 0.1 else size * step for size, step in zip(sizes, steps, strict=True)]
    tensor = torch.rand([whole[dim] for dim in order]).permute([order.index(dim) for dim in range(len(sizes))])
    for dim, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        if tensor.shape[dim] != 1 or size * step == 1:
            tensor = (
                tensor.narrow(dim, 0, size)
                if generator.random() < 0.5
                else tensor[(slice(None),) * dim + (slice(0, size * step, step),)]
            )
    return tensor.expand(sizes)


def broadcast_of(generator: random.Random, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes that are broadcast to others."""
    kept = tuple(1 if generator.random() < 0.25 else size for size in sizes)
    return kept[generator.choice((0, 0, 0, 1)) :]


def lying(*tensors: Tensor) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(tuple(item.shape), item.stride()) for item in tensors]


def assert_lies(op: str, result: Tensor, *operands: Tensor) -> None:
    found = strides_of(op, tuple(result.shape), lying(*operands))
    assert found is not None
    for size, stride, wanted in zip(result.shape, found, result.stride(), strict=True):
        assert size == 1 or stride == wanted, f"{op} of {lying(*operands)} lies {result.stride()}, not {found}"


SIZES = [(5,), (3, 7), (2, 3, 5), (1, 3, 5), (2, 3, 4, 5), (1, 4, 1, 3), (2, 1, 3, 2, 3), (2, 2, 2)]


POINTWISE = [op for op, layout in rules._LAYOUTS.items() if layout in (as_operands, as_exchanged_operands)]
TRIALS = 10


def argument(generator: random.Random, op: str, given: Argument, tensors: list[Tensor], sizes: tuple[int, ...]) -> Any:
    """Something of an argument's type; the first tensor has these sizes, others are broadcast to them."""
    of_integers = "bitwise" in op or "__" in op
    kind = str(given.type)
    if "Tensor" in kind:
        tensor = strided(generator, broadcast_of(generator, sizes) if tensors else sizes)
        tensors.append(
            (tensor * 9).to(torch.int32) if of_integers else tensor < 0.5 if given.name == "condition" else tensor
        )
        return tensors[-1]
    if "str" in kind:
        return "trunc" if given.name == "rounding_mode" else "none"
    if kind in ("int", "bool"):
        return kind == "int"
    return 1 if of_integers or given.name == "alpha" else 0.5


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_pointwise_operators_lie_as_their_operands(sizes: tuple[int, ...]) -> None:
    generator = random.Random(len(sizes))
    torch.manual_seed(0)
    told = set()
    for op in POINTWISE:
        for _ in range(TRIALS):
            tensors: list[Tensor] = []
            args = [argument(generator, op, given, tensors, sizes) for given in schema_of(op).arguments]
            types = [TensorType(item.dtype, tuple(item.shape)) if isinstance(item, Tensor) else item for item in args]
            if infer(op, types) is not None and not all(item.is_contiguous() for item in tensors):
                told.add(op)
                assert_lies(op, kernel(op)(*args), *tensors)
    assert len(told) > 0.9 * len(POINTWISE)


def test_what_copies_first_is_row_major() -> None:
    generator = random.Random(5)
    for _ in range(TRIALS):
        x = strided(generator, (2, 3, 5))
        assert_lies("aten::masked_fill.Scalar", x.masked_fill(x < 0.5, 2.0), x, x < 0.5)
        assert_lies("aten::log_sigmoid", torch.nn.functional.logsigmoid(x), x)
        assert_lies("aten::pow.Scalar", torch.pow(2.0, x), x)


PAIRS = [
    ((3,), (3,)),
    ((2, 3), (3, 5)),
    ((2, 3), (3,)),
    ((3,), (3, 5)),
    ((2, 5, 3), (2, 3, 4)),
    ((2, 5, 3), (3, 4)),
    ((5, 3), (2, 3, 4)),
    ((2, 5, 3), (3,)),
    ((3,), (2, 3, 4)),
    ((7, 2, 5, 3), (2, 3, 4)),
    ((1, 5, 3), (7, 2, 3, 4)),
]


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=str)
def test_products_are_row_major(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    generator = random.Random(7)
    for _ in range(40):
        a, b = strided(generator, left), strided(generator, right)
        assert_lies("aten::matmul", a @ b, a, b)
        if len(left) == len(right) == 3:
            assert_lies("aten::bmm", torch.bmm(a, b), a, b)
            added = strided(generator, (left[0], left[1], right[2]))
            assert_lies("aten::baddbmm", torch.baddbmm(added, a, b), added, a, b)
        if len(right) == 2:
            bias = torch.rand(right[1])
            assert_lies("aten::linear", torch.nn.functional.linear(a, b.t(), bias), a, b.t(), bias)
        if len(left) == len(right) == 2:
            assert_lies("aten::addmm", torch.addmm(b[:1], a, b), b[:1], a, b)


@pytest.mark.parametrize("sizes", [(7,), (3, 5), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 3)], ids=str)
def test_what_is_joined_and_softmax_are_row_major(sizes: tuple[int, ...]) -> None:
    generator = random.Random(3)
    for _ in range(60):
        tensors = [strided(generator, sizes) for _ in range(3)]
        assert_lies("aten::softmax.int", tensors[0].softmax(0), tensors[0])
        assert_lies("aten::log_softmax.int", tensors[0].log_softmax(-1), tensors[0])
        if len(sizes) == 5:  # where they may have their channels last
            assert strides_of("aten::cat", (6, *sizes[1:]), lying(*tensors)) is None
            continue
        assert_lies("aten::cat", torch.cat(tensors), *tensors)
        if len(sizes) < 4:
            assert_lies("aten::stack", torch.stack(tensors, 1), *tensors)


def image(generator: random.Random, sizes: tuple[int, ...]) -> Tensor:
    """A batch of images that lie somehow, more often than not with their channels last."""
    if generator.random() < 0.4:
        return strided(generator, sizes)
    whole = torch.rand([size + generator.choice((0, 0, 1)) for size in sizes]).to(memory_format=torch.channels_last)
    for dim, size in enumerate(sizes):
        whole = whole.narrow(dim, 0, size)
    return whole


IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "aten::batch_norm": lambda x: functional.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
    "aten::group_norm": lambda x: torch.group_norm(x, 1),
    "aten::max_pool2d": lambda x: functional.max_pool2d(x, 2, 1, 1),
    "aten::avg_pool2d": lambda x: functional.avg_pool2d(x, 2, 1, 1),
    "aten::adaptive_avg_pool2d": lambda x: functional.adaptive_avg_pool2d(x, (2, 3)),
    "aten::upsample_nearest2d": lambda x: functional.interpolate(x, scale_factor=2),
    "aten::upsample_bilinear2d": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "aten::upsample_bicubic2d": lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"),
    "aten::_upsample_bilinear2d_aa": lambda x: functional.interpolate(
        x, scale_factor=2, mode="bilinear", antialias=True
    ),
    "aten::replication_pad2d": lambda x: functional.pad(x, (1, 0, 2, 1), "replicate"),
    "aten::pixel_shuffle": lambda x: functional.pixel_shuffle(x, 2),
}


@pytest.mark.parametrize("op", IMAGES)
def test_images_keep_their_memory_format(op: str) -> None:
    generator = random.Random(11)
    told = 0
    for _ in range(300):
        channels = generator.choice((4, 8) if "shuffle" in op else (1, 3, 4))
        x = image(
            generator, (generator.choice((1, 2)), channels, generator.choice((1, 3, 5)), generator.choice((1, 4)))
        )
        result = IMAGES[op](x)
        if not x.is_contiguous() and strides_of(op, tuple(result.shape), lying(x)) is not None:
            told += 1
            assert_lies(op, result, x)
    assert told > 150


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_have_channels_last_if_images_or_filters_do(transposed: bool) -> None:
    generator = random.Random(13)
    op = "aten::conv_transpose2d.input" if transposed else "aten::conv2d"
    function = functional.conv_transpose2d if transposed else functional.conv2d
    for _ in range(300):
        channels, kernel_size = generator.choice((1, 3, 4)), generator.choice((1, 3))
        x = image(generator, (generator.choice((1, 2)), channels, generator.choice((3, 5)), generator.choice((3, 4))))
        filters = torch.rand(*((channels, 6) if transposed else (6, channels)), kernel_size, kernel_size)
        if generator.random() < 0.3:
            filters = filters.to(memory_format=torch.channels_last)
        assert_lies(op, function(x, filters), x, filters)


def test_what_is_joined_has_channels_last_if_all_have() -> None:
    generator = random.Random(17)
    for _ in range(100):
        tensors = [image(generator, (2, generator.choice((1, 3)), 3, 4)) for _ in range(2)]
        assert_lies("aten::cat", torch.cat(tensors, 1), *tensors)


def test_unknown_layouts_are_left_to_torch() -> None:
    x = torch.rand(2, 3, 4, 5).permute(0, 3, 1, 2)
    assert infer("aten::roll", [TensorType(x.dtype, tuple(x.shape)), [1], [2]])
    assert strides_of("aten::roll", tuple(x.shape), lying(x)) is None


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_time_comes_first_in_what_recurrent_layers_make(layer: type[torch.nn.RNNBase], batch_first: bool) -> None:
    op = {torch.nn.LSTM: "aten::lstm.input", torch.nn.GRU: "aten::gru.input", torch.nn.RNN: "aten::rnn_tanh.input"}
    order = order_of(op[layer], [None] * 8 + [batch_first])
    for sizes, bidirectional, count in itertools.product([(3, 5, 2), (1, 5, 2), (3, 1, 2)], (False, True), (1, 2)):
        made = layer(2, 4, count, batch_first=batch_first, bidirectional=bidirectional)
        outputs, states = made(torch.rand(sizes))
        strides = dense(tuple(outputs.shape), order)
        for size, stride, wanted in zip(outputs.shape, outputs.stride(), strides, strict=True):
            assert size == 1 or stride == wanted
        assert all(state.is_contiguous() for state in (states if isinstance(states, tuple) else [states]))
