"""DeepFM, DCN V2, DIN and MMoE in plain PyTorch: nn.Embedding, nn.Linear and no line of Recgrad's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

WIDE = 4


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers, each with ReLU."""
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers)


class Plain(nn.Module):
    """A table for each field; logits [rows, labels]."""

    def __init__(self, sizes: Sequence[int], numbers: int, dim: int, *, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dim, sparse=sparse) for size in sizes)
        self.width = dim * len(sizes) + numbers

    def rows(self, ids: Tensor) -> Tensor:
        """[rows, fields, dim]."""
        return torch.stack([table(column) for table, column in zip(self.tables, ids.T)], dim=1)

    def all(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """Numbers and embeddings side by side."""
        return torch.cat([numbers, self.rows(ids).flatten(1)], dim=1)


class PlainDeepFM(Plain):
    """Σ wide + Σ_{i<j} ⟨v_i, v_j⟩ + linear(deep(v))."""

    def __init__(self, sizes: Sequence[int], numbers: int, dim: int, *, sparse: bool) -> None:
        super().__init__(sizes, numbers, dim, sparse=sparse)
        self.wide = nn.ModuleList(nn.Embedding(size, WIDE, sparse=sparse) for size in sizes)
        self.deep = mlp(self.width, 64, 32)
        self.output = nn.Linear(32, 1)

    def forward(self, ids: Tensor, numbers: Tensor, history: Tensor, lengths: Tensor) -> Tensor:
        wide = sum(table(column).sum(1, keepdim=True) for table, column in zip(self.wide, ids.T))
        v = self.rows(ids)
        fm = ((v.sum(1) ** 2 - (v**2).sum(1)) / 2).sum(1, keepdim=True)
        deep = self.deep(torch.cat([numbers, v.flatten(1)], dim=1))
        return wide + fm + self.output(deep)


class PlainDCN(Plain):
    """x_{l+1} = x_0 ∘ (V_l U_l x_l + b_l) + x_l beside an MLP."""

    def __init__(self, sizes: Sequence[int], numbers: int, dim: int, *, sparse: bool) -> None:
        super().__init__(sizes, numbers, dim, sparse=sparse)
        self.down = nn.ModuleList(nn.Linear(self.width, 16, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(16, self.width) for _ in range(2))
        self.deep = mlp(self.width, 64, 32)
        self.final = mlp(self.width + 32, 32)
        self.output = nn.Linear(32, 1)

    def forward(self, ids: Tensor, numbers: Tensor, history: Tensor, lengths: Tensor) -> Tensor:
        start = x = self.all(ids, numbers)
        for down, up in zip(self.down, self.up):
            x = start * up(down(x)) + x
        logits: Tensor = self.output(self.final(torch.cat([x, self.deep(start)], dim=1)))
        return logits


class PlainDIN(Plain):
    """Attention of the shown item over the history, beside an MLP over all fields."""

    def __init__(self, sizes: Sequence[int], numbers: int, dim: int, *, sparse: bool) -> None:
        super().__init__(sizes, numbers, dim, sparse=sparse)
        self.attention = mlp(4 * dim, 32)
        self.score = nn.Linear(32, 1, bias=False)
        self.deep = mlp(self.width, 64, 32)
        self.final = mlp(32 + dim, 32)
        self.output = nn.Linear(32, 1)

    def forward(self, ids: Tensor, numbers: Tensor, history: Tensor, lengths: Tensor) -> Tensor:
        items = self.tables[0](history)
        query = self.tables[0](ids[:, 0]).unsqueeze(1).expand_as(items)
        scores = self.score(self.attention(torch.cat([query, items, query - items, query * items], dim=2)))
        exists = torch.arange(history.shape[1]) < lengths.unsqueeze(1)
        weights = scores.squeeze(2).masked_fill(~exists, -1e30).softmax(dim=1) * exists
        seen = (weights.unsqueeze(2) * items).sum(1)
        logits: Tensor = self.output(self.final(torch.cat([self.deep(self.all(ids, numbers)), seen], dim=1)))
        return logits


class PlainMMoE(Plain):
    """Experts that two tasks share, mixed by a gate of each."""

    def __init__(self, sizes: Sequence[int], numbers: int, dim: int, *, sparse: bool) -> None:
        super().__init__(sizes, numbers, dim, sparse=sparse)
        self.experts = nn.ModuleList(mlp(self.width, 64, 32) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(self.width, 3) for _ in range(2))
        self.towers = nn.ModuleList(nn.Sequential(mlp(32, 16), nn.Linear(16, 1)) for _ in range(2))

    def forward(self, ids: Tensor, numbers: Tensor, history: Tensor, lengths: Tensor) -> Tensor:
        x = self.all(ids, numbers)
        experts = torch.stack([expert(x) for expert in self.experts], dim=1)
        mixed = [(gate(x).softmax(1).unsqueeze(2) * experts).sum(1) for gate in self.gates]
        return torch.cat([tower(own) for tower, own in zip(self.towers, mixed)], dim=1)


def dense_tensors(model: Any) -> list[Tensor]:
    """Recgrad's dense parameters in the order of the plain model's."""
    found: list[Tensor] = []
    layers = [p for name, p in model.named_parameters() if name.startswith("mixture.experts")]
    if layers:
        count = len(layers[0])
        found += [layer[expert] for expert in range(count) for layer in layers]
    for name, parameter in model.named_parameters():
        if name.startswith("mixture.experts"):
            continue
        if name.startswith("mixture."):  # the gates of all tasks are one layer
            found += list(parameter.unbind())
        else:
            found.append(parameter)
    return found
