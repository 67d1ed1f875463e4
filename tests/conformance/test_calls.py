"""Arguments and results of every form go in and come out as in eager mode; fast paths of torch's attention run."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import mobopt
from mobopt import optimize_for_mobile
from mobopt.errors import InputError

TARGETS = ({"backend": "vulkan", "runtime": "mobopt"}, {"backend": "vulkan", "runtime": "2.6"}, {"backend": "cpu"})


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2.0


class Several(nn.Module):
    """Traced, its inputs have the names x.1 and x."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Double(), Double()

    def forward(self, *xs: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(xs[0]), self.second(xs[1]) + 1.0


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_inputs_of_one_name_are_told_apart(target: dict[str, str], tmp_path: Any, device: object) -> None:
    x, y = torch.ones(2, 3), torch.full((2, 3), 5.0)
    module = optimize_for_mobile(torch.jit.trace(Several(), (x, y)), example_inputs=[x, y], **target)
    module.save(tmp_path / "m.pt")
    module._save_for_lite_interpreter(tmp_path / "m.ptl")
    for mobile in (module, *(mobopt.load(tmp_path / name, module.device) for name in ("m.pt", "m.ptl"))):
        torch.testing.assert_close(mobile(x, y), Several()(x, y))
        with pytest.raises(InputError, match="takes 2 inputs"):
            mobile(x)
        with pytest.raises(InputError, match="takes 2 inputs"):
            mobile(x, y, y)


class Pair(NamedTuple):
    whole: Tensor
    parts: list[Tensor]


class Forms(nn.Module):
    def forward(
        self, x: Tensor, factor: int = 2, other: Tensor | None = None
    ) -> tuple[Pair, dict[str, Tensor], int, Tensor | None]:
        y = x * factor if other is None else x * factor + other
        return Pair(y, [x, y[0]]), {"y": y, "x": x}, x.size(0), other


@pytest.mark.filterwarnings("ignore:no inputs are known that the model takes")
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_forms_of_arguments_and_results(target: dict[str, str], device: object) -> None:
    mobile = optimize_for_mobile(torch.jit.script(Forms()), **target)
    x = torch.arange(3.0)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x,), {}),
        ((x, 3), {}),
        ((x,), {"other": x + 1.0}),
        ((), {"factor": 5, "x": x}),
    ]
    for args, kwargs in calls:
        found, expected = mobile(*args, **kwargs), Forms()(*args, **kwargs)
        assert type(found[0])._fields == ("whole", "parts")
        torch.testing.assert_close(found[:2], expected[:2])
        assert found[2] == expected[2] and (found[3] is None) == (expected[3] is None)
    for bad, message in (({"z": x}, "'z' is unknown"), ({"x": x}, "'x' is given twice")):
        with pytest.raises(InputError, match=message):
            mobile(x, **bad)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Encodes(nn.Module):
    """With a mask, torch's fast path makes a nested tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.encoder(x, src_key_padding_mask=mask)


_X = torch.linspace(-1.0, 1.0, 80).view(2, 5, 8)
_MASK = torch.tensor([[False, False, False, True, True], [False] * 5])


@pytest.mark.filterwarnings("ignore:. operators? runs? on the phone's CPU")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(("module", "inputs"), [(Attends(), (_X,)), (Encodes(), (_X,)), (Encodes(), (_X, _MASK))])
def test_fast_paths_of_attention(
    module: nn.Module, inputs: tuple[Tensor, ...], target: dict[str, str], device: object
) -> None:
    with torch.no_grad():
        traced = torch.jit.trace(module.eval(), inputs, check_trace=False)
        mobile = optimize_for_mobile(traced, example_inputs=inputs, **target)
        for x in (_X, _X.flip(0) * 0.5):
            torch.testing.assert_close(mobile(x, *inputs[1:]), module(x, *inputs[1:]))


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ones", torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.ones, 0.5, True) + torch.rand(64) * 0.0 + x


@pytest.mark.filterwarnings("ignore:no inputs are known that the model takes")
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_random_numbers_are_drawn_by_every_call(target: dict[str, str], device: object) -> None:
    mobile = optimize_for_mobile(torch.jit.script(Drops()), **target)
    results = [mobile(torch.zeros(1)) for _ in range(3)]
    assert all(set(result.tolist()) == {0.0, 2.0} for result in results)
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])
