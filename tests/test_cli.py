"""Setting up a checkout: what is installed when, and what is said where nothing can be installed."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCRIPT = Path(__file__).parent.parent / "cli.py"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """cli.py for an empty checkout on a machine that has everything that pip can't install."""
    spec = importlib.util.spec_from_file_location("checkout_cli", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "checkout_cli", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "BIN", tmp_path / ".venv" / "bin")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "mobopt-setup.json")
    for name in ("SYSTEM_NEEDS", "TEST_NEEDS"):
        monkeypatch.setattr(module, name, tuple(_met(module, need) for need in getattr(module, name)))
    (tmp_path / "shaders" / "glsl").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text((SCRIPT.parent / "pyproject.toml").read_text())
    return module


def _met(cli: ModuleType, need: object, there: bool = True) -> object:
    return cli.SystemNeed(need.purpose, need.packages, lambda: there)  # type: ignore[attr-defined]


@pytest.fixture
def steps(cli: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that setting up runs; making the environment makes its Python appear."""
    done: list[list[str]] = []

    def step(title: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        done.append(command)
        if "venv" in command:
            cli.BIN.mkdir(parents=True)
            (cli.BIN / "python").touch()

    monkeypatch.setattr(cli, "step", step)
    monkeypatch.setattr(cli, "without_cuda", lambda: ["--extra-index-url", cli.CPU_BUILDS])
    return done


def test_first_run_installs_and_second_does_nothing(cli: ModuleType, steps: list[list[str]]) -> None:
    cli.set_up(testing=False)
    assert [step[-2:] for step in steps] == [
        ["venv", str(cli.VENV)],
        [cli.CPU_BUILDS, "torch==2.13.0"],
        cli.build_requirements()[-2:],
        ["-e", str(cli.ROOT)],
    ]
    assert "--no-build-isolation" in steps[-1]
    steps.clear()
    cli.set_up(testing=False)
    assert steps == []
    cli.set_up(testing=True)
    assert any(step[-1].endswith("[test]") for step in steps)


@pytest.mark.parametrize(
    ("system", "answers", "asks"), [("linux", True, True), ("linux", False, False), ("win32", True, False)]
)
def test_builds_without_cuda(
    cli: ModuleType, monkeypatch: pytest.MonkeyPatch, system: str, answers: bool, asks: bool
) -> None:
    """Asked for where there are others, and only if their index answers."""

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        assert url.startswith("https://") and timeout <= 10
        if not answers:
            raise urllib.error.URLError("no such host")
        return io.BytesIO()

    monkeypatch.setattr(cli.sys, "platform", system)
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert cli.without_cuda() == (["--extra-index-url", cli.CPU_BUILDS] if asks else [])


def test_new_shaders_are_built_and_nothing_else(cli: ModuleType, steps: list[list[str]]) -> None:
    cli.set_up(testing=False)
    steps.clear()
    (cli.ROOT / "shaders" / "glsl" / "new.comp").write_text("void main() {}")
    cli.set_up(testing=False)
    assert [step[1:] for step in steps] == [["-m", "mobopt.shaders.build"]]


def test_what_builds_it_is_what_pyproject_says(cli: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tomllib.loads((SCRIPT.parent / "pyproject.toml").read_text())["build-system"]["requires"]
    monkeypatch.setattr(cli, "slangpy_has_wheel", lambda: True)
    assert cli.build_requirements() == said
    monkeypatch.setattr(cli, "slangpy_has_wheel", lambda: False)
    assert cli.build_requirements() == [name for name in said if "slangpy" not in name] != said


@pytest.mark.parametrize(
    ("system", "machine", "version", "offered"),
    [
        ("linux", "x86_64", ("glibc", "2.36"), True),
        ("linux", "aarch64", ("glibc", "2.34"), True),
        ("linux", "x86_64", ("glibc", "2.31"), False),
        ("linux", "x86_64", ("", ""), False),
        ("linux", "armv7l", ("glibc", "2.36"), False),
        ("darwin", "arm64", "26.1", True),
        ("darwin", "arm64", "13.5.2", False),
        ("darwin", "x86_64", "26.1", False),
        ("win32", "AMD64", None, True),
        ("win32", "ARM64", None, False),
    ],
)
def test_where_pip_brings_no_compiler_the_system_must(
    cli: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    machine: str,
    version: object,
    offered: bool,
) -> None:
    monkeypatch.setattr(cli.sys, "platform", system)
    monkeypatch.setattr(cli.platform, "machine", lambda: machine)
    monkeypatch.setattr(cli.platform, "libc_ver", lambda: version)
    monkeypatch.setattr(cli.platform, "mac_ver", lambda: (version, ("", "", ""), machine))
    monkeypatch.setattr(cli.shutil, "which", lambda name: None)
    assert cli.slangpy_has_wheel() == cli.has_glsl_compiler() == offered
    monkeypatch.setattr(cli.shutil, "which", lambda name: "/usr/bin/glslc")
    assert cli.has_glsl_compiler()


def test_an_interrupted_setup_is_done_again(
    cli: ModuleType, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(testing: bool) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cli, "install_packages", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cli.set_up(testing=False)
    assert not cli.STAMP.exists()
    cli.set_up(testing=False)
    assert steps[-1][-2:] == ["-e", str(cli.ROOT)] and cli.STAMP.exists()


def test_a_damaged_stamp_is_no_stamp(cli: ModuleType, steps: list[list[str]]) -> None:
    cli.set_up(testing=False)
    for content in ("{", "[]"):
        cli.STAMP.write_text(content)
        steps.clear()
        cli.set_up(testing=False)
        assert steps


@pytest.mark.parametrize(("user", "apt"), [(1000, "/usr/bin/apt-get"), (0, None)])
def test_who_cannot_install_is_told_what_to_install(
    cli: ModuleType, monkeypatch: pytest.MonkeyPatch, user: int, apt: str | None
) -> None:
    monkeypatch.setattr(cli, "SYSTEM_NEEDS", tuple(_met(cli, need, there=False) for need in cli.SYSTEM_NEEDS))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(cli.shutil, "which", lambda name: apt if name == "apt-get" else None)
    with pytest.raises(cli.SetupError) as caught:
        cli.set_up(testing=False)
    command = "sudo apt-get install python3-venv glslc libvulkan1 mesa-vulkan-drivers"
    assert "a GLSL compiler (Debian: glslc)" in str(caught.value) and command in str(caught.value)
    assert not cli.VENV.exists()


def test_root_on_debian_installs_what_is_missing(
    cli: ModuleType, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "TEST_NEEDS", tuple(_met(cli, need, there=False) for need in cli.TEST_NEEDS))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cli.shutil, "which", lambda name: f"/usr/bin/{name}")
    cli.set_up(testing=True)
    assert steps[0][:2] == ["apt-get", "update"]
    assert steps[1][-3:] == ["vulkan-validationlayers", "chromium", "spirv-tools"]


def test_a_failing_step_says_how_it_failed(cli: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(cli.SetupError, match=r"trying failed with exit code 3(.|\n)*no luck"):
        cli.step("trying", [sys.executable, "-c", "print('no luck'); raise SystemExit(3)"])
    assert capsys.readouterr().err == "mobopt: trying ... failed\n"


def test_it_needs_the_standard_library_only() -> None:
    code = f"import sys; sys.argv = ['cli.py']; sys.path.insert(0, {str(SCRIPT.parent)!r}); import cli; "
    code += "print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"cli", "__main__"}


def test_a_checkout_that_can_not_be_written(
    cli: ModuleType, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.os, "access", lambda path, mode: False)
    with pytest.raises(cli.SetupError, match=r"can't be written.*copy the checkout.*pip install"):
        cli.set_up(testing=False)
    assert steps == []
