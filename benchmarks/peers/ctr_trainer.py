"""Trains DeepFM with FuxiCTR or DeepCTR-Torch, told by lines on its input; runs in the peers' environment.

    python ctr_trainer.py PEER ROWS.npz OPTIMIZER BATCH

The first line that it prints has the number of parameters. Each line that it reads is a number of steps,
which it takes and answers with their seconds and losses. Rows are in memory as tensors, batches are slices of
them: what a peer takes to read its data is not counted. A step is the peer's own: FuxiCTR's `train_step`,
and what DeepCTR-Torch's `fit` does with a batch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

DIM = 16
DEEP = [512, 256, 128]
RATES = {"Adam": 1e-3, "Adagrad": 1e-2}
Step = Callable[[slice], float]


def fuxictr(ids: Any, numbers: Any, labels: Any, sizes: Any, optimizer: str) -> tuple[Any, Step]:
    """DeepFM of FuxiCTR's layers and base class, put together as its model zoo does.

    Numbers go to the MLP as they are, as in the other networks; its own zoo gives each a vector.
    """
    from fuxictr.features import FeatureMap
    from fuxictr.pytorch.layers import (
        FeatureEmbedding,
        InnerProductInteraction,
        LogisticRegression,
        MLP_Block,
    )
    from fuxictr.pytorch.models import BaseModel

    fields = FeatureMap("rows", ".")
    for number, size in enumerate(sizes):
        fields.features[f"f{number}"] = {"source": "", "type": "categorical", "vocab_size": int(size)}
    fields.labels = ["label"]
    fields.num_fields = fields.get_num_fields()

    class DeepFM(BaseModel):  # type: ignore[misc]  # FuxiCTR has no types
        def __init__(self) -> None:
            super().__init__(fields, model_id="DeepFM", verbose=0, model_root=".", metrics=["AUC"])
            self.embedding_layer = FeatureEmbedding(fields, DIM)
            self.linear = LogisticRegression(fields, use_bias=False)
            self.product = InnerProductInteraction(fields.num_fields, output="product_sum")
            self.mlp = MLP_Block(DIM * len(sizes) + numbers.shape[1], DEEP, output_dim=1)
            self._max_gradient_norm = 10.0

        def forward(self, batch: Any) -> Any:
            given = {name: column for name, column in batch.items() if name != "numbers"}
            x = self.get_inputs(given)
            v = self.embedding_layer(x)
            deep = self.mlp(torch.cat([batch["numbers"], v.flatten(1)], dim=1))
            return {"y_pred": torch.sigmoid(self.linear(x) + self.product(v) + deep)}

    model = DeepFM()
    model.compile(optimizer, "binary_crossentropy", RATES[optimizer])
    model.reset_parameters()
    columns = {f"f{i}": torch.from_numpy(np.ascontiguousarray(ids[:, i])) for i in range(ids.shape[1])}
    columns |= {"numbers": torch.from_numpy(numbers), "label": torch.from_numpy(labels)}
    model.train()

    def step(rows: slice) -> float:
        loss: float = model.train_step({name: column[rows] for name, column in columns.items()}).item()
        return loss

    return model, step


def deepctr(ids: Any, numbers: Any, labels: Any, sizes: Any, optimizer: str) -> tuple[Any, Step]:
    """DeepCTR-Torch's DeepFM, without its penalty on weights, which the others do not have."""
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import DeepFM

    names = [f"f{i}" for i in range(ids.shape[1])]
    sparse = [SparseFeat(n, int(size), embedding_dim=DIM) for n, size in zip(names, sizes)]
    dense = [DenseFeat(f"n{i}", 1) for i in range(numbers.shape[1])]
    off = {"l2_reg_linear": 0, "l2_reg_embedding": 0, "l2_reg_dnn": 0}
    model = DeepFM(sparse, sparse + dense, dnn_hidden_units=DEEP, **off)
    kind = {"Adam": torch.optim.Adam, "Adagrad": torch.optim.Adagrad}[optimizer]
    model.compile(kind(model.parameters(), lr=RATES[optimizer]), "binary_crossentropy")
    where = model.feature_index
    width = max(end for _, end in where.values())
    x = torch.empty(len(ids), width)
    for i, name in enumerate(names):
        x[:, where[name][0]] = torch.from_numpy(ids[:, i]).float()
    for i in range(numbers.shape[1]):
        x[:, where[f"n{i}"][0]] = torch.from_numpy(numbers[:, i])
    y = torch.from_numpy(labels)
    model.train()

    def step(rows: slice) -> float:
        predicted = model(x[rows]).squeeze(-1)
        model.optim.zero_grad()
        loss = model.loss_func(predicted, y[rows], reduction="sum")
        whole = loss + model.get_regularization_loss() + model.aux_loss
        value: float = loss.item()
        whole.backward()
        model.optim.step()
        return value / len(predicted)

    return model, step


PEERS = {"fuxictr": fuxictr, "deepctr": deepctr}


def main() -> None:
    peer, path, optimizer, batch = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    answers, sys.stdout = sys.stdout, sys.stderr  # what a peer prints is no answer
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    rows = np.load(path)
    model, step = PEERS[peer](rows["ids"], rows["numbers"], rows["labels"], rows["sizes"], optimizer)
    answers.write(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}) + "\n")
    answers.flush()
    batches = len(rows["labels"]) // batch
    taken = 0
    for line in sys.stdin:
        start, losses = time.perf_counter(), []
        for _ in range(int(line)):
            first = taken % batches * batch
            losses.append(step(slice(first, first + batch)))
            taken += 1
        answers.write(json.dumps({"seconds": time.perf_counter() - start, "losses": losses}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
