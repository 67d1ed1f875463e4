"""What PyTorch's own Vulkan kernels make of quantised tensors: ``python3 quantized.py [--only PATTERN]``.

Runs in an environment of its own, with a PyTorch that has the Vulkan backend, without mobopt: see the README beside it.
Each call is compared with the same in float64, rounded once to the steps of the result, and with QNNPACK where that has
the operator. Each runs in a process of its own, which a kernel may end.
"""

import argparse
import os
import re
import signal
from contextlib import suppress

import torch
import torch.nn.functional as F  # noqa: N812

SECONDS = 60
TIE = 0.501
"""Steps between a sum and what it was rounded to: sums of floats differ in the last bits."""
DTYPES = {torch.quint8: (0, 255), torch.qint8: (-128, 127), torch.qint32: (-(2**31), 2**31 - 1)}
LEFT, RIGHT, RESULT = (0.031, 121), (0.022, 77), (0.047, 93)
"""Scale and zero point of operands and results."""
SIGNED = 128
"""What integers with a sign are lower by."""
ON_GPU, OF_CPU, QUANTIZED = torch.ops.vulkan_prepack, torch.ops.quantized, torch.ops.vulkan_quantized


def of_dtype(steps, dtype):
    """The same steps for integers with or without a sign."""
    return steps if dtype == torch.quint8 else (steps[0], steps[1] - SIGNED)


def integers(*sizes, steps=LEFT, dtype=torch.quint8):
    """A quantised tensor on the CPU, over most of its range."""
    reach = 110 * steps[0]
    return torch.quantize_per_tensor(torch.rand(sizes) * 2 * reach - reach, *of_dtype(steps, dtype), dtype)


def on_gpu(x):
    """The same on the GPU, where tensors with steps are made of floats."""
    return torch.quantize_per_tensor(x.dequantize().to("vulkan"), x.q_scale(), x.q_zero_point(), x.dtype)


def verdict(found, exact, steps=RESULT, qnnpack=None, dtype=torch.quint8):
    """How a quantised tensor of the GPU compares with exact floats, and with QNNPACK's integers."""
    scale, zero = of_dtype(steps, dtype)
    exact = (exact.double() / scale + zero).clamp(*DTYPES[dtype])
    whole = (found.dequantize().cpu().double() / scale).round() + zero
    if whole.shape != exact.shape:
        return f"sizes {tuple(whole.shape)} for {tuple(exact.shape)}"
    off = (whole - exact).abs()
    words = [f"{int((off > TIE).sum())} of {off.numel()} not the nearest step, at most {float(off.max()):.2f} away"]
    if qnnpack is not None:
        other = (whole - qnnpack.int_repr().double()).abs()
        words.append(f"QNNPACK: {int((other > 0).sum())} differ, by at most {int(other.max())}")
    lost = (found.q_scale(), found.q_zero_point())
    if abs(lost[0] - scale) > 1e-6 or lost[1] != zero:
        words.append(f"the steps are {lost}, not {(scale, zero)}")
    return "; ".join(words)


def quantise(sizes, dtype=torch.quint8):
    """Numbers within the range, beyond it, and halfway between two steps."""
    steps = of_dtype((0.03125, 121), dtype)
    x = torch.rand(sizes) * 12 - 6
    x.view(-1)[::3] = (x.view(-1)[::3] / steps[0]).round() * steps[0] + steps[0] / 2
    found = torch.quantize_per_tensor(x.to("vulkan"), *steps, dtype)
    return verdict(found, x, (0.03125, 121), torch.quantize_per_tensor(x, *steps, dtype), dtype)


def weight(*sizes, axis=None, dtype=torch.qint8, inner=1):
    """A quantised weight, with a scale for each index of a dimension or with one."""
    floats, zero = torch.randn(sizes) / inner**0.5, 0 if dtype == torch.qint8 else SIGNED
    if axis is None:
        return torch.quantize_per_tensor(floats, float(floats.abs().max()) / 120, zero, dtype)
    scales = floats.abs().amax([dim for dim in range(len(sizes)) if dim != axis]) / 120
    return torch.quantize_per_channel(floats, scales, torch.zeros(len(scales), dtype=torch.long), axis, dtype)


def convolution(
    inputs, outputs, kernel=3, size=(9, 11), batch=1, bias=True, dtype=torch.quint8, groups=1, stride=1, padding=0,
    dilation=1, limits=(None, None), transposed=False, output_padding=0, axis=None, weights=torch.qint8,
):  # fmt: skip
    """A packed convolution."""
    x, high = integers(batch, inputs, *size, dtype=dtype), kernel if isinstance(kernel, tuple) else (kernel, kernel)
    sizes = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    w = weight(*sizes, *high, axis=axis, dtype=weights, inner=inputs // groups * high[0] * high[1])
    b = torch.randn(outputs) if bias else None
    pairs, between = [[stride] * 2, [padding] * 2], [[output_padding] * 2] if transposed else []
    create = ON_GPU.create_qtconv2d_context if transposed else ON_GPU.create_qconv2d_context
    context = create(w, b, *pairs, *between, [dilation] * 2, groups, *limits)
    found = ON_GPU.run_qconv2d_context(on_gpu(x), *of_dtype(RESULT, dtype), context)
    settings = [output_padding, groups, dilation] if transposed else [dilation, groups]
    function = F.conv_transpose2d if transposed else F.conv2d
    operands = [None if item is None else item.double() for item in (x.dequantize(), w.dequantize(), b)]
    exact = function(*operands, stride, padding, *settings)
    if limits != (None, None):
        return verdict(found, exact.clamp(*limits), dtype=dtype)
    other = None
    with suppress(RuntimeError):
        name = "conv_transpose2d" if transposed else "conv2d"
        packed = getattr(OF_CPU, f"{name}_prepack")(w, b, *pairs, *between, [dilation] * 2, groups)
        other = getattr(OF_CPU, name)(x, packed, *RESULT)
    return verdict(found, exact, qnnpack=other, dtype=dtype)


def linear(sizes, outputs, bias=True, **kind):
    """A packed linear layer; its context is made as that of a file is, of the transposed weight."""
    x, w = integers(*sizes), weight(outputs, sizes[-1], inner=sizes[-1], **kind)
    b = torch.randn(outputs) if bias else None
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    context = ON_GPU.create_linear_context.default.redispatch(keys, w.t(), b)
    found = ON_GPU.run_qlinear_context(on_gpu(x), *RESULT, context)
    exact = F.linear(x.dequantize().double(), w.dequantize().double(), None if b is None else b.double())
    other = None
    with suppress(RuntimeError):
        other = OF_CPU.linear(x, OF_CPU.linear_prepack(w, b), *RESULT)
    return verdict(found, exact, qnnpack=other)


def pair(name, left=(1, 5, 7, 9), right=None, dtype=torch.quint8):
    """Arithmetic of two tensors."""
    a, b = integers(*left, dtype=dtype), integers(*(right or left), steps=RIGHT, dtype=dtype)
    found = getattr(QUANTIZED, name)(on_gpu(a), on_gpu(b), *of_dtype(RESULT, dtype))
    exact = getattr(torch, name)(a.dequantize().double(), b.dequantize().double())
    other = None
    with suppress(AttributeError, RuntimeError):
        other = getattr(OF_CPU, name)(a, b, *RESULT) if right is None else None
    return verdict(found, exact, qnnpack=other, dtype=dtype)


def moved(function, sizes=(1, 5, 8, 10)):
    """An operator whose result has the steps of its input."""
    x, other = integers(*sizes), None
    with suppress(RuntimeError, IndexError):
        other = function(x)
    return verdict(function(on_gpu(x)), function(x.dequantize().double()), LEFT, other)


CALLS = {
    **{f"quantise {dtype}": (quantise, (1, 5, 7, 9), dtype) for dtype in DTYPES},
    **{f"quantise {sizes}": (quantise, sizes) for sizes in [(1,), (7,), (3, 5), (3, 7, 9), (2, 3, 5, 7), (1, 6, 1, 1)]},
}
CONVOLUTIONS = {
    "3x3, 3 to 5": (3, 5),
    "3x3, 5 to 7, padding": (5, 7, {"padding": 1}),
    "3x3, 7 to 3, stride, padding": (7, 3, {"padding": 1, "stride": 2}),
    "5x3, 4 to 8, padding": (4, 8, {"kernel": (5, 3), "padding": 2}),
    "64 to 64": (64, 64, {"size": (24, 24), "padding": 1}),
    "dilation": (4, 6, {"dilation": 2}),
    "dilation, padding": (4, 6, {"dilation": 2, "padding": 2}),
    "1x1, 5 to 7": (5, 7, {"kernel": 1}),
    "1x1, 16 to 24, stride": (16, 24, {"kernel": 1, "stride": 2}),
    "1x1, padding": (5, 7, {"kernel": 1, "padding": 1}),
    "depthwise": (5, 5, {"groups": 5, "padding": 1}),
    "depthwise 5x5, stride": (8, 8, {"groups": 8, "padding": 2, "stride": 2, "kernel": 5}),
    "depthwise, dilation, padding": (6, 6, {"groups": 6, "dilation": 2, "padding": 2}),
    "depthwise, multiplier": (4, 8, {"groups": 4}),
    "2 groups": (8, 8, {"groups": 2}),
    "batch of 2": (3, 5, {"batch": 2}),
    "without bias": (3, 5, {"bias": False}),
    "clamped": (3, 5, {"limits": (0.0, 3.0)}),
    "1x1, clamped": (5, 7, {"kernel": 1, "limits": (0.0, None)}),
    "scales by channel": (5, 7, {"axis": 0}),
    "depthwise, scales by channel": (5, 5, {"axis": 0, "groups": 5}),
    "weights of quint8": (5, 7, {"padding": 1, "weights": torch.quint8}),
    "input of qint8": (5, 7, {"dtype": torch.qint8}),
    "transposed": (3, 5, {"transposed": True, "kernel": 2, "stride": 2}),
    "transposed, padding": (4, 6, {"transposed": True, "padding": 1, "stride": 2, "output_padding": 1}),
    "transposed, scales by channel": (4, 6, {"transposed": True, "stride": 2, "axis": 1}),
    "transposed, 2 groups": (4, 6, {"transposed": True, "groups": 2}),
    "transposed, dilation": (4, 6, {"transposed": True, "dilation": 2}),
    "transposed, batch of 2": (4, 6, {"transposed": True, "batch": 2}),
    "transposed, without bias": (4, 6, {"transposed": True, "bias": False}),
}
LINEAR = {
    "1 row, 5 to 7": ((1, 5), 7),
    "1 row, 1280 to 1000": ((1, 1280), 1000),
    "17 rows, 33 to 40": ((17, 33), 40),
    "3 dimensions": ((3, 17, 9), 5),
    "4 dimensions": ((2, 2, 3, 7), 5),
    "without bias": ((3, 7), 9, {"bias": False}),
    "scales by channel": ((3, 7), 9, {"axis": 0}),
    "weights of quint8": ((3, 7), 9, {"dtype": torch.quint8}),
}
PAIRS = {
    "5 channels": {},
    "8 channels": {"left": (1, 8, 7, 9)},
    "2 dimensions": {"left": (7, 9)},
    "batch of 2": {"left": (2, 5, 7, 9)},
    "a number for each channel": {"right": (1, 5, 1, 1)},
    "one channel": {"right": (1, 1, 7, 9)},
    "qint8": {"dtype": torch.qint8},
}
MOVED = {
    "relu": F.relu,
    "clamp": lambda x: x.clamp(0, 2),
    "sigmoid": torch.sigmoid,
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool2d, padding": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
    "mean": lambda x: x.mean([2, 3]),
    "upsample_nearest2d": lambda x: F.interpolate(x, scale_factor=2),
    "upsample_bilinear2d": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "cat of channels": lambda x: torch.cat([x, x], 1),
    "cat of height": lambda x: torch.cat([x, x], 2),
    "view": lambda x: x.view(1, -1),
    "view of 3 dimensions": lambda x: x.view(20, 4, 5),
    "reshape": lambda x: x.reshape(1, 5, 80),
    "flatten": lambda x: x.flatten(1),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "transpose": lambda x: x.transpose(1, 2),
    "slice": lambda x: x[..., 1:7],
    "select": lambda x: x[:, 1],
    "unsqueeze": lambda x: x[0].unsqueeze(0),
    "reflection_pad2d": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "clone": torch.clone,
}
CALLS.update({f"convolution {name}": (convolution, *given) for name, given in CONVOLUTIONS.items()})
CALLS.update({f"linear {name}": (linear, *given) for name, given in LINEAR.items()})
CALLS.update(
    {f"{op} {name}": (pair, op, given) for op in ("add", "sub", "mul", "div") for name, given in PAIRS.items()}
)
CALLS.update({name: (moved, function) for name, function in MOVED.items()})


def told(name, seed):
    """The verdict on a call, in a process of its own, or what went wrong."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        torch.manual_seed(seed)
        function, *given = CALLS[name]
        options = given.pop() if isinstance(given[-1], dict) else {}
        try:
            with torch.inference_mode():
                answer = function(*given, **options)
        except Exception as error:
            answer = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return text or f"the process ended with status {status}"


def main():
    """Make every call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="regular expression in names of calls")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.quantized.engine = "qnnpack"  # as on phones
    for name in CALLS:
        if re.search(options.only, name):
            print(f"{name}: {told(name, options.seed)}", flush=True)


if __name__ == "__main__":
    main()
