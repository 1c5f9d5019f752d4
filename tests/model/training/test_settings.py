from __future__ import annotations

import dataclasses

import pytest

from model.config import PRESETS
from model.errors import ConfigError
from model.training.settings import TrainingSettings, demo_settings


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"preset": "huge"}, "preset is 'huge'; expected one of tiny"),
        ({"precision": "fp8"}, "precision is 'fp8'; expected auto, fp32 or bf16"),
        ({"max_updates": 0}, "max_updates is 0; expected a whole number of at least 1"),
        ({"warmup": 1.5}, "warmup is 1.5; expected a whole number of at least 1"),
        ({"average": True}, "average is True; expected a whole number"),
        ({"batch_tokens": 0}, "batch_tokens is 0; expected a whole number of at least 1"),
        ({"seed": -1}, "seed is -1; expected a whole number of at least 0"),
        ({"learning_rate": 0}, "learning_rate is 0; expected a number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; expected a number above 0"),
        ({"max_minutes": 0.0}, "max_minutes is 0.0; expected a number above 0"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0; expected a number of at least 0"),
        ({"r_drop": -1.0}, "r_drop is -1.0; expected a number of at least 0"),
        ({"r_drop_from": 1.5}, "r_drop_from is 1.5; expected a number up to 1"),
        ({"bpe_dropout": 1.0}, "bpe_dropout is 1.0; expected a number below 1"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0; expected a number below 1"),
        ({"cooldown": 1.1}, "cooldown is 1.1; expected a number up to 1"),
        ({"dropout": 1.0}, "dropout is 1.0; expected a number from 0 to below 1"),
        ({"norm": "mid"}, "norm is 'mid'; expected one of pre, post"),
        ({"vocab_size": -5}, "vocab_size is -5; expected a whole number of at least 1"),
        ({"vocab_size": 2**31}, "vocab_size is 2147483648; expected a whole number below 2**31"),
        ({"seed": 2**63}, "seed is 9223372036854775808; expected a whole number below 2**63"),
        ({"max_updates": 10**400}, "expected a whole number below 2**63"),
        (
            {"patience": 2**63},
            "patience is 9223372036854775808; expected a whole number below 2**63",
        ),
        ({"max_minutes": 10**400}, "expected a number above 0"),
        ({"clip_norm": float("inf")}, "clip_norm is inf; expected a number of at least 0"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'; expected a number above 0"),
        ({"r_drop": None}, "r_drop is None; expected a number of at least 0"),
        ({"cooldown": True}, "cooldown is True; expected a number up to 1 of at least 0"),
        ({"patience": 0}, "patience is 0; expected a whole number of at least 1"),
        ({"patience": 2, "cooldown": 1.0}, "patience is 2 and cooldown is 1; expected a cooldown"),
        ({"valid_lines": 0}, "valid_lines is 0; expected a whole number of at least 1"),
        ({"encoder_layers": 0}, "encoder.num_layers is 0; expected a whole number of at least 1"),
        ({"encoder_layers": 100_000}, "encoder.num_layers is 100,000; expected a whole number of"),
        ({"decoder_layers": 1.5}, "decoder.num_layers is 1.5; expected a whole number"),
        ({"cross_score": "luong"}, "cross_score is 'luong'; expected one of scaled_dot, dot"),
        ({"vocab_size": 0}, "vocab_size is 0; expected a whole number of at least 1"),
    ],
)
def test_settings_that_cannot_be(changes, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        TrainingSettings(**changes)
    assert text in str(error.value)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TrainingSettings)])
def test_numbers_too_large_for_any_setting(name: str) -> None:
    for value in (10**400, -(10**400), 10**5000):
        with pytest.raises(ConfigError, match=r"is .*; expected") as error:
            TrainingSettings.from_json({name: value})
        assert len(str(error.value)) < 150


def test_json_round_trip() -> None:
    settings = demo_settings()
    assert TrainingSettings.from_json(settings.to_json()) == settings


def test_unknown_keys_are_refused_with_a_hint() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown training setting 'warm_up'; did you mean 'warmu"
    ):
        TrainingSettings.from_json({"warm_up": 3})
    with pytest.raises(ConfigError, match=r"unknown training setting 'zzz'; known: preset, "):
        TrainingSettings.from_json({"zzz": 3})


def test_none_takes_the_presets_value() -> None:
    assert TrainingSettings(preset="big").model_config(100).dropout == PRESETS["big"].dropout
    assert TrainingSettings(preset="big", dropout=0.0).model_config(100).dropout == 0.0
    assert TrainingSettings().pieces == PRESETS["tiny"].vocab_size


def test_layers_and_the_score_reach_the_model() -> None:
    config = TrainingSettings(encoder_layers=12, decoder_layers=1, cross_score="additive")
    model = config.model_config(100)
    assert (model.encoder.num_layers, model.decoder.num_layers) == (12, 1)
    assert model.cross_score == "additive"
    one = TrainingSettings(decoder_layers=2).model_config(100)
    assert (one.encoder.num_layers, one.decoder.num_layers) == (4, 2)


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({}, 3e-3),
        ({"norm": "post"}, 1.5e-3),
        ({"preset": "base", "norm": "post"}, 7.5e-4),
        ({"preset": "base"}, 1.5e-3),
        ({"preset": "base", "learning_rate": 1e-4}, 1e-4),
    ],
)
def test_the_learning_rate_suits_the_width(changes, rate: float) -> None:
    assert TrainingSettings(**changes).peak_learning_rate == pytest.approx(rate)


def test_only_limits_may_differ_on_resume() -> None:
    settings = TrainingSettings()
    other = dataclasses.replace(
        settings, max_updates=1, max_minutes=2.0, validate_every=3, patience=4
    )
    assert other.differences(settings) == []
    changed = dataclasses.replace(settings, seed=8)
    assert changed.differences(settings) == ["seed: 1, now 8"]


def test_the_demo_ends_within_five_minutes() -> None:
    settings = demo_settings()
    assert settings.preset == "tiny"
    assert settings.max_minutes is not None
    assert settings.max_minutes < 5
