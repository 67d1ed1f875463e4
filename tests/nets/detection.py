"""Nets that find objects, faces and text in images."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def _silu(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm and SiLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3),
        nn.SiLU(),
    )


class YOLOv5(nn.Module):
    """Pooling pyramid, enlargement, and boxes decoded on a grid of anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = _silu(3, 8, 6, 2), _silu(8, 12, 3, 2)
        self.before, self.after = _silu(12, 6, 1), _silu(24, 12, 1)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.up = nn.Upsample(None, 2, "nearest")
        self.heads = nn.ModuleList([nn.Conv2d(20, 3 * 7, 1), nn.Conv2d(12, 3 * 7, 1)])
        self.register_buffer("anchors", torch.tensor([[[10, 13], [16, 30], [33, 23]], [[30, 61], [62, 45], [59, 119]]]))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.stem(x)
        y = self.before(self.deep(fine))
        one = self.pool(y)
        two = self.pool(one)
        deep = self.after(torch.cat([y, one, two, self.pool(two)], 1))
        up = F.pad(self.up(deep), [0, fine.shape[3] - 2 * deep.shape[3], 0, fine.shape[2] - 2 * deep.shape[2]])
        levels = [torch.cat([fine, up], 1), deep]
        found = []
        for index, head in enumerate(self.heads):
            z = head(levels[index])
            n, _, rows, columns = z.shape
            z = z.view(n, 3, 7, rows, columns).permute(0, 1, 3, 4, 2).contiguous().sigmoid()
            y_grid, x_grid = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
            grid = torch.stack((x_grid, y_grid), 2).expand((1, 3, rows, columns, 2)).float() - 0.5
            center = (z[..., 0:2] * 2 + grid) * (2 * 2**index)
            size = (z[..., 2:4] * 2) ** 2 * self.anchors[index].view(1, 3, 1, 1, 2)
            found.append(torch.cat((center, size, z[..., 4:]), 4).view(n, -1, 7))
        return torch.cat(found, 1)


class YOLOv8(nn.Module):
    """Blocks that split and gather, and sides of boxes as means of distributions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = _silu(3, 8, 3, 2), _silu(8, 12, 1)
        self.blocks = nn.ModuleList(nn.Sequential(_silu(6, 6), _silu(6, 6)) for _ in range(2))
        self.last = _silu(24, 12, 1)
        self.box, self.kind = nn.Conv2d(12, 4 * 8, 1), nn.Conv2d(12, 5, 1)
        self.mean = nn.Conv2d(8, 1, 1, bias=False).requires_grad_(False)
        self.mean.weight.data[:] = torch.arange(8.0).view(1, 8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = list(self.first(self.stem(x)).chunk(2, 1))
        for block in self.blocks:
            found.append(found[-1] + block(found[-1]))
        y = self.last(torch.cat(found, 1))
        n, _, rows, columns = y.shape
        both = torch.cat((self.box(y), self.kind(y)), 1).view(n, 37, -1)
        box, kind = both.split((32, 5), 1)
        sides = self.mean(box.view(n, 4, 8, rows * columns).transpose(2, 1).softmax(1)).view(n, 4, rows * columns)
        left_top, right_bottom = sides.chunk(2, 1)
        y_grid, x_grid = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
        points = torch.stack((x_grid, y_grid), 0).view(1, 2, -1)
        low, high = points - left_top, points + right_bottom
        return torch.cat((torch.cat(((low + high) / 2, high - low), 1) * 2, kind.sigmoid()), 1)


class YOLOX(nn.Module):
    """Every second row and column as channels, and separate heads."""

    def __init__(self) -> None:
        super().__init__()
        self.focus = _silu(12, 9)
        self.regress, self.object, self.kind = nn.Conv2d(9, 4, 1), nn.Conv2d(9, 1, 1), nn.Conv2d(9, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat((x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]), dim=1)
        y = self.focus(y)
        y = torch.cat([self.regress(y), self.object(y).sigmoid(), self.kind(y).sigmoid()], 1)
        y = y.flatten(start_dim=2).permute(0, 2, 1)
        return torch.cat([y[..., :2] * 2, torch.exp(y[..., 2:4]) * 2, y[..., 4:]], dim=-1)


class SSDLite(nn.Module):
    """Several maps, each with its priors."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU6())
        self.extra = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1, groups=8), nn.ReLU6(), nn.Conv2d(8, 12, 1), nn.ReLU6())
        self.kinds = nn.ModuleList([nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(12, 6, 3, padding=1)])
        self.boxes = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(12, 8, 3, padding=1)])
        self.register_buffer("priors", torch.rand(2 * (8 * 6 + 4 * 3), 4) + 0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = [self.base(x)]
        maps.append(self.extra(maps[0]))
        kinds, boxes = [], []
        for index, layer in enumerate(self.kinds):
            kinds.append(layer(maps[index]).permute(0, 2, 3, 1).contiguous().view(x.size(0), -1, 3))
        for index, layer in enumerate(self.boxes):
            boxes.append(layer(maps[index]).permute(0, 2, 3, 1).contiguous().view(x.size(0), -1, 4))
        box = torch.cat(boxes, 1)
        center = box[..., :2] * 0.1 * self.priors[:, 2:] + self.priors[:, :2]
        size = torch.exp(box[..., 2:] * 0.2) * self.priors[:, 2:]
        corners = torch.cat([center - size / 2, center + size / 2], dim=-1)
        return F.softmax(torch.cat(kinds, 1), dim=2), corners


class BlazeFace(nn.Module):
    """Padding on two sides only, of places and of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 10, 5, stride=2, padding=0)
        self.deep = nn.Sequential(nn.Conv2d(10, 10, 3, 2, groups=10), nn.Conv2d(10, 14, 1))
        self.pool = nn.MaxPool2d(2, 2)
        self.score, self.box = nn.Conv2d(14, 2, 1), nn.Conv2d(14, 16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(self.stem(F.pad(x, (1, 2, 1, 2), "constant", 0.0)))
        short = F.pad(self.pool(y), (0, 0, 0, 0, 0, 4), "constant", 0.0)
        y = F.relu(self.deep(F.pad(y, (0, 2, 0, 2), "constant", 0.0)) + short)
        score = self.score(y).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 1)
        return score.clamp(-100.0, 100.0).sigmoid(), self.box(y).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 8)


class MTCNN(nn.Module):
    """Pooling with rounded-up sizes, and softmax over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 10, 3),
            nn.PReLU(10),
            nn.MaxPool2d(2, 2, ceil_mode=True),
            nn.Conv2d(10, 16, 3),
            nn.PReLU(16),
            nn.Conv2d(16, 32, 3),
            nn.PReLU(32),
        )
        self.kind, self.box = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body((x - 127.5) * 0.0078125)
        return self.box(y), F.softmax(self.kind(y), dim=1)


class FPN(nn.Module):
    """Maps of three scales, given as a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([_silu(3, 6, 3, 2), _silu(6, 9, 3, 2), _silu(9, 12, 3, 2)])
        self.inner = nn.ModuleList(nn.Conv2d(width, 5, 1) for width in (6, 9, 12))
        self.layer = nn.Conv2d(5, 5, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        last = self.inner[2](maps[2])
        found = {"coarse": self.layer(last)}
        last = self.inner[1](maps[1]) + F.interpolate(last, size=maps[1].shape[-2:], mode="nearest")
        found["middle"] = self.layer(last)
        last = self.inner[0](maps[0]) + F.interpolate(last, size=maps[0].shape[-2:], mode="nearest")
        found["fine"] = self.layer(last)
        found["pool"] = F.max_pool2d(found["coarse"], 1, 2, 0)
        return found


class CenterNet(nn.Module):
    """Peaks of a map by pooling, and the values at the best of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _silu(3, 8, 3, 2)
        self.heat, self.size = nn.Conv2d(8, 3, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.body(x)
        heat = torch.sigmoid(self.heat(y))
        heat = heat * (F.max_pool2d(heat, 3, stride=1, padding=1) == heat).float()
        scores, places = torch.topk(heat.flatten(1), 5)
        sizes = self.size(y).flatten(2).permute(0, 2, 1)
        places = places % sizes.shape[1]
        return scores, places, sizes.gather(1, places.unsqueeze(2).expand(-1, -1, 2))


class DBNet(nn.Module):
    """A map of text and its steep threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _silu(3, 9, 3, 2)

        def head() -> nn.Sequential:
            return nn.Sequential(
                nn.ConvTranspose2d(9, 9, 2, 2),
                nn.BatchNorm2d(9),
                nn.ReLU(),
                nn.ConvTranspose2d(9, 1, 2, 2),
                nn.Sigmoid(),
            )

        self.map, self.threshold = head(), head()

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.body(x))
        shrunk, threshold = self.map(y), self.threshold(y)
        return torch.cat((shrunk, threshold, torch.reciprocal(1 + torch.exp(-50 * (shrunk - threshold)))), dim=1)


class Mask(nn.Module):
    """Masks as products of prototypes and coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _silu(3, 8, 3, 2)
        self.prototypes, self.coefficients = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 6, 3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        prototypes = F.relu(self.prototypes(y)).permute(0, 2, 3, 1)
        coefficients = torch.tanh(self.coefficients(y)).flatten(2)[0]
        masks = torch.sigmoid(torch.matmul(prototypes[0], coefficients))
        return (masks > 0.5).to(torch.float32) * masks


def _image(*sizes: int) -> list[Tensor]:
    return [torch.rand(sizes)]


DETECTION = {
    "YOLOv5": (YOLOv5, lambda: _image(1, 3, 32, 40)),
    "YOLOv8": (YOLOv8, lambda: _image(1, 3, 20, 28)),
    "YOLOX": (YOLOX, lambda: _image(1, 3, 18, 26)),
    "SSDLite": (SSDLite, lambda: _image(1, 3, 16, 12)),
    "BlazeFace": (BlazeFace, lambda: _image(1, 3, 32, 24)),
    "MTCNN": (MTCNN, lambda: [torch.rand(1, 3, 23, 27) * 255]),
    "FPN": (FPN, lambda: _image(1, 3, 40, 34)),
    "CenterNet": (CenterNet, lambda: _image(1, 3, 22, 18)),
    "DBNet": (DBNet, lambda: _image(1, 3, 16, 20)),
    "Mask": (Mask, lambda: _image(1, 3, 24, 20)),
}
