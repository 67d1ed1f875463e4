"""What each runtime of PyTorch Mobile does with each operator: the facts, and how a call is judged by them.

The rows (``*.toml``) are the one source of verdicts for legalisation, placement, audits and docs.
"""

from mobopt.ops.targets.row import RELEASES, Row
from mobopt.ops.targets.table import Target, rows_for
from mobopt.ops.targets.verdicts import Finding, judge

__all__ = ["RELEASES", "Finding", "Row", "Target", "judge", "rows_for"]
