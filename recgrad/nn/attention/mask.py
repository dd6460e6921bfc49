"""Which positions of a row attend to which."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """Which keys j a query i of a row of L positions sees.

    A row is [contextual | history | candidates]: C contextual positions, then h − C of history, then L − h
    candidates. All kinds but EVERYTHING are causal in the history, and no candidate sees another one.

    - TARGET_AWARE: history sees j ≤ i, contextual positions see j < h, a candidate sees j < h and
      itself. With a window W > 0 history and candidates see the newest W positions alone (and
      themselves); contextual positions count as one, the oldest.
    - SEMI_LOCAL: history and contextual positions see the first `first` (C at least) and the last `near`
      positions up to themselves; a candidate sees j < h, not itself.
    - EVERYTHING: all positions see all.

    Attributes:
        kind: one of the three.
        contextual: C.
        window: W; 0 for none.
        near: positions before a query that SEMI_LOCAL sees, itself included.
        first: positions at the beginning of a row that SEMI_LOCAL sees.
    """

    kind: str = "TARGET_AWARE"
    contextual: int = 0
    window: int = 0
    near: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        if self.kind not in _CODES:
            raise ValueError(f"kind must be one of {', '.join(_CODES)}, got {self.kind}")

    @property
    def code(self) -> int:
        """What kernels call the kind."""
        return _CODES[self.kind]

    def matrix(self, lengths: Tensor, size: int, targets: Tensor | None = None) -> Tensor:
        """bool [rows, size, size]: M of rows of these lengths, padded to `size`."""
        place = torch.arange(size, device=lengths.device)
        i, j = place[:, None], place[None, :]
        length = lengths.view(-1, 1, 1)
        there = (i < length) & (j < length)
        if self.kind == "EVERYTHING":
            return there
        h = length if targets is None else length - targets.view(-1, 1, 1)
        candidate = i >= h
        if self.kind == "SEMI_LOCAL":
            k = max(self.first, self.contextual)
            near = (j <= i) & ((j < k) | (j > i - self.near))
            # Runtimes have no `where` of truth values.
            return there & ((candidate & (j < h)) | (~candidate & near))
        order = self._order(place, h)
        before = order[:, :, None] - order[:, None, :]
        seen = (i == j) | (before > 0)
        if self.window:
            seen = seen & (before <= self.window)
        if self.contextual:
            seen = seen | ((i < self.contextual) & (j < h))
        return there & seen

    def _order(self, place: Tensor, h: Tensor) -> Tensor:
        """[rows, size]: contextual positions 0, history from 1 on (from 0 without any), candidates alike."""
        c = self.contextual
        order = (place - c + 1).clamp(min=0) if c else place
        last = h.view(-1, 1) - c + 1 if c else h.view(-1, 1)
        return torch.minimum(order.unsqueeze(0), last)


_CODES = {"TARGET_AWARE": 0, "EVERYTHING": 1, "SEMI_LOCAL": 2}
