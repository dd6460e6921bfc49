"""Predictions of a bundle for files of rows: no torch, several threads, rows in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from recgrad.config import PipelineConfig, edit_config
from recgrad.config.class_paths import refuse_custom_code
from recgrad.config.load import load_with_locations
from recgrad.config.messages import shortest_float
from recgrad.config.proto.data_pb2 import CsvDataset, DataConfig
from recgrad.data.arrow_columns import without_dictionary
from recgrad.data.bad_rows import BadRowTally, Skipped, add_unparsed, fail, skip
from recgrad.data.encoded import Encoded
from recgrad.data.faults import Faults
from recgrad.data.order import plan_epoch, take_segments
from recgrad.data.readers.build import open_reader
from recgrad.data.readers.kafka import refuse_topics
from recgrad.data.readers.reader import Block
from recgrad.errors import RecgradError
from recgrad.export.feature_texts import with_texts
from recgrad.export.prediction import Prediction, carried
from recgrad.export.prediction_files import class_names, with_predictions
from recgrad.openmp import choose_threads
from recgrad.serving.manifest import CONFIG
from recgrad.serving.part import BadRowsError
from recgrad.serving.scorer import CHUNK_ROWS, Scorer, Scores


class BundleRows:
    """The rows of files with the predictions of a bundle.

    Args:
        asked: what is asked for.

    Attributes:
        local_paths: the files that are read, where they lie on this machine's disks.
        text: whether they are text files.
    """

    def __init__(self, asked: Prediction) -> None:
        self._asked = asked
        config = _config(asked)
        data = config.data_config
        self._scorer = open_bundle(asked)
        tasks = self._scorer.manifest.tasks
        self._classes = class_names(data, ((task.output, task.label) for task in tasks))
        self._batch_rows = data.eval_batch_size if data.HasField("eval_batch_size") else data.batch_size
        self._skips = data.on_bad_row == DataConfig.SKIP
        self._max_ratio = shortest_float(data.max_bad_row_ratio)
        refuse_topics(
            asked.input_path, "predict with a checkpoint (recgrad predict --checkpoint_path), or on files"
        )
        self._reader = open_reader(asked.input_path, data)
        self._read = tuple(self._scorer.schema.names)
        self._carry = carried(asked.carry_columns, self._reader.schema.names, self._read)
        self._columns = tuple(dict.fromkeys((*self._read, *self._carry)))
        self._reader.check_columns(self._columns)
        self.local_paths = self._reader.local_paths
        self.text = data.dataset_type == CsvDataset

    def tables(self, check: Callable[[], None], *, flat: bool) -> Iterator[pa.Table]:
        """Carried columns and predictions, in the order of the rows.

        Args:
            check: called between batches; may raise.
            flat: a column for each class, for CSV has no lists.
        """
        tally = BadRowTally(self._max_ratio)
        threads = choose_threads(self._asked.num_threads, self._asked.world_size)
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="predict"))
            waiting: deque[Future[_Scored]] = deque()
            stack.callback(lambda: [future.cancel() for future in waiting])
            for block in self._blocks():
                check()
                waiting.append(pool.submit(self._score, block))
                if len(waiting) > 2 * threads:
                    yield from self._done(waiting.popleft().result(), tally, flat)
            while waiting:
                check()
                yield from self._done(waiting.popleft().result(), tally, flat)
        tally.finish()

    def _done(self, scored: _Scored, tally: BadRowTally, flat: bool) -> Iterator[pa.Table]:
        for skipped in scored.skipped:
            tally.note(skipped)
        bad = sum(len(skipped.rows) for skipped in scored.skipped)
        tally.add(scored.carried.num_rows + bad, bad)
        if scored.carried.num_rows:
            outputs = self._asked.output_columns
            table = with_predictions(
                scored.carried, scored.scores, output_columns=outputs, flat=flat, classes=self._classes
            )
            names = [spec.name for spec in self._scorer.features]
            yield table if scored.encoded is None else with_texts(table, scored.encoded, names)

    def _blocks(self) -> Iterator[Block]:
        """The rows of this process in blocks of a batch at most, as far as steps are asked for."""
        asked, reader = self._asked, self._reader
        plan = plan_epoch(
            [fragment.num_rows for fragment in reader.fragments],
            batch_size=1,
            shuffle=False,
            window_batches=1,
            seed=0,
            epoch=0,
            rank=asked.rank,
            world_size=asked.world_size,
        )
        steps = asked.predict_steps
        most = plan.num_rows if steps is None else min(plan.num_rows, steps * self._batch_rows)
        size = min(self._batch_rows, CHUNK_ROWS)
        for segment in take_segments(plan.segments, 0, most):
            fragment, at = reader.fragments[segment.fragment], 0
            for block in reader.read(fragment, self._columns):
                count = block.table.num_rows
                placed = replace(block, file=fragment.file, first_row=fragment.first_row + at)
                low, high = max(segment.start - at, 0), min(segment.stop - at, count)
                for start in range(low, high, size):
                    yield placed.slice(start, min(start + size, high))
                at += count
                if at >= segment.stop:
                    break

    def _score(self, block: Block) -> _Scored:
        """The predictions of a block, without rows that cannot be read where these are skipped."""
        table = pa.table({name: without_dictionary(block.table.column(name)) for name in self._columns})
        rows = block.row_numbers()
        skipped: list[Skipped] = []

        def leave_out(faults: Faults) -> None:
            nonlocal table, rows
            files = np.full(len(rows), block.file, np.int64)
            if not self._skips:
                fail(faults, self._reader.files, files, rows)
            skipped.append(skip(faults, self._reader.files, files, rows))
            keep = np.ones(len(rows), np.bool_)
            keep[skipped[-1].rows] = False
            table, rows = table.filter(pa.array(keep)), rows[keep]

        unparsed = Faults()
        add_unparsed(unparsed, block.bad)
        if unparsed:
            leave_out(unparsed)
        try:
            scores = self._scorer.score(table)
        except BadRowsError as error:
            leave_out(error.faults)
            scores = self._scorer.score(table)
        encoded = self._scorer.encode(table) if self._asked.debug_level and table.num_rows else None
        return _Scored(table.select(self._carry), scores, tuple(skipped), encoded)


@dataclass(frozen=True)
class _Scored:
    """A block with its predictions, the rows that were left out, and its features, if they are asked for."""

    carried: pa.Table
    scores: Scores
    skipped: tuple[Skipped, ...]
    encoded: Encoded | None


def open_bundle(asked: Prediction) -> Scorer:
    """The scorer of the bundle that is asked for, if the rest fits a bundle.

    Raises:
        RecgradError: something is asked for that only a checkpoint can do.
    """
    if asked.checkpoint_path is not None:
        raise RecgradError(
            f"predict: '{asked.source}' is a bundle, which has no checkpoints; leave out --checkpoint_path "
            f"{asked.checkpoint_path}"
        )
    if str(asked.device) not in ("auto", "cpu"):
        raise RecgradError(
            f"predict: a bundle is scored on the CPU, got device {asked.device}; name the model_dir instead"
        )
    if asked.trace_dir is not None:
        raise RecgradError(
            "predict: is_profiling traces torch, which a bundle is scored without; name the model_dir, "
            "or see where time goes with: py-spy record -- recgrad predict …"
        )
    if not asked.custom_code:
        loaded = load_with_locations(Path(asked.source) / CONFIG)
        refuse_custom_code(loaded.message, loaded.locations)
    return Scorer.load(asked.source, raw_scores=asked.raw_scores)


def _config(asked: Prediction) -> PipelineConfig:
    """The config of the bundle; only how rows are read can be changed."""
    config = load_with_locations(Path(asked.source) / CONFIG).message
    edited = edit_config(config, asked.all_edits())
    before, after = PipelineConfig(), PipelineConfig()
    before.CopyFrom(config)
    after.CopyFrom(edited)
    before.ClearField("data_config")
    after.ClearField("data_config")
    if before != after:
        raise RecgradError(
            "predict: of a bundle only data_config can be edited, since the model is finished; edit the "
            "config of the model_dir and export it again"
        )
    return edited
