"""Directories are replaced as a whole or not at all, whenever the writer dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from runtime import directory
from runtime.directory import (
    DirectoryBusyError,
    DirectoryTargetError,
    aside_path,
    recover,
    replace_directory,
    write_text_atomically,
)
from runtime.errors import WriteError


def write(path: Path, text: str) -> None:
    with replace_directory(path) as temporary:
        (temporary / "file").write_text(text)


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if not p.name.endswith(".lock"))


def test_new_directory_then_replaced(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    write(target, "one")
    write(target, "two")
    assert (target / "file").read_text() == "two"
    assert names(target.parent) == ["target"]


def test_an_error_inside_leaves_the_old(tmp_path: Path) -> None:
    target = tmp_path / "target"
    write(target, "one")
    with pytest.raises(UnicodeEncodeError):
        write(target, "two\ud800")
    assert (target / "file").read_text() == "one"
    assert names(tmp_path) == ["target"]


@pytest.mark.parametrize("when", ["before any rename", "between the renames", "before the removal"])
def test_a_kill_leaves_old_or_new(tmp_path: Path, when: str) -> None:
    target = tmp_path / "target"
    write(target, "one")
    script = f"""
        import os, shutil, signal, sys
        from pathlib import Path
        from runtime import directory
        target, when = Path({str(target)!r}), {when!r}
        def die(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)
        real_rename = Path.rename
        def rename(self, to):
            if when == "between the renames" and self != target:
                die()
            return real_rename(self, to)
        Path.rename = rename
        if when == "before any rename":
            directory._sync = die
        with directory.replace_directory(target) as temporary:
            (temporary / "file").write_text("two")
            if when == "before the removal":
                shutil.rmtree = die
    """
    # rmtree is also called on leftovers before the block, so it is replaced inside it.
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL
    recover(target)
    expected = "two" if when == "before the removal" else "one"
    assert (target / "file").read_text() == expected
    write(target, "three")
    assert (target / "file").read_text() == "three"
    assert names(tmp_path) == ["target"]


def test_recover_without_anything_aside_creates_nothing(tmp_path: Path) -> None:
    recover(tmp_path / "absent" / "target")
    assert not (tmp_path / "absent").exists()


def test_recover_puts_the_old_back(tmp_path: Path) -> None:
    target = tmp_path / "target"
    write(target, "one")
    target.rename(aside_path(target))
    recover(target)
    assert (target / "file").read_text() == "one"


def test_a_second_writer_is_told(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from runtime.directory import lock_directory\n"
        f"with lock_directory(Path({str(tmp_path / 'target')!r})):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryBusyError, match="written by another process"):
            write(tmp_path / "target", "two")
        os.kill(other.pid, signal.SIGKILL)
    write(tmp_path / "target", "three")
    assert (tmp_path / "target" / "file").read_text() == "three"


def test_a_file_in_the_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("a file")
    with pytest.raises(DirectoryTargetError, match="is a file; expected a directory"):
        write(tmp_path / "target", "one")
    assert (tmp_path / "target").read_text() == "a file"


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parent").write_text("a file")
    with pytest.raises(DirectoryTargetError, match=r"can't be written: .*; (something|expected a)"):
        write(tmp_path / "parent" / "target", "one")


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    write(tmp_path / "target", "one")
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o777 & ~directory._umask()


def test_text_is_replaced_or_kept(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_text_atomically(file, "one\n")
    with pytest.raises(UnicodeEncodeError):
        write_text_atomically(file, "\ud800")
    assert file.read_text() == "one\n"
    assert names(tmp_path) == ["file"]


def test_text_that_can_not_be_written(tmp_path: Path) -> None:
    expected = r"file can't be written: No such file or directory; expected it, and the dir"
    with pytest.raises(WriteError, match=expected):
        write_text_atomically(tmp_path / "nowhere" / "file", "one")
    file = tmp_path / "file"
    file.write_text("old")
    script = (
        "from pathlib import Path; from runtime.directory import write_text_atomically\n"
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))\n"
        f"write_text_atomically(Path({str(file)!r}), 'longer than four')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert b"file can't be written: File too large; raise the limit" in done.stderr
    assert file.read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_text_to_a_device_leaves_it_there(tmp_path: Path) -> None:
    with pytest.raises(
        WriteError, match=r"/dev/full can't be written: No space left on device; fr"
    ):
        write_text_atomically(Path("/dev/full"), "one")
    write_text_atomically(Path("/dev/null"), "one")
    assert Path("/dev/null").is_char_device()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_text_atomically(tmp_path / "link", "one")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "one"


def test_a_link_is_replaced_again_and_again(tmp_path: Path) -> None:
    elsewhere, target = tmp_path / "elsewhere", tmp_path / "target"
    write(elsewhere, "one")
    for destination in (elsewhere, tmp_path / "nowhere"):
        shutil.rmtree(target, ignore_errors=True)
        target.symlink_to(destination)
        for text in ("two", "three"):
            write(target, text)
            assert (target / "file").read_text() == text
        assert names(tmp_path) == ["elsewhere", "target"]
    assert (elsewhere / "file").read_text() == "one"


def test_another_writer_of_a_like_name_is_left_alone(tmp_path: Path) -> None:
    with replace_directory(tmp_path / "bundle") as temporary:
        write(tmp_path / "b*", "one")
        write(tmp_path / "[b]undle", "one")
        (temporary / "file").write_text("two")
    assert (tmp_path / "bundle" / "file").read_text() == "two"


def test_the_root_is_refused() -> None:
    with pytest.raises(DirectoryTargetError, match="/ can't be replaced; name a directory inside"):
        write(Path("/"), "one")
