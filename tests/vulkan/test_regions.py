"""Means of samples on regions of images, beside the CPU's kernel."""

from __future__ import annotations

import pytest
import torch
from harness import assert_close, run_op

from mobopt.ir import Node, Value
from mobopt.runtimes.cpu.vision import VISION_KERNELS
from mobopt.runtimes.vulkan.lowerings.registry import why_unsupported

ROI_ALIGN = "torchvision::roi_align"
REGIONS = torch.tensor(
    [
        [0, 3.0, 5.0, 31.0, 40.0],
        [2, -9.0, -3.0, 60.0, 17.0],
        [1, 7.0, 7.0, 7.0, 7.0],
        [2, 20.0, 30.0, 4.0, 11.0],
        [0, 500.0, -800.0, 900.0, 2.0],
    ]
)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("ratio", "scale"), [(1, 0.25), (2, 0.3), (3, 1.0)])
def test_as_on_the_cpu(any_device, ratio, scale, aligned):
    images = torch.randn(3, 5, 13, 11, generator=torch.Generator().manual_seed(0))
    turned = torch.cat([REGIONS, REGIONS]).t().contiguous().t()[::2]
    for given, regions in ((images, REGIONS), (images.mT.contiguous().mT, turned), (images[:, :1], REGIONS)):
        arguments = (given, regions, scale, 7, 3, ratio, aligned)
        expected = VISION_KERNELS[ROI_ALIGN](*arguments)
        assert expected.abs().amax((1, 2, 3)).count_nonzero() >= 3
        for layout in (True, False):
            [found] = run_op(any_device, ROI_ALIGN, *arguments, device_layout=layout)
            assert_close(found, expected, 1e-5)


def test_no_regions(any_device):
    [found] = run_op(any_device, ROI_ALIGN, torch.rand(1, 3, 5, 5), torch.zeros(0, 5), 1.0, 7, 7, 2, False)
    assert found.shape == (0, 3, 7, 7)


@pytest.mark.parametrize(
    ("dtype", "sizes", "ratio", "words"),
    [
        (torch.float32, (1, 3, 5, 5), 0, "which elements decide"),
        (torch.float16, (1, 3, 5, 5), 2, "float16"),
        (torch.float32, (1, 3, 0, 5), 2, "no image"),
        (torch.float32, (1, 3, 5, 5), 1000, "1000 x 1000 samples"),
    ],
)
def test_what_is_left_to_the_cpu(dtype, sizes, ratio, words):
    images, regions = Value.of_tensor(dtype, sizes), Value.of_tensor(dtype, (4, 5))
    output = Value.of_tensor(dtype, (4, 3, 7, 7))
    reason = why_unsupported(Node.call(ROI_ALIGN, (images, regions, 1.0, 7, 7, ratio, False), (output,)))
    assert reason is not None and words in reason
