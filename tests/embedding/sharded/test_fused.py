"""FBGEMM's kernels in the sharded engine against the local one: the same data, the same result."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from recgrad.embedding.build import TableOptimizer
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

ROWS = 5  # of each rank's batch, and one more for each rank above 0
KEYS = ("user", "tags", "item", "left", "right")
SIZES = (37, 50, 41, 29, 29)
SEQUENCE_KEYS = ("clicks", "words", "other")
SEQUENCE_SIZES = (41, 23, 31)
STATE = {"initial_accumulator_value": 0.1}
CLIPPING = {"gradient_clipping": True, "max_gradient": 0.05}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd_optimizer": {"lr": 0.1},
    "adagrad_optimizer": {"lr": 0.1, **STATE},
    "rowwise_adagrad_optimizer": {"lr": 0.1, **STATE},
}


class Case(NamedTuple):
    optimizer: str
    sharding: str
    weighted: bool
    kernel: str = "fused"

    @property
    def settings(self) -> dict[str, Any]:
        # Weighted gradients of sequences' tables are not clamped far from the bag.
        return {**OPTIMIZERS[self.optimizer], **({} if self.weighted else CLIPPING)}


CASES = [
    Case("sgd_optimizer", "table_wise", False),
    Case("sgd_optimizer", "row_wise", True),
    Case("adagrad_optimizer", "table_wise", True),
    Case("adagrad_optimizer", "row_wise", False),
    Case("adagrad_optimizer", "column_wise", True),
    Case("adagrad_optimizer", "column_wise", False),
    Case("rowwise_adagrad_optimizer", "table_wise", False),
    Case("rowwise_adagrad_optimizer", "row_wise", True),
]


def specs(sharding: str, kernel: str) -> tuple[list[TableSpec], list[LookupSpec]]:
    def table(name: str, rows: int, dim: int, **more: Any) -> TableSpec:
        kernels = () if kernel == "any" else (kernel,)
        return TableSpec(name, rows, dim, sharding_types=(sharding,), compute_kernels=kernels, **more)

    tables = [
        table("user", 37, 8),
        table("tags", 50, 16),
        table("item", 41, 8),
        table("pair", 29, 12, init_fn="nn.init.normal_,mean=0,std=0.2"),
        table("words", 23, 8, trainable=False),
        table("other", 31, 4),
    ]
    lookups = [
        LookupSpec("user", "user", "user"),
        LookupSpec("tags", "tags", "tags", pooling="mean"),
        LookupSpec("item", "item", "item"),
        LookupSpec("left", "left", "pair"),
        LookupSpec("right", "right", "pair", pooling="mean"),
        LookupSpec("clicks", "clicks", "item", sequence=True),
        LookupSpec("words", "words", "words", pooling="mean", sequence=True),
        LookupSpec("other", "other", "other", sequence=True),
    ]
    return tables, lookups


def make_ids(rng: Any, sizes: tuple[int, ...], bags: list[Any], weighted: bool) -> Ids:
    ids = np.concatenate([rng.integers(0, n, b.sum()) for n, b in zip(sizes, bags)])
    weights = torch.tensor(rng.random(len(ids)), dtype=torch.float32) if weighted else None
    lengths = torch.tensor(np.concatenate(bags), dtype=torch.int32)
    return Ids(torch.tensor(ids), lengths, tuple(map(len, bags)), weights)


def loss_of(engine: Any, seed: int, rows: int, weighted: bool) -> torch.Tensor:
    """A nonlinear loss over bags and sequences, empty ones and repeated ids among them."""
    rng = np.random.default_rng(seed)
    bags = [np.ones(rows, int), *(rng.integers(0, 4, rows) for _ in KEYS[1:])]
    positions = [np.ones(rng.integers(0, 9), int), *(rng.integers(0, 3, rng.integers(0, 7)) for _ in "ab")]
    ids = make_ids(rng, SIZES, bags, weighted)
    embedded = engine(ids, make_ids(rng, SEQUENCE_SIZES, positions, False))
    outputs = [embedded.pooled(["user", "tags", "left", "right"]), embedded.pooled(["item"])]
    outputs += [embedded.sequence(name) for name in SEQUENCE_KEYS]
    flat = torch.cat([output.reshape(-1) for output in outputs])
    noise = torch.tensor(rng.normal(size=len(flat)), dtype=torch.float32)
    return (flat.tanh() * noise).sum()


def train(engine: Any, optimizer: Any, ranks: list[int], steps: range, weighted: bool) -> list[float]:
    """Steps of all that may happen between backward and update; of the mean over `ranks`."""

    def backward(step: int, factor: float = 1.0) -> float:
        each = [loss_of(engine, 1000 * step + rank, ROWS + rank, weighted) for rank in ranks]
        mean = torch.stack(each).sum() / len(ranks)
        (mean * factor).backward()
        return float(mean.detach())

    losses = []
    for step in steps:
        (group,) = optimizer.param_groups
        group["lr"] = 0.1 / (1 + step)  # a schedule sets the rate before the lookup
        losses.append(backward(step))
        kind = step % 8
        if kind == 1:  # accumulation
            losses.append(backward(step + 500))
        elif kind == 2:  # clipping by norm, to half of it
            optimizer.grad_norm()
            optimizer.clip_(0.5)
        elif kind == 3:  # clipping by value
            optimizer.clamp_(0.01)
        elif kind == 4:  # loss scaling
            assert optimizer.unscale_(0.25)
        elif kind == 5:  # an update that is skipped
            backward(step + 500, float("inf"))
            optimizer.unscale_(1.0)
            optimizer.zero_grad()
            continue
        elif kind == 6:  # a rate that changes late, and an evaluation in between
            group["lr"] = 0.07
            with torch.inference_mode():
                losses.append(float(loss_of(engine, step, ROWS, weighted)))
        optimizer.step()
    return losses


def build(case: Case) -> tuple[Any, Any]:
    from recgrad.embedding.sharded.choice import choose_kernels
    from recgrad.embedding.sharded.engine import ShardedEngine

    tables, lookups = specs(case.sharding, case.kernel)
    kind = SPARSE_OPTIMIZERS[case.optimizer]
    settings = dict(kind([{"params": []}], **case.settings).param_groups[0])
    own = TableOptimizer(kind, settings, case.optimizer)
    choices = choose_kernels(tables, {spec.name: own for spec in tables}, devices=("cpu",))
    engine = ShardedEngine(
        tables,
        lookups,
        keys=KEYS,
        sequence_keys=SEQUENCE_KEYS,
        seed=7,
        weighted=case.weighted,
        choices=choices,
    )
    return engine, kind(engine, **case.settings)


def state_of(engine: Any, optimizer: Any) -> dict[str, Any]:
    """This rank's parts of all tables, and their numbers of updates."""
    steps = {name: int(optimizer.table_state(name)["t"]) for name in optimizer.tables}
    parts = {name: list(table.parts()) for name, table in engine.tables.items()}
    return {"steps": steps, "parts": parts}


def rows_of(everyone: list[dict[str, Any]], name: str, dim: int) -> tuple[Any, Any, dict[str, Any]]:
    """Rows of all ranks' parts, their weights and states whole."""
    found = [part for one in everyone for part in one["parts"][name]]
    rows = np.unique(np.concatenate([part.row_ids for part in found]))
    weights = np.full((len(rows), dim), np.nan, np.float32)
    states: dict[str, Any] = {}
    for part in found:
        at = np.searchsorted(rows, part.row_ids)
        columns = slice(part.first_column, part.first_column + part.weights.shape[1])
        weights[at, columns] = part.weights
        for key, value in part.states.items():
            wide = part.weights.shape[1] == value.shape[1] != 1
            whole = states.setdefault(key, np.full((len(rows), dim if wide else 1), np.nan, np.float32))
            whole[at, columns if wide else slice(0, 1)] = value
    return rows, weights, states


def restore(engine: Any, optimizer: Any, everyone: list[dict[str, Any]]) -> None:
    for name, table in engine.tables.items():
        rows, weights, states = rows_of(everyone, name, table.spec.dim)
        engine.import_table(name, rows, weights)
        if name in optimizer.tables:
            optimizer.import_state(name, rows, {**states, "t": np.array(everyone[0]["steps"][name])})


def gathered(own: Any) -> list[Any]:
    import torch.distributed as dist

    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return everyone


def train_sharded(cases: list[Case], steps: int) -> list[tuple[list[float], dict[str, Any], str]]:
    import torch.distributed as dist

    results = []
    for case in cases:
        engine, optimizer = build(case)
        losses = train(engine, optimizer, [dist.get_rank()], range(steps), case.weighted)
        results.append((losses, state_of(engine, optimizer), engine.plan_text))
    return results


def train_locally(case: Case, ranks: int, steps: int) -> tuple[list[float], LocalEngine, Any]:
    tables, lookups = specs(case.sharding, case.kernel)
    engine = LocalEngine(tables, lookups, keys=KEYS, sequence_keys=SEQUENCE_KEYS, seed=7)
    optimizer = SPARSE_OPTIMIZERS[case.optimizer](engine, **case.settings)
    losses = train(engine, optimizer, list(range(ranks)), range(steps), case.weighted)
    return losses, engine, optimizer


def assert_same(everyone: list[dict[str, Any]], engine: LocalEngine, optimizer: Any, case: Any) -> None:
    for name, table in engine.tables.items():
        (part,) = table.parts()
        if not table.spec.trainable:
            assert not len(part.row_ids)
            assert all(not len(p.row_ids) for one in everyone for p in one["parts"][name])
            continue
        assert everyone[0]["steps"][name] == int(optimizer.table_state(name)["t"])
        rows, weights, states = rows_of(everyone, name, table.spec.dim)
        message = f"{case} {name}"
        np.testing.assert_array_equal(rows, part.row_ids, err_msg=message)
        np.testing.assert_allclose(weights, part.weights, rtol=1e-5, atol=2e-6, err_msg=message)
        assert set(states) == set(part.states), message
        for key, values in part.states.items():
            np.testing.assert_allclose(states[key], values, rtol=2e-5, atol=1e-6, err_msg=message)


@pytest.mark.parametrize("ranks", [1, 2])
def test_trains_as_the_local_engine(run_ranks: Any, ranks: int) -> None:
    steps = 8
    everyone = run_ranks(ranks, train_sharded, CASES, steps)
    for i, case in enumerate(CASES):
        losses, engine, optimizer = train_locally(case, ranks, steps)
        if ranks == 1:
            np.testing.assert_allclose(everyone[0][i][0], losses, rtol=1e-5, atol=1e-5, err_msg=str(case))
        assert_same([results[i][1] for results in everyone], engine, optimizer, case)
        lines = everyone[0][i][2].splitlines()
        assert lines[0].split() == ["table", "rows", "dim", "sharding", "kernel", "ranks"]
        for line in lines[1:]:
            assert line.split()[3:5] == [case.sharding, "fused"]


def hand_over() -> list[Any]:
    """From FBGEMM's kernels to ours and back; and from FBGEMM's to the same, at once and in one go."""
    import torch.distributed as dist

    mine = [dist.get_rank()]
    results = []
    for name, sharding in (("adagrad_optimizer", "column_wise"), ("rowwise_adagrad_optimizer", "row_wise")):
        first = Case(name, sharding, True)
        kernels = [first, first._replace(kernel="customized_kernel", sharding="table_wise"), first]
        saved: list[dict[str, Any]] = []
        for i, case in enumerate(kernels):
            engine, optimizer = build(case)
            if saved:
                restore(engine, optimizer, saved)
            train(engine, optimizer, mine, range(3 * i, 3 * i + 3), case.weighted)
            saved = gathered(state_of(engine, optimizer))
        results.append((first, saved))
    one, both = build(first), []
    for steps in (range(4), range(4, 8)):
        train(*one, mine, steps, first.weighted)
        both.append(gathered(state_of(*one)))
    again = build(first)
    restore(*again, both[0])
    train(*again, mine, range(4, 8), first.weighted)
    for whole, parts in zip(one[0].tables.values(), again[0].tables.values()):
        for a, b in zip(whole.parts(), parts.parts(), strict=True):
            np.testing.assert_array_equal(a.row_ids, b.row_ids)
            np.testing.assert_array_equal(a.weights, b.weights)
            for key in a.states:
                np.testing.assert_array_equal(a.states[key], b.states[key])
    return results


def test_checkpoints_go_from_fbgemm_to_ours_and_back_and_to_the_same_bits(run_ranks: Any) -> None:
    everyone = run_ranks(2, hand_over)
    for case, saved in everyone[0]:
        _, engine, optimizer = train_locally(case, 2, 9)
        assert_same(saved, engine, optimizer, case)


def mixed() -> list[Any]:
    """Kernels of both makers and several optimizers in one engine, and optimizers it was not made for."""
    from recgrad.embedding.sharded.choice import choose_kernels
    from recgrad.embedding.sharded.engine import ShardedEngine
    from recgrad.optim.sparse import SGD, Adagrad, Adam

    names = ("a", "b", "c", "d")
    kernels = {"a": ("fused",), "b": ("fused",), "c": (), "d": ("fused", "customized_kernel")}
    kinds: dict[str, Any] = {"a": SGD, "b": Adagrad, "c": Adagrad, "d": Adam}
    tables = [TableSpec(name, 20, 8, compute_kernels=kernels[name]) for name in names]
    own = {
        name: TableOptimizer(kind, dict(kind([{"params": []}]).param_groups[0]), kind.__name__, name)
        for name, kind in kinds.items()
    }
    choices = choose_kernels(tables, own, devices=("cpu",))
    lookups = [LookupSpec(name, name, name) for name in names]
    engine = ShardedEngine(tables, lookups, keys=names, choices=choices)
    optimizers = [kinds[name]([engine.tables[name]], lr=0.1) for name in names]
    local = LocalEngine(tables, lookups, keys=names)
    references = [kinds[name]([local.tables[name]], lr=0.1) for name in names]
    ids = Ids(torch.arange(16) % 9, torch.ones(16, dtype=torch.int32), (4,) * 4)
    for steps in ([0, 1, 2, 3], [1], [0, 2, 3]):
        for which, members in ((engine, optimizers), (local, references)):
            which(ids).pooled(names).tanh().sum().backward()
            for i in steps:
                members[i].step()
            for member in members:
                member.zero_grad()
    for name in names:
        (a,), (b,) = engine.tables[name].parts(), local.tables[name].parts()
        np.testing.assert_array_equal(a.row_ids, b.row_ids)
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-5, atol=1e-6)
    said = []
    for wrong in (lambda: Adam([engine.tables["b"]]), lambda: SGD([engine.tables["b"]])):
        try:
            wrong()
        except ValueError as error:
            said.append(str(error))
    return [{line.split()[0]: line.split()[4] for line in engine.plan_text.splitlines()}, said]


def test_kernels_of_both_makers_in_one_engine(run_ranks: Any) -> None:
    kernels, said = run_ranks(1, mixed)[0]
    assert kernels == {"table": "kernel", "a": "fused", "b": "fused", "c": "recgrad", "d": "recgrad"}
    assert len(said) == 2
    assert "table 'b/0' has FBGEMM's kernels for an optimizer with states {'sum': 8}" in said[0]
