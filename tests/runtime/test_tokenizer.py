from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.tiny_tokenizer import tiny_tokenizer, train_proto

from runtime.errors import TextError
from runtime.tokenizer import Tokenizer


def test_encode_source_ends_with_eos_and_round_trips() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode_source(" in\u00a03  days ")
    assert ids[-1] == tokenizer.special_ids.eos_id == 3
    assert tokenizer.decode(ids) == "in 3 days"
    assert tokenizer.encode_source("") == [3]


def test_encode_target_keeps_spaces_that_are_not_ascii() -> None:
    tokenizer = tiny_tokenizer()
    text = "1\u202f000\u00a0€\uff0c日本"
    assert tokenizer.decode(tokenizer.encode_target(text)) == text


@pytest.mark.parametrize("text", ["</s>", "a <pad> b", "<s><unk>", "<0x0A>"])
def test_text_that_spells_a_control_piece_stays_text(text: str) -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode_source(text)
    assert not any(token_id in tokenizer.special_ids for token_id in ids[:-1])
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("char", list("\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))
def test_decode_line_breaks_become_spaces(char: str) -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode_target(f"a{char}b")
    assert tokenizer.decode(ids) == "a b"
    assert tokenizer.decode(ids).splitlines() == ["a b"]


def test_decode_crlf_is_one_break() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(tokenizer.encode_target("a\r\nb")) == "a b"


def test_decode_skips_control_ids() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode_source("the cat")
    assert tokenizer.decode([2, *ids[:1], 1, 0, *ids[1:], 3]) == "the cat"
    assert tokenizer.decode([]) == tokenizer.decode([3]) == ""


def test_decode_never_fails_on_ids_of_the_vocabulary() -> None:
    tokenizer = tiny_tokenizer()
    generator = random.Random(1)
    for _ in range(300):
        text = tokenizer.decode([generator.randrange(tokenizer.size) for _ in range(20)])
        text.encode("utf-8")
        assert len(text.splitlines()) <= 1
    bad_bytes = tokenizer.encode_target("日")[:-2]
    assert "\ufffd" in tokenizer.decode(bad_bytes)


def test_pieces() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode_source("the cat\u0394")
    pieces = tokenizer.pieces(ids)
    assert len(pieces) == len(ids)
    assert pieces[-3:] == ["<0xCE>", "<0x94>", "</s>"]
    assert "".join(pieces[:-3]).replace("\u2581", " ").strip() == "the cat"
    assert tokenizer.pieces([]) == []


@pytest.mark.parametrize("token_id", [-1, 100_000])
def test_id_outside_the_vocabulary(token_id: int) -> None:
    tokenizer = tiny_tokenizer()
    for method in (tokenizer.decode, tokenizer.pieces):
        with pytest.raises(TextError, match=f"token id {token_id} is outside .* belong together"):
            method([token_id])


def test_damaged_proto() -> None:
    proto = tiny_tokenizer().model_proto
    for damaged in (b"", b"garbage", proto[:100], proto[:-3]):
        with pytest.raises(TextError, match=f"{len(damaged)} bytes.* is empty or damaged"):
            Tokenizer(damaged)


def test_proto_without_pad() -> None:
    with pytest.raises(TextError, match="has no pad piece"):
        Tokenizer(train_proto(pad_id=-1))


def test_threads_agree() -> None:
    tokenizer = tiny_tokenizer()
    texts = [f"the cat {i} été \u0394" for i in range(200)]
    alone = [tokenizer.encode_source(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode_source, texts)) == alone
        assert list(pool.map(tokenizer.decode, alone)) == texts
