"""Attention over the positions of a long history that share a key with the query (SIM, hard search).

```
query q ─────┬──▶ query_feature ──────┐ equal
             │                        ├──▶ the first top_k ──┐
positions s ─┼──▶ sequence_feature ───┘                      │ s of these
             └───────────────────────────────────────────────┴──▶ multi-head attention ──▶ output
```
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from recgrad.limits import Count
from recgrad.nn.encoders.base import ENCODERS, SequenceEncoder, SequenceFields
from recgrad.nn.jagged import Segments
from recgrad.nn.long_history import equal
from recgrad.nn.target_attention import TargetAttention


@ENCODERS.register("sim_encoder")
class SIMEncoder(SequenceEncoder):
    """Multi-head attention of the query over the first `top_k` positions with the query's value of a feature.

    The feature is the item's category, say: `query_feature` has it in the row, `sequence_feature` in each
    position. Both look ids up in one table (one `embedding_name`), so that equal ids have equal vectors,
    and vectors are what is compared. A row whose query has no value, or that finds none, gives 0.

    Paper: Pi et al. 2020, https://arxiv.org/abs/2006.05639

    Args:
        query_dim: width of the query.
        sequence_dim: width of a position.
        fields: where the features stand in the query and in a position.
        query_feature: the feature of the row that is searched for.
        sequence_feature: the feature of positions that it is searched in.
        top_k: positions that the attention sees.
        multihead_attn_dim: width of the attention and of the output; a multiple of num_heads.
        num_heads: number of heads.
        max_seq_length: only the first so many positions are used; 0 for all.
    """

    needs_fields: ClassVar[bool] = True

    def __init__(
        self,
        query_dim: int,
        sequence_dim: int,
        fields: SequenceFields,
        query_feature: str,
        sequence_feature: str,
        top_k: Count = 50,
        multihead_attn_dim: Count = 64,
        num_heads: Count = 2,
        max_seq_length: int = 0,
    ) -> None:
        super().__init__(query_dim, sequence_dim, max_seq_length)
        self.of_query = fields.columns("query_feature", query_feature, fields.query)
        self.of_sequence = fields.columns("sequence_feature", sequence_feature, fields.sequence)
        tables = fields.tables.get(query_feature), fields.tables.get(sequence_feature)
        if tables[0] != tables[1]:
            raise ValueError(
                f"query_feature and sequence_feature must share a table, got {tables[0] or 'none'} and "
                f"{tables[1] or 'none'}; give both features one embedding_name"
            )
        self.top_k = top_k
        self.attention = TargetAttention(query_dim, sequence_dim, multihead_attn_dim, num_heads)
        self.out_features = multihead_attn_dim

    def encode(self, query: Tensor, sequence: Tensor, segments: Segments) -> Tensor:
        """[rows, multihead_attn_dim] of query [rows, query_dim] over sequence [positions, sequence_dim]."""
        if sequence.shape[0] == 0:
            none = torch.full((query.shape[0], 1), -1, dtype=torch.int64, device=query.device)
            return self.attention(query, sequence.new_zeros(1, self.sequence_dim), none)  # type: ignore[no-any-return]
        chosen = equal(query[:, self.of_query], sequence[:, self.of_sequence], segments, self.top_k)
        return self.attention(query, sequence, chosen)  # type: ignore[no-any-return]
