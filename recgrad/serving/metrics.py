"""Counters of all workers, in one mapped file, as Prometheus reads them.

Each worker has a row of float64 and writes to it alone, so that any worker can answer for all.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STATUSES = (200, 400, 404, 405, 408, 413, 415, 417, 422, 429, 431, 500, 503, 504)
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
OTHER = "other"
"""The route of requests to unknown paths, and the status of rare ones."""


@dataclass(frozen=True)
class Family:
    """One metric: its name, what it means, and its series."""

    name: str
    kind: str
    help: str
    series: tuple[str, ...]
    """Labels of each series, as they are written; "" for none."""
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets."""

    @property
    def width(self) -> int:
        """Slots of one series: a number, or buckets with the one beyond, and the sum."""
        return len(self.bounds) + 2 if self.bounds else 1

    @property
    def slots(self) -> int:
        """Slots of all series."""
        return self.width * len(self.series)


def families(routes: Sequence[str]) -> tuple[Family, ...]:
    """All metrics of a server with these routes."""
    paths = (*routes, OTHER)
    answered = tuple(f'route="{path}",status="{status}"' for path in paths for status in (*STATUSES, OTHER))
    one = ("",)
    return (
        Family("recgrad_requests_total", "counter", "Requests that were answered.", answered),
        Family(
            "recgrad_request_seconds", "histogram", "Time from a request's first byte to its answer.",
            tuple(f'route="{path}"' for path in paths), SECONDS,
        ),
        Family("recgrad_batch_rows", "histogram", "Rows that were scored together.", one, ROWS),
        Family("recgrad_batch_requests", "histogram", "Requests that were scored together.", one, ROWS),
        Family("recgrad_scoring_seconds", "histogram", "Time to encode and score a batch.", one, SECONDS),
        Family("recgrad_rows_total", "counter", "Rows that were asked for.", one),
        Family("recgrad_bad_rows_total", "counter", "Rows that could not be scored.", one),
        Family("recgrad_queue_requests", "gauge", "Requests that wait.", one),
        Family("recgrad_queue_bytes", "gauge", "Bytes of bodies that are held.", one),
        Family("recgrad_swaps_total", "counter", "New bundles that were taken up, by all workers.", one),
        Family("recgrad_refused_total", "counter", "New bundles or files that were refused.", one),
        Family("recgrad_model_loaded_seconds", "gauge", "When the newest model was loaded (Unix time).", one),
        Family("recgrad_delta_number", "gauge", "The delta that all workers have applied.", one),
        Family("recgrad_delta_created_seconds", "gauge", "When its rows were taken (Unix time).", one),
        Family("recgrad_deltas_total", "counter", "Deltas that were applied, by all workers.", one),
        Family("recgrad_resident_bytes", "gauge", "Resident memory of the workers.", one),
        Family("recgrad_worker_starts_total", "counter", "Starts of worker processes.", one),
    )  # fmt: skip


NOT_SUMMED = {
    "recgrad_model_loaded_seconds": max,
    "recgrad_delta_number": min,
    "recgrad_delta_created_seconds": min,
}
"""Gauges of which one worker's value is told."""


class Metrics:
    """The counters of one worker.

    Args:
        path: the mapped file; None for memory of this process alone.
        routes: paths that are counted by themselves.
        workers: how many rows the file has.
        worker: which of them is written.
    """

    def __init__(
        self, path: str | Path | None, routes: Sequence[str], *, workers: int = 1, worker: int = 0
    ) -> None:
        self.families = families(routes)
        self.workers = workers
        self._family = {family.name: family for family in self.families}
        self._index: dict[tuple[str, str], int] = {}
        self._answered: dict[tuple[str, int], tuple[int, int]] = {}
        slots = 0
        for family in self.families:
            for number, labels in enumerate(family.series):
                self._index[family.name, labels] = slots + number * family.width
            slots += family.slots
        self.slots = slots
        batch = ("recgrad_scoring_seconds", "recgrad_batch_requests", "recgrad_batch_rows")
        self._scored = [(self._index[name, ""], self._family[name].bounds) for name in batch]
        size = slots * 8
        if path is None:
            whole = memoryview(bytearray(size * workers))
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if os.fstat(descriptor).st_size < size * workers:
                    os.ftruncate(descriptor, size * workers)
                whole = memoryview(mmap.mmap(descriptor, size * workers))
            finally:
                os.close(descriptor)
        self._all = whole.cast("d")
        self._own = whole[worker * size : (worker + 1) * size].cast("d")

    def count(self, name: str, value: float = 1, labels: str = "") -> None:
        """Add to a counter."""
        self._own[self._index[name, labels]] += value

    def set(self, name: str, value: float, labels: str = "") -> None:
        """Set a gauge."""
        self._own[self._index[name, labels]] = value

    def scored(self, seconds: float, requests: int, rows: int) -> None:
        """Count a batch."""
        own = self._own
        for (first, bounds), value in zip(self._scored, (seconds, requests, rows)):
            own[first + bisect_left(bounds, value)] += 1
            own[first + len(bounds) + 1] += value

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        slots = self._answered.get((route, status))
        if slots is None:
            known = status if status in STATUSES else OTHER
            slots = (
                self._index["recgrad_requests_total", f'route="{route}",status="{known}"'],
                self._index["recgrad_request_seconds", f'route="{route}"'],
            )
            self._answered[route, status] = slots
        self._own[slots[0]] += 1
        self._own[slots[1] + bisect_left(SECONDS, seconds)] += 1
        self._own[slots[1] + len(SECONDS) + 1] += seconds

    def total(self, name: str, labels: str = "") -> float:
        """A counter or gauge over all workers."""
        values = self._column(self._index[name, labels])
        return float(NOT_SUMMED.get(name, sum)(values))

    def _column(self, slot: int) -> list[float]:
        return [self._all[worker * self.slots + slot] for worker in range(self.workers)]

    def text(self) -> str:
        """All metrics in the text format of Prometheus."""
        lines: list[str] = []
        for family in self.families:
            lines.append(f"# HELP {family.name} {family.help}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            for labels in family.series:
                if family.bounds:
                    lines += self._histogram(family, labels)
                else:
                    value = self.total(family.name, labels)
                    if value or not labels:  # a series of every route and status would be long
                        lines.append(f"{family.name}{{{labels}}} {value:.15g}".replace("{}", ""))
        return "\n".join(lines) + "\n"

    def _histogram(self, family: Family, labels: str) -> list[str]:
        first = self._index[family.name, labels]
        counts = [sum(self._column(first + at)) for at in range(family.width)]
        if labels and not any(counts):
            return []
        lines, below = [], 0.0
        comma = "," if labels else ""
        for bound, count in zip((*family.bounds, None), counts):
            below += count
            edge = "+Inf" if bound is None else f"{bound:g}"
            lines.append(f'{family.name}_bucket{{{labels}{comma}le="{edge}"}} {below:.15g}')
        own = f"{{{labels}}}" if labels else ""
        lines.append(f"{family.name}_sum{own} {counts[-1]:.15g}")
        lines.append(f"{family.name}_count{own} {below:.15g}")
        return lines
