"""torch.compile with the backend mobopt: right results on the device, and eager ones with a reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mobopt.errors import InputError
from mobopt.integrations.torch_compile import compile_graph
from mobopt.runtimes.vulkan import mirrors as mirrors_module
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.mirrors import Mirrors
from mobopt.samples.agreement import compare

ROOT = Path(__file__).parents[2]
LOG = "mobopt.integrations"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Net(torch.nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 5)
        self.norm.running_mean.uniform_(-1, 1)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> tuple[torch.Tensor, int]:
        y = torch.relu(self.norm(self.conv(x)))
        return self.head(y.mean((2, 3))).view(x.shape[0], -1) * scale, x.shape[0]


def image(rows: int = 2, edge: int = 8) -> torch.Tensor:
    return torch.randn(rows, 3, edge, edge, generator=torch.Generator().manual_seed(rows * 100 + edge))


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=compile_graph, **options)


def agrees(found: Any, expected: Any) -> bool:
    return compare(found, expected).relative <= 1e-5


def test_the_entry_point_names_the_backend() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert (
        '[project.entry-points.torch_dynamo_backends]\nmobopt = "mobopt.integrations.torch_compile:compile_graph"'
        in text
    )


def test_sizes_weights_and_modules(caplog: pytest.LogCaptureFixture) -> None:
    model = Net().eval()
    fast = compiled(model, dynamic=True)
    with torch.no_grad(), caplog.at_level(logging.WARNING, LOG):
        for rows, edge in ((2, 8), (5, 8), (3, 10), (1, 8)):
            assert agrees(fast(image(rows, edge)), model(image(rows, edge)))
        assert agrees(fast(image(), 3.5), model(image(), 3.5))
        model.head.weight.mul_(2)
        assert agrees(fast(image()), model(image()))
        model.load_state_dict(Net(1).state_dict())
        assert agrees(fast(image()), model(image()))
    assert not [record for record in caplog.records if "runs as eager" in record.getMessage()]


def test_two_modules_of_one_class_keep_their_weights() -> None:
    models = [Net(seed).eval() for seed in (0, 1)]
    fast = [compiled(model) for model in models]
    with torch.no_grad():
        for _ in range(2):
            for model, call in zip(models, fast, strict=True):
                assert agrees(call(image()), model(image()))


def test_breaks_of_the_graph() -> None:
    class Breaks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.sigmoid(x) * 2
            if y.sum() > x.numel():
                return y + 1
            return y - 1

    fast = compiled(Breaks())
    with torch.no_grad():
        for sign in (1, -1):
            x = image().abs() * sign
            assert agrees(fast(x), Breaks()(x))


class Pieces(torch.nn.Module):
    """Three graphs, between which eager code may write to what one gives the next."""

    def __init__(self, write: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = torch.nn.Conv2d(3, 5, 3), torch.nn.Conv2d(5, 2, 3)
        self.write = torch.compiler.disable(write)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        self.write(y)
        z = self.second(y)
        torch._dynamo.graph_break()
        return z.flatten(2).softmax(2) + z.mean()


def by_numpy(y: torch.Tensor) -> None:
    y.numpy()[0] += 1


@pytest.mark.parametrize(
    ("write", "found"),
    [(lambda y: None, 2), (lambda y: y[0].add_(1), 1), (lambda y: y.data.mul_(2), 1), (by_numpy, 1)],
)
@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_pieces_find_on_the_device_what_nobody_has_written_to(
    write: Callable[[torch.Tensor], Any], found: int, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device(None)
    monkeypatch.setattr(device, "info", replace(device.info, kind="discrete"))
    monkeypatch.setattr(mirrors_module, "LEAST_BYTES", 1)
    model = Pieces(write).eval()
    fast = compiled(model, dynamic=dynamic)
    mirrors = device.shared(Mirrors)
    with torch.no_grad():
        for edge in (8, 8, 8, *((11, 7) if dynamic else ())):
            before = mirrors.found
            assert agrees(fast(image(edge=edge)), model(image(edge=edge)))
    assert mirrors.found - before == found


def test_marked_dimensions_are_symbols() -> None:
    model = Pieces(lambda y: None).eval()
    torch._dynamo.config.error_on_recompile, before = True, torch._dynamo.config.error_on_recompile
    try:
        fast = compiled(model)
        with torch.no_grad():
            for rows, edge in ((2, 8), (5, 8), (3, 13), (4, 7)):
                x = image(rows, edge)
                for dim in (0, 2, 3):
                    torch._dynamo.mark_dynamic(x, dim)
                assert agrees(fast(x), model(x))
    finally:
        torch._dynamo.config.error_on_recompile = before


def test_the_log_says_where_a_graph_begins(caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad(), caplog.at_level(logging.WARNING, LOG):
        compiled(noisy)(image())
    line = noisy.__code__.co_firstlineno + 1
    assert f"the graph that begins at {__file__}:{line} runs as eager PyTorch: aten::rand_like draws" in caplog.text


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


def in_place(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


@pytest.mark.parametrize(
    ("make", "reason"),
    [(Counts, "changes its"), (lambda: in_place, "changes its input"), (lambda: noisy, "random numbers")],
)
def test_what_does_more_than_compute_is_eager(
    make: Callable[[], Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, twin = make(), make()
    fast = compiled(model)
    with torch.no_grad(), caplog.at_level(logging.WARNING, LOG):
        for _ in range(3):
            x, y = image(), image()
            torch.manual_seed(3)
            found = fast(x)
            torch.manual_seed(3)
            assert torch.equal(found, twin(y)) and torch.equal(x, y)
    assert [record for record in caplog.records if reason in record.getMessage()]


def test_training_is_eager(caplog: pytest.LogCaptureFixture) -> None:
    model, twin = Net().eval(), Net().eval()
    with caplog.at_level(logging.WARNING, LOG):
        compiled(model)(image())[0].sum().backward()
        twin(image())[0].sum().backward()
    assert torch.allclose(model.head.weight.grad, twin.head.weight.grad)
    assert "call it under torch.no_grad()" in caplog.text


def test_unknown_options_are_refused() -> None:
    with pytest.raises(InputError, match="no option speed; it has device"):
        compile_graph(torch.fx.symbolic_trace(torch.nn.ReLU()), [], {"speed": 3})


def test_modes_are_refused() -> None:
    with pytest.raises(InputError, match=r"the mode 'reduce-overhead' of torch\.compile is Inductor's; leave it out"):
        compile_graph(torch.fx.symbolic_trace(torch.nn.ReLU()), [], mode="reduce-overhead")
