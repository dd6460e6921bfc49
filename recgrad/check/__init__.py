"""What is wrong with a config: the rules of its text, and what this build makes of it.

`check_config` is the one entry: `recgrad check`, every run and Python users go through it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from recgrad.check.report import Report
from recgrad.config.class_paths import custom_code_problems
from recgrad.config.expand import expand_config
from recgrad.config.locations import Locations
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.errors import ConfigError, Problem

__all__ = ["Report", "check_config", "check_rules"]


def check_config(
    config: PipelineConfig,
    *,
    locations: Locations | None = None,
    rows: int | None = None,
    ranks: int | None = None,
    cpu_flags: Collection[str] | None = None,
    files: bool = False,
    custom_code: bool = True,
) -> Report:
    """Every problem of a config, and hints on what is unusual in it.

    When the rules find nothing, all that a run would build is built, without memory for weights and rows:
    feature encoders, the model, optimizers, schedules, losses and metrics.
    Classes that the config names by class_path are imported for that. Random state is left as it was.

    Args:
        config: the config, as load_config gives it; not changed.
        locations: the lines of its fields, for the errors.
        rows: rows of the training data, when known, for hints.
        ranks: processes that a launcher has started, when known; 0 for a process without one.
        cpu_flags: what the CPU can do, as /proc/cpuinfo says it; read from there when None.
        files: a vocabulary file that is not here is a problem, not a hint.
        custom_code: False reports classes that the config names by import path as problems, and imports none.
    """
    # They import every kind of component; a config can be loaded and edited without.
    from recgrad.check.build import build_all
    from recgrad.check.capabilities import available

    locations = locations or Locations()
    try:
        config = expand_config(config, locations)
    except ConfigError as error:
        return Report(error.problems)
    report = check_rules(
        config,
        locations=locations,
        available=available(),
        rows=rows,
        ranks=ranks,
        cpu_flags=cpu_flags,
        custom_code=custom_code,
    )
    if not custom_code and (refused := custom_code_problems(config, locations)):
        return replace(report, problems=(*report.problems, *refused))
    if report.problems:
        return report
    built = build_all(config, ranks, files=files)
    problems, hints = (
        tuple(Problem(locations.where(found.where), found.what) for found in some)
        for some in (built.problems, built.hints)
    )
    return replace(report, problems=problems, hints=(*report.hints, *hints))


def check_rules(
    config: PipelineConfig,
    *,
    locations: Locations | None = None,
    available: Mapping[str, Iterable[str]] | None = None,
    rows: int | None = None,
    ranks: int | None = None,
    cpu_flags: Collection[str] | None = None,
    custom_code: bool = True,
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
        custom_code: False imports no classes that the config names by import path.
    """
    # The rules are imported when they are needed, since a config can be loaded and edited without.
    from recgrad.check.components import check_components
    from recgrad.check.rule import CHECKS, Context

    try:
        config = expand_config(config, locations)
    except ConfigError as error:
        return Report(error.problems)
    names = None if available is None else {kind: frozenset(known) for kind, known in available.items()}
    context = Context(config, locations or Locations(), names, rows, ranks, cpu_flags, custom_code)
    check_components(context)
    for _, rule in CHECKS.items():
        rule(context)
    return context.report()
