"""``mobopt report``."""

from __future__ import annotations

from pathlib import Path

from command_harness import Invoke, assert_refused


def test_the_page_is_named_after_the_model(invoke: Invoke, files: Path, tmp_path: Path) -> None:
    result = invoke(
        "report", files / "scripted.pt", "--target", "vulkan:2.6", "--device", "none", "--random", "1,3,5,5"
    )
    assert result.exit_code == 0, result.output
    assert "vulkan 2.6: nothing is missing or wrong" in result.stdout and "scripted.html is written" in result.stdout
    assert "<title>scripted.pt: report</title>" in (tmp_path / "scripted.html").read_text()


def test_what_can_not_be_reported(invoke: Invoke, files: Path, tmp_path: Path) -> None:
    assert_refused(invoke("report", files / "input.npy"), "input.npy")
    assert_refused(invoke("report", files / "scripted.pt", "--target", "opengl"), "Unknown backend")
    assert_refused(invoke("report", files / "scripted.pt", "--target", "vulkan:9.9"), "'9.9'")
    assert_refused(invoke("report", files / "scripted.pt", "-o", "no/page.html"), "no folder")
    assert_refused(invoke("report", files / "scripted.pt", "--device", "nosuch"), "no Vulkan device 'nosuch'")
    assert not list(tmp_path.iterdir())
