"""A detector of YOLO's kind with its own suppression of overlapping boxes, written with torch alone.

Backbone, pyramid, boxes decoded on a grid, and at the end a loop that keeps the best box and drops what overlaps it:
how often it goes round depends on the elements, which the host reads; what it computes runs on the GPU.

    python examples/yolo.py
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mobopt import optimize_for_mobile


class Convolution(nn.Sequential):
    """With batch norm and SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()
        )


class Stage(nn.Module):
    """Half the channels go through residual blocks, and all that they make is gathered."""

    def __init__(self, inputs: int, outputs: int, count: int = 1) -> None:
        super().__init__()
        half = outputs // 2
        self.first = Convolution(inputs, outputs, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(Convolution(half, half), Convolution(half, half)) for _ in range(count)
        )
        self.last = Convolution(half * (count + 2), outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H, W)."""
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.last(torch.cat(parts, 1))


def suppressed(boxes: Tensor, scores: Tensor, most_overlap: float, most: int) -> Tensor:
    """Indices of the boxes (K, 4: left, top, right, bottom) that are kept, best score first."""
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    order = scores.argsort(descending=True)
    kept: list[Tensor] = []
    while order.numel() > 0 and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(best)
        low, high = torch.maximum(boxes[best, :2], boxes[order, :2]), torch.minimum(boxes[best, 2:], boxes[order, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        order = order[shared <= most_overlap * (area[best] + area[order] - shared)]
    return torch.stack(kept) if len(kept) > 0 else torch.zeros(0, dtype=torch.int64)


class Detector(nn.Module):
    """An image (1, 3, H, W), H and W multiples of 16, to boxes (K, 4), scores (K) and classes (K)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(Convolution(3, width, 3, 2), Convolution(width, width * 2, 3, 2))
        self.fine = nn.Sequential(Stage(width * 2, width * 2), Convolution(width * 2, width * 4, 3, 2))
        self.deep = nn.Sequential(Stage(width * 4, width * 4), Convolution(width * 4, width * 8, 3, 2))
        self.narrow, self.pool = Convolution(width * 8, width * 4, 1), nn.MaxPool2d(5, 1, 2)
        self.gather = Convolution(width * 16, width * 8, 1)
        self.merge = Stage(width * 12, width * 4)
        self.heads = nn.ModuleList(nn.Conv2d(size, 4 + classes, 1) for size in (width * 4, width * 8))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is in the image."""
        fine = self.fine(self.stem(image))
        deep = self.narrow(self.deep(fine))
        pooled = [deep]
        for _ in range(3):
            pooled.append(self.pool(pooled[-1]))
        deep = self.gather(torch.cat(pooled, 1))
        fine = self.merge(torch.cat([fine, F.interpolate(deep, scale_factor=2.0, mode="nearest")], 1))
        found: list[Tensor] = []
        for level, head in enumerate(self.heads):
            x = head(fine if level == 0 else deep)
            rows, columns, stride = x.shape[2], x.shape[3], 8.0 * 2**level
            y, x_grid = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
            x = x[0].flatten(1).t()
            centre, half = torch.stack([x_grid, y], 2).view(-1, 2) + x[:, :2].tanh(), x[:, 2:4].clamp(max=2.0).exp()
            found.append(torch.cat([(centre - half) * stride, (centre + half) * stride, x[:, 4:].sigmoid()], 1))
        every = torch.cat(found)
        scores, classes = every[:, 4:].max(1)
        sure = scores > 0.5
        boxes, scores, classes = every[sure, :4], scores[sure], classes[sure]
        apart = boxes + classes.unsqueeze(1) * 10000.0  # boxes of different classes don't overlap
        kept = suppressed(apart, scores, 0.5, 20)
        return boxes[kept], scores[kept], classes[kept]


def calibrated(model: Detector, image: Tensor) -> Detector:
    """The model with statistics of an image, and with classes that are equally common there: random heads find one."""
    with torch.no_grad():
        for _ in range(20):
            model(image)
        model.eval()
        seen: list[Tensor] = []
        hooks = [head.register_forward_hook(lambda _head, _given, made: seen.append(made)) for head in model.heads]
        model(image)
        for head, hook, made in zip(model.heads, hooks, seen, strict=True):
            hook.remove()
            spread, mean = torch.std_mean(made[0, 4:], (1, 2))
            spread *= 2.0  # scores near one would be too much alike for their order to be told
            head.weight[4:] /= spread[:, None, None, None]
            head.bias[4:] = (head.bias[4:] - mean) / spread
    return model


def main(small: bool = False) -> None:
    """Find things in random images on the device and in eager PyTorch."""
    torch.manual_seed(0)
    width, size = (2, 32) if small else (16, 256)
    images = [F.interpolate(torch.randn(1, 3, 16, 16), size, mode="bicubic") for _ in range(2)]
    model = calibrated(Detector(width, classes=3 if small else 20), images[0])
    script = torch.jit.script(model)  # keeps the loop
    device = optimize_for_mobile(script, backend="vulkan", runtime="mobopt", example_inputs=images[:1])
    for image in images:
        boxes, scores, classes = device(image)
        with torch.no_grad():
            expected = script(image)
        assert classes.equal(expected[2]), f"the device found {classes.tolist()}, eager PyTorch {expected[2].tolist()}"
        torch.testing.assert_close(boxes, expected[0], atol=1e-3, rtol=1e-4)
        print(f"{len(boxes)} boxes, their classes equal to eager PyTorch's: {classes.tolist()}")
        print(f"largest differences: boxes {(boxes - expected[0]).abs().max():.1e} of {size} pixels", end=", ")
        print(f"scores {(scores - expected[1]).abs().max():.1e}")
    print(f"{device.runtime.device.info}: {device.plan_report(images[0])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tiny model")
    main(parser.parse_args().small)
