"""Evaluation over a whole catalogue: each user's list of the best items, and how good it is.

```
item files ─▶ item tower ─▶ vectors ─▶ exact search ─▶ lists ─▶ measures, beside those of the most
eval rows  ─▶ user tower ─▶ queries ───────▲                    popular items
```
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from recgrad.check.catalogue import DEFAULT_TOP_K, PREFIX
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.features.base import Feature
from recgrad.data.readers.reader import Reader
from recgrad.data.readers.tables import read_table
from recgrad.models.base import Model
from recgrad.models.towers import TowerEncoder
from recgrad.retrieval.exact import PackedVectors
from recgrad.retrieval.interests import rank_sets, search_interests
from recgrad.retrieval.lists import Array, Floats, Found, Ints, ItemSets
from recgrad.retrieval.measures import BETTER_HIGH, CatalogueMeasures
from recgrad.retrieval.popular import MostPopular
from recgrad.retrieval.similarity import item_side, query_side
from recgrad.training.catalogue_data import CatalogueData, read_catalogue
from recgrad.training.processes import Processes
from recgrad.training.signals import StopRequest
from recgrad.training.task import Task

_log = logging.getLogger("recgrad.training")

BASELINE = "most_popular_"
ROWS = 4096  # of one pass of a tower


class CatalogueEvaluation:
    """Ranks a catalogue for the queries of the evaluation data.

    Files are read for their ids once; each evaluation reads the columns of the towers again.

    Args:
        config: with eval_config.catalogue.
        features: all features.
        model: with a tower "user" and a tower "item"; evaluated as it is then.
        processes: all ranks, each of which takes a part of items and queries.
    """

    def __init__(
        self,
        config: PipelineConfig,
        features: Sequence[Feature],
        model: Model,
        processes: Processes | None = None,
    ) -> None:
        self._config, self._features, self._model = config, features, model
        self._processes = processes or Processes()
        self.ks = sorted(set(config.eval_config.catalogue.top_k)) or [DEFAULT_TOP_K]
        self._said = self._said_baseline = False

    @cached_property
    def data(self) -> CatalogueData:
        """What the files say."""
        return read_catalogue(self._config)

    def run(self, stop: StopRequest | None = None) -> dict[str, float]:
        """The measures of the model's lists as metrics, such as `catalogue_recall@20`; it is in eval mode.

        Raises:
            InterruptedBySignal: `stop` was asked for.
        """
        stop = stop or StopRequest()
        data, queries = self.data, self.data.queries
        similarity, boosted = self._model.similarity, data.boosts is not None
        packed = PackedVectors(item_side(self._item_vectors(stop), similarity, data.boosts))
        measures = self._measures()
        begin, end = self._share(len(queries.rows))
        tower = TowerEncoder(self._model, self._features, "user")
        for vectors in self._embed(tower, data.rows, queries.rows[begin:end], len(queries.rows), stop):
            last = begin + len(vectors)
            if last > begin:
                found = self._lists(packed, query_side(vectors, similarity, boosted), begin, last)
                measures.update(found.items, queries.relevant.rows(begin, last), queries.missing[begin:last])
            begin = last
        if self._processes.distributed:
            measures.load(np.array(self._processes.sum(measures.state().tolist())))
        if not self._said and self._processes.is_main:
            self._said = True
            _log.info(self._facts(measures))
        return {PREFIX + name: value for name, value in measures.compute().items()}

    def measured(self, items: Floats, users: Floats) -> dict[str, float]:
        """As `run`, of vectors that are there: of all items, and of the first queries; by one process."""
        queries, similarity = self.data.queries, self._model.similarity
        packed = PackedVectors(item_side(items, similarity))
        measures = self._measures()
        for begin in range(0, len(users), ROWS):
            end = min(begin + ROWS, len(users))
            found = self._lists(packed, query_side(users[begin:end], similarity), begin, end)
            measures.update(found.items, queries.relevant.rows(begin, end), queries.missing[begin:end])
        return {PREFIX + name: value for name, value in measures.compute().items()}

    def directions(self) -> dict[str, bool]:
        """Of each metric that has a better end, whether it is the higher one: ndcg decides first."""
        names = sorted(BETTER_HIGH, key=lambda name: name != "ndcg")
        return {f"{PREFIX}{name}@{k}": True for k in self.ks for name in names}

    @cached_property
    def baseline(self) -> dict[str, float]:
        """The measures of the most popular items."""
        data, queries = self.data, self.data.queries
        measures = self._measures()
        order = MostPopular(data.interactions)
        for begin in range(0, len(queries.rows), ROWS):
            end = min(begin + ROWS, len(queries.rows))
            if queries.candidates is None:
                seen = None if queries.seen is None else queries.seen.rows(begin, end)
                found = order.search(end - begin, self.ks[-1], banned=seen)
            else:
                popular = data.interactions.astype(np.float32)[:, None]
                ones = np.ones((end - begin, 1), np.float32)
                found = rank_sets(ones, popular.__getitem__, self._candidates(begin, end), self.ks[-1])
            measures.update(found.items, queries.relevant.rows(begin, end), queries.missing[begin:end])
        return measures.compute()

    def baseline_metrics(self) -> dict[str, float]:
        """The measures of the most popular items as metrics, such as `most_popular_recall@20`."""
        return {BASELINE + name: value for name, value in self.baseline.items()}

    def say_baseline(self) -> None:
        """Log what the most popular items reach, once."""
        if not self._said_baseline and self._processes.is_main:
            self._said_baseline = True
            shown = "  ".join(
                f"{name} {value:.6f}" for name, value in sorted(self.baseline_metrics().items())
            )
            _log.info("for comparison: %s", shown)

    def _measures(self) -> CatalogueMeasures:
        return CatalogueMeasures(self.ks, len(self.data.known), self.data.interactions)

    def _lists(self, packed: PackedVectors, vectors: Floats, begin: int, end: int) -> Found:
        """The lists of queries begin … end."""
        queries, k = self.data.queries, self.ks[-1]
        if queries.candidates is not None:
            sets = self._candidates(begin, end)

            def rank(asked: Array, own: ItemSets | None) -> Found:
                assert own is not None
                return rank_sets(asked, packed.vectors, own, k)

            return search_interests(rank, vectors, sets)
        seen = None if queries.seen is None else queries.seen.rows(begin, end)
        return search_interests(lambda asked, banned: packed.search(asked, k, banned=banned), vectors, seen)

    def _candidates(self, begin: int, end: int) -> ItemSets:
        """The candidates of some queries, without what is masked."""
        queries = self.data.queries
        assert queries.candidates is not None
        sets = queries.candidates.rows(begin, end)
        if queries.seen is None:
            return sets
        seen = queries.seen.rows(begin, end)
        owner = sets.queries
        width = len(self.data.known)
        kept = ~np.isin(owner * width + sets.items, seen.queries * width + seen.items)
        return ItemSets.of(owner[kept], sets.items[kept], end - begin)

    def _item_vectors(self, stop: StopRequest) -> Floats:
        tower, items = TowerEncoder(self._model, self._features, "item"), self.data.items
        begin, end = self._share(items.num_rows)
        own = list(self._embed(tower, items, np.arange(begin, end), items.num_rows, stop))
        parts: list[Floats] = self._processes.gather(np.concatenate(own))
        return np.concatenate(parts)

    def _share(self, count: int) -> tuple[int, int]:
        """This rank's part of so many rows."""
        rank, ranks = self._processes.rank, self._processes.world_size
        return count * rank // ranks, count * (rank + 1) // ranks

    def _embed(
        self, tower: TowerEncoder, reader: Reader, rows: Ints, total: int, stop: StopRequest
    ) -> Iterator[Floats]:
        """Vectors of some rows; every rank makes as many passes, for a lookup is one of all ranks."""
        passes = max(1, -(-total // (self._processes.world_size * ROWS)))
        at = 0
        for table in chosen_rows(reader, tower.columns, rows, passes):
            stop.check()
            yield tower.vectors(tower.encode(table, at))
            at += table.num_rows

    def _facts(self, measures: CatalogueMeasures) -> str:
        queries = self.data.queries
        what = "queries" if self._config.eval_config.catalogue.user_id_field == "" else "users"
        parts = [f"catalogue of {len(self.data.known):,} items, {measures.queries:,} {what}"]
        if queries.candidates is not None:
            parts.append(f"candidates given, {len(queries.candidates.items) / len(queries.rows):,.1f} each")
        parts.append("seen items left out" if queries.seen is not None else "seen items not masked")
        boost = self._config.eval_config.catalogue.boost
        if boost.field:
            parts.append(f"{boost.log_weight:g} · log(1 + {boost.field}) added to similarities")
        if measures.without:
            parts.append(f"{measures.without:,} {what} without an item to find left out")
        if measures.missing:
            parts.append(f"{measures.missing:,} items to find are not in the catalogue and count as misses")
        if queries.hidden:
            parts.append(f"{queries.hidden:,} items to find were seen and count as misses")
        return "; ".join(parts)


def chosen_rows(reader: Reader, columns: Sequence[str], rows: Array, passes: int) -> Iterator[pa.Table]:
    """Some rows, ascending, in tables of ROWS rows, as many as `passes`: the last of them may be empty."""
    waiting: list[pa.Table] = []
    first, taken, made = 0, 0, 0
    schema = pa.schema([reader.schema.field(name) for name in columns])
    for table in read_table(reader, columns) if len(rows) else ():
        end = int(np.searchsorted(rows, first + table.num_rows))
        waiting.append(table.take(pa.array(rows[taken:end] - first)))
        first, taken = first + table.num_rows, end
        while sum(part.num_rows for part in waiting) >= ROWS:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, ROWS)
            made += 1
            waiting = [whole.slice(ROWS)]
        if taken == len(rows):
            break
    rest = pa.concat_tables(waiting) if waiting else schema.empty_table()
    if rest.num_rows or made < passes:
        yield rest
        made += 1
    for _ in range(passes - made):
        yield schema.empty_table()


def build_catalogue(
    config: PipelineConfig, features: Sequence[Feature], task: Task, processes: Processes | None = None
) -> CatalogueEvaluation | None:
    """The evaluation over a catalogue that a config asks for, if it does."""
    if not config.eval_config.HasField("catalogue"):
        return None
    return CatalogueEvaluation(config, features, task.model, processes)


def comparison_table(metrics: Mapping[str, float]) -> list[str]:
    """Lines that show the measures of the catalogue beside those of the most popular items."""
    names = [name.removeprefix(PREFIX) for name in metrics if name.startswith(PREFIX)]
    if not names:
        return []
    width = max(len(name) for name in names) + 2
    lines = [f"{'':<{width}}{'model':>10}{'most popular':>16}"]
    for name in names:
        lines.append(f"{name:<{width}}{metrics[PREFIX + name]:>10.6f}{metrics[BASELINE + name]:>16.6f}")
    return lines
