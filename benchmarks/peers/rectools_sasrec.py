"""SASRec of RecTools on Beauty: seconds of steps, and after whole epochs Hit@10 and NDCG@10. Prints JSON.

    PYTHON benchmarks/peers/rectools_sasrec.py Beauty.txt --steps 8 | --epochs 2

PYTHON is that of an environment with `pip install 'rectools[torch]'`; nothing of Recgrad is imported.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import Any

import pandas as pd
import torch
from pytorch_lightning import Callback, Trainer, seed_everything
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel

WARM_UP = 2


SECONDS: list[float] = []
"""Of each step; not the callback's, for RecTools copies the trainer with its callbacks."""


class Clock(Callback):  # type: ignore[misc]
    """Notes the seconds of each training step with the loading of its batch."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def on_train_epoch_start(self, *_: Any) -> None:
        self._begin = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        now = time.perf_counter()
        SECONDS.append(now - self._begin)
        self._begin = now


def read(path: str) -> tuple[pd.DataFrame, dict[int, int]]:
    """Events but for the last two of each user, and the last one of each."""
    users, items, times, last = [], [], [], {}
    with open(path) as file:
        for line in file:
            user, *own = map(int, line.split())
            last[user] = own[-1]
            for i, item in enumerate(own[:-2]):
                users.append(user)
                items.append(item)
                times.append(i)
    frame = pd.DataFrame({Columns.User: users, Columns.Item: items, Columns.Weight: 1.0})
    frame[Columns.Datetime] = pd.to_datetime(times, unit="D")
    return frame, last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    seed_everything(1, verbose=False)
    frame, last = read(args.path)

    def trainer() -> Trainer:
        return Trainer(
            max_epochs=1 if args.steps else args.epochs,
            limit_train_batches=args.steps + WARM_UP if args.steps else 1.0,
            accelerator="cpu",
            callbacks=[Clock()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    model = SASRecModel(
        n_blocks=2,
        n_heads=1,
        n_factors=64,
        dropout_rate=0.5,
        session_max_len=50,
        loss="softmax",
        lr=0.001,
        batch_size=128,
        get_trainer_func=trainer,
    )
    dataset = Dataset.construct(frame)
    model.fit(dataset)
    found: dict[str, Any] = {"seconds": SECONDS[WARM_UP:]}
    if not args.steps:
        found.update(quality(model, dataset, last))
    print(json.dumps(found))


def quality(model: SASRecModel, dataset: Dataset, last: dict[int, int]) -> dict[str, float]:
    """Hit@10 and NDCG@10 of each user's last item, over all items that she has not seen."""
    lists = model.recommend(list(last), dataset, k=10, filter_viewed=True)
    hits = lists[lists[Columns.Item] == lists[Columns.User].map(last)][Columns.Rank]
    return {"hit": len(hits) / len(last), "ndcg": sum(1 / math.log2(1 + rank) for rank in hits) / len(last)}


if __name__ == "__main__":
    main()
