"""A synthetic log of a shop: who was shown what, clicked and bought, in the order of time.

Users have tastes, items have a category, a price and a quality, and interest moves: a user goes on with
the category that she clicked last, and often with the item that follows the one she clicked. So a table of
ids learns part of the clicks, a history learns more, and a sequence model can tell what comes next. The
probability of every click is known, and with it the best AUC that any model can reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from recgrad.synth.clicks import auc, sigmoid

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STEPS = 40  # impressions of a user
CATEGORIES = 12
ITEMS_PER_CATEGORY = 25
NUM_ITEMS = CATEGORIES * ITEMS_PER_CATEGORY
HISTORY = 10
LATENT_DIM = 4
DAYS = 7
FIRST_SECOND = 1_767_225_600  # 2026-01-01
NAMES = (
    "shoes",
    "shirts",
    "coats",
    "hats",
    "books",
    "games",
    "music",
    "films",
    "lamps",
    "chairs",
    "tools",
    "toys",
)
DEVICES = ("phone", "tablet", "desktop")
COUNTRIES = ("de", "es", "fr", "it", "no", "pl", "se", "uk")


@dataclass(frozen=True)
class Shop:
    """What a shop's log holds: a row for each impression, by time, and a table of all items."""

    log: pa.Table
    items: pa.Table
    best_auc: float


def shop_log(rows: int, seed: int = 0) -> Shop:
    """Draw a log of about `rows` rows: 40 impressions for each user, over seven days.

    Columns: `time` (seconds), `user_id`, `item_id`, `category`, `price`, `device`, `country`, `recent` (the
    items that the user clicked before, newest first), `click` and `purchase`.
    """
    if rows < STEPS:
        raise ValueError(f"rows must be at least {STEPS}, got {rows}")
    rng = np.random.default_rng([seed, 9])
    users = rows // STEPS
    tastes = rng.normal(size=(users, LATENT_DIM))
    wants = tastes @ rng.normal(0, 0.5, (LATENT_DIM, CATEGORIES))  # of each category, by each user
    quality = rng.normal(0, 0.8, NUM_ITEMS)
    price: Floats = np.round(np.exp(rng.normal(3, 0.8, NUM_ITEMS)), 2).astype(np.float64)
    device = rng.integers(0, len(DEVICES), users)
    country = rng.integers(0, len(COUNTRIES), users)
    recent = np.full((users, HISTORY), -1, dtype=np.int64)
    columns: dict[str, list[npt.NDArray[np.generic]]] = {
        name: [] for name in ("time", "user_id", "item_id", "recent", "chance", "click", "purchase")
    }
    # Visits of a user begin anywhere in the week and follow each other within it.
    seconds = np.sort(rng.integers(0, DAYS * 86_400, (users, STEPS)), axis=1)
    everyone = np.arange(users)
    for step in range(STEPS):
        item = _shown(rng, wants, recent)
        logit = -3.2 + quality[item] + 0.9 * wants[everyone, _category(item)]
        logit += 4.0 * _share(recent, item) + 1.5 * (item == _follower(recent[:, 0]))
        logit += np.where(device == 2, 0.3, 0.0)
        chance = sigmoid(logit)
        click = rng.random(users) < chance
        bought = click & (
            rng.random(users) < sigmoid(0.4 - 0.6 * np.log(price[item] / 20) + 0.5 * quality[item])
        )
        for name, values in zip(
            columns, (seconds[:, step], everyone, item, recent.copy(), chance, click, bought)
        ):
            columns[name].append(values)
        recent = np.where(click[:, None], np.column_stack([item, recent[:, :-1]]), recent)
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.argsort(whole["time"], kind="stable")
    whole = {name: values[order] for name, values in whole.items()}
    best = auc(whole["chance"].astype(np.float64), whole["click"].astype(np.float64))
    return Shop(_log(whole, price, device, country), _items(price), best)


def write_days(shop: Shop, folder: Path) -> list[Path]:
    """Write the log as a file a day: 20260101.parquet and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    day = (shop.log["time"].to_numpy() - FIRST_SECOND) // 86_400
    paths = []
    for number in range(DAYS):
        paths.append(folder / f"{20260101 + number}.parquet")
        pa.parquet.write_table(shop.log.filter(pa.array(day == number)), paths[-1])
    return paths


def _shown(rng: np.random.Generator, wants: Floats, recent: Ints) -> Ints:
    """What follows each user's last click, more of its category, of one that she likes, or anything."""
    users = len(recent)
    draw = rng.random(users)
    liked = np.argmax(wants + rng.gumbel(size=wants.shape), axis=1)
    last = recent[:, 0]
    category = np.where((draw < 0.5) & (last >= 0), _category(last), liked)
    category = np.where(draw > 0.8, rng.integers(0, CATEGORIES, users), category)
    # Of a category the first items are shown most.
    rank = (ITEMS_PER_CATEGORY * rng.random(users) ** 2).astype(np.int64)
    drawn = category * ITEMS_PER_CATEGORY + rank
    return np.where((draw < 0.3) & (last >= 0), _follower(last), drawn)


def _category(items: Ints) -> Ints:
    return items // ITEMS_PER_CATEGORY


def _follower(items: Ints) -> Ints:
    """The item that many go on with: the next one of the category, in a ring."""
    category = _category(items)
    return category * ITEMS_PER_CATEGORY + (items + 1) % ITEMS_PER_CATEGORY


def _share(recent: Ints, item: Ints) -> Floats:
    """The share of the history that is of the item's category; 0 of an empty one."""
    known = recent >= 0
    same = (_category(recent) == _category(item)[:, None]) & known
    share: Floats = same.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return share


def _log(whole: dict[str, npt.NDArray[np.generic]], price: Floats, device: Ints, country: Ints) -> pa.Table:
    users, items = whole["user_id"].astype(np.int64), whole["item_id"].astype(np.int64)
    recent = whole["recent"].astype(np.int64)
    known = recent >= 0
    offsets = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(np.int32)
    return pa.table(
        {
            "time": whole["time"].astype(np.int64) + FIRST_SECOND,
            "user_id": users,
            "item_id": items,
            "category": np.array(NAMES)[_category(items)],
            "price": price[items],
            "device": np.array(DEVICES)[device[users]],
            "country": np.array(COUNTRIES)[country[users]],
            "recent": pa.ListArray.from_arrays(offsets, pa.array(recent[known])),
            "click": whole["click"].astype(np.int64),
            "purchase": whole["purchase"].astype(np.int64),
        }
    )


def _items(price: Floats) -> pa.Table:
    items = np.arange(NUM_ITEMS)
    return pa.table({"item_id": items, "category": np.array(NAMES)[_category(items)], "price": price})
