"""Models of a user's history that learn, at every position, which item comes next.

```
history [positions, width] ─▶ layers over positions ─▶ h [positions, dim] ──┐
                                                                            ├─▶ scores of what comes next
item group ─▶ item tower ─▶ v of the items that come next, and of others ───┘
```
A row is a history and the item after it. While training, position t of a history is compared with item t + 1,
and the last position with the row's own item, so a row of n events trains n times. Otherwise the last
position alone counts: it is the user's vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from recgrad.data.batch import Batch, Comparison, NextItems
from recgrad.errors import DataError
from recgrad.models.batch_ids import PreparedBatch
from recgrad.models.inputs import Inputs, Parts
from recgrad.models.two_towers import TwoTowers
from recgrad.nn.jagged import Segments
from recgrad.nn.jagged_rows import keep_last, last_positions
from recgrad.nn.mlp import MLP


class NextItemModel(TwoTowers):
    """Base of sasrec and hstu: a subclass writes `encode`."""

    def build_towers(
        self,
        *,
        input: str,
        item_tower: Mapping[str, Any],
        dim: int,
        max_seq_len: int,
        input_dropout: float,
        scale_input: bool,
        similarity: str,
        temperature: float,
        learned_temperature: bool,
    ) -> None:
        """Make what is around the layers.

        Args:
            input: the sequence group of the history.
            item_tower: `input` (the group of items) and `mlp`.
            dim: width of positions; 0 for that of the group.
            max_seq_len: the newest events that are looked at.
            input_dropout: share of inputs dropped.
            scale_input: multiply inputs by √dim.
            similarity: COSINE or INNER_PRODUCT.
            temperature: similarities are divided by it.
            learned_temperature: it is a parameter, and begins there.
        """
        if similarity == "EUCLID":
            raise ValueError("similarity must be COSINE or INNER_PRODUCT, got EUCLID")
        self.build_comparison(
            output_dim=0,
            similarity=similarity,
            temperature=temperature,
            learned_temperature=learned_temperature,
            in_batch_negative=False,
        )
        self.averages_candidates = True
        self.user_group, self.item_group = input, item_tower["input"]
        if self.groups.query_dim(input):
            raise ValueError(
                f"group '{input}' has features of rows; put them into the sequence, or leave them out"
            )
        width = self.groups.sequence_dim(input)
        self.dim = dim or width
        self.projection: nn.Module = nn.Linear(width, self.dim) if width != self.dim else nn.Identity()
        self.scale_of_input = self.dim**0.5 if scale_input else 1.0
        self.max_seq_len, self.input_dropout = max_seq_len, nn.Dropout(input_dropout)
        layers = MLP(self.groups.dim(self.item_group), **(item_tower.get("mlp") or {}))
        last = [nn.Linear(layers.out_features, self.dim)] if layers.out_features != self.dim else []
        self.item_tower = nn.Sequential(layers, *last)

    def encode(self, x: Tensor, segments: Segments, inputs: Inputs, kept: Tensor | None) -> Tensor:
        """h [positions, dim] of the last `max_seq_len` positions of each row.

        Args:
            x: [positions, dim].
            segments: which row each position belongs to.
            inputs: all groups; their positions are those before any was left out.
            kept: int64 [positions], which of those are left; None for all.
        """
        raise NotImplementedError

    @property
    def user_groups(self) -> tuple[str, ...]:
        """The groups of the user's tower."""
        return (self.user_group,)

    @property
    def tower_groups(self) -> dict[str, tuple[str, ...]]:
        """Histories, and items."""
        return {"user": self.user_groups, "item": (self.item_group,)}

    def embed(self, batch: Batch, tower: str) -> Tensor:
        """The last position of histories, or vectors of items."""
        groups = list(self.tower_groups[tower])
        return self.tower_vectors(tower, self.groups.gather(batch, self.engine, groups))

    def tower_vectors(self, tower: str, parts: Parts) -> Tensor:
        """The same, from the parts of the tower's groups."""
        inputs, _ = self.dropped(self.groups(parts))
        return self._users(inputs) if tower == "user" else self._items(inputs)

    def scores(self, parts: Parts) -> dict[str, Tensor]:
        """The similarity with the row's own item, [rows, 1]."""
        users, items = (self.tower_vectors(tower, parts) for tower in ("user", "item"))
        return {"logits": self._pairwise(users, items)[:, None]}

    def forward(self, batch: Batch, ids: PreparedBatch | None = None) -> dict[str, Tensor]:
        """While training, logits of all positions; else "logits" [rows, 1 + negatives]."""
        own_ids, negative_ids = (None, None) if ids is None else (ids.ids, ids.negatives)
        groups = [*self.user_groups, self.item_group]
        learns = self.training and batch.next_items is not None
        if learns:
            groups.remove(self.item_group)  # the rows' own items are among the negatives
        parts = self.groups.gather(batch, self.engine, groups, ids=own_ids)
        parts = self.gather_items(batch, parts, [self.item_group], negative_ids)
        if learns:
            own = batch.with_inputs_on(self.groups.device).next_items
            assert own is not None
            self._check_lengths(batch, own)
            parts = replace(parts, next_items=own)
        return self._dense_half(parts)

    def dense_half(self, parts: Parts) -> dict[str, Tensor]:
        """Both towers, and what positions or rows are compared with."""
        inputs, penalty = self.dropped(self.groups(parts))
        items = None
        if parts.negatives is not None:
            others, of_items = self.dropped(self.groups(parts.negatives))
            items, penalty = self._items(others), of_items if penalty is None else penalty
        outputs = self._outputs(inputs, items, parts)
        return outputs if penalty is None else {**outputs, "regularization": penalty}

    def _outputs(self, inputs: Inputs, items: Tensor | None, parts: Parts) -> dict[str, Tensor]:
        if parts.next_items is not None:
            assert items is not None
            return self._compare_positions(inputs, items, parts.next_items)
        users = self._users(inputs)
        places = None if parts.comparison is None else parts.comparison.own
        own = self._items(inputs) if items is None or places is None else items[places]
        return self.compare(users, own, items, parts.comparison)

    def positions(self, inputs: Inputs, known: NextItems | None) -> tuple[Tensor, Tensor | None, Segments]:
        """Vectors of positions, of each the place of the item that it is to tell, and their rows.

        Args:
            inputs: of the user's groups.
            known: the items of events; None when not training.
        """
        x, segments, kept = self._cut(inputs)
        h = self.encode(x, segments, inputs, kept)
        own = None if known is None else known.items.index_select(0, events_from_end(segments, known))
        return h, own, segments

    def _compare_positions(self, inputs: Inputs, items: Tensor, known: NextItems) -> dict[str, Tensor]:
        h, own, segments = self.positions(inputs, known)
        assert own is not None
        users = self.normed(h)
        if known.drawn == 0:
            comparison = Comparison(_own_pairs(own, self.over_vectors), own=own)
            outputs = self.compare(users, items.index_select(0, own), items, comparison)
        else:
            comparison = Comparison(_same_pairs(known, own, items.shape[0]), known.log_counts)
            targets = items[: known.drawn].index_select(0, own)
            outputs = self.compare(users, targets, items[known.drawn :], comparison)
        return {**outputs, "rows": segments.rows}

    def _cut(self, inputs: Inputs) -> tuple[Tensor, Segments, Tensor | None]:
        """Inputs of the newest positions, their rows, and which positions they are; None for all."""
        given = inputs.sequences[self.user_group]
        segments = Segments.from_lengths(given.lengths, given.sequence.shape[0])
        values, segments, kept = keep_last(given.sequence, segments, self.max_seq_len)
        return self.projection(values) * self.scale_of_input, segments, kept

    def _users(self, inputs: Inputs) -> Tensor:
        """The last position of each row; 0 where the history is empty."""
        h, _, segments = self.positions(inputs, None)
        return self.normed(last_positions(h, segments))

    def _items(self, inputs: Inputs) -> Tensor:
        return self.normed(self.item_tower(inputs[self.item_group]))

    def _check_lengths(self, batch: Batch, known: NextItems) -> None:
        """Refuse histories whose encoded positions are not their items."""
        lengths = self.groups.lengths(batch, self.user_group).long()
        # An empty history may be one position of a default value.
        wrong = (lengths != known.lengths) & ((known.lengths > 0) | (lengths > 1))
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise DataError(
                f"group {self.user_group}: a history has {int(known.lengths[row])} items and "
                f"{int(lengths[row])} positions; next_item_sampler.history_field must be the column of this "
                "group's sequence, without sequence_length and without nulls"
            )


def events_from_end(segments: Segments, known: NextItems) -> Tensor:
    """int64 [positions]: counted from a row's end, the event that each position stands at.

    Rows have one event more than items of their history, so that where positions are those of the
    history the event after each is found; where one is behind it, the event itself.
    """
    ends = (known.lengths + 1).cumsum(0).index_select(0, segments.rows)
    return ends - segments.lengths.index_select(0, segments.rows) + segments.places()


def _own_pairs(own: Tensor, over_vectors: bool) -> Tensor:
    """(position, own item), which is not compared with itself; losses over vectors need no such pairs."""
    if over_vectors:
        return own.new_zeros(0, 2)
    return torch.stack([torch.arange(own.shape[0], device=own.device), own], dim=1)


def _same_pairs(known: NextItems, own: Tensor, items: int) -> Tensor:
    """(position, draw) of draws that are the position's own item."""
    assert known.same is not None
    if not known.same.shape[0]:
        return own.new_zeros(0, 2)
    same = torch.zeros(known.drawn, items - known.drawn, dtype=torch.bool, device=own.device)
    same[known.same[:, 0], known.same[:, 1]] = True
    some = same.any(1).index_select(0, own).nonzero().squeeze(1)
    pairs = same.index_select(0, own.index_select(0, some)).nonzero()
    return torch.stack([some.index_select(0, pairs[:, 0]), pairs[:, 1]], dim=1)
