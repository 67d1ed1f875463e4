"""The C++ of a kit compiles against torch's own headers, and its test program agrees with the expected outputs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from examples_as_modules import example
from kit_nets import every_kind_examples, write_every_kind
from torchvision_operators import torchvision_with_operators

import mobopt

TORCH = Path(torch.__file__).parent
COMPILER = shutil.which("g++")


NMS = """
#include <ATen/ATen.h>
#include <torch/library.h>

static at::Tensor nms(const at::Tensor& boxes, const at::Tensor& scores, double most) {
  const at::Tensor order = std::get<1>(scores.sort(true, 0, true));
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < order.size(0); ++i) {
    const at::Tensor a = boxes[order[i].item<int64_t>()];
    bool alive = true;
    for (const int64_t k : kept) {
      const at::Tensor b = boxes[k];
      const at::Tensor shared = at::minimum(a.slice(0, 2), b.slice(0, 2)) - at::maximum(a.slice(0, 0, 2), b.slice(0, 0, 2));
      const float both = shared.clamp(0).prod().item<float>();
      const float all = ((a.slice(0, 2) - a.slice(0, 0, 2)).prod() + (b.slice(0, 2) - b.slice(0, 0, 2)).prod()).item<float>();
      alive = alive && !(both / (all - both) > most);
    }
    if (alive) {
      kept.push_back(order[i].item<int64_t>());
    }
  }
  return at::tensor(kept, at::kLong);
}

TORCH_LIBRARY(torchvision, m) {
  m.def("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor", nms);
}
"""  # noqa: E501


def built(folder: Path, *sources: str) -> Path:
    """The test program of a kit."""
    program = folder / "program"
    includes = [f"-I{TORCH}/include/torch/csrc/api/include", "-isystem", f"{TORCH}/include"]
    libraries = [f"-L{TORCH}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{TORCH}/lib"]
    command = [
        str(COMPILER),
        "-std=c++20",
        "-O0",
        "-Wall",
        "-Werror",
        *includes,
        *sources,
        "-o",
        str(program),
        *libraries,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return program


@pytest.mark.sweep
@pytest.mark.skipif(COMPILER is None, reason="no g++")
def test_cpp_compiles_and_agrees(tmp_path: Path) -> None:
    examples = every_kind_examples()
    mobopt.app_kit(write_every_kind(tmp_path / "net.ptl"), tmp_path / "kit", example_inputs=examples)
    program = built(tmp_path / "kit" / "cpp", "net_model.cpp", "net_test.cpp")
    run = [str(program), str(tmp_path / "kit" / "net.ptl"), str(tmp_path / "kit" / "test")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok    ") > 30 and "WRONG" not in done.stdout
    data = tmp_path / "kit" / "test" / "pair.output.boxes.bin"
    data.write_bytes(bytes(reversed(data.read_bytes())))
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "WRONG pair.output.boxes" in done.stdout


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:SSD always returns")
@pytest.mark.skipif(COMPILER is None, reason="no g++")
def test_a_detector_on_pytorchs_lite_interpreter(tmp_path: Path) -> None:
    torchvision_with_operators()
    detection = example("detection")
    torch.manual_seed(0)
    images = list(torch.nn.functional.interpolate(torch.randn(2, 3, 16, 16), (64, 80), mode="bicubic"))
    script = torch.jit.script(detection.calibrated(detection.ssdlite(small=True), images))
    module = mobopt.optimize_for_mobile(script, backend="CPU", example_inputs=[images[:1]])
    module._save_for_lite_interpreter(str(tmp_path / "ssd.ptl"))
    mobopt.app_kit(tmp_path / "ssd.ptl", tmp_path / "kit", example_inputs=[images[:1]])
    assert "LibTorchvision" in (tmp_path / "kit" / "README.md").read_text(encoding="utf-8")
    (tmp_path / "kit" / "cpp" / "nms.cpp").write_text(NMS, encoding="utf-8")
    program = built(tmp_path / "kit" / "cpp", "ssd_model.cpp", "ssd_test.cpp", "nms.cpp")
    run = [str(program), str(tmp_path / "kit" / "ssd.ptl"), str(tmp_path / "kit" / "test")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok    ") == 6 and "WRONG" not in done.stdout
