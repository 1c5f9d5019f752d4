"""docs/cli.md is what docs/make_cli.py writes, and every command and option explains itself."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
from support.tree import ROOT

PAGE = ROOT / "docs" / "cli.md"


def load_generator() -> ModuleType:
    path = Path(ROOT / "docs" / "make_cli.py")
    spec = importlib.util.spec_from_file_location("make_cli", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def contexts() -> list[click.Context]:
    from runtime.cli import cli

    root = cli.context_class(cli, info_name="leanseq", **cli.context_settings)
    return list(load_generator().walk(cli, root))


def test_reference_is_up_to_date() -> None:
    """Rendered in a process of its own, whose modules no other test has touched."""
    code = (
        "import sys; sys.path.insert(0, 'docs'); import make_cli; print(make_cli.render(), end='')"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    ).stdout
    assert PAGE.read_text(encoding="utf-8") == found, "run `make docs`"


def test_every_command_and_option_has_help() -> None:
    silent = []
    for context in contexts():
        if not context.command.help:
            silent.append(context.command_path)
        for parameter in context.command.params:
            if isinstance(parameter, click.Option) and not parameter.help:
                silent.append(f"{context.command_path} {parameter.opts[-1]}")
    assert silent == []


@pytest.mark.parametrize(
    "command",
    [
        "leanseq translate", "leanseq doctor", "leanseq model train", "leanseq model translate",
        "leanseq model evaluate", "leanseq export build", "leanseq calibration run",
        "leanseq calibration compare", "leanseq benchmarks compare",
    ],
)  # fmt: skip
def test_command_is_in_the_reference(command: str) -> None:
    assert f"\n## {command}\n" in PAGE.read_text(encoding="utf-8")
