"""What authors write between layers: attention of many kinds, computed weights, items that are set, odd outputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class ViT(nn.Module):
    """A class token before the patches, and multi-head attention as one module."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 12, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 12)), nn.Parameter(torch.randn(1, 13, 12))
        self.norm, self.attention = nn.LayerNorm(12), nn.MultiheadAttention(12, 3, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head(x[:, 0])


class Decoder(nn.Module):
    """A decoder layer that sees what comes before, and an encoder's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
        self.register_buffer("mask", torch.triu(torch.full((5, 5), float("-inf")), 1))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.layer(x, memory, tgt_mask=self.mask)


class Swin(nn.Module):
    """Shifted windows with a bias by relative place."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.table = nn.Parameter(torch.randn(9, 2))
        y, x = torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")
        y, x = y.flatten(), x.flatten()
        self.register_buffer("index", (y[:, None] - y[None] + 1) * 3 + x[:, None] - x[None] + 1)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        x = torch.roll(x, shifts=(-1, -1), dims=(1, 2))
        x = x.view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.qkv(x).reshape(-1, 4, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(4, 4, -1).permute(2, 0, 1).unsqueeze(0)
        x = (torch.softmax(q * 0.5 @ k.transpose(-2, -1) + bias, -1) @ v).transpose(1, 2).reshape(-1, 4, c)
        x = self.out(x).view(n, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        return torch.roll(x, shifts=(1, 1), dims=(1, 2))


class NonLocal(nn.Module):
    """Every place looks at every other."""

    def __init__(self) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(6, 3, 1) for _ in range(3))
        self.out = nn.Conv2d(3, 6, 1)
        self.gamma = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.size()
        pair = torch.einsum("ncp,ncq->npq", self.theta(x).flatten(2), F.max_pool2d(self.phi(x), 2).flatten(2))
        y = F.max_pool2d(self.g(x), 2).flatten(2) @ pair.softmax(-1).permute(0, 2, 1)
        return self.gamma * self.out(y.view(n, c // 2, h, w)) + x


class SKNet(nn.Module):
    """Branches weighted by a softmax over them."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(5, 6, 3, padding=d, dilation=d) for d in (1, 2))
        self.down = nn.Conv2d(6, 4, 1)
        self.ups = nn.ModuleList(nn.Conv2d(4, 6, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        maps = torch.stack([branch(x) for branch in self.branches], dim=1)
        z = F.relu(self.down(maps.sum(1).mean((2, 3), keepdim=True)))
        weights = torch.stack([up(z) for up in self.ups], dim=1).softmax(1)
        return (maps * weights).sum(dim=1)


class BiFPN(nn.Module):
    """Sums with weights that are kept positive and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([0.3, -0.2, 0.9]))
        self.conv = nn.Conv2d(5, 5, 3, padding=1, groups=5)

    def forward(self, fine: Tensor, coarse: Tensor, deep: Tensor) -> Tensor:
        w = F.relu(self.weights)
        w = w / (torch.sum(w, dim=0) + 1e-4)
        up = F.interpolate(coarse, scale_factor=2.0, mode="nearest")
        return self.conv(F.silu(w[0] * fine + w[1] * up + w[2] * F.max_pool2d(deep, 3, 2, 1)))


class StyleGAN(nn.Module):
    """Convolutions whose weights depend on a style, and noise that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.style = nn.Parameter(torch.randn(5, 6, 3, 3)), nn.Linear(4, 6)
        self.strength = nn.Parameter(torch.tensor([0.1]))

    def forward(self, x: Tensor, code: Tensor, noise: Tensor) -> Tensor:
        weight = self.weight[None] * self.style(code)[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4], keepdim=True) + 1e-8)
        n, _, h, w = x.shape
        y = F.conv2d(x.reshape(1, -1, h, w), weight.reshape(-1, 6, 3, 3), padding=1, groups=n).reshape(n, -1, h, w)
        return F.leaky_relu(y + noise * self.strength, 0.2) * 2**0.5


class AdaIN(nn.Module):
    """The statistics of one image given to another."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv2d(3, 7, 3, padding=1), nn.Conv2d(7, 3, 3, padding=1, padding_mode="reflect")

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        x, y = F.relu(self.encode(content)), F.relu(self.encode(style))
        n, c = x.size()[:2]
        x_std = (x.view(n, c, -1).var(dim=2) + 1e-5).sqrt().view(n, c, 1, 1)
        y_std = (y.view(n, c, -1).var(dim=2) + 1e-5).sqrt().view(n, c, 1, 1)
        x_mean, y_mean = x.view(n, c, -1).mean(dim=2).view(n, c, 1, 1), y.view(n, c, -1).mean(dim=2).view(n, c, 1, 1)
        return self.decode((x - x_mean) / x_std * y_std + y_mean).clamp(0, 1)


class SegNet(nn.Module):
    """Pooling that remembers where its maxima were."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y, places = F.max_pool2d(F.relu(self.down(x)), 2, 2, return_indices=True)
        return self.up(F.max_unpool2d(y, places, 2, 2)).argmax(1)


class SpatialTransformer(nn.Module):
    """An image turned by what a small net says."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2, 2), nn.ReLU(True))
        self.theta = nn.Linear(4 * 4 * 4, 6)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.theta(self.body(x).view(-1, 4 * 4 * 4)).view(-1, 2, 3)
        return F.grid_sample(x, F.affine_grid(theta, list(x.size()), align_corners=False), align_corners=False)


class ConvLSTM(nn.Module):
    """A recurrent cell of convolutions, step by step over a clip."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2 + 3, 4 * 3, 3, padding=1)

    def forward(self, clip: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.zeros(clip.size(0), 3, clip.size(3), clip.size(4))
        memory = torch.zeros_like(hidden)
        outputs = []
        for step in range(clip.size(1)):
            i, f, o, g = torch.split(self.conv(torch.cat([clip[:, step], hidden], dim=1)), 3, dim=1)
            memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(memory)
            outputs.append(hidden)
        return torch.stack(outputs, dim=1), memory


class Involution(nn.Module):
    """Neighbourhoods laid out and weighted by kernels that depend on the place."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Conv2d(4, 9 * 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        kernel = self.kernel(x).view(n, 2, 9, h, w).unsqueeze(2)
        patches = F.unfold(x, 3, padding=1).view(n, 2, c // 2, 9, h, w)
        return (kernel * patches).sum(3).view(n, c, h, w)


class Video(nn.Module):
    """Convolutions over space, then over time."""

    def __init__(self) -> None:
        super().__init__()
        self.space, self.time = (
            nn.Conv3d(3, 5, (1, 3, 3), padding=(0, 1, 1)),
            nn.Conv3d(5, 4, (3, 1, 1), padding=(1, 0, 0)),
        )
        self.norm = nn.BatchNorm3d(5)

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool3d(self.time(F.relu(self.norm(self.space(x)))), 1).flatten(1)


class Scores(NamedTuple):
    """What :class:`Outputs` gives."""

    scores: Tensor
    boxes: list[Tensor]
    best: int


class Outputs(nn.Module):
    """A named tuple of a tensor, a list and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Scores:
        y = self.layer(x)
        scores = y.softmax(-1)
        return Scores(scores, [y[:1] * 2, y[1:]], int(scores[0].argmax()))


class Refine(nn.Module):
    """One block again and again, with channels in another order and items that are set."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(4, 3, 3, padding=1), nn.BatchNorm2d(3, affine=False), nn.Hardswish())
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]))

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, [2, 1, 0]].sub(self.mean[:, None, None]).div(self.std[None, :, None, None])
        mask = torch.zeros_like(x[:, :1])
        mask[:, :, 1:-1, 2:] = 1.0
        for _ in range(3):
            x = x + self.block(torch.cat([x, mask], 1))
            mask[..., 0] += 0.5
        x[:, 0] = x[:, 0] * 2
        return torch.where(x > 0, x, torch.flip(x, dims=[3]) * 0.1)


class EarlyExit(nn.Module):
    """A branch on what was computed, and one on what was given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = F.relu(self.first(x))
        if mask is not None:
            y = y * mask
        if float(y.mean()) > 0.2:
            return y.mean((2, 3))
        return self.second(y).amax((2, 3))


class Norms(nn.Module):
    """Normalisations that are seen more rarely."""

    def __init__(self) -> None:
        super().__init__()
        self.local = nn.LocalResponseNorm(3)
        self.no_statistics = nn.BatchNorm2d(6, track_running_stats=False)
        self.kept = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        self.image = nn.LayerNorm([6, 5, 7])
        self.weighted = nn.utils.parametrizations.weight_norm(nn.Conv2d(6, 6, 3, padding=1))
        self.bounded = nn.utils.parametrizations.spectral_norm(nn.Linear(7, 7))

    def forward(self, x: Tensor) -> Tensor:
        x = self.kept(self.no_statistics(self.local(x)))
        return self.bounded(self.weighted(self.image(x)))


class Activations(nn.Module):
    """Everything that ``torch.nn`` has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Softplus(), nn.Softsign(), nn.CELU(1.3), nn.LogSigmoid(), nn.Threshold(0.1, 0.2), nn.Softshrink(0.2),
                nn.Hardshrink(0.3), nn.RReLU(), nn.SELU(), nn.Mish(), nn.Tanhshrink(), nn.Softmin(1), nn.Hardsigmoid(),
                nn.GELU(), nn.ELU(0.7), nn.ReLU6(), nn.Hardtanh(-0.3, 0.4), nn.PReLU(), nn.LeakyReLU(0.3), nn.SiLU(),
            ]
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        found = torch.zeros_like(x)
        for layer in self.layers:
            found = found + layer(x)
        return found


class Pools(nn.Module):
    """Pooling that is seen more rarely."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LPPool2d(2, 2)
        self.mean = nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=5)
        self.pad = nn.Sequential(nn.ZeroPad2d((1, 2, 0, 1)), nn.ReplicationPad2d(1), nn.CircularPad2d((0, 1, 1, 0)))

    def forward(self, x: Tensor) -> list[Tensor]:
        y = self.pad(x)
        return [
            self.norm(y.abs()),
            self.mean(y),
            F.adaptive_max_pool2d(y, (3, 2)),
            F.max_pool2d(y, (3, 1), (2, 1), (1, 0)),
        ]


class Resizes(nn.Module):
    """Changes of size of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 4, 4, 2, 1, groups=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.interpolate(self.up(x), scale_factor=1.5, mode="bilinear", align_corners=False)
        y = F.interpolate(y, size=(9, 8), mode="area") + F.interpolate(y, size=(9, 8), mode="bicubic")
        return y + F.interpolate(x, (9, 8), mode="nearest-exact") + F.interpolate(x, (9, 8), mode="nearest")


class Products(nn.Module):
    """Products in every notation."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.bias = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(4))
        self.bilinear = nn.Bilinear(4, 4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one = torch.addmm(self.bias, x, self.matrix, beta=0.5, alpha=2.0)
        two = torch.einsum("bi,ij->bj", y, self.matrix)
        outer = torch.bmm(one.unsqueeze(2), two.unsqueeze(1)).flatten(1)
        three = torch.tensordot(x, self.matrix, dims=1).addcmul(one, two, value=0.3)
        near = F.cosine_similarity(one, two, dim=1, eps=1e-6) + F.pairwise_distance(one, two)
        return torch.cat([outer, self.bilinear(one, three), near[:, None], torch.cumsum(three, 1)], 1)


def _image(*sizes: int) -> Tensor:
    return torch.rand(sizes)


IDIOMS = {
    "ViT": (ViT, lambda: [_image(1, 3, 12, 16)]),
    "Decoder": (Decoder, lambda: [torch.randn(1, 5, 8), torch.randn(1, 7, 8)]),
    "Swin": (Swin, lambda: [torch.randn(1, 4, 6, 8)]),
    "NonLocal": (NonLocal, lambda: [_image(1, 6, 6, 8)]),
    "SKNet": (SKNet, lambda: [_image(1, 5, 7, 9)]),
    "BiFPN": (BiFPN, lambda: [_image(1, 5, 8, 6), _image(1, 5, 4, 3), _image(1, 5, 16, 12)]),
    "StyleGAN": (StyleGAN, lambda: [_image(1, 6, 7, 5), torch.randn(1, 4), torch.randn(1, 1, 7, 5)]),
    "AdaIN": (AdaIN, lambda: [_image(1, 3, 9, 7), _image(1, 3, 8, 10)]),
    "SegNet": (SegNet, lambda: [_image(1, 3, 8, 10)]),
    "SpatialTransformer": (SpatialTransformer, lambda: [_image(1, 1, 12, 12)]),
    "ConvLSTM": (ConvLSTM, lambda: [_image(1, 3, 2, 5, 7)]),
    "Involution": (Involution, lambda: [_image(1, 4, 5, 7)]),
    "Video": (Video, lambda: [_image(1, 3, 4, 7, 5)]),
    "Outputs": (Outputs, lambda: [torch.randn(3, 6)]),
    "Refine": (Refine, lambda: [_image(1, 3, 7, 9)]),
    "EarlyExit": (EarlyExit, lambda: [_image(1, 3, 9, 7), _image(1, 1, 7, 5)]),
    "Norms": (Norms, lambda: [_image(1, 6, 5, 7)]),
    "Activations": (Activations, lambda: [torch.randn(1, 5, 7, 3)]),
    "Pools": (Pools, lambda: [_image(1, 3, 9, 8)]),
    "Resizes": (Resizes, lambda: [_image(1, 4, 5, 7)]),
    "Products": (Products, lambda: [torch.randn(3, 5), torch.randn(3, 5)]),
}
