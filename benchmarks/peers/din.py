"""The multi-tower DIN that benchmarks/train.py times, and its peers with torch's tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recgrad.data.batch import Batch, KeyedDense, KeyedJagged
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.embedding.engine import EmbeddedIds
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.models.group_plan import FeatureGroup
from recgrad.models.multi_tower_din import MultiTowerDIN
from recgrad.nn.encoders.din import DINEncoder
from recgrad.nn.jagged import Segments, pad

DIN_ROWS = {"adgroup_id": 846_812, "cate_id": 12_961, "brand": 461_498}
DIN_BATCH = 4096
ATTENTION = [256, 64]
DIM = 16


class TorchTables(nn.Module):
    """The peer: an nn.Embedding a table, looked up and pooled by torch."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        lookups: Sequence[LookupSpec],
        *,
        keys: Sequence[str],
        sequence_keys: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.specs = {spec.name: spec for spec in lookups}
        self.keys, self.sequence_keys = list(keys), list(sequence_keys)
        self.weights = nn.ModuleDict({spec.name: nn.Embedding(spec.num_rows, spec.dim) for spec in tables})

    def forward(self, ids: KeyedJagged, sequences: KeyedJagged | None = None) -> TorchEmbedded:
        return TorchEmbedded(self, ids, sequences)

    def sums_gradients(self, name: str) -> bool:
        """No layer of the peer multiplies an id once only."""
        return False


class TorchEmbedded(EmbeddedIds):
    def __init__(self, tables: TorchTables, ids: KeyedJagged, sequences: KeyedJagged | None) -> None:
        self.tables, self.ids, self.sequences = tables, ids, sequences

    def pooled(self, names: Sequence[str]) -> Tensor:
        return torch.cat([self._look_up(name, self.ids) for name in names], dim=1)

    def sequence(self, name: str) -> Tensor:
        assert self.sequences is not None
        return self._look_up(name, self.sequences)

    def _look_up(self, name: str, ids: KeyedJagged) -> Tensor:
        """Every bag of these features holds one id, so pooling is the lookup itself."""
        spec = self.tables.specs[name]
        rows: Tensor = self.tables.weights[spec.table](ids[spec.key].values)
        return rows


def din_features() -> list[FeatureSpec]:
    def spec(name: str, rows: int, sequence: bool) -> FeatureSpec:
        table = name.removeprefix("click_seq__")
        return FeatureSpec(
            name, Kind.SPARSE, sequence=sequence, sequence_name="click_seq" if sequence else None,
            num_rows=rows, embedding_dim=DIM, embedding_name=table,
        )  # fmt: skip

    items = [spec(name, rows, sequence=False) for name, rows in DIN_ROWS.items()]
    return items + [spec(f"click_seq__{name}", rows, sequence=True) for name, rows in DIN_ROWS.items()]


def din_batch(rng: np.random.Generator) -> Batch:
    lengths = rng.integers(1, 101, DIN_BATCH).astype(np.int32)
    positions = int(lengths.sum())

    def ids(count: int) -> Tensor:
        return torch.from_numpy(np.concatenate([rng.integers(0, rows, count) for rows in DIN_ROWS.values()]))

    def jagged(keys: Sequence[str], count: int) -> KeyedJagged:
        ones = torch.ones(len(keys) * count, dtype=torch.int32)
        return KeyedJagged(tuple(keys), ids(count), ones, (count,) * len(keys), single=True)

    names = list(DIN_ROWS)
    return Batch(
        size=DIN_BATCH,
        dense=KeyedDense((), (), torch.empty(DIN_BATCH, 0)),
        sparse=jagged(names, DIN_BATCH),
        sequence_lengths={f"click_seq__{name}": torch.from_numpy(lengths) for name in names},
        sequence_sparse=jagged([f"click_seq__{name}" for name in names], positions),
        labels={"label": torch.from_numpy(rng.integers(0, 2, DIN_BATCH)).float()},
    )


def din_model(engine: Any = None) -> MultiTowerDIN:
    sequence = [f"click_seq__{name}" for name in DIN_ROWS]
    groups = [FeatureGroup("deep", list(DIN_ROWS)), FeatureGroup("seq", [*DIN_ROWS, *sequence], "SEQUENCE")]
    return MultiTowerDIN(
        din_features(),
        groups,
        engine=engine,
        towers=[{"input": "deep", "mlp": {"hidden_units": [512, 256, 128]}}],
        din_towers=[{"input": "seq", "attn_mlp": {"hidden_units": ATTENTION}}],
        final={"hidden_units": [64]},
    )


class PaddedDIN(nn.Module):
    """The peer's attention, over histories that are padded to the longest."""

    def __init__(self, dim: int, hidden_units: Sequence[int]) -> None:
        super().__init__()
        widths = [4 * dim, *hidden_units]
        self.mlp = nn.Sequential()
        for i, (a, b) in enumerate(pairwise(widths)):
            self.mlp.add_module(f"linear{i}", nn.Linear(a, b))
            self.mlp.add_module(f"activation{i}", nn.ReLU())
        self.score = nn.Linear(widths[-1], 1, bias=False)

    def forward(self, query: Tensor, sequence: Tensor, lengths: Tensor) -> Tensor:
        padded = pad(sequence, Segments.from_lengths(lengths, len(sequence)))
        wide = query.unsqueeze(1).expand_as(padded)
        inputs = torch.cat([wide, padded, wide - padded, wide * padded], dim=2)
        scores = self.score(self.mlp(inputs)).squeeze(2)
        exists = torch.arange(padded.shape[1]) < lengths.unsqueeze(1)
        weights = scores.masked_fill(~exists, -torch.inf).softmax(dim=1)
        return torch.bmm(weights.unsqueeze(1), padded).squeeze(1)


def torch_tables_model() -> MultiTowerDIN:
    """Torch's tables under our attention."""
    return din_model(TorchTables)


def padded_model() -> MultiTowerDIN:
    """Torch's tables under the padded attention."""
    model = din_model(TorchTables)
    (din,) = model.dins
    assert isinstance(din, DINEncoder)
    model.dins[0] = PaddedDIN(din.sequence_dim, ATTENTION)
    return model


def check_same_outputs(ours: MultiTowerDIN, peer: MultiTowerDIN, batch: Batch) -> None:
    """Give the peer our layers, and our tables the rows of the peer's, and compare the logits."""
    own = {name: p for name, p in ours.state_dict().items() if not name.startswith("engine.")}
    missing, unexpected = peer.load_state_dict(own, strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith("engine.") for name in missing), missing
    for name, rows in DIN_ROWS.items():
        used = torch.cat([batch.sparse[name].values, batch.sequence_sparse[f"click_seq__{name}"].values])
        ids = torch.unique(used)
        assert ids.max() < rows
        ours.engine.import_table(name, ids.numpy(), peer.engine.weights[name].weight[ids].detach().numpy())
    with torch.no_grad():
        a, b = ours(batch)["logits"], peer(batch)["logits"]
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
