from __future__ import annotations

from pathlib import Path

import pytest
from kit_nets import every_kind_examples, write_every_kind

import mobopt


@pytest.fixture(scope="session")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kit of a model with every kind of argument and result."""
    folder = tmp_path_factory.mktemp("kit")
    file = write_every_kind(folder / "every_kind.ptl")
    mobopt.app_kit(file, folder / "kit", example_inputs=every_kind_examples())
    return folder / "kit"
