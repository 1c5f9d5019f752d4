"""The best 2K continuations without ordering K*V of them.

    logits [N,V] -> Reshape [B,K,V] -> Add bias [B,1,V] -> LogSoftmax -> log_probs
    log_probs -> Add sum_log_probs -> Reshape [B,K*V] -> TopK -> Cast, Mod, Div
    1. The bias is the same for all rows and is added with the product that makes the logits: ids
       that are banned, and EOS where `eos_bias` [1] says so.
    2. log_probs are cut into groups of GROUP neighbours. The largest of each plus the beam's
       sum_log_probs is the group's score; the 2K best groups hold the 2K best continuations.
    3. These groups are put in ascending order and searched by a TopK over 2K*GROUP numbers.
    4. `sum_log_probs` is [B,K,1] and `num_candidates` int64 [1] (2K) comes in: no shape arithmetic.
    5. The output log_probs has a LogSoftmax of its own, over the logits of the first
       `log_prob_sentences` int64 [1] only.

Order and ties are the contract's (score descending, then parent*V + token ascending): rounding the
sum keeps the order of a beam's log-probabilities, so a group's score is that of its best member;
groups are contiguous in parent*V + token, so among equal ones the lower index holds the lower
tokens, and TopK takes the lower index first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from export.cpu_static.cross_attention import beam_shape
from export.cpu_static.editing import (
    CONTRIB,
    UnfitError,
    add_node,
    array_of,
    constant,
    input_named,
    made_by,
    set_output,
    sizes,
)
from runtime.graph_contract import (
    CANDIDATE_IDS,
    EOS_BIAS,
    LOG_PROBS,
    PARENTS,
    SCORES,
    SUM_LOG_PROBS,
)
from runtime.static_contract import LOG_PROB_SENTENCES, NUM_CANDIDATES

LOG_SOFTMAX = "log_softmax"
"""The node that candidates are chosen by."""
GROUP = 64
"""Vocabularies are padded to a multiple of it (model.config.VOCAB_MULTIPLE)."""


def group_candidates(graph: ir.Graph, vocab_size: int) -> None:
    """Rewrites all from the logits to scores, candidate_ids and parents. Raises UnfitError."""
    if vocab_size % GROUP:
        raise UnfitError(f"the vocabulary has {vocab_size} ids, no multiple of {GROUP}")
    if vocab_size < 2 * GROUP:
        raise UnfitError(f"the vocabulary has {vocab_size} ids: fewer groups than candidates")
    old = _Pattern(graph)
    last = made_by(graph.outputs[0], "TopK")
    logits = _logits(graph, old, last)
    log_probs = add_node(last, "LogSoftmax", [logits], LOG_SOFTMAX, axis=-1).outputs[0]  # [B,K,V]
    sums = input_named(graph, SUM_LOG_PROBS)
    sums.shape = ir.Shape(["B", "K", 1])
    count, wanted = _count(NUM_CANDIDATES), _count(LOG_PROB_SENTENCES)
    at = list(graph.inputs).index(sums) + 1
    graph.inputs[at:at] = [count, wanted]
    select = _Selection(graph, last, vocab_size)
    for name, value in zip(
        (SCORES, CANDIDATE_IDS, PARENTS), select.best(log_probs, sums, count), strict=True
    ):
        set_output(graph, name, value)
    parts = [logits, sizes(graph, 0), wanted, sizes(graph, 0)]
    asked = add_node(last, "Slice", parts, "logits.asked").outputs
    result = add_node(last, "LogSoftmax", asked, "log_probs", axis=-1).outputs[0]
    set_output(graph, LOG_PROBS, result)
    result.shape = ir.Shape(["L", "K", vocab_size])


def _count(name: str) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))


class _Pattern:
    """What makes log_probs: the product's last node, its bias input, LogSoftmax."""

    def __init__(self, graph: ir.Graph) -> None:
        log_probs = next(v for v in graph.outputs if v.name == LOG_PROBS)
        self.softmax = made_by(log_probs, "LogSoftmax")
        add = made_by(self.softmax.inputs[0], "Add")
        logits = made_by(add.inputs[0], "Reshape").inputs[0]
        assert logits is not None
        product = logits.producer()
        if product is None or product.op_type not in ("MatMul", "MatMulIntegerToFloat"):
            raise UnfitError(f"{logits.name} is not the product that makes the logits")
        self.logits, self.product = logits, product
        where = made_by(made_by(add.inputs[1], "Unsqueeze").inputs[0], "Where")
        self.is_eos, self.banned = where.inputs[0], where.inputs[2]


def _logits(graph: ir.Graph, old: _Pattern, last: ir.Node) -> ir.Value:
    """Rule 1; logits [B,K,V]."""
    eos_bias = input_named(graph, EOS_BIAS)
    eos_bias.shape = ir.Shape([1])
    eos_id = np.flatnonzero(array_of(old.is_eos)).astype(np.int64)
    at = constant(graph, "eos_id", eos_id)
    bias = add_node(
        old.product, "ScatterElements", [old.banned, at, eos_bias], "logit_bias", axis=0
    ).outputs[0]  # [V]
    if old.product.op_type == "MatMulIntegerToFloat":
        inputs = [*old.product.inputs[:5], None, bias]
        biased = add_node(
            old.product, "MatMulIntegerToFloat", inputs, "output.biased", domain=CONTRIB
        )
        old.product.name, biased.name = f"{old.product.name}.before", old.product.name
    else:
        biased = add_node(last, "Add", [old.logits, bias], "output.bias")
    parts = [biased.outputs[0], beam_shape(graph)]
    return add_node(last, "Reshape", parts, "output.by_beam").outputs[0]


class _Selection:
    """Rules 2 and 3, node by node."""

    def __init__(self, graph: ir.Graph, last: ir.Node, vocab_size: int) -> None:
        self._graph, self._last = graph, last
        self._groups = vocab_size // GROUP
        self._vocab_size = vocab_size

    def best(
        self, log_probs: ir.Value, sums: ir.Value, count: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """log_probs [B,K,V], sums [B,K,1], count [1] -> scores, token ids, parents [B,2K]."""
        members = self._shaped(log_probs, "members", 0, -1, GROUP)  # [B,K*G,GROUP]
        best = self._node("ReduceMax", [members, sizes(self._graph, 2)], "group_max", keepdims=0)
        by_beam = self._node("Reshape", [best, beam_shape(self._graph)], "group_max.by_beam")
        totals = self._node("Add", [by_beam, sums], "group_scores")  # [B,K,G]
        flat = self._shaped(totals, "group_scores.flat", 0, -1)  # [B,K*G]
        ranked = self._top(flat, count, "groups")[1]
        chosen = self._top(ranked, count, "groups.ascending", largest=0)[0]  # [B,2K]
        scores, place = self._top(self._members(members, chosen, sums), count, "candidates")
        # place = rank * GROUP + member, and parent * V + token = chosen[rank] * GROUP + member
        rank = self._node("Div", [place, self._number("group", GROUP)], "rank")
        group = self._node("GatherElements", [chosen, rank], "rank.group", axis=1)
        shift = self._node("Sub", [group, rank], "shift")
        moved = self._node("Mul", [shift, self._number("group", GROUP)], "moved")
        ids = self._node("Add", [place, moved], "flat_ids")
        ids = self._node("Cast", [ids], "flat_ids.int32", to=ir.DataType.INT32)
        size = constant(self._graph, "vocab_size", np.array(self._vocab_size, dtype=np.int32))
        token = self._node("Mod", [ids, size], "token")
        return scores, token, self._node("Div", [ids, size], "parent")

    def _members(self, members: ir.Value, chosen: ir.Value, sums: ir.Value) -> ir.Value:
        """[B,2K*GROUP]: the scores of all members of the chosen groups [B,2K]."""
        index = self._node("Unsqueeze", [chosen, sizes(self._graph, 2)], "groups.index")
        picked = self._node("GatherND", [members, index], "picked", batch_dims=1)  # [B,2K,GROUP]
        parent = self._node("Div", [index, self._number("groups", self._groups)], "groups.parent")
        their_sums = self._node("GatherND", [sums, parent], "picked.sums", batch_dims=1)
        totals = self._node("Add", [picked, their_sums], "picked.scores")
        return self._shaped(totals, "picked.flat", 0, -1)

    def _top(
        self, values: ir.Value, count: ir.Value, name: str, largest: int = 1
    ) -> tuple[ir.Value, ir.Value]:
        node = add_node(
            self._last, "TopK", [values, count], name, outputs=2, axis=-1, largest=largest, sorted=1
        )
        return node.outputs[0], node.outputs[1]

    def _node(self, op_type: str, inputs: list[ir.Value], name: str, **attributes: Any) -> ir.Value:
        return add_node(self._last, op_type, inputs, name, **attributes).outputs[0]

    def _shaped(self, value: ir.Value, name: str, *target: int) -> ir.Value:
        return self._node("Reshape", [value, sizes(self._graph, *target)], name)

    def _number(self, name: str, value: int) -> ir.Value:
        return constant(self._graph, f"{name}.size", np.array(value, dtype=np.int64))
