"""DAT: two towers that also see a vector which imitates what the other side likes.

Yu et al. 2021, https://dlp-kdd.github.io/assets/pdf/DLP-KDD_2021_paper_4.pdf

    u = linear(mlp_u([user, a_u])),  v = linear(mlp_i([item, a_i])),  s = sim(u, v) / temperature
    loss += w_u · Σ ‖a_u / ‖a_u‖ − v‖² + w_i · Σ ‖a_i / ‖a_i‖ − u‖²     over the rows, u and v as constants

```
user group ─┬─▶ MLP ─▶ linear ─▶ u ─┐
a_u ────────┘                       ├──▶ s, as in dssm
item group ─┬─▶ MLP ─▶ linear ─▶ v ─┘
a_i ────────┘
```
Augmented vectors a are groups of their own, as wide as u and v; each learns to imitate the vectors of the
other tower in positive pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from recgrad.data.batch import Batch
from recgrad.limits import Positive, Size
from recgrad.models.base import MODELS
from recgrad.models.batch_ids import PreparedBatch
from recgrad.models.dssm import Tower
from recgrad.models.group_needs import DeepInput
from recgrad.models.inputs import Inputs, Parts
from recgrad.models.multi_tower import TowerSettings
from recgrad.models.two_towers import TwoTowers, item_rows


class DATTowerSettings(TowerSettings, total=False):
    """A tower over a group and the one that augments it."""

    augment_input: DeepInput


@MODELS.register("dat")
class DAT(TwoTowers):
    """Two towers with augmented vectors."""

    def build(
        self,
        *,
        user_tower: DATTowerSettings,
        item_tower: DATTowerSettings,
        output_dim: Size = 0,
        similarity: Literal["COSINE", "INNER_PRODUCT", "EUCLID"] = "INNER_PRODUCT",
        temperature: Positive = 1.0,
        learned_temperature: bool = False,
        in_batch_negative: bool = False,
        amm_i_weight: float = 0.5,
        amm_u_weight: float = 0.5,
    ) -> None:
        """Make the layers.

        Args:
            user_tower: `input`, `augment_input` (groups) and `mlp` of the user tower.
            item_tower: the same of the item tower.
            output_dim: width of the vectors; 0 takes the MLPs' outputs as they are.
            similarity: COSINE, INNER_PRODUCT, or EUCLID (minus the distance).
            temperature: similarities are divided by it.
            learned_temperature: it is a parameter, and begins there.
            in_batch_negative: the items of other rows are the negatives.
            amm_i_weight: of the loss of items' augmented vectors.
            amm_u_weight: of the loss of users' augmented vectors.
        """
        self.build_comparison(
            output_dim=output_dim,
            similarity=similarity,
            temperature=temperature,
            learned_temperature=learned_temperature,
            in_batch_negative=in_batch_negative,
        )
        self.user_groups = (user_tower["input"], user_tower["augment_input"])
        self.item_groups = (item_tower["input"], item_tower["augment_input"])
        self.amm_weights = {"amm_loss_u": amm_u_weight, "amm_loss_i": amm_i_weight}
        self.user_tower = self._tower(self.user_groups, output_dim, user_tower.get("mlp"))
        self.item_tower = self._tower(self.item_groups, output_dim, item_tower.get("mlp"))
        if self.user_tower.out_features != self.item_tower.out_features:
            raise ValueError(
                "towers must end equally wide when output_dim is 0, got "
                f"{self.user_tower.out_features} and {self.item_tower.out_features}"
            )
        for side, groups in (("user_tower", self.user_groups), ("item_tower", self.item_groups)):
            if self.groups.dim(groups[1]) != self.user_tower.out_features:
                raise ValueError(
                    f"{side}.augment_input must be as wide as the vectors, {self.user_tower.out_features}, "
                    f"got group '{groups[1]}' of width {self.groups.dim(groups[1])}"
                )

    def _tower(self, groups: tuple[str, str], output_dim: int, mlp: Mapping[str, Any] | None) -> Tower:
        return Tower(sum(map(self.groups.dim, groups)), output_dim, mlp)

    @property
    def tower_groups(self) -> dict[str, tuple[str, ...]]:
        """The groups of each tower."""
        return {"user": self.user_groups, "item": self.item_groups}

    def tower_vectors(self, tower: str, parts: Parts) -> Tensor:
        """Vectors of one tower, [rows, dim]."""
        inputs, _ = self.dropped(self.groups(parts))
        layers = self.user_tower if tower == "user" else self.item_tower
        return self.normed(layers(_joined(inputs, self.tower_groups[tower])))

    def forward(self, batch: Batch, ids: PreparedBatch | None = None) -> dict[str, Tensor]:
        """Similarities as "logits" [rows, 1 + negatives], the row's own item first."""
        own, negatives = (None, None) if ids is None else (ids.ids, ids.negatives)
        groups = [*self.user_groups, *self.item_groups]
        parts = self.groups.gather(batch, self.engine, groups, ids=own)
        return self._dense_half(self.gather_items(batch, parts, list(self.item_groups), negatives))

    def dense_half(self, parts: Parts) -> dict[str, Tensor]:
        """Both towers, the similarities, and while training the distances of the augmented vectors."""
        inputs, penalty = self.dropped(self.groups(parts))
        users = self.normed(self.user_tower(_joined(inputs, self.user_groups)))
        negatives = None
        if parts.negatives is not None:
            more, _ = self.dropped(self.groups(parts.negatives))
            negatives = _joined(more, self.item_groups)
        rows = item_rows(_joined(inputs, self.item_groups), negatives, parts.comparison)
        items = self.normed(self.item_tower(rows.inputs))
        own = rows.own(items)
        outputs = self.compare(users, own, rows.negatives(items), parts.comparison)
        if self.training:
            width = users.shape[1]
            user_augment, item_augment = inputs[self.user_groups[1]], rows.own(rows.inputs)[:, -width:]
            outputs["amm_loss_u"] = _distance(user_augment, own)
            outputs["amm_loss_i"] = _distance(item_augment, users)
        return outputs if penalty is None else {**outputs, "regularization": penalty}

    def row_losses(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The distances of the augmented vectors, weighted, [rows] each."""
        return {name: w * outputs[name] for name, w in self.amm_weights.items() if name in outputs}


def _joined(inputs: Inputs, groups: tuple[str, ...]) -> Tensor:
    return torch.cat([inputs[group] for group in groups], dim=1)


def _distance(augment: Tensor, vectors: Tensor) -> Tensor:
    """‖a / ‖a‖ − vector‖² of each row, the vectors as constants."""
    return (F.normalize(augment, dim=1) - vectors.detach()).square().sum(1)
