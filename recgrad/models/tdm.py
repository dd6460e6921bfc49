"""TDM: scores a user with a node of an item tree, which is searched from the root.

Zhu et al. 2018, https://arxiv.org/abs/1801.02294

```
SEQUENCE group (query = node) ──▶ multi-window DIN ──┬──▶ MLP ──▶ linear ──▶ logits
DEEP groups ─────────────────────────────────────────┘
```
`tdm_sampler` makes its training rows: the ancestors of a row's item, and other nodes of each level.

Users have no vectors; the vector of an item is the query, from which the next tree is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from recgrad.data.batch import Batch
from recgrad.errors import ConfigError
from recgrad.models.base import MODELS, Model
from recgrad.models.inputs import Inputs, Parts
from recgrad.nn.encoders.multi_window_din import MultiWindowDINEncoder
from recgrad.nn.mlp import MLP, MLPSettings
from recgrad.nn.output_layer import OutputLayer


@MODELS.register("tdm")
class TDM(Model):
    """Attention of a node over windows of the history, then an MLP."""

    def build(self, *, multiwindow_din: Mapping[str, Any], final: MLPSettings) -> None:
        """Make the layers.

        Args:
            multiwindow_din: `windows_len` and `attn_mlp`.
            final: arguments of the MLP over the attention's output and the DEEP groups.
        """
        sequences = list(self.groups.plan.sequences)
        if len(sequences) != 1:
            raise ConfigError(
                f"model_config.feature_groups: tdm takes one SEQUENCE group, got {len(sequences)} "
                f"({', '.join(sequences) or 'none'})"
            )
        self.sequence_group = sequences[0]
        self.row_groups = list(self.groups.plan.rows)
        self.attention = MultiWindowDINEncoder(
            self.groups.query_dim(self.sequence_group),
            self.groups.sequence_dim(self.sequence_group),
            **multiwindow_din,
        )
        width = self.attention.out_features + sum(map(self.groups.dim, self.row_groups))
        self.final = MLP(width, **final)
        self.output = OutputLayer(self.final.out_features, self.tasks[0].num_logits)

    @property
    def tower_groups(self) -> dict[str, tuple[str, ...]]:
        """Items alone: those of the sequence group that are no sequences."""
        return {"item": (self.sequence_group,)}

    def tower_features(self, tower: str) -> set[str]:
        """The query's."""
        return set(self.groups.plan.sequences[self.sequence_group].query.widths)

    def embed(self, batch: Batch, tower: str) -> Tensor:
        """The query of each row, from a batch that needs no histories."""
        return self.tower_vectors(tower, self.groups.gather_query(batch, self.engine, self.sequence_group))

    def tower_vectors(self, tower: str, parts: Parts) -> Tensor:
        """The query of each row, [rows, dim]."""
        return self.groups.query(parts, self.sequence_group)

    def predict(self, inputs: Inputs) -> dict[str, Tensor]:
        """The logits of each row."""
        given = inputs.sequences[self.sequence_group]
        attended = self.attention(given.query, given.sequence, given.lengths)
        columns = [attended, *(inputs[group] for group in self.row_groups)]
        return self.head(self.output(self.final(torch.cat(columns, dim=1))))
