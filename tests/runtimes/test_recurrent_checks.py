"""Sizes that torch's LSTM does not look at are refused before it reads beyond a tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mobopt.ops.contexts import LstmPackedContext
from mobopt.runtimes.cpu.kernels import kernel
from mobopt.runtimes.cpu.packed_vulkan import run_lstm_context


def _arguments(**options: Any) -> tuple[nn.LSTM, list[Any]]:
    layer = nn.LSTM(5, 7, **options)
    directions = 2 if layer.bidirectional else 1
    x = torch.randn(3, 2, 5) if layer.batch_first else torch.randn(2, 3, 5)
    hidden = torch.randn(layer.num_layers * directions, 3, layer.proj_size or 7)
    cells = torch.randn(layer.num_layers * directions, 3, 7)
    weights = [weight.detach() for weight in layer._flat_weights]
    flags = [layer.bias, layer.num_layers, 0.0, False, layer.bidirectional, layer.batch_first]
    return layer, [x, [hidden, cells], weights, *flags]


FORMS: list[dict[str, Any]] = [
    {},
    {"num_layers": 3, "bidirectional": True},
    {"bias": False, "batch_first": True},
    {"proj_size": 4, "num_layers": 2, "bidirectional": True},
]


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_right_sizes(options: dict[str, Any]) -> None:
    layer, args = _arguments(**options)
    with torch.no_grad():
        expected, _ = layer(args[0], tuple(args[1]))
        torch.testing.assert_close(kernel("aten::lstm.input")(*args)[0], expected)


def _broken() -> list[tuple[str, Any]]:
    def with_weight(place: int, *sizes: int) -> Any:
        return lambda args: args[2].__setitem__(place, torch.randn(*sizes))

    return [
        ("input", lambda args: args.__setitem__(0, torch.randn(2, 3, 6))),
        ("rank", lambda args: args.__setitem__(0, torch.randn(2, 5))),
        ("batch", lambda args: args.__setitem__(0, torch.randn(2, 4, 5))),
        ("hidden", lambda args: args[1].__setitem__(0, torch.randn(1, 3, 700))),
        ("cells", lambda args: args[1].__setitem__(1, torch.randn(1, 3, 1))),
        ("states", lambda args: args[1].pop()),
        ("input weight", with_weight(0, 1, 1)),
        ("hidden weight", with_weight(1, 28, 1)),
        ("vector", with_weight(1, 28)),
        ("bias", with_weight(2, 1)),
        ("other bias", with_weight(3, 27)),
        ("missing", lambda args: args[2].pop()),
        ("layers", lambda args: args.__setitem__(4, 2)),
        ("no layers", lambda args: args.__setitem__(4, 0)),
        ("directions", lambda args: args.__setitem__(7, True)),
    ]


@pytest.mark.parametrize(("name", "damage"), _broken(), ids=[name for name, _ in _broken()])
def test_wrong_sizes(name: str, damage: Any) -> None:
    _, args = _arguments()
    damage(args)
    with pytest.raises(RuntimeError, match="lstm: expected"):
        kernel("aten::lstm.input")(*args)


@pytest.mark.parametrize("place", range(4))
def test_packed_contexts(place: int) -> None:
    """Files have them, with weights of any size."""
    _, (x, state, weights, *flags) = _arguments()
    context = LstmPackedContext(weights, *flags)
    expected = torch.lstm(x, state, weights, *flags)
    torch.testing.assert_close(run_lstm_context(x, *state, context), expected)
    weights[place] = weights[place][:-1]
    with pytest.raises(RuntimeError, match=f"lstm: expected weight {place} of size"):
        run_lstm_context(x, *state, LstmPackedContext(weights, *flags))


def test_packed_sequences() -> None:
    _, (_, state, weights, *flags) = _arguments()
    x = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 3, 5), torch.tensor([4, 2, 1]))
    call = kernel("aten::lstm.data")
    expected = torch.lstm(x.data, x.batch_sizes, state, weights, *flags[:-1])
    torch.testing.assert_close(call(x.data, x.batch_sizes, state, weights, *flags[:-1]), expected)
    for data, sizes in (
        (x.data[:-1], x.batch_sizes),
        (x.data, x.batch_sizes[:0]),
        (x.data, torch.tensor([4, 1, 1, 1])),
        (x.data, torch.tensor([3, 5, -2, 1])),
        (x.data[0], x.batch_sizes),
    ):
        with pytest.raises(RuntimeError, match="lstm: "):
            call(data, sizes, state, weights, *flags[:-1])
