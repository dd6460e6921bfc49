"""What losses of semantic-id models are: functions of vectors, their codes and their reconstructions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from recgrad.losses.base import Loss, at_least_single

Gap = Literal["l2", "l1", "cos"]


class CodeLoss(Loss):
    """A loss over the outputs of a semantic-id model; a subclass writes `of_codes`."""

    predicts: ClassVar[Literal["probabilities", "values"]] = "values"
    takes_labels: ClassVar[bool] = False
    takes_codes: ClassVar[bool] = True

    def of_codes(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """The loss of a batch.

        Args:
            outputs: `vectors` [rows, dim], their `reconstruction`, the `latent` vectors [rows, width] and the
                `sums` of codes [rows, levels, width] that stand for them. Of pairs also the same of the other
                item as `pair_vectors` and so on, `pairs`, bool [rows], and three `scales`.
        """
        raise NotImplementedError


def gaps(a: Tensor, b: Tensor, kind: Gap) -> Tensor:
    """How far vectors are apart: the mean square or absolute difference of their parts, or 1 − cos."""
    a, b = at_least_single(a), at_least_single(b)
    if kind == "cos":
        return 1 - F.cosine_similarity(a, b, dim=-1)
    return (a - b).square().mean(-1) if kind == "l2" else (a - b).abs().mean(-1)


def mean_or_zero(values: Tensor) -> Tensor:
    """The mean, 0 of none."""
    return values.mean() if values.numel() else values.sum()


def both_views(outputs: Mapping[str, Tensor], name: str) -> Tensor:
    """An output of the rows, followed by that of their pairs where there are some."""
    return torch.cat([outputs[name], outputs[f"pair_{name}"]]) if f"pair_{name}" in outputs else outputs[name]
