"""What models of a user's and an item's vector share: how these are compared, and with which items.

```
u [rows, dim] ─────────────────────────────────────────┐
v of the row's own item, of shared negatives, of hard ones ──▶ s [rows, 1 + shared + hard] ──▶ logits
```
Column 0 is the row's own item. Negatives are the batch's sampled items, or with `in_batch_negative` the
items of the other rows; a hard one belongs to one row. A place where a row has nothing to compare with, or
must not compare, is −inf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.data.batch import Batch, Comparison
from recgrad.embedding.engine import PreparedIds
from recgrad.errors import DataError
from recgrad.models.base import Model
from recgrad.models.inputs import Parts

SIMILARITIES = ("COSINE", "INNER_PRODUCT", "EUCLID")
MOST_SCALE = 100.0
"""What a learned temperature's reciprocal is kept below, as CLIP has it (Radford et al. 2021)."""


MANY_ROWS = 512
"""With so many rows losses may compare vectors some rows at a time, instead of a matrix of all scores."""


class TwoTowers(Model):
    """A model that compares a user's vector with those of items.

    `user_embedding` and `item_embedding` run one tower alone.
    """

    retrieval: ClassVar[bool] = True

    def build_comparison(
        self,
        *,
        output_dim: int,
        similarity: str,
        temperature: float,
        learned_temperature: bool,
        in_batch_negative: bool,
    ) -> None:
        """Take over how vectors are compared.

        Args:
            output_dim: width of the vectors; 0 takes the towers' outputs as they are.
            similarity: COSINE, INNER_PRODUCT, or EUCLID (minus the distance).
            temperature: similarities are divided by it.
            learned_temperature: it is a parameter, and begins there.
            in_batch_negative: the items of other rows are the negatives.
        """
        if output_dim < 0:
            raise ValueError(f"output_dim must be at least 0, got {output_dim}")
        if similarity not in SIMILARITIES:
            raise ValueError(f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity}")
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        losses = [loss for task in self.tasks for loss in task.losses]
        self.over_vectors = any(loss.over_vectors for loss in losses)
        # Scores of all pairs are for training metrics, and for losses that do not do without their matrix.
        self.vectors_do = (
            similarity != "EUCLID"
            and all(loss.takes_vectors for loss in losses)
            and not any(task.train_metrics for task in self.tasks)
        )
        self.corrects_sampling = any(loss.corrects_sampling for loss in losses)
        if self.over_vectors and len(losses) > 1:
            raise ValueError("full_softmax sees all items and other losses would see none; keep one of them")
        if self.over_vectors and (similarity == "EUCLID" or in_batch_negative):
            other = "similarity EUCLID" if similarity == "EUCLID" else "in_batch_negative"
            raise ValueError(f"full_softmax does not go with {other}; change one of the two")
        self.similarity, self.in_batch_negative = similarity, in_batch_negative
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature))) if learned_temperature else None
        self.fixed_scale = 1.0 / temperature

    @property
    def scale(self) -> Tensor | float:
        """What similarities are multiplied by: 1 / temperature."""
        if self.log_scale is None:
            return self.fixed_scale
        return self.log_scale.clamp(max=math.log(MOST_SCALE)).exp()

    def normed(self, x: Tensor) -> Tensor:
        """Vectors of length 1 for COSINE, as they are otherwise."""
        return F.normalize(x, dim=-1) if self.similarity == "COSINE" else x

    def gather_items(
        self, batch: Batch, parts: Parts, item_groups: list[str], ids: PreparedIds | None = None
    ) -> Parts:
        """The parts with those of the batch's negatives; `ids` are theirs, if they are on their way."""
        if batch.negatives is not None and self.in_batch_negative:
            raise DataError(
                "data: the batch has sampled negatives but in_batch_negative is true; remove one of the two"
            )
        comparison = batch.with_inputs_on(self.groups.device).comparison
        if batch.negatives is None:
            return replace(parts, comparison=comparison)
        negatives = self.groups.gather(batch.negatives, self.engine, item_groups, ids=ids)
        return replace(parts, negatives=negatives, comparison=comparison)

    def compare(
        self, users: Tensor, own: Tensor, negatives: Tensor | None, comparison: Comparison | None
    ) -> dict[str, Tensor]:
        """The logits, and what losses take in their stead.

        Args:
            users: [rows, dim].
            own: [rows, dim], the rows' own items.
            negatives: [shared + hard, dim]; None without any.
            comparison: who is compared with whom.

        Returns:
            "logits" [rows, 1 + candidates]; while training also "corrected", the same with scores of
            negatives corrected for sampling, or "users", "items" and "own" for losses over vectors,
            where a loss asks for them, with "log_counts" where items were drawn.
        """
        if comparison is not None and comparison.own_rows is not None:
            return self._compare_several(users, own, negatives, comparison)
        if self.training and self.over_vectors and comparison is not None and comparison.own is not None:
            assert negatives is not None
            logits = self._pairwise(users, own)[:, None]
            scaled = users * self.scale
            vectors = {"logits": logits, "users": scaled, "items": negatives, "own": comparison.own}
            return _with_counts(vectors, comparison)
        corrects = self.training and self.corrects_sampling
        log_counts = comparison.log_counts if corrects and comparison is not None else None
        many = own.shape[0] >= MANY_ROWS and not _excludes(comparison)
        if self.in_batch_negative and self.training and self.vectors_do and many:
            logits = self._pairwise(users, own)[:, None]
            diagonal = torch.arange(own.shape[0], device=own.device)
            return {"logits": logits, "users": users * self.scale, "items": own, "own": diagonal}
        if self.in_batch_negative:
            matrix = _without(self._matrix(users, own), comparison)
            logits = own_first(matrix)
            if log_counts is None:
                return {"logits": logits}
            others = own_first(matrix - log_counts)[:, 1:]
            return {"logits": logits, "corrected": torch.cat([logits[:, :1], others], dim=1)}
        score = self._pairwise(users, own)[:, None]
        if negatives is None:
            return {"logits": score}
        hard_rows = None if comparison is None else comparison.hard_rows
        shared = negatives if hard_rows is None else negatives[: negatives.shape[0] - hard_rows.shape[0]]
        matrix = _without(self._matrix(users, shared), comparison)
        hard = []
        if hard_rows is not None and hard_rows.shape[0]:
            hard = [self._hard(users, negatives[shared.shape[0] :], hard_rows)]
        outputs = {"logits": torch.cat([score, matrix, *hard], dim=1)}
        if log_counts is not None:
            outputs["corrected"] = torch.cat([score, matrix - log_counts, *hard], dim=1)
        return outputs

    def _compare_several(
        self, users: Tensor, own: Tensor, items: Tensor | None, comparison: Comparison
    ) -> dict[str, Tensor]:
        """As `compare`, of rows with any number of own items; "logits" is their mean score, [rows, 1]."""
        places, rows = comparison.own, comparison.own_rows
        if not self.over_vectors:
            raise DataError(
                "data: rows have several items of their own, which only full_softmax learns; choose it, or "
                "give every row one item"
            )
        if not self.training and any(task.metrics for task in self.tasks):
            raise DataError(
                "data: rows have several items of their own, which model_config.metrics cannot rank; remove "
                "them, since eval_config.catalogue ranks such rows"
            )
        assert items is not None
        assert places is not None
        assert rows is not None
        scores = self._pairwise(users[rows], own)
        counts = torch.bincount(rows, minlength=users.shape[0]).clamp(min=1)
        logits = (scores.new_zeros(users.shape[0]).index_add(0, rows, scores) / counts)[:, None]
        if not self.training:
            return {"logits": logits}
        vectors = {
            "logits": logits,
            "users": users * self.scale,
            "items": items,
            "own": places,
            "own_rows": rows,
        }
        return _with_counts(vectors, comparison)

    def _hard(self, users: Tensor, items: Tensor, rows: Tensor) -> Tensor:
        """Scores of hard negatives, [rows, most of a row], −inf where a row has fewer."""
        scores = self._pairwise(users[rows], items)
        places = torch.arange(rows.shape[0], device=rows.device) - torch.searchsorted(rows, rows)
        padded = scores.new_full((users.shape[0], int(places.max()) + 1), -torch.inf)
        return padded.index_put((rows, places), scores)

    def _pairwise(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores of users and items row by row, [rows]."""
        if self.similarity == "EUCLID":
            distances: Tensor = torch.linalg.vector_norm(users - items, dim=1)
            return -distances * self.scale
        return (users * items).sum(1) * self.scale

    def _matrix(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores of all users and all items."""
        if self.similarity == "EUCLID":
            return -torch.cdist(users, items) * self.scale
        return (users * self.scale) @ items.t()


@dataclass(frozen=True)
class ItemRows:
    """The inputs of an item tower for own items and negatives, and where these are in it.

    Attributes:
        inputs: [rows of the tower, width].
        places: int64 [rows], where the own items are; None when they come first.
        size: how many own items there are.
        has_negatives: whether there are negatives beside the own items.
    """

    inputs: Tensor
    places: Tensor | None
    size: int
    has_negatives: bool

    def own(self, values: Tensor) -> Tensor:
        """The part of own items."""
        return values[: self.size] if self.places is None else values[self.places]

    def negatives(self, values: Tensor) -> Tensor | None:
        """The part of negatives, or None without any."""
        if not self.has_negatives:
            return None
        return values[self.size :] if self.places is None else values


def item_rows(own: Tensor, negatives: Tensor | None, comparison: Comparison | None) -> ItemRows:
    """Own items and negatives for one pass of the tower, so that batch norm sees what serving will show it.

    Own items that are among the negatives, as with a whole catalogue, are not seen twice.
    """
    if negatives is None:
        return ItemRows(own, None, own.shape[0], False)
    if comparison is not None and comparison.own is not None:
        return ItemRows(negatives, comparison.own, own.shape[0], True)
    return ItemRows(torch.cat([own, negatives]), None, own.shape[0], True)


def _with_counts(outputs: dict[str, Tensor], comparison: Comparison) -> dict[str, Tensor]:
    """What losses over vectors take, with how often each item was expected among the draws."""
    if comparison.log_counts is None:
        return outputs
    return {**outputs, "log_counts": comparison.log_counts}


def _excludes(comparison: Comparison | None) -> bool:
    """Whether some rows are not compared with some items."""
    return comparison is not None and comparison.excluded.shape[0] > 0


def _without(matrix: Tensor, comparison: Comparison | None) -> Tensor:
    """The matrix with −inf where rows are not compared; it is changed in place, since nobody else has it."""
    if comparison is None or not _excludes(comparison):
        return matrix
    at = (comparison.excluded[:, 0], comparison.excluded[:, 1])
    return matrix.index_put_(at, matrix.new_tensor(-torch.inf))


def own_first(matrix: Tensor) -> Tensor:
    """A square matrix with each row's diagonal element moved to column 0, the others in order."""
    size, own = matrix.shape[0], matrix.diagonal().unsqueeze(1)
    if size < 2:
        # No row has another; column 0 is there also without rows.
        return own
    # Without its first element a flat square matrix has the diagonal at every (size + 1)-th place.
    others = matrix.flatten()[1:].view(size - 1, size + 1)[:, :-1].reshape(size, size - 1)
    return torch.cat([own, others], dim=1)
