from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.fake_backend import EOS, SPECIAL_IDS, FakeBackend, copying_logits, random_logits
from support.fake_bundle import fake_entry, write_fake_bundle
from support.nasty_lines import NASTY_LINES
from support.tiny_tokenizer import tiny_tokenizer, train_proto

from runtime import registry
from runtime.bundle import Bundle
from runtime.errors import BackendError, BundleError, OptionError
from runtime.normalizer import normalize_source
from runtime.options import SearchOptions
from runtime.schedule import Schedule
from runtime.scheduled import ScheduledBackends
from runtime.tokenizer import Tokenizer
from runtime.translator import Translation, Translator

GREEDY = SearchOptions(beam_size=1)


def copier(max_source: int | None = 64) -> Translator:
    size = tiny_tokenizer().size
    backend = FakeBackend(copying_logits(size), size, max_source=max_source, max_target=None)
    return Translator(backend, tokenizer=tiny_tokenizer(), special_ids=SPECIAL_IDS)


def babbler(eos_bias: float = 4.0, workers: int = 1) -> Translator:
    size = tiny_tokenizer().size
    return over(FakeBackend(random_logits(size, eos_bias=eos_bias), size), workers)


def over(backend: FakeBackend, workers: int) -> Translator:
    backends = ScheduledBackends(backend, Schedule(workers=workers))
    return Translator(backends, tokenizer=tiny_tokenizer(), special_ids=SPECIAL_IDS)


@pytest.fixture
def _fake_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "onnxruntime", fake_entry())


def test_translate() -> None:
    (translation,) = copier().translate([" the\u00a0cat  3 "])
    assert translation.text == "the cat 3"
    (best,) = translation.hypotheses
    assert best.finished
    assert not translation.truncated
    assert best.token_ids == tuple(tiny_tokenizer().encode_source("the cat 3"))[:-1]
    assert best.tokens == tuple(tiny_tokenizer().pieces(best.token_ids))
    assert best.score == pytest.approx(best.sum_log_prob / (len(best.tokens) + 1))


def test_n_best() -> None:
    (translation,) = babbler().translate(["the cat"], SearchOptions(num_hypotheses=4))
    scores = [found.score for found in translation.hypotheses]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    assert translation.text == translation.hypotheses[0].text


def test_order_is_kept_and_empty_lines_bypass_the_model() -> None:
    translator = copier()
    texts = ["in 3 days", "", "the cat", " \t\u00a0", "\u200b\u200d", "1", "été 1 2 3 4 5 6"]
    expected = ["in 3 days", "", "the cat", "", "", "1", "été 1 2 3 4 5 6"]
    translations = translator.translate(texts)
    assert [t.text for t in translations] == expected
    for place in (1, 3, 4):
        (best,) = translations[place].hypotheses
        assert (best.score, best.finished, best.tokens) == (0.0, True, ())
    assert isinstance(translator.backend, FakeBackend)
    assert sum(rows for rows, _ in translator.backend.begun) == 4


def test_nothing_and_only_empty_lines_start_no_model() -> None:
    translator = copier()
    assert translator.translate([]) == []
    assert [t.text for t in translator.translate(["", " "])] == ["", ""]
    assert isinstance(translator.backend, FakeBackend)
    assert translator.backend.begun == []


@pytest.mark.parametrize(
    "options",
    [
        GREEDY,
        SearchOptions(num_hypotheses=3),
        SearchOptions(sampling=True, num_hypotheses=2, top_k=5, seed=4),
    ],
    ids=["greedy", "beam", "sampling"],
)
def test_batch_tokens_change_nothing(options: SearchOptions) -> None:
    generator = random.Random(0)
    words = ["the", "cat", "sat", "on", "été", "1", "number", ""]
    texts = [" ".join(generator.choices(words, k=generator.randrange(9))) for _ in range(60)]
    translator = babbler()
    expected = translator.translate(texts, options)
    assert len({t.text for t in expected}) > 20
    for batch_tokens in (1, 7, 64, 100_000):
        assert translator.translate(texts, options, batch_tokens=batch_tokens) == expected
    one_by_one = [
        next(translator.translate_iter([text], options, first_index=index))
        for index, text in enumerate(texts)
    ]
    assert one_by_one == expected


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize(
    "options",
    [GREEDY, SearchOptions(sampling=True, num_hypotheses=2, top_k=5, seed=4)],
    ids=["greedy", "sampling"],
)
def test_workers_change_nothing(options: SearchOptions, workers: int) -> None:
    generator = random.Random(1)
    words = ["the", "cat", "sat", "on", "été", "1", "number", ""]
    texts = [" ".join(generator.choices(words, k=generator.randrange(9))) for _ in range(60)]
    texts += [""] * 3
    expected = babbler().translate(texts, options)
    translator = babbler(workers=workers)
    for batch_tokens in (1, 7, 64, 100_000):
        assert translator.translate(texts, options, batch_tokens=batch_tokens) == expected
        stream = translator.translate_iter(iter(texts), options, batch_tokens=batch_tokens)
        assert list(stream) == expected
    sources = [tiny_tokenizer().encode_source(text) for text in texts]
    found = translator.search_ids(sources, options, batch_tokens=20)
    assert found == babbler().search_ids(sources, options)


def test_a_few_lines_are_shared_out_among_the_workers() -> None:
    translator = babbler(workers=2)
    translator.translate(["the cat", "the cat"], GREEDY)
    assert isinstance(translator.backend, FakeBackend)
    assert [rows for rows, _ in translator.backend.begun] == [1, 1]


def test_an_error_in_one_worker_ends_all_and_comes_after_what_was_done() -> None:
    """The line that fails is the third; the two before it were given out."""
    given = threading.Event()
    plain, bad = copying_logits(400), tuple(tiny_tokenizer().encode_source("number"))

    def logits(source: tuple[int, ...], prefix: tuple[int, ...]) -> Any:
        if source == bad:
            assert given.wait(30)
            raise BackendError("this source fails")
        return plain(source, prefix)

    translator = over(FakeBackend(logits, 400), workers=2)
    stream = translator.translate_iter(
        ["1", "2", "number", *["the cat"] * 50], GREEDY, batch_tokens=1
    )
    assert [next(stream).text, next(stream).text] == ["1", "2"]
    given.set()
    with pytest.raises(BackendError, match="this source fails"):
        list(stream)
    assert not [t for t in threading.enumerate() if t.name.startswith("leanseq-")]


def test_too_long_is_cut_with_a_warning_that_names_the_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    translator = copier(max_source=8)
    with caplog.at_level(logging.WARNING, logger="runtime"):
        short, long = translator.translate(["the cat", "1 2 3 4 5 6 7 8 9"])
    assert (short.truncated, long.truncated) == (False, True)
    ids = tiny_tokenizer().encode_source("1 2 3 4 5 6 7 8 9")
    assert long.hypotheses[0].token_ids == tuple(ids[:7])
    assert long.hypotheses[0].finished  # EOS was put back
    (message,) = caplog.messages
    assert message.startswith(f"line 2 has {len(ids)} tokens, the model reads 8: the rest is left")


def test_a_line_of_thousands_of_tokens(caplog: pytest.LogCaptureFixture) -> None:
    (translation,) = copier().translate(["the cat été " * 5000], GREEDY)
    assert translation.truncated
    assert len(caplog.messages) == 1


def test_a_model_without_limits_reads_all() -> None:
    text = "the cat " * 50
    (translation,) = copier(max_source=None).translate([text], GREEDY)
    assert translation.text == text.strip()


@pytest.mark.parametrize("line", NASTY_LINES, ids=lambda line: ascii(line)[:30])
def test_nasty_line_gives_one_line(line: str) -> None:
    for translator in (copier(), babbler()):
        (translation,) = translator.translate([line], GREEDY)
        assert len(translation.text.splitlines()) <= 1
        translation.text.encode()
    expected = normalize_source(line)
    (translation,) = copier(max_source=None).translate([line], GREEDY)
    # SentencePiece writes spaces as U+2581, so this one comes back as a space.
    assert translation.text == expected.replace("\u2581", " ").strip()


def test_nasty_lines_together_are_translated_as_alone() -> None:
    translator = babbler()
    together = translator.translate(NASTY_LINES, GREEDY)
    assert together == [translator.translate([line], GREEDY)[0] for line in NASTY_LINES]


def test_threads_share_a_translator() -> None:
    translator = babbler()
    texts = [[f"the cat {i} {j}" for j in range(i % 7)] for i in range(40)]
    expected = [translator.translate(lines) for lines in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(translator.translate, texts)) == expected
    assert threading.active_count() < 10


def test_translate_iter_reads_a_bounded_part_ahead() -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield f"the cat {taken}"

    stream = copier().translate_iter(endless(), GREEDY, batch_tokens=40)
    first = [next(stream).text for _ in range(300)]
    assert first == [f"the cat {i}" for i in range(1, 301)]
    assert taken < 300 + 8 * 40


def test_translate_iter_checks_before_it_is_read() -> None:
    with pytest.raises(OptionError, match="max_length is 65; this model makes at most 64"):
        babbler().translate_iter([], SearchOptions(max_length=65))
    with pytest.raises(OptionError, match="batch_tokens is 0"):
        babbler().translate_iter([], batch_tokens=0)


def test_texts_must_be_strings_in_a_list() -> None:
    with pytest.raises(OptionError, match="texts is one str; expected a list or iterable"):
        copier().translate("the cat")
    with pytest.raises(OptionError, match="text 2 is of type bytes; expected a str"):
        copier().translate(["a", b"b"])  # type: ignore[list-item]


def test_search_ids_equals_translate() -> None:
    translator = babbler()
    texts = [f"the cat {i} été" * (1 + i % 3) for i in range(20)]
    sources = [tiny_tokenizer().encode_source(text) for text in texts]
    options = SearchOptions(num_hypotheses=2, sampling=True)
    found = translator.search_ids(sources, options, batch_tokens=50)
    translated = translator.translate(texts, options)
    assert [[h.token_ids for h in row] for row in found] == [
        [h.token_ids for h in t.hypotheses] for t in translated
    ]
    assert translator.search_ids([]) == []


def test_closed() -> None:
    with copier() as translator:
        stream = translator.translate_iter(["a", "b"], GREEDY, batch_tokens=1)
        next(stream)
    assert isinstance(translator.backend, FakeBackend)
    assert translator.backend.closed
    for use in (
        lambda: translator.translate(["a"]),
        lambda: translator.search_ids([[EOS]]),
        lambda: next(stream),
    ):
        with pytest.raises(BackendError, match="this translator is closed; open another one"):
            use()
    translator.close()


@pytest.mark.usefixtures("_fake_backend")
def test_open(tmp_path: Path) -> None:
    path = write_fake_bundle(tmp_path / "b", search_defaults={"beam_size": 2, "num_hypotheses": 2})
    for given in (path, str(path), Bundle.open(path)):
        with Translator.open(given) as translator:
            assert translator.defaults == SearchOptions(beam_size=2, num_hypotheses=2)
            (translation,) = translator.translate(["the cat"])
    assert isinstance(translation, Translation)
    assert translation.text == "the cat"
    assert len(translation.hypotheses) == 2


@pytest.mark.usefixtures("_fake_backend")
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"normalizer_version": 2}, "trained with source normalizer 2; this leanseq has 1"),
        ({"search_defaults": {"beam": 1}}, "search_defaults in .*unknown search option 'beam'"),
        ({"search_defaults": {"beam_size": 0}}, "search_defaults in .*beam_size is 0"),
        ({"vocab_size": 100}, "its tokenizer has 400 pieces, its model predicts 100"),
    ],
)
def test_open_refuses(tmp_path: Path, changes: dict[str, object], text: str) -> None:
    path = write_fake_bundle(tmp_path / "b", **changes)  # type: ignore[arg-type]
    with pytest.raises(BundleError, match=text):
        Translator.open(path)


@pytest.mark.usefixtures("_fake_backend")
def test_open_a_bundle_that_is_damaged(tmp_path: Path) -> None:
    path = write_fake_bundle(tmp_path / "b")
    (path / "tokenizer.model").write_bytes(b"short")
    with pytest.raises(BundleError, match="truncated or altered"):
        Translator.open(path)


def test_two_tokenizers() -> None:
    source = tiny_tokenizer()
    target = Tokenizer(train_proto(vocab_size=300))
    size = max(source.size, target.size)
    backend = FakeBackend(copying_logits(size), size)
    translator = Translator(backend, source, SPECIAL_IDS, target_tokenizer=target)
    ids = source.encode_source("1 2")
    (translation,) = translator.translate(["1 2"], GREEDY)
    assert translation.text == target.decode(ids)
    assert translation.text != "1 2"


def test_translations_are_json(tmp_path: Path) -> None:
    (translation,) = copier().translate(["the cat"])
    assert json.loads(json.dumps(vars(translation.hypotheses[0])))["text"] == "the cat"


class Keeping(FakeBackend):
    trimmed = 0

    def trim(self) -> None:
        self.trimmed += 1


def test_memory_is_given_back_when_a_stream_ends() -> None:
    """Read to its end, or left before, or broken off by an error; never between two batches."""
    size = tiny_tokenizer().size
    backend = Keeping(copying_logits(size), size)
    translator = over(backend, 1)
    lines = ["the cat 3"] * 20
    stream = translator.translate_iter(lines, GREEDY, batch_tokens=8)
    next(stream)
    assert backend.trimmed == 0
    assert len(list(stream)) == 19
    assert backend.trimmed == 1
    stream = translator.translate_iter(lines, GREEDY, batch_tokens=8)
    next(stream)
    stream.close()
    assert backend.trimmed == 2
    with pytest.raises(OptionError):
        list(translator.translate_iter([*lines, 3], GREEDY, batch_tokens=8))  # type: ignore[list-item]
    assert backend.trimmed == 3
