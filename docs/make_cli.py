"""Writes docs/cli.md from the commands themselves: `python docs/make_cli.py`, or `make docs`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
TARGET = Path(__file__).with_name("cli.md")

INTRODUCTION = """\
# Command line

Written by `make docs`; edit the help texts in the code instead.

`leanseq` gathers all commands: `leanseq model train` is `python -m model train`, and so on;
`leanseq translate` and `leanseq doctor` are `python -m runtime translate` and `... doctor` too.
Exit codes: 0 done (also when the reader of stdout went away), 1 failure, 2 usage, 130 Ctrl-C.
stdout is data, stderr is progress, warnings and errors.
"""


def walk(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """This command and all below it, depth first, each as the context its help is shown in."""
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from walk(child, child.context_class(child, info_name=name, parent=context))


def render() -> str:
    """The whole page."""
    from runtime.cli import cli

    parts = [INTRODUCTION]
    for context in walk(cli, cli.context_class(cli, info_name="leanseq", **cli.context_settings)):
        context.terminal_width = context.max_content_width = 90
        help_text = context.command.get_help(context)
        parts.append(f"## {context.command_path}\n\n```\n{help_text}\n```\n")
    return "\n".join(parts)


def main() -> None:
    """Writes the page."""
    sys.path.insert(0, str(ROOT))
    TARGET.write_text(render(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
