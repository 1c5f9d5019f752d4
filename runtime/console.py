"""What every command line of leanseq shares: groups, -v/-q, --version, exit codes, plain errors.

A package's `cli.py` makes its group with `group` and hangs commands on it; its `__main__.py` is

    sys.exit(run("model.cli:cli", prog_name="python -m model"))

Exit codes: 0 done (also when the reader of stdout went away), 1 failure, 2 usage, 130 Ctrl-C.
stdout is data, in UTF-8 whatever the locale; everything else goes to stderr.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import click

from runtime.errors import LeanseqError, MissingExtraError, WriteError
from runtime.extras import DEFAULT_EXTRA, EXTRA_OF
from runtime.os_errors import explain
from runtime.version import __version__

OUR_PACKAGES = ("runtime", "model", "export", "calibration", "benchmarks")


class _StderrHandler(logging.Handler):
    """Looks sys.stderr up at each record, so that it follows redirection."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if record.levelno >= logging.WARNING:
                text = f"{record.levelname.lower()}: {text}"
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


_handler = _StderrHandler()


def set_verbosity(verbosity: int) -> None:
    """0 shows progress (INFO), -1 warnings, -2 errors, 1 DEBUG. Of our packages' loggers only."""
    levels = {-2: logging.ERROR, -1: logging.WARNING, 0: logging.INFO, 1: logging.DEBUG}
    for name in OUR_PACKAGES:
        logger = logging.getLogger(name)
        logger.setLevel(levels[max(-2, min(1, verbosity))])
        if _handler not in logger.handlers:
            logger.addHandler(_handler)


def _change_verbosity(context: click.Context, parameter: click.Parameter, count: int) -> None:
    if count:
        root = context.find_root()
        step = count if parameter.name == "verbose" else -count
        root.meta["leanseq.verbosity"] = root.meta.get("leanseq.verbosity", 0) + step
        set_verbosity(root.meta["leanseq.verbosity"])


def _common_options() -> list[click.Parameter]:
    options = (
        (["-v", "--verbose"], "Show more, and the traceback of an internal error."),
        (["-q", "--quiet"], "Show warnings only; twice: errors only."),
    )
    return [
        click.Option(
            names,
            count=True,
            expose_value=False,
            callback=_change_verbosity,
            is_eager=True,
            help=text,
        )
        for names, text in options
    ]


class Command(click.Command):
    """A click command with -v and -q."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(_common_options())


class Group(click.Group):
    """A click group with -v, -q and --version, whose commands may be loaded only when called.

    lazy: command name -> (dotted name such as "model.cli:cli", short help). The short help stands
    here so that `--help` imports nothing.
    """

    command_class = Command

    def __init__(
        self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})
        self.params.extend(_common_options())
        click.version_option(__version__, prog_name="leanseq")(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy:
            return load(self.lazy[cmd_name][0])
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            if name in self.lazy:
                rows.append((name, self.lazy[name][1]))
            else:
                command = super().get_command(ctx, name)
                rows.append((name, command.get_short_help_str(80) if command else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def group(name: str, help: str, lazy: Mapping[str, tuple[str, str]] | None = None) -> Group:
    """A group to hang commands on: `cli = group("model", "Train and run the eager model.")`."""
    return Group(name=name, help=help, lazy=lazy, context_settings={"max_content_width": 100})


def load(dotted_name: str) -> click.Command:
    """The command at "package.module:attribute".

    Raises MissingExtraError if its import needs a package that is not installed.
    """
    module_name, _, attribute = dotted_name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise _missing_extra(error, f"the command line of {module_name.split('.')[0]}") from error
    command = getattr(module, attribute)
    assert isinstance(command, click.Command)
    return command


def _missing_extra(error: ModuleNotFoundError, purpose: str) -> Exception:
    package = (error.name or "").split(".")[0]
    if not package or package in OUR_PACKAGES:
        return error
    return MissingExtraError(package, EXTRA_OF.get(package, DEFAULT_EXTRA), purpose)


def run(
    cli: click.Command | str, argv: Sequence[str] | None = None, *, prog_name: str = "leanseq"
) -> int:
    """Runs a command line to its end and returns the exit code; never raises, never a traceback.

    cli: a command, or its dotted name for `load`. argv: None takes sys.argv.
    """
    set_verbosity(0)
    _use_utf8()
    arguments = list(sys.argv[1:] if argv is None else argv)
    verbose = False
    try:
        command = load(cli) if isinstance(cli, str) else cli
        # Not command.main(): that one turns a closed pipe into exit code 1 before we see it.
        with command.make_context(prog_name, arguments) as context:
            try:
                command.invoke(context)
            finally:
                verbose = context.meta.get("leanseq.verbosity", 0) > 0
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as error:
        return _report(error, verbose)
    return 0


def _report(error: BaseException, verbose: bool) -> int:
    """Says on stderr what went wrong, and returns the exit code."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case SystemExit():
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        case click.ClickException():
            error.show()
            return error.exit_code
        case KeyboardInterrupt() | click.Abort():
            return 130
        case BrokenPipeError():
            _forget_stdout()
            return 0
        case OSError() | WriteError():
            _forget_stdout()  # it may be what failed, and would fail again (a full disk)
    if verbose:
        traceback.print_exception(error)
    if isinstance(error, ModuleNotFoundError):
        found = _missing_extra(error, "this command")
        error = found if isinstance(found, LeanseqError) else error
    match error:
        case LeanseqError():
            text = f"error: {error}"
        case _ if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            text = "error: out of memory; use smaller sizes or batches, or a machine with more"
        case OSError():
            text = f"error: {explain(error, 'standard output' if _in_stdout(error) else None)}"
        case _:
            hint = "" if verbose else "; run again with -v for the traceback"
            text = f"internal error: {type(error).__name__}: {error}{hint}"
    if sys.stderr is not None:  # print would take stdout instead
        print(text, file=sys.stderr)
    return error.exit_code if isinstance(error, LeanseqError) else 1


def _use_utf8() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def _in_stdout(error: OSError) -> bool:
    """Whether writing to stdout raised it: click.echo does that, and the flush of `run`."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return error.filename is None and frame.f_globals["__name__"] in (__name__, "click.utils")


def _forget_stdout() -> None:
    """Points stdout nowhere, if it can't be written: or the interpreter's last flush complains."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
        return
    except (OSError, ValueError):
        pass
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor)
    os.close(devnull)
