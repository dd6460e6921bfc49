"""What a report says in words: when, how long, on what, how large, what was best, and what went wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recgrad.config import PipelineConfig
from recgrad.metrics import METRICS

Event = Mapping[str, Any]

NOTEWORTHY = 0.005
"""By what share of its best value a metric must have got worse to be worth a word."""
AVERAGED_RECORDS = 3
"""Records of the training loss that are averaged on either side: single ones are noisy."""


def facts(config: PipelineConfig, events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    """The run in a few lines: (what, value)."""
    starts = [event for event in events if event["kind"] == "start"]
    if starts:
        yield "date", _dates(starts[0]["time"], events[-1]["time"])
        parts = f", in {len(starts)} parts" if len(starts) > 1 else ""
        yield "duration", f"{span(sum(_durations(events)))}{parts}"
    counts = starts[-1].get("run", {}) if starts else {}
    rows = f", {counts['train_rows']:,} rows" if "train_rows" in counts else ""
    yield "trained on", f"{config.train_input_path}{rows}"
    yield "evaluated on", config.eval_input_path or "nothing"
    model = config.model_config.WhichOneof("model") or "none"
    yield "model", f"{model}{_size(counts)}"
    if events and events[-1].get("stopped"):
        yield "ended", events[-1]["stopped"]


def _dates(begin: float, end: float) -> str:
    """From when to when; what the end has in common with the begin is not said again."""
    (day, clock), (last_day, last_clock) = (
        time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds)).split() for seconds in (begin, end)
    )
    if (day, clock) == (last_day, last_clock):
        return f"{day} {clock} UTC"
    return f"{day} {clock} to {last_clock if day == last_day else f'{last_day} {last_clock}'} UTC"


def _durations(events: Sequence[Event]) -> Iterator[float]:
    """Seconds of each part of the run, from its start to the last that it logged."""
    begun = last = None
    for event in events:
        if event["kind"] == "start":
            if begun is not None and last is not None:
                yield last - begun
            begun = event["time"]
        last = event["time"]
    if begun is not None and last is not None:
        yield last - begun


def span(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _size(counts: Mapping[str, int]) -> str:
    if "dense_weights" not in counts:
        return ""
    tables = ", no tables"
    if counts["tables"]:
        many = "1 table" if counts["tables"] == 1 else f"{counts['tables']:,} tables"
        tables = f", {counts['table_values']:,} values in {many} of {counts['table_rows']:,} rows"
    return f", {counts['dense_weights']:,} dense weights{tables}"


@dataclass(frozen=True)
class Evaluations:
    """The evaluations that a report tells of; `best` is None where the log does not say which.

    Attributes:
        decided_by: the metric that the best one is best by.
    """

    last: Event
    best: Event | None
    decided_by: str


def told(evaluations: Sequence[Event]) -> Evaluations | None:
    """The last and the best evaluation of a run, if there was any."""
    if not evaluations:
        return None
    said = evaluations[-1].get("best") or {}
    best = next((event for event in evaluations if event["step"] == said.get("step")), None)
    return Evaluations(evaluations[-1], best, str(said.get("metric", "")))


def overfitting(records: Sequence[Event], evaluations: Sequence[Event]) -> Iterator[str]:
    """A sentence for each metric that got worse after its best while the training loss fell on."""
    for name in dict.fromkeys(name for event in evaluations for name in event["metrics"]):
        higher = _higher_is_better(name)
        values = [(event["step"], event["metrics"].get(name)) for event in evaluations]
        known = [(step, value) for step, value in values if value is not None]
        if higher is None or len(known) < 2:
            continue
        best_step, best = (max if higher else min)(known, key=lambda item: item[1])
        step, last = known[-1]
        worse = best - last if higher else last - best
        fell = _fall(records, best_step)
        if worse > NOTEWORTHY * abs(best) and fell is not None:
            verb = "fell" if higher else "rose"
            yield (
                f"{name} of the evaluation {verb} from {best:.5f} (step {best_step:,}, its best) to "
                f"{last:.5f} (step {step:,}) while the training loss fell from {fell[0]:.5f} to {fell[1]:.5f}"
            )


def _fall(records: Sequence[Event], step: int) -> tuple[float, float] | None:
    """The training loss up to a step and at the end, if it fell in between."""
    losses = [(event["step"], event["losses"].get("total")) for event in records]
    before = [loss for at, loss in losses if at <= step and loss is not None][-AVERAGED_RECORDS:]
    after = [loss for at, loss in losses if at > step and loss is not None][-AVERAGED_RECORDS:]
    if not before or not after:
        return None
    means = sum(before) / len(before), sum(after) / len(after)
    return means if means[1] < means[0] else None


def _higher_is_better(name: str) -> bool | None:
    """Which end of a metric is the better one, by the name that evaluation gives it; None if unknown."""
    kinds = [kind for kind in METRICS if name == kind or name.startswith((f"{kind}_", f"{kind}@"))]
    kinds += [kind for kind in METRICS if name.startswith(f"{kind.removesuffix('_at_k')}@")]
    return METRICS[max(kinds, key=len)].higher_is_better if kinds else None
