"""Who is in a gate is waited for, and nobody comes in once it is closed."""

import threading

import pytest

from mobopt.errors import DeviceError, DeviceLostError
from mobopt.runtimes.vulkan.engine.device_gate import DeviceGate

SOON = 0.05
LONG = 30


def test_closing_waits_until_all_are_out() -> None:
    gate, closed = DeviceGate("a device"), threading.Event()

    def close() -> None:
        assert gate.close(LONG)
        closed.set()

    with gate:
        gate.stay()
    closing = threading.Thread(target=close)
    closing.start()
    assert not closed.wait(SOON)
    with gate.leaving():
        assert not closed.wait(SOON)
    assert closed.wait(LONG)
    closing.join()
    assert gate.close(0)


def test_closing_gives_up_on_those_that_stay() -> None:
    gate = DeviceGate("a device")
    with gate:
        assert not gate.close(SOON)
    assert gate.close(0)


def test_nobody_comes_into_a_closed_gate() -> None:
    gate = DeviceGate("a device")
    assert gate.close()
    for _ in range(2):
        with pytest.raises(DeviceError, match="a device is closed"), gate:
            pass
    assert gate.close(0)


def test_nobody_comes_in_once_the_device_is_lost() -> None:
    gate = DeviceGate("a device")
    with pytest.raises(DeviceLostError), gate:
        raise DeviceLostError("lost")
    assert gate.is_lost
    with pytest.raises(DeviceError, match="was lost"), gate:
        pass
    assert gate.close(0)


def test_a_forked_process_counts_nobody() -> None:
    gate = DeviceGate("a device")
    with gate:
        gate.forget()
        assert gate.close(0)
    assert gate.close(0)


def test_many_threads_pass_while_it_is_closed() -> None:
    gate = DeviceGate("a device")
    inside: list[int] = []
    begun = threading.Barrier(5)

    def pass_through(number: int) -> None:
        begun.wait()
        while True:
            try:
                with gate:
                    inside.append(number)
                    inside.remove(number)
            except DeviceError:
                return

    threads = [threading.Thread(target=pass_through, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    assert gate.close(LONG)
    assert not inside
    for thread in threads:
        thread.join()
