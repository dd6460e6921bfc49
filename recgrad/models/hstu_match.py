"""HSTU for retrieval: the last token of an HSTU over the history is the user's vector.

Zhai et al. 2024, https://arxiv.org/abs/2402.17152

    u = linear(last token of hstu([context | history])),  v = linear(mlp(item)),  s = sim(u, v) / temperature

```
contextual, history ──▶ HSTU ──▶ last token ──▶ linear ──▶ u [rows, dim] ───┐
                                                                            ├──▶ s [own items, 1 + negatives]
item group ──▶ MLP ──▶ linear ──▶ v of the row's items, and of negatives ───┘
```
The item group is DEEP, with one item a row, or JAGGED_SEQUENCE, with any number of items that the user took
next: each of them is compared with the negatives. `hstu` learns at every position; this model, as the schema
has it, at the last alone. How vectors are compared, and with which items: `recgrad.models.two_towers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.data.batch import Batch, Comparison
from recgrad.data.features.spec import FeatureSpec
from recgrad.errors import DataError
from recgrad.limits import Count, Positive, Size
from recgrad.models.base import MODELS
from recgrad.models.batch_ids import PreparedBatch
from recgrad.models.dssm import Tower
from recgrad.models.group_needs import GroupNeeds, GroupType
from recgrad.models.group_plan import FeatureGroup
from recgrad.models.hstu_inputs import CONTEXTUAL, EventGroups, contextual_shape, contextual_values, rows_of
from recgrad.models.inputs import Inputs, Parts
from recgrad.models.multi_tower import TowerSettings
from recgrad.models.two_towers import TwoTowers
from recgrad.nn.jagged import Segments
from recgrad.nn.stu.inputs import HSTUInput
from recgrad.nn.stu.stack import HSTU

QUERY_TIME = "query_time"


class HistoryTowerSettings(TypedDict, total=False):
    """A tower over the user's history."""

    input: str
    hstu: Mapping[str, Any]
    max_seq_len: Count


@MODELS.register("hstu_match")
class HSTUMatch(TwoTowers):
    """A user tower over the history, and an item tower."""

    @classmethod
    def needs(cls, settings: Mapping[str, Any]) -> GroupNeeds:
        """The history, the items, and what is known of the row."""
        user, item = settings.get("user_tower") or {}, settings.get("item_tower") or {}
        history = _history(user)
        needed: dict[str, GroupType] = {**history.needs(), item.get("input", ""): "ANY"}
        more: dict[str, GroupType] = {CONTEXTUAL: "ROWS", QUERY_TIME: "DEEP"}
        more |= {f"{history.values}_{name}": "SEQUENCE" for name in ("action", "watchtime")}
        return GroupNeeds(needed, {name: kind for name, kind in more.items() if name not in needed})

    def planned(
        self, groups: Sequence[FeatureGroup], features: Sequence[FeatureSpec]
    ) -> Sequence[FeatureGroup]:
        """Contextual features are those of rows, also in a SEQUENCE group."""
        return list(rows_of(groups, features))

    def build(
        self,
        *,
        user_tower: HistoryTowerSettings,
        item_tower: TowerSettings,
        output_dim: Size = 0,
        similarity: Literal["COSINE", "INNER_PRODUCT", "EUCLID"] = "INNER_PRODUCT",
        temperature: Positive = 1.0,
        in_batch_negative: bool = False,
        sequence_timestamp_is_ascending: bool = True,
    ) -> None:
        """Make the layers.

        Args:
            user_tower: `input` (the history, a sequence group), `hstu` (see `recgrad.nn.stu.stack.HSTU`) and
                `max_seq_len`, the divisor of attention.
            item_tower: `input` (the item group) and `mlp`.
            output_dim: width of the vectors; 0 takes the towers' outputs as they are.
            similarity: COSINE, INNER_PRODUCT, or EUCLID (minus the distance).
            temperature: similarities are divided by it.
            in_batch_negative: not for this model: use a sampler.
            sequence_timestamp_is_ascending: the oldest event comes first.
        """
        if in_batch_negative:
            raise ValueError("in_batch_negative is not for hstu_match; leave it out, and set a sampler")
        self.build_comparison(
            output_dim=output_dim,
            similarity=similarity,
            temperature=temperature,
            learned_temperature=False,
            in_batch_negative=False,
        )
        self.averages_candidates = True
        self.ascending = sequence_timestamp_is_ascending
        self.history, self.item_group = _history(user_tower), item_tower["input"]
        self.history.take(self.groups)
        if QUERY_TIME in self.groups:
            self.groups.take_times(QUERY_TIME)
        self.several = self.item_group in self.groups.plan.sequences
        self.hstu = HSTU(
            max_seq_len=user_tower["max_seq_len"],
            contextual=contextual_shape(self.groups, joined=False),
            history_dim=self.groups.sequence_dim(self.history.values),
            **user_tower["hstu"],
        )
        width = (
            self.groups.sequence_dim(self.item_group) if self.several else self.groups.dim(self.item_group)
        )
        dim = self.hstu.dim
        self.user_output: nn.Module = nn.Linear(dim, output_dim) if output_dim else nn.Identity()
        self.item_tower = Tower(width, output_dim, item_tower.get("mlp"))
        if (output_dim or dim) != self.item_tower.out_features:
            raise ValueError(
                "towers must end equally wide when output_dim is 0, got "
                f"{dim} (user_tower.hstu.stu.embedding_dim) and {self.item_tower.out_features} (item_tower)"
            )

    @property
    def predicts_lists(self) -> bool:
        """Where rows have several items."""
        return self.several

    @property
    def list_group(self) -> str | None:
        """The item group, where rows have several items."""
        return self.item_group if self.several else None

    @property
    def equal_lengths(self) -> list[tuple[str, ...]]:
        """Events have times, and what else is known of them."""
        return [self.history.names]

    @property
    def user_groups(self) -> tuple[str, ...]:
        """The groups of the user's tower."""
        more = tuple(name for name in (CONTEXTUAL, QUERY_TIME) if name in self.groups)
        return (*self.history.names, *more)

    @property
    def tower_groups(self) -> dict[str, tuple[str, ...]]:
        """Histories, and items."""
        return {"user": self.user_groups, "item": (self.item_group,)}

    def normed(self, x: Tensor) -> Tensor:
        """Vectors of length 1 for COSINE, as they are otherwise."""
        return F.normalize(x, dim=-1, eps=1e-6) if self.similarity == "COSINE" else x

    def embed(self, batch: Batch, tower: str) -> Tensor:
        """u or v; an item is a row of its own."""
        if tower == "item" and self.several:
            lengths = self.groups.lengths(batch, self.item_group)
            if (wrong := (lengths != 1).nonzero()).numel():
                row = int(wrong[0])
                what = f"row {row} has {int(lengths[row])} items"
                raise DataError(f"group {self.item_group}: {what}; write one a row for the item tower")
        return super().embed(batch, tower)

    def tower_vectors(self, tower: str, parts: Parts) -> Tensor:
        """u or v, [rows, dim]; a row of the item tower has one item."""
        inputs, _ = self.dropped(self.groups(parts))
        return self._users(inputs) if tower == "user" else self._items(inputs)

    def scores(self, parts: Parts) -> dict[str, Tensor]:
        """The similarity with each of the row's own items, [own items, 1]."""
        inputs, _ = self.dropped(self.groups(parts))
        users, own = self._users(inputs), self._items(inputs)
        segments = self._own(inputs)
        if segments is not None:
            users = users.index_select(0, segments.inside())
        return {"logits": self._pairwise(users, own)[:, None], **_told(segments)}

    def forward(self, batch: Batch, ids: PreparedBatch | None = None) -> dict[str, Tensor]:
        """Similarities as "logits" [own items, 1 + negatives], the own item first."""
        self.history.check_lengths(self.groups, batch)
        own, negatives = (None, None) if ids is None else (ids.ids, ids.negatives)
        groups = [*self.user_groups, self.item_group]
        parts = self.groups.gather(batch, self.engine, groups, ids=own)
        return self._dense_half(self.gather_items(batch, parts, [self.item_group], negatives))

    def dense_half(self, parts: Parts) -> dict[str, Tensor]:
        """Both towers and the similarities."""
        inputs, penalty = self.dropped(self.groups(parts))
        users, items = self._users(inputs), None
        if parts.negatives is not None:
            others, _ = self.dropped(self.groups(parts.negatives))
            items = self._items(others)
        outputs = self._compared(users, items, inputs, parts.comparison)
        return outputs if penalty is None else {**outputs, "regularization": penalty}

    def _compared(
        self, users: Tensor, items: Tensor | None, inputs: Inputs, comparison: Comparison | None
    ) -> dict[str, Tensor]:
        if items is not None and comparison is not None and comparison.own is not None:
            # The whole catalogue, in which the rows' own items are.
            return self.compare(users, items.index_select(0, comparison.own), items, comparison)
        own, segments = self._items(inputs), self._own(inputs)
        if segments is None:
            return self.compare(users, own, items, comparison)
        if comparison is not None and items is not None:
            comparison, items = _of_own_items(comparison, items, segments)
        users = users.index_select(0, segments.rows)
        return {**self.compare(users, own, items, comparison), **_told(segments)}

    def _users(self, inputs: Inputs) -> Tensor:
        """The last token of each row; 0 where it has none."""
        history = self.history.events(inputs)
        given = HSTUInput(
            history if self.ascending else history.reversed(),
            None,
            contextual_values(inputs),
            inputs.times.get(QUERY_TIME),
        )
        return self.normed(self.user_output(self.hstu(given).last()))

    def _items(self, inputs: Inputs) -> Tensor:
        """Vectors of items, one after another."""
        values = inputs.sequences[self.item_group].sequence if self.several else inputs[self.item_group]
        return self.normed(self.item_tower(values))

    def _own(self, inputs: Inputs) -> Segments | None:
        """Which row each own item belongs to; None where every row has one."""
        if not self.several:
            return None
        given = inputs.sequences[self.item_group]
        return Segments.from_lengths(given.lengths, given.sequence.shape[0])


def _history(user_tower: Mapping[str, Any]) -> EventGroups:
    return EventGroups.of_history(user_tower.get("hstu") or {}, user_tower.get("input", ""))


def _told(segments: Segments | None) -> dict[str, Tensor]:
    """The row of each own item, and how many each row has, for losses and predictions."""
    return {} if segments is None else {"rows": segments.rows, "lengths": segments.lengths}


def _of_own_items(comparison: Comparison, items: Tensor, own: Segments) -> tuple[Comparison, Tensor]:
    """What rows are compared with as what each of their own items is, hard items once for each of these."""
    pairs, places = _repeated(comparison.excluded[:, 0], own)
    excluded = torch.stack([places, comparison.excluded[:, 1].index_select(0, pairs)], dim=1)
    if comparison.hard_rows is None:
        return replace(comparison, excluded=excluded), items
    shared = items.shape[0] - comparison.hard_rows.shape[0]
    pairs, places = _repeated(comparison.hard_rows, own)
    order = torch.argsort(places, stable=True)
    hard = items[shared:].index_select(0, pairs.index_select(0, order))
    changed = replace(comparison, excluded=excluded, hard_rows=places.index_select(0, order))
    return changed, torch.cat([items[:shared], hard])


def _repeated(rows: Tensor, own: Segments) -> tuple[Tensor, Tensor]:
    """Each entry of `rows` once for each own item of its row: which entry, and which own item."""
    counts = own.lengths.index_select(0, rows)
    every = Segments.from_lengths(counts, int(counts.sum()))
    begins = own.offsets.index_select(0, rows)
    return every.rows, begins.index_select(0, every.rows) + every.places()
