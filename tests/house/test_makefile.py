"""The set-up of the Makefile: what it refuses; only an install that came through leaves a stamp."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.tree import ROOT, environment_without_make

# Stands in for python3: the version check goes to the real one, `-m venv DIR` makes a directory
# whose python writes its arguments to a log and fails while a file named `broken` is there.
FAKE_PYTHON = f"""#!/bin/sh
if [ "$1" = -c ]; then exec {sys.executable} "$@"; fi
mkdir -p "$3/bin"
cat > "$3/bin/python" <<'SCRIPT'
#!/bin/sh
echo "$@" >> log
test ! -e broken
SCRIPT
chmod +x "$3/bin/python"
"""
OLD_PYTHON = f"""#!/bin/sh
exec {sys.executable} -c \
  "import sys; sys.version_info = (3, 9, 1); sys.version = '3.9.1 (x)'; exec(sys.argv[1])" "$2"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


def make(tree: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    python = tree / "fake-python"
    python.write_text(script, encoding="utf-8")
    python.chmod(0o755)
    return subprocess.run(
        ["make", f"PYTHON={python}", *arguments],
        cwd=tree, env=environment_without_make(), capture_output=True, text=True, check=False,
    )  # fmt: skip


def installs(tree: Path) -> list[str]:
    log = tree / "log"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def test_install_is_guarded_by_a_stamp(tree: Path) -> None:
    assert make(tree, FAKE_PYTHON, "venv").returncode == 0
    assert make(tree, FAKE_PYTHON, "venv").returncode == 0
    assert installs(tree) == ["-m pip install -c constraints.txt -e .[cpu,train]"]
    assert make(tree, FAKE_PYTHON, "venv-dev", "PIP_ARGS=--quiet").returncode == 0
    assert installs(tree)[1:] == [
        "-m pip install --quiet -c constraints.txt -e .[cpu,train,dev,trt-rtx]"
    ]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_change_of_what_is_asked_for_installs_again(tree: Path, name: str) -> None:
    make(tree, FAKE_PYTHON, "venv-dev")
    later = (tree / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(tree / name, (later, later))
    make(tree, FAKE_PYTHON, "venv-dev")
    assert len(installs(tree)) == 4


def test_an_install_that_broke_off_is_done_again(tree: Path) -> None:
    (tree / "broken").touch()
    assert make(tree, FAKE_PYTHON, "venv").returncode != 0
    assert not (tree / ".venv" / ".installed").exists()
    (tree / "broken").unlink()
    assert make(tree, FAKE_PYTHON, "venv").returncode == 0
    assert (tree / ".venv" / ".installed").exists()
    assert len(installs(tree)) == 2


def test_an_update_that_broke_off_takes_the_stamps_away(tree: Path) -> None:
    make(tree, FAKE_PYTHON, "venv-dev")
    later = (tree / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(tree / "constraints.txt", (later, later))
    (tree / "broken").touch()
    assert make(tree, FAKE_PYTHON, "venv").returncode != 0
    assert not list((tree / ".venv").glob(".installed*"))


def test_an_old_python_is_refused_with_what_to_do(tree: Path) -> None:
    result = make(tree, OLD_PYTHON, "venv")
    assert result.returncode != 0
    expected = "leanseq needs Python 3.11 or newer, found 3.9.1; try: make PYTHON=python3.12 venv"
    assert expected in result.stderr
    assert not (tree / ".venv").exists()


def test_help_names_every_target_of_use(tree: Path) -> None:
    text = make(tree, FAKE_PYTHON).stdout
    for target in ("demo", "test", "test-fast", "check", "format", "docs", "venv", "clean"):
        assert f"make {target} " in text
