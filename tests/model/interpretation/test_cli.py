"""`python -m model attention`, and `translate --alignment`."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from model.interpretation.heatmap import make_heatmap
from model.interpretation.page import render_page
from runtime.console import run


def call(*arguments: str | Path) -> int:
    return run("model.cli:cli", [str(a) for a in arguments], prog_name="python -m model")


def test_a_page_is_written(
    random_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "map.html"
    given = ["--checkpoint", random_checkpoint, "--src", "in 3 days", "--tgt", "été 3"]
    assert call("attention", *given, "--out", out) == 0
    assert capsys.readouterr().out == f"{out}\n"
    expected = render_page(make_heatmap(random_checkpoint, "in 3 days", "été 3"))
    assert out.read_bytes().decode() == expected


def test_an_image_is_written(random_checkpoint: Path, tmp_path: Path) -> None:
    given = ["--checkpoint", random_checkpoint, "--src", "in 3 days", "--beam-size", "1"]
    given += ["--kind", "decoder", "--layer", "2", "--head", "1", "--units", "words"]
    assert call("attention", *given, "--out", tmp_path / "map.PNG", "--threads", "1") == 0
    assert (tmp_path / "map.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--layer", "3"], 2, "layer is 3; cross has layers 1 to 2 in this model"),
        (["--head", "0"], 2, "head is 0"),
        (["--kind", "self"], 2, "'self' is not one of"),
        (["--src", ""], 2, "the source is empty"),
        (["--tgt", ""], 2, "the target is empty"),
        (["--out", "map.svg"], 2, "map.svg ends with '.svg'; expected a name in .html or .png"),
        (["--out", "nowhere/map.png"], 2, "there is no directory nowhere to write map.png to"),
        (["--out", "."], 2, ". ends with ''; expected a name in .html or .png"),
        (["--out", "../folder.html"], 2, "folder.html is a directory; expected the name of a file"),
        (["--beam-size", "0"], 2, "beam_size is 0"),
        (["--threads", "0"], 2, "threads is 0"),
        (["--checkpoint", "nowhere"], 1, "there is no checkpoint at nowhere"),
    ],
)
def test_attention_says_what_is_wrong(
    random_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    code: int,
    text: str,
) -> None:
    for name in ("here", "folder.html"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    given = ["--checkpoint", random_checkpoint, "--src", "in", "--out", "map.html"]
    assert call("attention", *given, *flags) == code
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.out == ""
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.parametrize("name", ["map.html", "map.png"])
def test_a_file_that_cannot_be_written_leaves_the_old_one(
    random_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    out = tmp_path / name
    out.write_text("before")
    write_bytes = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        write_bytes(path, content[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    given = ["--checkpoint", random_checkpoint, "--src", "in", "--tgt", "a"]
    assert call("attention", *given, "--out", out) == 1
    assert f"error: cannot write {out}: No space left on device; choose" in capsys.readouterr().err
    assert out.read_text() == "before"
    assert list(tmp_path.iterdir()) == [out]


def test_a_link_stays_one(random_checkpoint: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "map.html")
    given = ["--checkpoint", random_checkpoint, "--src", "in", "--tgt", "a"]
    assert call("attention", *given, "--out", link) == 0
    assert link.is_symlink()
    assert (tmp_path / "map.html").read_text("utf-8").startswith("<!DOCTYPE html>")


LINES = ["in 3 days", "", "the cat 12", "\u200b", "été " * 80]
LINKS = re.compile(r"(\d+-\d+( \d+-\d+)*)?")


def translate(checkpoint: Path, tmp_path: Path, *flags: str) -> list[str]:
    (tmp_path / "in").write_text("\n".join(LINES), "utf-8")
    given = ["--checkpoint", checkpoint, "--input", tmp_path / "in", "--output", tmp_path / "out"]
    assert call("translate", *given, "--max-length", "9", *flags) == 0
    return (tmp_path / "out").read_text("utf-8").split("\n")[:-1]


def test_alignment_stands_behind_a_tab(random_checkpoint: Path, tmp_path: Path) -> None:
    plain = translate(random_checkpoint, tmp_path)
    aligned = [
        line.rsplit("\t", 1) for line in translate(random_checkpoint, tmp_path, "--alignment")
    ]
    assert [text for text, _ in aligned] == plain
    assert all(LINKS.fullmatch(links) for _, links in aligned)
    assert [bool(links) for _, links in aligned] == [True, False, True, False, True]
    for line, (text, links) in zip(LINES, aligned, strict=True):
        for source, target in (link.split("-") for link in links.split()):
            assert int(source) < len(line.split())
            assert int(target) < len(text.split())


@pytest.mark.parametrize("flags", [["--beam-size", "3"], ["--sampling", "--seed", "5"]])
def test_alignment_of_several_hypotheses(
    random_checkpoint: Path, tmp_path: Path, flags: list[str]
) -> None:
    flags = [*flags, "--num-hypotheses", "2"]
    plain = translate(random_checkpoint, tmp_path, *flags)
    aligned = [
        line.rsplit(" ||| ", 1)
        for line in translate(random_checkpoint, tmp_path, *flags, "--alignment")
    ]
    assert [record for record, _ in aligned] == plain
    assert all(LINKS.fullmatch(links) for _, links in aligned)
    assert any(links for _, links in aligned)


def test_alignment_in_json(random_checkpoint: Path, tmp_path: Path) -> None:
    flags = ["--num-hypotheses", "2", "--json"]
    plain = [json.loads(line) for line in translate(random_checkpoint, tmp_path, *flags)]
    aligned = [
        json.loads(line) for line in translate(random_checkpoint, tmp_path, *flags, "--alignment")
    ]
    behind = translate(random_checkpoint, tmp_path, "--num-hypotheses", "2", "--alignment")
    links = [
        " ".join(f"{source}-{target}" for source, target in found.pop("alignment"))
        for record in aligned
        for found in record["hypotheses"]
    ]
    assert links == [line.rsplit(" ||| ", 1)[1] for line in behind]
    assert aligned == plain
