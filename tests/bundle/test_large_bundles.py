"""Models over 2 GB: written record by record, mapped on reading, and never in memory as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_PRELUDE = """
import json, os, sys, threading, time
from pathlib import Path
import torch
from mobopt.bundle import read_bundle, write_lite, write_torchscript
from mobopt.ir import Attribute, Program, parse_graph
from mobopt.ir.types import TENSOR
from mobopt.runtimes.cpu import Interpreter

def kibibytes(field):
    text = Path("/proc/self/status").read_text()
    return int(text.split(field + ":")[1].split()[0])

class Peak(threading.Thread):
    # The most anonymous memory, which the kernel can't take back, above what there was at the start.
    def __init__(self):
        super().__init__(daemon=True)
        self.base, self.most, self.ended = kibibytes("RssAnon"), 0, False
    def run(self):
        while not self.ended:
            self.most = max(self.most, kibibytes("RssAnon") - self.base)
            time.sleep(0.005)

class Sparse:
    # A file that skips zeros instead of writing them.
    def __init__(self, path):
        self.file = open(path, "wb")
    def write(self, data):
        view = memoryview(data).cast("B")
        if len(view) > 65536 and view[:65536] == bytes(65536) and view[-1] == 0:
            self.file.seek(len(view), os.SEEK_CUR)
            return len(view)
        return self.file.write(view)

folder, count, elements = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
"""

_WRITE = """
program = Program()
text = "graph(%self : __torch__.Module, %x : Tensor):\\n"
text += "".join(f'  %w{i} : Tensor = prim::GetAttr[name="w{i}"](%self)\\n' for i in range(count))
text += f"  %last : int = prim::Constant[value={elements - 1}]()\\n  %zero : int = prim::Constant[value=0]()\\n"
text += f"  %e : Tensor = aten::select(%w{count - 1}, %zero, %last)\\n  %one : int = prim::Constant[value=1]()\\n"
text += "  %y : Tensor = aten::add(%x, %e, %one)\\n  return (%y)\\n"
program.methods["forward"] = parse_graph(text)
for i in range(count):
    backing = folder / f"weight {i}"
    with open(backing, "wb") as file:
        file.truncate(4 * elements)
    weight = torch.from_file(str(backing), shared=True, size=elements, dtype=torch.float32)
    weight[1] = i + 1.5
    program.attributes[f"w{i}"] = Attribute(TENSOR, weight, is_parameter=True)
peak = Peak(); peak.start()
out = Sparse(folder / f"model.{sys.argv[4]}")
{"pt": write_torchscript, "ptl": write_lite}[sys.argv[4]](program, out)
out.file.close()
peak.ended = True
print(json.dumps({"peak": peak.most}))
"""

_READ = """
before = kibibytes("VmHWM")  # of torch: twice as much with CUDA as without
peak = Peak(); peak.start()
program = read_bundle(folder / f"model.{sys.argv[4]}")
result = Interpreter(program).run("forward", [torch.ones(1)])
peak.ended = True
firsts = [float(program.attributes[f"w{i}"].value[1]) for i in range(count)]
resident = kibibytes("VmHWM") - before
print(json.dumps({"peak": peak.most, "resident": resident, "firsts": firsts, "result": result.tolist()}))
"""


def run(script: str, folder: Path, count: int, elements: int, form: str) -> dict[str, object]:
    """What a script prints in a process of its own."""
    command = [sys.executable, "-c", _PRELUDE + script, str(folder), str(count), str(elements), form]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    found: dict[str, object] = json.loads(result.stdout)
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is measured as Linux shows it")
@pytest.mark.parametrize(
    ("form", "count", "megabytes"),
    [
        pytest.param("ptl", 3, 64, id="ptl"),
        pytest.param("ptl", 5, 520, id="ptl of 2.6 GB", marks=pytest.mark.sweep),
        pytest.param("pt", 5, 520, id="pt of 2.6 GB", marks=pytest.mark.sweep),
    ],
)
def test_weights_are_streamed_and_mapped(tmp_path: Path, form: str, count: int, megabytes: int) -> None:
    """Writing and reading take less than one tensor of memory; the files, which are sparse, are removed."""
    elements, limit = megabytes << 18, megabytes << 10
    try:
        written = run(_WRITE, tmp_path, count, elements, form)
        assert isinstance(written["peak"], int) and written["peak"] < limit, written
        assert (tmp_path / f"model.{form}").stat().st_size > count * megabytes << 20
        found = run(_READ, tmp_path, count, elements, form)
        assert isinstance(found["peak"], int) and found["peak"] < limit, found
        assert isinstance(found["resident"], int) and found["resident"] < limit, found
        assert found["firsts"] == [i + 1.5 for i in range(count)]
        assert found["result"] == [1.0]
    finally:
        for path in tmp_path.iterdir():
            path.unlink()
