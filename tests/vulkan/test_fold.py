"""Windows of images as rows, and rows laid over images again, beside torch: taps, steps, edges, strides, sizes."""

from __future__ import annotations

import pytest
import torch
from harness import check_op
from torch import Tensor, nn
from torch.nn import functional

from mobopt import optimize_for_mobile
from mobopt.ir import Graph, Node, Value, print_graph
from mobopt.runtimes.vulkan.compile.decompose import decompose
from mobopt.runtimes.vulkan.decompositions.registry import load_decompositions
from mobopt.runtimes.vulkan.lowerings.registry import load_lowerings, why_unsupported

load_lowerings()
load_decompositions()

_RANDOM = torch.Generator().manual_seed(0)
# kernel_size, dilation, padding, stride of images of 13 x 17
WINDOWS = [
    ([3, 3], [1, 1], [1, 1], [2, 2]),
    ([3, 2], [2, 1], [0, 3], [1, 5]),
    ([1, 7], [1, 2], [2, 0], [3, 1]),
    ([5, 4], [3, 5], [6, 7], [7, 2]),
    ([13, 17], [1, 1], [0, 0], [1, 1]),
]


def _randn(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=_RANDOM)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("channels", [1, 5, 8])
def test_fold(any_device, channels, window):
    rows = functional.unfold(_randn(2, channels, 13, 17), *window)
    rows = torch.where(rows == 0, rows, _randn(*rows.shape))
    check_op(any_device, "aten::col2im", rows, [13, 17], *window, relative=2e-7)
    check_op(any_device, "aten::col2im", rows.mT.contiguous().mT, [13, 17], *window, relative=2e-7)
    check_op(any_device, "aten::col2im", rows[1], [13, 17], *window, relative=2e-7)


def test_sums_are_those_of_torch(any_device):
    """In its order, so no bit differs."""
    rows = _randn(1, 4 * 49, 7 * 11) * torch.logspace(-6, 6, 77)
    check_op(any_device, "aten::col2im", rows, [7, 11], [7, 7], [1, 1], [3, 3], [1, 1], relative=0.0)


def test_what_is_not_finite_stays_in_its_places(any_device):
    rows = _randn(1, 9 * 3, 35)
    rows[0, 4, 8], rows[0, 13, 20], rows[0, 26, 34] = torch.nan, torch.inf, -torch.inf
    check_op(any_device, "aten::col2im", rows, [5, 7], [3, 3], [1, 1], [1, 1], [1, 1])


class Windows(nn.Module):
    """As VOLO's attention over windows (L. Yuan et al., 2021) takes them apart and puts them together."""

    def __init__(self, window: tuple[list[int], ...]) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = functional.unfold(x, *self.window)
        return rows, functional.fold(rows.softmax(1), x.shape[-2:], *self.window)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("window", WINDOWS)
def test_modules(window, precision):
    for x in (_randn(2, 5, 13, 17), _randn(3, 13, 17), _randn(1, 8, 13, 17).to(memory_format=torch.channels_last)):
        model = Windows(window).eval()
        options = {} if precision == "fp32" else {"precision": precision}
        module = optimize_for_mobile(model, example_inputs=(x,), backend="vulkan", runtime="mobopt", **options)
        bound = 1e-6 if precision == "fp32" else 2e-3
        for found, wanted in zip(module(x), model(x), strict=True):
            torch.testing.assert_close(found, wanted, rtol=bound, atol=bound * float(wanted.abs().max()))
        report = module.plan_report(x)
        assert not report.fallbacks
        assert report.dispatches <= 6  # a copy for each of the results, beside pads, windows, softmax and sums


def test_sizes_that_are_open():
    model = Windows(WINDOWS[0]).eval()
    high, wide = torch.export.Dim("high", min=5, max=99), torch.export.Dim("wide", min=5, max=99)
    exported = torch.export.export(model, (_randn(1, 4, 13, 17),), dynamic_shapes=({2: high, 3: wide},))
    module = optimize_for_mobile(exported, backend="vulkan", runtime="mobopt")
    for sizes in ((13, 17), (7, 23), (14, 6), (13, 17)):
        x = _randn(1, 4, *sizes)
        torch.testing.assert_close(module(x), model(x))


def test_text_of_windows() -> None:
    graph = Graph()
    x, output = Value.of_tensor(torch.float32, (2, 3, 13, 17)), Value.of_tensor(torch.float32, (2, 18, 45))
    x.name = "x"
    graph.block.add_parameter(x)
    graph.block.append(Node.call("aten::im2col", (x, *WINDOWS[1]), [output]))
    graph.block.returns.set_inputs([output])
    decompose(graph)
    assert print_graph(graph).splitlines()[1:-1] == [
        "  %0 : Float(2, 3, 13, 23) = aten::constant_pad_nd(%x, [3, 3, 0, 0], 0.0)",
        "  %1 : Float(2, 3, 9, 23, 5) = aten::unfold(%0, 2, 5, 1)",
        "  %2 : Float(2, 3, 9, 5, 5, 2) = aten::unfold(%1, 3, 2, 5)",
        "  %3 : Float(2, 3, 9, 5, 3, 2) = aten::slice.Tensor(%2, 4, None, None, 2)",
        "  %4 : Float(2, 3, 9, 5, 3, 2) = aten::slice.Tensor(%3, 5, None, None, 1)",
        "  %5 : Float(2, 3, 3, 2, 9, 5) = aten::permute(%4, [0, 1, 4, 5, 2, 3])",
        "  %6 : Float(2, 18, 45) = aten::reshape(%5, [2, 18, 45])",
    ]


def test_what_is_left_to_others() -> None:
    """Windows of more taps than a dispatch may walk over."""
    call = (Value.of_tensor(torch.float32, (1, 70 * 90, 1)), [70, 90], [70, 90], [1, 1], [0, 0], [1, 1])
    reason = why_unsupported(Node.call("aten::col2im", call, (Value.of_tensor(torch.float32, (1, 1, 70, 90)),)))
    assert reason is not None and "[70, 90]" in reason
