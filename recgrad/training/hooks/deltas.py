"""Writes what has changed since the last time, for models that are served while they are trained."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from recgrad.embedding.deltas.changed import ChangedTable, join_pieces
from recgrad.embedding.deltas.reading import keys_of_delta
from recgrad.embedding.deltas.record import DeltaError, DeltaRecord, published, read_record
from recgrad.embedding.deltas.writing import await_parts, remove_leftovers, write_delta, write_part
from recgrad.embedding.local.changes import TableChanges
from recgrad.models.base import Model
from recgrad.training.hook import Hook, StepReport
from recgrad.training.processes import Processes
from recgrad.training.trainer import Trainer

_log = logging.getLogger("recgrad.training")


class DumpDeltas(Hook):
    """Writes a delta every so many steps or seconds, and before each checkpoint.

    So a checkpoint has no changes that no delta has. A run that is resumed finds deltas after its checkpoint
    that a killed run wrote; their rows count as changed, so that the next delta, whose number follows
    theirs, puts right whoever applied them. Of several ranks each writes the rows that it has, and the first
    publishes the delta when all have.

    Args:
        model: that is trained.
        dense: gives its dense weights as an export of now would have them, copied.
        folder: where deltas go.
        prefix: of their files.
        every_steps: between two; 0 for none.
        every_secs: between two, counted from the start; 0 for none.
        quant: NONE or INT8.
        own_folder: nothing but this model_dir's deltas is there.
    """

    def __init__(
        self,
        model: Model,
        dense: Callable[[], Mapping[str, Any]],
        folder: Path,
        *,
        prefix: str,
        every_steps: int,
        every_secs: float,
        quant: str,
        own_folder: bool = False,
    ) -> None:
        self._model, self._dense, self._folder, self._prefix = model, dense, folder, prefix
        self._every_steps, self._every_secs = every_steps, every_secs
        self._quant, self._own_folder = quant, own_folder
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="deltas")
        self._writing: Future[DeltaRecord] | None = None
        self._logs: dict[str, TableChanges] = {}
        self._ended = threading.Event()
        self._due = 0.0
        self._owes = False  # what a killed run wrote is to be put right
        self._is_main = True
        engine: Any = model.engine
        features: dict[str, list[str]] = {}
        for lookup in () if engine is None else engine.lookups.values():
            features.setdefault(lookup.table, []).append(lookup.key)
        self._features = {name: ",".join(dict.fromkeys(keys)) for name, keys in features.items()}

    def on_start(self, trainer: Trainer) -> None:
        engine: Any = self._model.engine
        tables = {} if engine is None else engine.tables
        self._logs = {name: TableChanges(table) for name, table in tables.items()}
        self._due = time.monotonic() + self._every_secs
        state, sizes = trainer.state, self._sizes()
        stream = trainer.processes.broadcast(uuid.uuid4().hex)
        if state.deltas.get("tables") != sizes:  # others than before: no delta could say how they changed
            state.deltas = {"stream": stream, "number": 0, "id": "", "step": state.step}
            state.deltas["tables"] = sizes
        if state.step == 0 and self._own_folder:
            self._remove_unfounded(trainer.processes)
        for number, path in sorted(published(self._folder).items()):
            record = read_record(path)
            if record.stream != state.deltas["stream"]:
                raise DeltaError(
                    f"{self._folder}: has deltas of another run, or of this one with other tables; set "
                    "delta_embedding_dump_config.output_dir to another folder, or remove them"
                )
            if number > state.deltas["number"]:
                for name, keys in keys_of_delta(self._folder, record).items():
                    if name in self._logs:
                        self._logs[name].mark(keys)
                state.deltas |= {"number": number, "id": record.id}
                self._owes = True
        if trainer.processes.is_main:
            remove_leftovers(self._folder, self._prefix)

    def _remove_unfounded(self, processes: Processes) -> None:
        """Remove deltas of a run that was killed before its first checkpoint: no bundle can follow them."""
        if processes.is_main:
            for path in published(self._folder).values():
                path.unlink()  # the rest of it is left over by that
            remove_leftovers(self._folder, self._prefix)
        processes.barrier()

    def _sizes(self) -> dict[str, list[int]]:
        """Dim and rows, or room for ids, of each table."""
        specs = [log.table.spec for log in self._logs.values()]
        rows = [spec.num_rows if spec.living is None else spec.living.capacity for spec in specs]
        return {spec.name: [spec.dim, number] for spec, number in zip(specs, rows, strict=True)}

    def after_step(self, trainer: Trainer, report: StepReport) -> None:
        if report.step % self._every_steps == 0 if self._every_steps else self._time_is_due(trainer):
            self._dump(trainer)

    def while_waiting(self, trainer: Trainer) -> None:
        # A stream may stand still for hours, and what was learned before is to be served.
        if not self._every_steps and self._time_is_due(trainer):
            self._dump(trainer)

    def _time_is_due(self, trainer: Trainer) -> bool:
        due = time.monotonic() >= self._due
        while self._due <= time.monotonic():  # missed ones are left out
            self._due += self._every_secs
        if trainer.processes.world_size > 1:  # the first rank's clock
            due = trainer.processes.sum([due and trainer.processes.is_main])[0] > 0
        return due

    def before_save(self, trainer: Trainer) -> None:
        self._dump(trainer)
        self._wait()

    def on_end(self, trainer: Trainer) -> None:
        self._dump(trainer)
        self._wait()

    def close(self, trainer: Trainer) -> None:
        self._ended.set()
        self._writer.shutdown()

    def _wait(self) -> None:
        """Until the last delta is published; raises what went wrong."""
        writing, self._writing = self._writing, None
        if writing is not None:
            record = writing.result()
            if not self._is_main:
                return
            rows, gone = (sum(getattr(t, name) for t in record.tables) for name in ("rows", "gone"))
            _log.info("delta %d of step %d: %s rows, %s gone", record.number, record.step, f"{rows:,}", gone)

    def _dump(self, trainer: Trainer) -> None:
        """Take what has changed, and write it on a thread."""
        state, before = trainer.state, trainer.state.deltas
        if state.step == before["step"] and not self._owes:
            return
        self._wait()
        processes = trainer.processes
        created, own_id = processes.broadcast((time.time(), uuid.uuid4().hex))
        record = DeltaRecord(
            before["stream"],
            before["number"] + 1,
            before["id"],
            state.step,
            before["step"],
            created,
            self._quant,
            id=own_id,
        )
        self._model.settle()
        tables = join_pieces(
            [piece for name, log in self._logs.items() for piece in self._changed(name, log)]
        )
        dense = self._dense()  # on all ranks: averages may have statistics of all ranks' batches
        self._is_main, ranks = processes.is_main, processes.world_size
        place = (self._folder, self._prefix, record)
        if self._is_main:
            wait = partial(await_parts, *place, ranks, processes.timeout_secs, self._ended)
            write: Callable[..., DeltaRecord] = partial(write_delta, *place, tables, dense)
            self._writing = self._writer.submit(write, ranks=ranks, others=wait if ranks > 1 else None)
        else:
            write = partial(write_part, *place, tables)
            self._writing = self._writer.submit(write, rank=processes.rank, ranks=ranks)
        state.deltas = {**before, "number": record.number, "id": record.id, "step": state.step}
        self._owes = False

    def _changed(self, name: str, log: TableChanges) -> list[ChangedTable]:
        features = self._features.get(name, "")
        return [ChangedTable(name, log.table.spec.dim, features, *changed) for changed in log.take()]
