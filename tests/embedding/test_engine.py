"""The local engine: lookups, storage, initial values, bad ids, threads, export and import."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import DataError
from recgrad.optim.sparse import SGD, Adagrad, Adam


def ids_of(bags: Sequence[Sequence[Sequence[int]]], weights: np.ndarray | None = None) -> Ids:
    """Bags of each key as the engine takes them."""
    values = [i for key in bags for bag in key for i in bag]
    lengths = [len(bag) for key in bags for bag in key]
    return Ids(
        torch.tensor(values, dtype=torch.int64),
        torch.tensor(lengths, dtype=torch.int32),
        [len(key) for key in bags],
        None if weights is None else torch.from_numpy(weights),
    )


def one_table(rows: int = 50, dim: int = 8, **spec: Any) -> LocalEngine:
    return LocalEngine([TableSpec("t", rows, dim, **spec)], [LookupSpec("l", "k", "t")], keys=["k"])


EPSILON = 2.0**-23
TINY = 2.0**-24  # the smallest step of FP16


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_training_equals_brute_force(data: Any) -> None:
    """Any dims, bags, tables, types and storage: outputs and one SGD step against plain numpy."""
    dims = data.draw(
        st.lists(st.sampled_from([*range(1, 20), 31, 32, 64, 65, 128, 257]), min_size=1, max_size=3)
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    kinds = data.draw(
        st.lists(st.sampled_from(["FP32", "FP32", "FP16", "BF16"]), min_size=len(dims), max_size=len(dims))
    )
    storage = data.draw(st.sampled_from(["PLAIN", "COMPACT"]))
    tables = [
        TableSpec(f"t{i}", int(rng.integers(1, 80)), d, data_type=k, storage=storage)
        for i, (d, k) in enumerate(zip(dims, kinds, strict=True))
    ]
    lookups = [
        LookupSpec(f"l{i}", f"k{i}", f"t{rng.integers(len(tables))}", str(rng.choice(["sum", "mean"])))
        for i in range(int(rng.integers(1, 5)))
    ]
    engine = LocalEngine(tables, lookups, keys=[spec.key for spec in lookups], seed=int(rng.integers(1000)))
    optimizer = SGD(engine, lr=0.5)
    by_name = {spec.name: spec for spec in tables}
    single = bool(rng.integers(2))
    rows = int(rng.integers(1, 7))
    longest = int(rng.choice([3, 3, 1200]))
    bags = [
        [
            rng.integers(0, by_name[spec.table].num_rows, 1 if single else rng.integers(0, longest)).tolist()
            for _ in range(rows)
        ]
        for spec in lookups
    ]
    total = sum(len(bag) for key in bags for bag in key)
    weights = rng.uniform(0.5, 1.5, total).astype(np.float32) if rng.integers(2) else None
    ids = ids_of(bags, weights)._replace(single=single)
    weight = {t.name: engine.tables[t.name].initial(np.arange(t.num_rows)).astype(float) for t in tables}
    gradient = {t.name: np.zeros((t.num_rows, t.dim)) for t in tables}
    names = [spec.name for spec in lookups]
    result = engine(ids)
    output = result.pooled(names)
    upstream = rng.normal(size=output.shape).astype(np.float32)
    expected = np.zeros(output.shape)
    # Sums of float32 are off by at most (terms · ε · the sum of their sizes): these are the sizes.
    expected_size = np.zeros(output.shape)
    gradient_size = {name: np.zeros_like(values) for name, values in gradient.items()}
    column = i = 0
    for spec, key in zip(lookups, bags, strict=True):
        dim = by_name[spec.table].dim
        for row, bag in enumerate(key):
            for id_ in bag:
                scale = (1.0 if weights is None else float(weights[i])) / (
                    len(bag) if spec.pooling == "mean" else 1
                )
                term = scale * weight[spec.table][id_]
                expected[row, column : column + dim] += term
                expected_size[row, column : column + dim] += np.abs(term)
                term = scale * upstream[row, column : column + dim]
                gradient[spec.table][id_] += term
                gradient_size[spec.table][id_] += np.abs(term)
                i += 1
        column += dim
    error = np.abs(output.detach().numpy() - expected)
    assert np.all(error <= EPSILON * (longest + 2) * expected_size)
    output.backward(torch.from_numpy(upstream))
    optimizer.step()
    for spec in tables:
        row_ids, got = engine.export_table(spec.name)
        used = {
            i
            for s, key in zip(lookups, bags, strict=True)
            if s.table == spec.name
            for bag in key
            for i in bag
        }
        assert row_ids.tolist() == sorted(used)
        want = (weight[spec.name] - 0.5 * gradient[spec.name])[row_ids]
        size = (np.abs(weight[spec.name]) + 0.5 * gradient_size[spec.name])[row_ids]
        # a short type is off by less than one of its steps
        step = {"FP32": EPSILON, "FP16": 2.0**-10, "BF16": 2.0**-7}[spec.data_type]
        assert np.all(np.abs(got - want) <= step * np.abs(want) + EPSILON * (total + 4) * size + TINY)


@pytest.mark.parametrize("storage", ["PLAIN", "COMPACT"])
@pytest.mark.parametrize("dim", [1, 3, 16, 20])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), longer=st.sampled_from([None, 0, 500, 699]))
def test_bags_of_one_id_or_none_are_rows_or_zeros(
    storage: str, dim: int, seed: int, longer: int | None
) -> None:
    """Of rows that were learned and rows that were not, with or without one bag of several ids among them."""
    rng = np.random.default_rng(seed)
    engine = one_table(400, dim, storage=storage)
    optimizer = SGD(engine, lr=0.5)
    bags = [rng.integers(0, 400, int(rng.random() < 0.8)).tolist() for _ in range(700)]
    if longer is not None:
        bags[longer] = [7, 7, 399]
    learned = [[id_ for id_ in bag if id_ % 3] for bag in bags]
    engine(ids_of([learned])).pooled(["l"]).square().sum().backward()
    optimizer.step()
    weights = engine.tables["t"].initial(np.arange(400))
    row_ids, changed = engine.export_table("t")
    assert (row_ids % 3 > 0).all()
    weights[row_ids] = changed
    found = engine(ids_of([bags])).pooled(["l"]).detach().numpy()
    for row, bag in enumerate(bags):
        expected = weights[bag].sum(0) if bag else np.zeros(dim)
        np.testing.assert_allclose(found[row], expected, rtol=0 if len(bag) < 2 else 1e-6, err_msg=str(row))


def test_pooled_and_sequence_lookups_of_one_table_are_one_update() -> None:
    lookups = [LookupSpec("pooled", "k", "t"), LookupSpec("history", "s", "t", sequence=True)]
    engine = LocalEngine([TableSpec("t", 10, 4)], lookups, keys=["k"], sequence_keys=["s"])
    optimizer = Adagrad(engine, lr=1.0)
    start = engine.tables["t"].initial(np.arange(10))
    embedded = engine(ids_of([[[1], [2]]]), ids_of([[[1], [3], [1]]]))
    np.testing.assert_allclose(embedded.sequence("history").detach().numpy(), start[[1, 3, 1]])
    (embedded.pooled(["pooled"]).sum() + 2 * embedded.sequence("history").sum()).backward()
    optimizer.step()
    rows, weights = engine.export_table("t")
    assert rows.tolist() == [1, 2, 3]
    np.testing.assert_allclose(weights, start[rows] - 1.0, atol=1e-6)  # Adagrad's first step is lr · sign
    np.testing.assert_allclose(optimizer.export_state("t")["sum"][:, 0], [25, 1, 4])


def test_outputs_side_by_side_are_a_view_and_others_a_copy() -> None:
    tables = [TableSpec("a", 10, 4), TableSpec("b", 10, 4), TableSpec("c", 10, 2)]
    engine = LocalEngine(tables, [LookupSpec(n, n, n) for n in "abc"], keys=list("abc"))
    embedded = engine(ids_of([[[1]], [[2]], [[3]]]))
    both = embedded.pooled(["a", "b"])
    assert both.data_ptr() == embedded.pooled(["a"]).data_ptr()
    torch.testing.assert_close(embedded.pooled(["b", "a"]), torch.cat([both[:, 4:], both[:, :4]], 1))
    assert embedded.pooled(["c", "a"]).shape == (1, 6)
    with pytest.raises(KeyError, match="no pooled lookup 'd'"):
        embedded.pooled(["d"])


@pytest.mark.parametrize("storage", ["PLAIN", "COMPACT"])
def test_forward_passes_create_nothing(storage: str) -> None:
    engine = one_table(storage=storage)
    optimizer = SGD(engine, lr=0.1)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            engine(ids_of([[[1, 2], [3]]])).pooled(["l"])
    optimizer.step()
    assert engine.pending_tables() == set()
    assert engine.memory()[0].rows == 0
    assert len(engine.export_table("t")[0]) == 0


@pytest.mark.parametrize("storage", ["PLAIN", "COMPACT"])
def test_initial_values_depend_on_seed_table_and_row_alone(storage: str) -> None:
    def value(engine: LocalEngine, row: int) -> np.ndarray:
        with torch.no_grad():
            return engine(ids_of([[[row]]])).pooled(["l"]).numpy()

    engine, other = one_table(storage=storage), one_table(storage=storage)
    for row in (5, 1):
        engine(ids_of([[[row]]])).pooled(["l"]).sum().backward()
        SGD(engine, lr=0.0).step()
    np.testing.assert_array_equal(value(engine, 5), value(other, 5))
    assert not np.array_equal(value(other, 5), value(other, 6))
    reseeded = LocalEngine([TableSpec("t", 50, 8)], [LookupSpec("l", "k", "t")], keys=["k"], seed=1)
    assert not np.array_equal(value(reseeded, 5), value(other, 5))


def test_default_initialisation_is_torchrecs() -> None:
    values = one_table(rows=10_000, dim=16).tables["t"].initial(np.arange(10_000))
    bound = 1 / np.sqrt(10_000)
    assert np.abs(values).max() <= bound
    assert np.abs(values).max() > 0.999 * bound
    assert values.std() == pytest.approx(bound / np.sqrt(3), rel=0.01)
    assert abs(values.mean()) < 4 * bound / np.sqrt(3 * values.size)
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 0.05
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.05


def test_frozen_table_is_looked_up_but_never_written() -> None:
    tables = [TableSpec("t", 10, 4, trainable=False), TableSpec("u", 10, 4)]
    engine = LocalEngine(tables, [LookupSpec(n, n, n) for n in "tu"], keys=list("tu"))
    optimizer = SGD(engine, lr=0.1)
    engine.import_table("t", [1], np.ones((1, 4)))
    out = engine(ids_of([[[1]], [[1]]])).pooled(["t", "u"])
    out.sum().backward()
    optimizer.step()
    assert engine.export_table("t")[1].tolist() == [[1.0] * 4]
    assert engine.memory()[1].rows == 1
    assert list(optimizer.tables) == ["u"]


@pytest.mark.parametrize("storage", ["PLAIN", "COMPACT"])
@pytest.mark.parametrize("single", [True, False])
@settings(max_examples=20, deadline=None)
@given(bad=st.sampled_from([-1, 50, 51, 2**31, 2**32 + 1, 2**63 - 1, -(2**63)]), place=st.integers(0, 299))
def test_bad_ids_are_named_and_touch_nothing(storage: str, single: bool, bad: int, place: int) -> None:
    engine = one_table(storage=storage)
    values = torch.arange(300) % 50
    values[place] = bad
    lengths = torch.ones(300, dtype=torch.int32)
    with pytest.raises(
        DataError, match=rf"feature 'k': id {bad} is outside table 't' of 50 rows \(row {place} "
    ):
        engine(Ids(values, lengths, [300], None, single))
    assert engine.memory()[0].rows == 0


def test_ids_changed_after_the_forward_pass_are_refused() -> None:
    engine = one_table()
    optimizer = SGD(engine, lr=0.1)
    ids = ids_of([[[1], [2]]])
    output = engine(ids).pooled(["l"])
    ids.values[0] = 10**12
    output.sum().backward()
    with pytest.raises(DataError, match="ids were changed"):
        optimizer.step()
    assert engine.memory()[0].rows == 0


def test_shapes_that_do_not_fit_are_refused() -> None:
    engine = one_table()
    good = ids_of([[[1], [2]]])
    for broken, message in [
        (good._replace(values=good.values.int()), "must be int64"),
        (good._replace(lengths=torch.tensor([1, 2], dtype=torch.int32)), "must add up"),
        (good._replace(lengths=torch.tensor([3, -1], dtype=torch.int32)), "must not be negative"),
        (good._replace(bag_counts=[1, 1]), "must have 1 features"),
        (good._replace(weights=torch.ones(3)), "a weight for each id"),
    ]:
        with pytest.raises(ValueError, match=message):
            engine(broken)


def trained(threads: int, storage: str, data_type: str, seed: int = 0) -> list[np.ndarray]:
    torch.set_num_threads(threads)
    tables = [
        TableSpec(f"t{i}", 3000, d, storage=storage, data_type=data_type) for i, d in enumerate((16, 16, 5))
    ]
    lookups = [LookupSpec(f"l{i}", f"k{i}", f"t{i}") for i in range(3)]
    engine = LocalEngine(tables, lookups, keys=["k0", "k1", "k2"])
    optimizer = Adam(engine, lr=0.01)
    rng = np.random.default_rng(seed)
    for _ in range(4):
        lengths = rng.integers(0, 9, 3 * 700).astype(np.int32)
        values = torch.from_numpy(rng.zipf(1.3, lengths.sum()) % 3000)
        out = engine(Ids(values, torch.from_numpy(lengths), [700] * 3)).pooled(["l0", "l1", "l2"])
        out.backward(torch.from_numpy(rng.normal(size=out.shape).astype(np.float32)))
        optimizer.step()
    return [array for spec in tables for array in engine.export_table(spec.name)]


@pytest.mark.parametrize("data_type", ["FP32", "BF16"])
def test_threads_runs_and_storage_do_not_change_a_bit(data_type: str) -> None:
    before = torch.get_num_threads()
    try:
        first = trained(1, "PLAIN", data_type)
        for threads, storage in [(2, "PLAIN"), (1, "COMPACT"), (3, "COMPACT")]:
            for mine, theirs in zip(first, trained(threads, storage, data_type), strict=True):
                np.testing.assert_array_equal(mine, theirs)
    finally:
        torch.set_num_threads(before)


def test_stochastic_rounding_keeps_the_mean() -> None:
    """Steps far below a BF16 step of 1.0 would vanish if rounded to nearest."""
    engine = one_table(rows=4000, dim=4, data_type="BF16", init_fn="nn.init.ones_")
    optimizer = SGD(engine, lr=1e-4)
    for _ in range(20):
        out = engine(Ids(torch.arange(4000), torch.ones(4000, dtype=torch.int32), [4000], None, True)).pooled(
            ["l"]
        )
        out.backward(torch.full_like(out, -1.0))
        optimizer.step()
    weights = engine.export_table("t")[1].astype(float)
    step = 2.0**-7
    assert set(np.unique(weights)) <= {1.0, 1 + step, 1 + 2 * step, 1 + 3 * step}
    # 20 steps of 1e-4; the standard error of the mean of 16000 draws of variance < 20 · 1e-4 · step
    assert weights.mean() == pytest.approx(1 + 20e-4, abs=5 * np.sqrt(20e-4 * step / 16000))


@pytest.mark.parametrize("data_type", ["FP16", "BF16"])
def test_short_storage_survives_a_round_trip(data_type: str) -> None:
    engine, other = one_table(data_type=data_type), one_table(data_type=data_type, storage="COMPACT")
    values = np.array([[0.0, -0.0, 1e-7, -3e-5, 65504.0, 1.0, -2.5, 1e-3]], np.float32)
    engine.import_table("t", [7], values)
    rows, weights = engine.export_table("t")
    other.import_table("t", rows, weights)
    np.testing.assert_array_equal(other.export_table("t")[1], weights)
    expected = torch.from_numpy(values).to(torch.float16 if data_type == "FP16" else torch.bfloat16).float()
    np.testing.assert_array_equal(weights, expected.numpy())


def test_zero_is_a_value_like_any_other() -> None:
    for storage in ("PLAIN", "COMPACT"):
        engine = one_table(storage=storage)
        engine.import_table("t", [3], np.zeros((1, 8)))
        with torch.no_grad():
            assert engine(ids_of([[[3]]])).pooled(["l"]).tolist() == [[0.0] * 8]
        assert engine.export_table("t")[0].tolist() == [3]
        assert engine.memory()[0].rows == 1


def test_compact_index_grows_through_many_doublings() -> None:
    engine = one_table(rows=3_000_000, dim=1, storage="COMPACT", init_fn="nn.init.zeros_")
    optimizer = SGD(engine, lr=1.0)
    rng = np.random.default_rng(0)
    counts = np.zeros(3_000_000)
    for _ in range(60):
        values = rng.integers(0, 3_000_000, 2000)
        np.add.at(counts, values, -1.0)
        lengths = torch.ones(2000, dtype=torch.int32)
        out = engine(Ids(torch.from_numpy(values), lengths, [2000], None, True)).pooled(["l"])
        out.sum().backward()
        optimizer.step()
    rows, weights = engine.export_table("t")
    np.testing.assert_array_equal(rows, np.flatnonzero(counts))
    np.testing.assert_array_equal(weights[:, 0], counts[rows])
    memory = engine.memory()[0]
    assert memory.rows == len(rows)
    assert memory.index_bytes <= 8 * 3.3 * len(rows)


def test_export_comes_in_pieces_in_ascending_order() -> None:
    engine = one_table(rows=1000, storage="COMPACT")
    rows = np.random.default_rng(0).permutation(1000)[:300]
    engine.import_table("t", rows, np.repeat(rows[:, None], 8, 1).astype(np.float32))
    pieces = list(engine.table_pieces("t", chunk_rows=128))
    assert [len(piece) for piece, _ in pieces] == [128, 128, 44]
    joined = np.concatenate([piece for piece, _ in pieces])
    assert joined.tolist() == sorted(rows.tolist())
    np.testing.assert_array_equal(np.concatenate([w for _, w in pieces])[:, 0], joined)


def test_large_config_opens_at_once_and_costs_what_was_learned() -> None:
    begin = time.perf_counter()
    tables = [TableSpec(f"t{i}", 40_000_000, 16) for i in range(26)]
    names = [spec.name for spec in tables]
    engine = LocalEngine(tables, [LookupSpec(n, n, n) for n in names], keys=names)
    optimizer = Adagrad(engine, lr=0.1)
    assert time.perf_counter() - begin < 5
    values = torch.randint(0, 40_000_000, (26 * 16,), generator=torch.Generator().manual_seed(0))
    ids = Ids(values, torch.ones(26 * 16, dtype=torch.int32), [16] * 26, None, True)
    engine(ids).pooled(names).sum().backward()
    optimizer.step()
    memory = engine.memory()
    assert sum(table.rows for table in memory) == 26 * 16
    assert sum(table.total_bytes for table in memory) < 26 * (16 * 128 + 10_000)


def test_tables_are_not_parameters_of_the_module() -> None:
    engine = one_table()
    assert list(engine.parameters()) == []
    assert engine.state_dict() == {}


@pytest.mark.parametrize("storage", ["PLAIN", "COMPACT"])
@pytest.mark.parametrize("bags", [[], [[]], [[], []]])
def test_batches_without_ids_update_nothing(storage: str, bags: list[list[int]]) -> None:
    engine = one_table(storage=storage)
    optimizer = Adam(engine, lr=0.1)
    output = engine(ids_of([bags])).pooled(["l"])
    assert output.tolist() == [[0.0] * 8] * len(bags)
    output.sum().backward()
    assert float(optimizer.grad_norm()) == 0.0
    optimizer.step()
    assert engine.memory()[0].rows == 0


def test_many_ids_per_bag_sum_in_the_order_of_the_batch() -> None:
    """Gradients that are read several times are copied together first; the sum is the same, bit for bit."""
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.integers(0, 40, 400))
    gradient = torch.from_numpy(rng.normal(size=(100, 8)).astype(np.float32))
    results = []
    for repeat in (1, 2):  # four ids a bag are copied; the same gradients in two passes of two ids are not
        engine = one_table(init_fn="nn.init.zeros_")
        optimizer = SGD(engine, lr=1.0)
        parts = values.view(100, 4).chunk(repeat, dim=1)
        for part in parts:
            count = part.shape[1]
            ids = Ids(part.reshape(-1), torch.full((100,), count, dtype=torch.int32), [100])
            engine(ids).pooled(["l"]).backward(gradient)
        optimizer.step()
        results.append(engine.export_table("t")[1])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)
    exact = np.zeros((40, 8), np.float32)
    for i, row in enumerate(values.tolist()):
        exact[row] += gradient[i // 4].numpy()
    np.testing.assert_array_equal(results[0], (-exact)[np.unique(values)] + 0.0)
