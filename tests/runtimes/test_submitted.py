"""Calls that were submitted: who ends them, and when. No device."""

import asyncio
import concurrent.futures
import threading

import pytest

from mobopt.runtimes.vulkan.submitted import SubmittedCalls


class Call:
    """A call that has begun, and notes how it is ended."""

    def __init__(self, value: object, gate: threading.Event | None = None) -> None:
        self.value, self.gate = value, gate
        self.threads: list[threading.Thread] = []
        self.polled: list[bool] = []

    def __call__(self, polls: bool) -> object:
        self.threads.append(threading.current_thread())
        self.polled.append(polls)
        if self.gate is not None:
            assert self.gate.wait(60)
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> SubmittedCalls:
    """Calls that no worker ends for two seconds."""
    monkeypatch.setattr("mobopt.runtimes.vulkan.submitted._PATIENCE_SECONDS", 2.0)
    return SubmittedCalls(most=2, workers=2)


def test_who_asks_for_the_result_ends_the_call(patient: SubmittedCalls) -> None:
    call = Call(3)
    future = patient.add(call)
    assert not future.done()
    assert [future.result(), future.result()] == [3, 3]
    assert call.threads == [threading.current_thread()]
    assert call.polled == [True]


def test_errors_are_raised_by_the_result(patient: SubmittedCalls) -> None:
    future = patient.add(Call(ValueError("wrong")))
    with pytest.raises(ValueError, match="wrong"):
        future.result()
    assert isinstance(future.exception(), ValueError)
    assert patient.add(Call(1)).exception() is None


def test_the_oldest_end_where_there_is_no_room(patient: SubmittedCalls) -> None:
    calls = [Call(number) for number in range(5)]
    futures = []
    for number, call in enumerate(calls):
        patient.make_room()
        futures.append(patient.add(call))
        assert [future.done() for future in futures] == [place < number - 1 for place in range(number + 1)]
    assert [future.result() for future in futures] == list(range(5))
    assert {thread for call in calls for thread in call.threads} == {threading.current_thread()}


@pytest.mark.parametrize(
    "collect", [concurrent.futures.wait, lambda futures: [*concurrent.futures.as_completed(futures)]]
)
def test_what_nobody_asks_for_ends_too(collect: object) -> None:
    calls = [Call(number) for number in range(3)]
    submitted = SubmittedCalls(most=3, workers=1)
    futures = [submitted.add(call) for call in calls]
    collect(futures)  # type: ignore[operator]
    assert all(future.done() for future in futures)
    assert all(call.polled == [False] and call.threads != [threading.current_thread()] for call in calls)
    assert submitted.add(later := Call(7)).result(60) == 7  # the watch begins again
    assert len(later.threads) == 1


def test_callbacks_and_timeouts_are_for_workers(patient: SubmittedCalls) -> None:
    gate, called = threading.Event(), threading.Event()
    call = Call("late", gate)
    future = patient.add(call)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0.01)
    future.add_done_callback(lambda done: called.set())
    assert not called.is_set()
    gate.set()
    assert called.wait(60)
    assert future.result(60) == "late"
    assert len(call.threads) == 1

    async def awaited() -> object:
        return await asyncio.wrap_future(patient.add(Call("awaited")))

    assert asyncio.run(awaited()) == "awaited"


def test_two_threads_ask(patient: SubmittedCalls) -> None:
    gate = threading.Event()
    call = Call("shared", gate)
    future = patient.add(call)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(future.result) for _ in range(4)]
        gate.set()
        assert [one.result(60) for one in asked] == ["shared"] * 4
    assert len(call.threads) == 1
