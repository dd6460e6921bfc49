"""A config with the features that are worth something: the others are removed from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from recgrad.check import check_config
from recgrad.config import PipelineConfig
from recgrad.config.messages import chosen
from recgrad.errors import RecgradError
from recgrad.report.importance import Importance, Unit, Worth


def choose_dropped(found: Importance, *, top: int | None = None, by: str = "permutation") -> list[Unit]:
    """The units to leave out, the least first.

    Args:
        found: what units are worth.
        top: keep so many; without it, those are left out whose loss is not clearly above 0: at most twice
            its standard error over the deals.
        by: "permutation", or "dropout": the largest rates of variational dropout go (with `top`), or those
            above ½.
    """
    if by == "dropout":
        if all(worth.dropout is None for worth in found.worths):
            raise RecgradError(
                "importance: --by dropout: the config has no variational_dropout; add it, train, "
                "and ask again"
            )
        ranked = sorted(found.worths, key=lambda worth: -(worth.dropout or 0.0))
        least = [worth for worth in ranked if (worth.dropout or 0.0) > 0.5]
    else:
        ranked = list(reversed(found.worths))
        least = [worth for worth in ranked if not _clear(worth, found)]
    if top is not None:
        if top < 1:
            raise RecgradError(f"importance: --top must be at least 1, got {top}")
        least = ranked[: max(len(ranked) - top, 0)]
    return [worth.unit for worth in least]


def reduced_config(config: PipelineConfig, units: Sequence[Unit]) -> tuple[PipelineConfig, list[Unit]]:
    """The config without some units, and those of them that had to stay: it would not pass the check without.

    All are removed at once where that passes; else one by one, in their order, each if what is left passes.
    """
    whole = without_features(config, [name for unit in units for name in unit.features])
    if _passes(whole):
        return whole, []
    reduced, stay = config, []
    for unit in units:
        tried = without_features(reduced, unit.features)
        if _passes(tried):
            reduced = tried
        else:
            stay.append(unit)
    return reduced, stay


def without_features(config: PipelineConfig, names: Sequence[str]) -> PipelineConfig:
    """The config with some features removed, and groups and encoders that are left without one."""
    gone = set(names)
    result = PipelineConfig()
    result.CopyFrom(config)
    sequences = _sequences(result)
    _keep(result.feature_configs, [item for item in result.feature_configs if _stays(item, gone)])
    for group in result.model_config.feature_groups:
        group.feature_names[:] = [name for name in group.feature_names if name not in gone]
        for sequence in group.sequence_groups:
            sequence.feature_names[:] = [name for name in sequence.feature_names if name not in gone]
        full = [one for one in group.sequence_groups if sequences.intersection(one.feature_names)]
        left = {one.group_name or group.group_name for one in full}
        encoders = [one for one in group.sequence_encoders if _input_of(one, group.group_name) in left]
        _keep(group.sequence_groups, full)
        _keep(group.sequence_encoders, encoders)
    groups = result.model_config.feature_groups
    _keep(groups, [group for group in groups if group.feature_names or group.sequence_groups])
    return result


def _keep(repeated: Any, items: Sequence[Any]) -> None:
    """Leave some items of a repeated field, in their order."""
    copies = [type(item)() for item in items]
    for copy, item in zip(copies, items, strict=True):
        copy.CopyFrom(item)
    del repeated[:]
    repeated.extend(copies)


def _sequences(config: PipelineConfig) -> set[str]:
    """The names of features that have a value for each position."""
    found: set[str] = set()
    for item in config.feature_configs:
        name, message = _chosen(item)
        if name == "sequence_feature":
            found.update(f"{message.sequence_name}__{_chosen(m)[1].feature_name}" for m in message.features)
        elif name.startswith("sequence_"):
            found.add(message.feature_name)
    return found


def _stays(item: Any, gone: set[str]) -> bool:
    """Whether a feature's config is left; a sequence loses the members that go."""
    name, message = _chosen(item)
    if name != "sequence_feature":
        return message.feature_name not in gone
    prefix = f"{message.sequence_name}__"
    _keep(message.features, [m for m in message.features if prefix + _chosen(m)[1].feature_name not in gone])
    return bool(message.features)


def _chosen(item: Any) -> tuple[str, Any]:
    found = chosen(item, "feature")
    assert found is not None
    return found


def _input_of(encoder: Any, outer: str) -> str:
    kind = chosen(encoder, "seq_module")
    assert kind is not None
    return str(kind[1].input) or outer


def _passes(config: PipelineConfig) -> bool:
    try:
        return not check_config(config).problems
    except RecgradError:
        return False


def _clear(worth: Worth, found: Importance) -> bool:
    mean, deviation = worth.means[found.metric], worth.deviations[found.metric]
    error = 0.0 if math.isnan(deviation) else 2 * deviation / math.sqrt(found.repeats)
    return mean > error
