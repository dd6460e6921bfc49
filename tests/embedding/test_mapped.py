"""Lookups into mapped tables: any widths, packings and bags in one call, against rows unpacked by NumPy."""

from pathlib import Path

import numpy as np
import pytest

from recgrad.embedding.local.layout import BAGS, IDS, VECTOR_STRIDE, VECTORS
from recgrad.embedding.mapped.lookup import ID_STEP
from recgrad.embedding.mapped.packing import PACKINGS, PRECISIONS
from recgrad.embedding.mapped.record import LookupRecord
from recgrad.embedding.mapped.tables import BadIdError, Bags, MappedTables, Target, address_of
from recgrad.embedding.mapped.writing import write_table
from recgrad.embedding.spec import TableSpec

WIDTHS = (1, 3, 4, 8, 13, 16, 20, 32, 48)
ROWS = 400
NO_ID = -5


class Written:
    """Tables of every width and packing, some with an index; every other row was trained."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        records, lookups, self.rows = [], [], {}
        for precision in PRECISIONS:
            for dim in WIDTHS:
                for count in (ROWS, 100_000):
                    name = f"{precision}_{dim}_{count}"
                    spec = TableSpec(name, count, dim, init_fn="nn.init.constant_,val=0.25")
                    values = rng.normal(size=(ROWS // 2, dim)).astype(np.float32)
                    rows = np.arange(0, ROWS, 2)
                    record = write_table(
                        folder, name, spec, len(rows), [(rows, values)], precision=precision, seed=1
                    )
                    packing = PACKINGS[record.packing]
                    full = np.full((ROWS, dim), 0.25, np.float32)
                    full[rows] = packing.unpack(packing.pack(values), dim)
                    self.rows[name] = full
                    records.append(record)
                    lookups.append(LookupRecord(name, name, name, "mean" if dim % 2 else "sum", False))
        assert {bool(record.index_file) for record in records} == {True, False}
        self.names = list(self.rows)
        self.tables = MappedTables(folder, records, lookups)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("tables"))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bags", [1, 7, 300])
def test_one_id_in_each_bag(written: Written, bags: int, threads: int) -> None:
    ids = {name: np.random.default_rng(i).integers(0, ROWS, bags) for i, name in enumerate(written.names)}
    outs = {name: np.full((bags, written.tables.dim(name) + 2), 9, np.float32) for name in written.names}
    targets = [Target(name, out[:, 1:-1]) for name, out in outs.items()]
    written.tables.look_up(targets, {name: Bags(own) for name, own in ids.items()}, threads)
    for name, out in outs.items():
        np.testing.assert_array_equal(out[:, 1:-1], written.rows[name][ids[name]], name)
        assert (out[:, [0, -1]] == 9).all()


def test_bags_of_several_weighted_ids(written: Written) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 5, 50)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(0, ROWS, offsets[-1])
    weights = rng.random(len(ids)).astype(np.float32)
    targets = [Target(name, np.empty((50, written.tables.dim(name)), np.float32)) for name in written.names]
    written.tables.look_up(targets, dict.fromkeys(written.names, Bags(ids, offsets, weights)))
    for target in targets:
        rows = written.rows[target.lookup][ids].astype(np.float64) * weights[:, None]
        for bag in range(50):
            wanted = rows[offsets[bag] : offsets[bag + 1]].sum(0)
            if written.tables.lookups[target.lookup].pooling == "mean":
                wanted = wanted / max(lengths[bag], 1)
            np.testing.assert_allclose(target.out[bag], wanted, 1e-5, 1e-6)


def test_empty_bags_and_an_id_that_all_bags_share(written: Written) -> None:
    """One id for all bags, and an id that stands for none, without a Python object each."""
    tables, names = written.tables, written.names
    ids = np.array([4, NO_ID, 3, NO_ID, 398])
    outs = [np.full((5, tables.dim(name)), 9, np.float32) for name in names]
    lines = tables.lines(names, NO_ID)
    lines[:, IDS], lines[:, BAGS] = address_of(ids), 5
    lines[:, VECTORS] = [address_of(out) for out in outs]
    lines[:, VECTOR_STRIDE] = [out.strides[0] for out in outs]
    shared = np.arange(len(names)) % 2 == 0
    lines[shared, ID_STEP] = 0
    tables.run(names, lines)
    for name, out, one in zip(names, outs, shared, strict=True):
        rows = written.rows[name]
        wanted = np.repeat(rows[[4]], 5, 0) if one else np.where(ids[:, None] >= 0, rows[ids], 0)
        np.testing.assert_array_equal(out, wanted, name)


@pytest.mark.parametrize("wrong", [-1, ROWS, 1 << 40, -(1 << 62)])
@pytest.mark.parametrize("several", [False, True])
def test_ids_outside_a_table_are_told(written: Written, wrong: int, several: bool) -> None:
    name = f"FP32_16_{ROWS}"
    ids = np.array([5] * 200 + [wrong] + [5] * 200)
    offsets = np.arange(len(ids) + 1) if several else None
    out = np.empty((len(ids), 16), np.float32)
    with pytest.raises(BadIdError, match=f"id {wrong} is outside table '{name}' of {ROWS} rows") as error:
        written.tables.look_up([Target(name, out)], {name: Bags(ids, offsets)})
    assert error.value.position == 200


def test_no_bags_are_no_work(written: Written) -> None:
    name = written.names[0]
    none = Target(name, np.empty((0, written.tables.dim(name)), np.float32))
    written.tables.look_up([none], {name: Bags(np.empty(0, np.int64))})
    written.tables.look_up([], {})
