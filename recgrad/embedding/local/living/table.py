"""A table whose rows are given to keys as they come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.embedding.engine import LivingRows, TableMemory, Turnover
from recgrad.embedding.living import COUNT, DISTANCE, FALLBACK, LivingSpec
from recgrad.embedding.local.initializer import parse_init_fn, table_key
from recgrad.embedding.local.layout import FROZEN, INIT, KEYS, TABLE_COLUMNS
from recgrad.embedding.local.layout import KEY as TABLE_KEY
from recgrad.embedding.local.living import layout as at
from recgrad.embedding.local.living.candidates import best_first
from recgrad.embedding.local.living.growth import IndexMemory
from recgrad.embedding.local.living.rows import counters_task, place_task, reindex_task
from recgrad.embedding.local.memory import Region, address_of, spread_phase
from recgrad.embedding.local.table import Table
from recgrad.embedding.local.transfer import initial_task
from recgrad.embedding.spec import Shard, TableSpec
from recgrad.errors import CheckpointError, DataError
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch
from recgrad.optim.sparse.tables import SparseEngine

_log = logging.getLogger("recgrad.embedding")

Array = npt.NDArray[Any]
DRAWN_ROWS = 64  # vectors that unknown keys share where these are drawn at random
_LEAST = 1024
_LEAST_WINDOW_BITS = 10
_SLACK_SHIFT = 6  # 1/64 of the capacity is evicted beyond need
_SMALL_PAGES = 4 << 20
_MOST_REGIONS = 1 << 12
_FILTERS = {"": 0, "above": 1, "mean": 2, "chance": 3}


class LivingTable(Table, LivingRows):
    """A table of `capacity` rows that keys get and lose, and rows in front for keys that have none.

    To optimizers, checkpoints and exports its rows are numbered by their keys.
    """

    def __init__(
        self,
        spec: TableSpec,
        position: int,
        numbers: Array,
        parameters: Array,
        seed: int,
        engine: SparseEngine,
    ) -> None:
        assert spec.living is not None
        self.living: LivingSpec = spec.living
        living = self.living
        unknown, refused = _number_of_rows(living.unknown), _number_of_rows(living.refused)
        self.reserved = 1 if living.fallback else unknown + refused
        height = living.capacity + self.reserved
        # A shard is a whole table too: which rank has it makes no difference.
        self.title = spec.name if spec.shard is None else spec.shard.table
        inner = replace(
            spec,
            num_rows=height,
            storage="PLAIN",
            init_fn=living.init_fn or spec.init_fn,
            living=None,
            shard=Shard(self.title, height, spec.dim),
        )
        self._regions = 0
        super().__init__(inner, position, numbers, parameters, seed, engine)
        self.spec = spec
        self._seed = seed
        self._fields = np.array([living.decay, living.filter.value])
        self.line = np.zeros(at.LINE_COLUMNS, np.int64)
        self._meta = self._region(16 * height, "keys")
        self._free = self._region(4 * height, "free rows")
        self._pending = self._region(8 * height, "counts") if living.filter.kind else None
        buckets = -(-living.counters // at.WAYS)
        self._counters = self._region(16 * at.WAYS * buckets, "counters") if living.threshold > 1 else None
        self._index = IndexMemory(self.line, living.capacity, partial(self._region, what="index"))
        self._set_line(buckets)
        self._window: Array = np.empty((0, 3), np.int64)
        self._new_window(_LEAST_WINDOW_BITS)
        numbers[KEYS] = self._meta.address
        if living.fallback:
            self.meta[0, 0] = FALLBACK
        else:
            numbers[FROZEN] = self.reserved
            self._store(np.arange(unknown), self._drawn(living.unknown, "unknown", unknown))
            self._store(unknown + np.arange(refused), self._drawn(living.refused, "refused", refused))
            self.line[[at.REFUSED, at.UNKNOWN_ROWS, at.REFUSED_ROWS]] = unknown, unknown, refused
        self._told = False  # that ids were left out
        self._gone: Array | None = None  # keys that lost their rows, where somebody asks
        # Forward passes since the last round; tables take turns, so that no pass has all rounds.
        self.waiting = (position if spec.shard is None else spec.shard.position) % living.interval

    def _region(self, size: int, what: str) -> Region:
        return Region(size, f"{what} of table '{self.title}'", _SMALL_PAGES, self._next_phase())

    def _reserve(self, size: int, what: str) -> Region:
        return Region(size, f"{what} of table '{self.title}'", phase=self._next_phase())

    def _next_phase(self) -> float:
        """Another for each region of each table."""
        self._regions += 1
        return spread_phase(self.position + _MOST_REGIONS * self._regions)

    def _set_line(self, buckets: int) -> None:
        line, living = self.line, self.living
        line[at.TABLE_LINE] = address_of(self.numbers)
        line[[at.META, at.FREE]] = self._meta.address, self._free.address
        line[at.PENDING] = 0 if self._pending is None else self._pending.address
        line[[at.RESERVED, at.HIGH, at.CAPACITY]] = self.reserved, self.reserved, living.capacity
        line[[at.POLICY, at.DECAY]] = living.policy, address_of(self._fields)
        line[[at.FILTER, at.FILTER_VALUE]] = _FILTERS[living.filter.kind], address_of(self._fields) + 8
        line[[at.KEY, at.ZCH, at.TTL]] = self.numbers[TABLE_KEY], living.fallback, living.ttl
        line[[at.UNKNOWN_ROWS, at.REFUSED_ROWS]] = 1
        line[at.COUNTS] = living.policy in (COUNT, DISTANCE) or bool(living.filter.kind)
        line[at.SLACK] = living.capacity >> _SLACK_SHIFT
        if self._counters is not None:
            line[at.THRESHOLD] = living.threshold
            line[[at.COUNTERS, at.BUCKETS]] = self._counters.address, buckets

    def _drawn(self, init_fn: str, what: str, rows: int) -> Array:
        """Values of an initialiser, drawn by (seed, table, what)."""
        initializer = parse_init_fn(init_fn, self.living.capacity, self.dim, self.title)
        line, parameters = np.zeros(TABLE_COLUMNS, np.int64), np.zeros(4)
        line[[INIT, TABLE_KEY]] = initializer.kind, table_key(self._seed, f"{self.title}/{what}")
        parameters[: len(initializer.parameters)] = initializer.parameters
        values = np.empty((rows, self.dim), np.float32)
        launch(compiled(initial_task), line, parameters, np.arange(rows), rows, values, self.dim, tasks=1)
        return values

    # --- keys ---

    @property
    def meta(self) -> Array:
        """Of each row: its key (−1 for none), and its last pass and count in one number."""
        return self._meta.array(np.int64, (self.height, 2))

    def turnover(self) -> Turnover:
        """What has come and gone."""
        columns = (at.LIVE, at.CAPACITY, at.ADMITTED, at.EVICTED, at.EXPIRED, at.TURNED_AWAY)
        return Turnover(*(int(self.line[column]) for column in columns))

    def live(self) -> tuple[Array, Array]:
        """Keys that have a row, ascending, and their rows."""
        keys = self.meta[self.reserved : int(self.line[at.HIGH]), 0]
        rows = np.flatnonzero(keys >= 0)
        keys = keys[rows]
        order = np.argsort(keys)
        return keys[order].astype(np.int64), (rows + self.reserved)[order]

    def make_room(self, rows: int) -> None:
        """See to it that as many more keys find room in the index."""
        self._index.make_room(rows)

    def _new_window(self, bits: int) -> None:
        count = int(self.line[at.WINDOW_COUNT])
        window = np.empty((1 << (bits - 1), 3), np.int64)
        if count:
            window[:count] = self._window[:count]
        self._window, self._window_index = window, np.zeros(1 << bits, np.int32)
        self.line[[at.WINDOW, at.WINDOW_BITS]] = address_of(window), bits
        self.line[at.WINDOW_INDEX] = address_of(self._window_index)
        if count:
            launch(compiled(reindex_task), self.line, tasks=1)

    def make_window(self, keys: int) -> None:
        """See to it that as many more keys find room in the window."""
        need = int(self.line[at.WINDOW_COUNT]) + keys
        bits = int(self.line[at.WINDOW_BITS])
        if need > 1 << (bits - 1):
            self._new_window(max(2 * need - 1, 1).bit_length())

    # --- training ---

    def begin_pass(self, *, waits: bool) -> None:
        """Before the lookups of a forward pass in training; `waits`: gradients wait for an update."""
        line, living = self.line, self.living
        line[[at.MISSES, at.OVERFLOW, at.ROUND]] = 0
        line[at.STEP] += 1
        if not waits:
            line[at.SAFE] = line[at.STEP]
        if living.fallback:
            self.waiting += 1
            # A round may take rows whose gradients wait; it is put off until there are none.
            line[at.ROUND] = self.waiting >= living.interval and not waits
            self.waiting = 0 if line[at.ROUND] else self.waiting

    def before_round(self) -> bool:
        """Whether a round is due; makes room for what it may admit."""
        line, living = self.line, self.living
        if not living.fallback:
            parts = max(living.ttl // 16, 1)
            line[at.ROUND] = line[at.MISSES] > 0 or (living.ttl > 0 and line[at.STEP] % parts == 0)
        if line[at.ROUND]:
            self.make_room(int(line[at.WINDOW_COUNT]))
            if self._gone is not None:
                expiring = int(line[at.LIVE]) if living.ttl else 0
                self._room_for_gone(int(line[at.WINDOW_COUNT] + line[at.SLACK]) + expiring)
        return bool(line[at.ROUND])

    def log_gone(self) -> None:
        """From now on keep the keys that lose their rows, for `take_gone`."""
        self._room_for_gone(_LEAST)

    def take_gone(self) -> Array:
        """Keys that lost a row since the last call; some may have one again."""
        assert self._gone is not None
        gone = np.unique(self._gone[: int(self.line[at.GONE_COUNT])])
        self.line[at.GONE_COUNT] = 0
        return gone

    def _room_for_gone(self, keys: int) -> None:
        count = int(self.line[at.GONE_COUNT])
        if self._gone is None or count + keys > len(self._gone):
            larger = np.empty(2 * (count + keys), np.int64)
            if self._gone is not None:
                larger[:count] = self._gone[:count]
            self._gone = larger
            self.line[at.GONE] = address_of(larger)

    def after_round(self) -> None:
        """Refuse a batch that has more keys than there is room for."""
        if self.line[at.OVERFLOW]:
            raise DataError(
                f"table '{self.title}': a batch has {int(self.line[at.OVERFLOW])} ids more than"
                f" max_capacity {self.living.capacity} has room for; raise max_capacity or lower batch_size"
            )

    def _kept_slots(self) -> Array | None:
        if not self.touched and not self.numbers[FROZEN]:
            return None
        own = np.empty(0, np.int64) if self.living.fallback else np.arange(self.reserved)
        return np.concatenate([own, self.touched_rows()[1]])

    def _places_of_now(self) -> tuple[int, Callable[[], tuple[Array, Array]]]:
        high = int(self.line[at.HIGH])
        keys = self.meta[:high, 0].copy()
        if not self.living.fallback:
            keys[: self.reserved] = -1

        def places() -> tuple[Array, Array]:
            rows = np.flatnonzero(keys >= 0)
            return keys[rows], rows

        return high, places

    def _bits_of_now(self, slots: int) -> Array:
        # A row that is taken from its key loses them; the rest stays until an update, which puts it aside.
        return self._first_bits()[:slots, None].copy()

    # --- rows by key: what optimizers, checkpoints and exports see ---

    def touched_rows(self) -> tuple[Array, Array]:
        """Keys whose rows were written, ascending, and their rows; the fallback row is the last."""
        keys, rows = self.live()
        if self.living.fallback:
            keys, rows = np.append(keys, FALLBACK), np.append(rows, 0)
        written = self._first_bits()[rows] != 0
        return keys[written], rows[written]

    def slots_for(self, rows: Array) -> Array:
        """The rows of keys; those that have none get one, as long as there is room, else −1."""
        keys = np.ascontiguousarray(rows, dtype=np.int64)
        bad = np.flatnonzero((keys < 0) | (keys > FALLBACK))
        if len(bad):
            raise DataError(f"table '{self.title}': id {keys[bad[0]]} is outside 0 … {FALLBACK - 1}")
        self.make_room(len(keys))
        slots = np.empty_like(keys)
        launch(compiled(place_task), self.line, keys, slots, len(keys), tasks=1)
        self._index.settle()
        if self.living.fallback:
            slots[keys == FALLBACK] = 0
        return slots

    def write(self, rows: Array, weights: Array) -> None:
        """Set the rows of keys; those that find no room are left out."""
        rows = np.asarray(rows, np.int64)
        kept = self._kept(rows)
        if not self.living.fallback and (rows == FALLBACK).any():
            _log.info("table '%s': the row that ids without one shared (zch) is left out", self.title)
        if not (kept | (rows == FALLBACK)).all() and not self._told:
            self._told = True
            _log.warning(
                "table '%s': ids beyond its capacity %d are left out", self.title, self.living.capacity
            )
        super().write(rows[kept], np.asarray(weights)[kept])

    def begin_with(self, ids: Array, weights: Array) -> None:
        """Rows that ids have before training; the first to leave until they are seen."""
        self.write(ids, weights)
        self.meta[self.slots_for(ids), 1] = 0

    def import_states(self, rows: Array, values: dict[str, Array]) -> None:
        """Set the states of the rows of keys; those that find no room are left out."""
        rows = np.asarray(rows, np.int64)
        kept = self._kept(rows)
        super().import_states(rows[kept], {name: np.asarray(v)[kept] for name, v in values.items()})

    def _kept(self, keys: Array) -> Array:
        """Which keys have a row or get one now."""
        if not self.living.fallback:
            keys = np.where(keys == FALLBACK, -1, keys)
        kept = keys >= 0
        kept[kept] = self.slots_for(keys[kept]) >= 0
        return np.asarray(kept)

    def initial(self, rows: Array) -> Array:
        """What the rows of keys read as before they are first updated."""
        return super().initial(self.slots_for(rows))

    def every_row(self) -> Iterator[tuple[Array, Array]]:
        """All keys with a row, written or not, ascending, and their values, some at a time."""
        keys, rows = self.live()
        for i in range(0, len(keys), 1 << 18):
            yield keys[i : i + (1 << 18)], self.values(rows[i : i + (1 << 18)])

    def values(self, rows: Array) -> Array:
        """What rows read as, written or not."""
        values = self.read(rows)
        new = self._is_new(rows)
        if new.any():
            values[new] = super().initial(rows[new])
        return values

    def stand_ins(self) -> Array:
        """What keys without a row read as in evaluation, [rows, dim]; several are chosen from by hash."""
        return self.values(np.arange(int(self.line[at.UNKNOWN_ROWS])))

    # --- the rest of the state ---

    def export_scores(self) -> dict[str, Array]:
        """All that rows do not hold: keys and their marks, the window, the counters, the pass."""
        return self.begin_scores()()

    def begin_scores(self) -> Callable[[], dict[str, Array]]:
        """`export_scores` of this moment: memory is copied as it is, and put in order by who calls."""
        line, high = self.line, int(self.line[at.HIGH])
        meta = self.meta[self.reserved : high].copy()
        pending, counters = None, None
        if self._pending is not None:
            pending = self._pending.array(np.int64, (self.height,))[self.reserved : high].copy()
        if self._counters is not None:
            counters = self._counters.array(np.int64, (int(line[at.BUCKETS]) * at.WAYS, 2)).copy()
        others = {
            "window": self._window[: int(line[at.WINDOW_COUNT])].copy(),
            "numbers": np.array([line[at.STEP], self.waiting], np.int64),
            "turnover": line[at.ADMITTED : at.TURNED_AWAY + 1].copy(),
        }

        def scores() -> dict[str, Array]:
            rows = np.flatnonzero(meta[:, 0] >= 0)
            rows = rows[np.argsort(meta[rows, 0])]
            state = {"keys": meta[rows, 0], "marks": meta[rows, 1], **others}
            if pending is not None:
                state["pending"] = pending[rows]
            if counters is not None:
                held = counters[counters[:, 0] != 0]
                state["counters"] = held[np.argsort(held[:, 0])]
            return state

        return scores

    def import_scores(self, state: Mapping[str, Array]) -> None:
        """Take over the keys of a checkpoint; where they are more than there is room for, the best."""
        try:
            keys, marks = np.asarray(state["keys"], np.int64), np.asarray(state["marks"], np.int64)
            step, waiting = (int(value) for value in state["numbers"])
            window = np.asarray(state["window"], np.int64).reshape(-1, 3)
            turnover = np.asarray(state["turnover"], np.int64)
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"table '{self.title}': its keys cannot be read ({error})") from error
        order = best_first(self.living.policy, self.living.decay, marks, keys, step)[: self.living.capacity]
        dropped = len(keys) - len(order)
        if dropped:
            self._told = True
            _log.warning(
                "table '%s': the checkpoint has %d ids, there is room for %d; the %d that the policy values"
                " least are left out",
                *(self.title, len(keys), len(order), dropped),
            )
        order.sort()
        keys, marks = keys[order], marks[order]
        slots = self.slots_for(keys)
        self.meta[slots, 1] = marks
        self.line[at.STEP], self.waiting = step, waiting
        self.line[at.ADMITTED : at.TURNED_AWAY + 1] = turnover
        self._import_counts(state, slots, order, window)

    def _import_counts(self, state: Mapping[str, Array], slots: Array, order: Array, window: Array) -> None:
        if self._pending is not None and "pending" in state:
            self._pending.array(np.int64, (self.height,))[slots] = np.asarray(state["pending"])[order]
        if self.living.fallback and len(window):
            self.line[at.WINDOW_COUNT] = 0
            self.make_window(len(window))
            self._window[: len(window)] = window
            self.line[at.WINDOW_COUNT] = len(window)
            launch(compiled(reindex_task), self.line, tasks=1)
        if self._counters is not None and "counters" in state:
            held = np.ascontiguousarray(state["counters"], np.int64).reshape(-1, 2)
            launch(compiled(counters_task), self.line, held, len(held), tasks=1)

    def memory(self) -> TableMemory:
        """Keys with a row and what they cost."""
        base = super().memory()
        live = int(self.line[at.LIVE])
        index = self._index.nbytes + 16 * live + (8 * live if self._pending is not None else 0)
        index += 4 * int(self.line[at.FREE_COUNT]) + self._window.nbytes + self._window_index.nbytes
        if self._counters is not None:
            index += self._counters.size
        each = self.spec.dim * (4 if self.spec.data_type == "FP32" else 2)
        width = sum(state.width for state in self.states.values())
        return TableMemory(base.name, live, live * each, live * width * 4, index)


def _number_of_rows(init_fn: str) -> int:
    """How many vectors keys without a row share: one where all would be the same."""
    return 1 if init_fn.startswith(("constant_", "zeros_", "ones_")) else DRAWN_ROWS
