from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from recgrad.data.order import EpochPlan, plan_epoch
from recgrad.data.position import Lot, Share, deal_batches, deal_rows, join_lots, lots_left

BATCH = 4


def plans(total: int, ranks: int, drop: bool = False) -> list[EpochPlan]:
    return [
        plan_epoch(
            [total],
            batch_size=BATCH,
            shuffle=False,
            window_batches=2,
            seed=0,
            epoch=0,
            rank=rank,
            world_size=ranks,
            drop_remainder=drop,
        )
        for rank in range(ranks)
    ]


def rows(lots: list[Lot] | tuple[Lot, ...]) -> list[tuple[int, int]]:
    return [(lot.rank, row) for lot in lots for row in range(lot.start, lot.stop)]


def batches(plan: EpochPlan, lot: Lot) -> list[tuple[int, int, int]]:
    found, at = [], lot.start
    while at < lot.stop:
        found.append((lot.rank, at, plan.batch_end(at)))
        at = plan.batch_end(at)
    return found


@given(
    total=st.integers(0, 120),
    worlds=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    stops=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    drop=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_chain_of_rank_counts_consumes_the_first_plan_s_batches_once(total, worlds, stops, drop):
    first = plans(total, worlds[0], drop)
    whole = sorted(
        batch for plan in first for batch in batches(plan, Lot(worlds[0], plan.rank, 0, plan.num_rows))
    )
    shares = [(Lot(worlds[0], plan.rank, 0, plan.num_rows),) for plan in first]
    done: list[tuple[int, int, int]] = []
    for world, stop in zip(worlds[1:], stops, strict=False):
        left: list[Lot] = []
        for lots in shares:
            mine = [batch for lot in lots for batch in batches(first[lot.rank], lot)]
            done += mine[:stop]
            consumed = sum(end - start for _, start, end in mine[:stop])
            left += lots_left(lots, consumed, ())
        joined = join_lots(left)
        shares, most = deal_batches(joined, world, batch_size=BATCH, last=first[0].last_batch)
        counts = [sum(len(batches(first[lot.rank], lot)) for lot in lots) for lots in shares]
        assert max(counts) == most
        assert min(counts) >= most - 1
    done += [batch for lots in shares for lot in lots for batch in batches(first[lot.rank], lot)]
    assert sorted(done) == whole


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    consumed=st.integers(0, 60),
    ahead=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 20)), max_size=4),
)
def test_what_is_left_is_what_was_not_consumed(sizes, consumed, ahead):
    lots = [Lot(7, rank, 10, 10 + size) for rank, size in enumerate(sizes)]
    ranges = [(start, start + size) for start, size in ahead]
    everything = rows(lots)
    gone = {*range(consumed), *(row for low, high in ranges for row in range(low, high))}
    expected = [row for number, row in enumerate(everything) if number not in gone]
    left = lots_left(lots, consumed, ranges)
    assert rows(left) == expected
    assert all(lot.num_rows > 0 for lot in left)


@given(
    sizes=st.lists(st.integers(2, 30), min_size=1, max_size=5),
    ranks=st.integers(1, 6),
)
@example(sizes=[2, 4, 3], ranks=4)
@example(sizes=[4, 3, 3], ranks=4)
def test_rows_are_dealt_once_and_evenly_without_a_single_row(sizes, ranks):
    lots = [Lot(9, rank, 5, 5 + size) for rank, size in enumerate(sizes)]
    dealt = deal_rows(lots, ranks)
    assert [row for share in dealt for row in rows(share)] == rows(lots)
    assert len(dealt) == ranks
    assert all(lot.num_rows != 1 for share in dealt for lot in share)
    counts = [len(rows(share)) for share in dealt]
    # One row from dealing; both cuts of the largest share and both of the smallest may be moved by one.
    assert max(counts) - min(counts) <= 5


def test_a_cut_moves_to_where_shares_stay_equal():
    """Not from 5 onto the next lot's beginning, which would leave a rank without rows."""
    lots = [Lot(9, rank, 0, size) for rank, size in enumerate([2, 4, 3])]
    assert [sum(lot.num_rows for lot in share) for share in deal_rows(lots, 4)] == [2, 2, 2, 3]


def test_neighbours_become_one_lot():
    lots = [Lot(2, 1, 8, 12), Lot(2, 0, 0, 4), Lot(2, 1, 12, 20), Lot(2, 1, 24, 28), Lot(2, 1, 22, 22)]
    assert join_lots(lots) == [Lot(2, 0, 0, 4), Lot(2, 1, 8, 20), Lot(2, 1, 24, 28)]


def test_rows_of_a_share_are_numbered_through_its_lots():
    share = Share((Lot(2, 0, 8, 12), Lot(2, 1, 0, 6), Lot(2, 1, 8, 9)), 4)
    assert [first for first, _ in share.numbered()] == [0, 4, 10]
