"""BPE dropout: another segmentation of the same line in every epoch.

Provilkov et al. 2020, arXiv 1910.13267, section 3.2: each merge of the byte-pair encoding is left
out with probability p whenever it could be made, so that a model sees a word in many ways and
learns what its parts mean. Translation and validation segment without it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sentencepiece

from model.batching import EncodedCorpus, Side, encode_corpus, side_of
from model.config import ModelConfig
from runtime.normalizer import normalize_source, normalize_target
from runtime.tokenizer import Tokenizer

Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class EpochCorpus:
    """The training corpus as one epoch sees it. p: of BPE dropout; 0 gives `plain` every time."""

    plain: EncodedCorpus
    sources: list[str]  # normalised; empty where p is 0
    targets: list[str]
    model_proto: bytes
    p: float
    seed: int

    @classmethod
    def encode(
        cls, pairs: Pairs, tokenizer: Tokenizer, config: ModelConfig, *, p: float, seed: int
    ) -> EpochCorpus:
        """Raises DataError if no pair can be used (model.batching.encode_corpus)."""
        plain = encode_corpus(pairs, tokenizer, config, "training")
        kept = [pairs[row] for row in plain.pair_rows] if p else []
        return cls(
            plain=plain,
            sources=[normalize_source(source) for source, _ in kept],
            targets=[normalize_target(target) for _, target in kept],
            model_proto=tokenizer.model_proto,
            p=p,
            seed=seed,
        )

    def of_epoch(self, epoch: int, config: ModelConfig) -> EncodedCorpus:
        """What the epoch trains on; follows from (seed, epoch) alone. A line that grows beyond the
        model's positions keeps its plain segmentation."""
        if not self.p:
            return self.plain
        sampled: list[Side] = []
        seed = np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0]
        eos_id = config.special_ids.eos_id

        def sample() -> None:
            # SentencePiece's generator belongs to a thread, and a new thread takes the new seed.
            sentencepiece.set_random_generator_seed(int(seed))
            processor = sentencepiece.SentencePieceProcessor(model_proto=self.model_proto)
            for lines, plain, longest in (
                (self.sources, self.plain.source, config.max_source),
                (self.targets, self.plain.target, config.max_target),
            ):
                found = processor.encode(
                    lines, enable_sampling=True, alpha=self.p, nbest_size=-1, num_threads=1
                )
                sampled.append(
                    side_of(
                        [*ids, eos_id] if len(ids) < longest else plain.line(row)
                        for row, ids in enumerate(found)
                    )
                )

        thread = threading.Thread(target=sample)
        thread.start()
        thread.join()
        source, target = sampled
        return EncodedCorpus(source=source, target=target, pair_rows=self.plain.pair_rows)
