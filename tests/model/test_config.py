from __future__ import annotations

import pytest
from support.tiny_model import tiny_config

from model.config import PRESETS, ModelConfig, SpecialIds, StackConfig, padded_size
from model.errors import ConfigError


def test_json_round_trip() -> None:
    config = tiny_config(norm="pre", positions="rotary", attention_scale=0.5)
    assert ModelConfig.from_json(config.to_json()) == config


def test_a_config_without_a_cross_score_is_the_papers() -> None:
    """Those written before there was a choice; one that says nothing else is still so written."""
    values = tiny_config().to_json()
    assert "cross_score" not in values
    assert ModelConfig.from_json(values).cross_score == "scaled_dot"
    named = ModelConfig.from_json(values | {"cross_score": "scaled_dot"})
    assert named == tiny_config()
    other = tiny_config(cross_score="general")
    assert other.to_json()["cross_score"] == "general"
    assert ModelConfig.from_json(other.to_json()) == other


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"d_model": 0}, "d_model is 0; expected a whole number of at least 1"),
        ({"max_source": 1.5}, "max_source is 1.5; expected a whole number"),
        (
            {"encoder": StackConfig(num_layers=100_000, num_heads=4, ffn_dim=8)},
            "encoder.num_layers is 100,000; expected a whole number of at most 10,000",
        ),
        ({"max_target": 2**31}, "max_target is 2147483648; expected a whole number below 2**31"),
        ({"dropout": 1}, "dropout is 1; expected a number from 0 to below 1"),
        ({"dropout": "x"}, "dropout is 'x'; expected a number"),
        ({"activation": "tanh"}, "activation is 'tanh'; expected one of relu, gelu"),
        ({"src_vocab_size": 5}, "tying 'all' needs one vocabulary, found 5 source and"),
        ({"positions": "rotary", "head_dim": 7}, "rotary positions need an even head_dim, found 7"),
        ({"norm_eps": 10**400}, "about 400 digits; expected a finite number"),
        ({"norm_eps": None}, "norm_eps is None; expected a finite number"),
        ({"embedding_scale": "x"}, "embedding_scale is 'x'; expected a finite number"),
        ({"attention_scale": float("nan")}, "attention_scale is nan; expected a finite number"),
        ({"position_offset": 1.5}, "position_offset is 1.5; expected a whole number of at least 0"),
        ({"special_ids": SpecialIds(eos_id="x")}, "special_ids.eos_id is 'x'; expected a whole"),
        (
            {"special_ids": SpecialIds(decoder_start_id=9999)},
            "is 9999; expected a whole number from 0",
        ),
        ({"d_model": 33}, "sinusoidal positions need an even d_model, found 33"),
        ({"cross_score": "luong"}, "cross_score is 'luong'; expected one of scaled_dot, dot, gen"),
        (
            {"cross_score": "dot", "head_dim": 10},
            "cross_score 'dot' takes the decoder's states as they are, so its heads must share "
            "d_model out among them; found 4 heads of 10 for d_model 32: use scaled_dot, concat",
        ),
        ({"cross_score": "general", "head_dim": 10}, "cross_score 'general' takes the decoder's"),
    ],
)
def test_shapes_that_cannot_be(changes, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_config(**changes)
    assert text in str(error.value)


HUGE = (10**400, -(10**400), 10**5000)


@pytest.mark.parametrize("name", sorted(tiny_config().to_json()))
def test_numbers_too_large_for_any_field(name: str) -> None:
    for value in HUGE:
        with pytest.raises(ConfigError, match=r"expected") as error:
            ModelConfig.from_json(tiny_config().to_json() | {name: value})
        assert len(str(error.value)) < 150


@pytest.mark.parametrize(
    ("part", "name"), [("encoder", "num_layers"), ("decoder", "ffn_dim"), ("special_ids", "eos_id")]
)
def test_numbers_too_large_for_parts(part: str, name: str) -> None:
    values = tiny_config().to_json()
    for value in HUGE:
        values[part][name] = value
        with pytest.raises(ConfigError, match=rf"{part}.{name} is a whole number of about \d+ dig"):
            ModelConfig.from_json(values)


def test_a_stack_names_its_side() -> None:
    values = tiny_config().to_json()
    values["decoder"]["num_layers"] = 0
    with pytest.raises(ConfigError, match=r"decoder.num_layers is 0; expected a whole number"):
        ModelConfig.from_json(values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"d_mode": 3}, "unknown model config key 'd_mode'; did you mean 'd_model'?"),
        ({"zzz": 3}, "unknown model config key 'zzz'; known: src_vocab_size"),
        ({"encoder": {"num_layer": 1}}, "unknown model config key encoder.'num_layer'"),
        ({"special_ids": []}, "model config special_ids.: found []; expected an object"),
        ({"encoder": 3}, "model config encoder.: found 3; expected an object"),
    ],
)
def test_json_that_is_no_config(change, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_json(tiny_config().to_json() | change)
    assert text in str(error.value)


def test_missing_keys_are_all_named() -> None:
    values = tiny_config().to_json()
    del values["d_model"], values["head_dim"]
    with pytest.raises(ConfigError, match="model config lacks d_model, head_dim"):
        ModelConfig.from_json(values)


def test_banned_ids_are_control_pieces_and_padding() -> None:
    config = PRESETS["tiny"].config(100)
    assert padded_size(100) == 128
    assert config.banned_ids == (0, 1, 2, *range(100, 128))


@pytest.mark.parametrize(
    ("name", "weights"),
    # Vaswani et al. 2017, table 3: 65 and 213 million with a vocabulary of 37,000.
    [("base", 63e6), ("big", 214e6)],
)
def test_presets_have_the_papers_size(name: str, weights: float) -> None:
    import torch

    from model.transformer import Transformer

    with torch.device("meta"):
        model = Transformer(PRESETS[name].config(37_000))
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(weights, rel=0.02)


@pytest.mark.parametrize("name", ["tiny", "small", "base"])
def test_deep_encoder_presets_differ_in_their_layers_alone(name: str) -> None:
    deep, even = (PRESETS[preset].config(100).to_json() for preset in (f"{name}-6-2", name))
    assert (deep["encoder"].pop("num_layers"), deep["decoder"].pop("num_layers")) == (6, 2)
    del even["encoder"]["num_layers"], even["decoder"]["num_layers"]
    assert deep == even


@pytest.mark.parametrize("values", [None, 3, "x", [1]])
def test_json_that_is_no_object(values) -> None:
    with pytest.raises(ConfigError, match="expected an object"):
        ModelConfig.from_json(values)
