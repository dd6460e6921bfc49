"""One request of a user with many candidates, in a process of its own on one core: times as JSON.

python benchmarks/peers/one_request.py BUNDLE ROWS.parquet [ROUNDS]
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recgrad.serving.manifest import SCORE
from recgrad.serving.scorer import Scorer

CANDIDATES = 200
USER_IDS = 13  # id columns of the user; the numbers are the user's too
WARM = 100


def split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The first row's columns of the user, and all rows' columns of the items."""
    names = rows.schema.names
    users = [n for n in names if n.startswith("int_") or int(n.removeprefix("cat_")) < USER_IDS]
    return rows.slice(0, 1).select(users), rows.select([n for n in names if n not in users])


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    scorer = Scorer.load(sys.argv[1])
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    table = pq.read_table(Path(sys.argv[2]), columns=scorer.schema.names)
    user, items = split(table.slice(0, CANDIDATES).combine_chunks())
    every = pa.array(np.zeros(CANDIDATES, np.int64))
    whole = pa.table(
        {n: user[n].take(every) if n in user.schema.names else items[n] for n in table.schema.names}
    )
    whole = whole.combine_chunks()
    found, wanted = scorer.score_candidates(user, items), scorer.score(whole)
    np.testing.assert_allclose(found["probs"], wanted["probs"], rtol=0, atol=1e-6)
    part = scorer._parts[SCORE]
    inputs: dict[str, np.ndarray] = {}
    program, part.program = part.program, lambda feeds: inputs.update(feeds) or program(feeds)
    folding, part.folding = part.folding, None  # alone means the whole dense part
    scorer.score_candidates(user, items)
    part.program, part.folding = program, folding
    ours, alone = np.empty(rounds), np.empty(rounds)
    for i in range(-WARM, rounds):
        start = time.perf_counter()
        scorer.score_candidates(user, items)
        middle = time.perf_counter()
        program(inputs)
        end = time.perf_counter()
        if i >= 0:
            ours[i], alone[i] = middle - start, end - middle
    quantiles = {f"p{q}": float(np.percentile(ours, q)) for q in (50, 99)}
    print(json.dumps({**quantiles, "alone": float(np.median(alone))}))


if __name__ == "__main__":
    main()
