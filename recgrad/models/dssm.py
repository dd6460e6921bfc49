"""DSSM: a tower for users and a tower for items, compared by their vectors.

Huang et al. 2013, https://doi.org/10.1145/2505515.2505665

    u = linear(mlp_u(user)),  v = linear(mlp_i(item)),  s = sim(u, v) / temperature

```
user group ──▶ MLP ──▶ linear ──▶ u [rows, dim] ───┐
                                                   ├──▶ s [rows, 1 + negatives] ──▶ logits
item group ──▶ MLP ──▶ linear ──▶ v of the row's item, and of negatives ──┘
```
How they are compared, and with which items: `recgrad.models.two_towers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from recgrad.data.batch import Batch
from recgrad.limits import Positive, Size
from recgrad.models.base import MODELS
from recgrad.models.batch_ids import PreparedBatch
from recgrad.models.inputs import Parts
from recgrad.models.multi_tower import TowerSettings
from recgrad.models.two_towers import TwoTowers, item_rows
from recgrad.nn.mlp import MLP


class Tower(nn.Sequential):
    """An MLP and a linear layer to the shared space (none when output_dim is 0)."""

    def __init__(self, in_features: int, output_dim: int, mlp: Mapping[str, Any] | None = None) -> None:
        hidden = MLP(in_features, **(mlp or {}))
        output = [nn.Linear(hidden.out_features, output_dim)] if output_dim > 0 else []
        super().__init__(hidden, *output)
        self.out_features = output_dim if output_dim > 0 else hidden.out_features


@MODELS.register("dssm")
class DSSM(TwoTowers):
    """Two towers; `user_embedding` and `item_embedding` run one of them alone."""

    def build(
        self,
        *,
        user_tower: TowerSettings,
        item_tower: TowerSettings,
        output_dim: Size = 0,
        similarity: Literal["COSINE", "INNER_PRODUCT", "EUCLID"] = "INNER_PRODUCT",
        temperature: Positive = 1.0,
        learned_temperature: bool = False,
        in_batch_negative: bool = False,
    ) -> None:
        """Make the layers.

        Args:
            user_tower: `input` (the user group) and `mlp` of the user tower.
            item_tower: `input` (the item group) and `mlp` of the item tower.
            output_dim: width of the vectors; 0 takes the MLPs' outputs as they are.
            similarity: COSINE, INNER_PRODUCT, or EUCLID (minus the distance).
            temperature: similarities are divided by it.
            learned_temperature: it is a parameter, and begins there.
            in_batch_negative: the items of other rows are the negatives.
        """
        self.build_comparison(
            output_dim=output_dim,
            similarity=similarity,
            temperature=temperature,
            learned_temperature=learned_temperature,
            in_batch_negative=in_batch_negative,
        )
        self.user_group, self.item_group = user_tower["input"], item_tower["input"]
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
        return self._embedding(batch, "user")

    def item_embedding(self, batch: Batch) -> Tensor:
        """v [rows, dim]; the batch needs the item group's features only."""
        return self._embedding(batch, "item")

    def _embedding(self, batch: Batch, tower: str) -> Tensor:
        return self.tower_vectors(tower, self.groups.gather(batch, self.engine, self.tower_groups[tower]))

    def tower_vectors(self, tower: str, parts: Parts) -> Tensor:
        """u or v, [rows, dim]."""
        inputs, _ = self.dropped(self.groups(parts))
        layers = self.user_tower if tower == "user" else self.item_tower
        return self.normed(layers(inputs[self.tower_groups[tower][0]]))

    def scores(self, parts: Parts) -> dict[str, Tensor]:
        """The similarity with the row's own item, [rows, 1]; other rows' items do not matter."""
        users, items = (self.tower_vectors(tower, parts) for tower in ("user", "item"))
        return {"logits": self._pairwise(users, items)[:, None]}

    def forward(self, batch: Batch, ids: PreparedBatch | None = None) -> dict[str, Tensor]:
        """Similarities as "logits" [rows, 1 + negatives], the row's own item first."""
        own, negatives = (None, None) if ids is None else (ids.ids, ids.negatives)
        parts = self.groups.gather(batch, self.engine, [self.user_group, self.item_group], ids=own)
        return self._dense_half(self.gather_items(batch, parts, [self.item_group], negatives))

    def dense_half(self, parts: Parts) -> dict[str, Tensor]:
        """Both towers and the similarities."""
        inputs, penalty = self.dropped(self.groups(parts))
        users = self.normed(self.user_tower(inputs[self.user_group]))
        negatives = None
        if parts.negatives is not None:
            more, _ = self.dropped(self.groups(parts.negatives))
            negatives = more[self.item_group]
        rows = item_rows(inputs[self.item_group], negatives, parts.comparison)
        items = self.normed(self.item_tower(rows.inputs))
        outputs = self.compare(users, rows.own(items), rows.negatives(items), parts.comparison)
        return outputs if penalty is None else {**outputs, "regularization": penalty}
