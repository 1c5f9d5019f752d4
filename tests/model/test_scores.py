"""The score functions against their papers' formulas, and as the cross-attention of a model."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from support.tiny_model import random_transformer, write_random_checkpoint
from torch import Tensor

from model import scores
from model.attention import MultiHeadAttention
from model.checkpoint import load_checkpoint
from model.config import CrossScore
from model.scores import Additive, Concat, General, Score, make_score, tanh_scores

NAMES: list[CrossScore] = [name for name in get_args(CrossScore) if name != "scaled_dot"]
D, H, DH = 12, 3, 4


def new_score(name: CrossScore, heads: int = H, head_dim: int = DH, seed: int = 0) -> Score:
    torch.manual_seed(seed)
    score = make_score(name, D, heads, head_dim)
    assert score is not None
    return score


def attention_of(name: CrossScore, heads: int = H, head_dim: int = DH) -> MultiHeadAttention:
    score = new_score(name, heads, head_dim)
    return MultiHeadAttention(D, heads, head_dim, scale=1.0, dropout=0.0, score=score).eval()


def states(*, queries: int = 2, keys: int = 5) -> tuple[Tensor, Tensor]:
    """s [2,queries,D], h [2,keys,D]."""
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(2, queries, D, generator=generator),
        torch.randn(2, keys, D, generator=generator),
    )


def formula(score: Score, s: Tensor, h: Tensor, head: int, head_dim: int) -> Tensor:
    """The paper's score of one head for one pair: s [D], h [D] -> a number."""
    rows = slice(head * head_dim, (head + 1) * head_dim)
    if isinstance(score, General):
        return s[rows] @ score.key_proj.weight[rows] @ h
    if isinstance(score, Additive):
        inside = score.query_proj.weight[rows] @ s + score.key_proj.weight[rows] @ h
        return score.v[head].flatten() @ torch.tanh(inside + score.query_proj.bias[rows])
    if isinstance(score, Concat):
        inside = score.proj.weight[rows] @ torch.cat((s, h)) + score.proj.bias[rows]
        return score.v[head].flatten() @ torch.tanh(inside)
    return s[rows] @ h[rows]


@pytest.mark.parametrize(("heads", "head_dim"), [(H, DH), (1, D)], ids=["3 heads", "the paper's"])
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_the_papers(name: CrossScore, heads: int, head_dim: int) -> None:
    attention = attention_of(name, heads, head_dim)
    score = attention.score
    assert score is not None
    s, h = states()
    found = score(attention.project_query(s), attention.project_key_value(h)[0])
    assert found.shape == (2, heads, 2, 5)
    for row, head, i, j in torch.cartesian_prod(*map(torch.arange, found.shape)).tolist():
        expected = formula(score, s[row, i], h[row, j], head, head_dim)
        torch.testing.assert_close(found[row, head, i, j], expected, rtol=1e-4, atol=1e-5)


def test_concat_is_additive_with_its_matrix_cut_in_two() -> None:
    concat = new_score("concat")
    assert isinstance(concat, Concat)
    additive = concat.as_additive()
    s, h = states()
    assert torch.equal(additive.v, concat.v)
    torch.testing.assert_close(additive.project_query(s), concat.project_query(s))
    torch.testing.assert_close(additive.project_key(h), concat.project_key(h))


def test_concat_starts_smaller_than_additive() -> None:
    """The one difference that training sees: Xavier's bound of a matrix twice as wide."""
    largest = {}
    for name in ("additive", "concat"):
        model = random_transformer(cross_score=name)
        score = model.decoder.layers[0].cross_attention.score
        weight = score.query_proj.weight if name == "additive" else score.proj.weight
        largest[name] = float(weight.detach().abs().max())
    assert largest["additive"] == pytest.approx((6 / (32 + 32)) ** 0.5, rel=0.02)
    assert largest["concat"] == pytest.approx((6 / (64 + 32)) ** 0.5, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_scores(name: CrossScore) -> None:
    score = new_score(name).double()
    s, h = (x.double().requires_grad_() for x in states(queries=2, keys=3))

    def run(s: Tensor, h: Tensor, *parameters: Tensor) -> Tensor:
        q, k = (
            x.unflatten(-1, (H, DH)).transpose(1, 2)
            for x in (score.project_query(s), score.project_key(h))
        )
        return score(q, k)

    assert torch.autograd.gradcheck(run, (s, h, *score.parameters()))


@pytest.mark.parametrize("block_elements", [1, 2 * H * 5 * DH * 3])
def test_blocks_change_neither_scores_nor_gradients(
    block_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query a block, and three of seven."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((2, H, 7, DH), (2, H, 5, DH), (H, 1, 1, DH))
    )
    whole = tanh_scores(q, k, v)
    upstream = torch.randn(whole.shape, generator=generator, dtype=torch.float64)
    expected = torch.autograd.grad(whole, (q, k, v), upstream)
    monkeypatch.setattr(scores, "BLOCK_ELEMENTS", block_elements)
    blocks = tanh_scores(q, k, v)
    assert torch.equal(blocks, whole)
    for one, other in zip(torch.autograd.grad(blocks, (q, k, v), upstream), expected, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.autograd.gradcheck(tanh_scores, (q, k, v))


def test_blocks_take_bf16_queries_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """As autocast makes them; v stays float32, and each gradient has its input's type."""
    monkeypatch.setattr(scores, "BLOCK_ELEMENTS", 1)
    q, k = (torch.randn(1, H, 4, DH).bfloat16().requires_grad_() for _ in range(2))
    v = torch.randn(H, 1, 1, DH, requires_grad=True)
    found = torch.autograd.grad(tanh_scores(q, k, v).sum(), (q, k, v))
    assert [gradient.dtype for gradient in found] == [torch.bfloat16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("name", NAMES)
def test_padding_never_gets_weight(name: CrossScore) -> None:
    """The values are unit vectors and nothing is projected behind them, so that the context is
    the weights; the padded source states are large enough to win every comparison."""
    attention = attention_of(name)
    torch.nn.init.eye_(attention.out_proj.weight)
    torch.nn.init.zeros_(attention.out_proj.bias)
    s, h = states(keys=DH)
    h[:, 2:] *= 50
    mask = torch.tensor([True, True, False, False])[None, None, None]
    v = torch.eye(DH).expand(2, H, DH, DH)
    k, _ = attention.project_key_value(h)
    weights = attention.attend(attention.project_query(s), k, v, mask).unflatten(-1, (H, DH))
    assert (weights[..., 2:] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, H))
    unmasked = attention.attend(attention.project_query(s), k, v, None).unflatten(-1, (H, DH))
    assert (unmasked[..., 2:] > 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_depend_on_the_batch(name: CrossScore) -> None:
    model = random_transformer(cross_score=name)
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(4, 300, (3, 9), generator=generator)
    tgt = torch.randint(4, 300, (3, 6), generator=generator)
    mask = torch.arange(9)[None] < torch.tensor([[9], [4], [1]])
    with torch.no_grad():
        together = model(src, mask, tgt)
        for row, length in enumerate((9, 4, 1)):
            alone = model(
                src[row : row + 1, :length], mask[row : row + 1, :length], tgt[row : row + 1]
            )
            torch.testing.assert_close(together[row], alone[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scaled_dot", {"q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias"}),
        ("dot", set()),
        ("general", {"score.key_proj.weight"}),
        ("concat", {"score.v", "score.proj.weight", "score.proj.bias"}),
        (
            "additive",
            {
                "score.v",
                "score.query_proj.weight",
                "score.query_proj.bias",
                "score.key_proj.weight",
            },
        ),
    ],
)
def test_weights_beside_values_and_output(name: CrossScore, expected: set[str]) -> None:
    state = random_transformer(cross_score=name).decoder.layers[0].state_dict()
    prefix = "cross_attention."
    found = {key.removeprefix(prefix) for key in state if key.startswith(prefix)}
    shared = {
        f"{module}.{kind}" for module in ("v_proj", "out_proj") for kind in ("weight", "bias")
    }
    assert found == expected | shared
    assert "self_attention.q_proj.weight" in state


@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_keep_the_score(name: CrossScore, tmp_path: Path) -> None:
    model = random_transformer(cross_score=name)
    loaded = load_checkpoint(write_random_checkpoint(tmp_path / "checkpoint", cross_score=name))
    assert loaded.config.cross_score == name
    assert loaded.model.state_dict().keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[key], tensor), key


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_every_weight_learns(name: CrossScore, bf16: bool) -> None:
    model = random_transformer(cross_score=name).train()
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(4, 300, (4, 7), generator=generator)
    tgt = torch.randint(4, 300, (4, 7), generator=generator)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits = model(src, torch.ones(4, 7, dtype=torch.bool), tgt)
    F.cross_entropy(logits.float().flatten(0, 1), src.flatten()).backward()
    for key, parameter in model.decoder.layers[0].cross_attention.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key
