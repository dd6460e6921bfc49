"""What features are worth to a trained model: how much its metrics lose when their values are shuffled.

Rows are read and encoded once. Then the values of one unit (a feature, or several that belong together) are
dealt out to other rows, in memory, and the metrics are computed again, for several such deals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recgrad.data.features.base import Feature
from recgrad.errors import RecgradError, nearest
from recgrad.report.deals import open_deals
from recgrad.training.processes import choose_device
from recgrad.training.run import Trained, load_trained
from recgrad.training.runtime import computing
from recgrad.training.signals import StopRequest


@dataclass(frozen=True)
class Unit:
    """Features that are shuffled together: their names, and what they are called."""

    name: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class Worth:
    """What a unit is worth.

    Attributes:
        unit: which.
        means: of each metric that has a better end, by how much it gets worse without the unit's values.
        deviations: of that over the deals (n − 1).
        dropout: the rate that variational dropout has learned, the least of its features; None without.
    """

    unit: Unit
    means: Mapping[str, float]
    deviations: Mapping[str, float]
    dropout: float | None = None


@dataclass(frozen=True)
class Importance:
    """What all units are worth, those of the first metric's largest loss first.

    Attributes:
        metrics: of the rows as they are, those with a better end.
        worths: by unit.
        rows: that were computed with.
        repeats: deals of each unit.
        trained: the model.
    """

    metrics: Mapping[str, float]
    worths: tuple[Worth, ...]
    rows: int
    repeats: int
    trained: Trained = field(repr=False)

    @property
    def metric(self) -> str:
        """The one that units are ordered by: the first of the config."""
        return next(iter(self.metrics))


@computing()
def feature_importance(
    model: Any,
    data: str,
    *,
    groups: str = "column",
    repeats: int = 5,
    rows: int = 50_000,
    seed: int = 0,
    metric: str | None = None,
    checkpoint_path: str | Path | None = None,
    edit_config_json: str | Mapping[str, Any] | None = None,
    device: str | torch.device = "auto",
    custom_code: bool = True,
    stop: StopRequest | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Importance:
    """The permutation importance of the features of a model, over each metric of its tasks.

    Args:
        model: a model_dir or a config.
        data: rows with labels; of models that find items, rows of users and what they wanted.
        groups: what is shuffled together, see `units_of`.
        repeats: deals of each unit, with other random numbers.
        rows: at most so many, the first.
        seed: of the deals.
        metric: that units are ordered by; the first of the config by default.
        checkpoint_path: the checkpoint; by default as `predict` chooses it.
        edit_config_json: changes to the config.
        device: where the model computes.
        custom_code: as for `train`.
        stop: asks to stop.
        progress: is told of each unit: how many are done, of how many.
    """
    for name, value, least in (("repeats", repeats, 1), ("rows", rows, 2)):
        if value < least:
            raise RecgradError(f"importance: --{name} must be at least {least}, got {value}")
    chosen = choose_device(device)
    trained = load_trained(
        model, checkpoint_path, edit_config_json=edit_config_json, device=chosen, custom_code=custom_code
    )
    units = units_of(trained, groups)
    deals = open_deals(trained, data, rows=rows, seed=seed, stop=stop or StopRequest())
    directions = _directions(deals.directions, metric)
    base = deals.measured()
    rates = dropout_rates(trained)
    worths = []
    for number, unit in enumerate(units, 1):
        keys, lost = _keys(unit, trained.features), []
        for repeat in range(repeats):
            found = deals.measured(keys, repeat)
            lost.append([(base[n] - found[n]) * (1 if up else -1) for n, up in directions.items()])
        worths.append(_worth(unit, list(directions), np.array(lost), rates))
        if progress is not None:
            progress(number, len(units))
    first = next(iter(directions))
    worths.sort(key=lambda worth: -worth.means[first])
    return Importance({n: base[n] for n in directions}, tuple(worths), deals.rows, repeats, trained)


def units_of(trained: Trained, groups: str) -> list[Unit]:
    """What is shuffled together; members of a sequence always are, since they must be equally long.

    Args:
        trained: whose features; those that no group of the model reads are left out.
        groups: "feature": each by itself; "column": those that read the same columns; "model": the feature
            groups of the config; or one's own, "name=a,b;other=c", the rest each by itself.
    """
    used = {name for names in _group_names(trained).values() for name in names}
    features = [feature for feature in trained.features if feature.name in used]
    if groups == "model":
        found = {group: set(names) for group, names in _group_names(trained).items() if names}
        return [_unit(name, names, features) for name, names in found.items()]
    if groups in ("feature", "column"):
        by_key: dict[Any, list[Feature]] = {}
        for feature in features:
            columns = frozenset(_columns(feature)) if groups == "column" else feature.name
            by_key.setdefault(feature.spec.sequence_name or columns, []).append(feature)
        return [Unit(_name(own, groups), tuple(feature.name for feature in own)) for own in by_key.values()]
    return _own_units(groups, features)


def _own_units(text: str, features: Sequence[Feature]) -> list[Unit]:
    known = {feature.name for feature in features}
    known |= {f.spec.sequence_name for f in features if f.spec.sequence_name}
    units: list[Unit] = []
    taken: set[str] = set()
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, equals, names = part.partition("=")
        wanted = [one.strip() for one in names.split(",") if one.strip()]
        if not equals or not wanted:
            raise RecgradError(
                f"importance: --groups '{part}': expected feature, column, model or name=a,b;other=c"
            )
        for one in wanted:
            if one not in known:
                raise RecgradError(f"importance: --groups: no feature '{one}'{nearest(one, sorted(known))}")
        unit = _unit(name.strip(), set(wanted), features)
        twice = taken.intersection(unit.features)
        if twice:
            raise RecgradError(f"importance: --groups: '{min(twice)}' is in two groups; leave one out")
        taken.update(unit.features)
        units.append(unit)
    rest = [feature for feature in features if feature.name not in taken]
    alone = dict.fromkeys(feature.spec.sequence_name or feature.name for feature in rest)
    return units + [_unit(name, {name}, rest) for name in alone]


def dropout_rates(trained: Trained) -> dict[str, float]:
    """The rates that variational dropout has learned, by feature: the least over the groups that read it."""
    model = trained.task.model
    found: dict[str, float] = {}
    for group, layer in model.variational.items():
        rates = layer.dropout_probabilities().cpu()  # type: ignore[operator]
        widths = model.groups.widths(group)
        at = 0
        for name, width in widths.items():
            count = width if len(rates) == sum(widths.values()) and len(rates) != len(widths) else 1
            rate = float(rates[at : at + count].mean())
            at += count
            found[name] = min(rate, found.get(name, 1.0))
    return found


def _directions(found: Mapping[str, bool], metric: str | None) -> dict[str, bool]:
    """Metrics with a better end, the one to order by first."""
    if metric is None:
        return dict(found)
    if metric not in found:
        raise RecgradError(f"importance: --metric '{metric}': there is none{nearest(metric, sorted(found))}")
    return {metric: found[metric], **found}


def _worth(unit: Unit, names: Sequence[str], lost: Any, rates: Mapping[str, float]) -> Worth:
    deviations = lost.std(axis=0, ddof=1) if len(lost) > 1 else np.full(len(names), np.nan)
    own = [rates[name] for name in unit.features if name in rates]
    return Worth(
        unit,
        dict(zip(names, lost.mean(axis=0).tolist(), strict=True)),
        dict(zip(names, deviations.tolist(), strict=True)),
        min(own) if own else None,
    )


def _keys(unit: Unit, features: Sequence[Feature]) -> set[str]:
    """The names by which a batch has a unit, those of lengths of sequences included."""
    sequences = {f.spec.sequence_name for f in features if f.name in unit.features and f.spec.sequence_name}
    return {*unit.features, *sequences}


def _unit(name: str, names: set[str], features: Sequence[Feature]) -> Unit:
    """The features of some names, with all members of their sequences."""
    sequences = {f.spec.sequence_name for f in features if f.name in names and f.spec.sequence_name}
    members = [f.name for f in features if f.name in names or f.spec.sequence_name in names | sequences]
    return Unit(name, tuple(members))


def _name(features: Sequence[Feature], groups: str) -> str:
    first = features[0]
    if first.spec.sequence_name:
        return first.spec.sequence_name
    if len(features) == 1 or groups == "feature":
        return first.name
    return ", ".join(sorted(_columns(first)))


def _columns(feature: Feature) -> list[str]:
    """The columns that a feature reads, itself or through others."""
    return [*feature.columns, *(column for needed in feature.needs for column in _columns(needed))]


def _group_names(trained: Trained) -> dict[str, list[str]]:
    """The features of each group of the config, those of its sequences included."""
    found = {}
    for group in trained.config.model_config.feature_groups:
        names = list(group.feature_names)
        for sequence in group.sequence_groups:
            names += sequence.feature_names
        found[group.group_name] = names
    return found
