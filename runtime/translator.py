"""Text in, text out: the tokenizers, the batches and the search around one backend."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from runtime.backend import Backend, Capabilities
from runtime.batching import DEFAULT_BATCH_TOKENS, check_batch_tokens, plan_batches
from runtime.bundle import Bundle
from runtime.errors import BackendError, BundleError, OptionError
from runtime.manifest import SpecialTokenIds
from runtime.normalizer import NORMALIZER_VERSION
from runtime.options import SearchOptions
from runtime.schedule import Schedule
from runtime.scheduled import ScheduledBackends, open_scheduled
from runtime.search import Hypothesis, max_lengths, search
from runtime.tokenizer import Tokenizer
from runtime.workers import StoppableBackend, in_parallel

log = logging.getLogger(__name__)

# A stream is sorted by length within windows of about this many batches of each worker: more would
# pad less, but hold back lines, and lose more work to an interruption.
_BATCHES_PER_WINDOW = 8
_LINES_PER_WINDOW = 4096


@dataclass(frozen=True, kw_only=True)
class TextHypothesis(Hypothesis):
    """A hypothesis with its text, and its tokens as the tokenizer spells them (no EOS)."""

    text: str
    tokens: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Translation:
    """What became of one line: at least one hypothesis, best first.

    truncated: the line had more tokens than the model reads; the rest was left out.
    """

    hypotheses: tuple[TextHypothesis, ...]
    truncated: bool = False

    @property
    def text(self) -> str:
        """The best hypothesis, one line."""
        return self.hypotheses[0].text


_EMPTY = Translation(
    hypotheses=(
        TextHypothesis(
            text="", tokens=(), token_ids=(), score=0.0, sum_log_prob=0.0, finished=True
        ),
    )
)


@dataclass(frozen=True, kw_only=True)
class _Line:
    index: int  # of the input, from 0
    ids: Sequence[int]  # EOS included; empty for a line that bypasses the model
    truncated: bool


class Translator:
    """Translates lines with one backend. Thread-safe. A context manager: it closes the backend.

    tokenizer: of the source, and of the target unless target_tokenizer is given. defaults: the
    options of calls that give none.
    """

    def __init__(
        self,
        backend: Backend | ScheduledBackends,
        tokenizer: Tokenizer,
        special_ids: SpecialTokenIds,
        *,
        target_tokenizer: Tokenizer | None = None,
        defaults: SearchOptions | None = None,
    ) -> None:
        self.source_tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer or tokenizer
        self.special_ids = special_ids
        self.defaults = defaults or SearchOptions()
        if not isinstance(backend, ScheduledBackends):
            backend = ScheduledBackends(backend)
        self._backends = backend
        self._closed = False

    @classmethod
    def open(
        cls,
        bundle: str | Path | Bundle,
        *,
        backend: str = "auto",
        precision: str | None = None,
        threads: int | None = None,
        workers: int | None = None,
        many_lines: bool = False,
        build: bool = True,
    ) -> Self:
        """Over a bundle: the directory that `python -m export build` made. See `open_backend`.

        threads: of one search. workers: how many batches are searched at once. Where neither is
        given, `choose_schedule` chooses for this machine and this model; `schedule` tells what.
        Where a batch alone gets other threads than one of several, the weights are loaded for each
        when first needed; many_lines: load them for several now.
        Raises BundleError, OptionError, MissingExtraError or BackendError, as `open_backend`.
        """
        opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        manifest = opened.manifest
        if manifest.text.normalizer_version != NORMALIZER_VERSION:
            raise BundleError(
                f"{opened.path} was trained with source normalizer "
                f"{manifest.text.normalizer_version}; this leanseq has {NORMALIZER_VERSION}: use "
                "the version that built it, or build it again"
            )
        try:
            defaults = SearchOptions.from_json(manifest.search_defaults)
        except (OptionError, TypeError) as error:
            raise BundleError(
                f"{opened.path}: search_defaults in its manifest can't be used ({error}); build "
                "the bundle again"
            ) from error
        source, target = (Tokenizer(proto) for proto in opened.tokenizer_protos())
        if target.size > manifest.model.vocab_size:
            raise BundleError(
                f"{opened.path}: its tokenizer has {target.size} pieces, its model predicts "
                f"{manifest.model.vocab_size}; they don't belong together, build it again"
            )
        backends = open_scheduled(
            opened, backend, precision=precision, threads=threads, workers=workers,
            many_lines=many_lines, build=build,
        )  # fmt: skip
        return cls(
            backends, source, manifest.special_ids, target_tokenizer=target, defaults=defaults
        )

    @property
    def schedule(self) -> Schedule:
        """How the cores are shared out."""
        return self._backends.schedule

    @property
    def backend(self) -> Backend:
        """The one that was opened first."""
        return self._backends.first

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    def translate(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        *,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
    ) -> list[Translation]:
        """One translation for each text, in order. batch_tokens: most padded source tokens of a
        batch. Neither that nor the number of workers changes a translation.

        Raises OptionError for options that the model can't serve.
        """
        return list(self.translate_iter(texts, options, batch_tokens=batch_tokens))

    def translate_iter(
        self,
        texts: Iterable[str],
        options: SearchOptions | None = None,
        *,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        first_index: int = 0,
    ) -> Iterator[Translation]:
        """The same for a stream, in order and in bounded memory.

        Some thousand tokens are read ahead for each worker, to batch lines of like length.
        first_index: the index of the first text, which sampling is keyed by and warnings name
        (plus one). Closing the iterator ends the searches that are under way.
        """
        if isinstance(texts, str):
            raise OptionError("texts is one str; expected a list or iterable of them")
        options = options or self.defaults
        self.check(options, batch_tokens)  # complains before anything is read
        return self._stream(texts, options, batch_tokens, first_index)

    def check(self, options: SearchOptions, batch_tokens: int = DEFAULT_BATCH_TOKENS) -> None:
        """Raises OptionError for what this model can't serve, BackendError if it is closed."""
        self._check_open()
        check_batch_tokens(batch_tokens)
        max_lengths([1], options, self.capabilities)

    def search_ids(
        self,
        sources: Sequence[Sequence[int]],
        options: SearchOptions | None = None,
        *,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        all_ended: bool = False,
    ) -> list[list[Hypothesis]]:
        """Searches token ids, EOS included, without touching text. all_ended: see `search`."""
        options = options or self.defaults
        self.check(options, batch_tokens)
        lines = [_Line(index=i, ids=ids, truncated=False) for i, ids in enumerate(sources)]
        found: list[list[Hypothesis]] = [[] for _ in sources]
        batches = self._plan(lines, batch_tokens)
        for batch, hypotheses in self._search(batches, options, all_ended):
            for line, result in zip(batch, hypotheses, strict=True):
                found[line.index] = result
        return found

    def close(self) -> None:
        """Closes the backend; translating afterwards raises BackendError."""
        self._closed = True
        self._backends.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("this translator is closed; open another one")

    def _stream(
        self,
        texts: Iterable[str],
        options: SearchOptions,
        batch_tokens: int,
        first_index: int,
    ) -> Iterator[Translation]:
        """Yields each line's translation as soon as it and those before it are done."""
        done: dict[int, Translation] = {}
        next_index = first_index
        batches = self._batches(texts, batch_tokens, first_index, done)
        for batch, found in self._search(batches, options):
            for line, hypotheses in zip(batch, found, strict=True):
                done[line.index] = Translation(
                    hypotheses=tuple(self._spell(hypothesis) for hypothesis in hypotheses),
                    truncated=line.truncated,
                )
            while next_index in done:
                yield done.pop(next_index)
                next_index += 1

    def _batches(
        self,
        texts: Iterable[str],
        batch_tokens: int,
        first_index: int,
        done: dict[int, Translation],
    ) -> Iterator[list[_Line]]:
        """What is searched together; empty lines are put into `done`.

        A window of them is one empty batch, so that they are given out before more is read.
        """
        per_window = _BATCHES_PER_WINDOW * self.schedule.workers * batch_tokens
        window: list[_Line] = []
        lines = tokens = 0
        for index, text in enumerate(texts, start=first_index):
            line = self._read(index, text)
            if line.ids:
                window.append(line)
            else:
                done[index] = _EMPTY
            lines, tokens = lines + 1, tokens + len(line.ids)
            if tokens >= per_window or lines == _LINES_PER_WINDOW:
                yield from self._plan(window, batch_tokens) or [[]]
                window, lines, tokens = [], 0, 0
        if lines:
            yield from self._plan(window, batch_tokens) or [[]]

    def _plan(self, lines: Sequence[_Line], batch_tokens: int) -> list[list[_Line]]:
        batches = plan_batches(
            [len(line.ids) for line in lines],
            batch_tokens,
            self.schedule.workers,
        )
        return [[lines[place] for place in batch] for batch in batches]

    def _search(
        self, batches: Iterable[list[_Line]], options: SearchOptions, all_ended: bool = False
    ) -> Iterator[tuple[list[_Line], list[list[Hypothesis]]]]:
        """Each batch with the hypotheses of its lines, in the order in which they get done."""

        def search_batch(
            batch: list[_Line], stopped: threading.Event, alone: bool
        ) -> list[list[Hypothesis]]:
            self._check_open()
            return search(
                StoppableBackend(self._backends.get(alone=alone), stopped),
                [line.ids for line in batch],
                options,
                self.special_ids,
                input_indices=[line.index for line in batch],
                all_ended=all_ended,
            )

        try:
            yield from in_parallel(search_batch, iter(batches), self.schedule.workers)
        finally:
            self._backends.trim()

    def _read(self, index: int, text: str) -> _Line:
        if not isinstance(text, str):
            raise OptionError(f"text {index + 1} is of type {type(text).__name__}; expected a str")
        ids = self.source_tokenizer.encode_source(text)
        eos_id, limit = self.special_ids.eos, self.capabilities.max_source
        if len(ids) == 1:
            return _Line(index=index, ids=[], truncated=False)
        if limit is None or len(ids) <= limit:
            return _Line(index=index, ids=ids, truncated=False)
        log.warning(
            "line %d has %d tokens, the model reads %d: the rest is left out; split the line to "
            "have it all translated",
            index + 1,
            len(ids),
            limit,
        )
        return _Line(index=index, ids=[*ids[: limit - 1], eos_id], truncated=True)

    def _spell(self, hypothesis: Hypothesis) -> TextHypothesis:
        return TextHypothesis(
            text=self.target_tokenizer.decode(hypothesis.token_ids),
            tokens=tuple(self.target_tokenizer.pieces(hypothesis.token_ids)),
            **vars(hypothesis),
        )
