"""What PyTorch's own Vulkan kernels make of quantised tensors: ``python3 quantized.py [--only PATTERN]``.

Runs in an environment of its own, with a PyTorch that has the Vulkan backend, without mobopt: see the README beside it.
Each call is compared with the same in float64, rounded once (how many elements have another step, and by how many steps
at most), and with QNNPACK. Each runs in a process of its own, which a kernel may end.
"""

import argparse
import json
import os
import re
import signal

import torch
import torch.nn.functional as F  # noqa: N812

SECONDS = 60
X, Y = (0.031, 121), (0.047, 93)
"""Steps of operands and of results: scale and zero point."""
CASES = {}


def case(name, *arguments, **options):
    """Register calls of a function by name."""

    def register(function):
        CASES[name] = lambda: function(*arguments, **options)
        return function

    return register


def image(*sizes, steps=X, dtype=torch.quint8):
    """A quantised tensor on the CPU, over most of its range."""
    reach = steps[0] * 110
    return torch.quantize_per_tensor(torch.rand(sizes) * 2 * reach - reach, *steps, dtype)


def on_gpu(x):
    """The same on the GPU, where tensors with steps are made of floats."""
    if not x.is_quantized:
        return x.to("vulkan")
    return torch.quantize_per_tensor(x.dequantize().to("vulkan"), x.q_scale(), x.q_zero_point(), x.dtype)


class Result:
    """What came, what should have, in steps, and what QNNPACK says, if it knows the call."""

    def __init__(self, found, exact, steps, qnnpack=None, dtype=torch.quint8):
        scale, zero = steps
        low, high = {torch.quint8: (0, 255), torch.qint8: (-128, 127), torch.qint32: (-(2**31), 2**31 - 1)}[dtype]
        self.exact = (exact.double() / scale + zero).clamp(low, high)
        self.found = (found.dequantize().cpu().double() / scale).round() + zero
        self.qnnpack = None if qnnpack is None else qnnpack.int_repr().double()

    def told(self):
        """Numbers for the table."""
        found, exact = self.found, self.exact
        if found.shape != exact.shape:
            return f"sizes {tuple(found.shape)} for {tuple(exact.shape)}"
        off = (found - exact).abs()
        wrong = int((off > 0.501).sum())
        text = f"{wrong} of {off.numel()} not the nearest step, at most {float(off.max()):.2f} from exact"
        if self.qnnpack is not None:
            other = (found - self.qnnpack).abs()
            text += f"; QNNPACK: {int((other > 0).sum())} differ, by at most {int(other.max())}"
        return text


for dtype in (torch.quint8, torch.qint8, torch.qint32):
    name = str(dtype).removeprefix("torch.")

    @case(f"quantize and dequantize {name}", dtype)
    def _(dtype):
        zero = {torch.quint8: 121, torch.qint8: -7, torch.qint32: 12}[dtype]
        x = torch.rand(1, 5, 7, 9) * 12 - 6
        x[0, 0, 0] = torch.arange(9) * 0.03125 * 2 + 0.015625 if dtype != torch.qint32 else x[0, 0, 0]
        steps = (0.03125, zero)
        cpu = torch.quantize_per_tensor(x, *steps, dtype)
        return Result(torch.quantize_per_tensor(x.to("vulkan"), *steps, dtype), x, steps, cpu, dtype)


def convolution(
    inputs,
    outputs,
    kernel=3,
    size=(9, 11),
    batch=1,
    bias="float",
    dtype=torch.quint8,
    weights=torch.qint8,
    zero=0,
    axis=None,
    limits=(None, None),
    transposed=False,
    output_padding=0,
    **options,
):
    """A packed convolution beside its exact computation and QNNPACK's."""
    groups, stride, padding, dilation = (options.get(*pair) for pair in _DEFAULTS)
    steps = X if dtype == torch.quint8 else (X[0], -7)
    result = Y if dtype == torch.quint8 else (Y[0], 5)
    x = image(batch, inputs, *size, steps=steps, dtype=dtype)
    kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
    sizes = (inputs, outputs // groups, *kernel) if transposed else (outputs, inputs // groups, *kernel)
    floats = torch.randn(sizes) / (inputs // groups * kernel[0] * kernel[1]) ** 0.5
    if axis is None:
        w = torch.quantize_per_tensor(floats, float(floats.abs().max()) / 120, zero, weights)
    else:
        scales = floats.abs().amax([d for d in range(4) if d != axis]) / 120
        w = torch.quantize_per_channel(floats, scales, torch.zeros(len(scales), dtype=torch.long), axis, weights)
    b = None if bias is None else torch.randn(outputs)
    given = b
    if bias == "qint32":
        given = torch.quantize_per_tensor(b, steps[0] * w.q_scale(), 0, torch.qint32)
        b = given.dequantize()
    ops = torch.ops.vulkan_prepack
    pairs = [[stride, stride], [padding, padding], [dilation, dilation]]
    if transposed:
        context = ops.create_qtconv2d_context(w, given, *pairs[:2], [output_padding] * 2, pairs[2], groups, *limits)
        exact = F.conv_transpose2d(
            x.dequantize().double(), w.dequantize().double(), None if b is None else b.double(),
            stride, padding, output_padding, groups, dilation,
        )  # fmt: skip
    else:
        context = ops.create_qconv2d_context(w, given, *pairs, groups, *limits)
        exact = F.conv2d(
            x.dequantize().double(), w.dequantize().double(), None if b is None else b.double(),
            stride, padding, dilation, groups,
        )  # fmt: skip
    if limits != (None, None):
        exact = exact.clamp(*limits)
    found = ops.run_qconv2d_context(on_gpu(x), *result, context)
    other = None
    if limits == (None, None) and dtype == torch.quint8 and weights == torch.qint8:
        try:
            torch.backends.quantized.engine = "qnnpack"
            if transposed:
                packed = torch.ops.quantized.conv_transpose2d_prepack(
                    w, b, *pairs[:2], [output_padding] * 2, pairs[2], groups
                )
                other = torch.ops.quantized.conv_transpose2d(x, packed, *result)
            else:
                packed = torch.ops.quantized.conv2d_prepack(w, b, *pairs, groups)
                other = torch.ops.quantized.conv2d(x, packed, *result)
        except RuntimeError:
            pass
    return Result(found, exact, result, other, dtype)


_DEFAULTS = [("groups", 1), ("stride", 1), ("padding", 0), ("dilation", 1)]

for name, given in {
    "3x3, 3 to 5": (3, 5),
    "3x3, 5 to 7, padding": (5, 7, {"padding": 1}),
    "3x3, 8 to 8, padding": (8, 8, {"padding": 1}),
    "3x3, 7 to 3, stride 2, padding": (7, 3, {"padding": 1, "stride": 2}),
    "5x3, 4 to 8, padding 2": (4, 8, {"kernel": (5, 3), "padding": 2}),
    "3x3, dilation 2": (4, 6, {"dilation": 2}),
    "3x3, dilation 2, padding 2": (4, 6, {"dilation": 2, "padding": 2}),
    "1x1, 5 to 7": (5, 7, {"kernel": 1}),
    "1x1, 16 to 24": (16, 24, {"kernel": 1}),
    "1x1, 5 to 7, stride 2": (5, 7, {"kernel": 1, "stride": 2}),
    "1x1, 5 to 7, padding": (5, 7, {"kernel": 1, "padding": 1}),
    "depthwise 3x3 of 5, padding": (5, 5, {"groups": 5, "padding": 1}),
    "depthwise 3x3 of 8, stride 2, padding": (8, 8, {"groups": 8, "padding": 1, "stride": 2}),
    "depthwise 5x5 of 6, padding": (6, 6, {"groups": 6, "padding": 2, "kernel": 5}),
    "depthwise 1x1 of 6": (6, 6, {"groups": 6, "kernel": 1}),
    "depthwise 3x3 of 6, dilation 2": (6, 6, {"groups": 6, "dilation": 2}),
    "depthwise 3x3 of 6, dilation and padding 2": (6, 6, {"groups": 6, "dilation": 2, "padding": 2}),
    "depthwise multiplier 2": (4, 8, {"groups": 4}),
    "2 groups": (8, 8, {"groups": 2}),
    "batch 2": (3, 5, {"batch": 2}),
    "no bias": (3, 5, {"bias": None}),
    "bias qint32": (3, 5, {"bias": "qint32"}),
    "clamped from 0": (3, 5, {"limits": (0.0, None)}),
    "clamped 0 to 3": (3, 5, {"limits": (0.0, 3.0)}),
    "depthwise, clamped 0 to 3": (5, 5, {"groups": 5, "limits": (0.0, 3.0)}),
    "1x1, clamped 0 to 3": (5, 7, {"kernel": 1, "limits": (0.0, 3.0)}),
    "weights quint8": (5, 7, {"weights": torch.quint8, "zero": 128, "padding": 1}),
    "1x1, weights quint8": (5, 7, {"weights": torch.quint8, "zero": 128, "kernel": 1}),
    "depthwise, weights quint8": (5, 5, {"weights": torch.quint8, "zero": 128, "groups": 5, "padding": 1}),
    "all qint8": (5, 7, {"dtype": torch.qint8, "padding": 1}),
    "weights by channel": (5, 7, {"axis": 0}),
    "transposed, 3 to 5": (3, 5, {"transposed": True, "kernel": 2, "stride": 2}),
    "transposed, 4 to 6, padding": (4, 6, {"transposed": True, "padding": 1, "stride": 2, "output_padding": 1}),
    "transposed, no bias": (4, 6, {"transposed": True, "bias": None}),
    "64 to 64, 24x24": (64, 64, {"size": (24, 24), "padding": 1}),
}.items():
    *channels, options = given if isinstance(given[-1], dict) else (*given, {})
    CASES[f"qconv2d {name}"] = lambda channels=channels, options=options: convolution(*channels, **options)


def linear(sizes, outputs, bias=True, weights=torch.qint8, zero=0, axis=None, steps=Y):
    """A packed linear layer; its context is made as a file's is, of the transposed weight."""
    x = image(*sizes)
    floats = torch.randn(outputs, sizes[-1]) / sizes[-1] ** 0.5
    if axis is None:
        w = torch.quantize_per_tensor(floats, float(floats.abs().max()) / 120, zero, weights)
    else:
        scales = floats.abs().amax(1) / 120
        w = torch.quantize_per_channel(floats, scales, torch.zeros(outputs, dtype=torch.long), 0, weights)
    b = torch.randn(outputs) if bias else None
    given = torch.quantize_per_tensor(b, X[0] * w.q_scale(), 0, torch.qint32) if bias == "qint32" else b
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    context = torch.ops.vulkan_prepack.create_linear_context.default.redispatch(keys, w.t(), given)
    exact = F.linear(x.dequantize().double(), w.dequantize().double(), None if b is None else b.double())
    found = torch.ops.vulkan_prepack.run_qlinear_context(on_gpu(x), *steps, context)
    other = None
    if weights == torch.qint8:
        torch.backends.quantized.engine = "qnnpack"
        other = torch.ops.quantized.linear(x, torch.ops.quantized.linear_prepack(w, b), *steps)
    return Result(found, exact, steps, other)


for name, given in {
    "1 row, 5 to 7": ((1, 5), 7, {}),
    "1 row, 8 to 8": ((1, 8), 8, {}),
    "3 rows, 8 to 8": ((3, 8), 8, {}),
    "4 rows, 64 to 12": ((4, 64), 12, {}),
    "3 rows, 7 to 9": ((3, 7), 9, {}),
    "3 dimensions": ((2, 3, 8), 8, {}),
    "no bias": ((3, 7), 9, {"bias": False}),
    "1 row, no bias": ((1, 7), 9, {"bias": False}),
    "bias qint32": ((3, 8), 8, {"bias": "qint32"}),
    "weights quint8": ((3, 7), 9, {"weights": torch.quint8, "zero": 128}),
    "weights by channel": ((3, 7), 9, {"axis": 0}),
}.items():
    CASES[f"qlinear {name}"] = lambda given=given: linear(*given[:2], **given[2])


def pair(op, left=(1, 5, 7, 9), right=(1, 5, 7, 9), dtype=torch.quint8):
    """Arithmetic of two tensors."""
    zeros = (121, 77, 93) if dtype == torch.quint8 else (-7, 3, 5)
    a, b = image(*left, steps=(0.031, zeros[0]), dtype=dtype), image(*right, steps=(0.022, zeros[1]), dtype=dtype)
    steps = (0.047, zeros[2])
    exact = getattr(torch, op)(a.dequantize().double(), b.dequantize().double())
    found = getattr(torch.ops.vulkan_quantized, op)(on_gpu(a), on_gpu(b), *steps)
    torch.backends.quantized.engine = "qnnpack"
    known = op in ("add", "mul") and left == right and dtype == torch.quint8
    other = getattr(torch.ops.quantized, op)(a, b, *steps) if known else None
    return Result(found, exact, steps, other, dtype)


for op in ("add", "sub", "mul", "div"):
    for name, options in {
        "of 5 channels": {},
        "of 8 channels": {"left": (1, 8, 7, 9), "right": (1, 8, 7, 9)},
        "of 2 dimensions": {"left": (7, 9), "right": (7, 9)},
        "of 3 dimensions": {"left": (3, 7, 9), "right": (3, 7, 9)},
        "of batch 2": {"left": (2, 5, 7, 9), "right": (2, 5, 7, 9)},
        "with numbers of 5 channels": {"right": (1, 5, 1, 1)},
        "with numbers of 8 channels": {"left": (1, 8, 7, 9), "right": (1, 8, 1, 1)},
        "with one channel": {"right": (1, 1, 7, 9)},
        "qint8": {"dtype": torch.qint8},
    }.items():
        CASES[f"{op} {name}"] = lambda op=op, options=options: pair(op, **options)


def moved(function, sizes=(1, 5, 8, 10), dtype=torch.quint8):
    """An operator whose result has the steps of its input."""
    steps = X if dtype == torch.quint8 else (X[0], -7)
    x = image(*sizes, steps=steps, dtype=dtype)
    exact = function(x.dequantize().double())
    try:
        torch.backends.quantized.engine = "qnnpack"
        other = function(x)
    except RuntimeError:
        other = None
    found = function(on_gpu(x))
    told = (found.q_scale(), found.q_zero_point())
    result = Result(found, exact, steps, other, dtype)
    if abs(told[0] - steps[0]) > 1e-6 or told[1] != steps[1]:
        raise RuntimeError(f"steps {told} for {steps}: {result.told()}")
    return result


for name, function in {
    "relu": F.relu,
    "clamp": lambda x: x.clamp(0, 2),
    "hardtanh": lambda x: F.hardtanh(x, 0, 2),
    "sigmoid": torch.sigmoid,
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool2d padding": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d 1": lambda x: F.adaptive_avg_pool2d(x, 1),
    "mean": lambda x: x.mean([2, 3]),
    "upsample_nearest2d": lambda x: F.interpolate(x, scale_factor=2),
    "upsample_bilinear2d": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "cat of channels": lambda x: torch.cat([x, x], 1),
    "cat of height": lambda x: torch.cat([x, x], 2),
    "view": lambda x: x.view(1, -1),
    "reshape": lambda x: x.reshape(1, 5, 80),
    "flatten": lambda x: x.flatten(1),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "transpose": lambda x: x.transpose(1, 2),
    "slice of width": lambda x: x[..., 1:7],
    "slice of channels": lambda x: x[:, 1:4],
    "select": lambda x: x[:, 1],
    "unsqueeze": lambda x: x[0].unsqueeze(0),
    "zero pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "reflection_pad2d": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "clone": torch.clone,
}.items():
    CASES[f"kept {name}"] = lambda function=function: moved(function)
for channels in (3, 4, 8):
    CASES[f"kept cat of {channels} channels"] = lambda c=channels: moved(lambda x: torch.cat([x, x], 1), (1, c, 5, 6))
    CASES[f"kept view of {channels} channels"] = lambda c=channels: moved(lambda x: x.view(1, -1), (1, c, 1, 1))
    CASES[f"kept max_pool2d of {channels} channels, qint8"] = lambda c=channels: moved(
        lambda x: F.max_pool2d(x, 2), (1, c, 6, 6), torch.qint8
    )


def run(name, seed):
    """One case in a process of its own: what was seen, or what went wrong."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        torch.manual_seed(seed)
        with torch.inference_mode():
            try:
                answer = CASES[name]().told()
            except Exception as error:
                answer = f"{type(error).__name__}: {str(error).splitlines()[0][:240]}"
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else f"the process ended with status {status}"


def main():
    """Run every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="regular expression in names of cases")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in CASES:
        if re.search(options.only, name):
            print(f"{name}: {run(name, options.seed)}", flush=True)


if __name__ == "__main__":
    main()
