"""FBGEMM's kernels of one rank: what waits, what is summed, and what an update does."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recgrad.embedding.build import TableOptimizer
from recgrad.embedding.local import row_copy
from recgrad.embedding.local.changes import TableChanges
from recgrad.embedding.local.engine import LocalEngine
from recgrad.embedding.sharded.choice import KernelChoice
from recgrad.embedding.spec import LookupSpec, Shard, TableSpec
from recgrad.errors import CheckpointError, DataError
from recgrad.optim.sparse import SGD, Adagrad, RowWiseAdagrad
from recgrad.optim.sparse.tables import Update

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

from recgrad.embedding.sharded.fused import FusedEngine
from recgrad.embedding.sharded.kept import Bags

DIMS = (8, 4, 12)
FEATURES = (2, 1, 1)
ROWS = 7
CPU = torch.device("cpu")


def engine(kind: Any = Adagrad, *, sequence: bool = False, **more: Any) -> FusedEngine:
    dims = (8, 8, 8) if sequence else DIMS
    specs = [
        TableSpec(f"t{i}", ROWS, dim, shard=Shard(f"t{i}", ROWS, dim), init_fn="nn.init.normal_")
        for i, dim in enumerate(dims)
    ]
    group = dict(kind([{"params": []}], lr=0.1, **more).param_groups[0])
    choice = KernelChoice("fused", (), TableOptimizer(kind, group, kind.__name__))
    made = FusedEngine(specs, [choice] * 3, FEATURES, 3, sequence=sequence, device=CPU)
    for table in made.tables.values():
        widths = [(s.name, 1 if s.per_row else table.spec.dim, 0.5) for s in kind.states]
        table.set_states(widths)
    return made


def update(made: FusedEngine, kind: Any, names: Any = None, *, limit: float = math.inf, **own: Any) -> None:
    step = own.pop("step", 1)
    group = {**kind([{"params": []}], lr=0.1).param_groups[0], **own}
    tables = [table for name, table in made.tables.items() if names is None or name in names]
    made.update([Update(table.name, kind.rule, (), limit, 0, 0, step, group) for table in tables])


def bags_of(rng: Any, weighted: bool = False, count: int = 3) -> Bags:
    lengths = rng.integers(0, 4, sum(FEATURES) * count)
    ids = rng.integers(0, ROWS, lengths.sum())
    weights = torch.tensor(rng.random(len(ids)), dtype=torch.float32) if weighted else None
    return Bags(torch.tensor(ids), torch.tensor(lengths, dtype=torch.int32), weights)


def state_of(made: FusedEngine) -> dict[str, Any]:
    return {
        name: (table.weights.clone(), {key: state.clone() for key, state in table.states.items()})
        for name, table in made.tables.items()
    }


def expected(
    made: FusedEngine,
    kind: Any,
    before: dict[str, Any],
    passes: list[tuple[Bags, Any]],
    limit: float,
    factor: float,
) -> dict[str, Any]:
    """Weights and states after an update, id by id in float64."""
    owners = [f"t{i}" for i, n in enumerate(FEATURES) for _ in range(n)]
    sums: dict[str, dict[int, Any]] = {name: {} for name in made.tables}
    for bags, gradient in passes:
        count, at = len(bags.lengths) // len(owners), 0
        g = np.clip(gradient.double().numpy(), -limit, limit)
        column = 0
        for feature, owner in enumerate(owners):
            dim = before[owner][0].shape[1]
            for bag in range(count):
                for _ in range(int(bags.lengths[feature * count + bag])):
                    row = int(bags.ids[at])
                    own = g[at] if made.layout.sequence else g[bag, column : column + dim]
                    own = own if bags.weights is None else own * float(bags.weights[at])
                    sums[owner][row] = sums[owner].get(row, 0) + own
                    at += 1
            column += dim
    after = {}
    for name, (weights, states) in before.items():
        w = weights.double().numpy().copy()
        s = {key: state.double().numpy().copy() for key, state in states.items()}
        for row, total in sums[name].items():
            g = factor * total
            if kind is SGD:
                w[row] -= 0.1 * g
            else:
                s["sum"][row] += g * g if kind is Adagrad else (g * g).mean()
                w[row] -= 0.1 * g / (np.sqrt(s["sum"][row]) + 1e-8)
        after[name] = (w, s, sorted(sums[name]))
    return after


def assert_is(made: FusedEngine, after: dict[str, Any]) -> None:
    for name, table in made.tables.items():
        weights, states, rows = after[name]
        np.testing.assert_allclose(table.weights.numpy(), weights, rtol=1e-5, atol=1e-6)
        for key, state in states.items():
            np.testing.assert_allclose(table.states[key].numpy(), state, rtol=1e-5, atol=1e-6)
        (part,) = table.parts()
        assert part.row_ids.tolist() == rows


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from([SGD, Adagrad, RowWiseAdagrad]),
    sequence=st.booleans(),
    weighted=st.booleans(),
    passes=st.integers(1, 3),
    limit=st.sampled_from([math.inf, 0.5]),
    summed=st.booleans(),
)
@example(1, Adagrad, False, True, 1, 0.5, False)
@example(1, Adagrad, False, True, 1, math.inf, False)
@example(1, SGD, False, True, 3, 0.5, True)
@example(1, RowWiseAdagrad, True, False, 3, 0.5, True)
def test_an_update_is_that_of_the_sum_over_all_passes(
    seed: int, kind: Any, sequence: bool, weighted: bool, passes: int, limit: float, summed: bool
) -> None:
    rng = np.random.default_rng(seed)
    made = engine(kind, sequence=sequence)
    before, seen = state_of(made), []
    for _ in range(passes):
        bags = bags_of(rng, weighted and not sequence)
        output = made(bags)
        gradient = torch.tensor(rng.normal(size=output.shape), dtype=torch.float32)
        if output.requires_grad:
            output.backward(gradient)
        seen.append((bags, gradient))
        if summed:
            made.summed_gradients(dict.fromkeys(made.tables, limit))
            assert made.finite_gradients(set(made.tables))
    factor = 0.25 if summed or math.isinf(limit) else 1.0
    made.scale_gradients(set(made.tables), factor)
    update(made, kind, limit=limit)
    assert_is(made, expected(made, kind, before, seen, limit, factor))
    left = state_of(made)
    update(made, kind, step=2)  # nothing waits any more
    for name, (weights, _) in state_of(made).items():
        assert torch.equal(weights, left[name][0])


def test_rows_begin_as_in_the_local_engine() -> None:
    made = engine()
    specs = [replace(table.spec, shard=None) for table in made.tables.values()]
    names = [spec.name for spec in specs]
    local = LocalEngine(specs, [LookupSpec(name, name, name) for name in names], keys=names, seed=3)
    for name, table in made.tables.items():
        np.testing.assert_array_equal(table.weights.numpy(), local.tables[name].initial(np.arange(ROWS)))
        assert (table.states["sum"] == 0.5).all()
        (part,) = table.parts()
        assert not len(part.row_ids)


def one_pass(made: FusedEngine, seed: int = 1) -> None:
    rng = np.random.default_rng(seed)
    output = made(bags_of(rng))
    output.backward(torch.tensor(rng.normal(size=output.shape), dtype=torch.float32))


def test_the_lookup_is_not_repeated_where_its_own_backward_serves() -> None:
    made, again = engine(), engine()
    group = Adagrad([{"params": []}], lr=0.1).param_groups[0]
    # A rate that changes late, or a step that is left out, is not what the lookup was made with.
    for step, late, lookups in ((1, False, 1), (2, False, 1), (3, True, 2), (5, False, 2), (6, False, 1)):
        group["lr"] = 0.1 / step  # as a schedule does, before the lookup
        before = made._forwards
        for which in (made, again):
            one_pass(which, step)
            if which is again:
                with torch.no_grad():
                    again(bags_of(np.random.default_rng(0)))  # moves FBGEMM's cache, so it looks up again
            if late:
                group["lr"] *= 0.5 if which is made else 1.0
            tables = list(which.tables.values())
            which.update([Update(t.name, Adagrad.rule, (), math.inf, 0, 0, step, group) for t in tables])
        assert made._forwards - before == lookups, step
    for name, table in made.tables.items():
        assert torch.equal(table.weights, again.tables[name].weights)


def test_some_tables_are_scaled_dropped_and_updated_alone() -> None:
    made, plain = engine(SGD), engine(SGD)
    before = state_of(made)
    one_pass(made)
    one_pass(plain)
    update(plain, SGD)
    made.scale_gradients({"t0"}, 3.0)
    made.clear_gradients({"t1"})
    update(made, SGD, {"t0"})
    update(made, SGD, {"t2", "t1"}, step=2)
    for name, factor in (("t0", 3.0), ("t1", 0.0), ("t2", 1.0)):
        own = made.tables[name].weights - before[name][0]
        theirs = plain.tables[name].weights - before[name][0]
        torch.testing.assert_close(own, factor * theirs, rtol=1e-4, atol=1e-6)
    assert not made.tables["t1"].marks.any()


def test_infinities_are_seen_by_table() -> None:
    made = engine()
    bags = bags_of(np.random.default_rng(4))
    output = made(bags)
    gradient = torch.zeros_like(output)
    gradient[0, 17] = math.inf  # in the columns of the second table
    output.backward(gradient)
    assert made.finite_gradients({"t0", "t2"})
    assert not made.finite_gradients({"t0", "t1"})
    made.clear_gradients()
    assert made.finite_gradients(set(made.tables))


def test_what_does_not_fit_is_refused() -> None:
    made = engine()
    table = made.tables["t0"]
    rows = np.array([1, 2])
    with pytest.raises(ValueError, match=r"states \{'sum': 8\}, got \{'sum': 1\}"):
        table.set_states([("sum", 1, 0.0)])
    with pytest.raises(CheckpointError, match=r"weights are \(2, 4\), expected \(2, 8\)"):
        table.write(rows, np.zeros((2, 4)))
    with pytest.raises(CheckpointError, match=r"keeps \['sum'\], the checkpoint has \['exp_avg'\]"):
        table.import_states(rows, {"exp_avg": np.zeros((2, 8))})
    with pytest.raises(CheckpointError, match=r"state 'sum' is \(2, 1\), expected \(2, 8\)"):
        table.import_states(rows, {"sum": np.zeros((2, 1))})
    with pytest.raises(DataError, match="row 7 is outside its 7 rows"):
        table.write(np.array([7]), np.zeros((1, 8)))
    with pytest.raises(ValueError, match="kernels for Adagrad with weight_decay_mode NONE, and another"):
        update(made, SGD)
    with pytest.raises(ValueError, match="kernels for Adagrad with weight_decay_mode NONE, and another"):
        update(made, Adagrad, weight_decay=0.1, weight_decay_mode="L2")


def test_memory_is_that_of_all_rows() -> None:
    table = engine().tables["t0"]
    table.write(np.array([1, 5]), np.zeros((2, 8)))
    memory = table.memory()
    assert (memory.rows, memory.weight_bytes, memory.state_bytes) == (2, 4 * ROWS * 8, 4 * ROWS * 8)


def touched_by(made: FusedEngine, rng: Any) -> dict[str, set[int]]:
    """Train on a batch; its rows by table."""
    owners = [f"t{i}" for i, n in enumerate(FEATURES) for _ in range(n)]
    bags = bags_of(rng)
    made(bags).sum().backward()
    update(made, Adagrad)
    counts = bags.lengths.view(len(owners), -1).sum(1).tolist()
    rows: dict[str, set[int]] = {name: set() for name in made.tables}
    for owner, ids in zip(owners, bags.ids.split(counts), strict=True):
        rows[owner] |= set(ids.tolist())
    return rows


def test_a_log_has_the_rows_of_updates_since_it_was_last_asked() -> None:
    rng, made = np.random.default_rng(4), engine(Adagrad)
    touched_by(made, rng)
    logs = {name: TableChanges(table) for name, table in made.tables.items()}
    for batches in (1, 3, 0):
        expected_rows: dict[str, set[int]] = {name: set() for name in logs}
        for _ in range(batches):
            for name, rows in touched_by(made, rng).items():
                expected_rows[name] |= rows
        made.tables["t0"].write(np.array([0]), made.tables["t0"].weights[:1].numpy())  # no update
        for name, log in logs.items():
            (changed,) = log.take()
            assert changed.keys.tolist() == sorted(expected_rows[name])
            assert changed.weights.tobytes() == made.tables[name].weights[changed.keys].numpy().tobytes()
            assert not len(changed.gone)


def test_rows_that_a_killed_run_told_of_count_as_changed_or_gone() -> None:
    made = engine(Adagrad)
    table = made.tables["t1"]
    table.write(np.array([2, 5]), np.ones((2, 4)))
    log = TableChanges(table)
    log.mark(np.array([5, 6, 1, 6, 99]))
    (changed,) = log.take()
    assert changed.keys.tolist() == [5]
    assert changed.weights.tolist() == [[1.0] * 4]
    assert changed.gone.tolist() == [1, 6]
    (again,) = log.take()
    assert not len(again.keys)
    assert not len(again.gone)


@pytest.mark.parametrize("kind", [SGD, Adagrad, RowWiseAdagrad])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_copy_has_the_rows_of_its_moment_whatever_is_updated_since(
    kind: Any, sequence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_copy, "PIECE_BYTES", 50)
    rng, made = np.random.default_rng(7), engine(kind, sequence=sequence)

    def train(passes: int) -> None:
        for _ in range(passes):
            made(bags_of(rng)).sum().backward()
        update(made, kind)

    def parts() -> list[Any]:
        return [part for table in made.tables.values() for part in table.parts()]

    train(1)
    for steps in range(4):
        expected_parts = parts()
        copies = [table.begin_copy() for table in made.tables.values()]
        assert all(table.copying is not None for table in made.tables.values())
        for step in range(steps):
            train(1 + step % 2)  # two passes are summed before they are applied
        if steps == 3:  # who writes otherwise waits for the copy
            for table in made.tables.values():
                table.write(np.arange(ROWS), np.full((ROWS, table.spec.dim), 7.0))
        found = [part for copy in copies for part in copy()]
        assert all(table.copying is None for table in made.tables.values())
        for one, other in zip(found, expected_parts, strict=True):
            np.testing.assert_array_equal(one.row_ids, other.row_ids)
            assert one.weights.tobytes() == other.weights.tobytes()
            assert one.states.keys() == other.states.keys()
            for name, state in one.states.items():
                assert state.tobytes() == other.states[name].tobytes(), name


def test_updates_while_another_thread_copies() -> None:
    rng, made = np.random.default_rng(8), engine(Adagrad)
    for _ in range(100):
        expected_parts = [part for table in made.tables.values() for part in table.parts()]
        copies = [table.begin_copy() for table in made.tables.values()]
        with ThreadPoolExecutor(1) as pool:
            copying = pool.submit(lambda given=copies: [part for copy in given for part in copy()])
            while not copying.done():
                made(bags_of(rng)).sum().backward()
                update(made, Adagrad)
        for one, other in zip(copying.result(), expected_parts, strict=True):
            assert one.row_ids.tobytes() == other.row_ids.tobytes()
            assert one.weights.tobytes() == other.weights.tobytes()
            assert one.states["sum"].tobytes() == other.states["sum"].tobytes()
