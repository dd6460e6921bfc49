"""What a catalogue evaluation knows before any vector: queries, what they want, what they have seen.

Ids become numbers here: items are numbered as the catalogue's files have them, queries as their first
rows come in the evaluation data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.config.proto.eval_pb2 import CatalogueEval
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.ids import FlatIds, KnownIds, first_rows, flat_ids, plain_ids
from recgrad.data.readers.build import open_reader
from recgrad.data.readers.kafka import refuse_topics
from recgrad.data.readers.reader import Reader
from recgrad.data.readers.tables import open_table, read_column, read_table
from recgrad.errors import DataError
from recgrad.retrieval.boost import Boost
from recgrad.retrieval.lists import Floats, ItemSets

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Queries:
    """What is asked of the catalogue.

    Attributes:
        rows: the row of the evaluation data that each query's vector is made of, ascending.
        relevant: what each wants, of the catalogue.
        missing: how many items it wants that the catalogue has not.
        seen: what each must not find; None where nothing is masked.
        candidates: what is ranked for each; None for the whole catalogue.
        hidden: wanted items that are masked, so that no list can have them.
    """

    rows: Ints
    relevant: ItemSets
    missing: Ints
    seen: ItemSets | None
    candidates: ItemSets | None
    hidden: int


@dataclass(frozen=True)
class CatalogueData:
    """Items and queries of a catalogue evaluation.

    Attributes:
        items: files of the catalogue.
        rows: the evaluation data.
        known: ids of the catalogue.
        interactions: how often each item occurs in the data that say what users have seen.
        boosts: what is added to the similarities of each item; None for nothing.
        queries: what is asked.
    """

    items: Reader
    rows: Reader
    known: KnownIds
    interactions: Ints
    boosts: Floats | None
    queries: Queries = field(repr=False)


def read_catalogue(config: PipelineConfig) -> CatalogueData:
    """Read the ids that `eval_config.catalogue` names; the check has seen to it that they are named."""
    settings, data = config.eval_config.catalogue, config.data_config
    item_id = settings.item_id_field
    items = open_table(settings.item_input_path, data)
    known = KnownIds(
        read_column(items, item_id), f"eval_config.catalogue.item_input_path: column '{item_id}'"
    )
    for path in (config.eval_input_path, config.train_input_path):
        refuse_topics(path, "eval_config.catalogue is for files")
    rows = open_reader(config.eval_input_path, data)
    seen_path = settings.seen_input_path or config.train_input_path
    pairs = _read_seen(seen_path, settings, data, known, own=not settings.seen_input_path)
    queries = _read_queries(rows, settings, known, pairs)
    return CatalogueData(items, rows, known, pairs.counts, _read_boosts(items, settings), queries)


def _read_boosts(items: Reader, settings: CatalogueEval) -> Floats | None:
    if not settings.HasField("boost"):
        return None
    boost = Boost(settings.boost.field, settings.boost.log_weight)
    return boost.values(read_column(items, boost.field), settings.item_input_path)


@dataclass(frozen=True)
class _Seen:
    """Pairs of users and items; users are None where the config names no column of theirs."""

    users: pa.Array | None
    items: Ints
    counts: Ints


def _read_seen(path: str, settings: CatalogueEval, data: DataConfig, known: KnownIds, own: bool) -> _Seen:
    reader = open_reader(path, data) if own else open_table(path, data)
    users, item_id = settings.user_id_field, settings.item_id_field
    columns = [item_id, users] if users and settings.mask_seen else [item_id]
    owners, numbers = [], []
    for table in read_table(reader, columns):
        flat = flat_ids(table.column(item_id), settings.id_delimiter, f"{path}: column '{item_id}'")
        number = known.numbers(flat.ids)
        there = number >= 0
        numbers.append(number[there])
        if len(columns) == 2:
            ids = plain_ids(table.column(users), f"{path}: column '{users}'")
            owners.append(ids.take(pa.array(flat.rows[there])))
    items = np.concatenate(numbers)
    counts = np.bincount(items, minlength=len(known))
    return _Seen(pa.concat_arrays(owners) if owners else None, items, counts)


def _read_queries(reader: Reader, settings: CatalogueEval, known: KnownIds, seen: _Seen) -> Queries:
    relevant = settings.relevant_field or settings.item_id_field
    named = (settings.user_id_field, relevant, settings.candidates_field, settings.seen_field)
    columns = {name: read_column(reader, name) for name in dict.fromkeys(named) if name}
    if settings.user_id_field:
        where = f"eval_input_path: column '{settings.user_id_field}'"
        ids = plain_ids(columns[settings.user_id_field], where)
        if ids.null_count:
            row = int(np.flatnonzero(np.asarray(ids.is_null()))[0])
            raise DataError(f"{where}: row {row} has no user; give every row one, or leave user_id_field out")
        rows = first_rows(ids)
        users = KnownIds(ids.take(pa.array(rows)), where)
        query = users.numbers(ids)
    else:
        rows, users = np.arange(reader.num_rows), None
        query = rows

    def sets(name: str) -> ItemSets:
        flat = flat_ids(columns[name], settings.id_delimiter, f"eval_input_path: column '{name}'")
        return _numbered(flat, query, known, len(rows))

    wanted = sets(relevant)
    there = wanted.items < len(known)
    owner = wanted.queries
    inside = ItemSets.of(owner[there], wanted.items[there], len(rows))
    missing = np.bincount(owner[~there], minlength=len(rows))
    candidates = None
    if settings.candidates_field:
        candidates = _joined(_of_catalogue(sets(settings.candidates_field), known), inside)
    masked = _masked(settings, seen, users, known, len(rows))
    if settings.seen_field and settings.mask_seen:
        own = _of_catalogue(sets(settings.seen_field), known)
        masked = own if masked is None else _joined(masked, own)
    hidden = 0
    if masked is not None:
        both = _joined(masked, inside)
        hidden = len(masked.items) + len(inside.items) - len(both.items)
    return Queries(rows, inside, missing, masked, candidates, hidden)


def _masked(
    settings: CatalogueEval, seen: _Seen, users: KnownIds | None, known: KnownIds, queries: int
) -> ItemSets | None:
    """What users have seen by the files that say so."""
    if seen.users is None or users is None or not settings.mask_seen:
        return None
    query = users.numbers(seen.users)
    return ItemSets.of(query[query >= 0], seen.items[query >= 0], queries)


def _numbered(flat: FlatIds, query: Ints, known: KnownIds, queries: int) -> ItemSets:
    """Ids as numbers; those that the catalogue has not come after those that it has."""
    numbers = known.numbers(flat.ids)
    strange = numbers < 0
    if strange.any():
        codes = flat.ids.filter(pa.array(strange)).dictionary_encode().indices
        numbers[strange] = len(known) + np.asarray(codes)
    return ItemSets.of(query[flat.rows], numbers, queries)


def _of_catalogue(sets: ItemSets, known: KnownIds) -> ItemSets:
    there = sets.items < len(known)
    return ItemSets.of(sets.queries[there], sets.items[there], len(sets.starts) - 1)


def _joined(a: ItemSets, b: ItemSets) -> ItemSets:
    queries = len(a.starts) - 1
    return ItemSets.of(np.append(a.queries, b.queries), np.append(a.items, b.items), queries)
