"""Trainings with one thing planted that goes wrong, from model.training.train.train on."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.failing_update import fail_on_rank_1, failing_update
from support.ranks import run_ranks

import model.training.run
import model.training.validation
from model.checkpoint import load_checkpoint
from model.config import ModelConfig
from model.corpora import phrases
from model.diagnosis import early, norms, stall
from model.diagnosis.watch import Watch
from model.errors import DataError, TrainingError
from model.training.batching import EncodedCorpus, make_batch
from model.training.distributed import Ranks
from model.training.progress import Progress
from model.training.settings import TrainingSettings
from model.training.train import train
from model.transformer import Transformer

SETTINGS = TrainingSettings(
    vocab_size=400,
    max_updates=4,
    warmup=2,
    batch_tokens=64,
    save_every=100,
    validate_every=100,
    dropout=0.1,
    precision="fp32",
    encoder_layers=2,
    decoder_layers=2,
)


@pytest.fixture(scope="module")
def pairs() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    corpus = phrases.make("de", 1500, valid=50, calibration=50, test=50)
    return corpus.pairs("train"), corpus.pairs("valid")[:20]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Transformer], object]], None]:
    """Changes the model of every training to come."""

    def changed(change: Callable[[Transformer], object]) -> None:
        def make(config: ModelConfig) -> Transformer:
            net = Transformer(config)
            change(net)
            return net

        monkeypatch.setattr(model.training.run, "Transformer", make)

    return changed


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Does something after so many updates."""

    def wait(updates: int, act: Callable[[], object]) -> None:
        shown = Progress.update

        def update(self: Progress, done: int, *values: float) -> None:
            shown(self, done, *values)
            if done == updates:
                act()

        monkeypatch.setattr(Progress, "update", update)

    return wait


def test_an_inf_weight(pairs, tmp_path: Path, plant) -> None:
    @torch.no_grad()
    def change(net: Transformer) -> None:
        net.decoder.layers[1].ffn.in_proj.weight[0, 0] = math.inf

    plant(change)
    with pytest.raises(TrainingError) as found:
        train(*pairs, SETTINGS, tmp_path, quiet=True)
    message = str(found.value)
    assert "not finite at update 1 (epoch 1, fp32, learning rate" in message
    assert "in what decoder.layers.1.ffn.in_proj gives" in message
    assert "decoder.layers.1.ffn.in_proj.weight holds 1 not finite" in message
    line = int(message.partition("; line ")[2].split()[0])
    source, target = pairs[0][line - 1]
    assert f"line {line} ({source!r} => {target!r})" in message


def test_one_line_that_overflows_a_module(pairs, tmp_path: Path, plant) -> None:
    """Of the fourth update; it overflows again when that is done again."""
    seen = []

    def hook(module: torch.nn.Module, _: object, output: torch.Tensor) -> torch.Tensor:
        if not module.training:  # the probe of masks
            return output
        seen.append(0)
        if len(seen) <= 3:
            return output
        output = output.clone()
        output[0] = math.inf
        return output

    plant(lambda net: net.encoder.layers[1].self_attention.v_proj.register_forward_hook(hook))
    with pytest.raises(TrainingError) as found:
        train(*pairs, replace(SETTINGS, accumulation=1), tmp_path, quiet=True)
    message = str(found.value)
    assert "not finite at update 4 (" in message
    assert "inf in what encoder.layers.1.self_attention.v_proj gives" in message
    assert "rows: 1 of " in message
    assert "Probably those lines: the others of the batch are finite" in message


def test_a_nan_in_the_backward_pass_alone(pairs, tmp_path: Path, plant) -> None:
    def hook(_: object, __: object, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * math.nan)
        return output

    plant(lambda net: net.decoder.layers[0].ffn.in_proj.register_forward_hook(hook))
    with pytest.raises(TrainingError, match=r"nan in the gradient .*decoder.layers.0.ffn") as found:
        train(*pairs, SETTINGS, tmp_path, quiet=True)
    assert "Probably a derivative without a finite value" in str(found.value)


def test_a_causal_mask_left_out(pairs, tmp_path: Path, plant) -> None:
    def change(net: Transformer) -> None:
        attention = net.decoder.layers[1].self_attention
        attend = attention.attend
        attention.attend = lambda q, k, v, mask: attend(q, k, v, None)

    plant(change)
    with pytest.raises(
        TrainingError, match=r"decoder.layers.1.self_attention gives at earlier ones"
    ):
        train(*pairs, SETTINGS, tmp_path, quiet=True)
    assert not (tmp_path / "training" / "state.json").exists()


def test_a_source_mask_left_out(pairs, tmp_path: Path, monkeypatch) -> None:
    def unmasked(corpus: EncodedCorpus, rows, config: ModelConfig):
        batch = make_batch(corpus, rows, config)
        return replace(batch, src_mask=torch.ones_like(batch.src_mask))

    monkeypatch.setattr(model.training.run, "make_batch", unmasked)
    with pytest.raises(TrainingError, match=r"calls padding a real token in line \d+ \('"):
        train(*pairs, replace(SETTINGS, max_updates=20), tmp_path, quiet=True)


def test_a_shift_left_out(pairs, tmp_path: Path, monkeypatch) -> None:
    def unshifted(corpus: EncodedCorpus, rows, config: ModelConfig):
        batch = make_batch(corpus, rows, config)
        return replace(batch, tgt_in=batch.tgt_out.int())

    monkeypatch.setattr(model.training.run, "make_batch", unshifted)
    with pytest.raises(TrainingError, match="tgt_in equals tgt_out"):
        train(*pairs, SETTINGS, tmp_path, quiet=True)


def test_a_row_of_padding(pairs, tmp_path: Path, monkeypatch) -> None:
    def emptied(corpus: EncodedCorpus, rows, config: ModelConfig):
        batch = make_batch(corpus, rows, config)
        batch.src_ids[-1], batch.src_mask[-1] = 0, False
        return batch

    monkeypatch.setattr(model.training.run, "make_batch", emptied)
    with pytest.raises(DataError, match=r"no source token, only padding, in line \d+ \('"):
        train(*pairs, SETTINGS, tmp_path, quiet=True)


def test_a_leak_that_shows_late(pairs, tmp_path: Path, plant, after, monkeypatch) -> None:
    """The first probe finds nothing; the loss falls; the second finds it."""
    monkeypatch.setattr(early, "TOO_LOW", 10.0)
    leaking = []

    def change(net: Transformer) -> None:
        attention = net.decoder.layers[0].self_attention
        attend = attention.attend
        attention.attend = lambda q, k, v, mask: attend(q, k, v, None if leaking else mask)

    plant(change)
    after(18, lambda: leaking.append(True))
    with pytest.raises(TrainingError, match="The causal mask is missing"):
        train(*pairs, replace(SETTINGS, max_updates=25), tmp_path, quiet=True)


def test_notes_on_a_loss_a_norm_and_a_vocabulary(
    pairs, tmp_path: Path, plant, after, monkeypatch, caplog
) -> None:
    """What is odd and may be right is told, and training goes on."""
    monkeypatch.setattr(early, "TOO_LOW", 10.0)
    monkeypatch.setattr("model.diagnosis.watch.UNSEEN", 0.0)
    factors = [1.0]

    def change(net: Transformer) -> None:
        for parameter in net.parameters():
            parameter.register_hook(lambda gradient: gradient * factors[0])

    plant(change)
    after(21, lambda: factors.insert(0, 1e5))
    after(22, lambda: factors.insert(0, 1.0))
    result = train(*pairs, replace(SETTINGS, max_updates=23), tmp_path, quiet=True)
    assert result.updates == 23
    assert "pieces of the vocabulary are in no training line" in caplog.text
    assert "nats a token after 20 updates, where guessing by frequency costs" in caplog.text
    assert "both sides are the same in 0% of the pairs" in caplog.text
    assert caplog.text.count(" times what is usual here: clipped to 1.") == 1
    assert "at update 22, " in caplog.text


def test_notes_of_a_validation(pairs, tmp_path: Path, plant, monkeypatch, caplog) -> None:
    """Losses that part, layers without a gradient, dead heads."""
    losses = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    monkeypatch.setattr(
        model.training.validation, "validation_loss", lambda *_, **__: losses.pop(0)
    )
    monkeypatch.setattr(norms, "VANISHED", 10.0)

    @torch.no_grad()
    def change(net: Transformer) -> None:
        values = net.decoder.layers[1].cross_attention.v_proj
        keep = torch.ones(values.weight.size(0))
        keep[32:64] = 0  # head 1
        values.weight.mul_(keep[:, None])
        values.weight.register_hook(lambda gradient: gradient * keep[:, None])
        values.bias.register_hook(lambda gradient: gradient * keep)

    plant(change)
    settings = replace(SETTINGS, max_updates=9, validate_every=2)
    train(*pairs, settings, tmp_path, quiet=True)
    head = "decoder.layers.1.cross_attention head 1 adds nothing to its layer"
    assert caplog.text.count(head) == 1
    assert caplog.text.count("the gradient vanishes on the way to encoder.layers.0: ") == 1
    assert "has not fallen since update 2 (1.000 then, 4.000 now)" in caplog.text


def test_frozen_weights_and_a_source_without_use(
    pairs, tmp_path: Path, plant, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(stall, "STALL_UPDATES", 3)

    def change(net: Transformer) -> None:
        for parameter in net.encoder.layers[0].parameters():
            parameter.register_hook(torch.zeros_like)

    plant(change)
    train(*pairs, replace(SETTINGS, max_updates=7), tmp_path, quiet=True)
    first = "6 weights are frozen, encoder.layers.0.self_attention.q_proj.weight the first"
    assert caplog.text.count(first) == 1
    assert caplog.text.count("the source makes no difference so far: validation loss") == 1


@pytest.mark.parametrize(
    ("rate", "factor", "cause"),
    [
        (1e-8, 1.0, r"the learning rate \(1e-08\) is too low: no weight can have moved by more"),
        (1.0, 1.0, r"the learning rate \(1\) is too high for post-norm: try a third of it"),
        (1e-3, 0.0, r"weights are frozen: encoder.embedding.tokens.weight, encoder.layers.0.self_"),
    ],
)
def test_a_loss_that_stands_still(
    pairs, tmp_path: Path, plant, monkeypatch, rate: float, factor: float, cause: str
) -> None:
    monkeypatch.setattr(stall, "STALL_UPDATES", 5)

    def change(net: Transformer) -> None:
        for parameter in net.parameters():
            parameter.register_hook(lambda gradient: gradient * factor)

    plant(change)
    settings = replace(SETTINGS, max_updates=50, learning_rate=rate, norm="post")
    with pytest.raises(TrainingError, match=f"the loss stands still: .* Probably {cause}"):
        train(*pairs, settings, tmp_path, quiet=True)


def test_a_right_training_hears_nothing(pairs, tmp_path: Path, caplog) -> None:
    settings = replace(SETTINGS, max_updates=30, validate_every=10)
    with caplog.at_level(logging.WARNING):
        train(*pairs, settings, tmp_path, quiet=True)
    assert caplog.text == ""


def test_watching_changes_nothing(pairs, tmp_path: Path, monkeypatch) -> None:
    settings = replace(SETTINGS, max_updates=5, validate_every=2, r_drop=1.0, bpe_dropout=0.1)
    monkeypatch.setattr(stall, "STALL_UPDATES", 2)
    train(*pairs, settings, tmp_path / "watched", quiet=True)
    for name in ("begin", "check", "done", "validated"):
        monkeypatch.setattr(Watch, name, lambda *_, **__: None)
    monkeypatch.setattr(stall, "STALL_UPDATES", 1000)
    train(*pairs, settings, tmp_path / "alone", quiet=True)
    hashes = {load_checkpoint(tmp_path / name).sha256 for name in ("watched", "alone")}
    assert len(hashes) == 1


@dataclass(frozen=True, kw_only=True)
class _FakeRanks(Ranks):
    """One of two; the other found something too, or not, and ends once it has told."""

    other_found: bool
    asked: list[bool] = field(default_factory=list)

    def gather_flags(self, flag: bool) -> list[bool]:
        self.asked.append(flag)
        if len(self.asked) > 1:
            raise TrainingError("another process has ended")
        return [self.other_found, flag] if self.rank else [flag, self.other_found]


@pytest.mark.parametrize(
    ("rank", "planted", "other_found", "tells"),
    [
        (0, True, False, True),
        (0, True, True, True),
        (1, True, True, False),
        (1, True, False, True),
        (0, False, True, False),
        (1, False, False, False),
    ],
)
def test_one_rank_that_found_it_tells(
    rank: int, planted: bool, other_found: bool, tells: bool
) -> None:
    ranks = _FakeRanks(rank=rank, size=2, other_found=other_found)
    watch, update = failing_update(ranks, planted=planted)
    if tells:
        error = watch.failed(update, nll=math.nan, norm=math.nan, rate=0.1)
        assert "nan in what encoder.layers.0.ffn.in_proj gives" in str(error)
    else:
        with pytest.raises(TrainingError, match="another process has ended"):
            watch.failed(update, nll=math.nan, norm=math.nan, rate=0.1)
    assert ranks.asked[0] == planted


def test_two_processes_of_which_one_finds_it(tmp_path: Path) -> None:
    (first, first_said), (second, second_said) = run_ranks(2, fail_on_rank_1, (), tmp_path)
    assert (first, second) == (1, 1)
    assert "error: loss nan, gradient norm nan: not finite at update 3" in second_said
    assert "nan in what encoder.layers.0.ffn.in_proj gives" in second_said
    assert "error: " not in first_said


@pytest.mark.slow
def test_lines_that_do_not_belong_together(tmp_path: Path, monkeypatch) -> None:
    """A few targets, dealt out to many sources at random: all there is to learn is the targets."""
    rng = np.random.default_rng(0)
    targets = ["the cat sat here", "we had no rain today", "it is time to go home now"]
    lines = [(str(number), targets[rng.integers(3)]) for number in rng.permutation(9999)]
    monkeypatch.setattr(stall, "STALL_UPDATES", 60)
    settings = replace(
        SETTINGS, vocab_size=350, max_updates=1000, batch_tokens=256, warmup=60, dropout=0.0
    )
    with pytest.raises(TrainingError, match=r"source and target lines do not belong together"):
        train(lines[:9900], lines[9900:], settings, tmp_path, quiet=True)
