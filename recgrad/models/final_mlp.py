"""FinalMLP: two MLPs on gated features, joined by a bilinear form.

Mao et al. 2023, https://arxiv.org/abs/2304.00902

    h_s = 2·σ(gate_s(c_s)) ∘ x,   o_s = mlp_s(h_s),   s = 1, 2
    y = b + w₁·o₁ + w₂·o₂ + Σ_k o₁ₖᵀ W_k o₂ₖ,   o_s in num_heads equal parts o_sₖ

c_s is the group `gate1` or `gate2`, or a learned vector where there is no such group.

```
gate1 ──▶ gate MLP ──┐
group x ─────────────∘──▶ mlp1 ──▶ o₁ ──┐
        │                               ├──▶ bilinear, num_heads parts ──▶ logits
        └────────────∘──▶ mlp2 ──▶ o₂ ──┘
gate2 ──▶ gate MLP ──┘
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recgrad.limits import Count
from recgrad.models.base import MODELS, Model
from recgrad.models.group_needs import GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn.bilinear import BilinearFusion
from recgrad.nn.mlp import MLP, MLPSettings

GATES = ("gate1", "gate2")


class FeatureGate(nn.Module):
    """2·sigmoid(linear(mlp(c))) ∘ x: every column of x scaled by a factor around 1.

    Args:
        width: of x.
        context: width of c; 0 for a learned vector, as wide as the first hidden layer, in its place.
        mlp: arguments of the hidden layers.
    """

    def __init__(self, width: int, context: int, mlp: Mapping[str, Any]) -> None:
        super().__init__()
        self.own = None if context else nn.Parameter(torch.randn(1, mlp["hidden_units"][0]))
        self.mlp = MLP(context or mlp["hidden_units"][0], **mlp)
        self.output = nn.Linear(self.mlp.out_features, width)

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:
        """[rows, width] of x and of the context, if it takes one."""
        seen = self.own if context is None else context
        return x * (2 * torch.sigmoid(self.output(self.mlp(seen))))


@MODELS.register("final_mlp")
class FinalMLP(Model):
    """FinalMLP over one group, with what the gates see in the groups `gate1` and `gate2`.

    A single group may have any name, else it is `deep`.
    """

    reads: ClassVar[GroupNeeds | None] = GroupNeeds(
        {"deep": "DEEP"}, {"gate1": "DEEP", "gate2": "DEEP"}, alone="DEEP"
    )

    def build(
        self,
        *,
        mlp1: MLPSettings,
        mlp2: MLPSettings,
        gate_mlp: MLPSettings | None = None,
        num_heads: Count = 1,
    ) -> None:
        """Make the layers.

        Args:
            mlp1: arguments of the first MLP.
            mlp2: arguments of the second MLP.
            gate_mlp: arguments of the hidden layers of both gates; none for no gates.
            num_heads: parts of both outputs that the bilinear form joins one by one.
        """
        groups = list(self.groups.plan.rows)
        self.group = groups[0] if len(groups) == 1 else "deep"
        width = self.groups.dim(self.group)
        self.contexts = tuple(name for name in GATES if name in self.groups and name != self.group)
        if self.contexts and gate_mlp is None:
            raise ValueError(f"gate_mlp is needed for the group '{self.contexts[0]}', got none")
        self.gates = None
        if gate_mlp is not None:
            widths = [self.groups.dim(name) if name in self.contexts else 0 for name in GATES]
            self.gates = nn.ModuleList(FeatureGate(width, context, gate_mlp) for context in widths)
        self.mlp1, self.mlp2 = MLP(width, **mlp1), MLP(width, **mlp2)
        self.fusion = BilinearFusion(
            self.mlp1.out_features, self.mlp2.out_features, self.tasks[0].num_logits, num_heads
        )

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        x = inputs[self.group]
        first = second = x
        if self.gates is not None:
            first, second = (
                gate(x, inputs[name] if name in self.contexts else None)
                for gate, name in zip(self.gates, GATES, strict=True)
            )
        return self.head(self.fusion(self.mlp1(first), self.mlp2(second)))
