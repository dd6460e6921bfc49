"""What users did with the items of their history, as vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recgrad.limits import Count
from recgrad.nn.stu.inputs import Events

_STD = 0.1


class SimpleActionEncoder(nn.Module):
    """Side by side, for each kind of action, its vector where the bit is set, else zeros.

    The bits are those of the event's actions, and for each threshold of watch time one that is set from there
    on. Candidates, whose actions are not known, have one vector for all.

    Args:
        action_embedding_dim: width of a kind's vector.
        action_weights: the bit of each kind.
        watchtime_to_action_thresholds: watch times from which on an action counts as done.
        watchtime_to_action_weights: the bit of each of these.
        embedding_init_std: not used, as in TorchEasyRec: vectors start as N(0, 0.1).
    """

    def __init__(
        self,
        *,
        action_embedding_dim: Count,
        action_weights: Sequence[int] = (),
        watchtime_to_action_thresholds: Sequence[int] = (),
        watchtime_to_action_weights: Sequence[int] = (),
        embedding_init_std: float = _STD,
    ) -> None:
        super().__init__()
        thresholds, weights = watchtime_to_action_thresholds, watchtime_to_action_weights
        if len(thresholds) != len(weights):
            raise ValueError(
                "watchtime_to_action_thresholds and watchtime_to_action_weights must be equally many, got "
                f"{len(thresholds)} and {len(weights)}"
            )
        bits = [*action_weights, *weights]
        if not bits:
            raise ValueError("action_weights must name at least one action, got none")
        self.thresholds = list(zip(thresholds, weights, strict=True))
        self.bits: Tensor
        self.register_buffer("bits", torch.tensor(bits, dtype=torch.int64), persistent=False)
        self.out_features = len(bits) * action_embedding_dim
        self.table = nn.Parameter(torch.empty(len(bits), action_embedding_dim).normal_(std=_STD))
        self.candidate = nn.Parameter(torch.empty(1, self.out_features).normal_(std=_STD))

    @property
    def needs_watch_times(self) -> bool:
        """Whether events must have watch times."""
        return bool(self.thresholds)

    def history(self, events: Events) -> Tensor:
        """[events, width]."""
        actions = events.actions
        assert actions is not None
        for threshold, weight in self.thresholds:
            assert events.watch_times is not None
            actions = actions | (events.watch_times >= threshold).long() * weight
        done = (actions.unsqueeze(1) & self.bits) > 0
        return (done.to(self.table.dtype).unsqueeze(2) * self.table).flatten(1)

    def candidates(self, count: int) -> Tensor:
        """[count, width], all alike."""
        return self.candidate.expand(count, -1)
