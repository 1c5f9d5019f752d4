from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_model import random_transformer
from torch import Tensor

from model.attention import MultiHeadAttention
from model.config import StackConfig
from model.eager import EagerBackend, special_token_ids
from model.errors import ModelError
from model.interpretation.maps import AttentionReader
from runtime.errors import OptionError
from runtime.options import SearchOptions
from runtime.search import search

SOURCE = [5, 9, 30, 77, 8, 3]
TARGET = [12, 40, 7, 61, 3]

CONFIGS: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "positions": "rotary", "tying": "none", "attention_dropout": 0.2},
    {"encoder": StackConfig(num_layers=3, num_heads=2, ffn_dim=40)},
    {"cross_score": "additive"},
    {"cross_score": "dot"},
    {"cross_score": "general"},
    {"cross_score": "concat"},
]


@pytest.mark.parametrize("changes", CONFIGS, ids=str)
def test_weights_are_those_that_make_the_output(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Whatever the score function: the values, weighted with them, are what attention gives."""
    model = random_transformer(**changes)
    calls: list[tuple[MultiHeadAttention, Tensor, Tensor]] = []
    attend = MultiHeadAttention.attend

    def spy(self: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        output = attend(self, q, k, v, mask)
        calls.append((self, v, output))
        return output

    monkeypatch.setattr(MultiHeadAttention, "attend", spy)
    maps = AttentionReader(model).read(SOURCE, TARGET)
    encoder, decoder = model.config.encoder, model.config.decoder
    assert maps.encoder.shape == (encoder.num_layers, encoder.num_heads, 6, 6)
    assert maps.decoder.shape == (decoder.num_layers, decoder.num_heads, 5, 5)
    assert maps.cross.shape == (decoder.num_layers, decoder.num_heads, 5, 6)
    layers = [*maps.encoder]
    for own, cross in zip(maps.decoder, maps.cross, strict=True):
        layers += [own, cross]
    for weights, (attention, values, output) in zip(layers, calls, strict=True):
        joined = (torch.from_numpy(weights) @ values).transpose(1, 2).flatten(2)
        torch.testing.assert_close(attention.out_proj(joined), output)


def test_rows_sum_to_one_and_the_decoder_sees_no_later_step() -> None:
    maps = AttentionReader(random_transformer()).read(SOURCE, TARGET)
    for weights in (maps.cross, maps.encoder, maps.decoder):
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    assert not np.triu(maps.decoder, k=1).any()
    assert (maps.cross > 0).all()


def test_tokens_are_what_each_step_reads_and_writes() -> None:
    model = random_transformer()
    maps = AttentionReader(model).read(SOURCE, TARGET)
    assert maps.src_ids == tuple(SOURCE)
    assert maps.input_ids == (model.config.special_ids.decoder_start_id, 12, 40, 7, 61)
    assert maps.output_ids == tuple(TARGET)


def test_probabilities_are_those_of_the_search() -> None:
    model = random_transformer(3)
    (found,) = search(
        EagerBackend(model),
        [SOURCE],
        SearchOptions(beam_size=3, num_hypotheses=3, max_length=8),
        special_token_ids(model.config),
    )
    reader = AttentionReader(model)
    for hypothesis in found:
        ids = [*hypothesis.token_ids, *([3] if hypothesis.finished else [])]
        sum_log_prob = np.log(reader.read(SOURCE, ids).probabilities.astype(np.float64)).sum()
        assert sum_log_prob == pytest.approx(hypothesis.sum_log_prob, rel=1e-3)


def test_ids_that_are_never_predicted_have_probability_zero() -> None:
    model = random_transformer()
    unk_id = model.config.special_ids.unk_id
    assert AttentionReader(model).read(SOURCE, [unk_id, 3]).probabilities[0] == 0


def test_cross_alone_is_the_same() -> None:
    reader = AttentionReader(random_transformer())
    maps = reader.read(SOURCE, TARGET)
    np.testing.assert_array_equal(reader.read_cross(SOURCE, maps.input_ids), maps.cross)


def test_the_model_is_left_as_it_is() -> None:
    model = random_transformer(dropout=0.5, attention_dropout=0.5).train()
    reader = AttentionReader(model)
    first = reader.read(SOURCE, TARGET)
    np.testing.assert_array_equal(reader.read(SOURCE, TARGET).cross, first.cross)  # no dropout
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    with torch.no_grad():  # the weights are shared
        model.encoder.embedding.tokens.weight.mul_(-1)
    assert (reader.read(SOURCE, TARGET).encoder != first.encoder).any()


def test_threads_do_not_mix_their_weights() -> None:
    reader = AttentionReader(random_transformer())
    pairs = [(SOURCE[i % 4 :], TARGET[i % 3 :]) for i in range(40)]
    expected = [reader.read(*pair).cross for pair in pairs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pair: reader.read(*pair).cross, pairs))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_pass_that_fails_leaves_nothing_behind() -> None:
    reader = AttentionReader(random_transformer())
    with pytest.raises(IndexError):
        reader.read(SOURCE, [12, 9999, 3])
    assert reader.read(SOURCE, TARGET).cross.shape == (2, 4, 5, 6)


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        ([], TARGET, "the source has 0 tokens, its end counted; this model reads 1 to 64"),
        ([5] * 65, TARGET, "the source has 65 tokens"),
        (SOURCE, [5] * 65, "the target has 65 tokens"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(
    source: list[int], target: list[int], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        AttentionReader(random_transformer()).read(source, target)


def test_a_model_that_is_not_on_the_cpu_is_refused() -> None:
    with pytest.raises(ModelError, match=r"the model is on meta.*model\.to\('cpu'\)"):
        AttentionReader(random_transformer().to("meta"))
