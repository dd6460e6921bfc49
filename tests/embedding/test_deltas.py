"""Tables that follow deltas are those of an export of now, whatever happened between: bit for bit."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.embedding.deltas.changed import ChangedTable
from recgrad.embedding.deltas.quantizing import dequantize, quantize
from recgrad.embedding.deltas.reading import Delta, keys_of_delta
from recgrad.embedding.deltas.record import DeltaError, DeltaRecord, published, read_record
from recgrad.embedding.deltas.writing import (
    DELETE,
    await_parts,
    part_path,
    remove_leftovers,
    write_delta,
    write_part,
)
from recgrad.embedding.engine import LivingRows
from recgrad.embedding.living import COUNT, DISTANCE, LAST, NUM_ROWS, LivingSpec
from recgrad.embedding.local.changes import ChangeLog
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.mapped.moving import MovingTables
from recgrad.embedding.mapped.record import LookupRecord
from recgrad.embedding.mapped.tables import Bags, MappedTables, Target
from recgrad.embedding.mapped.writing import write_living, write_table
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import SPARSE_OPTIMIZERS

IDS = 400
SPECS = [
    TableSpec("plain", IDS, 3, storage="PLAIN"),
    TableSpec("compact", 1 << 20, 4, storage="COMPACT"),
    TableSpec("half", 1 << 20, 4, storage="COMPACT", data_type="FP16"),
    TableSpec("zch", NUM_ROWS, 4, living=LivingSpec(60, DISTANCE, interval=2, fallback=True)),
    TableSpec("lfu", NUM_ROWS, 4, living=LivingSpec(90, COUNT, threshold=2, counters=64)),
    TableSpec("last", NUM_ROWS, 16, living=LivingSpec(90, LAST, ttl=3, unknown="uniform_,a=-1,b=1")),
]
LOOKUPS = [LookupSpec(spec.name, spec.name, spec.name) for spec in SPECS]
RECORDS = [LookupRecord(s.name, s.name, s.name, "sum", False) for s in SPECS]
NAMES = [spec.name for spec in SPECS]


class Run:
    """Tables in training, whose changes are kept."""

    def __init__(self, optimizer: str) -> None:
        self.engine = LocalEngine(SPECS, LOOKUPS, keys=NAMES, seed=3)
        options = {"lazy": False} if optimizer == "adam_optimizer" else {}
        self.optimizer = SPARSE_OPTIMIZERS[optimizer](self.engine, lr=0.1, **options)
        self.logs = {name: ChangeLog(table) for name, table in self.engine.tables.items()}
        self.last = DeltaRecord("s", 0, "", 0, 0, 0.0, "NONE")

    def train(self, rng: np.random.Generator) -> None:
        numbers = rng.integers(0, IDS, (len(SPECS), 40))
        numbers[:, 20:] %= 30  # some are frequent
        ids = torch.from_numpy(numbers.reshape(-1))
        lengths = torch.ones(ids.numel(), dtype=torch.int32)
        found = self.engine(Ids(ids, lengths, [40] * len(SPECS), None, True))
        for spec in SPECS:
            pooled = found.pooled([spec.name])
            pooled.backward(torch.from_numpy(rng.normal(size=pooled.shape).astype(np.float32)))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def dump(self, folder: Path, quant: str = "NONE") -> None:
        number = self.last.number + 1
        record = DeltaRecord("s", number, self.last.id, number, number - 1, 1.0, quant, id=f"id{number}")
        tables = [
            ChangedTable(name, log.table.spec.dim, name, *log.take()) for name, log in self.logs.items()
        ]
        self.last = write_delta(folder, "d", record, tables, {})

    def export(self, folder: Path, precision: str = "FP32") -> tuple[Any, ...]:
        folder.mkdir()
        records = []
        for table in self.engine.tables.values():
            where: Any = (folder, table.name, table.spec)
            if isinstance(table, LivingRows):
                rows: Any = (table.turnover().live, table.every_row(), table.stand_ins())
                records.append(write_living(*where, *rows, precision=precision))
            else:
                touched = len(table.touched_rows()[0])
                records.append(write_table(*where, touched, table.pieces(), precision=precision, seed=3))
        return folder, records, RECORDS


def look_up(tables: MappedTables) -> bytes:
    """What every id reads as, known or not."""
    ids = np.arange(IDS)
    out = {spec.name: np.empty((IDS, spec.dim), np.float32) for spec in SPECS}
    tables.look_up([Target(name, out[name]) for name in NAMES], {name: Bags(ids) for name in NAMES})
    return b"".join(values.tobytes() for values in out.values())


def apply(tables: MovingTables, folder: Path, number: int) -> None:
    record = read_record(published(folder)[number])
    tables.check_delta(record)
    for part in sorted(Delta(folder, record).parts(), key=lambda part: part.op != DELETE):
        tables.apply(part)


@pytest.mark.slow
@given(
    steps=st.lists(st.sampled_from("ttttdb"), min_size=4, max_size=24),
    precision=st.sampled_from(["FP32", "FP16", "INT8"]),
    optimizer=st.sampled_from(["adagrad_optimizer", "adam_optimizer"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_any_sequence_ends_at_the_export(steps: list[str], precision: str, optimizer: str, seed: int) -> None:
    rng, run = np.random.default_rng(seed), Run(optimizer)
    with TemporaryDirectory() as name:
        folder = Path(name)
        followers: list[tuple[MovingTables, int]] = []
        for i, what in enumerate([*steps, "d"]):
            if what == "t":
                run.train(rng)
            elif what == "d":
                run.dump(folder / "deltas")
            else:
                run.dump(folder / "deltas")
                exported = run.export(folder / f"bundle{i}", precision)
                followers.append((MovingTables(*exported), run.last.number))
        expected = look_up(MappedTables(*run.export(folder / "last", precision)))
        for tables, number in followers:
            for delta in range(number + 1, run.last.number + 1):
                apply(tables, folder / "deltas", delta)
                if delta % 2:
                    apply(tables, folder / "deltas", delta)  # a repeat changes nothing
            assert look_up(tables) == expected


def test_a_run_that_resumes_puts_right_what_a_killed_one_wrote(tmp_path: Path) -> None:
    first, killed, rng = Run("adagrad_optimizer"), Run("adagrad_optimizer"), np.random.default_rng(5)
    for _ in range(6):
        batch = int(rng.integers(1 << 30))
        for run in (first, killed):
            run.train(np.random.default_rng(batch))
    for run in (first, killed):
        run.dump(tmp_path / "deltas" if run is killed else tmp_path / "others")
    follower = MovingTables(*killed.export(tmp_path / "bundle"))
    for _ in range(2):
        killed.train(rng)
        killed.dump(tmp_path / "deltas")
    first.last = killed.last  # it resumes from the checkpoint before them, and finds them
    for number in (2, 3):
        record = read_record(published(tmp_path / "deltas")[number])
        for name, keys in keys_of_delta(tmp_path / "deltas", record).items():
            first.logs[name].mark(keys)
    first.train(rng)
    first.dump(tmp_path / "deltas")
    for number in (2, 3, 4):
        apply(follower, tmp_path / "deltas", number)
    assert look_up(follower) == look_up(MappedTables(*first.export(tmp_path / "last")))


def test_evaluation_and_nothing_trained_change_nothing(tmp_path: Path) -> None:
    run = Run("adagrad_optimizer")
    run.train(np.random.default_rng(1))
    run.dump(tmp_path)
    run.engine.eval()
    ids = torch.arange(IDS).repeat(len(SPECS))
    run.engine(Ids(ids, torch.ones(len(ids), dtype=torch.int32), [IDS] * len(SPECS), None, True))
    changed = [log.take() for log in run.logs.values()]
    assert [(len(c.keys), len(c.gone), c.stand_ins) for c in changed] == [(0, 0, None)] * len(SPECS)


def test_int8_is_as_near_as_its_scale(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows = (rng.normal(size=(50, 7)) * rng.lognormal(0, 3, (50, 1))).astype(np.float32)
    rows[0], rows[1] = 0, 3.5
    offset = rows.min(axis=1).astype(np.float16).astype(np.float64)
    scale = ((rows.max(axis=1) - offset) / 255).astype(np.float16).astype(np.float64)
    far = np.abs(dequantize(quantize(rows)) - rows.astype(np.float64)).max(axis=1)
    assert (far <= 0.501 * scale + np.abs(offset) * 2**-10 + 1e-7 + 255 * scale * 2**-10).all()
    with pytest.raises(ValueError, match="not finite"):
        quantize(np.array([[np.nan]], np.float32))
    run = Run("adagrad_optimizer")
    follower = MovingTables(*run.export(tmp_path / "bundle"))
    run.train(rng)
    run.dump(tmp_path / "deltas", "INT8")
    apply(follower, tmp_path / "deltas", 1)
    found, expected = (
        np.frombuffer(look_up(t), np.float32)
        for t in (follower, MappedTables(*run.export(tmp_path / "last")))
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.01)


def test_a_delta_of_other_tables_is_refused_before_anything_changes(tmp_path: Path) -> None:
    run = Run("adagrad_optimizer")
    follower = MovingTables(*run.export(tmp_path / "bundle"))
    record = DeltaRecord("s", 1, "", 1, 0, 1.0, "NONE", id="x")
    other = ChangedTable("plain", 9, "f", np.array([1]), np.ones((1, 9), np.float32), np.array([], int), None)
    written = write_delta(tmp_path, "d", record, [other], {})
    with pytest.raises(DeltaError, match="table 'plain' is not the bundle's"):
        follower.check_delta(written)


def rows_of(name: str, first: int) -> ChangedTable:
    keys = np.arange(first, first + 3)
    return ChangedTable(name, 2, name, keys, np.ones((3, 2), np.float32) * first, np.array([first + 9]), None)


def test_a_delta_of_two_ranks_has_the_rows_of_both(tmp_path: Path) -> None:
    record = DeltaRecord("s", 1, "", 5, 0, 0.0, "NONE", id="now")
    stale = DeltaRecord("s", 1, "", 5, 0, 0.0, "NONE", id="of a run that was killed")
    write_part(tmp_path, "d", stale, [rows_of("both", 90)], rank=1, ranks=2)
    ended = Event()
    ended.set()
    with pytest.raises(DeltaError, match="rank 1 has not written its rows of delta 1"):
        await_parts(tmp_path, "d", record, 2, 60.0, ended)
    assert not published(tmp_path)
    write_part(tmp_path, "d", record, [rows_of("both", 10), rows_of("other", 0)], rank=1, ranks=2)
    written = write_delta(
        tmp_path,
        "d",
        record,
        [rows_of("both", 0)],
        {"w": np.ones(1)},
        ranks=2,
        others=lambda: await_parts(tmp_path, "d", record, 2, 60.0, Event()),
    )
    assert {table.name: (table.rows, table.gone) for table in written.tables} == {
        "both": (6, 2),
        "other": (3, 1),
    }
    assert read_record(published(tmp_path)[1]) == written
    found = keys_of_delta(tmp_path, written)
    assert sorted(found["both"].tolist()) == [0, 1, 2, 9, 10, 11, 12, 19]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "d_00000001_step_5.json",
        "d_00000001_step_5.npz",
        "d_00000001_step_5.rank_0_of_2.arrow",
        "d_00000001_step_5.rank_1_of_2.arrow",
    ]


def columns_of(name: str, first_column: int, keys: list[int], gone: list[int]) -> ChangedTable:
    """Two columns of a table of four whose values say their key and column."""
    columns = np.arange(first_column, first_column + 2, dtype=np.float32)
    weights = 10 * np.array(keys, np.float32)[:, None] + columns
    return ChangedTable(name, 4, name, np.array(keys), weights, np.array(gone, int), None, first_column)


def test_columns_of_several_ranks_become_whole_rows(tmp_path: Path) -> None:
    record = DeltaRecord("s", 1, "", 5, 0, 0.0, "NONE", id="now")
    sent = [columns_of("both", 2, [7, 3, 5], [9, 1]), columns_of("theirs", 2, [4], [])]
    sent += [columns_of("theirs", 0, [4], []), rows_of("whole", 0)]
    write_part(tmp_path, "d", record, sent, rank=1, ranks=2)
    written = write_delta(
        tmp_path,
        "d",
        record,
        [columns_of("both", 0, [3, 5, 7], [1, 9])],
        {},
        ranks=2,
        others=lambda: await_parts(tmp_path, "d", record, 2, 60.0, Event()),
    )
    assert {t.name: (t.dim, t.rows, t.gone) for t in written.tables} == {
        "whole": (2, 3, 1),
        "both": (4, 3, 2),
        "theirs": (4, 1, 0),
    }
    found = {(part.table, part.op): part for part in Delta(tmp_path, written).parts()}
    assert found["both", "upsert"].keys.tolist() == [3, 5, 7]
    weights = found["both", "upsert"].weights
    assert weights is not None
    assert weights.tolist() == [[10 * key + column for column in range(4)] for key in (3, 5, 7)]
    assert found["both", "delete"].keys.tolist() == [1, 9]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "d_00000001_step_5.columns.arrow",
        "d_00000001_step_5.json",
        "d_00000001_step_5.npz",
        "d_00000001_step_5.rank_0_of_2.arrow",
        "d_00000001_step_5.rank_1_of_2.arrow",
    ]


def test_columns_that_are_damaged_on_their_way_are_refused(tmp_path: Path) -> None:
    record = DeltaRecord("s", 1, "", 5, 0, 0.0, "NONE", id="now")
    write_part(tmp_path, "d", record, [columns_of("t", 2, [1], [])], rank=1, ranks=2)
    (sent,) = tmp_path.glob("*.columns")
    sent.write_bytes(sent.read_bytes()[:-1])
    with pytest.raises(DeltaError, match="is damaged"):
        write_delta(
            tmp_path,
            "d",
            record,
            [columns_of("t", 0, [1], [])],
            {},
            ranks=2,
            others=lambda: await_parts(tmp_path, "d", record, 2, 60.0, Event()),
        )
    assert not published(tmp_path)
    remove_leftovers(tmp_path, "d")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_began_is_removed_and_nothing_else(tmp_path: Path) -> None:
    record = DeltaRecord("s", 1, "", 5, 0, 0.0, "NONE", id="a")
    write_delta(tmp_path, "d", record, [rows_of("t", 0)], {})
    kept = {path.name for path in tmp_path.iterdir()} | {"mine.arrow", ".d_notes"}
    begun = DeltaRecord("s", 2, "a", 9, 5, 0.0, "NONE", id="b")
    write_part(tmp_path, "d", begun, [rows_of("t", 0)], rank=1, ranks=2)
    assert part_path(tmp_path, "d", begun, 1).exists()
    for name in ("mine.arrow", ".d_notes", "d_00000002_step_9.npz", ".d_00000002_step_9.json.tmp"):
        (tmp_path / name).write_bytes(b"")
    remove_leftovers(tmp_path, "d")
    assert {path.name for path in tmp_path.iterdir()} == kept
    remove_leftovers(tmp_path / "nowhere", "d")
