"""Metrics of rows whose features were dealt out to other rows, in memory; encoding happens once.

Models that compare items with others have two sides. Features of users are dealt out among rows, and those of
items among all items that are compared: of a catalogue, or of a batch, own and drawn ones together, since
values that stay among own items would still tell them from drawn ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import torch

from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.batch import Batch
from recgrad.data.loader import build_loader
from recgrad.data.readers.tables import read_table
from recgrad.data.taking import feature_names, only_features, stack_features, take_rows, with_features
from recgrad.errors import DataError, RecgradError
from recgrad.models.targets import find_targets
from recgrad.models.towers import TowerEncoder
from recgrad.retrieval.lists import Floats
from recgrad.training.catalogue import CatalogueEvaluation, chosen_rows
from recgrad.training.run import Trained
from recgrad.training.signals import StopRequest
from recgrad.training.task import Task

CHUNK_ROWS = 4096
"""Rows that are computed together."""
Metrics = dict[str, float]


class Deals(Protocol):
    """Rows in memory, and the metrics of a model on them.

    Attributes:
        rows: how many there are.
        directions: metrics with a better end, and whether it is the higher one.
    """

    rows: int
    directions: dict[str, bool]

    def measured(self, keys: set[str] | None = None, repeat: int = 0) -> Metrics:
        """The metrics, with the features `keys` dealt out, another way at each repeat; None for as it is."""


def open_deals(trained: Trained, data: str, *, rows: int, seed: int, stop: StopRequest) -> Deals:
    """The first rows of a dataset, to be dealt out as the model compares them.

    Raises:
        RecgradError: they have no metric with a better end, or too few rows.
    """
    config = type(trained.config)()
    config.CopyFrom(trained.config)
    config.eval_input_path = data
    compares = any(head.spec.retrieval for head in trained.task.each_head())
    parts: list[Deals] = []
    if compares and config.eval_config.HasField("catalogue"):
        parts.append(CatalogueDeals(trained, config, rows, seed, stop))
    if trained.task.metric_directions():
        kind = SampledDeals if compares else RowDeals
        parts.append(kind(trained, config, rows, seed, stop))
    if not parts:
        add = "recall_at_k { top_k: 10 }, or eval_config.catalogue" if compares else "auc"
        raise RecgradError(f"importance: model_config.metrics has no metric with a better end; add {add}")
    if min(part.rows for part in parts) < 2:
        raise DataError(f"importance: '{data}' has fewer than two rows, which cannot be shuffled")
    return parts[0] if len(parts) == 1 else _Both(parts)


class _Both:
    """The metrics of several."""

    def __init__(self, parts: list[Deals]) -> None:
        self._parts = parts
        self.rows = max(part.rows for part in parts)
        self.directions = {name: up for part in parts for name, up in part.directions.items()}

    def measured(self, keys: set[str] | None = None, repeat: int = 0) -> Metrics:
        return {k: v for part in self._parts for k, v in part.measured(keys, repeat).items()}


class RowDeals:
    """Rows that are scored each by itself."""

    def __init__(
        self, trained: Trained, config: PipelineConfig, rows: int, seed: int, stop: StopRequest
    ) -> None:
        self._task, self._stop = trained.task, stop
        self._rng, self._deals = np.random.default_rng(seed), list[torch.Tensor]()
        self.directions = trained.task.metric_directions()
        config.data_config.eval_batch_size = rows
        self._batch = next(_batches(trained, config), None)
        assert self._batch is None or self._batch.negatives is None
        self.rows = 0 if self._batch is None else self._batch.size

    def measured(self, keys: set[str] | None = None, repeat: int = 0) -> Metrics:
        """See `Deals`."""
        assert self._batch is not None
        batch = self._batch
        if keys is None:
            return _measure(self._task, _chunks(batch), self._stop)
        while len(self._deals) <= repeat:
            self._deals.append(torch.from_numpy(self._rng.permutation(self.rows)))
        deal = self._deals[repeat]
        values = only_features(batch, keys)
        starts = range(0, self.rows, CHUNK_ROWS)
        dealt = (
            with_features(chunk, take_rows(values, deal[at : at + chunk.size]))
            for at, chunk in zip(starts, _chunks(batch))
        )
        return _measure(self._task, dealt, self._stop)


class SampledDeals:
    """Rows that are compared with sampled items, or with those of other rows: batches as for evaluation."""

    def __init__(
        self, trained: Trained, config: PipelineConfig, rows: int, seed: int, stop: StopRequest
    ) -> None:
        self._task, self._seed, self._stop = trained.task, seed, stop
        self.directions = trained.task.metric_directions()
        self._batches: list[Batch] = []
        self.rows = 0
        for batch in _batches(trained, config):
            if batch.next_items is not None or self._lists_items(batch):
                raise RecgradError(
                    "importance: rows of this model have several items of their own, which sampled metrics "
                    "cannot deal out; set eval_config.catalogue, and leave model_config.metrics out"
                )
            self._batches.append(batch)
            self.rows += batch.size
            if self.rows >= rows:
                break

    @staticmethod
    def _lists_items(batch: Batch) -> bool:
        """Whether items of rows are sequences, of which rows may have several."""
        return batch.negatives is not None and bool(batch.negatives.sequence_lengths)

    def measured(self, keys: set[str] | None = None, repeat: int = 0) -> Metrics:
        """See `Deals`."""
        if keys is None:
            return _measure(self._task, self._batches, self._stop)
        dealt = (
            _dealt_batch(batch, keys, (self._seed, repeat, number))
            for number, batch in enumerate(self._batches)
        )
        return _measure(self._task, dealt, self._stop)


def _dealt_batch(batch: Batch, keys: set[str], key: tuple[int, ...]) -> Batch:
    """The rows with features of other rows, and items with those of other items."""
    negatives = batch.negatives
    of_items = set() if negatives is None else keys & feature_names(negatives)
    of_users = only_features(batch, keys - of_items)
    changed = with_features(batch, take_rows(of_users, _permutation(batch.size, *key)))
    if negatives is None or not of_items:
        return changed
    drawn = only_features(negatives, of_items)
    if batch.comparison is not None and batch.comparison.own is not None:
        # The own items are among the negatives, which are the whole catalogue.
        mixed = take_rows(drawn, _permutation(negatives.size, *key, 1))
        return replace(changed, negatives=with_features(negatives, mixed))
    pool = stack_features(only_features(batch, of_items), drawn)
    deal = _permutation(pool.size, *key, 1)
    return replace(
        with_features(changed, take_rows(pool, deal[: batch.size])),
        negatives=with_features(negatives, take_rows(pool, deal[batch.size :])),
    )


class CatalogueDeals:
    """Lists of a whole catalogue: rows of users, and all items."""

    def __init__(
        self, trained: Trained, config: PipelineConfig, rows: int, seed: int, stop: StopRequest
    ) -> None:
        self._evaluation = CatalogueEvaluation(config, trained.features, trained.task.model)
        self._seed, self._stop = seed, stop
        self.directions = self._evaluation.directions()
        data = self._evaluation.data
        self._towers = {
            name: TowerEncoder(trained.task.model, trained.features, name) for name in ("user", "item")
        }
        user, item = self._towers["user"], self._towers["item"]
        asked = data.queries.rows[:rows]
        users = pa.concat_tables(chosen_rows(data.rows, user.columns, asked, 1))
        items = pa.concat_tables(read_table(data.items, item.columns))
        self._batches = {"user": user.encode(users), "item": item.encode(items)}
        self._vectors: dict[str, Floats] = {}
        self.rows = len(asked)

    def measured(self, keys: set[str] | None = None, repeat: int = 0) -> Metrics:
        """See `Deals`."""
        if not self._vectors:
            self._vectors = {name: self._embed(name, batch) for name, batch in self._batches.items()}
        vectors = dict(self._vectors)
        for number, (name, batch) in enumerate(self._batches.items()):
            if keys is not None and keys & feature_names(batch):
                deal = _permutation(batch.size, self._seed, repeat, number)
                mixed = take_rows(only_features(batch, keys), deal)
                vectors[name] = self._embed(name, with_features(batch, mixed))
        found = self._evaluation.measured(vectors["item"], vectors["user"])
        return {name: found[name] for name in self.directions}

    def _embed(self, name: str, batch: Batch) -> Floats:
        found = []
        for chunk in _chunks(batch):
            self._stop.check()
            found.append(self._towers[name].vectors(chunk))
        return np.concatenate(found)


def _batches(trained: Trained, config: PipelineConfig) -> Iterator[Batch]:
    for name in ("sample_cost_field", "batch_cost_size"):
        config.data_config.ClearField(name)
    targets = find_targets(trained.config)
    loader = build_loader(
        config, config.eval_input_path, features=trained.features, targets=targets, training=False
    )
    return iter(loader.epoch(0))


def _chunks(batch: Batch) -> Iterator[Batch]:
    for at in range(0, batch.size, CHUNK_ROWS):
        yield take_rows(batch, torch.arange(at, min(at + CHUNK_ROWS, batch.size)))


def _permutation(count: int, *key: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(key).permutation(count))


def _measure(task: Task, batches: Iterable[Batch], stop: StopRequest) -> Metrics:
    task.reset_metrics()
    with torch.inference_mode():
        for batch in batches:
            stop.check()
            task.update_metrics(task(batch), batch)
    return task.compute_metrics()
