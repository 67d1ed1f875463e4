"""What every test stands on: the Khronos validation layer is on, and the user's caches are left alone."""

from __future__ import annotations

import gc
import logging
import os
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from mobopt.errors import DeviceError
from mobopt.runtimes.vulkan.engine.device import Device
from mobopt.runtimes.vulkan.engine.device_cache import device_file
from mobopt.runtimes.vulkan.engine.devices import open_device
from mobopt.runtimes.vulkan.kernels import tuned_costs

_LAYER_PLACES = ("/usr/share", "/usr/local/share", "/etc")
if any(Path(place, "vulkan/explicit_layer.d/VkLayer_khronos_validation.json").exists() for place in _LAYER_PLACES):
    os.environ.setdefault("MOBOPT_VALIDATION", "1")

# Tests share the cores already, and threads of torch that wait for one another keep them busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# torch.jit knows builtin functions by their ids, in a table that it makes when something is first scripted: of one that
# a test has put there for a while, the id would be another object's afterwards.
torch.jit._builtins._get_builtin_table()
_register_builtin = torch.jit._builtins._register_builtin


def _register_and_keep(builtin: Callable[..., Any], name: str) -> None:
    """Register an operator, and keep what stands for it: torch lets go of it when the operator gets another overload
    (`quantized_decomposed::quantize_per_tensor`, on import), but not of its id, so that `torch.jit.script` takes the
    next object at its address, a list of a module say, for the operator."""
    torch.jit._builtins._builtin_ops.append((builtin, name))
    _register_builtin(builtin, name)


torch.jit._builtins._register_builtin = _register_and_keep

# Warnings are errors: what torch says once in a process would fail whichever test comes first.
torch.set_warn_always(True)


def pytest_configure(config: pytest.Config) -> None:
    """Software Vulkan compiles without LLVM's optimisations, which most kernels of a test take longer for than to run;
    sweeps, and all that isn't a test, have them."""
    if config.option.markexpr == "not sweep":
        os.environ.setdefault("GALLIVM_PERF", "nopt")


@pytest.fixture(scope="session", autouse=True)
def cache_folder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the user's pipeline cache out of it: all workers, and later runs, share one of their own."""
    assert request.config.cache is not None
    os.environ["MOBOPT_CACHE_DIR"] = str(request.config.cache.mkdir("pipelines"))
    yield
    del os.environ["MOBOPT_CACHE_DIR"]


@pytest.fixture
def own_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test tunes, others don't go by that run at the same time or later."""
    monkeypatch.setattr(
        tuned_costs, "_tuned_file", lambda device: tmp_path / device_file("costs", device, ".json").name
    )
    tuned_costs._read_tuned.cache_clear()
    yield
    tuned_costs._read_tuned.cache_clear()


def pytest_collection_finish() -> None:
    """What is there before the first test stays: looking through it again and again took a tenth of the run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    """Random numbers that depend on the test alone, so that a failure can be run again by itself."""
    seed = zlib.crc32(request.node.nodeid.encode())
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


class _Messages(logging.Handler):
    """Keeps the messages that begin with certain words."""

    def __init__(self, beginning: str) -> None:
        super().__init__()
        self.messages: list[str] = []
        self._beginning = beginning

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self._beginning):
            self.messages.append(record.getMessage())


@pytest.fixture(autouse=True)
def no_validation_messages(request: pytest.FixtureRequest) -> Iterator[None]:
    """A message of the validation layer fails the test that it comes in; tests/vulkan has fixtures of its own."""
    if request.path.parent.name == "vulkan":
        yield
        return
    handler, logger = _Messages("validation:"), logging.getLogger("mobopt.vulkan")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    assert not handler.messages, "\n".join(handler.messages)


@pytest.fixture(autouse=True)
def no_faults_of_rules() -> Iterator[None]:
    """A shape rule that fails on arguments of the right kinds fails the test."""
    handler, logger = _Messages("the rule of"), logging.getLogger("mobopt.shapes")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    assert not handler.messages, "\n".join(handler.messages)


@pytest.fixture
def device() -> Device:
    """The device that MOBOPT_DEVICE names, by default lavapipe."""
    try:
        return open_device(os.environ.get("MOBOPT_DEVICE", "llvmpipe"))
    except DeviceError as error:
        if os.environ.get("CI"):
            raise  # there, a missing driver must not pass for success
        pytest.skip(str(error))
