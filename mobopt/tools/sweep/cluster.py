"""Where the tasks of a sweep run: workers of Dask, in this process or on other machines."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mobopt.errors import InputError
from mobopt.tools.sweep.jobs import BENCH, CPU, Task
from mobopt.tools.sweep.processes import stop_processes

GPU = "GPU"
"""The resource of a worker that may run tasks of any Vulkan device, as Dask's documentation calls it; one called like a
device is for that one only. Small and capital letters are the same in both."""
_CPU_SLOT = "cpu"
_CONNECT_SECONDS = 10
_WITHOUT_PORT = ("inproc:", "ucx:")
_WORKER_SECONDS = 30


class Cluster:
    """Workers that tasks can be sent to.

    Attributes:
        client: Dask's.
        is_local: whether the workers are threads of this process.
    """

    def __init__(self, client: Any, address: str) -> None:
        """``address`` is empty for a local cluster."""
        self.client = client
        self.address = address
        self.is_local = not address

    def workers(self) -> dict[str, Any]:
        """What each worker offers, by address."""
        found: dict[str, Any] = self.client.scheduler_info()["workers"]
        return found

    def resource_of(self, task: Task) -> str:
        """What a worker must have for a task; empty if any worker will do.

        Raises:
            InputError: no worker has it.
        """
        device = task.job.device
        if self.is_local:
            return device if device and device != CPU else _CPU_SLOT
        if not device or device == CPU:
            return ""
        offered = {name.casefold(): name for name in self._offered()}
        found = next((offered[name] for name in (device.casefold(), GPU.casefold()) if name in offered), None)
        if found is None:
            raise InputError(
                f"no worker of {self.address} offers the resource {device!r} or {GPU!r}, which {task.job} runs on; "
                f'start workers beside the device with: dask worker {self.address} --nthreads 1 --resources "{GPU}=1"'
            )
        return found

    def slots(self, resource: str) -> int:
        """How many tasks with a resource run at the same time."""
        workers = self.workers().values()
        if not resource:
            return sum(int(worker["nthreads"]) for worker in workers)
        return sum(int(worker.get("resources", {}).get(resource, 0)) for worker in workers)

    def runs_alone(self, task: Task) -> bool:
        """Whether nothing else may run on this machine meanwhile, since time is measured."""
        return self.is_local and task.job.do == BENCH

    def _offered(self) -> set[str]:
        return {name for worker in self.workers().values() for name in worker.get("resources", {})}


@contextmanager
def open_cluster(scheduler: str | None, workers: int, devices: Collection[str]) -> Iterator[Cluster]:
    """Connect to a scheduler, or start workers here.

    Args:
        scheduler: its address, such as ``tcp://10.0.0.5:8786``; None: a local cluster.
        workers: how many tasks run at the same time in a local cluster, beside one for each Vulkan device; 0: one for
            every two cores.
        devices: Vulkan devices that tasks will ask for.

    Raises:
        InputError: Dask is not installed, the scheduler can't be reached, or has no workers.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise InputError(
            f"sweeps run on Dask, which is not there ({error}); install it with: pip install mobopt[sweep]"
        ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is said by the sweep
    if scheduler is not None:
        with _client_of(distributed, scheduler) as client:
            yield Cluster(client, scheduler)
        return
    options = {"distributed.scheduler.allowed-failures": 0, "distributed.worker.profile.enabled": False}
    with dask.config.set(options), _local(distributed, workers or default_workers(), devices) as client:
        try:
            yield Cluster(client, "")
        finally:
            stop_processes()


def default_workers() -> int:
    """For a local cluster: one for every two cores."""
    return max(1, (os.cpu_count() or 1) // 2)


@contextmanager
def _client_of(distributed: Any, address: str) -> Iterator[Any]:
    try:
        if not address.startswith(_WITHOUT_PORT):
            distributed.comm.get_address_host_port(address)  # a client of what is no address takes long to give up
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"can't reach the scheduler {address}: {str(error) or type(error).__name__}; start one with `dask "
            "scheduler`, give the address that it prints, or leave --scheduler out for a local cluster"
        ) from None
    try:
        try:
            client.wait_for_workers(1, timeout=_WORKER_SECONDS)
        except TimeoutError:
            raise InputError(
                f"the scheduler {address} has no workers; start some with: dask worker {address} --nthreads 1"
            ) from None
        yield client
    finally:
        with suppress(Exception):  # the scheduler may be gone
            client.close(timeout=_CONNECT_SECONDS)


@contextmanager
def _local(distributed: Any, count: int, devices: Collection[str]) -> Iterator[Any]:
    """Workers as threads of this process: each task has a process of its own anyway."""
    common = {"protocol": "inproc://", "dashboard": False}
    slots = [_CPU_SLOT] * count + sorted(devices)
    workers = {
        number: {
            "cls": distributed.Worker,
            "options": {**common, "nthreads": 1, "resources": {slot: 1}, "memory_limit": 0},
        }
        for number, slot in enumerate(slots)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {**common, "dashboard_address": ":0"}}
    with (
        distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.CRITICAL) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client
