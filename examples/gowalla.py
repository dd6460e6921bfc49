"""Write gowalla's files (a line a user: the user, then items) as tables of pairs, and its items.

python examples/gowalla.py SOURCE TARGET
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def pairs(*files: Path) -> pa.Table:
    """Every user with every item of hers."""
    lines = [line.split() for file in files for line in file.read_text().splitlines() if line.strip()]
    users = np.repeat([int(line[0]) for line in lines], [len(line) - 1 for line in lines])
    return pa.table({"user_id": users, "item_id": [int(item) for line in lines for item in line[1:]]})


def main(source: str, target: str) -> None:
    """Training pairs shuffled, test pairs, users, items with how often they were visited."""
    folder, out = Path(source), Path(target)
    out.mkdir(parents=True, exist_ok=True)
    train, test = pairs(folder / "train.txt", folder / "valid.txt"), pairs(folder / "test.txt")
    train = train.take(pa.array(np.random.default_rng(0).permutation(train.num_rows)))
    size = 1 + max(int(np.max(table["item_id"].to_numpy())) for table in (train, test))
    visits = np.bincount(train["item_id"].to_numpy(), minlength=size)
    tables = {
        "train": train,
        "test": test,
        "users": pa.table({"user_id": np.unique(test["user_id"].to_numpy())}),
        "items": pa.table({"item_id": np.arange(size), "visits": visits}),
    }
    for name, table in tables.items():
        pq.write_table(table, out / f"{name}.parquet")
    # The sampler's table: id, weight, attributes. Drawn by their visits, popular places would be learned
    # as if they were rare; drawn evenly, their popularity is learned as well.
    rows = [f"{item}\t1\t{item}" for item in range(size)]
    (out / "sampler.txt").write_text("\n".join(["id:int64\tweight:float\tattrs:string", *rows, ""]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
