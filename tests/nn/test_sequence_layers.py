"""The layers of sasrec and hstu against their formulas in float64, row by row."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from recgrad.nn.hstu import HSTULayer
from recgrad.nn.jagged import Segments
from recgrad.nn.sasrec import AttentionBlock

LENGTHS = [5, 0, 1, 9]


def make(dtype=torch.float64, dim=8):
    torch.manual_seed(1)
    return torch.randn(sum(LENGTHS), dim).to(dtype), Segments.from_lengths(
        torch.tensor(LENGTHS), sum(LENGTHS)
    )


def jolted(module):
    """No bias stays 0, no weight of a norm 1."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    return module


def linear(layer, x):
    return x @ layer.weight.T + layer.bias


def norm(layer, x):
    return F.layer_norm(x, x.shape[1:], layer.weight, layer.bias, 1e-8)


def attention(block, query, x, causal):
    """Of one row, with heads of four."""
    q, (k, v) = linear(block.query, query), linear(block.key_value, x).chunk(2, dim=1)
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        scores = q[:, part] @ k[:, part].T / math.sqrt(4)
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(1) @ v[:, part])
    return linear(block.output, torch.cat(heads, dim=1))


def feed(block, x, activation):
    return linear(block.outer, activation(linear(block.inner, x)))


def sasrec_row(block, x, kind, causal, activation):
    if kind == "SASREC":
        q = norm(block.first_norm, x)
        y = norm(block.second_norm, q + attention(block, q, x, causal))
        return y + feed(block, y, activation)
    if kind == "PRE":
        z = norm(block.first_norm, x)
        y = x + attention(block, z, z, causal)
        return y + feed(block, norm(block.second_norm, y), activation)
    y = norm(block.first_norm, x + attention(block, x, x, causal))
    return norm(block.second_norm, y + feed(block, y, activation))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["SASREC", "PRE", "POST"])
def test_attention_block(kind, causal):
    name, function = ("RELU", F.relu) if kind == "SASREC" else ("GELU", F.gelu)
    torch.manual_seed(0)
    block = jolted(
        AttentionBlock(8, heads=2, hidden_dim=12, norm=kind, activation=name, causal=causal)
    ).double()
    x, segments = make()
    expected = torch.cat([sasrec_row(block, row, kind, causal, function) for row in x.split(LENGTHS)])
    torch.testing.assert_close(block(x, segments), expected)
    single = block.float()(x.float(), segments)
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=2e-5)


def hstu_row(layer, x, times, asked):
    n = (len(layer.positions) + 1) // 2
    y = F.layer_norm(x, x.shape[1:], eps=1e-6)
    u, v, q, k = F.silu(y @ layer.weight).split([6, 6, 4, 4], dim=1)
    out = torch.zeros(len(x), 6, dtype=x.dtype)
    for i in range(len(x)):
        for j in range(i + 1):
            bias = layer.positions[n - 1 + j - i]
            apart = max(abs(float(asked[i] - times[j])), 1)
            bias = bias + layer.times[min(math.floor(math.log(apart) / 0.301), 128)]
            for head in range(2):
                qk = q[i, 2 * head : 2 * head + 2] @ k[j, 2 * head : 2 * head + 2]
                out[i, 3 * head : 3 * head + 3] += F.silu(qk + bias) / n * v[j, 3 * head : 3 * head + 3]
    return x + linear(layer.output, u * F.layer_norm(out, out.shape[1:], eps=1e-6))


def test_hstu_layer():
    torch.manual_seed(0)
    layer = jolted(HSTULayer(8, heads=2, attention_dim=2, hidden_dim=3, max_length=10)).double()
    x, segments = make()
    times = torch.randint(0, 10**6, (len(x),)).double().cumsum(0)
    asked = times + 3600
    split = zip(*(t.split(LENGTHS) for t in (x, times, asked)), strict=True)
    expected = torch.cat([hstu_row(layer, *row) for row in split])
    torch.testing.assert_close(layer(x, segments, times, asked), expected)
    single = layer.float()(x.float(), segments, times, asked)
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=2e-5)


def test_dropout_only_in_training():
    x, segments = make(torch.float32)
    block = AttentionBlock(8, heads=2, hidden_dim=8, dropout=0.5, attention_dropout=0.5)
    assert not torch.equal(block(x, segments), block(x, segments))
    block.eval()
    assert torch.equal(block(x, segments), block(x, segments))
