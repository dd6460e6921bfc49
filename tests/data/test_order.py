from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.data.order import EpochPlan, Segment, count_batches, permutation, plan_epoch, take_segments

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(lambda counts: sum(counts) > 0)


def rows_of(plan: EpochPlan) -> list[tuple[int, int]]:
    return [(s.fragment, row) for s in plan.segments for row in range(s.start, s.stop)]


def batches_of(plan: EpochPlan) -> list[int]:
    sizes, at = [], 0
    while at < plan.num_rows:
        end = plan.batch_end(at)
        sizes.append(end - at)
        at = end
    return sizes


@given(
    counts=COUNTS,
    world=st.integers(1, 5),
    batch=st.integers(1, 9),
    shuffle=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=200, deadline=None)
def test_ranks_share_all_rows_once_with_equally_many_batches(counts, world, batch, shuffle, seed):
    plans = [
        plan_epoch(
            counts,
            batch_size=batch,
            shuffle=shuffle,
            window_batches=2,
            seed=seed,
            epoch=1,
            rank=r,
            world_size=world,
        )
        for r in range(world)
    ]
    seen = [row for plan in plans for row in rows_of(plan)]
    assert sorted(seen) == [(f, row) for f, count in enumerate(counts) for row in range(count)]
    assert len({plan.num_batches for plan in plans}) == 1
    for plan in plans:
        sizes = batches_of(plan)
        assert sum(sizes) == plan.num_rows
        assert len(sizes) == plan.num_batches or plan.num_rows == 0
        assert all(size == batch for size in sizes[:-1])
        if len(sizes) > 1:
            assert 2 <= sizes[-1] <= batch + 2 or batch == 1


@given(counts=COUNTS, world=st.integers(1, 5), batch=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_drop_remainder_gives_full_batches_only(counts, world, batch):
    plans = [
        plan_epoch(
            counts,
            batch_size=batch,
            shuffle=True,
            window_batches=2,
            seed=0,
            epoch=0,
            rank=r,
            world_size=world,
            drop_remainder=True,
        )
        for r in range(world)
    ]
    expected = sum(counts) // world // batch
    for plan in plans:
        assert batches_of(plan) == [batch] * expected
        assert plan.num_batches == expected
    seen = [row for plan in plans for row in rows_of(plan)]
    assert len(set(seen)) == len(seen)


@given(counts=COUNTS, batch=st.integers(1, 9), windows=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_windows_cover_the_epoch_and_end_where_batches_do(counts, batch, windows):
    plan = plan_epoch(counts, batch_size=batch, shuffle=True, window_batches=windows, seed=0, epoch=0)
    bounds = [plan.window(i) for i in range(plan.num_windows)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == plan.num_rows
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    ends = set(np.cumsum(batches_of(plan)).tolist())
    assert {stop for _, stop in bounds} <= ends
    for i, (start, stop) in enumerate(bounds):
        assert sorted(plan.permutation(i).tolist()) == list(range(stop - start))
        assert all(plan.window_of(row) == i for row in range(start, stop))


def test_order_depends_on_seed_and_epoch_alone():
    def order(**kwargs: int) -> list[Segment]:
        values = {"seed": 1, "epoch": 2, **kwargs}
        return list(plan_epoch([5] * 30, batch_size=4, shuffle=True, window_batches=2, **values).segments)

    assert order() == order()
    assert order(seed=2) != order()
    assert order(epoch=3) != order()
    plain = plan_epoch([5] * 30, batch_size=4, shuffle=False, window_batches=2, seed=1, epoch=2)
    assert [s.fragment for s in plain.segments] == list(range(30))


def test_permutation_is_the_same_in_every_version():
    # Written down once: a checkpoint must find its place whatever NumPy is installed.
    assert permutation(10, 7, 3, 2).tolist() == [6, 3, 0, 4, 2, 5, 8, 7, 9, 1]


@given(counts=COUNTS, start=st.integers(0, 200), size=st.integers(0, 200))
def test_taking_segments_takes_these_rows(counts, start, size):
    plan = plan_epoch(counts, batch_size=4, shuffle=True, window_batches=2, seed=0, epoch=0)
    taken = take_segments(plan.segments, start, start + size)
    assert all(s.start < s.stop for s in taken)
    rows = [(s.fragment, row) for s in taken for row in range(s.start, s.stop)]
    assert rows == rows_of(plan)[start : start + size]


def test_one_row_at_the_end_joins_the_batch_before():
    assert count_batches(9, 4, False) == 2
    assert count_batches(10, 4, False) == 3
    assert count_batches(1, 4, False) == 1
    assert count_batches(9, 1, False) == 9
    assert count_batches(7, 4, True) == 1


def test_mask_is_drawn_with_its_probability():
    plan = plan_epoch([4000], batch_size=100, shuffle=False, window_batches=40, seed=0, epoch=0)
    share = plan.mask(0, 0.25).mean()
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / 4000) ** 0.5
    assert not plan.mask(0, 0.0).any()
    assert plan.mask(0, 1.0).all()
