"""Which MatMuls are found, and which are not."""

from __future__ import annotations

import pytest
from support.hand_made_graphs import attention_graph, logits_graph

from calibration.errors import CalibrationError
from calibration.matmuls import find_weight_matmuls, role_of


def test_finds_matmuls_with_a_weight_and_no_attention_product():
    found = find_weight_matmuls(attention_graph())
    assert [(m.name, m.activation, m.weight, m.transposed) for m in found] == [
        ("q", "x", "q.weight", False),
        ("k", "x", "k.weight", False),
        ("v", "x", "v.weight", False),
        ("out", "context", "out.weight", True),
    ]
    assert not any(matmul.is_logits for matmul in found)


def test_knows_the_logits_by_what_comes_after():
    model = logits_graph()
    assert role_of(model) == "decoder_step"
    assert [(m.name, m.is_logits) for m in find_weight_matmuls(model)] == [
        ("hidden", False),
        ("logits", True),
    ]


def test_logits_from_a_gemm_do_not_make_the_hidden_matmul_the_logits():
    model = logits_graph()
    model.graph.node[3].op_type = "Gemm"
    assert [m.is_logits for m in find_weight_matmuls(model)] == [False]


def test_role_of_a_graph_without_log_probs_is_encoder():
    assert role_of(attention_graph()) == "encoder"


def test_refuses_a_graph_without_weights():
    model = attention_graph()
    del model.graph.node[:]
    with pytest.raises(CalibrationError, match="no MatMul with a constant weight"):
        find_weight_matmuls(model)


@pytest.mark.parametrize("name", ["", "k"])
def test_refuses_names_that_do_not_tell_matmuls_apart(name: str):
    model = attention_graph()
    model.graph.node[0].name = name
    with pytest.raises(CalibrationError, match="share a name or have none"):
        find_weight_matmuls(model)
