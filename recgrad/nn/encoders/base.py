"""What every sequence encoder is, and where encoders are found by config name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from recgrad.errors import nearest
from recgrad.limits import Size
from recgrad.nn.jagged import Segments, truncate
from recgrad.registry import Registry


@dataclass(frozen=True)
class SequenceFields:
    """Where features stand in a sequence group.

    Attributes:
        query: columns of each row feature in the query.
        sequence: columns of each sequence feature in a position.
        tables: the table of each feature that has ids.
    """

    query: Mapping[str, slice]
    sequence: Mapping[str, slice]
    tables: Mapping[str, str]

    def columns(self, setting: str, feature: str, of: Mapping[str, slice]) -> slice:
        """Where a feature that a setting names stands in the query or in a position."""
        if feature not in of:
            side = "the query" if of is self.query else "the sequence"
            raise ValueError(
                f"{setting} must be a feature of {side} ({', '.join(of) or 'none'}), "
                f"got '{feature}'{nearest(feature, of)}"
            )
        return of[feature]


class SequenceEncoder(nn.Module):
    """A module that makes one vector a row out of a query and a sequence.

    A subclass sets `out_features` and writes `encode`.

    Args:
        query_dim: width of the query; 0 when the group has no row features.
        sequence_dim: width of a position.
        max_seq_length: only the first so many positions are used; 0 for all.
    """

    needs_fields: ClassVar[bool] = False
    """Whether the constructor takes `fields`, a `SequenceFields`."""

    out_features: int
    self_attention: ClassVar[bool] = False
    """Whether positions look at each other, which makes early steps unstable."""

    def __init__(self, query_dim: int, sequence_dim: int, max_seq_length: Size = 0) -> None:
        super().__init__()
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
CUSTOM = "custom_sequence_encoder"
"""The config name of an encoder of the user's own: its params are `class_path` and `params`."""


def build_encoder(
    name: str,
    query_dim: int,
    sequence_dim: int,
    params: Mapping[str, Any],
    fields: SequenceFields | None = None,
) -> SequenceEncoder:
    """The encoder registered as `name`, with `params` as keyword arguments."""
    cls: type[SequenceEncoder]
    if name == CUSTOM:
        cls = ENCODERS.resolve_subclass(params["class_path"], SequenceEncoder, "out_features and encode")
        params = params.get("params") or {}
    else:
        cls = ENCODERS[name]
    more: dict[str, Any] = {"fields": fields} if cls.needs_fields else {}
    return cls(query_dim, sequence_dim, **params, **more)


def check_query(encoder: str, query_dim: int, sequence_dim: int) -> None:
    """Refuse a query that attention over the sequence cannot use."""
    if not 0 < query_dim <= sequence_dim:
        raise ValueError(
            f"{encoder} needs a query (row features beside the sequence) of width 1 to {sequence_dim}, "
            f"the width of a position; got {query_dim}"
        )
