"""What a rank sends of the ids of a batch: of a key either each distinct id once, or all bags as they are.

rows               7 2 7 · 2 7
each id once       7 2              bags: two, of one id each; codes of the rows 0 1 0 −1 1 0 stay here
as they are        7 2 7 2 7        bags: six, of lengths    1 1 1 0 1 1, which are sent where not all are 1
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.embedding.engine import IdsLike
from recgrad.kernels.numbering import NOT_FEW, number_ids

Array = npt.NDArray[np.int64]
ROWS_OF_ID = 2  # rows that a distinct id must have on the average to pay for its numbering
WIDE = 8 // 4  # lengths in the place of an id


class Outgoing(NamedTuple):
    """The ids of a batch, by key.

    Attributes:
        rows: of the batch.
        bags: int64 [keys], that are sent.
        counts: int64 [keys], ids that are sent.
        lengths: int64 [keys], of bags that are sent: all, or none where each has one id.
        codes: int64 [keys], where the code of each row is, int32; 0 where a bag is a row.
        values: the ids of each key.
        row_lengths: int32 [keys, rows], or None where each bag has one id.
        kept: what the addresses are of.
    """

    rows: int
    bags: Array
    counts: Array
    lengths: Array
    codes: Array
    values: list[Tensor]
    row_lengths: Tensor | None
    kept: Any

    def packed(self, keys: Array) -> list[Tensor]:
        """What goes to one rank, int64: the ids of these keys, then two lengths in a number."""
        parts = [self.values[key] for key in keys]
        jagged = keys[self.lengths[keys] > 0]
        if len(jagged):
            assert self.row_lengths is not None
            flat = self.row_lengths[torch.from_numpy(jagged)].view(-1)
            parts.append(torch.nn.functional.pad(flat, (0, -len(flat) % WIDE)).view(torch.int64))
        return parts


def packed_size(counts: Array, lengths: Array) -> Array:
    """How long `packed` is, from [..., keys]."""
    size: Array = counts.sum(-1) + -(-lengths.sum(-1) // WIDE)
    return size


def pack_up(ids: IdsLike, counts: Array, distinct: npt.NDArray[np.bool_]) -> Outgoing:
    """What to send of these ids.

    Args:
        ids: of a batch, a bag for each row.
        counts: [keys], ids of each.
        distinct: [keys], whether distinct ids may be sent instead of bags.
    """
    keys, rows = len(ids.bag_counts), ids.bag_counts[0] if ids.bag_counts else 0
    values = ids.values.contiguous()
    starts = values.data_ptr() + 8 * (np.cumsum(counts) - counts)
    lengths = None if ids.single else ids.lengths.to(torch.int32).contiguous().view(keys, rows)
    at = np.zeros(keys, np.int64) if lengths is None else lengths.data_ptr() + 4 * rows * np.arange(keys)
    found = number_ids(rows, starts, at, rows // ROWS_OF_ID * distinct, ordered=False, leave_missing=True)
    few = found.counts != NOT_FEW
    bags, sent = np.where(few, found.counts, rows), np.where(few, found.counts, counts)
    parts = list(values.split_with_sizes(counts.tolist()))
    keys_of = torch.from_numpy(found.keys)
    for key in np.flatnonzero(few).tolist():
        parts[key] = keys_of[key, : bags[key]]
    codes = np.where(few, found.codes.ctypes.data + 4 * rows * np.arange(keys), 0)
    return Outgoing(
        rows, bags, sent, _sent_lengths(lengths, few, rows), codes, parts, lengths, (found, values)
    )


def _sent_lengths(lengths: Tensor | None, few: npt.NDArray[np.bool_], rows: int) -> Array:
    """How many lengths of each key are sent."""
    sent = np.zeros(len(few), np.int64)
    if lengths is not None and not few.all():
        others = np.flatnonzero(~few)
        of_others = lengths[torch.from_numpy(others)] if few.any() else lengths
        sent[others] = np.where((of_others == 1).all(1).numpy(), 0, rows)
    return sent
