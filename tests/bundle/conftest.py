"""What the bundle tests share."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
from stock_torch import InStockTorch


@pytest.fixture(scope="session")
def in_stock_torch() -> Iterator[InStockTorch]:
    """A process with a torch to which no test has declared an operator."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()
