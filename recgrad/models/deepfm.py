"""DeepFM: a factorization machine and an MLP over the same embeddings.

Guo et al. 2017, https://arxiv.org/abs/1703.04247

    y = Σ wide + Σ_{i<j} ⟨v_i, v_j⟩ + linear(deep(v))                     without `final`
    y = linear(final([Σ wide, Σ_{i<j} v_i∘v_j, deep(v)]))                 with `final`

```
wide ──▶ Σ ────────────────────────────────┐
fm (or deep) ──▶ v [fields, dim] ──▶ FM ───┼──▶ (+ or final) ──▶ logits
deep ──▶ MLP ──────────────────────────────┘
```
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from recgrad.kernels.compile import Wanted
from recgrad.models.base import MODELS, Model
from recgrad.models.group_needs import GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn import fm_kernels
from recgrad.nn.fm import factorization_machine, interacting, split_fields
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer
from recgrad.optim.sparse import SparseOptimizer


@MODELS.register("deepfm")
class DeepFM(Model):
    """DeepFM over the groups `wide` (WIDE), `deep`, and `fm` where the FM's features are not the deep ones.

    All fields of the FM have one width. With several classes and no `final`, one linear layer
    over [Σ wide, FM, deep] gives the logits, since a sum that all classes share would cancel
    in the softmax.
    """

    reads: ClassVar[GroupNeeds | None] = GroupNeeds({"wide": "WIDE", "deep": "DEEP"}, {"fm": "DEEP"})

    def build(self, *, deep: MLPSettings, final: MLPSettings | None = None) -> None:
        """Make the layers.

        Args:
            deep: arguments of the MLP over the deep group.
            final: arguments of the MLP over all three parts; none adds them up.
        """
        self.fm_group = "fm" if "fm" in self.groups else "deep"
        self.fm_dim = self.groups.field_dim(
            self.fm_group, "give them one embedding_dim, or list those that have one in a group 'fm'"
        )
        self.fm_span = self.groups.span_within(self.fm_group, "deep")
        self.deep = MLP(self.groups.dim("deep"), **deep)
        classes = self.tasks[0].num_logits
        self.adds_up = final is None and classes == 1
        width = self.deep.out_features if self.adds_up else 1 + self.fm_dim + self.deep.out_features
        self.final = MLP(width, **(final or {}))
        self.output = OutputLayer(self.final.out_features, classes)

    def kernels(self, optimizer: SparseOptimizer | None) -> list[Wanted]:
        """Those of the factorization machine beside those of all models."""
        found = super().kernels(optimizer)
        if self.fm_span is not None and self.groups.device.type == "cpu":
            found += fm_kernels.kernels()
        return found

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        wide = inputs["wide"].sum(1, keepdim=True)
        x = inputs["deep"]
        if self.fm_span is None or len(self.variational):
            fm = factorization_machine(split_fields(inputs[self.fm_group], self.fm_dim))
        else:  # dropout has not made the groups differ: the FM's fields are columns of the deep input
            first, last = self.fm_span
            fm, x = interacting(x, first, (last - first) // self.fm_dim, self.fm_dim)
        deep = self.deep(x)
        if self.adds_up:
            return self.head(wide + fm.sum(1, keepdim=True) + self.output(deep))
        return self.head(self.output(self.final(torch.cat([wide, fm, deep], dim=1))))
