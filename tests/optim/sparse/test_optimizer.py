"""Sparse optimizers as torch optimizers: groups, gradients between backward and step, checkpoints."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch

from recgrad.errors import CheckpointError
from recgrad.optim.sparse import SGD, SPARSE_OPTIMIZERS, Adagrad, Adam, Combined


def backward(engine: Any, batch: Any, factor: float = 1.0) -> None:
    engine(batch.ids()).pooled(["a", "b"]).backward(torch.from_numpy(batch.gradient) * factor)


def test_accumulated_micro_batches_are_one_update(tools: Any) -> None:
    parts = tools.batches(6, 30, 3, weighted=False)
    engines = [tools.engine(6, 30), tools.engine(6, 30)]
    optimizer = Adam(engines[0], lr=0.1)
    for batch in parts:
        backward(engines[0], batch, 1 / 3)
    optimizer.step()
    start = engines[1].tables["table"].initial(np.arange(30))
    g = sum(batch.row_gradients(6, 30)[0] for batch in parts) / 3
    rows, weights = engines[0].export_table("table")
    step = 0.1 * g / (np.abs(g) + 1e-8)  # Adam's first step
    np.testing.assert_allclose(weights, (start - step)[rows], atol=5e-7)
    assert int(optimizer.export_state("table")["t"]) == 1


def test_zero_grad_drops_what_waits(tools: Any) -> None:
    engine = tools.engine(4, 20)
    optimizer = SGD(engine, lr=0.1)
    backward(engine, tools.batches(4, 20, 1, False)[0])
    assert engine.pending_tables() == {"table"}
    optimizer.zero_grad()
    optimizer.step()
    assert engine.pending_tables() == set()
    assert engine.memory()[0].rows == 0


def test_norm_and_clipping_act_on_summed_rows(tools: Any) -> None:
    engine = tools.engine(5, 12)
    optimizer = SGD(engine, lr=1.0)
    first, second = tools.batches(5, 12, 2, weighted=True)
    backward(engine, first)
    backward(engine, second)
    g = first.row_gradients(5, 12)[0] + second.row_gradients(5, 12)[0]
    assert float(optimizer.grad_norm()) == pytest.approx(np.linalg.norm(g), rel=1e-5)
    assert float(optimizer.grad_norm(float("inf"))) == pytest.approx(np.abs(g).max(), rel=1e-5)
    optimizer.clip_(0.5)
    assert float(optimizer.grad_norm(1.0)) == pytest.approx(0.5 * np.abs(g).sum(), rel=1e-5)
    optimizer.clamp_(0.2)
    start = engine.tables["table"].initial(np.arange(12))
    optimizer.step()
    rows, weights = engine.export_table("table")
    np.testing.assert_allclose(weights, (start - np.clip(0.5 * g, -0.2, 0.2))[rows], atol=5e-7)


def test_unscale_multiplies_and_finds_infinities(tools: Any) -> None:
    engine = tools.engine(4, 20)
    optimizer = SGD(engine, lr=1.0)
    batch = tools.batches(4, 20, 1, False)[0]
    backward(engine, batch, 1024.0)
    assert optimizer.unscale_(1 / 1024)
    norm = np.linalg.norm(batch.row_gradients(4, 20)[0])
    assert float(optimizer.grad_norm()) == pytest.approx(norm, rel=1e-5)
    optimizer.zero_grad()
    for bad in (np.inf, np.nan):
        batch.gradient[2, 1] = bad
        backward(engine, batch)
        assert not optimizer.unscale_(1.0)
        optimizer.zero_grad()


def test_unscaling_comes_before_gradient_clipping(tools: Any) -> None:
    engine = tools.engine(4, 20)
    optimizer = SGD(engine, lr=1.0, gradient_clipping=True, max_gradient=0.3)
    batch = tools.batches(4, 20, 1, False)[0]
    backward(engine, batch, 64.0)
    optimizer.unscale_(1 / 64)
    norm = np.linalg.norm(batch.row_gradients(4, 20, limit=0.3)[0])
    assert float(optimizer.grad_norm()) == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("late", [False, True])
def test_asking_for_the_norm_does_not_clip_twice(tools: Any, late: bool) -> None:
    """Gradients are clamped one by one, before they are summed; their sums may be larger."""
    batch, other = tools.batches(4, 20, 2, False)
    results = []
    for ask in (False, True):
        engine = tools.engine(4, 20)
        optimizer = SGD(engine, lr=1.0, gradient_clipping=True, max_gradient=0.3)
        backward(engine, batch)
        if ask:
            optimizer.grad_norm()
        if late:
            backward(engine, other)
        optimizer.step()
        results.append(engine.export_table("table")[1])
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-6)  # sums of few numbers below 1


def test_gradients_given_by_autograd_are_left_alone(tools: Any) -> None:
    engine = tools.engine(4, 20)
    optimizer = SGD(engine, lr=1.0)
    batch = tools.batches(4, 20, 1, False)[0]
    gradient = torch.from_numpy(batch.gradient)
    before = gradient.clone()
    engine(batch.ids()).pooled(["a", "b"]).backward(gradient)
    optimizer.unscale_(0.5)
    optimizer.clamp_(0.01)
    optimizer.step()
    torch.testing.assert_close(gradient, before, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["adagrad_optimizer", "partial_rowwise_adam_optimizer"])
@pytest.mark.parametrize("storage", ["PLAIN", "COMPACT"])
def test_resuming_from_a_checkpoint_is_bitwise_the_same(tools: Any, name: str, storage: str) -> None:
    batches = tools.batches(7, 50, 10, weighted=False)
    whole = tools.engine(7, 50, storage=storage)
    optimizer = SPARSE_OPTIMIZERS[name](whole, lr=0.05)
    tools.train(whole, optimizer, batches[:5])
    saved, state = whole.export_table("table"), optimizer.state_dict()
    exported = optimizer.export_state("table")
    tools.train(whole, optimizer, batches[5:])
    for through_state_dict in (True, False):
        resumed = tools.engine(7, 50, storage=storage)
        again = SPARSE_OPTIMIZERS[name](resumed, lr=0.9 if through_state_dict else 0.05)
        resumed.import_table("table", *saved)
        if through_state_dict:
            again.load_state_dict(state)
        else:
            again.import_state("table", saved[0], exported)
        assert again.param_groups[0]["lr"] == 0.05
        tools.train(resumed, again, batches[5:])
        for mine, theirs in zip(whole.export_table("table"), resumed.export_table("table"), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_state_of_another_optimizer_is_refused(tools: Any) -> None:
    engine = tools.engine(4, 20)
    with pytest.raises(
        CheckpointError, match=r"keeps \['exp_avg', 'exp_avg_sq'\], the checkpoint has \['sum'\]"
    ):
        Adam(engine).import_state("table", [0], {"sum": np.zeros((1, 4)), "t": np.array(1)})
    with pytest.raises(CheckpointError, match="number of updates"):
        Adagrad(engine).import_state("table", [0], {"sum": np.zeros((1, 4))})


def test_groups_have_rates_of_their_own(tools: Any) -> None:
    engines = [tools.engine(4, 20, "x"), tools.engine(4, 20, "y")]
    optimizer = SGD(
        [{"params": [engines[0].tables["x"]], "lr": 0.5}, {"params": [engines[1].tables["y"]]}], lr=0.1
    )
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    optimizer.param_groups[1]["lr"] = 0.0  # as a schedule does
    batch = tools.batches(4, 20, 1, False)[0]
    for engine in engines:
        backward(engine, batch)
    optimizer.step()
    rows, moved = engines[0].export_table("x")
    start = engines[0].tables["x"].initial(rows)
    np.testing.assert_allclose(moved, start - 0.5 * batch.row_gradients(4, 20)[0][rows], atol=1e-6)
    np.testing.assert_array_equal(engines[1].export_table("y")[1], engines[1].tables["y"].initial(rows))


def test_combined_optimizer_steps_each_by_its_rule(tools: Any) -> None:
    engines = [tools.engine(4, 20, name) for name in "xy"]
    combined = Combined([SGD(engines[0], lr=0.1), Adam(engines[1], lr=0.1)])
    alone = [tools.engine(4, 20, name) for name in "xy"]
    apart = [SGD(alone[0], lr=0.1), Adam(alone[1], lr=0.1)]
    for batch in tools.batches(4, 20, 4, False):
        for engine in (*engines, *alone):
            backward(engine, batch)
        combined.step()
        for optimizer in apart:
            optimizer.step()
    for name, mine, theirs in zip("xy", engines, alone, strict=True):
        np.testing.assert_array_equal(mine.export_table(name)[1], theirs.export_table(name)[1])


def test_two_tables_of_one_name_are_refused(tools: Any) -> None:
    with pytest.raises(ValueError, match="'x' twice"):
        SGD([tools.engine(4, 20, "x").tables["x"], tools.engine(4, 20, "x").tables["x"]])


def test_initial_accumulator_reaches_rows_that_were_there_before(tools: Any) -> None:
    engine = tools.engine(4, 20)
    engine.import_table("table", [3], np.ones((1, 4)))
    optimizer = Adagrad(engine, lr=0.1, initial_accumulator_value=0.25)
    engine.import_table("table", [4], np.ones((1, 4)))
    np.testing.assert_array_equal(optimizer.export_state("table")["sum"], np.full((2, 4), 0.25))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("adam_optimizer", {"beta1": 1.0}, r"beta1 must be in \[0, 1\), got 1"),
        ("sgd_optimizer", {"lr": math.nan}, "lr must be at least 0, got nan"),
        ("adagrad_optimizer", {"lr": -1.0}, "lr must be at least 0, got -1"),
        (
            "rowwise_adagrad_optimizer",
            {"weight_decay": 0.1, "weight_decay_mode": "NONE"},
            "weight_decay_mode NONE",
        ),
        ("sgd_optimizer", {"weight_decay_mode": "l2"}, "must be one of"),
        (
            "sgd_optimizer",
            {"gradient_clipping": True, "max_gradient": 0.0},
            "max_gradient must be greater than 0",
        ),
        ("lars_sgd_optimizer", {"trust_coefficient": 0.0}, "trust_coefficient must be greater than 0"),
        ("ftrl_optimizer", {"lr_power": 0.5}, "lr_power must be at most 0"),
    ],
)
def test_senseless_settings_are_refused(tools: Any, kind: str, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SPARSE_OPTIMIZERS[kind](tools.engine(4, 20), **options)


CUSTOM = '''
import numpy as np
from recgrad.optim.sparse import SPARSE_OPTIMIZERS, SparseOptimizer, State, sparse_rule


@sparse_rule
def signum(w, g, states, rows, dim, h):
    """Momentum, then its sign."""
    m = states[0]
    for i in range(rows * dim):
        m[i] = h[1] * m[i] + g[i]
        w[i] -= h[0] * np.sign(m[i])


class Signum(SparseOptimizer):
    """w −= η sign(m), m = μm + g."""

    rule = staticmethod(signum)
    states = (State("momentum"),)

    def __init__(self, tables, *, lr=0.01, momentum=0.9, **common):
        super().__init__(tables, {"lr": lr, "momentum": momentum}, **common)

    @classmethod
    def scalars(cls, group, step):
        return group["lr"], group["momentum"]
'''


def test_a_rule_in_a_file_of_the_users_own(tools: Any, tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "my_signum.py").write_text(CUSTOM)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_signum  # type: ignore[import-not-found]

    engine = tools.engine(6, 25)
    batches = tools.batches(6, 25, 5, False)
    w, m = engine.tables["table"].initial(np.arange(25)).astype(float), np.zeros((25, 6))
    tools.train(engine, my_signum.Signum(engine, lr=0.1, momentum=0.5), batches)
    for batch in batches:
        g, touched = batch.row_gradients(6, 25)
        m[touched] = 0.5 * m[touched] + g[touched]
        w[touched] -= 0.1 * np.sign(m[touched])
    rows, weights = engine.export_table("table")
    np.testing.assert_allclose(weights, w[rows], atol=5e-7)
    del sys.modules["my_signum"]
