"""What an NVIDIA GPU's compiler makes of a network's kernels:
``python tests/benchmarks/instructions.py resnet50@8 --precision fp16 --device NVIDIA [--shader product] [--folder F]``.

A row for each pipeline: its shader, instructions, registers, and how many its main loop has, of which kinds most;
``--folder`` keeps the listings. Needs ``nvdisasm`` of CUDA (or of ``pip install nvidia-cuda-nvdisasm``) on the path,
and the package zstandard. Where code lies in a pipeline cache was found by looking at drivers 580; others may differ.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from table_nets import NAMES, built

from mobopt import optimize_for_mobile
from mobopt.options import PrecisionChoice
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.engine.pipelines import PipelineKey, PipelineStore
from mobopt.runtimes.vulkan.program import VulkanProgram

FRAME = b"\x28\xb5\x2f\xfd"
"""What a frame of zstd begins with."""
SIZE_AND_START = 76
"""Where, in the frame, the bytes of the code and their place behind the first eight bytes are."""
ARCHITECTURE = "SM90"
KINDS = 9


class Instruction(NamedTuple):
    """A line of a listing."""

    address: int
    text: str

    @property
    def kind(self) -> str:
        """The name without its modifiers and its predicate."""
        return re.sub(r"^@!?U?P\d+\s+", "", self.text).split()[0].split(".")[0].rstrip(";")


def instructions_of(listing: str) -> list[Instruction]:
    """Those of a listing of nvdisasm."""
    lines = re.findall(r"^\s*/\*([0-9a-f]+)\*/\s+(\S.*?)\s*;?\s*$", listing, re.MULTILINE)
    return [Instruction(int(address, 16), text) for address, text in lines]


def loops_of(code: list[Instruction]) -> Iterator[list[Instruction]]:
    """From where a branch goes back to, up to it."""
    places = {line.address: number for number, line in enumerate(code)}
    for number, line in enumerate(code):
        target = re.search(r"\bBRA (?:\S+, )?0x([0-9a-f]+)", line.text)
        if target and int(target[1], 16) < line.address:
            yield code[places[int(target[1], 16)] : number + 1]


def main_loop(code: list[Instruction]) -> list[Instruction]:
    """The shortest loop of those with the most products of matrix units, or the longest; empty if there is none."""

    def rank(loop: list[Instruction]) -> tuple[int, int]:
        products = sum(line.kind == "HMMA" for line in loop)
        return products, -len(loop) if products else len(loop)

    return max(loops_of(code), key=rank, default=[])


def machine_code(cache: bytes) -> bytes:
    """The code in the data of a pipeline cache of one pipeline.

    Raises:
        SystemExit: it isn't where it was with the drivers that were looked at.
    """
    start = cache.find(FRAME)
    data = b"" if start < 0 else _decompressed(cache[start:])
    if not data.startswith(b"NVDA"):
        raise SystemExit("no code of NVIDIA's compiler was found in the pipeline cache: another driver?")
    size, begin = struct.unpack_from("<II", data, SIZE_AND_START)
    return bytes(data[8 + begin : 8 + begin + size])


def _decompressed(frame: bytes) -> bytes:
    try:
        zstandard = importlib.import_module("zstandard")
    except ModuleNotFoundError:
        raise SystemExit("the package zstandard isn't installed: pip install zstandard") from None
    return bytes(zstandard.ZstdDecompressor().decompressobj().decompress(frame))


def listing_of(code: bytes) -> str:
    """What nvdisasm prints of it."""
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(code)
        file.flush()
        command = ["nvdisasm", "-b", ARCHITECTURE, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cache_of(device: Device, key: PipelineKey) -> bytes:
    """The data of a pipeline cache that has this pipeline alone."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MOBOPT_CACHE_DIR"] = folder
        store = PipelineStore(device)
        store.acquire([key])
        store.release([key])
        store.close()
        return next(Path(folder).rglob("*.bin")).read_bytes()


def pipelines_of(device: Device, name: str, precision: str) -> list[PipelineKey]:
    """The pipelines that a network runs."""
    model, x = built(name)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    exported = torch.export.export(model, (x,), strict=False)
    options = {} if precision == "fp32" else {"precision": precision}
    module = optimize_for_mobile(exported, backend="vulkan", runtime="mobopt", **options)  # type: ignore[call-overload]
    met: dict[PipelineKey, None] = {}
    acquire = PipelineStore.acquire

    def recorded(store: PipelineStore, keys: list[PipelineKey]) -> object:
        keys = list(keys)
        met.update(dict.fromkeys(keys))
        return acquire(store, keys)

    PipelineStore.acquire = recorded  # type: ignore[method-assign, assignment]
    program = VulkanProgram(module.program, device, precision=PrecisionChoice.of(precision))
    program(x)
    program.close()
    PipelineStore.acquire = acquire  # type: ignore[method-assign]
    return list(met)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help=f"one of {', '.join(NAMES)}, with @8 for a batch of 8")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", help="part of its name")
    parser.add_argument("--shader", default="", help="only shaders whose names have this in them")
    parser.add_argument("--folder", type=Path, help="where listings are kept")
    arguments = parser.parse_args()
    if shutil.which("nvdisasm") is None:
        raise SystemExit("nvdisasm isn't on the path: install CUDA, or nvidia-cuda-nvdisasm by pip")
    table = Table("pipeline", "shader", "instructions", "registers", "loop", "most of it")
    device = open_device(arguments.device)
    for number, key in enumerate(pipelines_of(device, arguments.network, arguments.precision)):
        if arguments.shader not in key.shader:
            continue
        listing = listing_of(machine_code(cache_of(device, key)))
        code = instructions_of(listing)
        loop = main_loop(code)
        registers = max((int(name) for line in code for name in re.findall(r"\bR(\d+)", line.text)), default=-1) + 1
        most = Counter(line.kind for line in loop).most_common(KINDS)
        kinds = ", ".join(f"{kind} {count}" for kind, count in most)
        row = (number, key.shader, len(code), registers, len(loop), kinds)
        table.add_row(*map(str, row))
        if arguments.folder:
            arguments.folder.mkdir(parents=True, exist_ok=True)
            (arguments.folder / f"{number}_{key.shader}.txt").write_text(listing)
    Console().print(table)


if __name__ == "__main__":
    main()
