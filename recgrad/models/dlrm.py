"""DLRM: dot products of all pairs of embeddings.

Naumov et al. 2019, https://arxiv.org/abs/1906.00091

    d = dense_mlp(dense),  v = [d, v_1, …, v_n],  y = linear(final([⟨v_i, v_j⟩ i<j, d, v_1 … v_n]))

```
dense ──▶ dense_mlp ──▶ d ─┬────────────────────────────┐
                           ├──▶ dot products of pairs ──┼──▶ final ──▶ logits
sparse ──▶ v_1 … v_n ──────┴──(arch_with_sparse)────────┘
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recgrad.models.base import MODELS, Model
from recgrad.models.inputs import Inputs
from recgrad.nn.fm import split_fields
from recgrad.nn.interaction import DotInteraction
from recgrad.nn.mlp import MLP


class FieldModel(Model):
    """A model over equally wide fields: those of the group `sparse`, and the group `dense` through an MLP.

    A single group is `sparse` whatever its name.
    """

    def build_fields(self, dense_mlp: Mapping[str, Any] | None) -> None:
        """Make the dense group's MLP; sets `sparse_group`, `dim`, `sparse_fields` and `fields`."""
        groups = list(self.groups.plan.rows)
        self.sparse_group = groups[0] if len(groups) == 1 else "sparse"
        self.dim = self.groups.field_dim(self.sparse_group)
        self.sparse_fields = len(self.groups.widths(self.sparse_group))
        has_dense = self.sparse_group != "dense" and "dense" in self.groups
        if has_dense != (dense_mlp is not None):
            missing = "a dense_mlp" if has_dense else "a group 'dense'"
            raise ValueError(f"dense_mlp and a group called 'dense' go together; {missing} is missing")
        self.dense_mlp = MLP(self.groups.dim("dense"), **dense_mlp) if dense_mlp is not None else None
        if self.dense_mlp is not None and self.dense_mlp.out_features != self.dim:
            raise ValueError(
                f"dense_mlp must end as wide as an embedding ({self.dim}), got {self.dense_mlp.out_features}"
            )
        self.fields = self.sparse_fields + (self.dense_mlp is not None)

    def split(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """All fields [rows, fields, dim], the dense one first, and the dense one alone."""
        fields = split_fields(inputs[self.sparse_group], self.dim)
        if self.dense_mlp is None:
            return fields, None
        dense = self.dense_mlp(inputs["dense"])
        return torch.cat([dense.unsqueeze(1), fields], dim=1), dense


@MODELS.register("dlrm")
class DLRM(FieldModel):
    """DLRM over the groups `sparse` and, if any, `dense`."""

    def build(
        self,
        *,
        final: Mapping[str, Any],
        dense_mlp: Mapping[str, Any] | None = None,
        arch_with_sparse: bool = True,
    ) -> None:
        """Make the layers.

        Args:
            final: arguments of the last MLP.
            dense_mlp: arguments of the MLP over the dense group; ends as wide as an embedding.
            arch_with_sparse: embeddings themselves go into the last MLP, beside their products.
        """
        self.build_fields(dense_mlp)
        self.arch_with_sparse = arch_with_sparse
        self.interaction = DotInteraction(self.fields)
        width = self.interaction.out_features + (self.dim if self.dense_mlp is not None else 0)
        width += self.sparse_fields * self.dim if arch_with_sparse else 0
        self.final = MLP(width, **final)
        self.output = nn.Linear(self.final.out_features, self.tasks[0].num_logits)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits."""
        fields, dense = self.split(inputs)
        columns = [self.interaction(fields)]
        if self.arch_with_sparse:
            # All fields side by side are the dense one and the embeddings already.
            columns.append(fields.flatten(1))
        elif dense is not None:
            columns.append(dense)
        return self.head(self.output(self.final(torch.cat(columns, dim=1))))
