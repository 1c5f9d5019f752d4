"""Our search against CTranslate2's, over the same weights: lists of hypotheses and their scores.

The two round differently, so hypotheses whose scores are within TOLERANCE may stand in either
order; such ties are printed. The hypotheses themselves must be the same.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ctranslate2")

import ctranslate2
from support.tiny_model import random_transformer

from benchmarks.peers.ctranslate2_model import suppressed, token_name, write_ctranslate2
from model.config import ModelConfig
from model.eager import EagerBackend, special_token_ids
from model.transformer import Transformer
from runtime.options import SearchOptions
from runtime.search import Hypothesis, search

TOLERANCE = 2e-4
VOCAB_SIZE = 24
SENTENCES = 60
# Random models fall into loops, and after many rounds of one, hypotheses that left it once tie.
MAX_LENGTH = 12


def make_model(norm: str) -> Transformer:
    """Few tokens, layers that look at the history, and EOS likely enough to stand at many ranks."""
    model = random_transformer(
        seed=3 if norm == "pre" else 7,
        norm=norm,
        tying="none",
        src_vocab_size=VOCAB_SIZE,
        tgt_vocab_size=VOCAB_SIZE,
    )
    last = model.decoder.layers[-1]
    final_norm = model.decoder.final_norm if norm == "pre" else last.ffn_residual.norm
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "layers" in name:
                parameter.mul_(4)
        model.output.weight.mul_(1.5)
        push = final_norm.bias / final_norm.bias.square().sum()  # adds 1 to the logit, on average
        model.output.weight[model.config.special_ids.eos_id] += push
    return model


class Pair:
    """One model, twice."""

    def __init__(self, model: Transformer, path: Path) -> None:
        self.config: ModelConfig = model.config
        self.backend = EagerBackend(model)
        write_ctranslate2(model, path)
        self.translator = ctranslate2.Translator(str(path), inter_threads=1, intra_threads=1)
        self.special_ids = special_token_ids(self.config)

    def ours(self, sources: list[list[int]], options: SearchOptions) -> list[list[Hypothesis]]:
        return search(self.backend, sources, options, self.special_ids)

    def theirs(
        self, sources: list[list[int]], options: SearchOptions, max_length: int
    ) -> list[Any]:
        results: list[Any] = self.translator.translate_batch(
            [[token_name(i, self.config) for i in source] for source in sources],
            beam_size=options.beam_size,
            num_hypotheses=options.num_hypotheses,
            # At 0 CTranslate2 stops early, which we do not copy.
            length_penalty=options.length_penalty or 1e-6,
            patience=options.patience,
            min_decoding_length=options.min_length,
            max_decoding_length=max_length,
            disable_unk=True,
            suppress_sequences=suppressed(self.config),
            return_scores=True,
        )
        return results

    def differing(
        self, sources: list[list[int]], options: SearchOptions, max_length: int
    ) -> list[int]:
        """Indices of the sources whose lists differ."""
        bad = []
        theirs = self.theirs(sources, options, max_length)
        for index, (mine, other) in enumerate(
            zip(self.ours(sources, options), theirs, strict=True)
        ):
            spelt = [[token_name(i, self.config) for i in found.token_ids] for found in mine]
            scores = [found.score for found in mine]
            close = scores == pytest.approx(other.scores, rel=TOLERANCE, abs=TOLERANCE)
            if not close or sorted(spelt) != sorted(other.hypotheses):
                bad.append(index)
            elif spelt != other.hypotheses:
                print(f"tie: source {index}, scores {scores}")
        return bad


@pytest.fixture(scope="module", params=["post", "pre"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(make_model(request.param), tmp_path_factory.mktemp("ct2") / "model")


def sources_of(count: int = SENTENCES) -> list[list[int]]:
    generator = random.Random(1)
    return [
        [*(generator.randrange(4, VOCAB_SIZE) for _ in range(generator.randrange(1, 9))), 3]
        for _ in range(count)
    ]


SETTINGS: list[dict[str, Any]] = [
    *({"beam_size": k, "num_hypotheses": k} for k in range(1, 9)),
    {"beam_size": 1, "length_penalty": 0.0},
    {"beam_size": 4},
    {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.6},
    {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.0},
    {"beam_size": 4, "num_hypotheses": 2, "length_penalty": 2.0},
    {"beam_size": 4, "num_hypotheses": 4, "patience": 2.0},
    {"beam_size": 5, "num_hypotheses": 3, "patience": 0.5},
    {"beam_size": 4, "num_hypotheses": 1, "patience": 0.25},
    {"beam_size": 4, "num_hypotheses": 4, "min_length": 0},
    {"beam_size": 4, "num_hypotheses": 4, "min_length": 5},
    {"beam_size": 1, "min_length": 6},
    {"beam_size": 4, "num_hypotheses": 4, "max_length": 5},
    {"beam_size": 4, "num_hypotheses": 4, "max_length": 1},
    {"beam_size": 4, "num_hypotheses": 4, "max_length": 4, "min_length": 4},
    {"beam_size": 1, "max_length": 3},
    {"beam_size": 8, "num_hypotheses": 8, "max_length": 6, "patience": 3.0},
]


@pytest.mark.parametrize("values", SETTINGS, ids=repr)
def test_search_matches_ctranslate2(pair: Pair, values: dict[str, Any]) -> None:
    options = SearchOptions(**({"max_length": MAX_LENGTH} | values))
    assert options.max_length is not None
    assert pair.differing(sources_of(), options, options.max_length) == []


def test_default_max_length_matches_ctranslate2_sentence_by_sentence(pair: Pair) -> None:
    sources = sources_of()
    options = SearchOptions()
    for length in {len(source) for source in sources}:
        group = [source for source in sources if len(source) == length]
        assert pair.differing(group, options, 2 * length + 20) == []


def test_the_sentences_can_tell(pair: Pair) -> None:
    """What the settings vary must show in the results, or equality would say little."""
    base_options = {"max_length": MAX_LENGTH, "num_hypotheses": 4}
    base = pair.ours(sources_of(), SearchOptions(**base_options))
    assert len({len(h.token_ids) for found in base for h in found}) > 5
    assert {h.finished for found in base for h in found} == {True, False}
    for changes in CHANGES:
        other = pair.ours(sources_of(), SearchOptions(**(base_options | changes)))
        differing = sum(
            [h.token_ids for h in a] != [h.token_ids for h in b]
            for a, b in zip(base, other, strict=True)
        )
        assert differing >= 3, changes


CHANGES: list[dict[str, Any]] = [
    {"beam_size": 5},
    {"length_penalty": 0.6},
    {"length_penalty": 0.0},
    {"patience": 2.0},
    {"min_length": 0},
    {"min_length": 5},
    {"max_length": 5},
]
