"""Write gowalla's files (a line a user: the user, then places) as tables for the configs beside this program.

python examples/gowalla.py SOURCE TARGET

train.parquet, test.parquet   a row a user: user_id, visited (in training), item_id (in training, or to find)
pairs.parquet                 a few rows a user: one of her places as item_id, the others as visited
users.parquet, items.parquet  every user with visited, every place with its visits
sampler.txt                   the places, as samplers read them
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PAIRS, LONGEST = 4, 50  # rows of a user in pairs.parquet, and places of histories
Places = dict[int, list[int]]


def read(*files: Path) -> Places:
    """The places of each user."""
    found: Places = {}
    for file in files:
        for line in file.read_text().splitlines():
            user, *places = map(int, line.split()) if line.strip() else (-1,)
            if places:
                found.setdefault(user, []).extend(places)
    return found


def a_row_a_user(users: list[int], visited: Places, wanted: Places) -> pa.Table:
    """Users with what they have visited, and what is learned or to be found."""
    ids = pa.list_(pa.int64())
    return pa.table(
        {
            "user_id": users,
            "visited": pa.array([visited.get(user, []) for user in users], ids),
            "item_id": pa.array([wanted[user] for user in users], ids),
        }
    )


def pairs(users: list[int], visited: Places, rng: np.random.Generator) -> pa.Table:
    """Some places of each user, each with a history of others."""
    rows: list[tuple[int, list[int], int]] = []
    for user in users:
        order = rng.permutation(visited[user]).tolist()
        for place in order[:PAIRS]:
            rows.append((user, [other for other in order if other != place][:LONGEST], place))
    names, histories, items = zip(*(rows[i] for i in rng.permutation(len(rows))))
    ids = pa.list_(pa.int64())
    columns = {"user_id": names, "visited": pa.array(histories, ids), "item_id": items}
    return pa.table({**columns, "label": np.ones(len(rows), np.int64)})


def main(source: str, target: str) -> None:
    """Write all tables."""
    folder, out = Path(source), Path(target)
    out.mkdir(parents=True, exist_ok=True)
    train, test = read(folder / "train.txt", folder / "valid.txt"), read(folder / "test.txt")
    rng = np.random.default_rng(0)
    learned = rng.permutation(list(train)).tolist()
    size = 1 + max(max(places) for part in (train, test) for places in part.values())
    visits = np.bincount([place for places in train.values() for place in places], minlength=size)
    tables = {
        "train": a_row_a_user(learned, train, train),
        "test": a_row_a_user(list(test), train, test),
        "pairs": pairs(learned, train, rng),
        "users": a_row_a_user(list(test), train, test).select(["user_id", "visited"]),
        "items": pa.table({"item_id": np.arange(size), "visits": visits}),
    }
    for name, table in tables.items():
        pq.write_table(table, out / f"{name}.parquet")
    # id, weight, attributes. Drawn by their visits, popular places would be learned as rare ones; drawn
    # evenly, their popularity is learned as well.
    rows = [f"{item}\t1\t{item}" for item in range(size)]
    (out / "sampler.txt").write_text("\n".join(["id:int64\tweight:float\tattrs:string", *rows, ""]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
