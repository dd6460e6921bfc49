"""Attention of a query over a sequence, scored by an MLP (DIN)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.nn.encoders.base import ENCODERS, SequenceEncoder, check_query
from recgrad.nn.jagged import Segments, repeat_rows, segment_softmax, segment_sum
from recgrad.nn.mlp import MLP


@ENCODERS.register("din_encoder")
class DINEncoder(SequenceEncoder):
    """Σ_t softmax_t(mlp([q, s_t, q − s_t, q∘s_t])) · s_t over each row's positions.

    A query narrower than the sequence is filled up with zeros. The softmax is over the
    positions that exist; a row without any gives 0.
    Zhou et al. 2018, https://arxiv.org/abs/1706.06978

    Args:
        query_dim: width of the query, at most sequence_dim.
        sequence_dim: width of a position.
        attn_mlp: arguments of the MLP that scores a position; a linear layer to one score follows.
        max_seq_length: only the first so many positions are used; 0 for all.
    """

    def __init__(
        self, query_dim: int, sequence_dim: int, attn_mlp: Mapping[str, Any], max_seq_length: int = 0
    ) -> None:
        super().__init__(query_dim, sequence_dim, max_seq_length)
        check_query("din_encoder", query_dim, sequence_dim)
        self.out_features = sequence_dim
        self.mlp = MLP(4 * sequence_dim, **attn_mlp)
        if len(self.mlp) == 0:
            raise ValueError("attn_mlp must have at least one hidden layer, got none")
        # A bias would shift all scores of a row alike, which softmax does not see.
        self.score = nn.Linear(self.mlp.out_features, 1, bias=False)

    def encode(self, query: Tensor, sequence: Tensor, segments: Segments) -> Tensor:
        """[rows, sequence_dim] of query [rows, query_dim] over sequence [positions, sequence_dim]."""
        query = F.pad(query, (0, self.sequence_dim - self.query_dim))
        hidden = self._first_layer(query, sequence, segments)
        scores = self.score(self.mlp.after_first(hidden)).squeeze(1)
        return segment_sum(sequence, segments, segment_softmax(scores, segments))

    def _first_layer(self, query: Tensor, sequence: Tensor, segments: Segments) -> Tensor:
        """The first linear layer of [q, s, q − s, q∘s], without building that input.

        q(W₁+W₃) is the same for all positions of a row and is computed once; what is left is
        [s, q∘s] times [W₂−W₃, W₄]: half the multiplications for each position.
        """
        linear = self.mlp[0]
        assert isinstance(linear, nn.Linear)
        of_query, of_sequence, of_difference, of_product = linear.weight.chunk(4, dim=1)
        per_row = F.linear(query, of_query + of_difference, linear.bias)
        weight = torch.cat([of_sequence - of_difference, of_product], dim=1)
        product = repeat_rows(query, segments) * sequence
        return F.linear(torch.cat([sequence, product], dim=1), weight) + repeat_rows(per_row, segments)
