"""The sharded engine against the local one: the same data, the same result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

STEPS = 5
ROWS = 6  # of each rank's batch, and one more for each rank above 0
KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel")
KEYS = ("user", "tags", "item")
SEQUENCE_KEYS = ("clicks", "words", "shops")
OPTIMIZERS = {
    "sgd_optimizer": {"lr": 0.1},
    "adagrad_optimizer": {"lr": 0.1, "weight_decay": 0.01, "gradient_clipping": True, "max_gradient": 0.02},
    "adam_optimizer": {"lr": 0.1},
    "rowwise_adagrad_optimizer": {"lr": 0.1, "weight_decay": 0.01},
    "partial_rowwise_adam_optimizer": {"lr": 0.1},
    "lamb_optimizer": {"lr": 0.1},
    "lars_sgd_optimizer": {"lr": 0.1},
    "adam_optimizer, dense": {"lr": 0.1, "lazy": False},
    "partial_rowwise_adam_optimizer, dense": {"lr": 0.1, "lazy": False},
}


def specs(kind: str) -> tuple[list[TableSpec], list[LookupSpec]]:
    def table(name: str, rows: int, dim: int, **more: Any) -> TableSpec:
        return TableSpec(name, rows, dim, sharding_types=(kind,), **more)

    tables = [
        table("user", 37, 8),
        table("tags", 50, 16),
        table("item", 41, 8),
        table("wide", 37, 4),
        table("words", 23, 8, trainable=False),
        table("shops", 19, 4),  # a sequence of another width
    ]
    lookups = [
        LookupSpec("user", "user", "user"),
        LookupSpec("tags", "tags", "tags", pooling="mean"),
        LookupSpec("user@wide", "user", "wide"),
        LookupSpec("item", "item", "item"),
        LookupSpec("clicks", "clicks", "item", sequence=True),
        LookupSpec("words", "words", "words", pooling="mean", sequence=True),
        LookupSpec("shops", "shops", "shops", sequence=True),
    ]
    return tables, lookups


def batch(seed: int, rows: int) -> tuple[Ids, Ids, torch.Tensor]:
    """Ids with empty and repeated bags, positions of sequences, and a weight for each output."""
    rng = np.random.default_rng(seed)
    bags = [np.ones(rows, int), rng.integers(0, 4, rows), rng.integers(0, 3, rows)]
    sizes = [37, 50, 41]
    ids = np.concatenate([rng.integers(0, n, b.sum()) for n, b in zip(sizes, bags)])
    positions = [np.ones(rng.integers(0, 9), int), rng.integers(0, 3, rng.integers(0, 7))]
    positions.append(np.ones(rng.integers(0, 5), int))
    more = np.concatenate([rng.integers(0, n, p.sum()) for n, p in zip((41, 23, 19), positions)])
    return (
        Ids(torch.tensor(ids), torch.tensor(np.concatenate(bags), dtype=torch.int32), (rows,) * 3),
        Ids(
            torch.tensor(more),
            torch.tensor(np.concatenate(positions), dtype=torch.int32),
            tuple(map(len, positions)),
        ),
        torch.tensor(rng.normal(size=4096), dtype=torch.float32),
    )


def loss_of(engine: Any, seed: int, rows: int) -> torch.Tensor:
    """A nonlinear loss, so that gradients depend on the weights."""
    ids, sequences, noise = batch(seed, rows)
    embedded = engine(ids, sequences)
    outputs = [
        embedded.pooled(["user", "tags", "user@wide"]),
        embedded.pooled(["item"]),
        embedded.sequence("clicks"),
        embedded.sequence("words"),
        embedded.sequence("shops"),
    ]
    flat = torch.cat([output.reshape(-1) for output in outputs])
    return (flat.tanh() * noise[: len(flat)]).sum()


def train_sharded(kinds: tuple[str, ...], names: tuple[str, ...]) -> dict[str, Any]:
    import torch.distributed as dist

    from recgrad.embedding.sharded.engine import ShardedEngine

    rank = dist.get_rank()
    results = {}
    for kind in kinds:
        for name in names:
            tables, lookups = specs(kind)
            engine = ShardedEngine(tables, lookups, keys=KEYS, sequence_keys=SEQUENCE_KEYS, seed=7)
            optimizer = SPARSE_OPTIMIZERS[name.partition(",")[0]](engine, **OPTIMIZERS[name])
            losses, norms = [], []
            for step in range(STEPS):
                loss = loss_of(engine, 100 * step + rank, ROWS + rank)
                loss.backward()
                losses.append(float(loss.detach()))
                norms.append(float(optimizer.grad_norm()))
                optimizer.step()
            parts = {
                table: [(p.first_column, p.row_ids, p.weights, p.states) for p in own.parts()]
                for table, own in engine.tables.items()
            }
            # A rank may hold none of the rows that a checkpoint has of a table.
            for table in optimizer.tables:
                shapes = optimizer.state_shapes(table)
                nothing = {
                    state: np.empty((0, *shape), np.float32) for state, shape in shapes.items() if shape
                }
                optimizer.import_state(table, np.empty(0, np.int64), {**nothing, "t": np.array(STEPS)})
            # A model keeps its own names around the engine, and tables are none of its weights.
            model = torch.nn.ModuleDict({"dense": torch.nn.Linear(1, 1), "engine": engine})
            assert list(model.state_dict()) == ["dense.weight", "dense.bias"]
            results[f"{kind}/{name}"] = (losses, norms, parts, engine.plan_text)
    return results


def train_locally(world_size: int, name: str) -> tuple[list[list[float]], list[float], LocalEngine]:
    """The mean loss of all ranks' batches on one engine."""
    tables, lookups = specs("table_wise")
    engine = LocalEngine(tables, lookups, keys=KEYS, sequence_keys=SEQUENCE_KEYS, seed=7)
    optimizer = SPARSE_OPTIMIZERS[name.partition(",")[0]](engine, **OPTIMIZERS[name])
    losses, norms = [], []
    for step in range(STEPS):
        each = [loss_of(engine, 100 * step + rank, ROWS + rank) for rank in range(world_size)]
        (torch.stack(each).sum() / world_size).backward()
        losses.append([float(loss.detach()) for loss in each])
        norms.append(float(optimizer.grad_norm()))
        optimizer.step()
    return losses, norms, engine


def merged(ranks: list[dict[str, Any]], table: str, dim: int) -> tuple[dict[int, Any], dict[int, Any]]:
    """Rows of all ranks' parts, by number: their weights, and their states by name."""
    weights: dict[int, Any] = {}
    states: dict[int, dict[str, Any]] = {}
    for parts in ranks:
        for column, rows, values, own in parts[table]:
            for i, row in enumerate(rows.tolist()):
                whole = weights.setdefault(row, np.full(dim, np.nan))
                assert np.isnan(whole[column : column + values.shape[1]]).all()
                whole[column : column + values.shape[1]] = values[i]
                for name, state in own.items():
                    if state.shape[1] != values.shape[1]:
                        states.setdefault(row, {})[name] = state[i]
                    else:
                        wide = states.setdefault(row, {}).setdefault(name, np.full(dim, np.nan))
                        wide[column : column + values.shape[1]] = state[i]
    return weights, states


def check_case(ranks: list[dict[str, Any]], case: str, world_size: int) -> None:
    name = case.partition("/")[2]
    losses, norms, engine = train_locally(world_size, name)
    for rank, result in enumerate(ranks):
        expected = [step[rank] for step in losses]
        np.testing.assert_allclose(result[case][0], expected, rtol=1e-5, atol=1e-5, err_msg=case)
    shares = np.sqrt(sum(np.square(result[case][1]) for result in ranks))
    np.testing.assert_allclose(shares, norms, rtol=1e-5, err_msg=case)
    for table in engine.tables.values():
        weights, states = merged([result[case][2] for result in ranks], table.name, table.spec.dim)
        (part,) = table.parts()
        assert sorted(weights) == part.row_ids.tolist(), (case, table.name)
        for i, row in enumerate(part.row_ids.tolist()):
            np.testing.assert_allclose(weights[row], part.weights[i], rtol=1e-5, atol=2e-6, err_msg=case)
            for state, values in part.states.items():
                np.testing.assert_allclose(states[row][state], values[i], rtol=2e-5, atol=1e-6, err_msg=case)


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_trains_as_the_local_engine(run_ranks: Any, world_size: int) -> None:
    names = ("sgd_optimizer", "adagrad_optimizer", "adam_optimizer")
    ranks = run_ranks(world_size, train_sharded, KINDS, names)
    for case in ranks[0]:
        check_case(ranks, case, world_size)


def test_rules_over_whole_rows(run_ranks: Any) -> None:
    names = tuple(name for name in OPTIMIZERS if "dense" in name or SPARSE_OPTIMIZERS[name].whole_rows)
    assert len(names) == 6
    ranks = run_ranks(2, train_sharded, tuple(kind for kind in KINDS if kind != "column_wise"), names)
    for case in ranks[0]:
        check_case(ranks, case, 2)


def refusals() -> list[str]:
    """What an optimizer says that wants more of a table than a rank has."""
    from recgrad.embedding.sharded.engine import ShardedEngine

    def build(kind: str, mean: bool, name: str, **settings: Any) -> str:
        tables = [TableSpec("item", 41, 8, sharding_types=(kind,))]
        lookups = [
            LookupSpec("item", "item", "item", pooling="mean" if mean else "sum"),
            LookupSpec("clicks", "clicks", "item", sequence=True),
        ]
        engine = ShardedEngine(tables, lookups, keys=["item"], sequence_keys=["clicks"])
        try:
            SPARSE_OPTIMIZERS[name](engine, **settings)
        except ValueError as error:
            return str(error)
        return ""

    clipping = {"gradient_clipping": True, "max_gradient": 0.1}
    return [
        build("column_wise", False, "rowwise_adagrad_optimizer"),
        build("column_wise", False, "adagrad_optimizer"),
        build("row_wise", True, "sgd_optimizer", **clipping),
        build("row_wise", False, "sgd_optimizer", **clipping),
        build("column_wise", False, "adam_optimizer", lazy=False),
    ]


def test_what_a_rank_cannot_compute_is_refused(run_ranks: Any) -> None:
    by_columns, elementwise, divided, whole, catching_up = run_ranks(2, refusals)[0]
    assert "Adam needs whole rows, but table 'item' is spread by columns" in catching_up
    assert "RowWiseAdagrad needs whole rows, but table 'item' is spread by columns" in by_columns
    assert "those of table 'item' are means or weighted" in divided
    assert (elementwise, whole) == ("", "")
