"""Several processes: one epoch over a changing number of ranks, batches of no rows, evaluation."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgrad.data import Batch, Loader, Position, join_positions, loader_settings
from recgrad.data.batch import _map
from recgrad.data.pipeline import Pipeline
from recgrad.errors import DataError

Rows = list[list[int]]
Open = Callable[[int, int], Loader]
EPOCH = 1

SIZES = ([130, 9, 75], [40], [3], [61, 1, 1])
QUIET = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORLDS = st.lists(st.integers(1, 5), min_size=2, max_size=4)
STOPS = st.lists(st.integers(1, 9), min_size=3, max_size=3)


def setting(shuffle: bool = False, **extra: object) -> str:
    values = {"batch_size": 4, "num_workers": 1, "shuffle": shuffle, "shuffle_buffer_size": 3, **extra}
    return " ".join(f"{name}: {value}" for name, value in values.items())


@pytest.fixture
def mixed_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small units, and those of a pipeline that need not be in order come in a random one."""
    results = Pipeline.results

    def mixed(self: Pipeline[Any]) -> Iterator[Any]:
        if self._in_order:
            yield from results(self)
            return
        items = list(results(self))
        random.Random(len(items)).shuffle(items)
        yield from items

    monkeypatch.setattr(Pipeline, "results", mixed)
    monkeypatch.setattr(loader_settings, "UNIT_ROWS", 8)


def leg(loaders: Sequence[Loader], text: str | None, stop: int | None) -> tuple[list[Rows], str]:
    """The rows of each rank's next `stop` batches, and the joined positions after them."""
    taken, texts = [], []
    for loader in loaders:
        position = None if text is None else loader.position_from(text)
        batches = loader.epoch_with_rows(EPOCH, position)
        taken.append([rows["id"].to_pylist() for _, rows in islice(batches, stop)])
        texts.append(loader.position.to_json())
        batches.close()
    return taken, join_positions(texts)


def run_chain(build: Open, worlds: Sequence[int], stops: Sequence[int]) -> list[list[Rows]]:
    """What each rank delivers in each leg of an epoch; the last leg goes to its end."""
    legs, text = [], None
    for i, world in enumerate(worlds):
        last = i == len(worlds) - 1
        taken, text = leg([build(rank, world) for rank in range(world)], text, None if last else stops[i])
        legs.append(taken)
    return legs


def first_plan(build: Open, world: int) -> Rows:
    """The batches of the epoch when the number of ranks does not change."""
    taken, _ = leg([build(rank, world) for rank in range(world)], None, None)
    return list(chain.from_iterable(taken))


@given(
    sizes=st.sampled_from(SIZES),
    worlds=WORLDS,
    stops=STOPS,
    shuffle=st.booleans(),
    in_order=st.booleans(),
    drop=st.booleans(),
    workers=st.integers(0, 3),
)
@QUIET
def test_every_batch_of_the_first_plan_comes_once(
    mixed_units, write_rows, open_loader, sizes, worlds, stops, shuffle, in_order, drop, workers
):
    path = write_rows(sizes, row_group_size=17, folder="-".join(map(str, sizes)))
    text = setting(shuffle, in_order=in_order, drop_remainder=drop, num_workers=workers)

    def build(rank: int, world: int) -> Loader:
        return open_loader(path, text, rank=rank, world_size=world, seed=3)

    legs = run_chain(build, worlds, stops)
    for taken in legs:
        assert len({len(batches) for batches in taken}) == 1
    delivered = [batch for taken in legs for batches in taken for batch in batches if batch]
    assert sorted(delivered) == sorted(batch for batch in first_plan(build, worlds[0]) if batch)
    if not drop:
        assert sorted(chain.from_iterable(delivered)) == list(range(sum(sizes)))


@given(worlds=WORLDS, stops=STOPS, shuffle=st.booleans(), in_order=st.booleans(), share=st.floats(0, 0.9))
@QUIET
def test_every_good_row_comes_once_when_bad_ones_are_skipped(
    mixed_units, write_rows, open_loader, worlds, stops, shuffle, in_order, share
):
    cats = np.arange(214) % 100
    bad = np.random.default_rng(7).random(214) < share
    path = write_rows(SIZES[0], cat=pa.array(np.where(bad, 500, cats), pa.int64()))
    text = setting(shuffle, in_order=in_order, on_bad_row="SKIP", max_bad_row_ratio=1, num_workers=2)

    def build(rank: int, world: int) -> Loader:
        return open_loader(path, text, rank=rank, world_size=world)

    legs = run_chain(build, worlds, stops)
    for taken in legs:
        assert len({len(batches) for batches in taken}) == 1
    delivered = [row for taken in legs for batches in taken for batch in batches for row in batch]
    assert sorted(delivered) == np.flatnonzero(~bad).tolist()


@given(worlds=WORLDS, stops=STOPS, shuffle=st.booleans(), sizes=st.sampled_from(SIZES))
@QUIET
def test_every_row_comes_once_when_batches_are_cut_by_cost(
    write_rows, open_loader, make_rows, worlds, stops, shuffle, sizes
):
    path = write_rows(sizes, row_group_size=17, folder="-".join(map(str, sizes)))
    text = setting(shuffle, batch_cost_size=50, sample_cost_field="'cost'")
    tables = [make_rows(size, start=sum(sizes[:i])) for i, size in enumerate(sizes)]
    cost = dict(enumerate(pa.concat_tables(tables)["cost"].to_pylist()))

    def build(rank: int, world: int) -> Loader:
        loader = open_loader(path, text, rank=rank, world_size=world)
        assert loader.num_batches is None
        return loader

    legs = run_chain(build, worlds, stops)
    batches = [batch for taken in legs for mine in taken for batch in mine]
    assert sorted(chain.from_iterable(batches)) == list(range(sum(sizes)))
    # A last row alone joins the batch before it, whatever it costs.
    assert all(sum(cost[row] for row in batch[:-1]) <= 50 for batch in batches)


def everything(batch: Batch) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    _map(batch, lambda tensor: tensors.append(tensor) or tensor)
    return tensors


def test_batches_are_the_first_plan_s_to_the_last_bit(write_rows, open_loader, tmp_path):
    """Masks and negatives too: they belong to the batch, not to the rank that takes it over."""
    lines = ["id:int64\tweight:float\tattrs:string", *(f"{i}\t{1 + i % 3}\t{i}" for i in range(200))]
    (tmp_path / "items.txt").write_text("\n".join(lines) + "\n")
    items = f"input_path: '{tmp_path}/items.txt' num_sample: 5 item_id_field: 'cat' attr_fields: 'cat'"
    features = """feature_configs { id_feature { feature_name: "cat" expression: "item:cat" embedding_dim: 4
      num_buckets: 300 use_mask: true } }"""
    path = write_rows(SIZES[0])
    text = setting(True, sample_mask_prob=0.3, label_fields="'label'") + f" negative_sampler {{ {items} }}"

    def run(world: int, joined: str | None, stop: int | None) -> tuple[dict[int, Batch], str]:
        found, texts = {}, []
        for rank in range(world):
            loader = open_loader(path, text, features=features, rank=rank, world_size=world)
            batches = loader.epoch_with_rows(EPOCH, joined and loader.position_from(joined))
            found |= {rows["id"][0].as_py(): batch for batch, rows in islice(batches, stop) if batch.size}
            texts.append(loader.position.to_json())
            batches.close()
        return found, join_positions(texts)

    whole, _ = run(2, None, None)
    first, joined = run(2, None, 5)
    second, joined = run(3, joined, 4)
    third, _ = run(1, joined, None)
    assert set(first) | set(second) | set(third) == set(whole)
    for row, batch in (first | second | third).items():
        pairs = zip(everything(batch), everything(whole[row]), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert len({tuple(batch.negatives.sparse.values.tolist()) for batch in whole.values()}) == len(whole)


@pytest.mark.parametrize("in_order", [True, False])
def test_the_same_number_of_ranks_resumes_exactly(mixed_units, write_rows, open_loader, in_order):
    path = write_rows(SIZES[0])
    text = setting(True, in_order=in_order, num_workers=2)
    loaders = [open_loader(path, text, rank=rank, world_size=3) for rank in range(3)]
    _, first = leg(loaders, None, 4)
    own = [loader.position for loader in loaders]
    assert any(position.ahead for position in own) != in_order
    assert [loader.position_from(first) for loader in loaders] == own
    # Also in the middle of what was dealt again.
    loaders = [open_loader(path, text, rank=rank, world_size=2) for rank in range(2)]
    before, joined = leg(loaders, first, 5)
    own = [loader.position for loader in loaders]
    assert all(position.share is not None for position in own)
    assert [loader.position_from(joined) for loader in loaders] == own
    after, _ = leg([open_loader(path, text, rank=rank, world_size=2) for rank in range(2)], joined, None)
    at_once, _ = leg(loaders, first, None)
    for left, right, whole in zip(before, after, at_once, strict=True):
        assert (left + right if in_order else sorted(left + right)) == (whole if in_order else sorted(whole))


def test_the_next_epoch_has_the_plan_of_the_new_number_of_ranks(write_rows, open_loader):
    path = write_rows(SIZES[0])
    _, joined = leg([open_loader(path, setting(True), rank=rank, world_size=3) for rank in range(3)], None, 4)
    for rank in range(2):
        loader = open_loader(path, setting(True), rank=rank, world_size=2)
        list(loader.epoch(EPOCH, loader.position_from(joined)))
        fresh = open_loader(path, setting(True), rank=rank, world_size=2)
        for a, b in zip(loader.epoch(EPOCH + 1), fresh.epoch(EPOCH + 1), strict=True):
            assert torch.equal(a.origin.row, b.origin.row)
        assert loader.position.share is None


def test_an_epoch_at_its_end_has_nothing_left(write_rows, open_loader):
    path = write_rows([40])
    _, joined = leg([open_loader(path, setting(), rank=rank, world_size=2) for rank in range(2)], None, None)
    taken, _ = leg([open_loader(path, setting(), rank=rank, world_size=3) for rank in range(3)], joined, None)
    assert taken == [[], [], []]


def test_rows_seen_before_count_towards_the_share_of_bad_rows(write_rows, open_loader):
    """Two bad rows among the last ten are few among all, for one rank as for any."""
    cats = np.arange(200) % 100
    cats[[195, 198]] = 500
    path = write_rows([200], cat=pa.array(cats, pa.int64()))
    text = setting(on_bad_row="SKIP", max_bad_row_ratio=0.02)
    _, joined = leg([open_loader(path, text)], None, 48)
    taken, _ = leg([open_loader(path, text, rank=rank, world_size=2) for rank in range(2)], joined, None)
    assert taken == [[[192, 193, 194]], [[196, 197, 199]]]
    loader = open_loader(path, text, rank=0, world_size=2)
    position = loader.position_from(joined)
    assert (position.share.rows_before, position.share.bad_before) == (192, 0)


def test_one_rank_s_position_stays_as_it_is(write_rows, open_loader):
    loader = open_loader(write_rows([40]), setting())
    list(islice(loader.epoch(), 3))
    text = loader.position.to_json()
    assert join_positions([text]) == text
    assert "share" not in json.loads(text)
    assert loader.position_from(text) == Position.from_json(text)


def test_joined_positions_name_files_once(write_rows, open_loader):
    loaders = [open_loader(write_rows([40]), setting(), rank=rank, world_size=3) for rank in range(3)]
    _, joined = leg(loaders, None, 2)
    assert joined.count("part-0.parquet") == 1


@pytest.mark.parametrize("world", [1, 3])
def test_other_settings_and_files_must_not_change(write_rows, open_loader, world):
    path = write_rows([40])
    _, joined = leg([open_loader(path, setting(), rank=rank, world_size=2) for rank in range(2)], None, 2)
    with pytest.raises(DataError, match="batch_size was 4 when the position was saved and is 5 now"):
        open_loader(path, setting(batch_size=5), world_size=world).position_from(joined)
    path = write_rows([41])
    with pytest.raises(DataError, match=r"part-0\.parquet changed since the position was saved"):
        open_loader(path, setting(), world_size=world).position_from(joined)


def test_the_positions_of_all_ranks_are_needed(write_rows, open_loader):
    path = write_rows([40])
    loader = open_loader(path, setting(), rank=1, world_size=2)
    list(islice(loader.epoch(), 2))
    with pytest.raises(DataError) as error:
        open_loader(path, setting()).position_from(loader.position.to_json())
    assert str(error.value) == "data: the saved position is that of 1 of 2 ranks; all of them are needed"


def test_ranks_that_read_different_things_are_named(write_rows, open_loader):
    path, other = write_rows([40]), write_rows([41], folder="other")
    first = open_loader(path, setting(), rank=0, world_size=2).position.to_json()
    with pytest.raises(DataError, match="rank 1 reads other files than rank 0"):
        join_positions([first, open_loader(other, setting(), rank=1, world_size=2).position.to_json()])
    seeded = open_loader(path, setting(), rank=1, world_size=2, seed=5).position.to_json()
    with pytest.raises(DataError, match="seed is 0 on rank 0 and 5 on rank 1"):
        join_positions([first, seeded])
    with pytest.raises(
        ValueError, match="must be of 2 ranks in epoch 0, got one of 1 ranks in epoch 0 for rank 1"
    ):
        join_positions([first, open_loader(path, setting()).position.to_json()])


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("world", [2, 4, 5])
def test_evaluation_sees_every_row_once_in_equally_many_batches(write_rows, open_loader, sizes, world):
    path = write_rows(sizes)
    text = setting(True, drop_remainder=True, eval_batch_size=7)
    ranks = []
    for rank in range(world):
        loader = open_loader(path, text, training=False, rank=rank, world_size=world)
        ranks.append([rows["id"].to_pylist() for _, rows in loader.epoch_with_rows()])
        assert len(ranks[-1]) == loader.num_batches
    assert len({len(batches) for batches in ranks}) == 1
    assert list(chain.from_iterable(chain.from_iterable(ranks))) == list(range(sum(sizes)))


@pytest.mark.parametrize("training", [True, False])
def test_an_empty_batch_has_the_shapes_of_the_others(write_rows, open_loader, training):
    model = "losses { binary_cross_entropy {} } metrics { grouped_auc { grouping_key: 'user' } }"
    text = setting(label_fields="'label'", sample_weight_fields="'weight'", sample_mask_prob=0.5)
    loader = open_loader(write_rows([40]), text, model=model, training=training, world_size=2)
    full, empty = next(loader.epoch()), loader.empty_batch()
    assert empty.size == 0
    assert empty.sparse.bag_counts == (0, 0)
    pairs = list(zip(everything(empty), everything(full), strict=True))
    assert len(pairs) > 10
    for a, b in pairs:
        assert a.numel() == 0
        assert a.dtype == b.dtype
        assert a.shape[1:] == b.shape[1:]
    assert (empty.labels.keys(), empty.keys.keys()) == (full.labels.keys(), full.keys.keys())
    assert loader.empty_batch() is empty
