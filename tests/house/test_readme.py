"""The commands of README.md and docs/python.md run, in order, as they stand there.

README.zh.md has no command that README.md has not, so these are not run twice.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.tree import ROOT, copy_tree, environment_without_make

MAX_MINUTES = "0.3"
"""How long each training may take here: the test is of the commands, not of the translations."""

BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = ("README.md", "docs/python.md")
CHINESE = "README.zh.md"


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each block of shell or Python, in order."""
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def commands(page: str) -> list[str]:
    """Every shell command of a page, one a string, continued lines joined."""
    text = "\n".join(text for language, text in blocks(page) if language == "sh")
    return [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def test_ci_runs_the_tests_as_the_readme_does() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    for page in ("README.md", CHINESE):
        assert "make test" in commands(page)
    assert "make test" in script
    assert "make check" in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_demo_is_exactly_the_build_command() -> None:
    dry_run = subprocess.run(
        ["make", "--dry-run", "-o", ".venv/.installed", "demo"],
        cwd=ROOT, env=environment_without_make(), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert dry_run.splitlines()[-1].endswith(" python -m export build --int8")


def test_chinese_readme_has_only_commands_of_the_english_one() -> None:
    english = {re.sub(r"\s+", " ", c) for c in commands("README.md")}
    chinese = {re.sub(r"\s+", " ", c) for c in commands(CHINESE)}
    assert chinese <= english, chinese - english


def test_relative_links_lead_somewhere() -> None:
    for page in [*PAGES, CHINESE, "docs/README.md", "CHANGELOG.md"]:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            if not target.startswith("http"):
                assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def environment(tree: Path) -> dict[str, str]:
    """This interpreter's environment on PATH; the copy's packages before the installed ones."""
    scripts = Path(sys.executable).parent
    return {
        **{k: v for k, v in environment_without_make().items() if not k.startswith("PYTEST")},
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(tree),
        "LEANSEQ_MAX_MINUTES": MAX_MINUTES,
    }


def run(block: str, language: str, tree: Path) -> None:
    if language == "sh":
        # The environment is the one that runs this test: nothing is installed again.
        venv = Path(sys.prefix)
        block = block.replace("make demo", f"make -o {venv}/.installed demo VENV={venv}")
        block = re.sub(r"--max-minutes \S+", f"--max-minutes {MAX_MINUTES}", block)
        command = ["bash", "-euo", "pipefail", "-c", block]
    else:
        command = [sys.executable, "-c", block]
    start = time.monotonic()
    result = subprocess.run(
        command, cwd=tree, env=environment(tree), capture_output=True, encoding="utf-8", check=False
    )
    print(f"{time.monotonic() - start:6.1f} s  {block.strip().splitlines()[0]}")
    assert result.returncode == 0, f"{block}\n{result.stdout}\n{result.stderr}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_commands_run(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    for page in PAGES:
        for language, block in blocks(page):
            if block.strip() != "make test":  # that would run this test again
                run(block, language, tree)
    assert (tree / "build" / "bundle" / "manifest.json").is_file()
    assert (tree / "lines.de").read_text(encoding="utf-8").count("\n") == 3
    assert (tree / "mine" / "bundle" / "report.json").is_file()
