"""How quickly leanseq trains, beside torch.nn.Transformer of the same sizes.

Both make the same updates: the same batches of random token ids, tied embeddings, sinusoidal
positions, label smoothing, dropout in the same places, clipping, fused Adam. torch.nn.Transformer
computes a batch on all cores at once, as PyTorch does; leanseq gives each core a batch of its own.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.machine import describe_machine, now
from benchmarks.timing import Times, interleave, paired_ratio
from model.config import PRESETS, ModelConfig, padded_size
from model.positions import PositionTable
from model.training.batching import Batch, EncodedCorpus, make_batch, side_of
from model.training.gradients import GradientWorkers
from model.transformer import Transformer
from runtime.cores import usable_cpus
from runtime.errors import OptionError

logger = logging.getLogger(__name__)

_MEAN_LENGTH, _SPREAD, _LONGEST = 16, 5, 60
"""Tokens of a line, normally distributed: about those of image captions."""
_SMOOTHING, _DROPOUT, _CLIP = 0.1, 0.1, 1.0
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """What to time. vocab_size None takes the preset's; threads None all cores; updates are timed
    `rounds` times each, of `accumulation` batches of batch_tokens padded tokens."""

    preset: str = "tiny"
    vocab_size: int | None = None
    batch_tokens: int = 2048
    accumulation: int = 2
    updates: int = 4
    rounds: int = 3
    threads: int | None = None
    seed: int = 1


def measure_training(run: TrainingRun) -> dict[str, Any]:
    """Times both in turns, in float32 and in bf16 autocast.

    Returns {"run", "machine", "measured", "precisions": {name: {"leanseq", "torch.nn.Transformer":
    target tokens/s, "ratio": Spread}}}. Raises OptionError for an unknown preset.
    """
    if run.preset not in PRESETS:
        raise OptionError(f"preset is {run.preset!r}; expected one of {', '.join(PRESETS)}")
    preset = PRESETS[run.preset]
    config = preset.config(run.vocab_size or preset.vocab_size, dropout=_DROPOUT)
    updates = _random_updates(config, run)
    record: dict[str, Any] = {"run": asdict(run), "machine": describe_machine(), "measured": now()}
    record["precisions"] = {}
    tokens = np.array([sum(batch.num_tokens for batch in update) for update in updates])
    with _torch_threads(run.threads or len(usable_cpus())):
        for precision in PRECISIONS:
            logger.info("timing %s, %s", run.preset, precision)
            ours, theirs = _time(config, run, updates, bf16=precision == "bf16")
            record["precisions"][precision] = {
                "leanseq": float(np.median(tokens / ours)),
                "torch.nn.Transformer": float(np.median(tokens / theirs)),
                "ratio": paired_ratio(theirs, ours).to_json(),
            }
    return record


def render(record: dict[str, Any]) -> str:
    """The record as a table."""
    run = record["run"]
    lines = [
        f"training {run['preset']}, {run['accumulation']} x {run['batch_tokens']} padded tokens an "
        "update; target tokens/s",
        f"{'':6}{'leanseq':>10}{'torch.nn.Transformer':>24}{'times as fast':>22}",
    ]
    for precision, found in record["precisions"].items():
        ratio = found["ratio"]
        spread = f"{ratio['median']:.2f} ({ratio['p10']:.2f}-{ratio['p90']:.2f})"
        lines.append(
            f"{precision:6}{found['leanseq']:10,.0f}{found['torch.nn.Transformer']:24,.0f}"
            f"{spread:>22}"
        )
    machine = record["machine"]
    return "\n".join(
        [
            *lines,
            "times as fast: median (10% to 90%) of the ratios of neighbouring updates",
            f"measured {record['measured']} on {machine['cpu']}, {machine['cores']} cores, torch "
            f"{machine['versions']['torch']}",
        ]
    )


class TorchTransformer(nn.Module):
    """torch.nn.Transformer made into the model of `config`: what a PyTorch user would write."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = config.scale_of_embedding
        self.pad_id = config.special_ids.pad_id
        self.tokens = nn.Embedding(padded_size(config.tgt_vocab_size), config.d_model)
        nn.init.normal_(self.tokens.weight, std=config.d_model**-0.5)
        self.positions = PositionTable(config.max_source, config.d_model, learned=False, offset=0)
        self.dropout = nn.Dropout(config.dropout)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # pre-norm has no nested tensors, which it would use to infer
            self.transformer = nn.Transformer(
                config.d_model,
                config.encoder.num_heads,
                config.encoder.num_layers,
                config.decoder.num_layers,
                config.encoder.ffn_dim,
                dropout=config.dropout,
                batch_first=True,
                norm_first=config.norm == "pre",
            )
        for module in self.modules():  # leanseq's presets drop on sublayers' outputs only
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Dropout(0.0)

    def forward(self, batch: Batch) -> Tensor:
        """Teacher forcing -> logits [B,T,V]."""
        padding = ~batch.src_mask
        length = batch.tgt_in.size(1)
        causal = nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.bool)
        hidden = self.transformer(
            self._embed(batch.src_ids),
            self._embed(batch.tgt_in),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.tokens.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        places = self.positions(torch.arange(ids.size(1)))
        return cast(Tensor, self.dropout(self.tokens(ids) * self.scale + places))


def _time(
    config: ModelConfig, run: TrainingRun, updates: Sequence[list[Batch]], *, bf16: bool
) -> tuple[Times, Times]:
    """Seconds [rounds, updates] of leanseq and of torch.nn.Transformer."""
    threads = torch.get_num_threads()
    torch.manual_seed(run.seed)
    ours, theirs = Transformer(config).train(), TorchTransformer(config).train()
    with contextlib.closing(GradientWorkers(run.accumulation)) as workers:

        def with_leanseq(update: list[Batch]) -> None:
            torch.set_num_threads(max(1, threads // run.accumulation))
            seeds = list(range(len(update)))
            workers.compute(ours, update, seeds, smoothing=_SMOOTHING, bf16=bf16)

        def with_torch(update: list[Batch]) -> None:
            torch.set_num_threads(threads)
            tokens = sum(batch.num_tokens for batch in update)
            for batch in update:
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    logits = theirs(batch)
                loss = F.cross_entropy(
                    logits.flatten(0, 1).float(),
                    batch.tgt_out.flatten(),
                    ignore_index=theirs.pad_id,
                    label_smoothing=_SMOOTHING,
                    reduction="sum",
                )
                (loss / tokens).backward()  # type: ignore[no-untyped-call]

        steps = [_with_step(with_leanseq, ours), _with_step(with_torch, theirs)]
        seconds, _ = interleave(steps, updates, rounds=run.rounds, warmup=2)
    return seconds[0], seconds[1]


def _with_step(
    compute: Callable[[list[Batch]], None], model: nn.Module
) -> Callable[[list[Batch]], None]:
    """A whole update: `compute` makes the gradients, then clipping and Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)

    def step(update: list[Batch]) -> None:
        optimizer.zero_grad()
        compute(update)
        nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimizer.step()

    return step


def _random_updates(config: ModelConfig, run: TrainingRun) -> list[list[Batch]]:
    rng = np.random.default_rng(run.seed)
    lines = max(2, 2 * run.updates * run.accumulation * run.batch_tokens // _MEAN_LENGTH)

    def side() -> Any:
        lengths = np.clip(rng.normal(_MEAN_LENGTH, _SPREAD, lines), 2, _LONGEST).astype(int)
        return side_of(
            rng.integers(4, config.tgt_vocab_size, length).tolist() for length in lengths
        )

    corpus = EncodedCorpus(source=side(), target=side(), pair_rows=np.arange(lines))
    batches = corpus.batches(run.batch_tokens, run.seed)[: run.updates * run.accumulation]
    made = [make_batch(corpus, rows, config) for rows in batches]
    return [made[i : i + run.accumulation] for i in range(0, len(made), run.accumulation)]


@contextlib.contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
