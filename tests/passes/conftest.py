"""What tests of passes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def qnnpack() -> Iterator[None]:
    """torch's kernels that phones have."""
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "qnnpack"
    yield
    torch.backends.quantized.engine = engine
