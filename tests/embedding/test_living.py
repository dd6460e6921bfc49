"""Admission, eviction and expiry against plain dictionaries; never a wrong row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.embedding.living import COUNT, DISTANCE, LAST, NEVER, NUM_ROWS, Filter, LivingSpec
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.local.living import layout as at
from recgrad.embedding.local.living.index import MAX_LOAD
from recgrad.embedding.local.living.table import LivingTable
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import DataError
from recgrad.optim.sparse import SparseOptimizer
from recgrad.optim.sparse.adagrad import Adagrad


@dataclass
class Row:
    """A key's marks, how often its gradient was applied, and the sum of squared gradients."""

    count: int
    last: int
    moved: int = 0
    squares: int = 0


@dataclass
class Reference:
    """A living table as plain dictionaries: slow, and obviously what the documentation says.

    Every occurrence of a key has the gradient 1 in every element.
    """

    spec: LivingSpec
    rows: dict[int, Row] = field(default_factory=dict)
    fallback: Row = field(default_factory=lambda: Row(0, 0))
    window: dict[int, list[int]] = field(default_factory=dict)
    counters: dict[int, int] = field(default_factory=dict)
    now: int = 0
    evicted: int = 0

    def score(self, row: Row) -> tuple[float, ...]:
        if self.spec.policy == LAST:
            return (row.last,)
        if self.spec.policy == COUNT:
            return (row.count, row.last)
        assert self.spec.policy == DISTANCE
        return (row.count / (self.now - row.last + 1.0) ** self.spec.decay,)

    def train(self, batch: Iterable[int]) -> list[int | None]:
        """One pass and its update; the keys whose rows the ids read, None for the stand-in."""
        self.now += 1
        batch = list(batch)
        if self.spec.fallback:
            self._train_window(batch)
        else:
            self._train_batch(batch)
        seen = [key if key in self.rows else None for key in batch]
        self._update(seen)
        return seen

    def _update(self, seen: list[int | None]) -> None:
        for key in dict.fromkeys(seen):
            if key is None and not self.spec.fallback:
                continue
            row = self.fallback if key is None else self.rows[key]
            n = seen.count(key)
            row.moved += n
            row.squares += n * n

    def _expire(self) -> None:
        ttl = self.spec.ttl
        due = self.spec.fallback or self.now % max(ttl // 16, 1) == 0
        if ttl and due:
            for key in [k for k, row in self.rows.items() if row.last < self.now - ttl]:
                del self.rows[key]

    def _train_batch(self, batch: list[int]) -> None:
        new: dict[int, int] = {}
        for key in batch:
            if key in self.rows:
                self.rows[key].count += self.spec.policy == COUNT
                self.rows[key].last = self.now
            else:
                new[key] = new.get(key, 0) + 1
        self._expire()
        wanted = {}
        for key, count in new.items():
            total = self.counters.pop(key, 0) + count
            if total >= self.spec.threshold:
                wanted[key] = count
            else:
                self.counters[key] = total
        room = self.spec.capacity - len(self.rows)
        if len(wanted) > room and self.spec.policy != NEVER:
            old = [k for k, row in self.rows.items() if row.last < self.now]
            old.sort(key=lambda k: (self.score(self.rows[k]), k))
            for key in old[: len(wanted) - room + (self.spec.capacity >> 6)]:
                del self.rows[key]
                self.evicted += 1
            room = self.spec.capacity - len(self.rows)
        for key in list(wanted)[:room]:
            self.rows[key] = Row(wanted[key], self.now)

    def _train_window(self, batch: list[int]) -> None:
        for key in batch:
            entry = self.window.setdefault(key, [0, 0])
            entry[0], entry[1] = entry[0] + 1, self.now
        if self.now % self.spec.interval:
            return
        mean = sum(count for count, _ in self.window.values()) / max(len(self.window), 1)
        kind, value = self.spec.filter.kind, self.spec.filter.value
        limit = {"": -1.0, "above": value, "mean": value * mean}[kind]
        passed = {key: entry for key, entry in self.window.items() if entry[0] > limit}
        self.window = {}
        for key, (count, last) in passed.items():
            if key in self.rows:
                counts = self.spec.policy != LAST or kind
                self.rows[key].count += count if counts else 0
                self.rows[key].last = last
        new = {k: Row(count, last) for k, (count, last) in passed.items() if k not in self.rows}
        self._expire()
        # All candidates, the best first: a key that has a row goes before an equal one that has none.
        held = [((*_negative(self.score(row)), 0), -key, key) for key, row in self.rows.items()]
        come = [((*_negative(self.score(row)), 1, -row.count), key, key) for key, row in new.items()]
        stay = {key for *_, key in sorted(held + come)[: self.spec.capacity]}
        self.evicted += len(self.rows.keys() - stay)
        self.rows = {k: row for k, row in {**self.rows, **new}.items() if k in stay}


def _negative(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(-value for value in values)


DIM = 2
FAR = 0x1F3D5B79ABCDEF01  # keys lie far apart


def key_of(number: int) -> int:
    return number * FAR % (NUM_ROWS - 1)


def table_of(engine: LocalEngine) -> LivingTable:
    table = engine.tables["t"]
    assert isinstance(table, LivingTable)
    return table


def build(living: LivingSpec, init_fn: str = "constant_,val=1.0") -> tuple[LocalEngine, SparseOptimizer]:
    spec = TableSpec("t", NUM_ROWS, DIM, init_fn=init_fn, living=replace(living, init_fn=init_fn))
    engine = LocalEngine([spec], [LookupSpec("f", "f", "t")], keys=["f"])
    return engine, Adagrad(engine, lr=0.125)


def ids_of(batch: list[int]) -> Ids:
    return Ids(
        torch.tensor(batch, dtype=torch.int64),
        torch.ones(len(batch), dtype=torch.int32),
        [len(batch)],
        None,
        True,
    )


def train(engine: LocalEngine, optimizer: SparseOptimizer, batch: list[int]) -> torch.Tensor:
    out = engine(ids_of(batch)).pooled(["f"])
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return out.detach()


POLICIES = st.sampled_from([LAST, COUNT, DISTANCE])
DYNAMIC = st.builds(
    LivingSpec,
    capacity=st.integers(8, 12),
    policy=st.sampled_from([LAST, COUNT, NEVER]),
    threshold=st.sampled_from([0, 0, 1, 2, 3]),
    counters=st.just(4096),
    ttl=st.sampled_from([0, 0, 1, 3, 20]),
)
ZCH = st.builds(
    LivingSpec,
    capacity=st.integers(1, 8),
    policy=POLICIES,
    interval=st.integers(1, 3),
    decay=st.sampled_from([0.5, 1.0, 2.0]),
    filter=st.sampled_from([Filter(), Filter("above", 1.0), Filter("mean", 1.0), Filter("mean", 0.5)]),
    fallback=st.just(True),
    ttl=st.sampled_from([0, 0, 2, 5]),
)
BATCHES = st.lists(st.lists(st.integers(0, 24).map(key_of), min_size=1, max_size=8), min_size=1, max_size=25)


def check_same(engine: LocalEngine, reference: Reference) -> None:
    """Keys, marks and states are the reference's."""
    table = table_of(engine)
    keys, rows = table.live()
    assert keys.tolist() == sorted(reference.rows)
    marks = table.meta[rows, 1]
    own = [reference.rows[key] for key in keys.tolist()]
    if reference.now % reference.spec.interval == 0:  # between rounds marks are on their way
        assert (marks >> 32).tolist() == [row.last for row in own]
        assert (marks & 0xFFFFFFFF).tolist() == [row.count for row in own]
    held = {key: row for key, row in reference.rows.items() if row.moved}
    if reference.spec.fallback and reference.fallback.moved:
        held[NUM_ROWS - 1] = reference.fallback
    keys, states = table.row_states()
    assert keys.tolist() == sorted(held)
    squares = np.array([[held[key].squares] * DIM for key in keys.tolist()], np.float32).reshape(-1, DIM)
    (state,) = states.values()
    np.testing.assert_array_equal(state - table.states[next(iter(states))].initial, squares)


@pytest.mark.parametrize("kind", ["dynamicemb", "zch"])
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_rounds_are_those_of_a_dictionary(kind: str, data: st.DataObject) -> None:
    living = data.draw(DYNAMIC if kind == "dynamicemb" else ZCH)
    batches = data.draw(BATCHES)
    engine, optimizer = build(living)
    reference = Reference(living)
    weights: dict[int | None, torch.Tensor] = {}
    for batch in batches:
        expected_before = dict(weights)
        held = set(reference.rows)
        out = train(engine, optimizer, batch)
        seen = reference.train(batch)
        for key, vector in zip(seen, out, strict=True):
            if key is None and not living.fallback:
                assert vector.eq(0).all()  # what is not admitted reads as the constant 0
            elif key not in held and key is not None:
                assert vector.eq(
                    1
                ).all()  # a key that is new begins at its initial value, whoever had the row
            else:
                torch.testing.assert_close(vector, expected_before.get(key, torch.ones(DIM)), rtol=0, atol=0)
        check_same(engine, reference)
        assert table_of(engine).turnover().evicted == reference.evicted
        known, values = engine.export_table("t")
        weights = {
            (None if k == NUM_ROWS - 1 else k): torch.from_numpy(v) for k, v in zip(known.tolist(), values)
        }


@pytest.mark.parametrize(
    "living",
    [
        LivingSpec(5000, COUNT),
        LivingSpec(5000, LAST),
        LivingSpec(5000, DISTANCE, interval=2, decay=0.7, fallback=True),
        LivingSpec(5000, LAST, interval=1, fallback=True),
    ],
    ids=["LFU", "STEP", "distance_lfu", "lru"],
)
def test_many_keys_and_growth_never_give_a_wrong_row(living: LivingSpec) -> None:
    engine, optimizer = build(living)
    reference = Reference(living)
    random = np.random.default_rng(7)
    for step in range(60):
        batch = [key_of(int(n)) for n in random.zipf(1.1, 600) % 40_000 + 37 * step]
        train(engine, optimizer, batch)
        reference.train(batch)
    check_same(engine, reference)
    assert reference.evicted > 1000
    _, values = engine.export_table("t")
    # Adagrad from 0 with gradient n: w −= lr · n / √Σn², so each key's own history shows in its weight.
    assert len(np.unique(values[:, 0])) > 100


def test_values_of_new_rows_are_drawn_by_key() -> None:
    first, one = build(LivingSpec(3), "uniform_,a=-1,b=1")
    other, two = build(LivingSpec(100), "uniform_,a=-1,b=1")
    keys = [key_of(n) for n in range(9)]
    expected = {key: train(other, two, [key])[0] for key in keys}
    for key in [*keys, *keys]:
        torch.testing.assert_close(train(first, one, [key])[0], expected[key], rtol=0, atol=0)


def test_evaluation_changes_no_byte() -> None:
    engine, optimizer = build(LivingSpec(4, COUNT, interval=2, fallback=True))
    for batch in ([1, 2, 3], [1, 2, 9], [5, 5, 1]):
        train(engine, optimizer, batch)
    table = table_of(engine)
    before = (table.line.tobytes(), table.meta.tobytes(), engine.export_table("t")[1].tobytes())
    engine.eval()
    out = engine(ids_of([1, 77, 78])).pooled(["f"]).detach()
    assert before == (table.line.tobytes(), table.meta.tobytes(), engine.export_table("t")[1].tobytes())
    assert torch.equal(out[1], out[2])
    fallback = engine.export_table("t")
    np.testing.assert_array_equal(out[1].numpy(), fallback[1][fallback[0] == NUM_ROWS - 1][0])


def test_rows_with_waiting_gradients_stay() -> None:
    engine, optimizer = build(LivingSpec(4, LAST))
    train(engine, optimizer, [1, 2])
    first = engine(ids_of([3, 4])).pooled(["f"])
    first.sum().backward()
    second = engine(ids_of([5, 6])).pooled(["f"])  # 1 and 2 make room; 3 and 4 wait for their update
    second.sum().backward()
    assert table_of(engine).live()[0].tolist() == [3, 4, 5, 6]
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(DataError, match="raise max_capacity"):
        train(engine, optimizer, [11, 12, 13, 14, 15])


def test_two_passes_before_a_backward_keep_their_rows() -> None:
    engine, optimizer = build(LivingSpec(4, LAST))
    train(engine, optimizer, [1, 2, 3])
    first = engine(ids_of([4, 5])).pooled(["f"])
    second = engine(ids_of([6, 7])).pooled(["f"])  # 1, 2 and 3 are gone; 4 and 5 stay
    assert table_of(engine).live()[0].tolist() == [4, 5, 6, 7]
    (first.sum() + 2 * second.sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    _, states = table_of(engine).row_states()
    (state,) = states.values()
    np.testing.assert_array_equal(state[:, 0] - table_of(engine).states["sum"].initial, [1, 1, 4, 4])


def test_gradients_of_rows_that_changed_hands_are_refused() -> None:
    engine, _ = build(LivingSpec(2, LAST))
    stale = engine(ids_of([1, 2])).pooled(["f"])
    engine.clear_gradients()  # as after an update
    engine(ids_of([3, 4])).pooled(["f"])
    with pytest.raises(RuntimeError, match="changed hands"):
        stale.sum().backward()


def test_unknown_ids_share_vectors_of_the_distribution() -> None:
    living = LivingSpec(4, unknown="uniform_,a=2,b=3")
    engine, _ = build(living)
    engine.eval()
    keys = [key_of(n) for n in range(1000)]
    out = engine(ids_of(keys)).pooled(["f"])
    assert out.min() >= 2
    assert out.max() <= 3
    assert 50 <= len(torch.unique(out, dim=0)) <= 64
    torch.testing.assert_close(out, engine(ids_of(keys)).pooled(["f"]), rtol=0, atol=0)


def test_counters_are_bounded_and_keep_the_frequent() -> None:
    engine, optimizer = build(LivingSpec(100, threshold=3, counters=16))
    for n in range(200):
        train(engine, optimizer, [key_of(1), key_of(1000 + n)] if n in (0, 5, 9) else [key_of(1000 + n)])
    assert table_of(engine).live()[0].tolist() in ([key_of(1)], [])
    state = table_of(engine).export_scores()
    assert len(state["counters"]) <= 16


@pytest.mark.parametrize("fallback", [False, True])
def test_state_goes_on_exactly(fallback: bool) -> None:
    living = LivingSpec(
        6,
        COUNT,
        interval=3,
        filter=Filter("above", 1.0) if fallback else Filter(),
        fallback=fallback,
        threshold=0 if fallback else 2,
        counters=64,
    )
    random = np.random.default_rng(3)
    batches = [[key_of(int(n)) for n in random.integers(0, 15, 6)] for _ in range(40)]
    engine, optimizer = build(living)
    for batch in batches[:20]:
        train(engine, optimizer, batch)
    copy, optimizer2 = build(living)
    table, taken = table_of(engine), table_of(copy)
    taken.import_scores(table.export_scores())
    for part in table.parts():
        taken.write(part.row_ids, part.weights)
        optimizer2.import_state("t", part.row_ids, {**part.states, **optimizer.table_state("t")})
    for batch in batches[20:]:
        torch.testing.assert_close(
            train(engine, optimizer, batch), train(copy, optimizer2, batch), rtol=0, atol=0
        )
    for own, theirs in zip(table.export_scores().items(), taken.export_scores().items(), strict=True):
        assert own[0] == theirs[0]
        np.testing.assert_array_equal(own[1], theirs[1])


def test_a_smaller_capacity_keeps_the_best() -> None:
    engine, optimizer = build(LivingSpec(10, COUNT))
    for n in range(1, 9):
        train(engine, optimizer, [n] * n)
    small, _ = build(LivingSpec(3, COUNT))
    taken = table_of(small)
    taken.import_scores(table_of(engine).export_scores())
    taken.write(*engine.export_table("t"))
    keys, values = small.export_table("t")
    assert keys.tolist() == [6, 7, 8]
    np.testing.assert_array_equal(values, engine.export_table("t")[1][-3:])


def test_rows_of_zch_without_the_shared_one(caplog: pytest.LogCaptureFixture) -> None:
    engine, optimizer = build(LivingSpec(10, COUNT, interval=2, fallback=True))
    for _ in range(4):
        train(engine, optimizer, [1, 2, 3])
    taken, _ = build(LivingSpec(10, LAST))
    with caplog.at_level("INFO"):
        table_of(taken).write(*engine.export_table("t"))
    assert taken.export_table("t")[0].tolist() == [1, 2, 3]
    assert "shared (zch) is left out" in caplog.text
    assert "beyond its capacity" not in caplog.text


def test_a_larger_index_has_its_pages_before_it_is_used() -> None:
    capacity, batch = 60_000, 500
    table = table_of(build(LivingSpec(capacity, LAST))[0])
    line, index = table.line, table._index
    sizes = [int(line[at.SIZE])]
    for first in range(0, capacity, batch):
        had = 0 if index._next is None else index._next.touched
        table.make_room(batch)
        if int(line[at.SIZE]) != sizes[-1]:
            sizes.append(int(line[at.SIZE]))
            new = at.ENTRY * sizes[-1] - had
        else:
            new = 0 if index._next is None else index._next.touched - had
        assert new <= 12 * at.ENTRY * batch  # 4 / MAX_LOAD entries a key
        table.slots_for(np.arange(first, first + batch) * 7919)
    assert all(later <= 2 * size for size, later in pairwise(sizes))
    assert int(line[at.LIVE]) == capacity
    assert capacity <= MAX_LOAD * sizes[-1] < capacity + 10  # as large as needed, reached by doubling
    assert index._next is None


@pytest.mark.parametrize("fallback", [False, True])
def test_threads_change_nothing(fallback: bool) -> None:
    living = LivingSpec(3000, COUNT, filter=Filter("above", 1.0) if fallback else Filter(), fallback=fallback)
    random = np.random.default_rng(5)
    batches = [[key_of(int(n)) for n in random.zipf(1.2, 20_000) % 9000] for _ in range(4)]
    threads = torch.get_num_threads()
    found = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            engine, optimizer = build(living if fallback else replace(living, capacity=6000))
            for batch in batches:
                train(engine, optimizer, batch)
            scores = {key: value.tobytes() for key, value in table_of(engine).export_scores().items()}
            rows, weights = engine.export_table("t")
            found.append((scores, rows.tobytes(), weights.tobytes()))
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]
