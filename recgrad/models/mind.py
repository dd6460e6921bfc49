"""MIND: several vectors for each user, by capsules over the history.

Li et al. 2019, https://arxiv.org/abs/1904.08030

    z_1 … z_k = capsules(history),  u_k = linear(mlp([user, z_k])),  u = Σ softmax_k(p · ⟨u_k, v⁺⟩) · u_k
    s = sim(u, v) / temperature

```
user group ──▶ MLP ────────────┐
history ──▶ MLP ──▶ capsules ──┴─▶ MLP ──▶ linear ──▶ u_k [rows, k, dim] ──▶ attention by v⁺ ──▶ u ──┐
item group ──▶ MLP ──▶ linear ──▶ v of the row's item, and of negatives ─────────────────────────────┴──▶ s
```
The attention takes mostly the interest that is nearest to the row's own item, v⁺. A user to be served has
all its interests (`embed`), and the largest of their similarities counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from recgrad.data.batch import Batch
from recgrad.limits import Positive, Size
from recgrad.models.base import MODELS
from recgrad.models.batch_ids import PreparedBatch
from recgrad.models.dssm import Tower
from recgrad.models.group_needs import DeepInput, SequenceInput
from recgrad.models.inputs import Inputs, Parts
from recgrad.models.multi_tower import TowerSettings
from recgrad.models.two_towers import TwoTowers, item_rows
from recgrad.nn.capsule import B2ICapsule
from recgrad.nn.mlp import MLP, MLPSettings


class InterestTowerSettings(TypedDict, total=False):
    """A tower over the user and the user's history."""

    input: DeepInput
    history_input: SequenceInput
    user_mlp: MLPSettings
    hist_seq_mlp: MLPSettings
    concat_mlp: MLPSettings
    capsule_config: Mapping[str, Any]


@MODELS.register("mind")
class MIND(TwoTowers):
    """A user tower of several interests, and an item tower."""

    def build(
        self,
        *,
        user_tower: InterestTowerSettings,
        item_tower: TowerSettings,
        simi_pow: float = 10.0,
        similarity: Literal["COSINE", "INNER_PRODUCT", "EUCLID"] = "COSINE",
        in_batch_negative: bool = False,
        temperature: Positive = 1.0,
        learned_temperature: bool = False,
        output_dim: Size = 0,
    ) -> None:
        """Make the layers.

        Args:
            user_tower: `input` (the user group), `history_input` (a SEQUENCE group), `user_mlp`,
                `hist_seq_mlp`, `capsule_config` and `concat_mlp`.
            item_tower: `input` (the item group) and `mlp`.
            simi_pow: how much more the interest nearest to the item counts.
            similarity: COSINE, INNER_PRODUCT, or EUCLID (minus the distance).
            in_batch_negative: the items of other rows are the negatives.
            temperature: similarities are divided by it.
            learned_temperature: it is a parameter, and begins there.
            output_dim: width of the vectors.
        """
        self.build_comparison(
            output_dim=output_dim,
            similarity=similarity,
            temperature=temperature,
            learned_temperature=learned_temperature,
            in_batch_negative=in_batch_negative,
        )
        if output_dim < 1:
            raise ValueError(f"output_dim must be at least 1, got {output_dim}")
        self.simi_pow = simi_pow
        self.user_group, self.item_group = user_tower["input"], item_tower["input"]
        self.history_group = user_tower["history_input"]
        self.user_mlp, user_dim = ending_linear(self.groups.dim(self.user_group), user_tower["user_mlp"])
        width = self.groups.sequence_dim(self.history_group)
        self.hist_seq_mlp: nn.Module = nn.Identity()
        if user_tower.get("hist_seq_mlp"):
            self.hist_seq_mlp, width = ending_linear(width, user_tower["hist_seq_mlp"], bias=False)
        self.capsules = B2ICapsule(width, **user_tower["capsule_config"])
        high_dim = self.capsules.bilinear.shape[1]
        self.concat_mlp = MLP(user_dim + high_dim, **user_tower["concat_mlp"])
        self.user_output = nn.Linear(self.concat_mlp.out_features, output_dim, bias=False)
        self.item_tower = Tower(self.groups.dim(self.item_group), output_dim, item_tower.get("mlp"))

    @property
    def tower_groups(self) -> dict[str, tuple[str, ...]]:
        """The groups of each tower."""
        return {"user": (self.user_group, self.history_group), "item": (self.item_group,)}

    def tower_vectors(self, tower: str, parts: Parts) -> Tensor:
        """Items have [rows, dim], users [rows, interests, dim], zeros for interests that a user has not."""
        inputs, _ = self.dropped(self.groups(parts))
        if tower == "user":
            return self._interests(inputs)[0]
        return self.normed(self.item_tower(inputs[self.item_group]))

    def _interests(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The vectors of each user's interests, and which there are."""
        users = self.user_mlp(inputs[self.user_group])
        history = inputs.sequences[self.history_group]
        capsules, valid = self.capsules(self.hist_seq_mlp(history.sequence), history.lengths)
        mask = valid[..., None]
        repeated = users[:, None, :].expand(-1, capsules.shape[1], -1)
        hidden = self.concat_mlp(torch.cat([repeated, capsules], dim=2) * mask) * mask
        return self.normed(self.user_output(hidden)) * mask, valid

    def forward(self, batch: Batch, ids: PreparedBatch | None = None) -> dict[str, Tensor]:
        """Similarities as "logits" [rows, 1 + negatives], the row's own item first."""
        own, negatives = (None, None) if ids is None else (ids.ids, ids.negatives)
        groups = [self.user_group, self.history_group, self.item_group]
        parts = self.groups.gather(batch, self.engine, groups, ids=own)
        return self._dense_half(self.gather_items(batch, parts, [self.item_group], negatives))

    def dense_half(self, parts: Parts) -> dict[str, Tensor]:
        """Both towers, the attention over interests, and the similarities."""
        inputs, penalty = self.dropped(self.groups(parts))
        negatives = None
        if parts.negatives is not None:
            more, _ = self.dropped(self.groups(parts.negatives))
            negatives = more[self.item_group]
        rows = item_rows(inputs[self.item_group], negatives, parts.comparison)
        items = self.normed(self.item_tower(rows.inputs))
        own = rows.own(items)
        interests, valid = self._interests(inputs)
        scores = self.simi_pow * (interests * own[:, None, :]).sum(2)
        attention = scores.masked_fill(~valid, -torch.inf).softmax(dim=1)
        users = (attention[..., None] * interests).sum(1)
        outputs = self.compare(users, own, rows.negatives(items), parts.comparison)
        return outputs if penalty is None else {**outputs, "regularization": penalty}


def ending_linear(in_features: int, mlp: Mapping[str, Any], *, bias: bool = True) -> tuple[nn.Module, int]:
    """An MLP whose last layer is linear, without activation, norm or dropout; and its width."""
    *hidden, last = mlp["hidden_units"]
    rest = {key: value for key, value in mlp.items() if key not in ("hidden_units", "dropout_ratio", "bias")}
    ratios = mlp.get("dropout_ratio") or ()
    ratio = ratios if isinstance(ratios, (int, float)) else list(ratios)[:1]
    body = MLP(in_features, hidden, dropout_ratio=ratio, bias=bias, **rest)
    return nn.Sequential(body, nn.Linear(body.out_features, last, bias=bias)), last
