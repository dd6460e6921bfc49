"""Whether two sets of runs differ in their metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from recgrad.errors import RecgradError
from recgrad.experiments.runs import Run
from recgrad.experiments.statistics import (
    Estimate,
    SetDifference,
    compare_paired,
    compare_welch,
    estimate_mean,
)


def summarize(runs: Sequence[Run], confidence: float = 0.95) -> dict[str, Estimate]:
    """Mean, deviation and interval of every metric that all runs have."""
    return {
        name: estimate_mean([run.metrics[name] for run in runs], confidence)
        for name in common_metrics([runs])
    }


def common_metrics(sets: Sequence[Sequence[Run]]) -> list[str]:
    """The metrics that every run of every set has, as finite numbers, in their order."""
    runs = [run for some in sets for run in some]
    return [
        name
        for name in runs[0].metrics
        if all(math.isfinite(run.metrics.get(name, math.nan)) for run in runs)
    ]


def compare_sets(a: Sequence[Run], b: Sequence[Run], confidence: float = 0.95) -> dict[str, SetDifference]:
    """B − A of every metric; pairs of runs with the same seed where both sets have the same seeds.

    Raises:
        RecgradError: a set has fewer than two runs, or no metric is in all of them.
    """
    for name, runs in (("A", a), ("B", b)):
        if len(runs) < 2:
            raise RecgradError(
                f"compare: {name} has {len(runs)} finished run; two of each are needed at least"
            )
    metrics = common_metrics([a, b])
    if not metrics:
        raise RecgradError(
            "compare: no metric is in all runs of both sets; evaluate both with the same metrics"
        )
    pairs = _pairs(a, b)
    found = {}
    for metric in metrics:
        if pairs:
            left, right = ([pair[i].metrics[metric] for pair in pairs] for i in (0, 1))
            found[metric] = compare_paired(left, right, confidence)
        else:
            left, right = ([run.metrics[metric] for run in runs] for runs in (a, b))
            found[metric] = compare_welch(left, right, confidence)
    return found


def _pairs(a: Sequence[Run], b: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Runs of the same seed; none unless both sets have the same seeds, each once."""
    first, second = ({run.config.train_config.seed: run for run in runs} for runs in (a, b))
    if len(first) < len(a) or len(second) < len(b) or set(first) != set(second):
        return []
    return [(first[seed], second[seed]) for seed in sorted(first)]
