"""The same config with several seeds, each a run of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recgrad.config import PipelineConfig, edit_config
from recgrad.config.flat import flat
from recgrad.errors import RecgradError
from recgrad.experiments.runs import Run, read_run
from recgrad.training.hooks.events import EVENTS_FILE
from recgrad.training.run import train
from recgrad.training.state import TrainResult

NAME = "seed-{}"
ENDED = "repeat.ended"
"""A file that says that the run of a seed came to its end: a run that a signal has stopped looks alike."""


def parse_seeds(text: str) -> list[int]:
    """`5` is 0 to 4; `3,7,8` are those.

    Raises:
        RecgradError: they are no seeds, or one stands twice.
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise RecgradError(f"--seeds: expected a number or numbers joined by commas, got '{text}'") from None
    seeds = list(range(numbers[0])) if len(numbers) == 1 and "," not in text else numbers
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise RecgradError(f"--seeds: expected different seeds from 0 up, got '{text}'")
    return seeds


def repeat(
    config: PipelineConfig, seeds: Sequence[int], out: Path, *, custom_code: bool = True, device: str = "auto"
) -> Iterator[tuple[int, Run, TrainResult | None]]:
    """Train with each seed into `out/seed-N`; what is finished there is taken as it is, the rest resumed.

    Yields each seed with its run, and with how it ended if it was trained now.

    Raises:
        RecgradError: a folder there holds a run of another config.
    """
    for seed in seeds:
        folder = out / NAME.format(seed)
        own = edit_config(config, {"train_config.seed": seed, "model_dir": str(folder)})
        begun, ended = (folder / EVENTS_FILE).exists(), folder / ENDED
        if begun:
            run = read_run(folder)
            _check_same(own, run)
            if ended.exists():
                yield seed, run, None
                continue
        result = train(own, continue_train=begun, custom_code=custom_code, device=device)
        if not result.exit_code:
            ended.write_text("")
        yield seed, read_run(folder), result
        if result.exit_code:
            return


def _check_same(config: PipelineConfig, run: Run) -> None:
    ours, theirs = flat(config), flat(run.config)
    for name in dict.fromkeys([*ours, *theirs]):
        left, right = ours.get(name), theirs.get(name)
        if name != "model_dir" and left != right:
            what = f"holds a run with {name} {_shown(right)}, not {_shown(left)}"
            raise RecgradError(f"{run.folder}: {what}; choose another --out")


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)[:80]
