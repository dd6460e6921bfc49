"""Training that goes on day after day: each day begins where the last one ended.

A day is a run of its own, in a model_dir of its own: weights, optimizer states, and the ids of living tables
come from the parent's newest checkpoint, whereas data, steps and schedules are the day's. Before it trains,
the parent is evaluated on the day's data ("progressive validation"): what a model that was served that day
would have been worth.

    lineage.json of a model_dir: [{day, data, parent, parent_step, before, after, step}, …], the oldest first
"""

from __future__ import annotations

import glob
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from recgrad.errors import RecgradError, whole_path
from recgrad.ranks import measuring_alone
from recgrad.training.checkpoint import read_checkpoint, resolve_checkpoint
from recgrad.training.checkpoint.manager import CheckpointManager
from recgrad.training.checkpoint.staging import write_file_atomically
from recgrad.training.preflight import meeting_timeout
from recgrad.training.processes import Processes, open_processes
from recgrad.training.run import evaluate, train
from recgrad.training.start import LINEAGE_FILE
from recgrad.training.state import TrainResult

_log = logging.getLogger("recgrad.training")


@dataclass(frozen=True)
class Day:
    """One link of a lineage.

    Attributes:
        day: its name.
        data: what it was trained on.
        parent: the checkpoint that it began from; "" for the first.
        parent_step: of that checkpoint.
        before: metrics of the parent on the day's data, before training on them; none for the first.
        after: metrics of the day's last evaluation.
        step: steps of the day; 0 while it is not finished.
    """

    day: str
    data: str
    parent: str = ""
    parent_step: int = 0
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)
    step: int = 0


def read_lineage(model_dir: str | Path) -> list[Day]:
    """The days that led to a model_dir, the oldest first; none where it was not trained day by day."""
    path = Path(model_dir) / LINEAGE_FILE
    if not path.exists():
        return []
    try:
        return [Day(**entry) for entry in json.loads(path.read_text())]
    except (ValueError, TypeError, OSError) as error:
        raise RecgradError(f"{path}: cannot be read ({error}); remove it, or take it from a copy") from error


@dataclass(frozen=True)
class _Start:
    """Where a day stands when its run starts.

    Attributes:
        days: before it, the oldest first.
        day: as far as it is known.
        begun: it was begun before.
        resumes: there is a checkpoint of it.
    """

    days: list[Day]
    day: Day
    begun: bool
    resumes: bool


def train_increment(
    config: Any,
    *,
    parent: str | Path | None,
    data: str,
    model_dir: str | Path,
    name: str = "",
    run: Callable[..., TrainResult] | None = None,
    **options: Any,
) -> TrainResult:
    """Train on a day's data from where the parent's newest checkpoint stands; resumes one that was begun.

    Under torchrun every process calls this. The first one looks where the day stands, evaluates the parent
    and writes the lineage, while the others wait for it; they train together.

    Args:
        config: as for `train`.
        parent: a model_dir; None for a first day, which begins with no weights.
        data: the day's data.
        model_dir: of the day.
        name: of the day; that of its data by default.
        run: trains, in place of `train` and with its arguments.
        options: further arguments of `train`.
    """
    folder, name = Path(model_dir), name or _day_name(data)
    with _open_processes(config, run, options) as processes:
        start = processes.on_main(lambda: _begin(config, parent, data, folder, name, options, processes))
        day = start.day
        if day.step:
            _log.info("%s: trained already, %d steps", day.day, day.step)
            return TrainResult(folder, day.step, dict(day.after), 0.0, "", 0)
        result = (run or train)(
            config,
            train_input_path=data,
            model_dir=folder,
            # A day that was stopped before its first checkpoint begins anew, in its folder.
            continue_train=start.begun,
            fine_tune_checkpoint=None if start.resumes else day.parent or None,
            **options,
        )
        if result.exit_code:
            hint = f"stopped after step {result.step} of {day.day}; the same command resumes"
            return replace(result, hint=hint if result.hint else "")
        done = replace(day, after=dict(result.metrics), step=result.step)
        processes.on_main(lambda: _write(folder, [*start.days, done]))
        return result


def train_days(
    config: Any,
    *,
    days: str,
    model_dir: str | Path,
    parent: str | Path | None = None,
    run: Callable[..., TrainResult] | None = None,
    **options: Any,
) -> TrainResult:
    """Train on each of the paths that a pattern names, in the order of their names, each from the last.

    Day by day `model_dir/NAME` is made. A run that was stopped resumes where it was; days that are finished
    are left alone, so that the same command trains on what has come since. `run` and `options` are as for
    `train_increment`, and so is torchrun.
    """
    result: TrainResult | None = None
    with _open_processes(config, run, options) as processes:
        for name, path in processes.on_main(lambda: _find_days(days)):
            own = Path(model_dir) / name
            result = train_increment(
                config, parent=parent, data=path, model_dir=own, name=name, run=run, **options
            )
            if result.exit_code:
                return result
            parent = own
    assert result is not None
    return result


def _open_processes(
    config: Any, run: Callable[..., TrainResult] | None, options: Mapping[str, Any]
) -> AbstractContextManager[Processes]:
    """The processes that train together from here to the end; this one alone where `run` starts others."""
    if run is not None:
        return nullcontext(Processes())
    timeout_secs = meeting_timeout(config, options.get("edit_config_json"))
    return open_processes(timeout_secs, device=options.get("device", "auto"))


def _find_days(days: str) -> list[tuple[str, str]]:
    """Names and paths of the days of a pattern, in the order of the paths."""
    paths = sorted(glob.glob(days))
    if not paths:
        raise RecgradError(f"--days '{days}': no file or folder has such a name")
    names = [_day_name(path) for path in paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecgradError(f"--days '{days}': two days are called '{twice[0]}'; name them differently")
    return list(zip(names, paths, strict=True))


def _begin(
    config: Any,
    parent: str | Path | None,
    data: str,
    folder: Path,
    name: str,
    options: Mapping[str, Any],
    processes: Processes,
) -> _Start:
    """See where a day stands; one that is new is written down, with what its parent is worth."""
    if parent is not None and folder.resolve() == Path(parent).resolve():
        raise RecgradError(
            f"--increment_from '{parent}': a day has a model_dir of its own; give another --model_dir"
        )
    begun = read_lineage(folder)
    resumes = CheckpointManager(folder).latest() is not None if folder.exists() else False
    if resumes and not begun:
        raise RecgradError(
            f"model_dir '{folder}'{whole_path(folder)}: its run is not made by increments; name another"
        )
    if begun:
        *before, day = begun
        if day.data != data:
            raise RecgradError(f"model_dir '{folder}': is of '{day.data}', not of '{data}'; name another")
        return _Start(before, day, True, resumes)
    days = [] if parent is None else read_lineage(parent)
    day = _first_look(config, parent, data, name, options, processes)
    _write(folder, [*days, day])
    return _Start(days, day, False, False)


def result_of(model_dir: str | Path, exit_code: int) -> TrainResult:
    """What a run that other processes have made has left: its newest checkpoint's step and metrics."""
    path = CheckpointManager(model_dir).latest()
    if path is None:
        return TrainResult(Path(model_dir), 0, {}, 0.0, "", exit_code)
    snapshot = read_checkpoint(path)
    tree: Any = snapshot.tree
    metrics = dict(tree["state"].get("evaluated", {}).get("metrics", {}))
    return TrainResult(Path(model_dir), snapshot.step, metrics, 0.0, "", exit_code)


def _first_look(
    config: Any,
    parent: str | Path | None,
    data: str,
    name: str,
    options: Mapping[str, Any],
    processes: Processes,
) -> Day:
    """What the parent is worth on data that it has not seen."""
    if parent is None:
        return Day(name, data)
    processes.doing(f"evaluating what {name} begins from, before training")
    checkpoint = resolve_checkpoint(parent, processes.doing)
    kept = {key: options[key] for key in ("edit_config_json", "device", "custom_code") if key in options}
    with measuring_alone():  # the other ranks wait
        before = evaluate(
            config, checkpoint_path=checkpoint, eval_input_path=data, doing=processes.doing, **kept
        )
    step = int(checkpoint.name.rpartition("-")[2])
    told = "  ".join(f"{key} {value:.6f}" for key, value in sorted(before.items()))
    _log.info("%s, before training on it: %s", name, told)
    return Day(name, data, os.fspath(checkpoint.absolute()), step, before)


def _day_name(data: str) -> str:
    """The name of a file or folder, without its ending."""
    path = Path(data.rstrip("/"))
    return path.name.partition(".")[0] or path.name


def _write(folder: Path, days: Sequence[Day]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(day) for day in days], indent=1)
    write_file_atomically(folder / LINEAGE_FILE, text.encode() + b"\n")
