"""Items of history and candidates in one width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from recgrad.nn.mlp import MLP
from recgrad.nn.stu.contextual import chosen

_STD = 0.1


class SliceContent(nn.Module):
    """Candidates cut to the columns that the history has."""

    def __init__(self, history_dim: int, candidate_dim: int) -> None:
        super().__init__()
        if candidate_dim < history_dim:
            raise ValueError(
                "slice_content_encoder needs candidates at least as wide as the history, got "
                f"{candidate_dim} and {history_dim}"
            )
        self.out_features = history_dim

    def forward(self, history: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Both, equally wide."""
        return history, candidates[:, : self.out_features]


class PadContent(nn.Module):
    """The history widened by a learned vector, the same at every position."""

    def __init__(self, history_dim: int, candidate_dim: int) -> None:
        super().__init__()
        if candidate_dim <= history_dim:
            raise ValueError(
                f"pad_content_encoder needs candidates wider than the history, got {candidate_dim} and "
                f"{history_dim}"
            )
        self.out_features = candidate_dim
        self.filler = nn.Parameter(torch.empty(1, candidate_dim - history_dim).normal_(std=_STD))

    def forward(self, history: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Both, equally wide."""
        return torch.cat([history, self.filler.expand(history.shape[0], -1)], dim=1), candidates


class MLPContent(nn.Module):
    """An MLP for each."""

    def __init__(
        self,
        history_dim: int,
        candidate_dim: int,
        *,
        uih_mlp: Mapping[str, Any],
        target_mlp: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.history, self.target = MLP(history_dim, **uih_mlp), MLP(candidate_dim, **target_mlp)
        self.out_features = self.history.out_features
        if self.target.out_features != self.out_features:
            raise ValueError(
                "mlp_content_encoder's MLPs must end equally wide, got "
                f"{self.out_features} and {self.target.out_features}"
            )

    def forward(self, history: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Both, equally wide."""
        return self.history(history), self.target(candidates)


_KINDS: dict[str, Any] = {
    "slice_content_encoder": SliceContent,
    "pad_content_encoder": PadContent,
    "mlp_content_encoder": MLPContent,
}


def build_content(config: Mapping[str, Any], history_dim: int, candidate_dim: int) -> Any:
    """The encoder of a `GRContentEncoder`."""
    kind, params = chosen(config, _KINDS, "content_encoder")
    return _KINDS[kind](history_dim, candidate_dim, **params)
