from __future__ import annotations

import io
import json
import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.fake_backend import SPECIAL_IDS, FakeBackend, copying_logits, random_logits
from support.nasty_lines import NASTY_LINES
from support.tiny_tokenizer import tiny_tokenizer

from runtime.errors import OptionError
from runtime.options import SearchOptions
from runtime.schedule import Schedule
from runtime.scheduled import ScheduledBackends
from runtime.stream import (
    choose_format,
    holds_many_lines,
    json_line,
    open_streams,
    read_lines,
    translate_stream,
)
from runtime.translator import TextHypothesis, Translation, Translator


class Pipe(io.BytesIO):
    """Gives out one of its parts a read, as a pipe does."""

    def __init__(self, *parts: bytes) -> None:
        super().__init__()
        self.parts = list(parts)

    def read1(self, size: int | None = -1) -> bytes:
        return self.parts.pop(0) if self.parts else b""


def translate(
    source: io.BytesIO, options: SearchOptions | None = None, *, as_json: bool = False
) -> bytes:
    size = tiny_tokenizer().size
    logits = copying_logits(size) if options is None else random_logits(size, eos_bias=4)
    backend = FakeBackend(logits, size)
    translator = Translator(backend, tiny_tokenizer(), SPECIAL_IDS)
    options = options or SearchOptions()
    target = io.BytesIO()
    line_format = choose_format(as_json=as_json, options=options)
    translate_stream(translator, source, target, options, batch_tokens=64, line_format=line_format)
    return target.getvalue()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"", b""),
        (b"\n", b"\n"),
        (b"the cat\n", b"the cat\n"),
        (b"the cat", b"the cat\n"),
        (b"the cat\r\n1\r\n", b"the cat\n1\n"),
        (b"\n\nthe cat\n \n", b"\n\nthe cat\n\n"),
        (b"a\x0cb\x1cc\x0bd\n1\xc2\x85 2\xe2\x80\xa83\n", b"a b c d\n1 2 3\n"),
        (b"a\rb\n", b"a b\n"),
        (b"\xef\xbb\xbfthe cat\n", b"the cat\n"),
        ("été\n".encode(), "été\n".encode()),
        (b"\0\n", b"\n"),
    ],
)
def test_one_line_in_one_line_out(given: bytes, expected: bytes) -> None:
    assert translate(io.BytesIO(given)) == expected
    assert translate(Pipe(*(given[i : i + 1] for i in range(len(given))))) == expected


def test_nasty_lines_keep_their_places() -> None:
    lines = [line.replace("\n", " ").encode("utf-8", "surrogatepass") for line in NASTY_LINES]
    out = translate(io.BytesIO(b"\n".join(lines) + b"\n"))
    assert out.count(b"\n") == len(lines)
    assert len(out.decode().splitlines()) == len(lines)


def test_invalid_utf8_is_replaced_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="runtime"):
        out = translate(Pipe(b"the cat\n1 \xff 2", b"\n", b"3 \xc3\n"))
    assert out.decode() == "the cat\n1 \ufffd 2\n3 \ufffd\n"
    assert caplog.messages == [
        "line 2 is not valid UTF-8 (byte 3): what is invalid is read as U+FFFD",
        "line 3 is not valid UTF-8 (byte 3): what is invalid is read as U+FFFD",
    ]


def test_read_lines_gives_what_is_complete() -> None:
    pipe = Pipe(b"a\nb", b"", b"never")
    assert list(read_lines(pipe)) == [[b"a"], [b"b"]]
    parts = (b"a", b"b\n", b"c\n\nd\ne", b"\n")
    assert list(read_lines(Pipe(*parts))) == [[], [b"ab"], [b"c", b"", b"d"], [b"e"]]


def test_answers_come_before_the_next_read() -> None:
    """A line is translated and flushed before the pipe is asked for more."""
    size = tiny_tokenizer().size
    translator = Translator(FakeBackend(copying_logits(size), size), tiny_tokenizer(), SPECIAL_IDS)
    seen: list[tuple[bytes, bool]] = []

    class Target(io.BytesIO):
        flushed = True

        def write(self, data: object) -> int:
            self.flushed = False
            return super().write(data)  # type: ignore[arg-type]

        def flush(self) -> None:
            self.flushed = True

    class Asking(Pipe):
        def read1(self, size: int | None = -1) -> bytes:
            seen.append((target.getvalue(), target.flushed))
            return super().read1(size)

    target = Target()
    translate_stream(
        translator,
        Asking(b"the cat\n", b"1\n"),
        target,
        SearchOptions(),
        batch_tokens=1000,
        line_format=choose_format(as_json=False, options=SearchOptions()),
    )
    assert seen == [(b"", True), (b"the cat\n", True), (b"the cat\n1\n", True)]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_slow_pipe_is_answered_line_by_line(workers: int) -> None:
    """A real pipe: what is in it is answered, in one piece or many, before anything follows."""
    size = tiny_tokenizer().size
    backends = ScheduledBackends(FakeBackend(copying_logits(size), size), Schedule(workers=workers))
    translator = Translator(backends, tiny_tokenizer(), SPECIAL_IDS)
    (read_end, asker), (answers, write_end) = os.pipe(), os.pipe()
    options = SearchOptions(beam_size=1)

    def serve() -> None:
        with open(read_end, "rb") as source, open(write_end, "wb") as target:  # noqa: PTH123
            translate_stream(
                translator, source, target, options,
                batch_tokens=20, line_format=choose_format(as_json=False, options=options),
            )  # fmt: skip

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    with open(asker, "wb", buffering=0) as ask, open(answers, "rb") as answer:  # noqa: PTH123
        for given, expected in (
            (b"the cat\n", b"the cat\n"),
            (b"1\n\n2\n", b"1\n\n2\n"),
            (b"3 days\nthe", b"3 days\n"),
            (b" cat\n", b"the cat\n"),
            (b"\n", b"\n"),
        ):
            ask.write(given)
            assert b"".join(answer.readline() for _ in expected.splitlines()) == expected
        ask.write(many := b"the cat 1 2 3\n\n" * 300 + b"1")
        ask.close()
        assert answer.read() == many + b"\n"
    server.join(30)
    assert not server.is_alive()


def test_workers_end_when_the_target_goes_away() -> None:
    class Broken(io.BytesIO):
        def flush(self) -> None:
            raise BrokenPipeError

    size = tiny_tokenizer().size
    backends = ScheduledBackends(FakeBackend(copying_logits(size), size), Schedule(workers=3))
    with pytest.raises(BrokenPipeError) as caught:
        translate_stream(
            Translator(backends, tiny_tokenizer(), SPECIAL_IDS),
            io.BytesIO(b"the cat\n" * 500),
            Broken(),
            SearchOptions(),
            batch_tokens=20,
            line_format=choose_format(as_json=False, options=SearchOptions()),
        )
    # The traceback still holds all that was under way.
    assert not [t for t in threading.enumerate() if t.name.startswith("leanseq-")], caught


def test_line_numbers_and_samples_run_on_across_reads() -> None:
    options = SearchOptions(sampling=True, num_hypotheses=2)
    lines = b"".join(b"the cat %d\n" % i for i in range(9))
    whole = translate(io.BytesIO(lines), options)
    assert translate(Pipe(*lines.splitlines(keepends=True)), options) == whole
    numbers = [line.split(b" ||| ")[0] for line in whole.splitlines()]
    assert numbers == [str(i // 2 + 1).encode() for i in range(18)]


def test_n_best_format() -> None:
    out = translate(io.BytesIO(b"the cat\n\n"), SearchOptions(num_hypotheses=3)).decode()
    rows = [line.split(" ||| ") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "1", "2"]
    scores = [float(row[2]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)
    assert rows[3] == ["2", "", "0.000000"]


def test_json_format() -> None:
    out = translate(io.BytesIO("été\n\n".encode()), as_json=True).decode()
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["line"] == 1
    assert first["truncated"] is False
    (best,) = first["hypotheses"]
    assert best["text"] == "été"
    assert best["finished"] is True
    assert best["score"] < 0
    assert "".join(best["tokens"]).strip("\u2581") == "été"
    assert second["hypotheses"][0] == {"text": "", "tokens": [], "score": 0.0, "finished": True}


def test_json_has_no_infinity() -> None:
    found = TextHypothesis(
        text="", tokens=(), token_ids=(), score=float("-inf"), sum_log_prob=0, finished=False
    )
    assert (
        json.loads(json_line(1, Translation(hypotheses=(found,))))["hypotheses"][0]["score"] is None
    )


def test_a_file_of_more_than_a_few_lines_holds_many(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    few.write_bytes(b"the cat\n" * 10)
    many.write_bytes(b"the cat\n" * 1000)
    assert holds_many_lines(str(many), None)
    assert not holds_many_lines(str(few), None)
    assert not holds_many_lines(str(tmp_path / "none"), None)
    with many.open() as stdin:
        assert holds_many_lines("-", stdin)
    read_end, write_end = os.pipe()
    with open(read_end) as stdin, open(write_end, "wb") as full:  # noqa: PTH123
        full.write(b"the cat\n" * 1000)
        assert not holds_many_lines("-", stdin)
    assert not holds_many_lines("-", None)
    assert not holds_many_lines("-", SimpleNamespace())


def test_open_streams(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"a\n")
    stdin, stdout = SimpleNamespace(buffer=io.BytesIO()), SimpleNamespace(buffer=io.BytesIO())
    with open_streams(str(source), str(target), stdin, stdout) as (reader, writer):
        writer.write(reader.read())
    assert target.read_bytes() == b"a\n"
    assert reader.closed
    assert writer.closed
    with open_streams("-", "-", stdin, stdout) as streams:
        assert streams == (stdin.buffer, stdout.buffer)
    assert not stdout.buffer.closed


def test_output_over_the_input_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\n")
    (tmp_path / "link").symlink_to(path)
    with (
        pytest.raises(OptionError, match=r"--output is the input, .*text; write to another file"),
        open_streams(str(path), str(tmp_path / "link"), None, None),
    ):
        pass
    assert path.read_bytes() == b"a\n"


def test_output_over_a_redirected_input_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\n")
    with path.open("rb") as stdin, path.open("ab") as stdout:
        streams = SimpleNamespace(buffer=stdin), SimpleNamespace(buffer=stdout)
        for source, target in (("-", str(path)), (str(path), "-"), ("-", "-")):
            with (
                pytest.raises(OptionError, match="--output is the input"),
                open_streams(source, target, *streams),
            ):
                pass
    assert path.read_bytes() == b"a\n"


def test_a_device_may_be_both(tmp_path: Path) -> None:
    with open_streams("/dev/null", "/dev/null", None, None) as (reader, writer):
        writer.write(reader.read())


@pytest.mark.parametrize("flag", ["--input", "--output"])
def test_a_closed_standard_stream(flag: str) -> None:
    streams = [SimpleNamespace(buffer=io.BytesIO()), None]
    stdin, stdout = streams[::-1] if flag == "--input" else streams
    with (
        pytest.raises(OptionError, match=f"stream of {flag} is closed; name a file with {flag}"),
        open_streams("-", "-", stdin, stdout),
    ):
        pass
