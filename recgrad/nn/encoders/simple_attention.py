"""Dot-product attention of a query over a sequence."""

from __future__ import annotations

from torch import Tensor

from recgrad.limits import Size
from recgrad.nn.encoders.base import ENCODERS, SequenceEncoder
from recgrad.nn.jagged import Segments, repeat_rows, segment_softmax, segment_sum


@ENCODERS.register("simple_attention")
class SimpleAttention(SequenceEncoder):
    """Σ_t softmax_t(⟨q, s_t⟩) · s_t over each row's positions; 0 for rows without any.

    Args:
        query_dim: width of the query; equal to sequence_dim.
        sequence_dim: width of a position.
        max_seq_length: only the first so many positions are used; 0 for all.
    """

    def __init__(self, query_dim: int, sequence_dim: int, max_seq_length: Size = 0) -> None:
        super().__init__(query_dim, sequence_dim, max_seq_length)
        if query_dim != sequence_dim:
            raise ValueError(
                f"simple_attention needs a query as wide as a position ({sequence_dim}), got {query_dim}"
            )
        self.out_features = sequence_dim

    def encode(self, query: Tensor, sequence: Tensor, segments: Segments) -> Tensor:
        """[rows, sequence_dim] of query [rows, sequence_dim] over sequence [positions, sequence_dim]."""
        scores = (repeat_rows(query, segments) * sequence).sum(1)
        return segment_sum(sequence, segments, segment_softmax(scores, segments))
