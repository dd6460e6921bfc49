"""Attention over padded rows in plain torch: the peer of the jagged kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from recgrad.nn.stu.layer import STULayer


def padded_stu(layer: STULayer, x: Tensor, allowed: Tensor) -> Tensor:
    """The layer's formula on x [rows, length, dim]; allowed [rows, length, length]: what positions see."""
    rows, length, _ = x.shape
    heads = layer.setting.heads
    u, v, q, k = layer.uvqk(layer.input_norm(x)).split(layer.widths, dim=2)
    u = F.silu(u)
    v, q, k = (part.reshape(rows, length, heads, -1).transpose(1, 2) for part in (v, q, k))
    scores = F.silu(layer.setting.alpha * q @ k.transpose(2, 3)) / layer.setting.divisor
    o = (scores * allowed.unsqueeze(1)) @ v
    o = o.transpose(1, 2).reshape(rows, length, -1)
    return x + layer.output(torch.cat([u, o, u * layer.output_norm(o)], dim=2))
