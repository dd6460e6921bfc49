"""A small model with both halves: embedding tables of the local engine and a dense tower."""

from __future__ import annotations

import pytest
import torch
from google.protobuf import text_format
from torch import nn

from recgrad.config.proto.train_pb2 import TrainConfig
from recgrad.embedding.build import build_sparse_optimizer
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.from_config import build_updater

ROWS = 20


class Both(nn.Module):
    """Two tables and a tower with a BatchNorm; scores a batch of pairs of ids."""

    def __init__(self, seed: int = 0, batch_norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        tables = [TableSpec(name, ROWS, 4, "nn.init.uniform_,a=-1,b=1") for name in ("user", "item")]
        lookups = [LookupSpec(name, name, name) for name in ("user", "item")]
        self.engine = LocalEngine(tables, lookups, keys=["user", "item"], seed=seed)
        norm = [nn.BatchNorm1d(6)] if batch_norm else []
        self.tower = nn.Sequential(
            nn.Linear(8, 6), *norm, nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)
        )

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        size = len(pairs)
        ids = Ids(pairs.T.reshape(-1).contiguous(), torch.ones(2 * size, dtype=torch.int32), [size, size])
        return self.tower(self.engine(ids).pooled(["user", "item"])).squeeze(1)

    def dense(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.named_parameters() if not name.startswith("engine")]

    def weights(self) -> dict[str, torch.Tensor]:
        """Everything that an update may move, copied."""
        found = {name: p.detach().clone() for name, p in self.dense()}
        for name in self.engine.tables:
            rows, values = self.engine.export_table(name)
            found[f"{name}.rows"], found[name] = (
                torch.from_numpy(rows.copy()),
                torch.from_numpy(values.copy()),
            )
        return found


def make_batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, ROWS, (size, 2), generator=generator), torch.randn(size, generator=generator)


class Run:
    """A model with its updater, as a config describes it."""

    def __init__(self, text: str, *, seed: int = 0, batch_norm: bool = False, **options) -> None:
        if "sparse_optimizer" not in text:
            text += " sparse_optimizer { adam_optimizer { lr: 0.05 } }"
        if "dense_optimizer" not in text:
            text += " dense_optimizer { adam_optimizer { lr: 0.05 } }"
        self.config = text_format.Parse(text, TrainConfig())
        self.model = Both(seed, batch_norm)
        self.sparse = build_sparse_optimizer(self.model.engine, self.config.sparse_optimizer)
        self.updater = build_updater(self.config, self.model.dense(), self.sparse, **options)

    def loss(self, pairs, labels):
        with self.updater.autocast():
            scores = self.model(pairs)
        return ((scores.float() - labels) ** 2).mean()

    def micro(self, size: int, seed: int, factor: float = 1.0):
        self.updater.backward(self.loss(*make_batch(size, seed)) * factor)
        return self.updater.step()


@pytest.fixture
def make_run():
    return Run


@pytest.fixture
def batch_of():
    return make_batch
