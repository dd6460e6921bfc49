"""Sequence encoders against their formulas, row by row on the positions that exist."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recgrad.nn.encoders.base import ENCODERS, build_encoder
from recgrad.nn.jagged import Segments, pad

LENGTHS = [3, 0, 5, 1]
ATTENTION = {"hidden_units": [6, 4], "activation": "nn.Tanh"}  # nothing is cut off, as ReLU would
PARAMS = {
    "din_encoder": {"attn_mlp": ATTENTION},
    "simple_attention": {},
    "pooling_encoder": {},
    "self_attention_encoder": {"multihead_attn_dim": 8, "num_heads": 2},
    "multi_window_din_encoder": {"attn_mlp": ATTENTION, "windows_len": [1, 3]},
}


def make(name, query_dim=4, **params):
    torch.manual_seed(0)
    return build_encoder(name, query_dim, 4, {**PARAMS[name], **params}).double()


@pytest.fixture
def inputs():
    torch.manual_seed(1)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    query = torch.randn(4, 4, dtype=torch.float64)
    sequence = torch.randn(sum(LENGTHS), 4, dtype=torch.float64)
    return query, sequence, lengths


def rows(inputs, limit=None):
    query, sequence, _ = inputs
    return [(q, s[:limit]) for q, s in zip(query, sequence.split(LENGTHS), strict=True)]


def test_every_encoder_is_tested():
    assert set(PARAMS) == set(ENCODERS)


@pytest.mark.parametrize("limit", [0, 2])
def test_din(inputs, limit):
    encoder = make("din_encoder", max_seq_length=limit)
    for out, (q, s) in zip(encoder(*inputs), rows(inputs, limit or None), strict=True):
        expected = torch.zeros(4, dtype=torch.float64)
        if len(s):
            wide = q.expand_as(s)
            scores = encoder.score(encoder.mlp(torch.cat([wide, s, wide - s, wide * s], dim=1)))[:, 0]
            expected = scores.softmax(0) @ s
        torch.testing.assert_close(out, expected)


def test_din_fills_a_narrow_query_with_zeros(inputs):
    query, sequence, lengths = inputs
    narrow, wide = make("din_encoder", query_dim=3), make("din_encoder")
    filled = torch.cat([query[:, :3], torch.zeros(4, 1, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(narrow(query[:, :3], sequence, lengths), wide(filled, sequence, lengths))


@pytest.mark.parametrize("limit", [0, 2])
def test_simple_attention(inputs, limit):
    encoder = make("simple_attention", max_seq_length=limit)
    for out, (q, s) in zip(encoder(*inputs), rows(inputs, limit or None), strict=True):
        torch.testing.assert_close(out, (s @ q).softmax(0) @ s)


@pytest.mark.parametrize("limit", [0, 2])
@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_pooling(inputs, pooling, limit):
    encoder = make("pooling_encoder", pooling_type=pooling, max_seq_length=limit)
    for out, (_, s) in zip(encoder(*inputs), rows(inputs, limit or None), strict=True):
        total = s.sum(0)
        torch.testing.assert_close(out, total / max(len(s), 1) if pooling == "mean" else total)


@pytest.mark.parametrize("limit", [0, 2])
def test_self_attention(inputs, limit):
    encoder = make("self_attention_encoder", max_seq_length=limit)
    for out, (_, s) in zip(encoder(*inputs), rows(inputs, limit or None), strict=True):
        expected = torch.zeros(8, dtype=torch.float64)
        if len(s):
            one = s.unsqueeze(0)
            attended, _ = encoder.attention(encoder.query(one), encoder.key(one), encoder.value(one))
            expected = attended[0].mean(0)
        torch.testing.assert_close(out, expected)


def test_multi_window_din(inputs):
    encoder = make("multi_window_din_encoder")
    assert encoder.out_features == 12
    for out, (q, s) in zip(encoder(*inputs), rows(inputs), strict=True):
        wide = q.expand_as(s)
        scored = encoder.activation(encoder.score(encoder.mlp(torch.cat([s, wide * s, wide], dim=1)))) * s
        windows = [scored[:1], scored[1:4]]  # the fifth position lies beyond the last window
        means = [w.sum(0) / max(len(w), 1) for w in windows]
        torch.testing.assert_close(out, torch.cat([*means, q]))


@pytest.mark.parametrize("name", sorted(PARAMS))
def test_gradients_reach_inputs_and_weights(name, inputs):
    encoder = make(name)
    query, sequence, lengths = inputs
    query.requires_grad_()
    sequence.requires_grad_()
    out = encoder(query, sequence, lengths)
    (out * torch.rand_like(out)).sum().backward()
    assert sequence.grad.any()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())
    if name not in ("pooling_encoder", "self_attention_encoder"):
        assert query.grad.any()


@pytest.mark.parametrize("name", sorted(PARAMS))
def test_batches_without_any_position(name):
    encoder = make(name)
    empty = torch.zeros(0, 4, dtype=torch.float64, requires_grad=True)
    query = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    out = encoder(query, empty, torch.zeros(2, dtype=torch.int32))
    assert out.shape == (2, encoder.out_features)
    assert out.isfinite().all()
    out.sum().backward()


@pytest.mark.parametrize("name", sorted(PARAMS))
def test_mixed_precision_trains(name, inputs):
    encoder = make(name).float()
    query, sequence = (x.float().requires_grad_() for x in inputs[:2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = encoder(query, sequence, inputs[2])
        out.float().square().sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in [sequence, *encoder.parameters()])


def test_padding_is_never_seen():
    """Batch norm of the attention MLP counts positions that exist only."""
    encoder = make("din_encoder", attn_mlp={"hidden_units": [6], "use_bn": True})
    lengths = torch.tensor([4, 1])
    sequence = torch.randn(5, 4, dtype=torch.float64)
    query = torch.randn(2, 4, dtype=torch.float64)
    seen = []
    encoder.mlp.norm0.register_forward_hook(lambda module, args, out: seen.append(args[0].shape))
    encoder(query, sequence, lengths)
    assert seen == [torch.Size([5, 6])]
    assert pad(sequence, Segments.from_lengths(lengths, 5)).shape == (2, 4, 4)


@pytest.mark.parametrize(
    ("name", "query_dim", "params", "message"),
    [
        ("din_encoder", 5, {}, "of width 1 to 4"),
        ("din_encoder", 0, {}, "needs a query"),
        ("din_encoder", 4, {"attn_mlp": {"hidden_units": []}}, "at least one hidden layer"),
        ("multi_window_din_encoder", 4, {"windows_len": []}, "windows_len"),
        ("simple_attention", 3, {}, "as wide as a position"),
        ("pooling_encoder", 4, {"pooling_type": "max"}, "'mean' or 'sum'"),
        ("pooling_encoder", 4, {"max_seq_length": -1}, "at least 0"),
        ("self_attention_encoder", 4, {"multihead_attn_dim": 9}, "multiple of num_heads"),
        ("self_attention_encoder", 4, {"num_heads": 0}, "multiple of num_heads, got . and 0"),
    ],
)
def test_refusals(name, query_dim, params, message):
    with pytest.raises(ValueError, match=message):
        make(name, query_dim, **params)


def test_dropout_of_self_attention_is_off_in_evaluation(inputs):
    encoder = make("self_attention_encoder", dropout=0.5).eval()
    assert torch.equal(encoder(*inputs), encoder(*inputs))
    assert isinstance(encoder.attention, nn.MultiheadAttention)
