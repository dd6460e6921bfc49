"""Gradients that wait for an update: what is clamped is the gradient of an output, over all its uses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse.sgd import SGD

ROWS, DIM, BATCH, LIMIT = 12, 4, 6, 0.5
NAMES = ("a", "b", "c", "again", "steps")
TABLE_OF = {"a": "one", "b": "one", "c": "other", "again": "one", "steps": "one"}
# "again" is a second name of what "a" is: one output of the table, as the sharded engine has it.
OUTPUT = {name: "a" if name == "again" else name for name in NAMES}


def make_engine() -> LocalEngine:
    return LocalEngine(
        [TableSpec("one", ROWS, DIM), TableSpec("other", ROWS, DIM)],
        [
            LookupSpec("a", "a", "one"),
            LookupSpec("again", "a", "one"),
            LookupSpec("b", "b", "one", pooling="mean"),
            LookupSpec("c", "c", "other"),
            LookupSpec("steps", "steps", "one", sequence=True),
        ],
        keys=["a", "b", "c"],
        sequence_keys=["steps"],
    )


class Forward:
    """One forward pass: bags of each key, some of them empty, and the gradients that its outputs get."""

    def __init__(self, rng: np.random.Generator, single: bool) -> None:
        def bags(count: int) -> list[np.ndarray]:
            return [rng.integers(0, ROWS, 1 if single else rng.integers(0, 4)) for _ in range(count)]

        self.single = single
        self.bags = {key: bags(BATCH) for key in ("a", "b", "c")}
        self.bags["steps"] = [rng.integers(0, ROWS, 1) for _ in range(9)]
        self.gradient = {name: np.zeros((len(self.bags[OUTPUT[name]]), DIM)) for name in OUTPUT.values()}

    def ids(self, *keys: str) -> Ids:
        bags = [bag for key in keys for bag in self.bags[key]]
        lengths = torch.tensor([len(bag) for bag in bags], dtype=torch.int32)
        counts = [len(self.bags[key]) for key in keys]
        return Ids(torch.from_numpy(np.concatenate(bags)), lengths, counts, single=self.single)

    def row_gradients(self, limit: float) -> dict[str, np.ndarray]:
        """By table, the sums by row of the outputs' clamped gradients."""
        total = {table: np.zeros((ROWS, DIM)) for table in ("one", "other")}
        for name, gradient in self.gradient.items():
            for bag, vector in zip(self.bags[name], np.clip(gradient, -limit, limit), strict=True):
                for row in bag:
                    total[TABLE_OF[name]][row] += vector / (len(bag) if name == "b" else 1)
        return total


@settings(max_examples=60, deadline=None)
@given(
    uses=st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4), min_size=1, max_size=4),
    single=st.booleans(),
    limits=st.sampled_from([(LIMIT, LIMIT), (LIMIT, 2 * LIMIT), (LIMIT, np.inf), (np.inf, np.inf)]),
    passes=st.integers(1, 2),
    factor=st.sampled_from([1.0, 0.25]),
    norm=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_an_output_used_several_times_is_clamped_once(
    uses: list[list[str]],
    single: bool,
    limits: tuple[float, float],
    passes: int,
    factor: float,
    norm: bool,
    seed: int,
) -> None:
    """Against float64: an output's gradient is the sum over its uses, then clamped, then summed by row."""
    rng = np.random.default_rng(seed)
    engine = make_engine()
    start = {name: table.initial(np.arange(ROWS)).astype(np.float64) for name, table in engine.tables.items()}
    groups = [
        {"params": [table], "gradient_clipping": limit != np.inf, "max_gradient": min(limit, 9.0)}
        for table, limit in zip(engine.tables.values(), limits, strict=True)
    ]
    optimizer = SGD(groups, lr=1.0)
    forwards = [Forward(rng, single) for _ in range(passes)]
    for forward in forwards:
        embedded = engine(forward.ids("a", "b", "c"), forward.ids("steps"))
        loss = torch.zeros(())
        for names in uses:
            bags = [name for name in names if name != "steps"]
            taken = ([(bags, embedded.pooled(bags))] if bags else []) + [
                ([name], embedded.sequence(name)) for name in names if name == "steps"
            ]
            for members, output in taken:
                weight = rng.normal(size=output.shape).astype(np.float32)
                loss = loss + (output * torch.from_numpy(weight)).sum()
                for i, name in enumerate(members):
                    forward.gradient[OUTPUT[name]] += factor * weight[:, i * DIM : (i + 1) * DIM]
        loss.backward()
    optimizer.unscale_(factor)
    totals = {
        name: sum(forward.row_gradients(limit)[name] for forward in forwards)
        for name, limit in zip(engine.tables, limits, strict=True)
    }
    if norm:
        exact = np.sqrt(sum(np.square(total).sum() for total in totals.values()))
        assert float(optimizer.grad_norm()) == pytest.approx(exact, rel=1e-5)
    optimizer.step()
    for name, total in totals.items():
        rows, weights = engine.export_table(name)
        np.testing.assert_allclose(weights, (start[name] - total)[rows], rtol=0, atol=5e-6)
        assert not total[np.setdiff1d(np.arange(ROWS), rows)].any()
