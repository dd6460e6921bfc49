"""The mean or sum of a sequence."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from recgrad.limits import Size
from recgrad.nn.encoders.base import ENCODERS, SequenceEncoder
from recgrad.nn.jagged import Segments, segment_mean, segment_sum


@ENCODERS.register("pooling_encoder")
class PoolingEncoder(SequenceEncoder):
    """The mean or sum over each row's positions; 0 for rows without any. The query is not used.

    Args:
        query_dim: width of the query.
        sequence_dim: width of a position.
        pooling_type: "mean" or "sum".
        max_seq_length: only the first so many positions are used; 0 for all.
    """

    def __init__(
        self,
        query_dim: int,
        sequence_dim: int,
        pooling_type: Literal["mean", "sum"] = "mean",
        max_seq_length: Size = 0,
    ) -> None:
        super().__init__(query_dim, sequence_dim, max_seq_length)
        self.pool = segment_mean if pooling_type == "mean" else segment_sum
        self.out_features = sequence_dim

    def encode(self, query: Tensor, sequence: Tensor, segments: Segments) -> Tensor:
        """[rows, sequence_dim] of sequence [positions, sequence_dim]."""
        return self.pool(sequence, segments)
