"""What a task does, in this process."""

from pathlib import Path

import torch
from torch import nn

from mobopt import optimize_for_mobile
from mobopt.tools.sweep.jobs import Job, Model, Task
from mobopt.tools.sweep.work import Subject, _bench


def test_an_optimised_file_is_measured_as_it_is(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, file = torch.rand(1, 3, 11, 7), tmp_path / "m.ptl"
    script = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval())
    optimize_for_mobile(script, backend="metal", example_inputs=[x])._save_for_lite_interpreter(str(file))
    found = _bench(Task(Model("m.ptl", str(file)), Job("bench", "vulkan", "2.1", "cpu")), Subject(file, [x]))
    assert found.is_good and found.data["ms"] and found.data["eager_ms"] and found.data["inputs"].endswith("(given)")
