"""Output files: whole or absent, never over their own sources, nothing left behind."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mobopt.errors import InputError
from mobopt.files import check_writable, whole_file


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_file_appears_when_it_is_complete_with_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    mask = os.umask(0o027)
    try:
        with whole_file(path) as file:
            file.write(b"new")
            assert not path.exists()
    finally:
        os.umask(mask)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_permissions_and_links_are_kept(tmp_path: Path) -> None:
    path, link = tmp_path / "a.bin", tmp_path / "link.bin"
    path.write_bytes(b"old")
    path.chmod(0o600)
    link.symlink_to(path)
    with whole_file(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    script = (
        "import os, signal, sys; from pathlib import Path; from mobopt.files import whole_file\n"
        "with whole_file(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    (tmp_path / ".a.bin.notes").write_text("of the user")
    with whole_file(path) as file:
        file.write(b"slow")
        with whole_file(path) as other:
            other.write(b"fast")
        assert path.read_bytes() == b"fast"
    assert path.read_bytes() == b"slow"
    assert sorted(os.listdir(tmp_path)) == [".a.bin.notes", "a.bin"]


def test_many_writers_of_one_file(tmp_path: Path) -> None:
    path, errors = tmp_path / "a.bin", []

    def write(number: int) -> None:
        try:
            for _ in range(20):
                with whole_file(path) as file:
                    file.write(bytes([number]) * 1000)
        except InputError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set(path.read_bytes())) == 1
    assert os.listdir(tmp_path) == ["a.bin"]


def test_devices_are_written_as_they_are(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    check_writable(pipe)
    with whole_file(pipe) as file:
        file.write(b"through")
    reader.join()
    assert got == [b"through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(InputError, match="can't write /dev/full: No space left"), whole_file(Path("/dev/full")) as file:
        file.write(b"x" * 100_000)


def test_unwritable_places(tmp_path: Path) -> None:
    for check in (check_writable, lambda path: whole_file(path).__enter__()):
        with pytest.raises(InputError, match=r"can't write .*absent.*choose another output path"):
            check(tmp_path / "absent" / "a.bin")
    with pytest.raises(InputError, match="it is a folder"):
        check_writable(tmp_path)
    with pytest.raises(InputError, match="can't write"), whole_file(tmp_path) as file:
        file.write(b"x")
    assert not os.listdir(tmp_path)


def test_a_source_is_never_the_output(tmp_path: Path) -> None:
    source, link, hard = tmp_path / "m.pt", tmp_path / "link.pt", tmp_path / "hard.pt"
    source.write_bytes(b"model")
    link.symlink_to(source)
    os.link(source, hard)
    for path in (source, link, hard, tmp_path / "." / "m.pt"):
        with pytest.raises(InputError, match="it is read as well, and would be lost; choose another output path"):
            check_writable(path, [tmp_path / "absent.npy", source])
    check_writable(tmp_path / "other.pt", [source])
