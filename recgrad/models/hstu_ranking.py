"""What dlrm_hstu and ultra_hstu share: HSTUs over histories and candidates, one tower for all tasks.

```
history, candidates, context ─▶ HSTU (each channel) ─▶ candidates [Σ T, D] ─┐
candidates ─▶ LN(W₂·swishLN(W₁·x)) ─────────────────▶ items [Σ T, D] ───────┴─▶ ∘ ─▶ MLP ─▶ linear ─▶ tasks
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from recgrad.data.batch import Batch
from recgrad.data.features.spec import FeatureSpec
from recgrad.models.base import Model
from recgrad.models.batch_ids import PreparedBatch
from recgrad.models.group_needs import GroupNeeds, GroupType
from recgrad.models.group_plan import FeatureGroup
from recgrad.models.hstu_inputs import (
    CONTEXTUAL,
    HISTORY,
    EventGroups,
    contextual_shape,
    contextual_values,
    rows_of,
)
from recgrad.models.inputs import Inputs
from recgrad.nn.jagged_rows import reverse_rows
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.stu.contextual import SimpleMLP, xavier_linear
from recgrad.nn.stu.inputs import HSTUInput
from recgrad.nn.stu.stack import HSTU

CANDIDATES = EventGroups("candidate", "candidate_timestamp")


class FusionTowerSettings(TypedDict, total=False):
    """The tower of all tasks."""

    mlp: MLPSettings
    task_configs: Sequence[Mapping[str, Any]]


class HSTURanking(Model):
    """Ranks the candidates of a row by histories; subclasses say which channels there are."""

    lists: ClassVar[bool] = True

    @property
    def list_group(self) -> str | None:
        """Every candidate has a prediction."""
        return CANDIDATES.values

    @property
    def equal_lengths(self) -> list[tuple[str, ...]]:
        """Events have times, and what else is known of them."""
        return [events.names for events in (*self.histories, CANDIDATES)]

    @classmethod
    def channels(cls, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """The settings of each HSTU."""
        raise NotImplementedError

    @classmethod
    def needs(cls, settings: Mapping[str, Any]) -> GroupNeeds:
        """Context, candidates, and the history of each channel."""
        needed: dict[str, GroupType] = {CONTEXTUAL: "ROWS", **CANDIDATES.needs()}
        optional: dict[str, GroupType] = {}
        for given in cls.channels(settings):
            prefix = given.get("name") or HISTORY
            needed |= EventGroups.of_history(given, prefix).needs()
            optional |= {f"{prefix}_action": "SEQUENCE", f"{prefix}_watchtime": "SEQUENCE"}
        return GroupNeeds(needed, {name: kind for name, kind in optional.items() if name not in needed})

    def planned(
        self, groups: Sequence[FeatureGroup], features: Sequence[FeatureSpec]
    ) -> Sequence[FeatureGroup]:
        """Contextual features are those of rows, also in a SEQUENCE group."""
        return list(rows_of(groups, features))

    def build_ranking(
        self,
        channels: Sequence[Mapping[str, Any]],
        *,
        fusion_mtl_tower: Mapping[str, Any],
        max_seq_len: int,
        item_embedding_hidden_dim: int,
        enable_global_average_loss: bool,
        sequence_timestamp_is_ascending: bool,
        concat_contextual_features: bool,
    ) -> None:
        """Make the layers.

        Args:
            channels: settings of each HSTU.
            fusion_mtl_tower: `mlp` of the tower; its tasks are the model's.
            max_seq_len: the divisor of attention.
            item_embedding_hidden_dim: width of the hidden layer of the item side.
            enable_global_average_loss: every candidate of all ranks weighs the same.
            sequence_timestamp_is_ascending: the oldest event comes first.
            concat_contextual_features: the features of a row are one token, not one each.
        """
        self.averages_candidates = enable_global_average_loss
        self.ascending = sequence_timestamp_is_ascending
        self.histories = [EventGroups.of_history(given, given.get("name") or HISTORY) for given in channels]
        for events in (*self.histories, CANDIDATES):
            events.take(self.groups)
        contextual = contextual_shape(self.groups, joined=concat_contextual_features)
        candidate_dim = self.groups.sequence_dim(CANDIDATES.values)
        stacks = [
            HSTU(
                max_seq_len=max_seq_len,
                contextual=contextual,
                history_dim=self.groups.sequence_dim(events.values),
                candidate_dim=candidate_dim,
                **given,
            )
            for given, events in zip(channels, self.histories, strict=True)
        ]
        self.hstu = nn.ModuleList(stacks)
        dim = sum(stack.dim for stack in stacks)
        self.items = SimpleMLP(candidate_dim, dim, 0, hidden_dim=item_embedding_hidden_dim)
        self.fusion = MLP(dim, **(fusion_mtl_tower.get("mlp") or {}))
        self.widths = [task.num_logits for task in self.tasks]
        self.output = xavier_linear(self.fusion.out_features, sum(self.widths))

    def forward(self, batch: Batch, ids: PreparedBatch | None = None) -> dict[str, Tensor]:
        """The logits of each candidate, its row as "rows", and the candidates of each row as "lengths"."""
        for events in (*self.histories, CANDIDATES):
            events.check_lengths(self.groups, batch)
        return super().forward(batch, ids)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The same, from the groups' inputs."""
        candidates = CANDIDATES.events(inputs)
        segments = candidates.segments
        given = HSTUInput(
            self.histories[0].events(inputs),
            candidates if self.ascending else candidates.reversed(),
            contextual_values(inputs),
        )
        users = []
        for events, channel in zip(self.histories, self.hstu, strict=True):
            history = events.events(inputs)
            own = replace(given, history=history if self.ascending else history.reversed())
            users.append(channel(own).values)
        user = torch.cat(users, dim=1)
        if not self.ascending:
            user = reverse_rows(user, segments)
        fused = self.fusion(user * self.items(candidates.values, segments, None))
        outputs: dict[str, Tensor] = {}
        for task, logits in zip(self.tasks, self.output(fused).split(self.widths, dim=1), strict=True):
            outputs.update(self.head(logits, task))
        return {**outputs, "rows": segments.rows, "lengths": segments.lengths}
