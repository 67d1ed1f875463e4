"""Published networks: that their weights show errors, that a case gives what the table says, and the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from wild import NETS
from wild.attempt import SOURCES, Case, attempt
from wild.net import calibrate, wake
from wild.page import page, read

TESTS = Path(__file__).parents[1]
ONE = "torchvision.squeezenet1_0"


def test_weights_that_begin_equal_are_varied_and_others_stay() -> None:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7))
    nn.init.zeros_(module[1].weight)
    kept = module[0].weight.clone()
    wake(module)
    assert module[1].weight.unique().numel() == 7 and module[1].bias.unique().numel() == 7
    assert torch.equal(module[0].weight, kept)


def test_batch_norms_have_the_statistics_of_what_they_see() -> None:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5), nn.Dropout(0.9))
    nn.init.constant_(module[0].weight, 30.0)
    nn.init.constant_(module[0].bias, 100.0)
    calibrate(module, [torch.randn(1, 3, 37, 31)])
    with torch.no_grad():
        result = module.eval()(torch.randn(1, 3, 37, 31))
    assert abs(float(result.mean()) - 0.5) < 0.2 and abs(float(result.std()) - 1.0) < 0.1
    assert module[1].momentum == 0.1


def test_a_net_is_the_same_each_time() -> None:
    (module, inputs), (again, more) = NETS[ONE].build(), NETS[ONE].build()
    assert torch.equal(inputs[0], more[0])
    assert all(map(torch.equal, module.state_dict().values(), again.state_dict().values()))


def run(results: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "wild", str(results), *arguments]
    ended = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=True)
    return ended.stdout


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    results = tmp_path / "wild.jsonl"
    results.write_text(json.dumps({"net": ONE, "source": "trace", "state": "crashed"}) + "\n")
    assert run(results, ONE, "--source", "trace", "--source", "export") == f"{ONE} export right \n"
    found = read(results.read_text().splitlines())
    assert found[ONE, "export"]["error"] < 1e-5 and found[ONE, "export"]["on_cpu"] == []
    assert found[ONE, "trace"]["state"] == "crashed"


def test_a_slow_case_is_ended() -> None:
    found = attempt(Case(ONE, "export"), seconds=0.01)
    assert found == {
        "net": ONE,
        "source": "export",
        "dtype": "float32",
        "state": "timeout",
        "message": "it took longer than 0.01 s",
    }


@pytest.mark.sweep
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", [name for name, net in NETS.items() if net.package == "torchvision"])
def test_torchvision(name: str, source: str, tmp_path: Path) -> None:
    run(tmp_path / "wild.jsonl", name, "--source", source, "--timeout", "600")
    found = json.loads((tmp_path / "wild.jsonl").read_text())
    assert found["state"] == "right" and found["on_cpu"] == [], found


def test_the_table() -> None:
    cases = [
        {"net": ONE, "source": "export", "state": "right", "error": 2.5e-7, "on_cpu": [], "dispatches": 9, "ms": 1.5,
         "eager_ms": 2.5},
        {"net": ONE, "source": "trace", "state": "right", "error": 0.0, "on_cpu": ["aten::a at x.py:3: no | kernel"]},
        {"net": ONE, "source": "onnx", "state": "torch can't",
         "message": "Error: <b>no</b> such *thing* :   File \"/x/y.py\", line 3"},
        {"net": "timm.mixnet_s", "source": "export", "state": "wrong", "error": 0.5, "on_cpu": []},
        {"net": "timm.lcnet_050", "source": "export", "state": "not run"},
    ]  # fmt: skip
    text = page(read(map(json.dumps, cases)))
    assert f"| `{ONE}` | 2e-07 |  | 0e+00, 1 on the CPU | **torch can't** |  |  | 9 | 1.5 | 2.5 |\n" in text
    assert "| `timm.mixnet_s` | **wrong** 5e-01 |  |  |  |  |  |  |  |  |\n" in text
    assert f"- aten::a: no \\| kernel: `{ONE}` (trace)\n" in text
    assert f"- torch can't: Error: no such \\*thing\\*: `{ONE}` (onnx)\n" in text
    assert "| export | 1 |  | 1 |  | 1 | " in text and "`timm.lcnet_050`" in text.partition("Not run: ")[2]
