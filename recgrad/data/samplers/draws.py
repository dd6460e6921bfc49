"""Draws from an item table that depend on a key alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recgrad.data.order import random_bits
from recgrad.data.samplers.alias import draw
from recgrad.data.samplers.items import ItemTable
from recgrad.errors import DataError

Ints = npt.NDArray[np.int64]
_NEGATIVES = 11
_ROUNDS = 8


def draw_items(items: ItemTable, count: int, key: tuple[int, ...]) -> Ints:
    """`count` rows of the table, drawn by weight with replacement."""
    return draw(items.keep, items.alias, random_bits(2 * count, _NEGATIVES, 0, *key).reshape(count, 2))


def draw_others(items: ItemTable, own: Ints, count: int, key: tuple[int, ...]) -> Ints:
    """`count` rows of the table, drawn by weight among items that are not in `own` (sorted keys).

    Draws of own items are drawn again. When own items hold nearly all the weight, the rest is
    drawn from the others directly.
    """
    rows = np.empty(0, np.int64)
    for attempt in range(_ROUNDS):
        missing = count - len(rows)
        bits = random_bits(2 * missing, _NEGATIVES, attempt, *key).reshape(missing, 2)
        drawn = draw(items.keep, items.alias, bits)
        rows = np.concatenate([rows, drawn[~among(items.keys[drawn], own)]])
        if len(rows) == count:
            return rows
    weights = np.where(among(items.keys, own), 0.0, items.weights)
    total = np.cumsum(weights)
    if not total[-1] > 0:
        raise DataError(
            f"data: every item of item table '{items.name}' that has weight is in the batch, so there is no "
            "negative to draw; use a smaller batch_size, or a larger table"
        )
    chance = (random_bits(count - len(rows), _NEGATIVES, _ROUNDS, *key) >> np.uint64(11)) * 2.0**-53
    return np.concatenate([rows, np.searchsorted(total, chance * total[-1], side="right")])


def draw_evenly(items: int, count: int, key: tuple[int, ...]) -> Ints:
    """`count` numbers below `items`, each as likely, with replacement."""
    bits = random_bits(count, _NEGATIVES, 0, *key)
    return ((bits >> np.uint64(32)) * np.uint64(items) >> np.uint64(32)).astype(np.int64)


def among(keys: Ints, own: Ints) -> npt.NDArray[np.bool_]:
    """Whether each key is in `own`, which is sorted."""
    if not len(own):
        return np.zeros(len(keys), np.bool_)
    return own[np.minimum(np.searchsorted(own, keys), len(own) - 1)] == keys


def distinct(keys: Ints) -> Ints:
    """The keys in ascending order, each once; for a batch's keys faster than NumPy's way by hashes."""
    ordered = np.sort(keys)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
