"""Sizes of a product of matrices: what the choice of a kernel is made from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProductShape:
    """Sizes of a product; inner and columns count vec4s."""

    rows: int
    inner: int
    columns: int
    group_columns: int
    """Columns of one group; the same as ``columns`` if there are no groups."""
    batches: int = 1
    taps: int = 1
    """How many runs of input channels the inner dimension consists of."""
    half_run: int = 0
    """Of operands that are halves: how many of them, 8 or 4, lie side by side wherever a kernel reads; else 0."""
    float_run: int = 0
    """The same of floats, or of floats and halves, which kernels may split into halves; else 0."""
    fits_fragments: bool = False
    """Whether ``product_fragments.comp`` can read the operands: they are halves, or floats of which the weights can be
    split on the host, the weights are one matrix of constants, which may be put into another order, and eight numbers
    of the input lie side by side wherever a kernel reads."""
    ahead: int = 0
    """Workgroups up to which a dispatch may read its weights while those before it run: they are constants, and it
    waits by a counter."""
    is_plain: bool = False
    """Whether rows are one run, and every column sums over all of the input as it lies in memory."""
    bits: int = 0
    """Of weights that are integers, 8 or 4; else 0."""
    is_normalized: bool = False
    """Whether its rows are normalised as they are read, so that a workgroup needs all of a row."""
    shortcut: int = 0
    """How many of its inner dimension, the last, are of another input, which ``product_fragments.comp`` alone reads."""

    @property
    def group_count(self) -> int:
        """How many groups the columns form."""
        return self.columns // self.group_columns if self.group_columns else 1
