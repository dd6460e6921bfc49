"""Three ranking models of FuxiCTR's own layers and base class, over the same rows (pip install fuxictr).

Its package has the layers but not the models that are put together from them, so that is done here as its
model zoo does: every number is a field with a vector, the linear half has a weight for each field, and one
Adam, with a bound of 10 on the norm of all gradients, trains all of it (its `train_step`).
"""

from __future__ import annotations

from typing import Any

import torch
from peers.rows import Rows
from torch import nn

BIG = [256, 128, 64]


def feature_map(rows: Rows) -> Any:
    """FuxiCTR's description of the fields."""
    from fuxictr.features import FeatureMap

    found = FeatureMap("rows", ".")
    for number, size in enumerate(rows.sizes):
        found.features[f"f{number}"] = {"source": "", "type": "categorical", "vocab_size": size}
    for number in range(rows.numbers.shape[1]):
        found.features[f"n{number}"] = {"source": "", "type": "numeric"}
    found.labels = ["label"]
    found.num_fields = found.get_num_fields()
    return found


def inputs(rows: Rows) -> dict[str, torch.Tensor]:
    """The rows as its models read them."""
    ids, numbers = torch.from_numpy(rows.ids), torch.from_numpy(rows.numbers)
    fields = {f"f{number}": ids[:, number] for number in range(ids.shape[1])}
    fields |= {f"n{number}": numbers[:, number] for number in range(numbers.shape[1])}
    return {**fields, "label": torch.from_numpy(next(iter(rows.labels.values())))}


def build(name: str, rows: Rows, dim: int, rate: float, seed: int) -> Any:
    """DeepFM, DCNv2 or xDeepFM with Adam."""
    from fuxictr.pytorch.layers import (
        CompressedInteractionNet,
        CrossNetV2,
        FactorizationMachine,
        FeatureEmbedding,
        LogisticRegression,
        MLP_Block,
    )
    from fuxictr.pytorch.models import BaseModel

    class Base(BaseModel):  # type: ignore[misc]  # FuxiCTR has no types
        def __init__(self) -> None:
            super().__init__(fields, model_id=name, verbose=0, model_root=".", metrics=["AUC"])
            self.embedding_layer = FeatureEmbedding(fields, dim)
            self._max_gradient_norm = 10.0

        def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            x = self.get_inputs(batch)
            return {"y_pred": torch.sigmoid(self.logits(x, self.embedding_layer(x)))}

    class DeepFM(Base):
        def __init__(self) -> None:
            super().__init__()
            self.fm = FactorizationMachine(fields)
            self.mlp = MLP_Block(width, BIG, output_dim=1)

        def logits(self, x: Any, vectors: torch.Tensor) -> Any:
            return self.fm(x, vectors) + self.mlp(vectors.flatten(1))

    class DCNv2(Base):
        def __init__(self) -> None:
            super().__init__()
            self.cross = CrossNetV2(width, 3)
            self.mlp = MLP_Block(width, BIG)
            self.fc = nn.Linear(width + BIG[-1], 1)

        def logits(self, x: Any, vectors: torch.Tensor) -> Any:
            flat = vectors.flatten(1)
            return self.fc(torch.cat([self.cross(flat), self.mlp(flat)], dim=1))

    class XDeepFM(Base):
        def __init__(self) -> None:
            super().__init__()
            self.linear = LogisticRegression(fields, use_bias=False)
            self.cin = CompressedInteractionNet(fields.num_fields, [32, 32])
            self.mlp = MLP_Block(width, BIG, output_dim=1)

        def logits(self, x: Any, vectors: torch.Tensor) -> Any:
            return self.linear(x) + self.cin(vectors) + self.mlp(vectors.flatten(1))

    torch.manual_seed(seed)
    fields = feature_map(rows)
    width = fields.num_fields * dim
    model = {"DeepFM": DeepFM, "DCNv2": DCNv2, "xDeepFM": XDeepFM}[name]()
    model.compile("adam", "binary_crossentropy", rate)
    model.reset_parameters()
    return model


NAMES = ("DeepFM", "DCNv2", "xDeepFM")
