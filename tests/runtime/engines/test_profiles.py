"""Limits and the profiles they make."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from runtime.engines.profiles import (
    LATENCY,
    THROUGHPUT,
    EngineLimits,
    Profile,
    check_sizes,
    choose_profile,
    engine_profiles,
)
from runtime.errors import OptionError
from runtime.graph_contract import graph_inputs
from runtime.manifest import ModelSpec, Role

MODEL = ModelSpec(
    encoder_layers=2,
    decoder_layers=2,
    num_heads=4,
    head_dim=8,
    vocab_size=512,
    max_source=64,
    max_target=None,
)


def profiles(role: Role, limits: EngineLimits) -> tuple[Profile, ...]:
    return engine_profiles(graph_inputs(role, MODEL, "fp16"), limits)


def test_the_profiles_of_a_step_at_the_default_limits() -> None:
    latency, throughput = profiles("decoder_step", EngineLimits())
    cache = latency["self_k.0"]
    assert (cache.min, cache.opt, cache.max) == ((1, 4, 0, 8), (4, 4, 24, 8), (8, 4, 127, 8))
    cache = throughput["self_v.1"]
    assert (cache.min, cache.opt, cache.max) == ((1, 4, 0, 8), (64, 4, 24, 8), (256, 4, 127, 8))
    cross = throughput["cross_k.0"]
    assert (cross.min, cross.opt, cross.max) == ((1, 4, 1, 8), (16, 4, 24, 8), (32, 4, 128, 8))
    assert latency["position"].max == (1, 1)
    assert throughput["token_ids"].max == (32, 8)
    assert throughput["beam_indices"].max == (256,)


@pytest.mark.parametrize("role", ["encoder", "decoder_step"])
@pytest.mark.parametrize(
    "limits",
    [
        EngineLimits(),
        EngineLimits(max_batch=1, max_beam=1, max_source=1, max_target=1),
        EngineLimits(max_batch=2, max_beam=3, max_source=5, max_target=2),
        EngineLimits(max_batch=4096, max_beam=1920, max_source=65536, max_target=65536),
    ],
)
def test_profiles_are_consistent(role: Role, limits: EngineLimits) -> None:
    for profile in profiles(role, limits):
        assert list(profile) == [tensor.name for tensor in graph_inputs(role, MODEL, "fp16")]
        for shapes in profile.values():
            for low, usual, high in zip(shapes.min, shapes.opt, shapes.max, strict=True):
                assert 0 <= low <= usual <= high
        for place in ("min", "opt", "max"):
            sizes = {name: getattr(shapes, place) for name, shapes in profile.items()}
            if role == "decoder_step":
                rows = math.prod(sizes["token_ids"])  # N = B * K
                assert sizes["beam_indices"] == (rows,)
                assert sizes["self_k.0"][0] == rows
                assert sizes["cross_k.0"][0] == sizes["src_mask"][0] == sizes["token_ids"][0]
                assert sizes["cross_k.0"][2] == sizes["src_mask"][1]


def test_one_profile_is_enough_for_one_sentence_at_a_time() -> None:
    limits = EngineLimits(max_batch=1)
    assert len(profiles("encoder", limits)) == 1
    assert choose_profile(1, limits) == LATENCY
    assert choose_profile(1, EngineLimits()) == LATENCY
    assert choose_profile(2, EngineLimits()) == THROUGHPUT


@pytest.mark.parametrize("name", ["max_batch", "max_beam", "max_source", "max_target"])
@pytest.mark.parametrize("value", [0, -1, 10**9, 1.5, True, "8", None])
def test_limits_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(
        OptionError, match=f"{name} is {value!r}; expected a whole number of at least"
    ):
        EngineLimits(**{name: value})


def test_limits_stay_within_the_model() -> None:
    wide = EngineLimits(max_beam=1000, max_source=1000, max_target=1000).within(MODEL)
    assert wide == EngineLimits(max_beam=256, max_source=64, max_target=1000)
    narrow = EngineLimits(max_source=10)
    assert narrow.within(MODEL) == narrow


def test_an_engine_covers_smaller_limits_only() -> None:
    limits = EngineLimits()
    assert limits.covers(limits)
    for name in dataclasses.asdict(limits):
        more = dataclasses.replace(limits, **{name: getattr(limits, name) + 1})
        assert more.covers(limits)
        assert not limits.covers(more)


def test_limits_as_json_and_text() -> None:
    limits = EngineLimits(max_batch=3)
    assert EngineLimits(**limits.to_json()) == limits
    assert str(limits) == "batch 3, beam 8, source 128, target 128"


@pytest.mark.parametrize(
    ("limits", "factors"),
    [
        ({"max_batch": 4096, "max_beam": 64, "max_target": 256}, "max_target x the model's width"),
        ({"max_batch": 4096, "max_beam": 1025, "max_target": 1}, "max_beam x the vocabulary"),
        (
            {"max_batch": 4096, "max_beam": 600, "max_source": 300, "max_target": 1},
            "max_beam x heads x max_source",
        ),
        ({"max_batch": 64, "max_source": 4096, "max_target": 1}, "max_source x max_source"),
    ],
)
def test_limits_too_large_together(limits: dict[str, int], factors: str) -> None:
    with pytest.raises(OptionError, match=f"make a tensor of [0-9,]+ elements .*{factors}.*Lower"):
        check_sizes(EngineLimits(**limits), MODEL)


def test_the_largest_sizes() -> None:
    """2**31 elements are one too many."""
    limits = EngineLimits(max_batch=4096, max_beam=64, max_source=1, max_target=255)
    check_sizes(limits, MODEL)
    with pytest.raises(OptionError, match=r"2,147,483,648 elements"):
        check_sizes(dataclasses.replace(limits, max_target=256), MODEL)
