"""What flows into the dense half of a model: tensors by group, in types that say which there are.

```
Batch, engine ──▶ Parts: slices of both, no arithmetic ──▶ FeatureGroups ──▶ Inputs ──▶ Model.predict
```
`Parts` are all that the dense half is a function of, so that it can be compiled, or exported:
`Parts.tensors()` names every tensor, and `Parts.replaced(tensors)` is the way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from torch import Tensor

from recgrad.data.batch import Comparison, NextItems


@dataclass(frozen=True)
class PositionParts:
    """A sequence feature of which a group has the sum or mean over positions.

    Attributes:
        values: [positions, width], embeddings or numbers.
        lengths: [rows], the positions of each row.
    """

    values: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class RowParts:
    """What one vector a row is made of, beside dense embeddings.

    Attributes:
        raw: [rows, width], numbers as they are; None without any.
        lookups: [rows, width], pooled embeddings; None without any.
        pooled: sequence features that are pooled.
    """

    raw: Tensor | None = None
    lookups: Tensor | None = None
    pooled: tuple[PositionParts, ...] = ()


@dataclass(frozen=True)
class SequenceParts:
    """What a sequence group is made of.

    Attributes:
        query: of the query.
        columns: [positions, width], embeddings and numbers of positions; None without any.
        numbers: [positions, value_dim] of each feature with a dense embedding.
        lengths: [rows], the positions of each row.
    """

    query: RowParts
    columns: Tensor | None
    numbers: tuple[Tensor, ...]
    lengths: Tensor


@dataclass(frozen=True)
class Parts:
    """What the groups that are asked for are made of.

    Attributes:
        rows: of DEEP and WIDE groups.
        sequences: of sequence groups.
        numbers: [rows, width] of each module of dense embeddings, by its index.
        negatives: those of sampled items.
        comparison: which rows are compared with which of them.
        times: float64 [rows] or [positions] of groups of times.
        next_items: the items of histories among the negatives.
    """

    rows: Mapping[str, RowParts]
    sequences: Mapping[str, SequenceParts]
    numbers: Mapping[int, Tensor]
    negatives: Parts | None = None
    comparison: Comparison | None = None
    times: Mapping[str, Tensor] = field(default_factory=dict)
    next_items: NextItems | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its place, such as `rows.deep.lookups`."""
        found: dict[str, Tensor] = {}
        _replaced(self, "", lambda place, tensor: found.setdefault(place, tensor))
        return found

    def replaced(self, tensors: Mapping[str, Tensor]) -> Parts:
        """The same parts with other tensors, by place."""
        parts: Parts = _replaced(self, "", lambda place, _: tensors[place])
        return parts


@dataclass(frozen=True)
class SequenceInput:
    """A sequence group as a model sees it.

    Attributes:
        query: [rows, width of the query]; of width 0 where the group has no row features.
        sequence: [positions, width of a position], those of the first row first.
        lengths: [rows], the positions of each row.
    """

    query: Tensor
    sequence: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Inputs:
    """Feature groups as a model sees them; `inputs["deep"]` is short for `inputs.rows["deep"]`.

    Attributes:
        rows: [rows, width] of each DEEP and WIDE group.
        sequences: of each sequence group.
        times: float64 [rows] or [positions] of each group of times.
    """

    rows: Mapping[str, Tensor]
    sequences: Mapping[str, SequenceInput] = field(default_factory=dict)
    times: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, group: str) -> Tensor:
        return self.rows[group]


def _replaced(value: Any, place: str, other: Any) -> Any:
    """The same structure with `other(place, tensor)` for every tensor."""
    if isinstance(value, Tensor):
        return other(place, value)
    inner = f"{place}." if place else ""
    if is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in fields(value)]
        return type(value)(**{n: _replaced(getattr(value, n), f"{inner}{n}", other) for n in names})
    if isinstance(value, Mapping):
        return {key: _replaced(item, f"{inner}{key}", other) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_replaced(item, f"{inner}{i}", other) for i, item in enumerate(value))
    return value
