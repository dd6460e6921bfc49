"""Sequence encoders against their formulas, row by row on the positions that exist."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recgrad.nn.encoders.base import ENCODERS, SequenceFields, build_encoder
from recgrad.nn.jagged import Segments, pad

LENGTHS = [3, 0, 5, 1]
ATTENTION = {"hidden_units": [6, 4], "activation": "nn.Tanh"}  # nothing is cut off, as ReLU would
PARAMS = {
    "din_encoder": {"attn_mlp": ATTENTION},
    "simple_attention": {},
    "pooling_encoder": {},
    "self_attention_encoder": {"multihead_attn_dim": 8, "num_heads": 2},
    "multi_window_din_encoder": {"attn_mlp": ATTENTION, "windows_len": [1, 3]},
    "eta_encoder": {"top_k": 2, "num_hashes": 8, "multihead_attn_dim": 6, "num_heads": 2},
    "sdim_encoder": {"num_hashes": 12, "hash_width": 2},
    "sim_encoder": {
        "query_feature": "kind", "sequence_feature": "h__kind", "top_k": 2, "multihead_attn_dim": 6,
    },
}  # fmt: skip
# The first two columns are the item's kind, in one table.
FIELDS = SequenceFields(
    {"kind": slice(0, 2), "x": slice(2, 4)}, {"h__kind": slice(0, 2)}, {"kind": "k", "h__kind": "k"}
)


def make(name, query_dim=4, **params):
    torch.manual_seed(0)
    return build_encoder(name, query_dim, 4, {**PARAMS[name], **params}, FIELDS).double()


@pytest.fixture
def inputs():
    torch.manual_seed(1)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    query = torch.randn(4, 4, dtype=torch.float64)
    sequence = torch.randn(sum(LENGTHS), 4, dtype=torch.float64)
    # Some positions are of the query's kind.
    for row, position in ((0, 1), (2, 3), (2, 5), (2, 7), (3, 8)):
        sequence[position, :2] = query[row, :2]
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


def target_attention(module, q, s):
    """One row's multi-head attention, head by head."""
    out = torch.zeros(module.out_features, dtype=torch.float64)
    for h in range(module.heads) if len(s) else ():
        part = slice(h * module.width, (h + 1) * module.width)
        scores = module.key(s)[:, part] @ module.query(q)[part] / module.width**0.5
        out[part] = scores.softmax(0) @ module.value(s)[:, part]
    return out


@pytest.mark.parametrize("limit", [0, 4])
def test_eta(inputs, limit):
    encoder = make("eta_encoder", max_seq_length=limit)
    for out, (q, s) in zip(encoder(*inputs), rows(inputs, limit or None), strict=True):
        bits = [[float(v @ plane) > 0 for plane in encoder.planes.T] for v in [q, *s]]
        far = [sum(a != b for a, b in zip(bits[0], other, strict=True)) for other in bits[1:]]
        kept = sorted(sorted(range(len(s)), key=lambda i: (far[i], i))[:2])
        torch.testing.assert_close(out, target_attention(encoder.attention, q, s[kept]))


@pytest.mark.parametrize("limit", [0, 4])
def test_sdim(inputs, limit):
    encoder = make("sdim_encoder", max_seq_length=limit)
    for out, (q, s) in zip(encoder(*inputs), rows(inputs, limit or None), strict=True):
        expected = torch.zeros(4, dtype=torch.float64)
        for group in encoder.planes.T.split(2):
            same = [bool(((group @ v > 0) == (group @ q > 0)).all()) for v in s]
            total = s[same].sum(0)
            expected += total / total.norm() if any(same) else 0
        torch.testing.assert_close(out, expected / 6)


@pytest.mark.parametrize("limit", [0, 4])
def test_sim(inputs, limit):
    encoder = make("sim_encoder", max_seq_length=limit)
    found = 0
    for out, (q, s) in zip(encoder(*inputs), rows(inputs, limit or None), strict=True):
        kept = [i for i in range(len(s)) if torch.equal(s[i, :2], q[:2])][:2]
        found += len(kept)
        torch.testing.assert_close(out, target_attention(encoder.attention, q, s[kept]))
    assert found == 4


def test_sim_of_an_unknown_kind_finds_nothing(inputs):
    query, sequence, lengths = (x.clone() for x in inputs)
    query[:, :2] = 0
    sequence[:, :2] = 0
    encoder = make("sim_encoder")
    for kind in (torch.float64, torch.float32):
        out = encoder.to(kind)(query.to(kind), sequence.to(kind), lengths)
        assert not out.any()


def test_sim_compares_features_of_one_table():
    tables = {"kind": "k", "h__kind": "other"}
    other = SequenceFields(FIELDS.query, FIELDS.sequence, tables)
    with pytest.raises(
        ValueError, match=r"must share a table, got k and other; give both .* one embedding_name"
    ):
        build_encoder("sim_encoder", 4, 4, PARAMS["sim_encoder"], other)
    with pytest.raises(ValueError, match=r"feature of the sequence \(h__kind\), got 'h_kind'; did you mean"):
        build_encoder("sim_encoder", 4, 4, PARAMS["sim_encoder"] | {"sequence_feature": "h_kind"}, FIELDS)


@pytest.mark.parametrize("name", ["eta_encoder", "sdim_encoder", "sim_encoder"])
def test_kernels_over_long_histories_give_what_torch_gives(name):
    """Lengths from 0 to some thousand, more hashes than a word of 32 bits, also with gradients."""
    torch.manual_seed(3)
    lengths = torch.tensor([0, 1, 3000, 7, 0, 450, 48, 2], dtype=torch.int32)
    kinds = torch.randn(5, 2)
    query, sequence = torch.randn(8, 4), torch.randn(int(lengths.sum()), 4)
    query[:, :2], sequence[:, :2] = kinds[torch.randint(5, (8,))], kinds[torch.randint(5, (len(sequence),))]
    more = {} if name == "sim_encoder" else {"num_hashes": 60}
    # Multiples of 1/8, so that no rounding decides on which side of a plane a vector lies.
    query, sequence = (x.mul(8).round() / 8 for x in (query, sequence))
    exact, fast = make(name, **more), make(name, **more).float()
    for encoder in (exact, fast) if more else ():
        encoder.planes.copy_(encoder.planes.mul(8).round() / 8)
    upstream = torch.randn(8, exact.out_features)
    results = []
    for encoder, kind in ((exact, torch.float64), (fast, torch.float32)):
        q, s = (x.to(kind).requires_grad_() for x in (query, sequence))
        out = encoder(q, s, lengths)
        out.backward(upstream.to(kind))
        results.append((out, s.grad))
    for reference, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), reference, rtol=1e-4, atol=1e-5)


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
    if name not in ("pooling_encoder", "self_attention_encoder", "sdim_encoder"):
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
        ("din_encoder", 4, {"attn_mlp": {"hidden_units": []}}, "attn_mlp.hidden_units is empty"),
        ("multi_window_din_encoder", 4, {"windows_len": []}, "windows_len"),
        ("simple_attention", 3, {}, "as wide as a position"),
        ("pooling_encoder", 4, {"pooling_type": "max"}, "'mean', 'sum'"),
        ("pooling_encoder", 4, {"max_seq_length": -1}, "at least 0"),
        ("self_attention_encoder", 4, {"multihead_attn_dim": 9}, "multiple of num_heads"),
        ("self_attention_encoder", 4, {"num_heads": 0}, "num_heads must be at least 1"),
    ],
)
def test_refusals(name, query_dim, params, message):
    with pytest.raises(ValueError, match=message):
        make(name, query_dim, **params)


def test_dropout_of_self_attention_is_off_in_evaluation(inputs):
    encoder = make("self_attention_encoder", dropout=0.5).eval()
    assert torch.equal(encoder(*inputs), encoder(*inputs))
    assert isinstance(encoder.attention, nn.MultiheadAttention)
