"""The way home of a file that only PyTorch Mobile's Vulkan runtime opens: migrated, checked, and compiled anew.

    python examples/stranded_file.py OLD.ptl --random 1,3,224,224

Without arguments it takes a file of the tests that PyTorch 1.13.1 wrote in 2022.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

import mobopt
from mobopt.samples.agreement import compare
from mobopt.samples.inputs import random_inputs

OLD = Path(__file__).parent.parent / "tests/golden/pt1.13.1/convbnrelu6/vulkan.ptl"
SHAPE = "1,3,32,32"


def main(old: Path = OLD, shapes: tuple[str, ...] = (SHAPE,), folder: Path | None = None) -> None:
    """Migrate a file to ONNX and to an ExportedProgram, and compile that for the GPU."""
    try:
        torch.jit.load(old)
    except RuntimeError as error:
        reason = next(line for line in str(error).splitlines() if "Unknown" in line or "locating" in line)
        print(f"PyTorch can't open {old.name}: {reason.strip()[:120]}")
    inputs = random_inputs(list(shapes))
    folder = folder or Path(tempfile.mkdtemp())
    for name in ("model.onnx", "model.pt2"):
        report = mobopt.migrate(old, folder / name, example_inputs=inputs)
        print(f"wrote {report.output}, {report.format}, run by {report.runner}:", end=" ")
        print(f"differs by {report.relative_difference:.0e} of scale")

    program = torch.export.load(folder / "model.pt2")
    module = program.module()
    compiled = torch.compile(module, backend="mobopt")
    with torch.no_grad():
        expected, found = module(*inputs), compiled(*inputs)
        again = mobopt.load(old)(*inputs)  # the old file itself, on any Vulkan device
    print(f"torch.compile: differs by {compare(found, expected).relative:.0e} of scale from eager")
    print(f"the old file as it is: differs by {compare(again, expected).relative:.0e}")
    assert compare(found, expected).agrees and compare(again, expected).agrees


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?", default=OLD)
    parser.add_argument("--random", action="append", help="the shape of an input, 1,3,224,224; once for each")
    arguments = parser.parse_args()
    main(arguments.old, tuple(arguments.random or [SHAPE]))
