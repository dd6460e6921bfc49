"""Every rule against a float64 recomputation of its formula, over many steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import SPARSE_OPTIMIZERS, SparseOptimizer
from recgrad.optim.sparse.rule import State, sparse_rule

STEPS = 25
ROWS, BATCH = 300, 200  # of tables whose batches have one id a row
EPSILON = 2.0**-23
# Each step rounds to half a unit in the last place a few times, and these errors add up like a
# random walk: √25 · ½ units of the largest number, times the few roundings of a step.
UNITS = 8
Rule = Callable[..., None]


def norm(x: np.ndarray) -> np.ndarray:
    return np.sqrt((x**2).sum(1, keepdims=True))


def mean_square(g: np.ndarray) -> np.ndarray:
    return (g**2).mean(1, keepdims=True)


def ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a > 0) & (b > 0), a / np.where(b > 0, b, 1), 1.0)


def sgd(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    return w - h["lr"] * g


def adagrad(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    s["sum"] += g**2
    return w - h["lr"] * g / (np.sqrt(s["sum"]) + h["eps"])


def rowwise_adagrad(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    s["sum"] += mean_square(g)
    return w - h["lr"] * g / (np.sqrt(s["sum"]) + h["eps"])


def direction(g: np.ndarray, squared: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    s["exp_avg"] += (1 - h["beta1"]) * (g - s["exp_avg"])
    s["exp_avg_sq"] += (1 - h["beta2"]) * (squared - s["exp_avg_sq"])
    m, v = s["exp_avg"] / (1 - h["beta1"] ** t), s["exp_avg_sq"] / (1 - h["beta2"] ** t)
    return m / (np.sqrt(v) + h["eps"])


def adam(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    return w - h["lr"] * direction(g, g**2, s, t, h)


def partial_adam(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    return w - h["lr"] * direction(g, mean_square(g), s, t, h)


def lamb(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    r = direction(g, g**2, s, t, h) + h.get("inside", 0.0) * w
    return w - h["lr"] * ratio(norm(w), norm(r)) * r


def partial_lamb(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    r = direction(g, mean_square(g), s, t, h) + h.get("inside", 0.0) * w
    return w - h["lr"] * ratio(norm(w), norm(r)) * r


def lars(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    decay = h.get("inside", 0.0)
    below = np.where(norm(g) > 0, norm(g) + decay * norm(w), 0)
    rate = h["lr"] * ratio(h["trust_coefficient"] * norm(w), below)
    s["momentum"][:] = h["momentum"] * s["momentum"] + rate * (g + decay * w)
    return w - s["momentum"]


def adadelta(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    s["square_avg"][:] = h["rho"] * s["square_avg"] + (1 - h["rho"]) * g**2
    delta = np.sqrt(s["acc_delta"] + h["eps"]) / np.sqrt(s["square_avg"] + h["eps"]) * g
    s["acc_delta"][:] = h["rho"] * s["acc_delta"] + (1 - h["rho"]) * delta**2
    return w - h["lr"] * delta


def rmsprop(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    s["square_avg"][:] = h["alpha"] * s["square_avg"] + (1 - h["alpha"]) * g**2
    return w - h["lr"] * g / (np.sqrt(s["square_avg"]) + h["eps"])


def lion(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    u = np.sign(h["beta1"] * s["exp_avg"] + (1 - h["beta1"]) * g)
    s["exp_avg"][:] = h["beta2"] * s["exp_avg"] + (1 - h["beta2"]) * g
    return w - h["lr"] * u


def ftrl(w: np.ndarray, g: np.ndarray, s: dict[str, np.ndarray], t: int, h: Any) -> np.ndarray:
    p = -h["lr_power"]
    n = s["sum"] + g**2
    s["linear"] += g - (n**p - s["sum"] ** p) / h["lr"] * w
    s["sum"][:] = n
    z = s["linear"]
    kept = np.sign(z) * np.maximum(np.abs(z) - h["l1"], 0)
    return -kept / (n**p / h["lr"] + h["l2"])


# config name, reference, hyperparameters, default weight decay mode when one is asked for
BETAS = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
FTRL = {"lr": 0.1, "l1": 0.05, "l2": 0.1, "lr_power": -0.5, "initial_accumulator_value": 0.1}
CASES: list[tuple[str, Rule, dict[str, float], str]] = [
    ("sgd_optimizer", sgd, {"lr": 0.1}, "L2"),
    ("adagrad_optimizer", adagrad, {"lr": 0.1, "eps": 1e-8, "initial_accumulator_value": 0.1}, "L2"),
    ("rowwise_adagrad_optimizer", rowwise_adagrad, {"lr": 0.1, "eps": 1e-5}, "L2"),
    ("adam_optimizer", adam, BETAS, "DECOUPLE"),
    ("partial_rowwise_adam_optimizer", partial_adam, BETAS, "DECOUPLE"),
    ("lamb_optimizer", lamb, BETAS, "DECOUPLE"),
    ("partial_rowwise_lamb_optimizer", partial_lamb, BETAS, "DECOUPLE"),
    ("lars_sgd_optimizer", lars, {"lr": 1.0, "momentum": 0.9, "trust_coefficient": 0.01}, "L2"),
    ("adadelta_optimizer", adadelta, {"lr": 0.5, "rho": 0.95, "eps": 1e-6}, "L2"),
    ("rmsprop_optimizer", rmsprop, {"lr": 0.01, "alpha": 0.9, "eps": 1e-8}, "L2"),
    ("lion_optimizer", lion, {"lr": 0.01, "beta1": 0.9, "beta2": 0.99}, "DECOUPLE"),
    ("ftrl_optimizer", ftrl, FTRL, "L2"),
]
INSIDE = {
    "lamb_optimizer": "DECOUPLE",
    "partial_rowwise_lamb_optimizer": "DECOUPLE",
    "lars_sgd_optimizer": "L2",
}


def reference(
    name: str,
    rule: Rule,
    h: dict[str, Any],
    start: np.ndarray,
    batches: Any,
    mode: str,
    decay: float,
    limit: float,
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    w = start.astype(np.float64)
    ever = np.zeros(len(w), bool)
    kind = SPARSE_OPTIMIZERS[name]
    state = {
        s.name: np.full((len(w), 1 if s.per_row else w.shape[1]), h[s.initial] if s.initial else 0.0)
        for s in kind.states
    }
    inside = INSIDE.get(name) == mode
    for t, batch in enumerate(batches, 1):
        g, touched = batch.row_gradients(w.shape[1], len(w), limit)
        part = {key: value[touched] for key, value in state.items()}
        old, row_gradient = w[touched], g[touched]
        if mode == "L2" and not inside:
            row_gradient = row_gradient + decay * old
        new = rule(old, row_gradient, part, t, {**h, "inside": decay if inside else 0.0})
        if mode == "DECOUPLE" and not inside:
            new = new - h["lr"] * decay * old
        w[touched] = new
        for key, value in part.items():
            state[key][touched] = value
        ever |= touched
    return w, ever, state


def assert_rounded(actual: np.ndarray, exact: np.ndarray) -> None:
    """Equal up to what float32 loses over the steps."""
    np.testing.assert_allclose(actual, exact, rtol=0, atol=UNITS * EPSILON * np.abs(exact).max())


@pytest.mark.parametrize(("name", "rule", "h", "habit"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("variant", ["plain", "decay", "other decay", "clipped"])
def test_rule_equals_its_formula(tools: Any, name: str, rule: Rule, h: Any, habit: str, variant: str) -> None:
    dim, num_rows = (16, 60) if variant == "plain" else (7, 40)
    engine = tools.engine(dim, num_rows, init_fn="nn.init.uniform_,a=-0.5,b=0.5")
    batches = tools.batches(dim, num_rows, STEPS, weighted=variant == "decay")
    options: dict[str, Any] = {}
    mode, decay, limit = "NONE", 0.0, np.inf
    if variant == "decay":
        mode, decay = habit, 0.03
        options = {"weight_decay": decay}  # the mode is the rule's habit
        if name == "rowwise_adagrad_optimizer":
            options["weight_decay_mode"] = mode
    elif variant == "other decay":
        mode, decay = ("DECOUPLE" if habit == "L2" else "L2"), 0.03
        options = {"weight_decay": decay, "weight_decay_mode": mode}
    elif variant == "clipped":
        limit = 0.5
        options = {"gradient_clipping": True, "max_gradient": limit}
    if name == "ftrl_optimizer" and variant == "other decay":
        with pytest.raises(ValueError, match="must be one of"):
            SPARSE_OPTIMIZERS[name](engine, **h, **options)
        return
    h = {"eps": 1e-8, "initial_accumulator_value": 0.0, **h}
    own = {key: h[key] for key in h if key in dict(next(c for c in CASES if c[0] == name)[2])}
    zero = np.zeros((1, dim), np.float32)
    engine.import_table("table", np.array([5]), zero)  # a zero row must be able to move
    start = engine.tables["table"].initial(np.arange(num_rows))
    start[5] = 0
    optimizer = SPARSE_OPTIMIZERS[name](engine, **own, **options)
    tools.train(engine, optimizer, batches)
    w, ever, state = reference(name, rule, h, start, batches, mode, decay, limit)
    ever[5] = True
    rows, weights = engine.export_table("table")
    assert rows.tolist() == np.flatnonzero(ever).tolist()
    assert np.isfinite(weights).all()
    assert_rounded(weights, w[rows])
    exported = optimizer.export_state("table")
    assert int(exported.pop("t")) == STEPS
    assert set(exported) == set(state)
    for key, value in exported.items():
        assert_rounded(value, state[key][rows])


def test_every_registered_rule_is_tested() -> None:
    assert sorted(case[0] for case in CASES) == list(SPARSE_OPTIMIZERS)


@pytest.mark.parametrize("name", sorted(SPARSE_OPTIMIZERS))
def test_rate_of_zero_leaves_weights_alone(tools: Any, name: str) -> None:
    engine = tools.engine(5, 30)
    start = engine.tables["table"].initial(np.arange(30))
    tools.train(engine, SPARSE_OPTIMIZERS[name](engine, lr=0.0), tools.batches(5, 30, 3, weighted=False))
    rows, weights = engine.export_table("table")
    assert len(rows)
    np.testing.assert_array_equal(weights, start[rows])


def ids_of(rows: np.ndarray) -> Ids:
    """One id a row."""
    ones = torch.ones(len(rows), dtype=torch.int32)
    return Ids(torch.from_numpy(rows), ones, [len(rows)], None, True)


def train_single(engine: LocalEngine, optimizer: torch.optim.Optimizer, dim: int) -> list[Any]:
    """Some steps over ids that repeat, many more rows than are updated at a time; returns the batches."""
    rng, batches = np.random.default_rng(1), []
    for _ in range(STEPS):
        rows = rng.integers(0, ROWS, BATCH)
        gradient = rng.normal(size=(BATCH, dim)).astype(np.float32)
        engine(ids_of(rows)).pooled(["a"]).backward(torch.from_numpy(gradient))
        optimizer.step()
        batches.append(SingleBatch(rows, gradient))
    return batches


class SingleBatch(NamedTuple):
    rows: np.ndarray
    gradient: np.ndarray

    def row_gradients(self, dim: int, num_rows: int, limit: float) -> tuple[np.ndarray, np.ndarray]:
        """Summed gradients in float64, and which rows were touched."""
        total, touched = np.zeros((num_rows, dim)), np.zeros(num_rows, bool)
        np.add.at(total, self.rows, np.clip(self.gradient.astype(np.float64), -limit, limit))
        touched[self.rows] = True
        return total, touched


def single_engine(dim: int, storage: str) -> LocalEngine:
    table = TableSpec("table", ROWS, dim, storage=storage, init_fn="nn.init.uniform_,a=-0.5,b=0.5")
    return LocalEngine([table], [LookupSpec("a", "a", "table")], keys=["a"], seed=3)


@pytest.mark.parametrize(("name", "rule", "h", "habit"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize(("dim", "storage"), [(16, "PLAIN"), (16, "COMPACT"), (48, "PLAIN"), (6, "COMPACT")])
def test_sums_of_single_ids_equal_the_formula(
    name: str, rule: Rule, h: Any, habit: str, dim: int, storage: str
) -> None:
    """Gradients that are added up as they are take the shortest way through the update."""
    engine = single_engine(dim, storage)
    start = engine.tables["table"].initial(np.arange(ROWS))
    optimizer = SPARSE_OPTIMIZERS[name](engine, **h)
    batches = train_single(engine, optimizer, dim)
    h = {"eps": 1e-8, "initial_accumulator_value": 0.0, **h}
    w, ever, state = reference(name, rule, h, start, batches, "NONE", 0.0, np.inf)
    rows, weights = engine.export_table("table")
    assert rows.tolist() == np.flatnonzero(ever).tolist()
    assert_rounded(weights, w[rows])
    exported = optimizer.export_state("table")
    for key, value in state.items():
        assert_rounded(exported[key], value[rows])


@pytest.mark.parametrize("name", sorted(SPARSE_OPTIMIZERS))
@pytest.mark.parametrize("dim", [16, 48, 6])
def test_a_bound_that_no_gradient_reaches_changes_no_bit(name: str, dim: int) -> None:
    found = []
    for options in ({}, {"gradient_clipping": True, "max_gradient": 1e30}):
        engine = single_engine(dim, "PLAIN")
        train_single(engine, SPARSE_OPTIMIZERS[name](engine, lr=0.05, **options), dim)
        found.append(engine.export_table("table")[1].tobytes())
    assert found[0] == found[1]


@sparse_rule
def counted_momentum(w, g, states, rows, dim, h):  # type: ignore[no-untyped-def]
    """A number a row first, then one for each element: v ← v/2 + g, w −= ηv/n at the row's n-th update."""
    for r in range(rows):
        states[0][r] += np.float32(1)
        for d in range(r * dim, (r + 1) * dim):
            states[1][d] = np.float32(0.5) * states[1][d] + g[d]
            w[d] -= h[0] * states[1][d] / states[0][r]


class CountedMomentum(SparseOptimizer):
    rule = staticmethod(counted_momentum)
    states = (State("updates", per_row=True), State("momentum"))

    @classmethod
    def scalars(cls, group: dict[str, Any], step: int) -> tuple[float, ...]:
        return (group["lr"],)


@pytest.mark.parametrize("dim", [16, 48, 6])
def test_states_may_come_in_any_order(dim: int) -> None:
    engine = single_engine(dim, "PLAIN")
    w = engine.tables["table"].initial(np.arange(ROWS)).astype(np.float64)
    optimizer = CountedMomentum(engine, {"lr": 0.1})
    batches = train_single(engine, optimizer, dim)
    updates, momentum = np.zeros((ROWS, 1)), np.zeros((ROWS, dim))
    for batch in batches:
        g, touched = batch.row_gradients(dim, ROWS, np.inf)
        updates[touched] += 1
        momentum[touched] = momentum[touched] / 2 + g[touched]
        w[touched] -= 0.1 * momentum[touched] / updates[touched]
    rows, weights = engine.export_table("table")
    assert_rounded(weights, w[rows])
    assert_rounded(optimizer.export_state("table")["momentum"], momentum[rows])
    np.testing.assert_array_equal(optimizer.export_state("table")["updates"], updates[rows])
