"""CTranslate2 behind our tokenizer: text in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2

from benchmarks.peers.settings import Setting
from benchmarks.peers.subjects import NOTHING, Found
from runtime.backend import Capabilities
from runtime.bundle import Bundle
from runtime.errors import OptionError
from runtime.options import SearchOptions
from runtime.search import max_lengths
from runtime.tokenizer import Tokenizer

_NO_PENALTY = 1e-6
"""At exactly 0 CTranslate2 leaves the search early (docs/decisions/0003-search-semantics.md)."""


class CTranslate2Peer:
    """A converted model, and what its bundle knows of text: tokenizers, special ids, limits."""

    def __init__(self, path: Path, bundle: Bundle, setting: Setting) -> None:
        self._translator = ctranslate2.Translator(
            str(path),
            device="cpu",
            compute_type=setting.compute_type,
            inter_threads=setting.inter_threads,
            intra_threads=setting.intra_threads,
        )
        manifest = bundle.manifest
        source, target = (Tokenizer(proto) for proto in bundle.tokenizer_protos())
        self._source, self._target = source, target
        self._source_pieces = source.pieces(range(source.size))
        self._target_pieces = target.pieces(range(target.size))
        self._target_ids = {piece: i for i, piece in enumerate(self._target_pieces)}
        ids = manifest.special_ids
        self._eos_id = ids.eos
        self._suppressed = [
            [self._target_pieces[i]] for i in ids.banned if i != ids.unk and i < target.size
        ]
        self._limits = Capabilities(
            name="ctranslate2",
            device="cpu",
            precision=setting.compute_type,
            vocab_size=target.size,
            max_source=manifest.model.max_source,
            max_target=manifest.model.max_target,
        )

    def translate(
        self, lines: Sequence[str], options: SearchOptions, setting: Setting | None
    ) -> list[Found]:
        """As our Translator does: the same pieces, empty lines left out, long ones cut."""
        sources = [self._read(line) for line in lines]
        places = [place for place, ids in enumerate(sources) if len(ids) > 1]
        if not places:
            return [NOTHING] * len(lines)
        lengths = [len(sources[place]) for place in places]
        longest = int(max_lengths(lengths, options, self._limits).max())
        assert setting is not None
        pieces = [[self._source_pieces[i] for i in sources[place]] for place in places]
        found = [NOTHING] * len(lines)
        for place, result in zip(
            places, self._search(pieces, options, longest, setting), strict=True
        ):
            token_ids = tuple(self._target_ids[piece] for piece in result.hypotheses[0])
            found[place] = Found(
                text=self._target.decode(token_ids),
                token_ids=token_ids,
                finished=len(token_ids) < longest,
            )
        return found

    def describe(self) -> dict[str, Any]:
        """The type that CTranslate2 made of the one asked for."""
        return {"computes_in": self._translator.compute_type}

    def close(self) -> None:
        self._translator.unload_model()

    def _read(self, line: str) -> list[int]:
        ids = self._source.encode_source(line)
        limit = self._limits.max_source
        return ids if limit is None or len(ids) <= limit else [*ids[: limit - 1], self._eos_id]

    def _search(
        self, pieces: list[list[str]], options: SearchOptions, longest: int, setting: Setting
    ) -> Any:
        check_options(options)
        asked: dict[str, Any] = {
            "max_batch_size": setting.max_batch_size,
            "batch_type": setting.batch_type,
            "beam_size": options.beam_size,
            "patience": options.patience,
            "length_penalty": options.length_penalty or _NO_PENALTY,
            "min_decoding_length": options.min_length,
            "max_decoding_length": longest,
            "max_input_length": 0,
            "disable_unk": True,
            "suppress_sequences": self._suppressed,
            "return_scores": True,
        }
        if setting.stream:
            return self._translator.translate_iterable(iter(pieces), **asked)
        return self._translator.translate_batch(pieces, **asked)


def check_options(options: SearchOptions) -> None:
    """Raises OptionError for what CTranslate2 does not search by."""
    if options.length_penalty_kind != "power" or options.sampling:
        raise OptionError(
            f"the bundle's search defaults are length_penalty_kind {options.length_penalty_kind!r}"
            f"{' and sampling' if options.sampling else ''}; CTranslate2 has 'power' and beam "
            "search only: compare a bundle with these"
        )
