"""What models over equally wide fields share: the groups `sparse`, `dense` and `wide`."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from recgrad.models.base import Model
from recgrad.models.group_needs import GroupNeeds
from recgrad.models.inputs import Inputs
from recgrad.nn.fm import split_fields
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


class FieldModel(Model):
    """A model over equally wide fields: those of the group `sparse`, and the group `dense` through an MLP.

    A single group is `sparse` whatever its name. Where a model has a linear part, its ids are in the
    group `wide` (WIDE), if there is one.
    """

    reads: ClassVar[GroupNeeds | None] = GroupNeeds({"sparse": "DEEP"}, {"dense": "DEEP"}, alone="DEEP")

    def build_fields(self, dense_mlp: MLPSettings | None) -> None:
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

    def build_output(self, width: int) -> None:
        """Make the output layer over so many columns, and over Σ wide where there is a group `wide`.

        With one logit the sum is added as it is. With several classes it is one more column, since a
        sum that all classes share would cancel in the softmax.
        """
        self.has_wide = self.sparse_group != "wide" and "wide" in self.groups
        if self.has_wide:
            self.groups.dim("wide")
        logits = self.tasks[0].num_logits
        self.output = OutputLayer(width + (self.has_wide and logits > 1), logits)

    def logits(self, x: Tensor, inputs: Inputs) -> dict[str, Tensor]:
        """The output of the columns that `build_output` was told of, with the linear part."""
        if not self.has_wide:
            return self.head(self.output(x))
        wide = inputs["wide"].sum(1, keepdim=True)
        if self.tasks[0].num_logits == 1:
            return self.head(wide + self.output(x))
        return self.head(self.output(torch.cat([x, wide], dim=1)))
