"""Variables of the environment: misspelt ones are said, by name."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mobopt import environment
from mobopt.commands import main
from mobopt.environment import VARIABLES, is_on, warn_of_unknown
from mobopt.errors import DeviceError, InputError
from mobopt.runtimes.vulkan.engine.devices import open_device


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    environment._warn_of.cache_clear()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("MOBOPT_DEVCE", "did you mean MOBOPT_DEVICE?"),
        ("MOBOPT_CACHE", "did you mean MOBOPT_CACHE_DIR?"),
        ("MOBOPT_NONSENSE", "it reads MOBOPT_DEVICE, MOBOPT_CACHE_DIR"),
    ],
)
def test_an_unknown_name(
    name: str, remedy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MOBOPT_QUIRKS", "none")
    for _ in range(2):
        warn_of_unknown()
    (message,) = caplog.messages
    assert message.startswith(f"the environment variable {name} means nothing to mobopt; {remedy}")


def test_commands_say_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MOBOPT_VALIDATE", "1")
    assert CliRunner().invoke(main, ["devices", "--help"]).exit_code == 0
    assert caplog.messages == [
        "the environment variable MOBOPT_VALIDATE means nothing to mobopt; did you mean MOBOPT_VALIDATION?"
    ]


@pytest.mark.parametrize("value", ["yes", "true", "2", " 1"])
def test_a_switch_of_another_value(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOBOPT_VALIDATION", value)
    with pytest.raises(InputError, match=f"^MOBOPT_VALIDATION={value}: it is 1 .on. or 0 .off.$"):
        open_device()


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOBOPT_VALIDATION", raising=False)
    assert not is_on("MOBOPT_VALIDATION")
    for value, expected in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("MOBOPT_VALIDATION", value)
        assert is_on("MOBOPT_VALIDATION") is expected


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOBOPT_DEVICE", "abacus")
    with pytest.raises(DeviceError, match=r"no Vulkan device 'abacus' \(MOBOPT_DEVICE\); choose"):
        open_device()
    with pytest.raises(DeviceError, match="no Vulkan device 'slate'; choose"):
        open_device("slate")


def test_help_lists_what_is_read() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    assert all(f"  {name} " in text for name in VARIABLES)
