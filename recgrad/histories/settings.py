"""What is asked of `recgrad sequences`."""

from __future__ import annotations

from dataclasses import dataclass

EVENTS_IN_MEMORY = 8_000_000


@dataclass(frozen=True)
class HistorySettings:
    """How a log becomes histories.

    Attributes:
        user: the column of users.
        item: the column of items.
        time: the column of times; "" for a log whose rows are in order.
        carry: other columns of events that histories get too.
        name: what the columns of histories begin with: `<name>__<item>`.
        split: "leave-one-out": of each user, the last event tests, the one before it validates; "time":
            events from `valid_from` on validate, those from `test_from` on test; "none": all train.
        valid_from: seconds, for the split by time; found from `valid_share` if None.
        test_from: the same.
        valid_share: the share of events between the two times.
        test_share: the share of events after the second.
        max_length: the newest events that a history keeps; 0 for all.
        stride: a user's training events give a row each so many; 0 for one row a user.
        events_in_memory: about how many events are held at once.
    """

    user: str = "user_id"
    item: str = "item_id"
    time: str = ""
    carry: tuple[str, ...] = ()
    name: str = "history"
    split: str = "leave-one-out"
    valid_from: float | None = None
    test_from: float | None = None
    valid_share: float = 0.1
    test_share: float = 0.1
    max_length: int = 0
    stride: int = 0
    events_in_memory: int = EVENTS_IN_MEMORY

    def __post_init__(self) -> None:
        if self.split not in ("leave-one-out", "time", "none"):
            raise ValueError(f"split must be leave-one-out, time or none, got {self.split}")
        if self.split == "time" and not self.time:
            raise ValueError("split time needs the column of times; give --time")
        for name in ("max_length", "stride"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.max_length and self.stride > self.max_length:
            raise ValueError(
                f"stride must be at most max_length {self.max_length}, got {self.stride}: events between "
                "would be in no row"
            )
        shares = self.valid_share, self.test_share
        if min(shares) < 0 or sum(shares) >= 1:
            raise ValueError(f"valid_share and test_share must be at least 0, below 1 in all, got {shares}")
        if self.valid_from is not None and self.test_from is not None and self.test_from < self.valid_from:
            raise ValueError(
                f"test_from must not be before valid_from, got {self.test_from} and {self.valid_from}"
            )
        columns = [name for name in (self.user, self.item, self.time, *self.carry) if name]
        twice = {name for name in columns if columns.count(name) > 1}
        if twice:
            raise ValueError(f"column '{twice.pop()}' is named twice")

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [name for name in (self.user, self.item, self.time, *self.carry) if name]

    @property
    def of_events(self) -> list[str]:
        """The columns that histories have of each event."""
        return [name for name in (self.item, self.time, *self.carry) if name]
