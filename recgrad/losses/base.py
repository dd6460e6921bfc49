"""What every loss is: one value a row, then their weighted mean."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from recgrad.errors import DataError
from recgrad.losses.candidates import split_own
from recgrad.losses.weighting import normalize_weights

_HALF = (torch.float16, torch.bfloat16)


class Loss(nn.Module):
    """Mean over rows of `rows(logits, labels, session)`, weighted when weights are given.

    A subclass writes `rows`, one value a row, and `predict`.

    Attributes:
        num_logits: logits a row must have; None when that is the number of classes.
        predicts: probabilities, or values of their own scale.
        takes_labels: whether it learns classes or values that rows are labelled with.
        takes_candidates: whether it learns an item's score against those of others, as two-tower models do.
        over_vectors: whether it takes vectors instead of scores from models that have them.
        takes_vectors: whether it can, and gives the same, without a matrix of all scores.
        takes_codes: whether it is of semantic-id models, see `recgrad.losses.codes`.
        labels: what labels must be: 0 or 1, a class's number, or any number.
        needs_session: whether `session` must be given.
        corrects_sampling: whether scores of candidates are to be corrected for how often each is drawn.
        session_name: the field whose equal values make a session.
        config_name: the name in the config that it was built from.
    """

    num_logits: ClassVar[int | None] = 1
    predicts: ClassVar[Literal["probabilities", "values"]] = "probabilities"
    takes_labels: ClassVar[bool] = True
    takes_candidates: ClassVar[bool] = False
    over_vectors: ClassVar[bool] = False
    takes_codes: ClassVar[bool] = False
    labels: ClassVar[Literal["binary", "classes", "numbers"]] = "numbers"
    needs_session: ClassVar[bool] = False
    corrects_sampling: bool = False
    takes_vectors: bool = False
    session_name: str | None = None
    config_name: str = ""

    def rows(self, logits: Tensor, labels: Tensor, session: Tensor | None) -> Tensor:
        """The loss of each row, [rows]."""
        raise NotImplementedError

    def compare_vectors(
        self,
        users: Tensor,
        items: Tensor,
        own: Tensor,
        own_rows: Tensor | None = None,
        log_counts: Tensor | None = None,
    ) -> Tensor:
        """The loss of each row, [rows], of a loss over vectors.

        Args:
            users: [rows, dim].
            items: [items, dim], whose products with users are scores.
            own: int64 [rows], the row's item among them.
            own_rows: int64, as long as `own` and ascending: the row of each; None where every row has one.
            log_counts: [items], the logarithm of how often each is expected among draws; None of all items.
        """
        raise NotImplementedError

    def predict(self, logits: Tensor) -> Tensor:
        """The prediction that goes with the logits: a probability, or the value itself."""
        raise NotImplementedError

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        *,
        weights: Tensor | None = None,
        session: Tensor | None = None,
    ) -> Tensor:
        """Σ wᵢ·rowᵢ / (rows · mean(w)), the mean of w over the rows of all ranks.

        Args:
            logits: [rows] or [rows, 1] for one logit, else [rows, classes].
            labels: [rows]; on the host they are checked, and taken to the logits' device.
            weights: [rows], not normalised; all zero gives a loss of 0.
            session: int64 [rows], for losses that compare rows of a session.

        A batch without rows gives 0.
        """
        if self.needs_session and session is None:
            raise ValueError(f"{type(self).__name__} needs a session for each row, got None")
        logits, labels = _shaped(logits, labels, self.num_logits)
        return weighted_mean(self.rows(logits, labels, session), weights)


class CandidateLoss(Loss):
    """A loss of an item's score against those of other candidates; a subclass writes `compare`.

    Logits are [rows, candidates], −inf where a row has no candidate; the label is the column of the row's own
    item, 0 for two-tower models.
    """

    num_logits: ClassVar[int | None] = None
    predicts: ClassVar[Literal["probabilities", "values"]] = "values"
    takes_labels: ClassVar[bool] = False
    takes_candidates: ClassVar[bool] = True

    def compare(self, own: Tensor, others: Tensor) -> Tensor:
        """The loss of each row, from its own item's score [rows] and the others' [rows, candidates]."""
        raise NotImplementedError

    def rows(self, logits: Tensor, labels: Tensor, session: Tensor | None) -> Tensor:
        """The loss of each row."""
        name = self.config_name or type(self).__name__
        return self.compare(*split_own(logits, class_labels(labels, logits, name)))

    def predict(self, logits: Tensor) -> Tensor:
        """The scores themselves, [rows, candidates]."""
        return logits


def at_least_single(values: Tensor) -> Tensor:
    """Half precision as single, in which logarithms and means are taken; others as they are."""
    return values.float() if values.dtype in _HALF else values


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Σ wᵢ·valueᵢ / (rows · mean(w)), the mean of w over the rows of all ranks; 0 without rows."""
    if weights is not None:
        values = values * normalize_weights(weights.reshape(-1).to(values.device)).to(values.dtype)
    return values.mean() if values.numel() else values.sum()


def binary_labels(labels: Tensor, like: Tensor, name: str) -> Tensor:
    """Labels as floats of the logits' type and device; on the host, one outside [0, 1] is an error."""
    labels = labels.to(like.dtype)
    if labels.device.type == "cpu" and labels.numel() and not torch.compiler.is_compiling():
        low, high = labels.aminmax()
        if not (low >= 0 and high <= 1):
            row = int(((labels >= 0) & (labels <= 1)).logical_not().nonzero()[0])
            raise DataError(
                f"{name}: label {labels[row].item():g} at row {row} of the batch is not in [0, 1]"
            )
    return labels.to(like.device, non_blocking=True)


def class_labels(labels: Tensor, logits: Tensor, name: str) -> Tensor:
    """Labels as class numbers on the logits' device; on the host, one that is no class is an error."""
    classes, num_class = labels.long(), logits.shape[1]
    if labels.device.type == "cpu" and labels.numel() and not torch.compiler.is_compiling():
        wrong = (classes < 0) | (classes >= num_class) | (classes != labels)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise DataError(
                f"{name}: label {labels[row].item():g} at row {row} of the batch is not a class "
                f"0 … {num_class - 1}; num_class must be larger than every label"
            )
    return classes.to(logits.device, non_blocking=True)


def _shaped(logits: Tensor, labels: Tensor, num_logits: int | None) -> tuple[Tensor, Tensor]:
    """Logits as [rows] for one logit, else [rows, n]; labels as [rows]."""
    if num_logits == 1:
        if logits.dim() == 2 and logits.shape[1] == 1:
            logits = logits.squeeze(1)
        if logits.dim() != 1:
            raise ValueError(f"logits must be [rows] or [rows, 1], got {list(logits.shape)}")
    elif logits.dim() != 2 or (num_logits is not None and logits.shape[1] != num_logits):
        raise ValueError(f"logits must be [rows, {num_logits or 'classes'}], got {list(logits.shape)}")
    if labels.numel() != logits.shape[0]:
        raise ValueError(f"labels must be [{logits.shape[0]}] like the logits, got {list(labels.shape)}")
    return at_least_single(logits), labels.reshape(-1)
