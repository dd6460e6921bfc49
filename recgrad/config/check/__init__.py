"""The rules of a config: what its text alone shows, every problem at once, and hints.

`recgrad.check.check_config` is the whole check: these rules with what this build has, and then a build
of all that a run would build.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from recgrad.config.check.report import Report
from recgrad.config.locations import Locations
from recgrad.config.proto.pipeline_pb2 import PipelineConfig

__all__ = ["Report", "check_rules"]


def check_rules(
    config: PipelineConfig,
    *,
    locations: Locations | None = None,
    available: Mapping[str, Iterable[str]] | None = None,
    rows: int | None = None,
    ranks: int | None = None,
    cpu_flags: Collection[str] | None = None,
) -> Report:
    """Every problem that the rules find in a config, and hints on what is unusual in it.

    Args:
        config: the config, as load_config gives it; not changed.
        locations: the lines of its fields, for the errors.
        available: the names that exist, by kind (`dense_optimizer`, `sparse_optimizer`,
            `schedule`, `loss`, `metric`, `train_metric`, `model`, `feature`, `reader`,
            `sampler`, `sequence_encoder`); asking for another is a problem. Kinds that are
            left out are not checked.
        rows: rows of the training data, when known, for hints.
        ranks: processes that a launcher has started, when known, for hints; 0 for a process without one.
        cpu_flags: what the CPU can do, as /proc/cpuinfo says it; read from there when None.
    """
    # The registry costs more to import than loading a config does.
    from recgrad.config.check.rule import CHECKS, Context

    names = None if available is None else {kind: frozenset(known) for kind, known in available.items()}
    context = Context(config, locations or Locations(), names, rows, ranks, cpu_flags)
    for _, rule in CHECKS.items():
        rule(context)
    return context.report()
