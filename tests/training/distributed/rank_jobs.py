"""One rank of several runs, one after another: `rank_jobs.py JOBS OUT`, under torchrun's variables.

JOBS is a JSON list of {"port", "config", ...}: what is left of a job are arguments of
`recgrad.train`. OUT gets what each run left in this rank: its result or its error, and its
dense weights.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

import recgrad
from recgrad.errors import RecgradError
from recgrad.training import run
from recgrad.training.assembly import Training
from recgrad.training.capture import dense_state
from recgrad.training.trainer import Trainer

built: list[Training] = []
build_training = run.build_training
report = Trainer._report
rows: list[int] = []


def remember(*args: Any, **kwargs: Any) -> Training:
    built.append(build_training(*args, **kwargs))
    return built[-1]


def count(trainer: Trainer) -> Any:
    found = report(trainer)
    rows.append(found.samples)
    return found


def one(arguments: dict[str, Any]) -> dict[str, Any]:
    built.clear()
    rows.clear()
    left: dict[str, Any] = {}
    try:
        result = recgrad.train(**arguments)
        left.update(step=result.step, metrics=dict(result.metrics), stopped=result.stopped)
    except RecgradError as error:
        left.update(error=str(error), kind=type(error).__name__)
    if built:
        state = dense_state(built[-1].task.model)
        left["dense"] = {name: value.numpy().copy() for name, value in state.items()}
    left["rows"] = list(rows)
    return left


def main() -> None:
    torch.set_num_threads(1)
    run.build_training = remember  # type: ignore[assignment]
    Trainer._report = count  # type: ignore[method-assign]
    left = []
    for job in json.loads(Path(sys.argv[1]).read_text()):
        os.environ["MASTER_PORT"] = str(job.pop("port"))
        left.append(one(job))
    Path(sys.argv[2]).write_bytes(pickle.dumps(left))


if __name__ == "__main__":
    main()
