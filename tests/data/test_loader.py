from __future__ import annotations

import logging
import threading
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgrad.data import Batch, Loader
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.errors import ConfigError, DataError

GRID = [(workers, shuffle) for workers in (0, 1, 3) for shuffle in (False, True)]


def ids(loader: Loader, epoch: int = 0, position: object = None) -> list[list[int]]:
    return [rows["id"].to_pylist() for _, rows in loader.epoch_with_rows(epoch, position)]


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("recgrad-loader")]


def test_rows_come_in_file_order(write_rows, open_loader):
    loader = open_loader(write_rows([120, 7, 75]), "batch_size: 32 num_workers: 2 label_fields: 'label'")
    batches = ids(loader)
    assert list(chain.from_iterable(batches)) == list(range(202))
    assert [len(batch) for batch in batches] == [32] * 6 + [10]
    assert loader.num_rows == 202
    assert loader.num_batches == 7


@pytest.mark.parametrize("in_order", [True, False])
def test_threads_do_not_change_what_is_delivered(write_rows, open_loader, in_order):
    path = write_rows([300, 111, 64])
    orders = {}
    for workers, shuffle in GRID:
        text = f"batch_size: 16 num_workers: {workers} shuffle: {shuffle} in_order: {in_order}"
        text += " shuffle_buffer_size: 4"
        batches = ids(open_loader(path, text, seed=5), epoch=2)
        orders.setdefault(shuffle, []).append(batches if in_order else sorted(batches))
    assert orders[False][0] == orders[False][1] == orders[False][2]
    assert orders[True][0] == orders[True][1] == orders[True][2]
    assert sorted(chain.from_iterable(orders[True][0])) == list(range(475))
    assert orders[True][0] != orders[False][0]


def test_shuffle_is_a_function_of_seed_and_epoch(write_rows, open_loader):
    path = write_rows([400])
    text = "batch_size: 16 num_workers: 2 shuffle: true shuffle_buffer_size: 4"
    first = open_loader(path, text, seed=1)
    assert ids(first, 0) == ids(open_loader(path, text, seed=1), 0)
    assert ids(first, 0) != ids(first, 1)
    assert ids(first, 0) != ids(open_loader(path, text, seed=2), 0)
    assert ids(first, 1) == ids(open_loader(path, text, seed=1), 1)


def test_shuffle_mixes_rows_over_the_whole_buffer(write_rows, open_loader):
    # One row group, so that only the buffer of 8 batches can mix.
    path = write_rows([256], row_group_size=256)
    batches = ids(open_loader(path, "batch_size: 16 shuffle: true shuffle_buffer_size: 8 num_workers: 1"))
    first_window = list(chain.from_iterable(batches[:8]))
    assert sorted(first_window) == list(range(128))
    assert all(max(batch) - min(batch) > 32 for batch in batches)


def test_evaluation_is_not_shuffled_and_has_its_own_batch_size(write_rows, open_loader):
    path = write_rows([100])
    text = "batch_size: 16 eval_batch_size: 40 shuffle: true drop_remainder: true num_workers: 1"
    assert ids(open_loader(path, text, training=False)) == [
        list(range(40)),
        list(range(40, 80)),
        list(range(80, 100)),
    ]


def test_batches_hold_what_encoding_the_rows_alone_gives(write_rows, open_loader, make_rows):
    """Batches that are cut from a larger encoded unit equal batches encoded on their own."""
    path = write_rows([97, 60], row_group_size=40)
    model = "losses { binary_cross_entropy {} } metrics { grouped_auc { grouping_key: 'user' } }"
    text = "batch_size: 10 num_workers: 1 label_fields: 'label' sample_weight_fields: 'weight'"
    loader = open_loader(path, text, model=model)
    table = pa.concat_tables([make_rows(97), make_rows(60, start=97)])
    encoder: FeatureEncoder = loader._encoder.encoder
    for batch, rows in loader.epoch_with_rows():
        part = table.slice(rows["id"][0].as_py(), batch.size)
        columns = {name: part[name].combine_chunks() for name in encoder.columns}
        alone = Batch.of(encoder.encode(columns, batch.size, Faults()))
        assert torch.equal(batch.dense.values, alone.dense.values)
        assert torch.equal(batch.sparse.values, alone.sparse.values)
        assert torch.equal(batch.sparse.lengths, alone.sparse.lengths)
        assert batch.sparse.bag_counts == alone.sparse.bag_counts
        assert torch.equal(batch.sequence_sparse.values, alone.sequence_sparse.values)
        assert torch.equal(batch.sequence_sparse.lengths, alone.sequence_sparse.lengths)
        assert torch.equal(batch.sequence_lengths["clicks"], alone.sequence_lengths["clicks"])
        assert batch.labels["label"].tolist() == part["label"].to_pylist()
        assert batch.labels["label"].dtype == torch.int64
        assert torch.equal(batch.sample_weights["weight"], torch.tensor(part["weight"].to_numpy()))
        users = part["user"].to_pylist()
        keys = batch.keys["user"].tolist()
        assert len(set(zip(users, keys, strict=True))) == len(set(users)) == len(set(keys))
        where = zip(batch.origin.file_index.tolist(), batch.origin.row.tolist(), strict=True)
        names = [(batch.origin.files[file], row) for file, row in where]
        expected = [
            ("part-0.parquet", i) if i < 97 else ("part-1.parquet", i - 97) for i in part["id"].to_pylist()
        ]
        assert names == expected


def test_a_last_batch_of_one_row_joins_its_neighbour_and_says_so(write_rows, open_loader, caplog):
    loader = open_loader(write_rows([33]), "batch_size: 16 num_workers: 1")
    with caplog.at_level(logging.INFO, "recgrad.data"):
        sizes = [len(batch) for batch in ids(loader)]
        ids(loader, 1)
    assert sizes == [16, 17]
    assert loader.num_batches == 2
    assert [record.message for record in caplog.records].count(
        "the last batch of an epoch would have one row; the batch before takes it and has 17 rows"
    ) == 1


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_last_row_alone_in_its_window_joins_too(write_rows, open_loader, shuffle):
    text = f"batch_size: 8192 num_workers: 1 shuffle: {shuffle} shuffle_buffer_size: 1"
    sizes = [len(batch) for batch in ids(open_loader(write_rows([8193], row_group_size=4000), text))]
    assert sizes == [8193]


def test_drop_remainder_leaves_the_last_rows_out(write_rows, open_loader):
    loader = open_loader(write_rows([70]), "batch_size: 16 num_workers: 1 drop_remainder: true")
    assert [len(batch) for batch in ids(loader)] == [16] * 4
    assert loader.num_batches == 4


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("buffer", [1, 3])
def test_batches_are_cut_by_cost(write_rows, open_loader, make_rows, shuffle, buffer):
    path = write_rows([300], row_group_size=70)
    text = (
        f"batch_size: 16 num_workers: 2 batch_cost_size: 60 sample_cost_field: 'cost' shuffle: {shuffle} "
        f"shuffle_buffer_size: {buffer}"
    )
    loader = open_loader(path, text)
    batches = ids(loader)
    cost = dict(enumerate(make_rows(300)["cost"].to_pylist()))
    rows = list(chain.from_iterable(batches))
    assert sorted(rows) == list(range(300))
    assert loader.num_batches is None
    expected: list[list[int]] = [[]]
    for row in rows:  # the greedy rule, row by row
        if sum(cost[i] for i in expected[-1]) + cost[row] > 60:
            expected.append([])
        expected[-1].append(row)
    if len(expected[-1]) == 1:
        expected[-2:] = [expected[-2] + expected[-1]]
    assert batches == expected


def test_ranks_get_all_rows_in_equally_many_batches(write_rows, open_loader):
    path = write_rows([101, 64])
    for shuffle in (False, True):
        text = f"batch_size: 20 num_workers: 1 shuffle: {shuffle} shuffle_buffer_size: 2"
        ranks = [ids(open_loader(path, text, rank=r, world_size=4)) for r in range(4)]
        assert len({len(batches) for batches in ranks}) == 1
        assert sorted(row for batches in ranks for batch in batches for row in batch) == list(range(165))


def test_a_rank_without_rows_gets_an_empty_batch(write_rows, open_loader):
    path = write_rows([2])
    ranks = [
        list(open_loader(path, "batch_size: 4 num_workers: 1", rank=r, world_size=3).epoch())
        for r in range(3)
    ]
    assert [[batch.size for batch in batches] for batches in ranks] == [[1], [1], [0]]
    empty = ranks[2][0]
    assert empty.dense.values.shape == (0, 1)
    assert empty.sparse.bag_counts == (0, 0)
    assert empty.sequence_lengths["clicks"].shape == (0,)


def test_sample_mask_hides_features_that_allow_it(write_rows, open_loader):
    path = write_rows([4000], row_group_size=1000, cat=pa.array(np.ones(4000, np.int64)))
    features = """
    feature_configs { id_feature {
      feature_name: "cat" expression: "item:cat" embedding_dim: 4 num_buckets: 100 use_mask: true } }
    feature_configs { id_feature {
      feature_name: "seen" expression: "item:cat" embedding_dim: 4 num_buckets: 100 } }
    """
    text = "batch_size: 500 num_workers: 2 sample_mask_prob: 0.3"

    def masked(**kwargs: object) -> list[int]:
        loader = open_loader(path, text, features=features, **kwargs)
        batches: list[Batch] = list(loader.epoch())
        assert all(batch.sparse["seen"].lengths.tolist() == [1] * batch.size for batch in batches)
        return [i for batch in batches for i in batch.sparse["cat"].lengths.tolist()]

    lengths = masked()
    assert abs(np.mean(lengths) - 0.7) < 4 * (0.21 / 4000) ** 0.5
    assert masked() == lengths
    assert masked(seed=1) != lengths
    assert masked(training=False) == [1] * 4000


def test_threads_end_with_the_iterator(write_rows, open_loader):
    loader = open_loader(write_rows([3000]), "batch_size: 4 num_workers: 3")
    batches = loader.epoch()
    next(batches)
    assert len(loader_threads()) == 3
    batches.close()
    assert loader_threads() == []
    assert len(list(loader.epoch())) == 750
    assert loader_threads() == []


def test_only_needed_columns_are_read(write_rows, open_loader, monkeypatch):
    from recgrad.data.readers.parquet import ParquetReader

    asked: list[tuple[str, ...]] = []
    read = ParquetReader.read

    def spy(self, fragment, columns):
        asked.append(tuple(columns))
        return read(self, fragment, columns)

    monkeypatch.setattr(ParquetReader, "read", spy)
    loader = open_loader(
        write_rows([10]),
        "batch_size: 4 num_workers: 0 label_fields: 'label'",
        carry_columns=(),
        targets=None,
    )
    list(loader.epoch())
    assert set(asked) == {("price", "cat", "tags", "clicks")}


def test_sharing_nothing_between_epochs_that_run_at_once(write_rows, open_loader):
    loader = open_loader(write_rows([100]), "batch_size: 10 num_workers: 2")
    both = list(zip(loader.epoch_with_rows(0), loader.epoch_with_rows(0), strict=True))
    assert all(a[1] == b[1] for a, b in both)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_size: 0", "data_config.batch_size: must be at least 1, got 0"),
        (
            "shuffle: true shuffle_buffer_size: 0",
            "data_config.shuffle_buffer_size: must be at least 1, got 0",
        ),
        ("sample_mask_prob: 1.5", "data_config.sample_mask_prob: must be from 0 to 1, got 1.5"),
        (
            "batch_cost_size: 5",
            "data_config: batch_cost_size and sample_cost_field go together; set both or none",
        ),
        ("dataset_type: CsvDataset follow: true", "data_config.follow: is for ParquetDataset; leave it out"),
    ],
)
def test_settings_that_make_no_sense(write_rows, open_loader, text, message):
    with pytest.raises(ConfigError) as error:
        open_loader(write_rows([10]), text)
    assert str(error.value) == message


def test_files_without_any_rows(tmp_path: Path, open_loader, make_rows):
    pq.write_table(make_rows(0), tmp_path / "a.parquet")
    with pytest.raises(DataError) as error:
        open_loader(str(tmp_path / "a.parquet"), "num_workers: 1")
    assert str(error.value) == f"data: '{tmp_path}/a.parquet' has no rows (1 files); check the path"


def test_a_file_without_rows_among_others_is_fine(tmp_path: Path, open_loader, make_rows):
    pq.write_table(make_rows(0), tmp_path / "a.parquet")
    pq.write_table(make_rows(5), tmp_path / "b.parquet")
    assert ids(open_loader(str(tmp_path), "num_workers: 1")) == [list(range(5))]


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    group=st.integers(1, 40),
    batch=st.integers(2, 25),
    workers=st.integers(0, 3),
    shuffle=st.booleans(),
    buffer=st.integers(1, 5),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_row_comes_once_whatever_the_shape(
    write_rows, open_loader, sizes, group, batch, workers, shuffle, buffer
):
    import uuid

    path = write_rows(sizes, row_group_size=group, folder=uuid.uuid4().hex)
    text = f"batch_size: {batch} num_workers: {workers} shuffle: {shuffle} shuffle_buffer_size: {buffer}"
    batches = ids(open_loader(path, text))
    total = sum(sizes)
    assert sorted(chain.from_iterable(batches)) == list(range(total))
    assert all(len(rows) == batch for rows in batches[:-1])
    assert len(batches) == 1 or len(batches[-1]) >= 2
