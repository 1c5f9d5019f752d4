from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from runtime.console import Group, group, load, run
from runtime.errors import BundleError, MissingExtraError, OptionError
from runtime.version import __version__

OUT_OF_MEMORY = "error: out of memory; use smaller sizes or batches, or a machine with more"


def _group_that(action: Callable[[], object]) -> Group:
    cli = group("test", "A test group.")

    @cli.command("go")
    @click.option("--number", type=int, default=1)
    def go(number: int) -> None:
        """Does it."""
        action()

    return cli


def _raise(error: BaseException) -> Callable[[], object]:
    def action() -> None:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (OptionError("beam_size is 0"), 2, "error: beam_size is 0\n"),
        (BundleError("no bundle"), 1, "error: no bundle\n"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch.nn"),
            1,
            "error: this command needs the package torch, which is not installed; "
            "install it with: pip install -e '.[train]'\n",
        ),
        (
            ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime"),
            1,
            "error: this command needs the package onnxruntime, which is not installed; "
            "install it with: pip install -e '.[cpu]'\n",
        ),
        (
            ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"),
            1,
            "error: this command needs the package matplotlib, which is not installed; "
            "install it with: pip install -e '.[plot]'\n",
        ),
        (
            ModuleNotFoundError("No module named 'runtime.x'", name="runtime.x"),
            1,
            "internal error: ModuleNotFoundError: No module named 'runtime.x'; "
            "run again with -v for the traceback\n",
        ),
        (
            PermissionError(13, "Permission denied", "f"),
            1,
            "error: f: Permission denied; expected a place that you may use: change its "
            "permissions, or name another\n",
        ),
        (
            OSError(28, "No space left on device"),
            1,
            "error: No space left on device; free some space there, or write elsewhere\n",
        ),
        (OSError("odd"), 1, "error: odd; see to that, and run it again\n"),
        *(
            (
                error,
                1,
                f"{OUT_OF_MEMORY}\n",
            )
            for error in (
                MemoryError(),
                RuntimeError("[enforce fail at alloc_cpu.cpp:127] ... can't allocate memory: you"),
            )
        ),
        (
            KeyError("k"),
            1,
            "internal error: KeyError: 'k'; run again with -v for the traceback\n",
        ),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
    ],
)
def test_run_reports(
    error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_group_that(_raise(error)), ["go"]) == code
    assert capsys.readouterr() == ("", text)


def test_run_shows_the_traceback_with_v(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["-v", "go"], ["go", "-v"]):
        assert run(_group_that(_raise(KeyError("k"))), arguments) == 1
        shown = capsys.readouterr().err
        assert "Traceback" in shown
        assert shown.endswith("internal error: KeyError: 'k'\n")


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["go", "--number", "x"], ["go", "extra"], ["go", "--nothing"], []]
)
def test_usage_errors_are_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_group_that(lambda: None), arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage:" in err
    assert "Traceback" not in err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    cli = group("test", "A test group.", lazy={"far": ("no.such:thing", "Not loaded for help.")})
    assert run(cli, ["--version"]) == 0
    assert __version__ in capsys.readouterr().out
    assert run(cli, ["--help"]) == 0
    out = capsys.readouterr().out
    assert "A test group." in out
    assert "far  Not loaded for help." in out


@pytest.mark.parametrize(
    ("flags", "shown"),
    [([], "iwe"), (["-q"], "we"), (["-qq"], "e"), (["-v"], "diwe"), (["-v", "-q"], "iwe")],
)
def test_verbosity(flags: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    def action() -> None:
        logger = logging.getLogger("runtime.some.module")
        logger.debug("d")
        logger.info("i")
        logger.warning("w")
        logger.error("e")

    lines = {"d": "d\n", "i": "i\n", "w": "warning: w\n", "e": "error: e\n"}
    assert run(_group_that(action), ["go", *flags]) == 0
    assert capsys.readouterr() == ("", "".join(lines[letter] for letter in shown))


def test_load_names_the_missing_extra(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_it.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingExtraError, match=r"command line of needs_it needs .*no_such_package_at_all, which"
    ):
        load("needs_it:cli")
    assert run("needs_it:cli", []) == 1


def test_closed_pipe_is_quiet_and_0() -> None:
    program = (
        "import sys, click; from runtime.console import group, run\n"
        "cli = group('t', 'T.')\n"
        "@cli.command('go')\n"
        "def go():\n"
        "    for _ in range(100000): click.echo('x' * 100)\n"
        "sys.exit(run(cli, ['go']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_what_can_not_be_printed_is_told() -> None:
    """Whatever the command, and however little it prints."""
    program = (
        "import sys, click; from runtime.console import group, run\n"
        "cli = group('t', 'T.')\n"
        "@cli.command('go')\n"
        "def go():\n"
        "    click.echo('x')\n"
        "sys.exit(run(cli, ['go']))\n"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == (
        b"error: standard output: No space left on device; free some space there, or write "
        b"elsewhere\n"
    )


def test_without_stderr_nothing_goes_to_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert run(_group_that(_raise(BundleError("no bundle"))), ["go"]) == 1
    assert capsys.readouterr().out == ""
