"""One rank of several runs, one after another: `rank_jobs.py JOBS OUT`, under torchrun's variables.

JOBS is a JSON list of {"port", "config", ...}: what is left of a job are arguments of
`recgrad.train`; `broken` is a rank and the batch of it whose loss is NaN, `slow_check_secs` how
long the check of a checkpoint's file takes; with `ahead` false, ids stay at home until their batch's
turn, and `unsound` is a rank and the batch ahead of it whose ids are refused. OUT gets what each run
left in this rank: its result or its error, its dense weights, how many files it has checked, by table
which rows it has read, and how often ids were sent ahead.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

import recgrad
from recgrad.embedding.sharded.engine import ShardedEngine
from recgrad.errors import DataError, RecgradError
from recgrad.models.base import Model
from recgrad.models.batch_ids import PreparedBatch
from recgrad.training import run
from recgrad.training.assembly import Training
from recgrad.training.checkpoint import folder
from recgrad.training.checkpoint.snapshot import TableRows
from recgrad.training.checkpoint.stored import StoredTable
from recgrad.training.dense_state import dense_state
from recgrad.training.task import Task
from recgrad.training.trainer import Trainer

built: list[Training] = []
build_training = run.build_training
report = Trainer._report
losses = Task.losses
check_file = folder.check_file
parts = {kind: kind.part for kind in (TableRows, StoredTable)}
read: dict[str, set[int]] = {}
prepare, send = Model.prepare, PreparedBatch.send
sends_ahead = ShardedEngine.sends_ahead
rows: list[int] = []


def remember(*args: Any, **kwargs: Any) -> Training:
    built.append(build_training(*args, **kwargs))
    return built[-1]


def part(table: TableRows, *args: Any) -> TableRows:
    found = parts[type(table)](table, *args)
    read.setdefault(table.name, set()).update(found.row_ids.tolist())
    return found


def count(trainer: Trainer) -> Any:
    found = report(trainer)
    rows.append(found.samples)
    return found


def watch_ids(ahead: bool, unsound: list[int] | None) -> list[int]:
    """Have ids sent ahead or not; the list that comes back grows by each batch whose ids are."""
    sent: list[int] = []
    batches = itertools.count(1)

    def check_ids(model: Model, batch: Any) -> Any:
        if [int(os.environ["RANK"]), next(batches)] == unsound:
            raise DataError("an id is outside its table")
        return prepare(model, batch)

    def count_sent(ids: PreparedBatch) -> None:
        sent.append(1 if ids.negatives is None else 2)
        send(ids)

    Model.prepare = check_ids  # type: ignore[method-assign]
    PreparedBatch.send = count_sent  # type: ignore[method-assign]
    ShardedEngine.sends_ahead = sends_ahead if ahead else False  # type: ignore[method-assign, assignment]
    return sent


def one(arguments: dict[str, Any]) -> dict[str, Any]:
    built.clear()
    rows.clear()
    read.clear()
    broken = arguments.pop("broken", None)
    slow_check_secs = arguments.pop("slow_check_secs", 0)
    batches = itertools.count(1)
    checked: list[Path] = []

    def check(path: Path, *args: Any, verify: bool, **kwargs: Any) -> None:
        if verify:
            checked.append(path)
            time.sleep(slow_check_secs)
        check_file(path, *args, verify=verify, **kwargs)

    def lose(task: Task, *args: Any) -> dict[str, torch.Tensor]:
        found = losses(task, *args)
        here = [int(os.environ["RANK"]), next(batches)] == broken
        return {name: value * torch.nan for name, value in found.items()} if here else found

    Task.losses = lose  # type: ignore[method-assign]
    folder.check_file = check
    sent = watch_ids(arguments.pop("ahead", True), arguments.pop("unsound", None))
    left: dict[str, Any] = {}
    try:
        result = recgrad.train(**arguments)
        left.update(step=result.step, metrics=dict(result.metrics), stopped=result.stopped)
    except Exception as error:  # the next job comes all the same, as on the other ranks
        known = isinstance(error, RecgradError)
        left.update(error=str(error) if known else traceback.format_exc(), kind=type(error).__name__)
    if built:
        state = dense_state(built[-1].task.model)
        left["dense"] = {name: value.numpy().copy() for name, value in state.items()}
    left["rows"] = list(rows)
    left["checked"] = len(checked)
    left["read"] = {name: set(ids) for name, ids in read.items()}
    left["sent"] = sent
    return left


def main() -> None:
    torch.set_num_threads(1)
    run.build_training = remember  # type: ignore[assignment]
    Trainer._report = count  # type: ignore[method-assign]
    for kind in parts:
        kind.part = part  # type: ignore[method-assign]
    left = []
    for job in json.loads(Path(sys.argv[1]).read_text()):
        os.environ["MASTER_PORT"] = str(job.pop("port"))
        left.append(one(job))
    Path(sys.argv[2]).write_bytes(pickle.dumps(left))


if __name__ == "__main__":
    main()
