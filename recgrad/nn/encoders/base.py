"""What every sequence encoder is, and where encoders are found by config name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from recgrad.nn.jagged import Segments, truncate
from recgrad.registry import Registry


class SequenceEncoder(nn.Module):
    """A module that makes one vector a row out of a query and a sequence.

    A subclass sets `out_features` and writes `encode`.

    Args:
        query_dim: width of the query; 0 when the group has no row features.
        sequence_dim: width of a position.
        max_seq_length: only the first so many positions are used; 0 for all.
    """

    out_features: int

    def __init__(self, query_dim: int, sequence_dim: int, max_seq_length: int = 0) -> None:
        super().__init__()
        if max_seq_length < 0:
            raise ValueError(f"max_seq_length must be at least 0, got {max_seq_length}")
        self.query_dim = query_dim
        self.sequence_dim = sequence_dim
        self.max_seq_length = max_seq_length

    def encode(self, query: Tensor, sequence: Tensor, segments: Segments) -> Tensor:
        """[rows, out_features] of query [rows, query_dim] and sequence [positions, sequence_dim]."""
        raise NotImplementedError

    def forward(self, query: Tensor, sequence: Tensor, lengths: Tensor) -> Tensor:
        """[rows, out_features] of the query and the first positions of rows with these lengths."""
        segments = Segments.from_lengths(lengths, sequence.shape[0])
        sequence, segments = truncate(sequence, segments, self.max_seq_length)
        return self.encode(query, sequence, segments)


ENCODERS: Registry[type[SequenceEncoder]] = Registry("sequence encoder", "recgrad.nn.encoders")


def build_encoder(name: str, query_dim: int, sequence_dim: int, params: Mapping[str, Any]) -> SequenceEncoder:
    """The encoder registered as `name`, with `params` as keyword arguments."""
    return ENCODERS[name](query_dim, sequence_dim, **params)


def check_query(encoder: str, query_dim: int, sequence_dim: int) -> None:
    """Refuse a query that attention over the sequence cannot use."""
    if not 0 < query_dim <= sequence_dim:
        raise ValueError(
            f"{encoder} needs a query (row features beside the sequence) of width 1 to {sequence_dim}, "
            f"the width of a position; got {query_dim}"
        )
