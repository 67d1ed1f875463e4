"""Inputs for several methods on the command line."""

from pathlib import Path

import torch
from command_harness import Invoke
from torch import nn


class _Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv2d(4, 4, 3), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)

    @torch.jit.export
    def decode(self, rows: torch.Tensor) -> torch.Tensor:
        return self.decoder(rows)


def test_inputs_for_several_methods(invoke: Invoke, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(_Coder().eval()), str(tmp_path / "coder.pt"))
    command = (
        "convert",
        "coder.pt",
        "-o",
        "coder.ptl",
        "--runtime",
        "1.13",
        "--preserve",
        "decode",
        "--random",
        "1,4,7,5",
    )
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    last = result.stdout.splitlines()[-1]
    assert last.startswith("unknown: 1 operator runs on the phone's CPU") and "decode" in last
    audit = invoke("audit", "coder.ptl", "--runtime", "1.13", "--random", "1,4,7,5", "--random", "decode:3,6")
    assert audit.exit_code == 0, audit.output
    result = invoke(*command, "--random", "decode:3,6")
    assert result.exit_code == 0 and "unknown" not in result.stdout, result.output
    assert "vulkan_prepack::run_linear_context" in invoke("opnames", "coder.ptl").stdout
    result = invoke("audit", "coder.pt", "--runtime", "1.13", "--preserve", "decode", "--random", "decode:3,6")
    assert result.exit_code == 0 and "decode: float32[3, 6]" in result.stdout, result.output
    result = invoke("convert", "coder.pt", "-o", "other.ptl", "--random", "decode:3,6")
    assert result.exit_code == 2 and "preserve" in result.output
