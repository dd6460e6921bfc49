"""Adam with lazy: false: torch.optim.Adam's result for every row, also those that batches leave alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import SPARSE_OPTIMIZERS, Adam, Combined, PartialRowWiseAdam, SparseOptimizer
from recgrad.optim.sparse.history import History

ROWS = 24
INIT = "nn.init.uniform_,a=-0.3,b=0.3"
EPSILON = 2.0**-23


def constant(n: int) -> float:
    return 0.01


def cosine(n: int) -> float:
    return 0.01 * (1 + math.cos(math.pi * min(n, 300) / 300)) / 2


def warm_up(n: int) -> float:
    return 0.01 * min(n / 50, 1.0)  # 0 in the first update


class Ours:
    """A table with one optimizer, looked up by bags of one id."""

    def __init__(
        self, dim: int, kind: type[SparseOptimizer] = Adam, *, lazy: bool = False, **options: Any
    ) -> None:
        spec = TableSpec(
            "t",
            ROWS,
            dim,
            INIT,
            storage=options.pop("storage", "AUTO"),
            data_type=options.pop("data_type", "FP32"),
        )
        self.engine = LocalEngine([spec], [LookupSpec("l", "k", "t")], keys=["k"], seed=3)
        self.optimizer = kind(self.engine, lazy=lazy, **options)  # type: ignore[call-arg]
        self.dim = dim

    def look_up(self, ids: Sequence[int]) -> torch.Tensor:
        values = torch.tensor(ids, dtype=torch.int64)
        lengths = torch.ones(len(ids), dtype=torch.int32)
        return self.engine(Ids(values, lengths, [len(ids)], single=True)).pooled(["l"])

    def all(self) -> np.ndarray:
        with torch.no_grad():
            return self.look_up(range(ROWS)).numpy().copy()

    def step(self, ids: Sequence[int], gradient: torch.Tensor, lr: float | None = None) -> np.ndarray:
        """Update, and what the batch's forward pass gave."""
        if lr is not None:
            self.optimizer.param_groups[0]["lr"] = lr
        out = self.look_up(ids)
        out.backward(gradient)
        self.optimizer.step()
        return out.detach().numpy().copy()


def batches(
    count: int, dim: int, seed: int, *, rare: int = 0, scale: float = 1.0
) -> list[tuple[list[int], torch.Tensor]]:
    """Ids and gradients; the first rows are common, the last are seldom or never touched."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        size = int(torch.randint(1, 6, (), generator=generator))
        ids = (torch.rand(size, generator=generator) ** 3 * (ROWS - 2)).long().tolist()
        if rare and i % rare == 0:
            ids.append(ROWS - 2)
        made.append((ids, scale * torch.randn(len(ids), dim, generator=generator)))
    return made


def dense(start: np.ndarray, steps: Any, rates: Callable[[int], float], **options: Any) -> list[np.ndarray]:
    """The table after 0, 1, … updates of torch.optim.Adam in float64, over all rows."""
    weight = torch.nn.Parameter(torch.from_numpy(start.astype(np.float64)))
    optimizer = torch.optim.Adam([weight], **options)
    tables = [weight.detach().numpy().copy()]
    for n, (ids, gradient) in enumerate(steps):
        optimizer.param_groups[0]["lr"] = rates(n)
        grad = torch.zeros_like(weight)
        weight.grad = grad.index_add_(0, torch.tensor(ids, dtype=torch.int64), gradient.to(torch.float64))
        optimizer.step()
        tables.append(weight.detach().numpy().copy())
    return tables


def tolerance(table: np.ndarray, rates: Callable[[int], float], n: int) -> float:
    """Roundings of float32 over n updates: of the weight, and of steps that are as long as the rate.

    Where a gradient of about 1 has an element near 0, ε counts: by its error in history.py, 10⁻⁴ of a step.
    """
    largest = float(np.abs(table).max())
    taken = [rates(i) for i in range(n)]
    return EPSILON * (4 * math.sqrt(n + 1) * largest + 4 * sum(taken)) + 1e-4 * max(taken, default=0) + 1e-9


@pytest.mark.parametrize(
    ("dim", "rates"),
    [
        *((dim, constant) for dim in (1, 3, 4, 16, 28, 64)),
        (16, cosine),
        (28, cosine),
        (16, warm_up),
        (3, warm_up),
    ],
)
def test_every_lookup_sees_what_dense_adam_has(dim: int, rates: Callable[[int], float]) -> None:
    ours, steps = Ours(dim, lr=0.01), batches(400, dim, seed=dim, rare=131)
    expected = dense(ours.all(), steps, rates)
    for n, (ids, gradient) in enumerate(steps):
        seen = ours.step(ids, gradient, rates(n))
        limit = tolerance(expected[n], rates, n)
        np.testing.assert_allclose(seen, expected[n][ids], rtol=0, atol=limit)
        if n % 40 == 0:
            np.testing.assert_allclose(
                ours.all(), expected[n + 1], rtol=0, atol=tolerance(expected[n + 1], rates, n + 1)
            )
    rows, weights = ours.engine.export_table("t")
    np.testing.assert_allclose(
        weights, expected[-1][rows], rtol=0, atol=tolerance(expected[-1], rates, len(steps))
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_pattern_of_touches_and_rates(data: st.DataObject) -> None:
    dim = data.draw(st.sampled_from([1, 5, 8, 20]))
    rows = st.lists(st.integers(0, ROWS - 1), min_size=0, max_size=4)
    pattern = data.draw(st.lists(st.tuples(rows, st.floats(0, 0.1)), min_size=1, max_size=60))
    beta1, beta2 = data.draw(st.sampled_from([(0.9, 0.999), (0.8, 0.99), (0.0, 0.999), (0.95, 0.999)]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    steps = [(ids, torch.randn(len(ids), dim, generator=generator)) for ids, _ in pattern]
    gaps = [lr for _, lr in pattern]
    ours = Ours(dim, beta1=beta1, beta2=beta2)
    expected = dense(ours.all(), steps, gaps.__getitem__, betas=(beta1, beta2))
    for n, (ids, gradient) in enumerate(steps):
        ours.step(ids, gradient, gaps[n])
    limit = tolerance(expected[-1], gaps.__getitem__, len(steps)) * 4
    np.testing.assert_allclose(ours.all(), expected[-1], rtol=0, atol=limit)


@pytest.mark.parametrize(
    ("eps", "share"),
    [(1e-8, 1e-4), (1e-5, 1e-2), (1e-3, 0.02), (1.0, 0.12), (100.0, 0.12)],
)
def test_eps_of_any_size_has_the_bounded_error(eps: float, share: float) -> None:
    # The first updates are the worst case: bias corrections still move, so e differs most from its mean.
    ours, steps = Ours(16, eps=eps), batches(300, 16, seed=5, rare=97, scale=0.05)
    expected = dense(ours.all(), steps, constant, eps=eps)
    for n, (ids, gradient) in enumerate(steps):
        ours.step(ids, gradient, constant(n))
    moved = np.abs(expected[-1] - expected[0]).max(1, keepdims=True)
    error = np.abs(ours.all() - expected[-1])
    assert (error <= share * moved + 8 * EPSILON).all()


def test_partial_rowwise_adam_moves_untouched_rows_on_as_well() -> None:
    ours, steps = Ours(12, PartialRowWiseAdam), batches(300, 12, seed=7, rare=77)
    w = ours.all().astype(np.float64)
    m, v = np.zeros_like(w), np.zeros((ROWS, 1))
    for n, (ids, gradient) in enumerate(steps, 1):
        ours.step(ids, gradient, cosine(n))
        g = np.zeros_like(w)
        np.add.at(g, ids, gradient.numpy().astype(np.float64))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * (g**2).mean(1, keepdims=True)
        w -= cosine(n) * m / (1 - 0.9**n) / (np.sqrt(v / (1 - 0.999**n)) + 1e-8)
    np.testing.assert_allclose(ours.all(), w, rtol=0, atol=tolerance(w, cosine, 300))


def test_lazy_leaves_untouched_rows_alone() -> None:
    ours = Ours(8, lazy=True)
    ours.step([1], torch.ones(1, 8))
    before = ours.all()
    ours.step([2], torch.ones(1, 8))
    np.testing.assert_array_equal(ours.all()[1], before[1])


@pytest.mark.parametrize("data_type", ["FP16", "BF16"])
@pytest.mark.parametrize("storage", ["PLAIN", "COMPACT"])
def test_short_types_and_compact_tables_catch_up(data_type: str, storage: str) -> None:
    ours, steps = Ours(16, data_type=data_type, storage=storage), batches(200, 16, seed=2, rare=50)
    start = ours.all()
    for n, (ids, gradient) in enumerate(steps):
        ours.step(ids, gradient, constant(n))
    expected = dense(start, steps, constant)[-1]
    unit = 2.0**-11 if data_type == "FP16" else 2.0**-8
    largest = np.abs(expected).max()
    assert np.abs(ours.all() - expected).max() < 8 * math.sqrt(200) * unit * largest / 4
    rows, weights = ours.engine.export_table("t")
    np.testing.assert_array_equal(weights, ours.all()[rows])


@pytest.mark.parametrize(("storage", "dim"), [("PLAIN", 20), ("COMPACT", 20), ("PLAIN", 16)])
def test_bags_catch_up_with_weights_and_means(storage: str, dim: int) -> None:
    spec = TableSpec("t", ROWS, dim, INIT, storage=storage)
    lookups = [LookupSpec("sum", "a", "t"), LookupSpec("mean", "b", "t", pooling="mean")]
    engine = LocalEngine([spec], lookups, keys=["a", "b"])
    optimizer = Adam(engine, lr=0.05, lazy=False)
    generator = torch.Generator().manual_seed(0)

    def batch(values: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        lengths = torch.tensor([3, 0, 5, 2, 4, 1], dtype=torch.int32)
        return engine(Ids(values, lengths, [3, 3], weights)).pooled(["sum", "mean"])

    for _ in range(60):
        values = torch.randint(0, ROWS - 4, (15,), generator=generator)
        batch(values, torch.rand(15, generator=generator)).sum().backward()
        optimizer.step()
    table = np.zeros((ROWS, dim), np.float32)
    rows, weights = engine.export_table("t")
    table[rows] = weights
    missing = np.setdiff1d(np.arange(ROWS), rows)
    table[missing] = engine.tables["t"].initial(missing)
    values, scale = torch.randint(0, ROWS, (15,), generator=generator), torch.rand(15, generator=generator)
    with torch.no_grad():
        found = batch(values, scale).numpy()
    taken = table[values.numpy()] * scale.numpy()[:, None]
    sums = [taken[a:b].sum(0) for a, b in ((0, 3), (3, 3), (3, 8))]
    means = [taken[a:b].mean(0) for a, b in ((8, 10), (10, 14), (14, 15))]
    np.testing.assert_allclose(found, np.concatenate([sums, means], axis=1), rtol=1e-5, atol=1e-6)


def trained(steps: Any, *, looks: bool = False, threads: int = 1, **options: Any) -> Ours:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = Ours(16, **options)
        for n, (ids, gradient) in enumerate(steps):
            ours.step(ids, gradient, cosine(n))
            if looks and n % 3 == 0:
                ours.all()
                ours.engine.export_table("t")
                ours.optimizer.state_dict()
        return ours
    finally:
        torch.set_num_threads(before)


def contents(ours: Ours) -> dict[str, np.ndarray]:
    rows, weights = ours.engine.export_table("t")
    return {"rows": rows, "weights": weights, **ours.optimizer.export_state("t")}


def equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(a[key].tobytes() == b[key].tobytes() for key in a)


def test_evaluations_and_saves_change_no_bit() -> None:
    steps = batches(120, 16, seed=11, rare=40)
    assert equal(contents(trained(steps)), contents(trained(steps, looks=True)))


@pytest.mark.parametrize("storage", ["PLAIN", "COMPACT"])
def test_the_number_of_threads_changes_no_bit(storage: str) -> None:
    steps = batches(120, 16, seed=12, rare=40)
    one, four = (trained(steps, threads=threads, storage=storage) for threads in (1, 4))
    assert equal(contents(one), contents(four))


@pytest.mark.parametrize("data_type", ["FP32", "BF16"])
@pytest.mark.parametrize("kind", [Adam, PartialRowWiseAdam])
def test_a_resumed_run_is_the_same_bit_for_bit(kind: type[SparseOptimizer], data_type: str) -> None:
    steps = batches(700, 16, seed=13, rare=301)
    whole, cut = Ours(16, kind, data_type=data_type), 340
    resumed = Ours(16, kind, data_type=data_type)
    for n, (ids, gradient) in enumerate(steps):
        whole.step(ids, gradient, cosine(n))
        if n == cut:
            rows, weights = whole.engine.export_table("t")
            state = whole.optimizer.export_state("t")
            resumed.engine.import_table("t", rows, weights)
            half = len(rows) // 2
            for part in (slice(half), slice(half, None)):
                own = {name: s if s.ndim == 0 else s[part] for name, s in state.items()}
                resumed.optimizer.import_state("t", rows[part], own)
            assert equal(contents(whole), contents(resumed))
        if n > cut:
            resumed.step(ids, gradient, cosine(n))
    assert equal(contents(whole), contents(resumed))


@pytest.mark.parametrize("dim", [12, 16])
def test_updates_beyond_the_integers_of_float32(dim: int) -> None:
    first = 2**24 + 3
    ours, early = Ours(dim), Ours(dim)
    for run, count in ((ours, first), (early, 30_000)):  # both with settled bias corrections
        none = {
            name: np.empty((0, *shape), np.float32)
            for name, shape in run.optimizer.state_shapes("t").items()
            if shape
        }
        run.optimizer.import_state("t", np.empty(0, np.int64), {**none, "t": np.array(count)})
        for n, (ids, gradient) in enumerate(batches(20, dim, seed=1)):
            run.step(ids, gradient, constant(n))
    assert ours.optimizer.export_state("t")["step"].max() == first + 20
    np.testing.assert_allclose(ours.all(), early.all(), rtol=1e-6, atol=1e-7)


def test_state_dict_round_trip() -> None:
    steps = batches(60, 16, seed=14, rare=20)
    ours, other = trained(steps), Ours(16)
    other.engine.import_table("t", *ours.engine.export_table("t"))
    other.optimizer.load_state_dict(ours.optimizer.state_dict())
    assert equal(contents(ours), contents(other))


def test_weights_alone_are_what_evaluation_saw() -> None:
    steps = batches(90, 16, seed=15, rare=30)
    ours, other = trained(steps), Ours(16)
    rows, weights = ours.engine.export_table("t")
    other.engine.import_table("t", rows, weights)
    np.testing.assert_array_equal(ours.all(), other.all())


def test_rows_that_are_set_while_training_stay_as_set() -> None:
    ours, steps = Ours(16), batches(40, 16, seed=16)
    for n, (ids, gradient) in enumerate(steps):
        ours.step(ids, gradient, constant(n))
    rows, _ = ours.engine.export_table("t")
    weights = np.full((len(rows), 16), 0.25, np.float32)
    ours.engine.import_table("t", rows, weights)
    np.testing.assert_array_equal(ours.all()[rows], weights)
    states = ours.optimizer.export_state("t")
    assert (states["step"] == 40).all()


def two_tables() -> tuple[LocalEngine, Callable[[str, int], None]]:
    tables = [TableSpec(name, ROWS, 4, INIT) for name in "ab"]
    engine = LocalEngine(tables, [LookupSpec(n, n, n) for n in "ab"], keys=["a", "b"])
    lengths = torch.ones(4, dtype=torch.int32)

    def backward(names: str, row: int) -> None:
        out = engine(Ids(torch.tensor([row, row + 1] * 2), lengths, [2, 2], single=True))
        out.pooled(list(names)).sum().backward()

    return engine, backward


def test_tables_share_a_history_until_one_is_left_out() -> None:
    engine, backward = two_tables()
    optimizer = Adam(engine, lr=0.1, lazy=False)
    backward("ab", 0)
    optimizer.step()
    a, b = engine.tables["a"], engine.tables["b"]
    assert a.history is b.history
    backward("a", 2)
    optimizer.step()
    assert a.history is not b.history
    assert a.history is not None
    assert b.history is not None
    assert (a.history.count, b.history.count) == (2, 1)
    # Table b missed no update of its own, so its rows stay where they are, as torch's would.
    assert b.history.missed(np.array([1]))[0, 0] == 0 < a.history.missed(np.array([1]))[0, 0]


def test_restored_tables_share_a_history_where_they_agree() -> None:
    engine, backward = two_tables()
    optimizer = Combined([Adam(list(engine.tables.values()), lr=0.1, lazy=False)])
    for i in range(5):
        backward("ab", i)
        optimizer.step()
    other, _ = two_tables()
    restored = Adam(other, lr=0.1, lazy=False)
    for name in "ab":
        rows, weights = engine.export_table(name)
        other.import_table(name, rows, weights)
        restored.import_state(name, rows, optimizer.export_state(name))
    assert other.tables["a"].history is other.tables["b"].history


def test_a_cycled_momentum_is_followed() -> None:
    ours, steps = Ours(8), batches(120, 8, seed=17, rare=60)
    w = ours.all().astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for n, (ids, gradient) in enumerate(steps, 1):
        beta1 = 0.9 + 0.05 * math.cos(n / 9)
        ours.optimizer.param_groups[0]["beta1"] = beta1
        ours.step(ids, gradient, 0.01)
        g = np.zeros_like(w)
        np.add.at(g, ids, gradient.numpy().astype(np.float64))
        m, v = beta1 * m + (1 - beta1) * g, 0.999 * v + 0.001 * g**2
        w -= 0.01 * m / (1 - beta1**n) / (np.sqrt(v / (1 - 0.999**n)) + 1e-8)
    np.testing.assert_allclose(ours.all(), w, rtol=0, atol=tolerance(w, constant, 120))


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"weight_decay": 0.01}, "weight_decay"),
        ({"beta1": 0.9, "beta2": 0.9}, "beta2"),
        ({"beta1": 0.99, "beta2": 0.95}, "beta2"),
        ({"beta2": 0.0}, "beta2"),
    ],
)
@pytest.mark.parametrize("name", ["adam_optimizer", "partial_rowwise_adam_optimizer"])
def test_what_rows_cannot_catch_up_with_is_refused(
    name: str, settings_: dict[str, float], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        SPARSE_OPTIMIZERS[name]([], lazy=False, **settings_)  # type: ignore[call-arg]
    SPARSE_OPTIMIZERS[name]([], lazy=True, **settings_)  # type: ignore[call-arg]


def test_a_constant_rate_has_the_closed_form_of_a_geometric_sum() -> None:
    history, n = History(0.999, 1e-8, count=10**6), 30
    for _ in range(n):
        history.advance(0.01, 0.9)
    r = 0.9 / math.sqrt(0.999)
    assert history.missed(np.array([10**6]))[0, 0] == pytest.approx(0.01 * r * (1 - r**n) / (1 - r), rel=1e-5)


def test_a_long_history_grows_and_settles() -> None:
    history = History(0.999, 1e-8)
    for _ in range(3000):
        history.advance(0.01, 0.9)
    missed = history.missed(np.arange(1000, 1010))[:, 0]
    history.advance(0.5, 0.9)
    np.testing.assert_array_equal(history.missed(np.arange(1000, 1010))[:, 0], missed)
