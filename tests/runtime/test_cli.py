"""The commands as a user runs them, most in processes of their own, over a fake backend."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.fake_bundle import fake_entry, write_fake_bundle
from support.tree import ROOT

from runtime import registry
from runtime.cli import cli, runtime_cli
from runtime.console import run
from runtime.version import __version__

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_bundle(tmp_path_factory.mktemp("cli") / "bundle")


def command(*arguments: object, factory: str = "make_backend") -> list[str]:
    """By name, so that nothing is said of why it was chosen."""
    named = ["--backend", "onnxruntime"] if arguments[0] == "translate" else []
    program = [sys.executable, "-m", "support.fake_bundle", factory]
    return [*program, str(arguments[0]), *named, *map(str, arguments[1:])]


def leanseq(
    *arguments: object,
    given: bytes = b"",
    environment: dict[str, str] | None = None,
    factory: str = "make_backend",
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*arguments, factory=factory),
        input=given,
        capture_output=True,
        check=False,
        env=ENVIRONMENT | (environment or {}),
        timeout=60,
    )


def test_translate(bundle: Path) -> None:
    done = leanseq("translate", "--bundle", bundle, given="in 3 days\n\nété\n".encode())
    assert done.returncode == 0
    assert done.stdout.decode() == "in 3 days\n\nété\n"
    assert done.stderr == b""


def test_auto_says_on_stderr_what_it_chose(bundle: Path) -> None:
    arguments = ("translate", "--bundle", bundle, "--backend", "auto")
    done = leanseq(*arguments, given=b"the cat\n")
    assert (done.returncode, done.stdout) == (0, b"the cat\n")
    assert done.stderr == b"backend: onnxruntime on cpu, fp32\n"
    assert leanseq(*arguments, "-q", "--no-build", given=b"the cat\n").stderr == b""
    told = leanseq(*arguments, "-v", given=b"the cat\n").stderr
    assert b"backends passed over: tensorrt: " in told
    assert b"; onnxruntime-cuda: " in told


def test_translate_is_utf8_in_any_locale(bundle: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = leanseq("translate", "--bundle", bundle, given="été\n".encode(), environment=locale)
    assert done.stdout.decode() == "été\n"


def test_translate_files(bundle: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("the cat\n1", encoding="utf-8")
    done = leanseq("translate", "--bundle", bundle, "--input", source, "--output", target)
    assert (done.returncode, done.stdout) == (0, b"")
    assert target.read_text(encoding="utf-8") == "the cat\n1\n"


def test_translate_every_flag(bundle: Path) -> None:
    flags = "--beam-size 3 --num-hypotheses 2 --length-penalty 0.6 --length-penalty-kind gnmt "
    flags += "--patience 2 --min-length 1 --max-length 9 --batch-tokens 50 --backend onnxruntime "
    flags += "--precision fp32 --threads 1 --workers 2 --json"
    done = leanseq("translate", "--bundle", bundle, *flags.split(), given=b"the cat\n")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["hypotheses"]) == 2
    flags = "--sampling --top-k 3 --top-p 0.9 --temperature 0.5 --seed 7"
    done = leanseq("translate", "--bundle", bundle, *flags.split(), given=b"the cat\n")
    assert (done.returncode, done.stdout) == (0, b"the cat\n")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--beam-size 0", "error: beam_size is 0; expected a whole number of at least 1"),
        ("--num-hypotheses 5", "error: num_hypotheses 5 is above beam_size 4; raise beam_size"),
        ("--max-length 1000", "error: max_length is 1000; this model makes at most 48 tokens"),
        ("--min-length 9 --max-length 8", "error: min_length 9 is above max_length 8"),
        ("--temperature 2", "error: top_k, top_p and temperature need sampling=True"),
        ("--sampling --top-p 1.5", "error: top_p is 1.5; expected a number above 0 and at most 1"),
        ("--length-penalty nan", "error: length_penalty is nan; expected a finite number"),
        (
            "--length-penalty 500",
            "error: length_penalty is 500.0; expected a number from -10 to",
        ),
        ("--length-penalty -500", "error: length_penalty is -500.0; expected a number from -10"),
        ("--patience 1e308", "error: patience is 1e+308; expected a number above 0 and at most"),
        ("--beam-size 9000000000000000000", "at least 1 and at most 1,000,000"),
        ("--threads 99999999999", "error: threads is 99999999999; expected a whole number of at"),
        ("--batch-tokens 0", "error: batch_tokens is 0; expected a whole number of at least 1"),
        ("--threads 0", "error: threads is 0; expected a whole number of at least 1"),
        ("--workers 0", "error: workers is 0; expected a whole number of at least 1"),
        ("--precision int4", "error: precision is int4; of this bundle"),
        ("--backend tpu", "Error: Invalid value for '--backend'"),
        ("--beam-size x", "Error: Invalid value for '--beam-size'"),
        ("--input no-such-file", "Error: Invalid value for '--input'"),
        ("--no-such-flag", "Error: No such option"),
    ],
)
def test_translate_usage_errors(
    bundle: Path,
    flags: str,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", fake_entry())
    assert run(cli, ["translate", "--bundle", str(bundle), *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert "Traceback" not in err


def test_translate_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["translate", "--bundle", str(tmp_path / "none")]) == 1
    assert "none does not exist; expected a bundle" in capsys.readouterr().err
    assert run(cli, ["translate"]) == 2
    assert "Missing option '--bundle'" in capsys.readouterr().err


def test_a_usage_error_leaves_the_output_alone(bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("old")
    arguments = ("translate", "--bundle", bundle, "--output", target)
    assert leanseq(*arguments, "--max-length", 1000).returncode == 2
    assert leanseq(*arguments, "--input", target).returncode == 2
    assert target.read_text() == "old"


def test_an_output_that_cannot_be_written(bundle: Path, tmp_path: Path) -> None:
    done = leanseq("translate", "--bundle", bundle, "--output", tmp_path / "no" / "file")
    assert done.returncode == 1
    assert done.stderr.endswith(
        b"no/file can't be written: No such file or directory; expected it, and the directories it "
        b"stands in, to be there: check the name\n"
    )


def test_a_closed_pipe_ends_it_quietly(bundle: Path) -> None:
    with subprocess.Popen(
        command("translate", "--bundle", bundle),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(b"the cat\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"the cat\n"  # and so a slow pipe is answered
        process.stdout.close()
        process.stdin.write(b"1\n" * 20)
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


FULL = b"No space left on device; free some space there, or write elsewhere\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error(bundle: Path) -> None:
    line = " ".join(command("translate", "--bundle", bundle))
    for place, named in (("--output /dev/full", b"/dev/full"), (">/dev/full", b"standard output")):
        done = subprocess.run(
            ["sh", "-c", f"exec {line} {place}"],
            input=b"the cat\n", capture_output=True, check=False, env=ENVIRONMENT,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (1, b"error: %b can't be written: " % named + FULL)


@pytest.mark.parametrize("place", ["--output {}", ">{}", ">>{}"])
def test_a_disk_that_gets_full_holds_whole_lines(bundle: Path, tmp_path: Path, place: str) -> None:
    """Of the second line there is room for a half."""
    target = tmp_path / "out"
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (12, 12)); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    line = shlex.join([sys.executable, "-c", limited, *command("translate", "--bundle", bundle)])
    done = subprocess.run(
        ["sh", "-c", f"exec {line} {place.format(target)}"],
        input=b"the cat\nthe cat\n1\n", capture_output=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"can't be written: File too large; raise the limit" in done.stderr
    assert target.read_text() == "the cat\n"


def test_closed_standard_streams(bundle: Path) -> None:
    line = " ".join(command("translate", "--bundle", bundle))
    for redirection in ("<&-", ">&-"):
        done = subprocess.run(
            ["sh", "-c", f"exec {line} {redirection}"],
            stdin=subprocess.DEVNULL, capture_output=True, check=False, env=ENVIRONMENT,
        )  # fmt: skip
        assert done.returncode == 2
        assert b"is closed; name a file with" in done.stderr


@pytest.mark.parametrize("workers", [1, 3])
def test_ctrl_c_leaves_what_is_finished(bundle: Path, tmp_path: Path, workers: int) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("the cat\n1\nnumber\n2\n")
    with subprocess.Popen(
        command(
            "translate", "--bundle", bundle, "--batch-tokens", 1, "--workers", workers,
            "--input", source, "--output", target,
            factory="slow_backend",
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 30
        while not (target.exists() and target.read_text().count("\n") == 2):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert target.read_text() == "the cat\n1\n"


def test_an_error_leaves_what_is_finished(bundle: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text("the cat\n1\n" + "number\n" * 9)
    done = leanseq(
        "translate", "--bundle", bundle, "--batch-tokens", 1, "--workers", 2,
        "--input", source, "--output", target,
        factory="failing_backend",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"error: this source fails\n"
    assert target.read_text() == "the cat\n1\n"


def test_warnings_go_to_stderr(bundle: Path) -> None:
    given = b"1\n" + b"the cat " * 100 + b"\n\xff\n"
    done = leanseq("translate", "--bundle", bundle, given=given)
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == 3
    first, second = sorted(done.stderr.decode().splitlines())
    assert first.startswith("warning: line 2 has 201 tokens, the model reads 48")
    assert second.startswith("warning: line 3 is not valid UTF-8 (byte 1)")
    assert leanseq("translate", "--bundle", bundle, "-qq", given=given).stderr == b""


def test_doctor(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", fake_entry())
    assert run(cli, ["doctor"]) == 0
    assert "Backends:" in capsys.readouterr().out
    assert run(runtime_cli, ["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["healthy"] is True
    assert run(cli, ["doctor", "--bundle", str(bundle)]) == 0
    assert "  fp32, portable, step of 0.0 MB: " in capsys.readouterr().out
    assert run(cli, ["doctor", "--bundle", "no-such"]) == 1
    assert "no-such does not exist; expected a bundle" in capsys.readouterr().err
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", absent := fake_entry())
    object.__setattr__(absent, "factory", "no_such_package_at_all:x")
    object.__setattr__(absent, "package", "no_such_package_at_all")
    assert run(cli, ["doctor"]) == 1
    assert "no_such_package_at_all" in capsys.readouterr().out


def test_leanseq_gathers_all_commands_and_loads_none(capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import sys; from runtime.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'onnx', 'model', 'export'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    for name in ("translate", "doctor", "model", "export", "calibration", "benchmarks"):
        assert f"\n  {name} " in done.stdout
    assert done.stdout.endswith("[]\n")


def test_python_m_runtime() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runtime", "--version"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert __version__ in done.stdout
