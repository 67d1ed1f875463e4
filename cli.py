#!/usr/bin/env python3
"""Run any mobopt command from a fresh checkout: ``python3 cli.py demo``, ``python3 cli.py convert ...``; or the tests:
``python3 cli.py test``; or only set up for them: ``python3 cli.py setup``.

Uses the standard library only. On first use it makes ``.venv`` beside this file, installs mobopt and what it needs
there, and, where the machine has no Vulkan driver, the software one. A stamp in ``.venv`` remembers what was set up,
so a second run starts at once.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
STAMP = VENV / "mobopt-setup.json"
LOG = VENV / "setup.log"
TORCH = "torch==2.13.0"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds without CUDA."""
TORCHVISION = "torchvision==0.28"
OLDEST_PYTHON = (3, 10)
MOST_TEST_PROCESSES = 8


class SetupError(Exception):
    """Setting up can't go on; the message says what to do."""


@dataclass(frozen=True)
class SystemNeed:
    """Something that pip can't install, and the Debian packages that bring it."""

    purpose: str
    packages: tuple[str, ...]
    is_there: Callable[[], bool]


def main(arguments: list[str]) -> int:
    """Set up what the command needs, then become it."""
    if sys.version_info < OLDEST_PYTHON:
        raise SetupError(f"mobopt needs Python 3.10 or newer; this is {sys.version.split()[0]}")
    testing = arguments[:1] in (["test"], ["setup"])
    set_up(testing)
    if arguments == ["setup"]:
        return 0
    if testing:
        sharing = [f"--numprocesses={test_processes()}", "--dist=worksteal"]
        command = [str(BIN / "python"), "-m", "pytest", *sharing, *arguments[1:]]
        os.chdir(ROOT)
    else:
        command = [str(BIN / "mobopt"), *arguments]
    if os.name != "nt":
        os.execv(command[0], command)
    return subprocess.call(command)


def test_processes() -> int:
    """How many processes share the tests; a later ``-n`` of the user's wins."""
    return min(os.cpu_count() or 1, MOST_TEST_PROCESSES)


def set_up(testing: bool) -> None:
    """Bring the machine to where the command can run; does nothing that the stamp says is done."""
    needs = SYSTEM_NEEDS + (TEST_NEEDS if testing else ())
    stamp = read_stamp()
    profile = "test" if testing else "run"
    wanted = {"install": digest(["pyproject.toml", "setup.py", "cli.py"]), "shaders": digest(shader_sources())}
    done = stamp.get(profile, {})
    if done == wanted and (BIN / "python").exists():
        return
    check_writable()
    install_system_packages(needs)
    if not (BIN / "python").exists():
        make_environment()
    if done.get("install") != wanted["install"]:
        install_packages(testing)
    elif done.get("shaders") != wanted["shaders"]:
        step("building the shaders", [str(BIN / "python"), "-m", "mobopt.shaders.build"])
    stamp[profile] = wanted
    if testing:
        stamp["run"] = wanted
    write_stamp(stamp)


def check_writable() -> None:
    """Refuse a checkout that can't take the environment.

    Raises:
        SetupError: its folder can't be written.
    """
    place = VENV if VENV.exists() else ROOT
    if not os.access(place, os.W_OK):
        raise SetupError(
            f"{place} can't be written, and what mobopt needs is installed there; copy the checkout to a folder that "
            f"you can write, or install mobopt into an environment of your own: pip install {ROOT}"
        )


def digest(names: Iterable[str]) -> str:
    """Hash of files of the checkout, by name and content."""
    total = hashlib.sha256()
    for name in names:
        path = ROOT / name
        total.update(f"{name}\0".encode())
        total.update(path.read_bytes() if path.exists() else b"")
    return total.hexdigest()


def shader_sources() -> list[str]:
    """Every file that the SPIR-V is built from."""
    files = [ROOT / "shaders" / "variants.toml", *sorted((ROOT / "shaders" / "glsl").glob("*"))]
    return [str(path.relative_to(ROOT)) for path in files]


def read_stamp() -> dict[str, dict[str, str]]:
    """What earlier runs have set up; nothing if the stamp is missing or damaged."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(stamp: dict[str, dict[str, str]]) -> None:
    """Remember, last of all, so that an interrupted run is done again."""
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(stamp, indent=2))
    temporary.replace(STAMP)


def has_library(name: str) -> bool:
    """Whether the dynamic linker finds a library."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def has_vulkan_driver() -> bool:
    """Whether a Vulkan driver is registered with the loader."""
    if any(os.environ.get(name) for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")):
        return True
    if sys.platform != "linux":
        return True  # the loader of the platform comes with its driver
    places = ("/usr/share", "/usr/local/share", "/etc", "/usr/local/etc", "/usr/local/nvidia/share")
    return any(any(Path(place, "vulkan/icd.d").glob("*.json")) for place in places)


def has_vulkan_loader() -> bool:
    """Whether the Vulkan loader is installed."""
    names = {"win32": ["vulkan-1.dll"], "darwin": ["libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib"]}
    folders = {"darwin": ["", "/opt/homebrew/lib/", "/usr/local/lib/"]}
    return any(
        has_library(folder + name)
        for name in names.get(sys.platform, ["libvulkan.so.1"])
        for folder in folders.get(sys.platform, [""])
    )


def has_validation_layer() -> bool:
    """Whether the Khronos validation layer is installed."""
    places = ("/usr/share", "/usr/local/share", "/etc")
    return any(Path(place, "vulkan/explicit_layer.d/VkLayer_khronos_validation.json").exists() for place in places)


def has_swiftshader() -> bool:
    """Whether the second software driver is installed."""
    return Path("/usr/lib/chromium/vk_swiftshader_icd.json").exists()


def slangpy_has_wheel() -> bool:
    """Whether pip finds a wheel of slangpy here; the GLSL compiler that pyproject.toml asks for is in it."""
    if sys.version_info >= (3, 15):
        return False
    machine = platform.machine()
    if sys.platform == "linux":
        library, version = platform.libc_ver()
        return machine in ("x86_64", "aarch64") and library == "glibc" and numbers(version) >= (2, 34)
    if sys.platform == "darwin":
        oldest = (15,) if sys.version_info < (3, 14) else (26,)
        return machine == "arm64" and numbers(platform.mac_ver()[0]) >= oldest
    return sys.platform == "win32" and machine == "AMD64"


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def has_glsl_compiler() -> bool:
    """Whether the shaders can be compiled: pip brings a compiler, or the system has one."""
    return slangpy_has_wheel() or shutil.which("glslc") is not None


def has_venv() -> bool:
    """Whether this Python can make an environment with pip in it."""
    return all(importlib.util.find_spec(name) is not None for name in ("venv", "ensurepip"))


SYSTEM_NEEDS = (
    SystemNeed("Python's venv module", ("python3-venv",), has_venv),
    SystemNeed("a GLSL compiler", ("glslc",), has_glsl_compiler),
    SystemNeed("the Vulkan loader", ("libvulkan1",), has_vulkan_loader),
    SystemNeed("a Vulkan driver", ("mesa-vulkan-drivers",), has_vulkan_driver),
)
TEST_NEEDS = (
    SystemNeed("the Vulkan validation layer", ("vulkan-validationlayers",), has_validation_layer),
    SystemNeed("the SwiftShader driver", ("chromium",), has_swiftshader),
    SystemNeed("the SPIR-V tools", ("spirv-tools",), lambda: shutil.which("spirv-val") is not None),
)


def install_system_packages(needs: Iterable[SystemNeed]) -> None:
    """Install missing Debian packages, or say which are missing.

    Raises:
        SetupError: this is not Debian, or not root, or apt-get failed.
    """
    missing = [need for need in needs if not need.is_there()]
    if not missing:
        return
    packages = [package for need in missing for package in need.packages]
    can_install = shutil.which("apt-get") is not None and hasattr(os, "geteuid") and os.geteuid() == 0
    if not can_install:
        lines = [f"  {need.purpose} (Debian: {' '.join(need.packages)})" for need in missing]
        raise SetupError(
            "this machine lacks:\n" + "\n".join(lines) + "\nInstall them, then run this again. On Debian or Ubuntu:\n"
            f"  sudo apt-get install {' '.join(packages)}"
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    step("looking up Debian's packages", ["apt-get", "update", "-q"], environment)
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    step(f"installing {', '.join(packages)}", install, environment)


def make_environment() -> None:
    """Make ``.venv``, with the Python that runs this."""
    step("making .venv", [sys.executable, "-m", "venv", str(VENV)])


def without_cuda() -> list[str]:
    """What has pip take a build of PyTorch without CUDA, which is gigabytes that mobopt has no use for. Nothing where
    that index doesn't answer, as pip would wait for it, or where PyPI's builds are such ones."""
    if sys.platform != "linux":
        return []
    try:
        with urllib.request.urlopen(f"{CPU_BUILDS}/torch/", timeout=5):
            return ["--extra-index-url", CPU_BUILDS]
    except OSError:
        return []


def install_packages(testing: bool) -> None:
    """Install mobopt, editable, with what it needs; PyTorch first, so that nothing asks for another build of it.

    What builds mobopt stays in the environment, so that changed shaders are compiled without installing it again.
    """
    pip = [str(BIN / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-q"]
    step("installing PyTorch (the first time takes minutes)", [*pip, *without_cuda(), TORCH])
    extra = "[test]" if testing else ""
    step("installing what builds the shaders", [*pip, *build_requirements()])
    step("installing mobopt, building its shaders", [*pip, "--no-build-isolation", "-e", f"{ROOT}{extra}"])
    if testing:
        step("installing torchvision's model definitions", [*pip, "--no-deps", TORCHVISION, "pillow"])


def build_requirements() -> list[str]:
    """What pyproject.toml asks for to build mobopt, less what has no wheel here.

    Python 3.10 has no TOML parser; its list of plain strings is written like Python's.
    """
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r"^requires = (\[.*?^\])", text, re.MULTILINE | re.DOTALL)
    requirements: list[str] = ast.literal_eval(found[1]) if found else []
    return [name for name in requirements if slangpy_has_wheel() or not name.startswith("slangpy")]


def step(title: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run one command quietly, with its output in the log, and say how long it takes.

    Raises:
        SetupError: it failed; the message has the end of its output.
    """
    start = time.monotonic()
    announce = f"mobopt: {title} ..."
    print(announce, end="", flush=True, file=sys.stderr)
    with tempfile.TemporaryFile() as file:
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        ) as process:
            while is_running(process):
                if sys.stderr.isatty():
                    print(f"\r{announce} {time.monotonic() - start:.0f} s", end="", flush=True, file=sys.stderr)
        file.seek(0)
        output = file.read().decode(errors="replace")
    if VENV.exists():
        with LOG.open("a") as log:
            log.write(f"$ {' '.join(command)}\n{output}\n")
    if process.returncode != 0:
        print(" failed", file=sys.stderr)
        tail = "\n".join(output.strip().splitlines()[-15:])
        raise SetupError(f"{title} failed with exit code {process.returncode}: {' '.join(command)}\n{tail}")
    clear = f"\r{announce}" if sys.stderr.isatty() else ""
    print(f"{clear} {time.monotonic() - start:.0f} s", file=sys.stderr)


def is_running(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process still runs after another second."""
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return True
    return False


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        print(f"mobopt: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\nmobopt: interrupted; run the same command again to go on", file=sys.stderr)
        sys.exit(130)
