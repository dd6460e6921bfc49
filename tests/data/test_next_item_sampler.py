"""The items of histories, and what they are compared with."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recgrad.errors import ConfigError, DataError

FEATURES = """
feature_configs { id_feature { feature_name: "item" expression: "item:item"
  embedding_dim: 4 num_buckets: 100 } }
feature_configs { sequence_feature { sequence_name: "seen" sequence_length: 99 features {
  id_feature { feature_name: "item" expression: "item:item" embedding_dim: 4 num_buckets: 100 } } } }
"""
MODEL = "losses { softmax_cross_entropy {} }"
ROWS = [([5, 7, 9], 8), ([9], 7), ([], 5), ([8, 8, 5, 7], 9)]
IDS = [9, 8, 7, 5, 30]  # the order of the item table


@pytest.fixture
def batch_of(tmp_path, open_loader):
    """The only batch of the rows with a sampler of these settings."""

    def read(extra="", rows=ROWS, ids=IDS, as_text=False, **options):
        histories, items = zip(*rows, strict=True)
        if as_text:
            histories = [";".join(map(str, history)) for history in histories]
        else:
            histories = pa.array(list(histories), pa.list_(pa.int64()))
        pq.write_table(
            pa.table({"id": range(len(rows)), "seen__item": histories, "item": list(items)}),
            tmp_path / "rows.parquet",
        )
        table = {"id": ids, "weight": [float(i + 1) for i in range(len(ids))], "item": ids}
        pq.write_table(pa.table(table), tmp_path / f"{len(ids)}.parquet")
        sampler = (
            f"input_path: '{tmp_path}/{len(ids)}.parquet' attr_fields: 'item' item_id_field: 'item' "
            f"history_field: 'seen__item' {extra}"
        )
        config = f"batch_size: 4 next_item_sampler {{ {sampler} }}"
        path = str(tmp_path / "rows.parquet")
        loader = open_loader(path, config, features=FEATURES, model=MODEL, **options)
        return next(iter(loader.epoch(0)))

    return read


def events(rows=ROWS):
    return [item for history, own in rows for item in [*history, own]]


@pytest.mark.parametrize("as_text", [False, True])
def test_the_whole_catalogue(batch_of, as_text):
    rows = [row for row in ROWS if row[0]] if as_text else ROWS
    batch = batch_of(rows=rows, as_text=as_text)
    known = batch.next_items
    assert batch.negatives.sparse["item"].values.tolist() == IDS
    assert [IDS[place] for place in known.items.tolist()] == events(rows)
    assert known.lengths.tolist() == [len(history) for history, _ in rows]
    assert known.drawn == 0


@pytest.mark.parametrize("evenly", [False, True])
def test_drawn_items(batch_of, evenly):
    batch = batch_of(f"num_sample: 4000 {'evenly: true' if evenly else ''}")
    known, ids = batch.next_items, batch.negatives.sparse["item"].values.tolist()
    own, drawn = ids[: known.drawn], ids[known.drawn :]
    assert sorted(own) == [5, 7, 8, 9]
    assert [own[place] for place in known.items.tolist()] == events()
    assert len(drawn) == 4000
    shares = {item: (1 / 5 if evenly else (i + 1) / 15) for i, item in enumerate(IDS)}
    for item, share in shares.items():
        assert abs(drawn.count(item) / 4000 - share) < 6 * np.sqrt(share * (1 - share) / 4000)
    expected = np.log([4000 * shares[item] for item in drawn])
    np.testing.assert_allclose(known.log_counts.numpy(), expected, rtol=1e-5)
    same = {(u, m) for u, item in enumerate(own) for m, other in enumerate(drawn) if item == other}
    assert {tuple(pair) for pair in known.same.tolist()} == same


def test_draws_depend_on_seed_and_place_alone(batch_of):
    first, again, other = (batch_of("num_sample: 50", seed=seed) for seed in (1, 1, 2))
    ids = [batch.negatives.sparse["item"].values.tolist() for batch in (first, again, other)]
    assert ids[0] == ids[1] != ids[2]


def test_evaluation_compares_the_rows_own_item(batch_of):
    batch = batch_of(training=False)
    assert batch.next_items is None
    assert [IDS[place] for place in batch.comparison.own.tolist()] == [own for _, own in ROWS]


def test_an_item_that_the_table_lacks_is_named_with_its_row(batch_of):
    with pytest.raises(
        DataError, match=r"item 9 of column 'seen__item' is not in .*\(row 0 of .*rows.parquet\)"
    ):
        batch_of(ids=[8, 7, 5])
    with pytest.raises(DataError, match=r"item 8 of column 'item' is not in item table .*\(row 0 of"):
        batch_of(ids=[9, 7, 5, 1])


def test_settings_without_effect_are_refused(batch_of):
    with pytest.raises(ConfigError, match=r"next_item_sampler.evenly: has no effect without num_sample"):
        batch_of("evenly: true")
