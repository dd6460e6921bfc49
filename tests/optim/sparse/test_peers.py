"""Sparse optimizers against torch's dense ones on fully touched tables, and against FBGEMM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recgrad.optim.sparse import SGD, Adadelta, Adagrad, Adam, RMSprop, RowWiseAdagrad

DIM, ROWS, STEPS = 8, 24, 12
DENSE = [
    (SGD, {"lr": 0.1, "weight_decay": 0.01}, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01)),
    (
        Adagrad,
        {"lr": 0.1, "initial_accumulator_value": 0.1, "weight_decay": 0.01},
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1, eps=1e-8, weight_decay=0.01),
    ),
    (Adam, {"lr": 0.01}, lambda p: torch.optim.Adam(p, lr=0.01)),
    (
        Adam,
        {"lr": 0.01, "weight_decay": 0.1, "weight_decay_mode": "L2"},
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    ),
    (Adam, {"lr": 0.01, "weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
    (Adadelta, {"lr": 0.5}, lambda p: torch.optim.Adadelta(p, lr=0.5, rho=0.95, eps=1e-6)),
    (RMSprop, {"lr": 0.01}, lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.99, eps=1e-8)),
]


@pytest.mark.parametrize(("sparse", "options", "dense"), DENSE)
def test_fully_touched_table_equals_torch(tools: Any, sparse: Any, options: Any, dense: Any) -> None:
    engine = tools.engine(DIM, ROWS)
    start = engine.tables["table"].initial(np.arange(ROWS))
    weight = torch.nn.Parameter(torch.from_numpy(start).double())
    optimizer, reference = sparse(engine, **options), dense([weight])
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        values = np.concatenate([rng.permutation(ROWS), rng.integers(0, ROWS, ROWS)])
        lengths = np.ones(2 * ROWS, np.int32)
        gradient = rng.normal(size=(ROWS, 2 * DIM)).astype(np.float32)
        batch = type(tools.batches(DIM, ROWS, 1, False)[0])(values, lengths, None, gradient)
        tools.train(engine, optimizer, [batch])
        weight.grad = torch.from_numpy(batch.row_gradients(DIM, ROWS)[0])
        reference.step()
    _, weights = engine.export_table("table")
    np.testing.assert_allclose(weights, weight.detach().numpy(), rtol=5e-6, atol=5e-7)


def fbgemm(kind: str, weights: np.ndarray, **options: Any) -> Any:
    pytest.importorskip("fbgemm_gpu", exc_type=(ImportError, OSError))
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=getattr(EmbOptimType, kind),
        learning_rate=0.1,
        eps=1e-8,
        device=torch.device("cpu"),
        **options,
    )
    module.split_embedding_weights()[0].copy_(torch.from_numpy(weights))
    return module


def both(tools: Any, optimizer: Any, module: Any, engine: Any) -> tuple[np.ndarray, np.ndarray]:
    """Weights of touched rows after the same training with the engine and with FBGEMM."""
    rng = np.random.default_rng(1)
    batch_type = type(tools.batches(DIM, ROWS, 1, False)[0])
    for _ in range(STEPS):
        lengths = rng.integers(0, 4, 12).astype(np.int32)
        lengths[6:] = 0  # FBGEMM has one feature; the engine's second stays empty
        values = rng.integers(0, ROWS, lengths.sum())
        gradient = rng.normal(size=(6, 2 * DIM)).astype(np.float32)
        tools.train(engine, optimizer, [batch_type(values, lengths, None, gradient)])
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths[:6])]).astype(np.int64))
        out = module(torch.from_numpy(values), offsets)
        out.backward(torch.from_numpy(gradient[:, :DIM].copy()))
    rows, weights = engine.export_table("table")
    return weights, module.split_embedding_weights()[0].detach().numpy()[rows]


@pytest.mark.parametrize(
    ("ours", "kind"),
    [(SGD, "EXACT_SGD"), (Adagrad, "EXACT_ADAGRAD"), (RowWiseAdagrad, "EXACT_ROWWISE_ADAGRAD")],
)
def test_equals_fbgemm_where_it_has_the_rule(tools: Any, ours: Any, kind: str) -> None:
    engine = tools.engine(DIM, ROWS)
    module = fbgemm(kind, engine.tables["table"].initial(np.arange(ROWS)))
    mine, theirs = both(tools, ours(engine, lr=0.1), module, engine)
    np.testing.assert_allclose(mine, theirs, rtol=5e-6, atol=5e-7)


def test_fbgemm_ignores_weight_decay_of_pooled_rowwise_adagrad_and_recgrad_does_not(tools: Any) -> None:
    pytest.importorskip("fbgemm_gpu", exc_type=(ImportError, OSError))
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode

    engine, undecayed = tools.engine(DIM, ROWS), tools.engine(DIM, ROWS)
    start = engine.tables["table"].initial(np.arange(ROWS))
    options = {"weight_decay": 0.5, "weight_decay_mode": WeightDecayMode.L2}
    ours = RowWiseAdagrad(engine, lr=0.1, weight_decay=0.5, weight_decay_mode="L2")
    mine, theirs = both(tools, ours, fbgemm("EXACT_ROWWISE_ADAGRAD", start, **options), engine)
    plain, _ = both(
        tools, RowWiseAdagrad(undecayed, lr=0.1), fbgemm("EXACT_ROWWISE_ADAGRAD", start), undecayed
    )
    np.testing.assert_allclose(theirs, plain, rtol=5e-6, atol=5e-7)  # as if there were no weight decay
    assert np.abs(mine - plain).max() > 1e-3
