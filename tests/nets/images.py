"""Nets that classify, embed, restore or segment images."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch norm and relu."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class RepVGG(nn.Module):
    """Three branches of each block before they are merged, and a pooling stride."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 13, stride=2)
        self.three = nn.Sequential(nn.Conv2d(13, 13, 3, padding=1, bias=False), nn.BatchNorm2d(13))
        self.one = nn.Sequential(nn.Conv2d(13, 13, 1, bias=False), nn.BatchNorm2d(13))
        self.same = nn.BatchNorm2d(13)
        self.head = nn.Linear(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.three(x) + self.one(x) + self.same(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1))


class Res2Net(nn.Module):
    """Channels in pieces, each of which gets the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 20)
        self.parts = nn.ModuleList(_conv(5, 5) for _ in range(3))
        self.merge = _conv(20, 20, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        pieces = torch.split(x, 5, 1)
        found = [pieces[0]]
        last = pieces[0]
        for index, part in enumerate(self.parts):
            last = part(pieces[index + 1] if index == 0 else last + pieces[index + 1])
            found.append(last)
        return self.merge(torch.cat(found, 1)) + x


class CBAM(nn.Module):
    """Attention over channels and over places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 14)
        self.mlp = nn.Sequential(nn.Linear(14, 3), nn.ReLU(), nn.Linear(3, 14))
        self.place = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        mean = self.mlp(torch.mean(x, (2, 3)))
        peak = self.mlp(torch.amax(x, (2, 3)))
        x = x * torch.sigmoid(mean + peak).unsqueeze(2).unsqueeze(3).expand_as(x)
        both = torch.cat((torch.max(x, 1)[0].unsqueeze(1), torch.mean(x, 1).unsqueeze(1)), dim=1)
        return x * torch.sigmoid(self.place(both))


class ECANet(nn.Module):
    """A 1-d convolution over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 11, stride=2)
        self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        weights = self.conv(F.adaptive_avg_pool2d(x, 1).squeeze(-1).transpose(-1, -2))
        return x * weights.transpose(-1, -2).unsqueeze(-1).sigmoid().expand_as(x)


class GhostNet(nn.Module):
    """Cheap maps cut to size, and squeeze-and-excite with a hard sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _conv(3, 6)
        self.cheap = _conv(6, 6, groups=6)
        self.reduce = nn.Conv2d(11, 3, 1)
        self.expand = nn.Conv2d(3, 11, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        y = torch.cat([first, self.cheap(first)], dim=1)[:, :11, :, :]
        scale = self.expand(F.relu(self.reduce(F.adaptive_avg_pool2d(y, (1, 1)))))
        return y * F.relu6(scale + 3.0) / 6.0


class MobileViT(nn.Module):
    """A transformer over the places of a grid of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 10, stride=2)
        self.project = nn.Conv2d(10, 12, 1, bias=False)
        self.layer = nn.TransformerEncoderLayer(12, 3, 24, dropout=0.1, activation="gelu", batch_first=True)
        self.back = _conv(12, 10, 1)
        self.merge = _conv(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.project(x)
        n, c, h, w = y.shape
        y = y.reshape(n * c * (h // 2), 2, w // 2, 2).transpose(1, 2)
        y = y.reshape(n, c, (h // 2) * (w // 2), 4).transpose(1, 3).reshape(n * 4, (h // 2) * (w // 2), c)
        y = self.layer(y)
        y = y.contiguous().view(n, 4, (h // 2) * (w // 2), c).transpose(1, 3)
        y = y.reshape(n * c * (h // 2), w // 2, 2, 2).transpose(1, 2).reshape(n, c, h, w)
        return self.merge(torch.cat((x, self.back(y)), dim=1))


class MLPMixer(nn.Module):
    """Layers over places and over channels in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 9, 4, 4)
        self.norm1, self.norm2 = nn.LayerNorm(9), nn.LayerNorm(9)
        self.tokens = nn.Sequential(nn.Linear(20, 7), nn.GELU(), nn.Linear(7, 20))
        self.channels = nn.Sequential(nn.Linear(9, 13), nn.GELU(), nn.Linear(13, 9))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norm2(x))
        return x.mean(dim=1)


class CoordConv(nn.Module):
    """Two channels with the place of each element."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(5, 7, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        rows = (
            torch.linspace(-1, 1, x.shape[2], device=x.device).view(1, 1, -1, 1).expand(x.shape[0], 1, -1, x.shape[3])
        )
        columns = torch.arange(x.shape[3], device=x.device).to(x.dtype).view(1, 1, 1, -1) / x.shape[3]
        columns = columns.expand(x.shape[0], 1, x.shape[2], -1)
        return F.leaky_relu(self.conv(torch.cat([x, rows, columns], 1)), 0.1)


class ScaledWeights(nn.Module):
    """Convolutions whose weights are standardised when they run."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, 3, 3))
        self.gain = nn.Parameter(torch.ones(8, 1, 1, 1))
        self.norm = nn.GroupNorm(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        deviation = self.weight.std(dim=(1, 2, 3), keepdim=True)
        x = F.conv2d(x, (self.weight - mean) / (deviation + 1e-5) * self.gain, padding=1)
        return F.mish(self.norm(x))


class ArcFace(nn.Module):
    """An embedding of length one, and its cosines to the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(3, 8, stride=2), nn.PReLU(8), nn.Flatten())
        self.bottleneck = nn.Linear(8 * 7 * 6, 12, bias=False)
        self.norm = nn.BatchNorm1d(12)
        self.centers = nn.Parameter(torch.randn(5, 12))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        embedding = F.normalize(self.norm(self.bottleneck(self.body(x))), dim=1)
        return embedding, F.linear(embedding, F.normalize(self.centers)).clamp(-1, 1)


class Siamese(nn.Module):
    """Two inputs through one body, and how far apart they come out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(1, 6, 5, 2), nn.MaxPool2d(2), _conv(6, 10), nn.AdaptiveAvgPool2d(2))
        self.head = nn.Linear(40, 16)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        one = self.head(torch.flatten(self.body(left), 1))
        two = self.head(torch.flatten(self.body(right), 1))
        return torch.sqrt(torch.sum((one - two) ** 2, dim=1) + 1e-6)


class NIMA(nn.Module):
    """The mean of a distribution over grades."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(3, 9, stride=2), nn.AvgPool2d(3, 2, 1), nn.Dropout(0.7))
        self.head = nn.Linear(9, 10)
        self.register_buffer("grades", torch.arange(1, 11).float())

    def forward(self, x: Tensor) -> Tensor:
        grades = torch.softmax(self.head(self.body(x).mean([2, 3])), dim=1)
        return (grades * self.grades).sum(1, keepdim=True)


class ResNetD(nn.Module):
    """A shortcut of average pooling with a rounded-up size, and blur pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 8)
        self.long = nn.Sequential(_conv(8, 8, stride=2), nn.Conv2d(8, 12, 1))
        self.short = nn.Sequential(nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False), nn.Conv2d(8, 12, 1))
        blur = torch.tensor([1.0, 2.0, 1.0])
        self.register_buffer("blur", (blur[:, None] * blur[None, :] / 16).repeat(12, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.relu_(self.long(x) + self.short(x))
        return F.conv2d(F.pad(x, (1, 1, 1, 1), "reflect"), self.blur, stride=2, groups=x.shape[1])


class RealESRGAN(nn.Module):
    """Dense blocks with scaled residuals, and two nearest enlargements."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(12, 8, 3, 1, 1)
        self.dense = nn.ModuleList(nn.Conv2d(8 + 4 * index, 4 if index < 3 else 8, 3, 1, 1) for index in range(4))
        self.up, self.last = nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(F.pixel_unshuffle(x, 2))
        found = [x]
        for index, layer in enumerate(self.dense):
            y = layer(torch.cat(found, 1))
            found.append(F.leaky_relu(y, 0.2) if index < 3 else y)
        x = x + found[-1] * 0.2
        x = F.leaky_relu(self.up(F.interpolate(x, scale_factor=2.0, mode="nearest")), 0.2)
        return self.last(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class CycleGAN(nn.Module):
    """Reflected borders, instance norms and transposed convolutions with output padding."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(3),
            nn.Conv2d(3, 6, 7),
            nn.InstanceNorm2d(6),
            nn.ReLU(True),
            nn.Conv2d(6, 10, 3, stride=2, padding=1),
            nn.InstanceNorm2d(10),
            nn.ReLU(True),
            nn.ConvTranspose2d(10, 6, 3, stride=2, padding=1, output_padding=1),
            nn.InstanceNorm2d(6),
            nn.ReLU(True),
            nn.ReflectionPad2d(3),
            nn.Conv2d(6, 3, 7),
            nn.Tanh(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class VAE(nn.Module):
    """Encoder and decoder with the mean and deviation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 6, 4, 2, 1), nn.ELU(), nn.Conv2d(6, 9, 4, 2, 1), nn.ELU(), nn.Flatten()
        )
        self.stats = nn.Linear(9 * 4 * 4, 10)
        self.back = nn.Linear(5, 9 * 4 * 4)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(9, 6, 4, 2, 1), nn.ELU(), nn.ConvTranspose2d(6, 1, 4, 2, 1))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.stats(self.encoder(x)).chunk(2, dim=1)
        code = mean + noise * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.decoder(self.back(code).view(-1, 9, 4, 4))), mean, log_variance


class PSPNet(nn.Module):
    """Pyramid pooling, resized to the map that it came from."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 12, stride=2)
        self.stages = nn.ModuleList(nn.Sequential(nn.AdaptiveAvgPool2d(n), nn.Conv2d(12, 3, 1)) for n in (1, 2, 3, 6))
        self.head = nn.Conv2d(24, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        size = (y.size(2), y.size(3))
        pyramid = [F.interpolate(stage(y), size=size, mode="bilinear", align_corners=True) for stage in self.stages]
        y = self.head(torch.cat(pyramid + [y], 1))  # noqa: RUF005 (nor unpacking)
        return F.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)


class U2Net(nn.Module):
    """Dilated convolutions, and maps resized to each other's size."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = _conv(3, 8), _conv(8, 8)
        self.three = nn.Sequential(nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.BatchNorm2d(8), nn.ReLU(True))
        self.side = nn.Conv2d(16, 1, 3, padding=1)
        self.pool = nn.MaxPool2d(2, stride=2, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        two = self.two(self.pool(one))
        three = self.three(self.pool(two))
        up = F.interpolate(
            torch.cat((F.interpolate(three, size=two.shape[2:], mode="bilinear"), two), 1), one.shape[2:]
        )
        mask = torch.sigmoid(self.side(up))
        low, high = torch.min(mask), torch.max(mask)
        return (mask - low) / (high - low)


class HRNet(nn.Module):
    """Two resolutions that exchange what they found, and the places of peaks."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = _conv(3, 7), _conv(7, 14, stride=2)
        self.down, self.up = _conv(7, 14, stride=2), _conv(14, 7, 1)
        self.head = nn.Conv2d(21, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.fine(x)
        coarse = self.coarse(fine)
        fine, coarse = fine + F.interpolate(self.up(coarse), scale_factor=2.0), F.relu(coarse + self.down(fine))
        coarse = F.interpolate(coarse, size=(fine.size(2), fine.size(3)), mode="bilinear", align_corners=False)
        maps = self.head(torch.cat([fine, coarse], 1))
        flat = maps.reshape(maps.size(0), 4, -1)
        peak, index = torch.max(flat, 2)
        places = torch.stack((index % maps.size(3), torch.div(index, maps.size(3), rounding_mode="floor")), -1).float()
        return places, peak


class RAFT(nn.Module):
    """A correlation volume of two images, and one image sampled where the flow points."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.InstanceNorm2d(8), nn.ReLU())
        self.flow = nn.Conv2d(48, 2, 3, padding=1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        one, two = self.body(left), self.body(right)
        n, c, h, w = one.shape
        volume = torch.matmul(one.view(n, c, h * w).transpose(1, 2), two.view(n, c, h * w)) / float(c) ** 0.5
        flow = self.flow(volume.view(n, h * w, h, w))
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack([columns, rows], dim=-1).float()[None] + flow.permute(0, 2, 3, 1)
        grid = 2 * grid / torch.tensor([w - 1.0, h - 1.0]) - 1
        return F.grid_sample(two, grid, align_corners=True)


class LeNet(nn.Module):
    """As the tutorial writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(16 * 5 * 5, 20), nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        x = F.dropout(F.relu(self.fc1(x)), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


def _image(*sizes: int) -> Tensor:
    return torch.rand(sizes)


IMAGES = {
    "RepVGG": (RepVGG, lambda: [_image(1, 3, 23, 19)]),
    "Res2Net": (Res2Net, lambda: [_image(1, 3, 17, 13)]),
    "CBAM": (CBAM, lambda: [_image(1, 3, 17, 13)]),
    "ECANet": (ECANet, lambda: [_image(1, 3, 17, 13)]),
    "GhostNet": (GhostNet, lambda: [_image(1, 3, 17, 13)]),
    "MobileViT": (MobileViT, lambda: [_image(1, 3, 16, 24)]),
    "MLPMixer": (MLPMixer, lambda: [_image(1, 3, 16, 20)]),
    "CoordConv": (CoordConv, lambda: [_image(1, 3, 11, 13)]),
    "ScaledWeights": (ScaledWeights, lambda: [_image(1, 3, 11, 13)]),
    "ArcFace": (ArcFace, lambda: [_image(1, 3, 13, 11)]),
    "Siamese": (Siamese, lambda: [_image(1, 1, 31, 29), _image(1, 1, 31, 29)]),
    "NIMA": (NIMA, lambda: [_image(1, 3, 31, 29)]),
    "ResNetD": (ResNetD, lambda: [_image(1, 3, 23, 19)]),
    "RealESRGAN": (RealESRGAN, lambda: [_image(1, 3, 10, 14)]),
    "CycleGAN": (CycleGAN, lambda: [_image(1, 3, 16, 20)]),
    "VAE": (VAE, lambda: [_image(1, 1, 16, 16), torch.randn(1, 5)]),
    "PSPNet": (PSPNet, lambda: [_image(1, 3, 24, 36)]),
    "U2Net": (U2Net, lambda: [_image(1, 3, 21, 27)]),
    "HRNet": (HRNet, lambda: [_image(1, 3, 16, 12)]),
    "RAFT": (RAFT, lambda: [_image(1, 3, 12, 16), _image(1, 3, 12, 16)]),
    "LeNet": (LeNet, lambda: [_image(1, 1, 32, 32)]),
}
