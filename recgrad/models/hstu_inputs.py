"""What the schema's HSTU models read: fixed groups of histories, candidates and rows.

| group | what it has |
| --- | --- |
| `contextual` | features of the row: DEEP, or SEQUENCE with features of rows alone |
| `uih`, `uih_timestamp` | the history, and when each event happened |
| `uih_action`, `uih_watchtime` | what the user did, as bits, and for how long; for the action encoder |
| `candidate`, `candidate_timestamp` | what is asked about, and when |

A channel with a name has it in place of `uih`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from recgrad.data.batch import Batch
from recgrad.data.features.spec import FeatureSpec
from recgrad.errors import DataError
from recgrad.models.feature_groups import FeatureGroups
from recgrad.models.group_needs import GroupType
from recgrad.models.group_plan import FeatureGroup
from recgrad.models.inputs import Inputs
from recgrad.nn.jagged import Segments
from recgrad.nn.stu.inputs import Events

CONTEXTUAL = "contextual"
HISTORY = "uih"


@dataclass(frozen=True)
class EventGroups:
    """The groups of events, and of what is known of each.

    Attributes:
        values: the group of vectors.
        times: the group of times.
        actions: the group of actions; None where they are not used.
        watch_times: the group of watch times; None where they are not used.
    """

    values: str
    times: str
    actions: str | None = None
    watch_times: str | None = None

    @classmethod
    def of_history(cls, hstu: Mapping[str, Any], prefix: str = HISTORY) -> EventGroups:
        """Those that an HSTU of these settings reads."""
        encoder = _action_encoder(hstu)
        watched = encoder is not None and bool(encoder.get("watchtime_to_action_thresholds"))
        return cls(
            prefix,
            f"{prefix}_timestamp",
            None if encoder is None else f"{prefix}_action",
            f"{prefix}_watchtime" if watched else None,
        )

    @property
    def numbers(self) -> tuple[str, ...]:
        """Groups of one number an event."""
        return tuple(name for name in (self.times, self.actions, self.watch_times) if name is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """All groups."""
        return (self.values, *self.numbers)

    def needs(self) -> dict[str, GroupType]:
        """The type of each group."""
        return dict.fromkeys(self.names, "SEQUENCE")

    def take(self, groups: FeatureGroups) -> None:
        """Have the numbers of events in float64: seconds since 1970, and bits, have no room in float32."""
        for name in self.numbers:
            groups.take_times(name)

    def events(self, inputs: Inputs) -> Events:
        """The events of a batch."""
        given = inputs.sequences[self.values]
        segments = Segments.from_lengths(given.lengths, given.sequence.shape[0])
        actions = None if self.actions is None else inputs.times[self.actions].long()
        watched = None if self.watch_times is None else inputs.times[self.watch_times]
        return Events(given.sequence, inputs.times[self.times], segments, actions, watched)

    def check_lengths(self, groups: FeatureGroups, batch: Batch) -> None:
        """Refuse a row whose groups differ in their number of events."""
        events = groups.lengths(batch, self.values)
        for name in self.numbers:
            lengths = groups.lengths(batch, name)
            wrong = (lengths != events).nonzero()
            if len(wrong):
                row = int(wrong[0])
                raise DataError(
                    f"group {name}: {int(lengths[row])} values for {int(events[row])} events of group "
                    f"'{self.values}' ({batch.name_row(row)}); give every event one"
                )


def rows_of(groups: Sequence[FeatureGroup], features: Sequence[FeatureSpec]) -> Iterator[FeatureGroup]:
    """The groups, with that of contextual features as one of rows where it has no others."""
    of_positions = {spec.name for spec in features if spec.sequence}
    for group in groups:
        is_rows = group.kind == "SEQUENCE" and not of_positions.intersection(group.features)
        yield replace(group, kind="DEEP") if group.name == CONTEXTUAL and is_rows else group


def contextual_shape(groups: FeatureGroups, *, joined: bool) -> tuple[int, int]:
    """Number and width of contextual tokens' features; all features are one token where they are joined."""
    if CONTEXTUAL not in groups:
        return 0, 0
    if joined:
        return 1, groups.dim(CONTEXTUAL)
    width = groups.field_dim(CONTEXTUAL, "give them one embedding_dim, or set concat_contextual_features")
    return len(groups.widths(CONTEXTUAL)), width


def contextual_values(inputs: Inputs) -> torch.Tensor | None:
    """[rows, C · width]: features of rows, where there are any."""
    return inputs.rows.get(CONTEXTUAL)


def _action_encoder(hstu: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The settings of the encoder of actions, where there is one."""
    for preprocessor in (hstu.get("input_preprocessor") or {}).values():
        encoder: Mapping[str, Any] | None = (preprocessor or {}).get("action_encoder")
        if encoder is not None:
            return encoder.get("simple_action_encoder") or {}
    return None
