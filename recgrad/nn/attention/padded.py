"""Attention over jagged rows by torch's operations on padded rows.

For GPUs, autocast, compile, export and float64. Formulas and draws of dropout are those of the kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from recgrad.nn.attention.setting import Biases, Setting
from recgrad.nn.jagged import Segments, pad
from recgrad.nn.jagged_rows import take_positions

_BITS = 0xFFFFFFFF
_LOWEST = -1e30


def padded_attention(
    q: Tensor,
    key: Tensor,
    v: Tensor,
    segments: Segments,
    setting: Setting,
    *,
    targets: Tensor | None = None,
    biases: Biases | None = None,
    seed: int = 0,
) -> Tensor:
    """As `jagged_attention`; `seed` is that of the dropout."""
    biases = biases or Biases()
    heads, size = setting.heads, segments.longest()
    split = [_heads(pad(x, segments, size), heads) for x in (q, key, v)]
    scores = setting.alpha * split[0] @ split[1].transpose(2, 3)
    if biases.positions is not None:
        scores = scores + position_bias(biases.positions, size)
    if biases.times is not None:
        scores = scores + _time_bias(biases, segments, size).unsqueeze(1)
    seen = setting.mask.matrix(segments.lengths, size, targets).unsqueeze(1)
    if setting.kind == "softmax":
        weights = torch.where(seen, scores, scores.new_tensor(_LOWEST)).softmax(3)
    else:
        weights = F.silu(scores) / setting.divisor
    weights = torch.where(seen, weights, weights.new_zeros(()))
    if setting.dropout > 0:
        keep = _kept(setting, segments, size, seed)
        weights = torch.where(keep, weights / (1 - setting.dropout), weights.new_zeros(()))
    out = (weights @ split[2]).transpose(1, 2).reshape(-1, v.shape[1])
    return take_positions(out, segments.inside() * size + segments.places())


def position_bias(positions: Tensor, size: int) -> Tensor:
    """[size, size]: p[N − 1 + j − i]."""
    place = torch.arange(size, device=positions.device)
    return positions[(positions.shape[0] - 1) // 2 + place[None, :] - place[:, None]]


def _time_bias(biases: Biases, segments: Segments, size: int) -> Tensor:
    """[rows, size, size]: w[bucket(t_i − t_j)]."""
    assert biases.times is not None
    assert biases.buckets is not None
    assert biases.key_times is not None
    assert biases.query_times is not None
    query, key = (
        pad(times.unsqueeze(1), segments, size).squeeze(2) for times in (biases.query_times, biases.key_times)
    )
    return biases.times[biases.buckets.of(query.unsqueeze(2) - key.unsqueeze(1))]


def _heads(x: Tensor, heads: int) -> Tensor:
    """[rows, heads, size, width of a head]."""
    return x.view(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(1, 2)


def _mixed(x: Tensor) -> Tensor:
    """Well mixed bits of 32-bit numbers in int64."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _BITS
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _BITS
    return x ^ (x >> 16)


def _kept(setting: Setting, segments: Segments, size: int, seed: int) -> Tensor:
    """bool [rows, heads, size, size]: which weights dropout leaves."""
    place = torch.arange(size, device=segments.lengths.device)
    head = torch.arange(setting.heads, device=place.device)
    position = segments.offsets.view(-1, 1, 1) + place
    number = position * setting.heads + head.view(1, -1, 1)
    own = _mixed((_mixed(number & _BITS) + seed) & _BITS)
    draws = _mixed((own.unsqueeze(3) + (place * 0x9E3779B9 & _BITS)) & _BITS)
    return draws >= setting.drop_below
