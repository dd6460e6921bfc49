"""DSSM: a tower for users and a tower for items, compared by their vectors.

Huang et al. 2013, https://doi.org/10.1145/2505515.2505665

    u = linear(mlp_u(user)),  v = linear(mlp_i(item)),  s = sim(u, v) / temperature

```
user group ──▶ MLP ──▶ linear ──▶ u [rows, dim] ───┐
                                                   ├──▶ s [rows, 1 + negatives] ──▶ logits
item group ──▶ MLP ──▶ linear ──▶ v of the row's item, and of negatives ──┘
```
Column 0 is the row's own item. Negatives are the batch's sampled items, or with
`in_batch_negative` the items of the other rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.data.batch import Batch
from recgrad.errors import DataError
from recgrad.models.base import MODELS, Model
from recgrad.models.inputs import Parts
from recgrad.nn.mlp import MLP

SIMILARITIES = ("COSINE", "INNER_PRODUCT", "EUCLID")


class Tower(nn.Sequential):
    """An MLP and a linear layer to the shared space (none when output_dim is 0)."""

    def __init__(self, in_features: int, output_dim: int, mlp: Mapping[str, Any] | None = None) -> None:
        hidden = MLP(in_features, **(mlp or {}))
        output = [nn.Linear(hidden.out_features, output_dim)] if output_dim > 0 else []
        super().__init__(hidden, *output)
        self.out_features = output_dim if output_dim > 0 else hidden.out_features


@MODELS.register("dssm")
class DSSM(Model):
    """Two towers; `user_embedding` and `item_embedding` run one of them alone."""

    retrieval: ClassVar[bool] = True

    def build(
        self,
        *,
        user_tower: Mapping[str, Any],
        item_tower: Mapping[str, Any],
        output_dim: int = 0,
        similarity: str = "INNER_PRODUCT",
        temperature: float = 1.0,
        in_batch_negative: bool = False,
    ) -> None:
        """Make the layers.

        Args:
            user_tower: `input` (the user group) and `mlp` of the user tower.
            item_tower: `input` (the item group) and `mlp` of the item tower.
            output_dim: width of the vectors; 0 takes the MLPs' outputs as they are.
            similarity: COSINE, INNER_PRODUCT, or EUCLID (minus the distance).
            temperature: similarities are divided by it.
            in_batch_negative: the items of other rows are the negatives.
        """
        if similarity not in SIMILARITIES:
            raise ValueError(f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity}")
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        self.user_group, self.item_group = user_tower["input"], item_tower["input"]
        self.similarity, self.temperature = similarity, temperature
        self.in_batch_negative = in_batch_negative
        self.user_tower = Tower(self.groups.dim(self.user_group), output_dim, user_tower.get("mlp"))
        self.item_tower = Tower(self.groups.dim(self.item_group), output_dim, item_tower.get("mlp"))
        if self.user_tower.out_features != self.item_tower.out_features:
            raise ValueError(
                "towers must end equally wide when output_dim is 0, got "
                f"{self.user_tower.out_features} and {self.item_tower.out_features}"
            )

    @property
    def tower_groups(self) -> dict[str, tuple[str, ...]]:
        """One group each."""
        return {"user": (self.user_group,), "item": (self.item_group,)}

    def embed(self, batch: Batch, tower: str) -> Tensor:
        """u or v."""
        return {"user": self.user_embedding, "item": self.item_embedding}[tower](batch)

    def user_embedding(self, batch: Batch) -> Tensor:
        """u [rows, dim]; the batch needs the user group's features only."""
        return self._embedding(batch, self.user_group, self.user_tower)

    def item_embedding(self, batch: Batch) -> Tensor:
        """v [rows, dim]; the batch needs the item group's features only."""
        return self._embedding(batch, self.item_group, self.item_tower)

    def _embedding(self, batch: Batch, group: str, tower: nn.Module) -> Tensor:
        parts = self.groups.gather(batch, self.engine, [group])
        inputs, _ = self.dropped(self.groups(parts))
        return self._normed(tower(inputs[group]))

    def _normed(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1) if self.similarity == "COSINE" else x

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Similarities as "logits" [rows, 1 + negatives], the row's own item first."""
        parts = self.groups.gather(batch, self.engine, [self.user_group, self.item_group])
        if batch.negatives is not None and not self.in_batch_negative:
            negatives = self.groups.gather(batch.negatives, self.engine, [self.item_group])
            parts = replace(parts, negatives=negatives)
        elif batch.negatives is not None:
            raise DataError(
                "dssm: the batch has sampled negatives but in_batch_negative is true; remove one of the two"
            )
        return self._dense_half(parts)

    def dense_half(self, parts: Parts) -> dict[str, Tensor]:
        """Both towers and the similarities."""
        inputs, penalty = self.dropped(self.groups(parts))
        items = inputs[self.item_group]
        rows = items.shape[0]
        if parts.negatives is not None:
            # One pass of the tower over both, so that batch norm sees what it will see when serving items.
            more, _ = self.dropped(self.groups(parts.negatives))
            items = torch.cat([items, more[self.item_group]])
        users = self._normed(self.user_tower(inputs[self.user_group]))
        items = self._normed(self.item_tower(items))
        outputs = {"logits": self._similarities(users, items, rows) / self.temperature}
        return outputs if penalty is None else {**outputs, "regularization": penalty}

    def _similarities(self, users: Tensor, items: Tensor, rows: int) -> Tensor:
        if self.in_batch_negative:
            return own_first(self._matrix(users, items))
        own = items[:rows]
        if self.similarity == "EUCLID":
            positive = -(users - own).norm(dim=1, keepdim=True)
        else:
            positive = (users * own).sum(1, keepdim=True)
        return torch.cat([positive, self._matrix(users, items[rows:])], dim=1)

    def _matrix(self, users: Tensor, items: Tensor) -> Tensor:
        return -torch.cdist(users, items) if self.similarity == "EUCLID" else users @ items.t()


def own_first(matrix: Tensor) -> Tensor:
    """A square matrix with each row's diagonal element moved to column 0, the others in order."""
    size, own = matrix.shape[0], matrix.diagonal().unsqueeze(1)
    if size < 2:
        # No row has another; column 0 is there also without rows.
        return own
    # Without its first element a flat square matrix has the diagonal at every (size + 1)-th place.
    others = matrix.flatten()[1:].view(size - 1, size + 1)[:, :-1].reshape(size, size - 1)
    return torch.cat([own, others], dim=1)
