"""What the first call of a model imports: modules of Python are most of a warm start."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from mobopt import optimize_for_mobile

_START = """
import sys
import torch
before = set(sys.modules)
import mobopt
module = mobopt.load(sys.argv[1])
module(torch.rand(1, 3, 9, 11))
print(*sorted(set(sys.modules) - before))
"""
_UNWANTED = ("mobopt.passes", "mobopt.ops.targets", "mobopt.frontends", "mobopt.tools", "torch._dynamo", "sympy")


class Net(nn.Module):
    """Operators of classifiers, and a norm of transposed pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6(), nn.MaxPool2d(2))
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.convolution(x).flatten(2).transpose(1, 2))
        y = torch.softmax(self.linear(y), -1)
        return torch.cat([torch.sigmoid(y), nn.functional.gelu(y)], -1).mean(1)


def test_a_first_call_imports_what_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    script = torch.jit.script(Net().eval())
    torch.jit.save(optimize_for_mobile(script, backend="vulkan", runtime="mobopt"), path)
    done = subprocess.run([sys.executable, "-c", _START, path], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "mobopt.runtimes.vulkan.program" in imported
    assert [name for name in imported if name.startswith(_UNWANTED)] == []


def test_first_calls_of_networks_import_no_compiler() -> None:
    script = Path(__file__).with_name("first_calls.py")
    benchmarks = script.parents[1] / "benchmarks"
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(benchmarks), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0 and "5 networks" in done.stdout, done.stderr
