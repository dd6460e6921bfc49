"""What `recgrad tune` may change: paths of a config, and the values that each may take.

    train_config.dense_optimizer.adam_optimizer.lr: {log: [0.0001, 0.01]}
    data_config.batch_size: {choices: [256, 512, 1024]}
    model_config.deepfm.deep.hidden_units: {choices: [[128, 64], [256, 128, 64]]}
    model_config.deepfm.deep.dropout_ratio: {range: [0.0, 0.5]}
    feature_configs[:].id_feature.embedding_dim: {int: [8, 64], step: 8}

Paths are those of --edit_config_json; several, joined by `;`, get the same value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recgrad.config import PipelineConfig, edit_config
from recgrad.config.messages import shortest_float
from recgrad.data.readers.build import open_reader
from recgrad.errors import ConfigError, Problem, RecgradError, nearest, system_reason

_KINDS = ("log", "range", "int", "choices")
_HALVES = ("sparse_optimizer", "dense_optimizer")
SCHEDULE = "schedule"
"""A dimension of the default space that is no path: the schedules of both halves."""
AS_IT_IS, INVERSE_SQRT, _LINE = "as it is", "inverse square root", "line to 0 over "
_WARMUP = 100


@dataclass(frozen=True)
class Dimension:
    """One thing to choose.

    Attributes:
        path: of the config; several are joined by `;`.
        kind: log or range (a number between two), int, or choices.
        values: the two ends, or the choices.
        step: of int.
        own: what the config has, or the nearest to it that may be chosen; None where that is not known.
    """

    path: str
    kind: str
    values: tuple[Any, ...]
    step: int = 1
    own: Any = None

    def suggest(self, trial: Any) -> Any:
        """A value of an Optuna trial, as the trial keeps it: lists as JSON."""
        if self.kind == "choices":
            return trial.suggest_categorical(self.path, [_plain(value) for value in self.values])
        low, high = self.values
        if self.kind == "int":
            return trial.suggest_int(self.path, low, high, step=self.step)
        return trial.suggest_float(self.path, low, high, log=self.kind == "log")


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) or value is None else json.dumps(value)


def own_settings(space: Sequence[Dimension]) -> dict[str, Any]:
    """The parameters of a trial that takes the config as it is, as far as that is known."""
    return {dimension.path: _plain(dimension.own) for dimension in space if dimension.own is not None}


def edits_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The edits of a config that the parameters of a trial are."""
    edits = {
        path.strip(): value
        for paths, value in parameters.items()
        if paths != SCHEDULE
        for path in paths.split(";")
    }
    return edits | _schedule_edits(
        str(parameters.get(SCHEDULE, AS_IT_IS)), edits.get("data_config.batch_size")
    )


def _schedule_edits(choice: str, batch: Any) -> dict[str, Any]:
    """The schedules of both halves; a line down to 0 ends where the run does, whatever the batch is."""
    if choice == AS_IT_IS:
        return {}
    kind, value = "inverse_sqrt_learning_rate", {"warmup_size": _WARMUP}
    if choice != INVERSE_SQRT:
        count, unit = choice.removeprefix(_LINE).split()
        size = int(count) if unit == "steps" else -(-int(count) // int(batch or 1024))
        kind, value = "linear_decay_learning_rate", {"decay_size": max(size, 1)}
    return {f"train_config.{half}.{kind}": value for half in _HALVES}


def load_space(path: str | Path) -> list[Dimension]:
    """The space that a YAML file describes.

    Raises:
        RecgradError: with every entry that cannot be understood.
    """
    import yaml

    try:
        tree = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecgradError(f"{path}: {system_reason(error)}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecgradError(f"{path}: is no YAML ({str(error).splitlines()[0]})") from error
    if not isinstance(tree, dict) or not tree:
        raise RecgradError(
            f"{path}: expected paths of the config with their values, such as 'a.lr: {{log: [0.1, 1]}}'"
        )
    return [_dimension(str(path), str(name), entry) for name, entry in tree.items()]


def _dimension(file: str, path: str, entry: Any) -> Dimension:
    where = f"{file}: {path}"
    if not isinstance(entry, dict):
        raise RecgradError(
            f"{where}: expected one of {', '.join(_KINDS)}, such as {{log: [0.1, 1]}}, got {entry!r}"
        )
    kinds = [kind for kind in entry if kind != "step"]
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        hint = nearest(str(kinds[0]), _KINDS) if kinds else ""
        raise RecgradError(
            f"{where}: expected one of {', '.join(_KINDS)}, got {', '.join(map(str, kinds))}{hint}"
        )
    kind, values, step = kinds[0], entry[kinds[0]], entry.get("step", 1)
    if not isinstance(values, list) or len(values) < 2 - (kind == "choices"):
        raise RecgradError(f"{where}: {kind} needs a list of values, got {values!r}")
    if kind != "choices":
        number = int if kind == "int" else (int, float)
        sound = len(values) == 2 and all(isinstance(v, number) and not isinstance(v, bool) for v in values)
        if not sound or values[0] >= values[1] or (kind == "log" and values[0] <= 0):
            raise RecgradError(f"{where}: {kind} needs two rising numbers, got {values!r}")
    if "step" in entry and (kind != "int" or not isinstance(step, int) or step < 1):
        raise RecgradError(f"{where}: step goes with int and is at least 1, got {step!r}")
    return Dimension(path, kind, tuple(values), step)


def check_space(config: PipelineConfig, space: list[Dimension]) -> None:
    """Raise for a path that the config does not have, or a value that does not fit it."""
    problems: list[Problem] = []
    for dimension in space:
        ends = dimension.values if dimension.kind == "choices" else dimension.values[:1]
        for value in ends:
            try:
                edit_config(config, edits_of({dimension.path: _plain(value)}))
            except ConfigError as error:
                problems.extend(error.problems)
                break
    if problems:
        raise ConfigError(problems)


def default_space(config: PipelineConfig) -> list[Dimension]:
    """Rates of both halves, decay, schedules, widths, dropout and batch size, around the config's own."""
    space = [*_rates(config), _schedules(config)]
    batch = config.data_config.batch_size
    batches = (max(batch // 2, 1), batch, 2 * batch)
    space.append(Dimension("data_config.batch_size", "choices", batches, own=batch))
    dims = _embedding_dims(config)
    if dims is not None:
        space.append(dims)
    space.extend(_layers(config.model_config, "model_config"))
    return space


def _rates(config: PipelineConfig) -> Iterator[Dimension]:
    for half in _HALVES:
        message = getattr(config.train_config, half)
        kind = message.WhichOneof("optimizer")
        if kind is None or "lr" not in getattr(message, kind).DESCRIPTOR.fields_by_name:
            continue
        path, optimizer = f"train_config.{half}.{kind}", getattr(message, kind)
        rate = shortest_float(optimizer.lr)
        if rate > 0:
            yield Dimension(f"{path}.lr", "log", (rate / 5, rate * 5), own=rate)
        if half == "dense_optimizer" and "weight_decay" in optimizer.DESCRIPTOR.fields_by_name:
            least, most = 1e-8, 1e-2
            own = min(max(shortest_float(optimizer.weight_decay), least), most)
            yield Dimension(f"{path}.weight_decay", "log", (least, most), own=own)


def _schedules(config: PipelineConfig) -> Dimension:
    """The schedules of both halves: as the config has them, 1/√n, or a line that ends with the run."""
    settings = config.train_config
    choices = [AS_IT_IS, INVERSE_SQRT]
    if settings.num_steps:
        choices.append(f"{_LINE}{settings.num_steps} steps")
    else:
        try:
            rows = open_reader(config.train_input_path, config.data_config).num_rows
        except (RecgradError, OSError):  # the run itself says what is wrong with the data
            rows = 0
        if rows:
            choices.append(f"{_LINE}{rows * max(settings.num_epochs, 1)} rows")
    return Dimension(SCHEDULE, "choices", tuple(choices), own=AS_IT_IS)


def _embedding_dims(config: PipelineConfig) -> Dimension | None:
    """One width for the tables of all features that have one, since many models need it to be the same."""
    kinds: dict[str, int] = {}
    for feature in config.feature_configs:
        kind = feature.WhichOneof("feature")
        if kind is None:
            continue
        message: Any = getattr(feature, kind)
        if kind == "sequence_feature":
            return None
        if message.embedding_dim:
            kinds.setdefault(kind, message.embedding_dim)
    if not kinds or len({*kinds.values()}) > 1:
        return None
    paths = "; ".join(f"feature_configs[embedding_dim>=1].{kind}.embedding_dim" for kind in kinds)
    width = next(iter(kinds.values()))
    widths = tuple(sorted({max(width // 2, 4), width, 2 * width, 4 * width}))
    return Dimension(paths, "choices", widths, own=width)


def _layers(message: Any, path: str) -> Iterator[Dimension]:
    """Widths and dropout of every stack of layers of the model; those of a list change together."""
    for field, value in message.ListFields():
        place = f"{path}.{field.name}"
        if field.name == "feature_groups" or field.message_type is None:
            continue
        if field.message_type.name == "MLP":
            units = list(value.hidden_units)
            wider, thinner = [2 * unit for unit in units], [max(unit // 2, 1) for unit in units]
            stacks = (thinner, units, wider, [*units, units[-1]])
            yield Dimension(f"{place}.hidden_units", "choices", stacks, own=units)
            if len(value.dropout_ratio) <= 1:
                own = shortest_float(value.dropout_ratio[0]) if value.dropout_ratio else 0.0
                shares = tuple([share] for share in sorted({0.0, 0.1, 0.2, 0.4, own}))
                yield Dimension(f"{place}.dropout_ratio", "choices", shares, own=[own])
        elif field.is_repeated and len(value):
            yield from _layers(value[0], f"{place}[:]")
        elif not field.is_repeated:
            yield from _layers(value, place)
