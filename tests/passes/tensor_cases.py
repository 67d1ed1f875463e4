"""Calls of pointwise operators, reductions, shapes and indexing that the tests of their rewrites share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def rand(*sizes: int) -> torch.Tensor:
    """The same numbers for the same sizes."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def case(call: Callable[..., Any], *inputs: torch.Tensor) -> Case:
    """A call and its inputs."""
    return call, inputs


X = rand(1, 6, 7, 5)
BATCH = rand(3, 6, 7, 5)
LINE = rand(3, 5, 7)
ROWS = rand(7, 5)
POSITIVE = X.abs() + 0.01
EXTREME = torch.tensor([-100.0, -40, -20, -6.1, -3, -1, -1e-3, -0.0, 0, 1e-3, 1, 2, 5.9, 6.1, 17, 20, 40, 88]).reshape(
    1, 6, 3, 1
)
"""Where exponentials vanish or grow beyond all others; exp(88) is the last that is finite."""
MASK = rand(7, 5) > 0
CAUSAL = torch.ones(7, 7).triu(1) > 0
SCALES = rand(6, 1, 1)

ACTIVATIONS: dict[str, Case] = {
    "silu": case(functional.silu, EXTREME),
    "gelu": case(functional.gelu, EXTREME),
    "gelu tanh": case(lambda x: functional.gelu(x, approximate="tanh"), EXTREME),
    "erf": case(torch.erf, EXTREME),
    "mish": case(functional.mish, EXTREME),
    "elu": case(lambda x: functional.elu(x, 1.3), EXTREME),
    "selu": case(functional.selu, EXTREME),
    "celu": case(lambda x: functional.celu(x, 0.7), EXTREME),
    "prelu": case(nn.PReLU(6), X),
    "prelu of rows": case(nn.PReLU(5), ROWS),
    "prelu of one weight": case(nn.PReLU(), X),
    "softplus": case(lambda x: functional.softplus(x, 2.0), EXTREME),
    "log_sigmoid": case(functional.logsigmoid, EXTREME),
    "softshrink": case(functional.softshrink, X),
    "softsign": case(functional.softsign, EXTREME),
    "tanhshrink": case(functional.tanhshrink, X),
    "threshold": case(lambda x: functional.threshold(x, 1.0, 0.7), EXTREME),
}

UNARY: dict[str, Case] = {
    "abs": case(torch.abs, EXTREME),
    "exp": case(torch.exp, X * 3),
    "expm1": case(torch.expm1, X * 1e-3),
    "neg": case(lambda x: -x, X),
    "square": case(torch.square, X),
    "sign": case(torch.sign, EXTREME),
    "reciprocal": case(torch.reciprocal, POSITIVE),
    "rsqrt": case(torch.rsqrt, POSITIVE),
    "sqrt": case(torch.sqrt, POSITIVE),
    "log": case(torch.log, POSITIVE),
    "log2": case(torch.log2, POSITIVE),
    "log1p": case(torch.log1p, POSITIVE),
    "pow 2": case(lambda x: x**2, X),
    "pow 7": case(lambda x: x**7, X),
    "pow -3": case(lambda x: x**-3, POSITIVE),
    "pow 0.5": case(lambda x: x**0.5, POSITIVE),
    "pow -0.5": case(lambda x: x**-0.5, POSITIVE),
    "clamp_min": case(lambda x: x.clamp_min(0.1), X),
    "clamp_max": case(lambda x: x.clamp_max(0.1), X),
}

BINARY: dict[str, Case] = {
    "1 - x": case(lambda x: 1 - x, X),
    "rsub of tensors": case(lambda x, y: torch.rsub(x, y, alpha=2), X, POSITIVE),
    "maximum": case(torch.maximum, EXTREME, 1 - EXTREME),
    "max of far apart": case(torch.max, X * 1e-3, X * 1e6),
    "minimum of a batch": case(torch.minimum, BATCH, X * 0.5),
    "maximum of infinities": case(torch.maximum, BATCH / (BATCH.abs() > 0.5), BATCH.flip(-1)),
    "minimum of infinite rows": case(torch.minimum, ROWS, ROWS[:1] / (ROWS[:1].abs() > 0.5)),
    "maximum of vectors": case(torch.maximum, rand(7), rand(7) - 0.5),
    "maximum with a number": case(lambda x: torch.maximum(x, torch.tensor(0.1)), X),
    "clamp by tensors": case(lambda x, y: torch.clamp(x, y - 1, y + 1), X, X * 0.3),
    "number first": case(lambda x: torch.tensor(2.0) - x, X),
    "number divided": case(lambda x: torch.tensor(2.0) / x, POSITIVE),
    "number first, scaled": case(lambda x: torch.sub(torch.tensor(2.0), x, alpha=3), X),
    "product of a number": case(lambda x: torch.mul(torch.tensor(2.0), x), X),
    "number in a tensor": case(lambda x: torch.add(x, torch.tensor(2.0), alpha=3), X),
    "channel weights": case(lambda x: x * SCALES + SCALES, X),
    "channel weights of a batch": case(lambda x: x * SCALES, BATCH),
    "gate of one channel": case(lambda x, y: x * y, X, rand(1, 1, 7, 5)),
    "gate of a batch": case(lambda x, y: x * y, BATCH, rand(3, 1, 7, 5)),
    "gate of channels": case(lambda x, y: x * y, BATCH, rand(3, 6, 1, 1)),
    "one for a batch": case(lambda x, y: x - y, BATCH, X),
    "rows and columns": case(lambda x, y: x - y, rand(1, 6, 1, 5), rand(1, 6, 7, 1)),
    "smaller first": case(lambda x, y: x - y, rand(1, 6, 7, 1), X),
    "smaller first, alpha": case(lambda x, y: torch.add(x, y, alpha=2), rand(1, 6, 7, 1), X),
    "other rank": case(lambda x, y: x + y, rand(6, 7, 5), BATCH),
    "vector": case(lambda x, y: x + y, X, rand(5)),
    "quotient": case(lambda x, y: x / y, X, POSITIVE),
    "quotient of a constant": case(lambda x: x / (SCALES.abs() + 0.1), X),
    "lerp": case(lambda x, y: torch.lerp(x, y, 0.3), X, rand(1, 1, 7, 5)),
    "addcmul": case(lambda x, y: torch.addcmul(x, x, y, value=0.3), X, POSITIVE),
    "addcdiv": case(lambda x, y: torch.addcdiv(x, x, y, value=0.3), X, POSITIVE),
    "masked_fill": case(lambda x: x.masked_fill(MASK, 3.5), X),
    "masked_fill -inf": case(lambda x: x.masked_fill(CAUSAL, -math.inf).softmax(-1), rand(1, 3, 7, 7)),
    "where": case(lambda x, y: torch.where(MASK, x, y), X, POSITIVE),
    "where or a number": case(lambda x: torch.where(MASK, x, torch.tensor(0.5)), X),
}

REDUCTIONS: dict[str, Case] = {
    "softmax of channels": case(lambda x: x.softmax(-3), X),
    "softmax of a batch": case(lambda x: x.softmax(1), BATCH),
    "softmax of widths": case(lambda x: x.softmax(-1), BATCH),
    "softmax of rows": case(lambda x: x.softmax(1), ROWS),
    "softmax of large numbers": case(lambda x: x.softmax(1), 300 * X),
    "softmax of large rows": case(lambda x: x.softmax(-1), 300 * ROWS),
    "softmax of a gate": case(lambda x: x.sigmoid().softmax(1), X),
    "softmax of columns": case(lambda x: x.log_softmax(0), ROWS),
    "log_softmax of large numbers": case(lambda x: x.log_softmax(1), 300 * BATCH),
    "log_softmax of widths": case(lambda x: x.log_softmax(-1), 30 * X),
    "softmax of a vector": case(lambda x: x.softmax(0), rand(7)),
    "softmax of 3 dimensions": case(lambda x: x.softmax(1), LINE),
    "mean of channels": case(lambda x: x.mean(1), BATCH),
    "mean of three": case(lambda x: x.mean([1, 2, 3], True), BATCH),
    "mean of all": case(lambda x: x.mean([0, 1, 2, 3], True), BATCH),
    "mean of rows": case(lambda x: x.mean([0]), ROWS),
    "mean of a vector": case(lambda x: x.mean(-1, True), rand(7)),
    "mean of batch and width": case(lambda x: x.mean([0, -1]), BATCH),
    "sum of channels": case(lambda x: x.sum(1), BATCH),
    "sum of negative dimensions": case(lambda x: x.sum([-1, -2]), BATCH),
    "sum of 3 dimensions": case(lambda x: x.sum([0, 2], True), LINE),
    "var": case(lambda x: x.var([2, 3]), BATCH),
    "var with correction": case(lambda x: torch.var(x, [1], correction=0), X),
    "std": case(lambda x: x.std([2, 3], keepdim=True), BATCH),
    "var_mean": case(lambda x: torch.var_mean(x, [1], unbiased=False), X),
    "std_mean": case(lambda x: torch.std_mean(x, [0, 2], correction=2), LINE),
    "amax": case(lambda x: x.amax([2, 3]), BATCH),
    "amin": case(lambda x: x.amin(1, True), BATCH),
    "max of a dimension": case(lambda x: x.max(1)[0], BATCH),
    "normalize": case(lambda x: functional.normalize(x, dim=1), X),
    "norm 1": case(lambda x: x.norm(1, dim=1), X),
    "norm inf": case(lambda x: torch.linalg.vector_norm(x, math.inf, dim=(2, 3)), X),
    "logsumexp": case(lambda x: x.logsumexp(1), BATCH * 50),
    "cumsum of channels": case(lambda x: x.cumsum(1), BATCH),
    "cumsum of rows": case(lambda x: x.cumsum(-1), ROWS),
}

JOINS: dict[str, Case] = {
    "cat with an empty cache": case(lambda x: torch.cat([NOTHING, x, x], -2), BATCH),
    "cat of an empty cache and one": case(lambda x: torch.cat([NOTHING, x.relu()], -2), BATCH),
    "cat of batches": case(lambda x, y: torch.cat([x, y], 0), X, BATCH),
    "cat of channels of batches": case(lambda x, y: torch.cat([x, y], 1), BATCH, rand(3, 5, 7, 5)),
    "cat of channels from the end": case(lambda x, y: torch.cat([x, y], -3), X, rand(1, 5, 7, 5)),
    "cat of widths": case(lambda x, y: torch.cat([x, y], 3), BATCH, rand(3, 6, 7, 2)),
    "cat of vectors": case(lambda x, y: torch.cat([x, y], 0), rand(3), rand(5)),
    "cat of rows": case(lambda x, y: torch.cat([x, y], 0), ROWS, rand(2, 5)),
    "cat of columns": case(lambda x, y: torch.cat([x, y], 1), ROWS, rand(7, 2)),
    "cat of 3 dimensions, 0": case(lambda x, y: torch.cat([x, y], 0), LINE, rand(2, 5, 7)),
    "cat of 3 dimensions, 1": case(lambda x, y: torch.cat([x, y], 1), LINE, rand(3, 2, 7)),
    "cat of 3 dimensions, 2": case(lambda x, y: torch.cat([x, y], 2), LINE, rand(3, 5, 2)),
    "stack": case(lambda x, y: torch.stack([x, y], 1), LINE, LINE + 1),
    "stack last": case(lambda x, y: torch.stack([x, y], -1), ROWS, ROWS + 1),
    "repeat": case(lambda x: x.repeat(2, 1, 3), ROWS),
    "tile": case(lambda x: x.tile(2, 1), LINE),
    "expand channels": case(lambda x: x.expand(1, 7, 6, 5), rand(1, 1, 6, 5)),
    "expand images": case(lambda x: x.expand(-1, -1, 71, 83), rand(1, 5, 1, 1)),
    "expand batch and channels": case(lambda x: x.expand(2, 5, 7, 3), rand(1, 1, 7, 3)),
    "expand and more dimensions": case(lambda x: x.expand(1, 3, 11, 13), rand(1, 1, 1)),
    "expand_as": case(lambda x, y: x.expand_as(y) * 2, rand(1, 5, 1, 1), rand(2, 5, 3, 7)),
    "broadcast_to": case(lambda x: x.broadcast_to(3, 5), rand(5)),
}

PARTS: dict[str, Case] = {
    "narrow": case(lambda x: x.narrow(1, -3, 3), X),
    "select channel": case(lambda x: x[:, -1], BATCH),
    "select from the end": case(lambda x: x.select(-1, 1), BATCH),
    "select row": case(lambda x: x[1], ROWS),
    "split with sizes": case(lambda x: x.split_with_sizes([1, 2, 3], 1)[2], X),
    "unbind": case(lambda x: x.unbind(2)[3], BATCH),
    "flip": case(lambda x: x.flip([1, 3]), X),
    "roll": case(lambda x: x.roll((2, -3), (2, 3)), X),
    "index_select": case(lambda x: x.index_select(1, torch.tensor([5, 0, 1, 2])), X),
    "index": case(lambda x: x[:, :, [2, 1, 0]], X),
}

NOTHING = torch.zeros(0)
"""How caches of sequences begin."""
SHAPES: dict[str, Case] = {
    "transpose": case(lambda x: x.transpose(1, -1), BATCH),
    "t": case(lambda x: x.t(), ROWS),
    "T": case(lambda x: x.T, ROWS),
    "movedim": case(lambda x: x.movedim(1, -1), BATCH),
    "movedim of several": case(lambda x: x.movedim((0, 3), (2, 0)), BATCH),
    "swapaxes": case(lambda x: x.swapaxes(0, 2), BATCH),
    "unsqueeze": case(lambda x: x.unsqueeze(1), LINE),
    "squeeze one": case(lambda x: x.squeeze(0), X),
    "squeeze": case(lambda x: x.squeeze(), rand(1, 5, 1, 7)),
    "squeeze several": case(lambda x: x.squeeze((0, 2)), rand(1, 5, 1, 7)),
    "squeeze nothing": case(lambda x: x.squeeze(1) + 1, X),
    "unflatten": case(lambda x: x.unflatten(0, (2, 3)), rand(6, 5)),
    "view_as": case(lambda x, y: x.view_as(y), rand(6, 5), rand(2, 3, 5)),
    "shuffle of channels": case(lambda x: x.view(2, 2, 3, 7, 5).transpose(1, 2).reshape(2, 6, 7, 5), rand(2, 6, 7, 5)),
    "windows": case(
        lambda x: x.view(1, 2, 3, 5, 7, 4).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 21, 4), rand(1, 6, 35, 4)
    ),
    "channels last": case(lambda x: x.contiguous(memory_format=torch.channels_last), X),
    "type_as": case(lambda x, y: x.type_as(y) + 1, X, X),
    "detach": case(lambda x: x.detach() + 1, X),
    "zeros_like": case(lambda x: x + torch.zeros_like(x), X),
    "ones_like": case(lambda x: x + torch.ones_like(x), X),
    "full_like": case(lambda x: x + torch.full_like(x, 0.3), X),
    "new_zeros": case(lambda x: torch.cat([x, x.new_zeros(1, 2, 7, 5)], 1), X),
}

ALL: dict[str, Case] = {**ACTIVATIONS, **UNARY, **BINARY, **REDUCTIONS, **JOINS, **PARTS, **SHAPES}

NO_ROOT = {"sqrt", "rsqrt", "pow 0.5", "pow -0.5", "std", "std_mean", "normalize"}
NO_LOGARITHM = {
    *("softplus", "log_sigmoid", "log", "log2", "log1p", "logsumexp"),
    *("softmax of columns", "log_softmax of large numbers", "log_softmax of widths"),
}
"""Cases that need what no operator before 2.6 can do."""

# Every case of the reference that is of these operators, on a tensor of (1, 4, 5, 6): what 1.13.1 and 2.6 do.
TABLE: dict[str, tuple[Callable[..., Any], str, str]] = {
    "hardswish": (functional.hardswish, "native", "native"),
    "hardsigmoid": (functional.hardsigmoid, "native", "native"),
    "leaky": (functional.leaky_relu, "native", "native"),
    "prelu": (nn.PReLU(), "missing", "missing"),
    "elu": (functional.elu, "missing", "missing"),
    "gelu": (functional.gelu, "missing", "missing"),
    "gelu tanh": (lambda x: functional.gelu(x, approximate="tanh"), "missing", "native"),
    "silu": (functional.silu, "missing", "missing"),
    "softmax4d": (lambda x: x.softmax(1), "wrong", "native"),
    "softmax2d": (lambda x: x.reshape(1, -1).softmax(1), "missing", "native"),
    "logsoftmax2d": (lambda x: x.reshape(1, -1).log_softmax(1), "missing", "wrong"),
    "relu6": (functional.relu6, "native", "native"),
    "flatten": (lambda x: x.flatten(1), "native", "native"),
    "embedding": (lambda x: functional.embedding((x > 0).long(), torch.ones(2, 3)), "missing", "missing"),
    "x.mean([2,3])": (lambda x: x.mean([2, 3]), "native", "native"),
    "x.mean([2,3],True)": (lambda x: x.mean([2, 3], True), "native", "native"),
    "x.sum(1)": (lambda x: x.sum(1), "missing", "native"),
    "torch.cat([x,x],0)": (lambda x: torch.cat([x, x], 0), "missing", "native"),
    "torch.cat([x,x],1)": (lambda x: torch.cat([x, x], 1), "native", "native"),
    "torch.cat([x,x],2)": (lambda x: torch.cat([x, x], 2), "native", "native"),
    "torch.cat([x,x],3)": (lambda x: torch.cat([x, x], 3), "missing", "native"),
    "x.permute(0,2,3,1)": (lambda x: x.permute(0, 2, 3, 1), "native", "native"),
    "x.transpose(1,2)": (lambda x: x.transpose(1, 2), "missing", "native"),
    "x[:,1:3]": (lambda x: x[:, 1:3], "native", "native"),
    "x[:,1]": (lambda x: x[:, 1], "missing", "native"),
    "torch.chunk(x,2,1)[0]": (lambda x: torch.chunk(x, 2, 1)[0], "native", "native"),
    "torch.split(x,2,1)[1]": (lambda x: torch.split(x, 2, 1)[1], "native", "native"),
    "torch.stack([x[0],x[0]],0)": (lambda x: torch.stack([x[0], x[0]], 0), "missing", "native"),
    "x[0].unsqueeze(0)": (lambda x: x[0].unsqueeze(0), "missing", "native"),
    "x.squeeze(0)": (lambda x: x.squeeze(0), "missing", "missing"),
    "x.reshape(1,-1)": (lambda x: x.reshape(1, -1), "native", "native"),
    "x.view(2,2,-1)": (lambda x: x.view(2, 2, -1), "native", "native"),
    "x*2+x/3-1": (lambda x: x * 2 + x / 3 - 1, "native", "native"),
    "x-x*0.5": (lambda x: x - x * 0.5, "native", "native"),
    "x.abs().pow(2.0)": (lambda x: x.abs().pow(2.0), "missing", "native"),
    "torch.sqrt(x.abs())": (lambda x: torch.sqrt(x.abs()), "missing", "native"),
    "torch.exp(x)": (torch.exp, "missing", "native"),
    "1.0-x": (lambda x: 1.0 - x, "missing", "missing"),
    "x/(x*x+1.0)": (lambda x: x / (x * x + 1.0), "native", "native"),
    "torch.clamp(x,-0.5,0.5)": (lambda x: torch.clamp(x, -0.5, 0.5), "native", "native"),
    "x.clamp_min(0.0)": (lambda x: x.clamp_min(0.0), "missing", "missing"),
    "-x": (lambda x: -x, "missing", "missing"),
    "torch.max(x,x*0.5)": (lambda x: torch.max(x, x * 0.5), "missing", "missing"),
    "(x>0).float()": (lambda x: (x > 0).float(), "missing", "missing"),
    "x[:,:1].expand(1,4,5,6)": (lambda x: x[:, :1].expand(1, 4, 5, 6), "missing", "native"),
    "x*x.mean([2,3],True)": (lambda x: x * x.mean([2, 3], True), "native", "native"),
    "x.permute(0,2,3,1).contiguous()": (lambda x: x.permute(0, 2, 3, 1).contiguous(), "native", "native"),
    "torch.flip(x,[3])": (lambda x: torch.flip(x, [3]), "missing", "native"),
    "x.tile(1,2,1,1)": (lambda x: x.tile(1, 2, 1, 1), "missing", "native"),
    "x.var([2,3])": (lambda x: x.var([2, 3]), "missing", "native"),
    "x.argmax(1)": (lambda x: x.argmax(1), "missing", "missing"),
    "x+torch.zeros_like(x)": (lambda x: x + torch.zeros_like(x), "missing", "native"),
    "torch.relu(x).add_(1.0)": (lambda x: torch.relu(x).add_(1.0), "native", "native"),
    "x.clone()": (lambda x: x.clone(), "native", "native"),
    "x.float()": (lambda x: x.float(), "native", "native"),
    "x.half().float()": (lambda x: x.half().float(), "missing", "wrong"),
}
