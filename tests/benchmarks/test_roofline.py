"""The roofline: what is counted, and a run on a model so small that it takes seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.cli import cli
from benchmarks.peers.materials import random_bundle
from benchmarks.roofline import COLUMNS, kinds_of, weights_of
from model import config
from runtime.bundle import Bundle
from runtime.console import run
from runtime.manifest import Precision

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-schema-1"
LAYERS, D, FFN, V = 1, 64, 128, 192


@pytest.fixture(scope="module")
def preset() -> Iterator[str]:
    """Large enough for beam 1 to have a step of its own."""
    config.PRESETS["micro"] = config.Preset(
        num_encoder_layers=LAYERS, num_decoder_layers=LAYERS, d_model=D, ffn_dim=FFN, num_heads=2,
        dropout=0.1, vocab_size=V,
    )  # fmt: skip
    yield "micro"
    del config.PRESETS["micro"]


@pytest.fixture(scope="module")
def bundle(preset: str, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return random_bundle(preset, tmp_path_factory.mktemp("roofline"))


def event(node: int, operator: str, duration: int) -> dict[str, object]:
    args = {"op_name": operator, "node_index": str(node)}
    return {"cat": "Node", "name": f"n{node}_kernel_time", "dur": duration, "args": args}


def test_each_step_counts_its_median_round() -> None:
    events: list[dict[str, object]] = [{"cat": "Session", "name": "model_run", "dur": 9999}]
    for paused in (1, 100, 1):  # the machine paused in the second round
        for step in (0, 1):
            events += [
                event(0, "MatMulNBits", 5 * paused),
                event(1, "MultiHeadAttention", 2),
                event(2, "DecoderMaskedMultiHeadAttention", 10 + 4 * step),  # grows
                event(3, "Gather", 1),
                event(4, "Gather", 2),
            ]
    kinds, nodes = kinds_of(events, steps=2, step_us=30)
    assert nodes == 5
    assert {kind: value for kind, value in kinds.items() if value} == {
        "products": 5, "cross-attention": 2, "self-attention": 12, "other": 3,
    }  # fmt: skip
    kinds, _ = kinds_of(events, steps=2, step_us=17)  # 22 with the profiler: 1 a node is its own
    assert {kind: value for kind, value in kinds.items() if value} == pytest.approx({
        "products": 4, "cross-attention": 1, "self-attention": 11, "other": 1,
    })  # fmt: skip


@pytest.mark.parametrize("total", [30, 22, 17, 5, 1])
def test_what_the_nodes_take_is_the_step(total: float) -> None:
    events = [event(n, "Gather", 1 + n) for n in range(4)] + [event(4, "MatMulNBits", 12)]
    kinds, _ = kinds_of(events, steps=1, step_us=total)
    assert sum(kinds.values()) == pytest.approx(min(total, 22))
    assert min(kinds.values()) >= 0


@pytest.mark.parametrize(
    ("variant", "precision", "size"),
    [("cpu_static", "int8", 1), ("cpu_static_greedy", "int8", 1), ("cpu_static", "fp32", 4)],
)
def test_weights_are_those_of_the_model(
    bundle: Bundle, variant: str, precision: Precision, size: int
) -> None:
    """Self-attention has four projections, cross-attention two in a step, for q and behind it."""
    count = LAYERS * (6 * D * D + 2 * D * FFN) + D * V
    [graph] = [
        graph
        for graph in bundle.graphs_of(precision)
        if (graph.variant, graph.role) == (variant, "decoder_step")
    ]
    found = weights_of(bundle.graph_path(graph))
    assert (found.count, found.size) == (count, count * size)


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_the_command(
    bundle: Bundle, precision: str, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.setattr("benchmarks.peak_rates.PEAK_SIZES", ((64, 64),))
    arguments = ["roofline", "--bundle", str(bundle.path), "--precision", precision]
    arguments += ["--source", "7", "--steps", "3", "--rounds", "2"]
    assert run(cli, [*arguments, "--workloads", "1x1", "--workloads", "3x2", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [one["label"] for one in record["workloads"]] == ["1 x 1", "3 x 2"]
    one, six = record["workloads"]
    assert six["products"] == 6 * one["products"]
    for found in (one, six):
        assert set(found["kinds"]) == set(COLUMNS)
        assert min(found["kinds"].values()) >= 0
        assert max(found["kinds"].values()) > 0
        assert found["nodes"] > 12
        if precision == "fp32" or found is one:
            assert found["kinds"]["quantizing"] == 0
        assert min(found[f"{name}_us"] for name in ("bound", "step", "encoder", "search")) > 0
    assert run(cli, [*arguments, "--workloads", "1x1"]) == 0
    text = capsys.readouterr().out
    assert all(kind in text for kind in COLUMNS)
    assert f"{precision} (cpu_static), d 64, 1 decoder layers, V 192" in text


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "give either --bundle or --preset"),
        (["--bundle", "here", "--preset", "tiny"], 2, "give either --bundle or --preset"),
        (["--preset", "huge"], 2, "unknown preset 'huge'; expected one of"),
        (["--bundle", str(GOLDEN)], 1, "holds no graphs of variant cpu_static in any precision"),
        (["--preset", "tiny", "--workloads", "4x"], 2, "'4x' is no workload; expected lines x"),
        (["--preset", "tiny", "--workloads", "0x4"], 2, "'0x4' is no workload"),
        (["--preset", "tiny", "--workloads", f"1x{10**20}"], 2, "is no workload"),
        (["--preset", "tiny", "--workloads", "٣x٤"], 2, "'٣x٤' is no workload"),
    ],
)
def test_what_is_refused(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["roofline", *arguments]) == code
    assert text in capsys.readouterr().err


def test_lengths_that_the_model_does_not_take(
    bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["roofline", "--bundle", str(bundle.path), "--steps", "100000"]) == 2
    assert "steps is 100000; this model takes at most" in capsys.readouterr().err
