"""The plans that a program keeps, the least recently used of which go when there are too many."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from mobopt.runtimes.vulkan.call_plan import CallPlan


class PlanStore:
    """Plans by key. A plan that is given up closes when the last call that has it ends."""

    def __init__(self, most: Callable[[], int], least: int = 1, most_bytes: int | None = None) -> None:
        """Start without plans.

        Args:
            most: how many plans to keep.
            least: how many to keep however much memory they take.
            most_bytes: how much memory of the device they may take together.
        """
        self._most = most
        self._least = least
        self._most_bytes = most_bytes
        self._plans: OrderedDict[Any, CallPlan] = OrderedDict()
        self._bytes = 0
        self._latest: CallPlan | None = None
        """The last one used."""

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[CallPlan]:
        return iter(self._plans.values())

    def get(self, key: Any) -> CallPlan | None:
        """A plan, which becomes the last one used."""
        plan = self._plans.get(key)
        if plan is not None and plan is not self._latest:
            self._plans.move_to_end(key)
            self._latest = plan
        return plan

    def put(self, key: Any, plan: CallPlan) -> None:
        """Keep a plan, and give up those that are too many."""
        self._plans[key] = self._latest = plan
        self._bytes += plan.own_bytes
        while self._is_full():
            self._retire()

    def forget(self) -> None:
        """Give all plans up."""
        while self._plans:
            self._retire()

    def drop(self) -> None:
        """Forget plans that another process has too, and close none."""
        self._plans.clear()
        self._latest = None
        self._bytes = 0

    def _is_full(self) -> bool:
        is_large = self._most_bytes is not None and self._bytes > self._most_bytes
        return len(self._plans) > (self._least if is_large else self._most())

    def _retire(self) -> None:
        _, plan = self._plans.popitem(last=False)
        self._bytes -= plan.own_bytes
        plan.is_retired = True
        if plan is self._latest:
            self._latest = None
        if not plan.users:
            plan.close()
