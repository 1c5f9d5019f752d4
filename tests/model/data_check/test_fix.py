"""The cleaned copy: what it lacks, what it changes, and that it never replaces what it reads."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from support.tiny_tokenizer import tiny_tokenizer

from model.data_check.checking import CheckOptions, check
from model.data_check.fix import FixedSplit, FixOptions, fix
from model.data_check.reading import SplitFiles
from model.errors import DataError
from runtime.errors import OptionError

OPTIONS = CheckOptions(tokenizer=tiny_tokenizer())
TRAIN = [
    ("the cat sat on", "die Katze"),
    ("", "leer"),
    ("the cat sat on", "die Katze"),
    ("in 3 days", "in 3 Tagen"),
    ("cat " * 300, "lang"),
    ("R&amp;D  is", "F&amp;E\u200b  ist"),
]
VALID = [("in 3 days", "in 3 Tagen"), ("in 3 days", "in 3 Tagen"), ("x", " ")]


def write(folder: Path) -> list[SplitFiles]:
    folder.mkdir(exist_ok=True)
    source, target = ["".join(f"{line}\n" for line in side).encode() for side in zip(*TRAIN)]  # noqa: B905
    (folder / "a.en.gz").write_bytes(gzip.compress(source))
    (folder / "a.de").write_bytes(b"\xef\xbb\xbf" + target.replace(b"\n", b"\r\n", 2))
    rows = [f"{s}\t{t}\tid{n}\n" for n, (s, t) in enumerate(VALID)]
    (folder / "v.tsv").write_bytes("".join(rows).encode())
    return [
        SplitFiles(split="train", source=folder / "a.en.gz", target=folder / "a.de"),
        SplitFiles(split="valid", source=folder / "v.tsv"),
    ]


def run(files: list[SplitFiles], out: Path, options: FixOptions | None = None) -> dict:
    return dict(fix(files, check(files, OPTIONS), options or FixOptions(), out))


def test_the_copy_has_the_form_of_the_input_and_its_good_lines(tmp_path: Path) -> None:
    files = write(tmp_path / "in")
    before = {path: path.read_bytes() for path in (tmp_path / "in").iterdir()}
    out = tmp_path / "out"
    fixed = run(files, out)
    assert sorted(path.name for path in out.iterdir()) == [
        "a.de", "a.en.gz", "report.json", "report.txt", "v.tsv"
    ]  # fmt: skip
    assert gzip.decompress((out / "a.en.gz").read_bytes()) == b"the cat sat on\nR&amp;D  is\n"
    assert (out / "a.de").read_bytes() == "die Katze\nF&amp;E\u200b  ist\n".encode()
    assert (
        out / "v.tsv"
    ).read_bytes() == b"in 3 days\tin 3 Tagen\tid0\nin 3 days\tin 3 Tagen\tid1\n"
    train: FixedSplit = fixed["train"]
    assert (train.read, train.written) == (6, 2)
    assert train.dropped == {"empty": [2], "duplicate": [3], "leak": [4], "overlong": [5]}
    assert fixed["valid"].dropped == {"empty": [3]}
    assert {path: path.read_bytes() for path in (tmp_path / "in").iterdir()} == before


def test_the_report_lies_beside_the_copy(tmp_path: Path) -> None:
    run(write(tmp_path / "in"), tmp_path / "out")
    record = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert record["fixed"]["train"]["dropped"]["leak"] == {"count": 1, "lines": [[4, 4]]}
    assert record["splits"]["train"]["pairs"] == 6
    text = (tmp_path / "out" / "report.txt").read_text("utf-8")
    assert "train: 2 of 6 lines written to a.en.gz and a.de\n  dropped  empty: 1 (2)\n" in text


def test_a_copy_has_nothing_left_to_drop_and_comes_out_the_same(tmp_path: Path) -> None:
    run(write(tmp_path / "in"), tmp_path / "out")
    again = [
        SplitFiles(split="train", source=tmp_path / "out/a.en.gz", target=tmp_path / "out/a.de"),
        SplitFiles(split="valid", source=tmp_path / "out/v.tsv"),
    ]
    fixed = run(again, tmp_path / "again")
    assert all(not result.dropped for result in fixed.values())
    for name in ("a.en.gz", "a.de", "v.tsv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_what_is_dropped_can_be_chosen(tmp_path: Path) -> None:
    fixed = run(write(tmp_path / "in"), tmp_path / "out", FixOptions(drop=("markup",)))
    assert fixed["train"].dropped == {"empty": [2], "markup": [6]}


def test_mends_change_what_they_are_asked_to_and_tell(tmp_path: Path) -> None:
    mend = ("markup", "control", "spaces")
    fixed = run(write(tmp_path / "in"), tmp_path / "out", FixOptions(mend=mend))
    assert (tmp_path / "out" / "a.de").read_text("utf-8") == "die Katze\nF&E ist\n"
    assert gzip.decompress((tmp_path / "out/a.en.gz").read_bytes()).endswith(b"R&D is\n")
    changed = fixed["train"].changed
    assert changed["markup"] == ([6], "R&amp;D  is", "R&D  is")
    assert changed["control"] == ([6], "F&E\u200b  ist", "F&E  ist")
    assert changed["spaces"][0] == [6]
    text = (tmp_path / "out" / "report.txt").read_text("utf-8")
    assert '  changed  control: 1 (6), first "F&E\\u200b  ist" to "F&E  ist"' in text


def test_lines_that_cannot_be_read_are_dropped_on_both_sides(tmp_path: Path) -> None:
    (tmp_path / "src").write_bytes(b"a b\nstra\xdfe\nc d\n")
    (tmp_path / "tgt").write_bytes(b"x y\nstreet\nz w\n")
    files = [SplitFiles(split="test", source=tmp_path / "src", target=tmp_path / "tgt")]
    assert run(files, tmp_path / "out")["test"].dropped == {"not-utf8": [2]}
    assert (tmp_path / "out" / "tgt").read_bytes() == b"x y\nz w\n"
    (tmp_path / "tsv").write_bytes(b"a\tb\nno tab\n")
    run([SplitFiles(split="train", source=tmp_path / "tsv")], tmp_path / "out")
    assert (tmp_path / "out" / "tsv").read_bytes() == b"a\tb\n"
    assert not (tmp_path / "out" / "tgt").exists()


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("en", "de"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "text").write_text(f"{folder} text\n")
    files = SplitFiles(split="train", source=tmp_path / "en/text", target=tmp_path / "de/text")
    fixed = run([files], tmp_path / "out")
    assert fixed["train"].files == ("train.1.text", "train.2.text")
    assert (tmp_path / "out" / "train.2.text").read_text() == "de text\n"


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        (b"a\nb\n", b"x\n", r"has 2 lines but .* has 1; .*; put that right first"),
        (b"", b"", r"is empty; expected lines of text; put that right first"),
        (gzip.compress(b"a\n" * 99)[:-9], b"x\n", r"is damaged: gzip that ends too early; put"),
        (b"\n\n", b"x\ny\n", r"train can't be mended .* none of the 2 pairs"),
    ],
)
def test_what_dropping_lines_cannot_mend_is_refused(
    tmp_path: Path, source: bytes, target: bytes, text: str
) -> None:
    (tmp_path / "src").write_bytes(source)
    (tmp_path / "tgt").write_bytes(target)
    files = [SplitFiles(split="train", source=tmp_path / "src", target=tmp_path / "tgt")]
    with pytest.raises(DataError, match=text):
        run(files, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_where_nothing_would_be_left(tmp_path: Path) -> None:
    (tmp_path / "tsv").write_bytes(b"a&amp;\tb\n")
    files = [SplitFiles(split="train", source=tmp_path / "tsv")]
    text = r"nothing would be left of train: all 1 lines would be dropped \(markup\)"
    with pytest.raises(DataError, match=text):
        run(files, tmp_path / "out", FixOptions(drop=("markup",)))
    assert not (tmp_path / "out").exists()


def test_inputs_are_never_replaced(tmp_path: Path) -> None:
    files = write(tmp_path / "in")
    before = sorted(path.name for path in (tmp_path / "in").iterdir())
    for out in (tmp_path / "in", tmp_path):
        with pytest.raises(OptionError, match=r"holds .*a\.en\.gz, which is read"):
            run(files, out)
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == before


@pytest.mark.parametrize("content", [b"{}", b"[]", b"no json", b'{"format": "leanseq-bundle"}'])
def test_a_directory_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_bytes(content)
    with pytest.raises(OptionError, match="exists and holds no cleaned copy"):
        run(write(tmp_path / "in"), tmp_path / "out")
    assert (tmp_path / "out" / "report.json").read_bytes() == content


def test_what_was_put_beside_an_earlier_copy_is_not_lost(tmp_path: Path) -> None:
    files, out = write(tmp_path / "in"), tmp_path / "out"
    run(files, out)
    run(files, out)
    (out / "checkpoint").mkdir()
    with pytest.raises(
        OptionError, match=r"out holds checkpoint beside an earlier copy; .* give another --out"
    ):
        run(files, out)
    assert (out / "checkpoint").is_dir()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OptionError, match="exists and holds no cleaned copy"):
        run(write(tmp_path / "in"), tmp_path / "out")


def test_a_copy_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    files = write(tmp_path / "in")
    monkeypatch.setattr("model.data_check.fix.gzip.GzipFile.close", full)
    with pytest.raises(DataError, match=r"cannot be written to .*out \(No space left on device\)"):
        run(files, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "kind"), [("drop", "line-count"), ("mend", "copy")])
def test_unknown_kinds_are_refused(name: str, kind: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"{name} is '{kind}'; expected one of")):
        FixOptions(**{name: (kind,)})
