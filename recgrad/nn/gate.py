"""PEPNet's gates: embeddings and hidden layers scaled by what is known of the domain and the user."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.nn.activation import build_activation
from recgrad.nn.mlp import dropout_ratios


class GateUnit(nn.Module):
    """γ · sigmoid(linear(relu(linear(x)))): factors around γ/2.

    Args:
        in_features: width of x.
        hidden: hidden width.
        out_features: number of factors.
        gamma: γ.
    """

    def __init__(self, in_features: int, hidden: int, out_features: int, gamma: float = 2.0) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, hidden)
        self.output = nn.Linear(hidden, out_features)
        self.gamma = gamma

    def forward(self, x: Tensor) -> Tensor:
        """[rows, out_features] of x [rows, in_features]."""
        return self.gamma * torch.sigmoid(self.output(F.relu_(self.hidden(x))))


class EmbeddingGate(nn.Module):
    """EPNet: the main features scaled by a gate that sees them (without gradient) and the domain.

    Chang et al. 2023, https://arxiv.org/abs/2302.01115

    Args:
        main: width of the main features.
        domain: width of the domain's features.
        hidden: hidden width of the gate.
        gamma: largest factor.
    """

    def __init__(self, main: int, domain: int, hidden: int, gamma: float = 2.0) -> None:
        super().__init__()
        self.gate = GateUnit(main + domain, hidden, main, gamma)

    def forward(self, main: Tensor, domain: Tensor) -> Tensor:
        """[rows, main]."""
        return main * self.gate(torch.cat([domain, main.detach()], dim=1))  # type: ignore[no-any-return]


class GatedMLP(nn.Module):
    """PPNet of one task: an MLP whose every layer is scaled by a gate that sees user, item and input.

    The main features reach the gates without gradient.

    Args:
        main: width of the main features, the MLP's input.
        prior: width of the user's and item's features.
        hidden_units: width of each layer.
        activation: of each layer, before its gate.
        dropout_ratio: as `MLP` takes it.
        gamma: largest factor.
    """

    def __init__(
        self,
        main: int,
        prior: int,
        hidden_units: Sequence[int],
        activation: str = "nn.ReLU",
        dropout_ratio: Sequence[float] = (),
        gamma: float = 2.0,
    ) -> None:
        super().__init__()
        if not hidden_units:
            raise ValueError("ppnet_hidden_units must have at least one width, got none")
        widths = [main, *hidden_units]
        self.layers = nn.ModuleList()
        self.gates = nn.ModuleList()
        self.dropouts = nn.ModuleList()
        for before, units, ratio in zip(
            widths[:-1], hidden_units, dropout_ratios(dropout_ratio, len(hidden_units)), strict=True
        ):
            function = build_activation(activation, units) or nn.Identity()
            self.layers.append(nn.Sequential(nn.Linear(before, units), function))
            self.gates.append(GateUnit(main + prior, units, units, gamma))
            self.dropouts.append(nn.Dropout(ratio) if ratio > 0 else nn.Identity())
        self.out_features = widths[-1]

    def forward(self, main: Tensor, prior: Tensor) -> Tensor:
        """[rows, out_features]."""
        x, seen = main, torch.cat([prior, main.detach()], dim=1)
        for layer, gate, dropout in zip(self.layers, self.gates, self.dropouts, strict=True):
            x = dropout(layer(x) * gate(seen))
        return x
