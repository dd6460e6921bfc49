"""Predictions of a checkpoint for files of rows, by the model itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice

import pyarrow as pa
import torch

from recgrad.config.proto.data_pb2 import CsvDataset
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.loader import build_loader
from recgrad.data.readers.build import open_reader
from recgrad.export.calibrated import calibration_of
from recgrad.export.feature_texts import with_texts
from recgrad.export.prediction import ALL, ALL_READ, Prediction, carried
from recgrad.export.prediction_files import class_names, with_predictions
from recgrad.export.trained import predicted
from recgrad.training.processes import choose_device
from recgrad.training.profiling import StepTrace
from recgrad.training.run import Trained, load_trained
from recgrad.training.runtime import computing, set_threads


class TrainedRows:
    """The rows of files with the predictions of a checkpoint.

    Args:
        asked: what is asked for.

    Attributes:
        local_paths: the files that are read, where they lie on this machine's disks.
        text: whether they are text files.
    """

    def __init__(self, asked: Prediction) -> None:
        self._asked = asked
        trained = load_for(asked)
        data = trained.config.data_config
        names: tuple[str, ...] = ()
        if ALL in asked.carry_columns:
            names = tuple(open_reader(asked.input_path, data).schema.names)
        read = FeatureEncoder(trained.features).columns if ALL_READ in asked.carry_columns else ()
        self._task = trained.task
        groups = trained.task.model.groups.features
        read_by_model = {name for names in groups.values() for name in names}
        self._names = [feature.name for feature in trained.features if feature.name in read_by_model]
        heads = trained.task.each_head()
        self._classes = class_names(data, ((head.prediction_name, head.spec.label_name) for head in heads))
        self._calibration = calibration_of(trained, raw_scores=asked.raw_scores)
        self._loader = build_loader(
            trained.config,
            asked.input_path,
            features=trained.features,
            targets=None,
            training=False,
            rank=asked.rank,
            world_size=asked.world_size,
            carry_columns=carried(asked.carry_columns, names, read),
            pin=choose_device(asked.device).type == "cuda",
        )
        self.local_paths = self._loader.local_paths
        self.text = data.dataset_type == CsvDataset

    def tables(self, check: Callable[[], None], *, flat: bool) -> Iterator[pa.Table]:
        """Carried columns and predictions, in the order of the rows.

        Args:
            check: called between batches; may raise.
            flat: a column for each class, for CSV has no lists.
        """
        task, outputs = self._task, self._asked.output_columns
        with ExitStack() as stack:
            stack.enter_context(computing())
            stack.enter_context(torch.inference_mode())
            trace = self._trace()
            if trace is not None:
                stack.callback(trace.stop)
            for batch, kept in islice(self._loader.epoch_with_rows(), self._asked.predict_steps):
                check()
                if not batch.size:
                    continue
                scores = predicted(task, task(batch), self._calibration)
                if trace is not None:
                    trace.step()
                table = with_predictions(
                    kept, scores, output_columns=outputs, flat=flat, classes=self._classes
                )
                yield with_texts(table, batch, self._names) if self._asked.debug_level else table

    def _trace(self) -> StepTrace | None:
        """A trace of batches, if it is asked for."""
        asked = self._asked
        if asked.trace_dir is None:
            return None
        return StepTrace(asked.trace_dir, cuda=choose_device(asked.device).type == "cuda")


def load_for(asked: Prediction) -> Trained:
    """The model that is asked for, with its weights."""
    if asked.num_threads is not None:
        set_threads(asked.num_threads)
    return load_trained(
        asked.source,
        asked.checkpoint_path,
        edit_config_json=asked.all_edits(),
        exporting=True,
        device=choose_device(asked.device),
        custom_code=asked.custom_code,
    )
