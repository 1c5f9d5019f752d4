from __future__ import annotations

import pytest

from model.errors import DataError
from model.tokenizer_training import MAX_LINES, train_tokenizer
from runtime.tokenizer import Tokenizer

PAIRS = [
    (f"in {i} days the cat sat", f"in {i} Tagen saß die Katze,\u202f{i * 37}") for i in range(400)
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_tokenizer(PAIRS, 330))


def test_size_and_ids(tokenizer: Tokenizer) -> None:
    ids = tokenizer.special_ids
    assert tokenizer.size == 330
    assert (ids.pad_id, ids.unk_id, ids.bos_id, ids.eos_id) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "text", ["in 12 Tagen saß", "a\u202fb\xa0c，d", "never 見た 🤗", "  two  spaces ", "ﬁ ½ Å"]
)
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_target(text)
    assert tokenizer.decode(ids) == text.replace("Å", "Å")
    assert tokenizer.special_ids.unk_id not in ids


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.pieces(tokenizer.encode_source("in 1234 days"))
    assert [p for p in pieces if any(c.isdigit() for c in p)] == ["1", "2", "3", "4"]


def test_equal_text_gives_equal_bytes() -> None:
    assert train_tokenizer(PAIRS, 330) == train_tokenizer(PAIRS, 330)


def test_a_vocabulary_too_large_names_the_largest_that_works() -> None:
    with pytest.raises(DataError, match=r"4000 is too large for this text of 800 lines") as error:
        train_tokenizer(PAIRS, 4000)
    largest = int(str(error.value).split("--vocab-size ")[1].split()[0])
    assert Tokenizer(train_tokenizer(PAIRS, largest)).size == largest


@pytest.mark.parametrize("size", [1, 100, 270])
def test_a_vocabulary_too_small_names_the_smallest_that_works(size: int) -> None:
    with pytest.raises(DataError, match=f"vocab_size {size} is too small: 256 bytes") as error:
        train_tokenizer(PAIRS, size)
    least = int(str(error.value).split("--vocab-size ")[1].split()[0])
    assert least > size


def test_text_that_is_all_spaces() -> None:
    with pytest.raises(DataError, match="cannot be trained on this text of 0 lines"):
        train_tokenizer([(" ", "\u2003")], 300)


def test_a_nul_does_not_end_the_text() -> None:
    pairs = [(f"in\0{s}", t) for s, t in PAIRS]
    assert Tokenizer(train_tokenizer(pairs, 330)).size == 330


def test_a_large_alphabet_goes_to_bytes_where_rare() -> None:
    rare = [(chr(0x4E00 + i), chr(0x4E00 + i)) for i in range(300)]
    tokenizer = Tokenizer(train_tokenizer([*PAIRS * 20, *rare], 340))
    assert tokenizer.decode(tokenizer.encode_target("\u4e05")) == "\u4e05"


def test_long_corpora_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.tokenizer_training.MAX_LINES", 400)
    assert MAX_LINES == 2_000_000
    assert train_tokenizer(PAIRS, 330) == train_tokenizer(PAIRS[::2], 330)
