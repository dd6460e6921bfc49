"""Compressed interaction network of xDeepFM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.limits import FILLED, Count, SettingsOf, keep_limits


@keep_limits
class CIN(nn.Module):
    """x_{l+1}[o] = Σ_{h,f} W_l[o,h,f]·(x_l[h] ∘ x_0[f]) + b_l[o]; the output is Σ over dim of every x_l[o].

    Two things make it cheap on a CPU. Of the last layer only sums over dim are needed, and those are
    linear in the Gram matrix ⟨x_l[h], x_0[f]⟩, so its products are never formed. In the first layer
    x_l is x_0, and the products of a pair are formed once.
    Lian et al. 2018, https://arxiv.org/abs/1803.05170

    Weights start as linear layers do.

    Args:
        fields: number of fields of x_0.
        cin_layer_size: o of each layer.
    """

    def __init__(self, fields: int, cin_layer_size: Annotated[Sequence[Count], FILLED]) -> None:
        super().__init__()
        self.fields = fields
        self.out_features = sum(cin_layer_size)
        before = [fields, *cin_layer_size[:-1]]
        self.layers = nn.ModuleList(
            nn.Linear(h * fields, o) for h, o in zip(before, cin_layer_size, strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[rows, sum of sizes] of x [rows, fields, dim]."""
        rows, _, dim = x.shape
        outputs: list[Tensor] = []
        # [rows, dim, fields]: the linear layers mix fields of the same dim.
        start = current = x.transpose(1, 2).contiguous()
        *inner, last = self.layers
        for i, layer in enumerate(inner):
            if i == 0:
                flat = self._first(start.view(rows * dim, self.fields), layer)
                current = flat.view(rows, dim, flat.shape[1])
            else:
                current = layer((current.unsqueeze(3) * start.unsqueeze(2)).flatten(2))
            outputs.append(current.sum(1))
        gram = torch.bmm(current.transpose(1, 2), start).flatten(1)
        assert isinstance(last, nn.Linear)
        outputs.append(F.linear(gram, last.weight, dim * last.bias))
        return torch.cat(outputs, dim=1)

    def _first(self, x: Tensor, layer: nn.Module) -> Tensor:
        """The first layer on x [rows · dim, fields], each pair of fields multiplied once."""
        assert isinstance(layer, nn.Linear)
        weight = layer.weight.view(-1, self.fields, self.fields)
        folded = weight.triu() + weight.transpose(1, 2).triu(1)
        first, second = torch.triu_indices(self.fields, self.fields, device=x.device)
        products = torch.cat([x[:, i : i + 1] * x[:, i:] for i in range(self.fields)], dim=1)
        return F.linear(products, folded[:, first, second], layer.bias)


CINSettings = Annotated[Mapping[str, Any], SettingsOf(CIN)]
