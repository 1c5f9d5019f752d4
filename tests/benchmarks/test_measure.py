from __future__ import annotations

import dataclasses
import json

import pytest
from support.fake_backend import EOS, SPECIAL_IDS, FakeBackend, Logits, copying_logits
from support.tiny_tokenizer import tiny_tokenizer

from benchmarks.measure import Effort, Subject, TestSet, count_tokens, measure
from benchmarks.table import render, render_families
from model.errors import DataError
from runtime.errors import OptionError
from runtime.tokenizer import Tokenizer
from runtime.translator import Translator

LINES = ["in three days", "the little dog", "", "two cats and a dog"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer()


def subject(
    tokenizer: Tokenizer,
    name: str,
    *,
    precision: str = "fp32",
    threads: int | None = 1,
    logits: Logits | None = None,
    parity: dict[str, object] | None = None,
) -> Subject:
    backend = FakeBackend(logits or copying_logits(tokenizer.size), tokenizer.size)
    backend.capabilities = dataclasses.replace(
        backend.capabilities, precision=precision, detail={"threads": threads} if threads else {}
    )
    return Subject(
        name=name,
        translator=Translator(backend, tokenizer, SPECIAL_IDS),
        size_bytes=1_500_000,
        source=f"fake {name}",
        parity=parity,
    )


def silent(tokenizer: Tokenizer) -> Logits:
    """A model that says nothing but one token."""
    copying = copying_logits(tokenizer.size)

    def logits(source, prefix):  # type: ignore[no-untyped-def]
        row = copying(source, prefix)
        row[:] = 0
        row[EOS if prefix else 5] = 20.0
        return row

    return logits


def test_record_holds_every_number_with_its_signature(tokenizer: Tokenizer) -> None:
    subjects = [
        subject(tokenizer, "good"),
        subject(tokenizer, "bad", precision="int8", logits=silent(tokenizer)),
    ]
    test_set = TestSet(lines=LINES, references=LINES, families=["a", "b", "c", "b"], name="demo")
    record = json.loads(
        json.dumps(measure(subjects, test_set, effort=Effort(rounds=2, batch_size=3)))
    )
    good, bad = record["subjects"]
    assert good["quality"]["exact_match"] == 1.0
    assert good["quality"]["bleu"] == pytest.approx(100.0)
    assert good["quality"]["exact_match_by_family"] == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert bad["quality"]["exact_match"] == 0.25  # the empty line
    assert bad["same_as_first"] == 1
    assert good["speedup"] == {"median": 1.0, "p10": 1.0, "p90": 1.0}
    assert good["latency_ms"]["p50"] <= good["latency_ms"]["p95"]
    assert good["tokens_per_second"] > 0
    assert record["options"]["beam_size"] == 4
    assert record["threads"] == 1
    assert record["latency_lines"] == 4
    assert {"cpu", "cores", "system", "python", "versions"} <= set(record["machine"])
    assert record["int8_speedup"]["int8"] == "bad"
    loss = record["int8_loss"]
    assert loss["exact_match_points"] == 75.0
    assert loss["bleu"] == pytest.approx(good["quality"]["bleu"] - bad["quality"]["bleu"])
    assert not loss["within_budget"]
    paired = loss["paired_bleu"]
    assert paired["difference"] == pytest.approx(-loss["bleu"])
    assert paired["low"] < 0 >= paired["high"]
    assert (paired["resamples"], paired["seed"]) == (1000, 12345)


def test_int8_within_its_budget(tokenizer: Tokenizer) -> None:
    test_set = TestSet(lines=LINES, references=LINES)
    same = [subject(tokenizer, "f"), subject(tokenizer, "i", precision="int8")]
    record = measure(same, test_set)
    assert record["int8_loss"]["within_budget"]
    text = render(record)
    assert "i against f: BLEU +0.00, exact match +0.0 points: within the budget" in text
    paired = "    BLEU by paired bootstrap, 1,000 resamples: +0.00 (95%: +0.00 to +0.00, p 1.00)"
    assert paired in text.splitlines()
    del record["int8_loss"]["paired_bleu"]  # a report of an older version has none
    assert [line for line in text.splitlines() if line != paired] == render(record).splitlines()
    assert measure(same[:1], test_set)["int8_loss"] is None


def test_tokens_count_eos(tokenizer: Tokenizer) -> None:
    (found,) = subject(tokenizer, "good").translator.translate(["in three days"])
    assert count_tokens(found) == len(tokenizer.encode_source("in three days"))


@pytest.mark.parametrize(
    ("threads", "text"), [((1, 2), r"threads differ \(x 1, y 2\)"), ((1, 1), None)]
)
def test_threads_must_be_equal(
    tokenizer: Tokenizer, threads: tuple[int, int], text: str | None
) -> None:
    both = [
        subject(tokenizer, name, threads=count) for name, count in zip("xy", threads, strict=True)
    ]
    test_set = TestSet(lines=LINES, references=LINES)
    if text is None:
        assert measure(both, test_set)["threads"] == 1
        return
    with pytest.raises(OptionError, match=text):
        measure(both, test_set)


def test_no_subjects_or_equal_names_are_an_error(tokenizer: Tokenizer) -> None:
    test_set = TestSet(lines=LINES, references=LINES)
    with pytest.raises(OptionError, match="there is nothing to measure"):
        measure([], test_set)
    with pytest.raises(OptionError, match="two translators have one name: x, x"):
        measure([subject(tokenizer, "x"), subject(tokenizer, "x")], test_set)


@pytest.mark.parametrize("values", [{"latency_lines": 0}, {"rounds": 0}, {"batch_size": 0}])
def test_effort_refuses_nothing(values: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="is 0; expected at least 1"):
        Effort(**values)


def test_test_set_must_be_aligned() -> None:
    with pytest.raises(DataError, match="2 source lines but 1 references"):
        TestSet(lines=["a", "b"], references=["a"])


def test_latency_lines_are_spread_over_the_file(tokenizer: Tokenizer) -> None:
    test_set = TestSet(lines=LINES * 5, references=LINES * 5)
    record = measure([subject(tokenizer, "x")], test_set, effort=Effort(latency_lines=7))
    assert record["latency_lines"] == 7


def test_table_is_narrow_and_tells_everything(tokenizer: Tokenizer) -> None:
    subjects = [
        subject(tokenizer, "PyTorch eager"),
        subject(
            tokenizer, "ONNX Runtime FP32", parity={"passed": True, "summary": "1000 equal, 2 ties"}
        ),
        subject(
            tokenizer, "ONNX Runtime INT8", precision="int8", logits=silent(tokenizer),
            parity={"passed": False},
        ),
    ]  # fmt: skip
    test_set = TestSet(lines=LINES, references=LINES, families=["a", "b", "a", "b"])
    record = {**measure(subjects, test_set), "bundle_bytes": 20_440_000}
    text = render(record)
    assert max(len(line) for line in text.splitlines()) <= 110, text
    for expected in (
        "PyTorch eager", "ONNX Runtime INT8", "passed", "FAILED", "1000 equal, 2 ties", "100.0%",
        "OVER the budget", "20.4 MB",
        "4/4", "1/4", "1.50", "beam 4", "1 thread", "nrefs:1|case:mixed", record["date"],
        record["machine"]["cpu"], "fake PyTorch eager",
    ):  # fmt: skip
        assert expected in text
    families = render_families(record).splitlines()
    assert families[-1].split() == ["b", "100.0", "100.0", "0.0"]


def test_families_are_left_out_where_there_are_none(tokenizer: Tokenizer) -> None:
    record = measure([subject(tokenizer, "x")], TestSet(lines=LINES, references=LINES))
    assert render_families(record) == ""


def test_note_says_why_int8_is_no_faster(tokenizer: Tokenizer) -> None:
    subjects = [subject(tokenizer, "f"), subject(tokenizer, "i", precision="int8")]
    record = measure(subjects, TestSet(lines=LINES, references=LINES))
    record["int8_speedup"]["speedup"]["median"] = 0.8
    assert "INT8 gains less than 5% here: i takes 1.25 times as long a line as f" in render(record)
    record["matmul_profile"] = {
        "d_model": 128,
        "fp32": {"step_us": 400.0, "matmul_us": 100.0, "logits_us": 20.0, "quantize_us": 0.0},
        "int8": {"step_us": 420.0, "matmul_us": 90.0, "logits_us": 20.0, "quantize_us": 30.0},
    }
    text = render(record)
    assert "take 100 of 400 us in FP32; INT8 does them in 90 us" in text
    assert "quantizing their inputs takes 30 us" in text
    assert "The other 75.0% of the step stay as they are" in text
    record["int8_speedup"]["speedup"]["median"] = 1.6
    assert "no faster" not in render(record)


def test_machine_names_the_processor_and_versions() -> None:
    from benchmarks.machine import describe_machine, installed_versions, now

    machine = describe_machine()
    assert machine["cpu"]
    assert machine["cores"] >= 1
    assert "numpy" in machine["versions"]
    assert "no-such-package" not in installed_versions(("no-such-package",))
    assert now().endswith("+00:00")
