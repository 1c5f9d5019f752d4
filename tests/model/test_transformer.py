from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from support.tiny_model import random_transformer, tiny_config

from model.attention import MultiHeadAttention
from model.dropout import Dropout
from model.positions import Rotary, sinusoid_table
from model.transformer import Transformer

SHAPES = list(itertools.product(("pre", "post"), ("sinusoidal", "learned", "rotary")))


def run(model: Transformer, src_ids: torch.Tensor, src_mask: torch.Tensor, tgt_ids: torch.Tensor):
    with torch.no_grad():
        return model(src_ids, src_mask, tgt_ids)


@pytest.mark.parametrize(("norm", "positions"), SHAPES)
def test_a_position_sees_no_later_one(norm: str, positions: str) -> None:
    model = random_transformer(norm=norm, positions=positions)
    torch.manual_seed(0)
    src_ids, tgt_ids = torch.randint(4, 300, (2, 5)), torch.randint(4, 300, (2, 6))
    mask = torch.ones(2, 5, dtype=torch.bool)
    before = run(model, src_ids, mask, tgt_ids)
    tgt_ids[:, 4:] = 7
    after = run(model, src_ids, mask, tgt_ids)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize(("norm", "positions"), SHAPES)
def test_source_padding_is_not_seen(norm: str, positions: str) -> None:
    model = random_transformer(norm=norm, positions=positions)
    torch.manual_seed(0)
    src_ids, tgt_ids = torch.randint(4, 300, (2, 5)), torch.randint(4, 300, (2, 6))
    alone = run(model, src_ids, torch.ones(2, 5, dtype=torch.bool), tgt_ids)
    padded = torch.cat((src_ids, torch.randint(4, 300, (2, 3))), 1)
    mask = torch.arange(8).expand(2, 8) < 5
    torch.testing.assert_close(run(model, padded, mask, tgt_ids), alone, rtol=1e-4, atol=1e-4)


def test_the_order_of_the_source_matters() -> None:
    model = random_transformer()
    ids = torch.tensor([[5, 6, 7, 8]])
    mask, tgt = torch.ones(1, 4, dtype=torch.bool), torch.tensor([[2, 9]])
    assert not torch.allclose(run(model, ids, mask, tgt), run(model, ids.flip(1), mask, tgt))


@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
def test_tying_shares_tables(tying: str) -> None:
    model = Transformer(tiny_config(tying=tying))
    encoder, decoder = model.encoder.embedding.tokens.weight, model.decoder.embedding.tokens.weight
    assert (encoder is decoder) == (tying == "all")
    assert (model.output_weight is decoder) == (tying != "none")


def test_embeddings_are_scaled_by_the_root_of_d_model() -> None:
    embedding = Transformer(tiny_config(positions="rotary")).encoder.embedding.eval()
    ids = torch.tensor([[4, 5]])
    want = embedding.tokens.weight[ids] * math.sqrt(32)
    torch.testing.assert_close(embedding(ids, torch.arange(2)), want)


def test_a_new_model_starts_near_the_uniform_loss() -> None:
    torch.manual_seed(0)
    model = Transformer(tiny_config(d_model=128, head_dim=32)).eval()
    ids = torch.randint(4, 300, (8, 10))
    logits = run(model, ids, torch.ones(8, 10, dtype=torch.bool), ids)
    loss = F.cross_entropy(logits.flatten(0, 1), torch.randint(4, 300, (80,)))
    assert float(loss) == pytest.approx(math.log(logits.size(-1)), abs=0.9)


def test_attention_equals_pytorchs() -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, 4, 4, scale=0.5, dropout=0.0).eval()
    x, y = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    mask = torch.rand(2, 1, 3, 5) > 0.3
    mask[..., 0] = True
    q, (k, v) = attention.project_query(x), attention.project_key_value(y)
    want = F.scaled_dot_product_attention(q, k, v, mask, scale=0.5).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention.attend(q, k, v, mask), attention.out_proj(want))


def test_a_row_that_may_see_nothing_is_finite() -> None:
    attention = MultiHeadAttention(16, 4, 4, scale=0.5, dropout=0.0)
    q, (k, v) = torch.randn(1, 4, 2, 4), attention.project_key_value(torch.randn(1, 3, 16))
    assert attention.attend(q, k, v, torch.zeros(1, 1, 2, 3, dtype=torch.bool)).isfinite().all()


def test_sinusoids_follow_the_formula() -> None:
    table = sinusoid_table(20, 8)
    assert table[3, 2] == pytest.approx(math.sin(3 / 10000 ** (2 / 8)))
    assert table[19, 5] == pytest.approx(math.cos(19 / 10000 ** (4 / 8)))


def test_rotated_products_depend_on_the_distance_alone() -> None:
    torch.manual_seed(0)
    rotary = Rotary(32, 8)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(i: int, j: int) -> float:
        return float((rotary(q, torch.tensor([i])) * rotary(k, torch.tensor([j]))).sum())

    assert product(3, 1) == pytest.approx(product(20, 18), abs=1e-5)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-3)
    torch.testing.assert_close(rotary(q, torch.tensor([0])), q)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_its_share_and_keeps_the_mean(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dropped = Dropout(p)(torch.ones(1001, 101, dtype=dtype))
    assert dropped.dtype == dtype
    assert float((dropped == 0).float().mean()) == pytest.approx(p, abs=0.01)
    assert float(dropped.float().mean()) == pytest.approx(1.0, abs=0.03)
    assert dropped.unique().numel() == 2


def test_dropout_does_nothing_out_of_training_or_at_zero() -> None:
    x = torch.randn(5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert torch.isfinite(Dropout(0.999999).train()(x)).all()
    assert repr(Dropout(0.5)) == "Dropout(p=0.5)"


def test_dropout_masks_differ_between_calls_and_pass_gradients() -> None:
    torch.manual_seed(0)
    drop, x = Dropout(0.5), torch.ones(1000, requires_grad=True)
    first, second = drop(x), drop(x)
    assert not torch.equal(first, second)
    first.sum().backward()
    assert torch.equal(x.grad, first.detach())
