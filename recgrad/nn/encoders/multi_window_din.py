"""Attention of a query over a sequence, averaged in windows of time (multi-window DIN)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.limits import FILLED, Count
from recgrad.nn.encoders.base import ENCODERS, SequenceEncoder, check_query
from recgrad.nn.jagged import Segments, repeat_rows, segment_sum
from recgrad.nn.mlp import MLP, MLPSettings


@ENCODERS.register("multi_window_din_encoder")
class MultiWindowDINEncoder(SequenceEncoder):
    """Mean of scored positions in each of several windows, beside the query: [window₁ … windowₙ, q].

    The score of a position is PReLU(linear(mlp([s, q∘s, q]))), not normalised; window i holds
    the next `windows_len[i]` positions, and its sum is divided by the number that the row has
    there. Positions beyond the last window are left out. Zhu et al. 2018,
    https://arxiv.org/abs/1801.02294

    Args:
        query_dim: width of the query, at most sequence_dim.
        sequence_dim: width of a position.
        windows_len: positions of each window, the first window first.
        attn_mlp: arguments of the MLP that scores a position.
    """

    bounds: Tensor

    def __init__(
        self,
        query_dim: int,
        sequence_dim: int,
        windows_len: Annotated[Sequence[Count], FILLED],
        attn_mlp: MLPSettings,
    ) -> None:
        super().__init__(query_dim, sequence_dim)
        check_query("multi_window_din_encoder", query_dim, sequence_dim)
        self.windows = len(windows_len)
        self.out_features = sequence_dim * (self.windows + 1)
        self.mlp = MLP(3 * sequence_dim, **attn_mlp)
        self.score = nn.Linear(self.mlp.out_features, 1)
        self.activation = nn.PReLU()
        self.register_buffer("bounds", torch.tensor(list(accumulate(windows_len))), persistent=False)

    def encode(self, query: Tensor, sequence: Tensor, segments: Segments) -> Tensor:
        """[rows, (windows + 1) · sequence_dim]."""
        query = F.pad(query, (0, self.sequence_dim - self.query_dim))
        repeated = repeat_rows(query, segments)
        inputs = torch.cat([sequence, repeated * sequence, repeated], dim=1)
        scores = self.activation(self.score(self.mlp(inputs)))
        # Each (row, window) is a segment; one more window at the end takes what lies beyond the last.
        window = (segments.places()[:, None] >= self.bounds).sum(1)  # few, and ONNX has no search
        rows, width = query.shape[0], self.windows + 1
        index = segments.rows * width + window
        lengths = torch.zeros(rows * width, dtype=torch.int64, device=query.device)
        lengths = lengths.index_add(0, index, torch.ones_like(index))
        cells = Segments(lengths, lengths.cumsum(0) - lengths, index)
        sums = segment_sum(sequence, cells, scores.squeeze(1)) / lengths.clamp(min=1).unsqueeze(1)
        inside = sums.view(rows, width, self.sequence_dim)[:, : self.windows]
        return torch.cat([inside.flatten(1), query], dim=1)
