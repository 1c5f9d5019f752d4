"""The proof, on logs that are written here; test_degradations.py has it on real builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.engines.layers import read_log
from runtime.engines.profiles import EngineLimits, ShapeRange, engine_profiles
from runtime.engines.proof import NetworkFacts, Proof, gather_bytes, prove
from runtime.errors import ProofError
from runtime.graph_contract import graph_inputs
from runtime.manifest import ModelSpec, read_spec

NETWORK = NetworkFacts(
    quantized=("a.q", "a.k", "ffn"),
    float_weights=("logits",),
    products=("qk",),
    constant_bytes=1000,
)


def tensor(name: str, dims: str, dtype: str) -> str:
    return (
        f"{{ Name: {name}, Dimensions: [{dims}], Strides: [1], StrideOrder: [0], "
        f"Datatype: {dtype}, Format: (Linear) Row major linear format }}"
    )


def layer(
    name: str,
    kind: str = "gemm",
    inputs: list[str] | None = None,
    constants: list[str] | None = None,
    outputs: list[str] | None = None,
    onnx: tuple[str, ...] = (),
) -> str:
    """A line as tensorrt-rtx 1.7 writes it."""
    inputs = [tensor("x", "1,-1,8", "Int8")] if inputs is None else inputs
    if constants is None:
        constants = [tensor("w", "8,8", "Int8"), tensor("alpha", "1", "Float")]
    metadata = "\x1f".join(f"[ONNX Layer: {node}]" for node in onnx)
    return (
        f"Name: {name}, LayerType: {kind}, Inputs: [ {', '.join(inputs)}], "
        f"Constants: [ {', '.join(constants)}], Outputs: [ {', '.join(outputs or [])}], "
        f"TacticName: __myelin_CASK_STUB, StreamId: 0, Metadata: {metadata}"
    )


def good(profile: int) -> list[str]:
    mark = " [profile 1]" if profile else ""
    return [
        layer(f"__mye1_myl{profile}_0", "shape_call", [], []),
        layer(f"a.q{mark}+a.k{mark}_myl{profile}_1", onnx=("a.q", "a.k", "a.q.dq")),
        layer(f"ffn{mark}_U12_myl{profile}_2"),
        layer(
            f"logits{mark}_myl{profile}_3", inputs=[tensor("x", "1,8", "Half")], onnx=("logits",)
        ),
        layer(f"__myl_MulAdd_myl{profile}_4", "kgen", [], [], onnx=("ffn", "ffn.bias")),
    ]


def check(lines: list[str], **changes: Any) -> Proof:
    arguments = {"network": NETWORK, "expected": 3, "profiles": 2, "graph": "step"} | changes
    network = arguments.pop("network")
    return prove(read_log(lines), network, **arguments)


def test_a_good_log() -> None:
    totals = [f"[INFO] Total Activation Memory: {size} bytes" for size in (7, 9)]
    proof = check([*good(0), *good(1), *totals, "[INFO] Total Weights Memory: 999 bytes"])
    assert proof.proved
    assert proof.int8 == NETWORK.quantized
    assert proof.float_weights == ("logits",)
    assert proof.products == ("qk",)
    assert proof.weights_bytes == 999
    assert read_spec(Proof, json.loads(json.dumps(proof.to_json()))) == proof
    assert read_log([*totals]).activation_bytes == (7, 9)


HALF_WEIGHT = [tensor("w", "8,8", "Half"), tensor("scale", "8", "Int8")]
WRONG = {
    "missing": (
        [],
        "MatMul ffn is quantized but not compiled as INT8 in profile 1: it is in __myl_Mul",
    ),
    "twice": ([layer("ffn_myl1_2"), layer("ffn_myl1_7")], "profile 1: it is in 2 gemm layers"),
    "another kind": (
        [layer("__myl_CastMulFc_myl1_2", "runtime_fusion", onnx=("other", "ffn"))],
        r"it is in __myl_CastMulFc_myl1_2 \(runtime_fusion\)",
    ),
    "half input": (
        [layer("ffn_myl1_2", inputs=[tensor("x", "1,8", "Half")])],
        "its gemm layer ffn_myl1_2 has inputs Half and constants Int8, Float",
    ),
    "half weight": (
        [layer("ffn_myl1_2", constants=HALF_WEIGHT)],
        "has inputs Int8 and constants Half, Int8",
    ),
    "no weight": ([layer("ffn_myl1_2", constants=[])], "has inputs Int8 and constants none"),
    "turned back": (
        [layer("ffn_myl1_2"), layer("__myl_CastMulFc_myl1_9", "runtime_fusion", onnx=("a.v",))],
        r"layer __myl_CastMulFc_myl1_9 of profile 1 turns INT8 back into floats .*\(a.v\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_matmul_that_is_not_int8_in_one_profile(name: str) -> None:
    lines, text = WRONG[name]
    second = [line for line in good(1) if not line.startswith("Name: ffn")]
    with pytest.raises(ProofError, match=text):
        check([*good(0), *second, *lines])


def test_a_float_cast_before_a_float_matmul_is_fine() -> None:
    half = [tensor("x", "1,8", "Half")]
    extra = layer("__myl_CastFc_myl0_9", "runtime_fusion", half, half, onnx=("logits",))
    assert check([*good(0), extra, *good(1)]).proved


def test_no_layer_names_it() -> None:
    lines = [line for line in (*good(0), *good(1)) if "ffn" not in line]
    with pytest.raises(ProofError, match="profile 0: no layer names it"):
        check(lines)


def test_a_profile_without_layers() -> None:
    with pytest.raises(ProofError, match=r"MatMul a.q .* in profile 1: no layer names it"):
        check(good(0))


def test_a_log_without_layers() -> None:
    with pytest.raises(ProofError, match="the builder's log lists no layers, so nothing shows"):
        check(["[INFO] built"])
    proof = check(["[INFO] built"], strict=False)
    assert not proof.proved
    assert proof.int8 == ()
    assert "lists no layers" in proof.reason


def test_another_number_of_quantized_matmuls() -> None:
    with pytest.raises(ProofError, match="3 quantized MatMuls as TensorRT reads it, expected 4"):
        check([*good(0), *good(1)], expected=4)


def test_a_half_quantized_matmul() -> None:
    network = NetworkFacts(quantized=("a",), half_quantized={"ffn": "weight"})
    with pytest.raises(ProofError, match="MatMul ffn has no Q/DQ on its weight"):
        check([], network=network, expected=1)


def test_weights_in_a_wider_type() -> None:
    limit = int(1000 * 1.05) + 64 * 1024
    fits = [*good(0), *good(1), f"Total Weights Memory: {limit} bytes"]
    assert check(fits).weights_bytes == limit
    with pytest.raises(ProofError, match="weights were stored in a wider type"):
        check([*fits[:-1], f"Total Weights Memory: {limit + 1} bytes"])


MODEL = ModelSpec(
    encoder_layers=1,
    decoder_layers=2,
    num_heads=4,
    head_dim=8,
    vocab_size=64,
    max_source=None,
    max_target=None,
)


def gather(cache: str, out: str, place: int) -> str:
    inputs = [tensor(cache, "-1,4,-1,8", "Half"), tensor("beam_indices", "-1", "Int32")]
    outputs = [tensor(out, "-1,4,-1,8", "Half")]
    return layer(f"__myl_Gath_myl0_{place}", "kgen", inputs, [], outputs)


def use(*names: str, place: int) -> str:
    return layer(f"mha_myl0_{place}", "kgen", [tensor(n, "1", "Half") for n in names], [])


SECOND = (gather("self_v.0", "b", 2), use("b", place=3))


@pytest.mark.parametrize(
    ("lines", "at_once"),
    [
        ([gather("self_k.0", "a", 0), gather("self_v.0", "b", 1), use("a", "b", place=2)], 2),
        (
            [gather("self_k.0", "a", 0), use("a", place=1), *SECOND],
            1,
        ),
        (
            [gather(f"self_{kind}.{i}", f"{kind}{i}", i) for i in (0, 1) for kind in "kv"]
            + [use("k0", "v0", "k1", "v1", place=9)],
            4,
        ),
        ([gather("self_k.0", "next_self_k.0", 0)], 0),  # straight into an output
        ([use("self_k.0", "beam_indices", place=0)], 0),
        ([], 0),
    ],
)  # fmt: skip
def test_the_share_of_the_gather(lines: list[str], at_once: int) -> None:
    limits = EngineLimits(max_batch=1, max_beam=3, max_source=5, max_target=11)
    profiles = engine_profiles(graph_inputs("decoder_step", MODEL, "fp16"), limits)
    one = 3 * 4 * 10 * 8 * 2  # N, H, T, Dh, bytes of float16
    assert gather_bytes(read_log(lines), profiles) == (at_once * one,)


def test_the_encoder_gathers_nothing() -> None:
    profile = {"src_ids": ShapeRange(min=(1, 1), opt=(1, 1), max=(1, 9))}
    assert gather_bytes(read_log(good(0)), [profile]) == (0,)


def test_lines_of_other_kinds_are_skipped(tmp_path: Path) -> None:
    lines = [
        "Name: broken, LayerType: gemm, no more",
        "Name: in the text of something else",
        "[VERBOSE] Layer: x Scratch Memory: 3 bytes",
        layer("a [profile 1]+b [profile 1]_myl1_1"),
        "",
    ]
    log = read_log(lines)
    assert [found.profile for found in log.layers] == [1]
    assert log.layers[0].holds() == {"a", "b"}
    assert log.weights_bytes is None
