"""SASRec of RecTools on Beauty: seconds of steps, or after each epoch its Hit@10 and NDCG@10. Prints JSON.

    PYTHON benchmarks/peers/rectools_sasrec.py Beauty.txt --steps 8 | --epochs 2 [--threads 1]

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


def read(path: str, held_back: int) -> tuple[pd.DataFrame, dict[int, int]]:
    """Events but for the last few of each user, and the first one of these."""
    users, items, times, following = [], [], [], {}
    with open(path) as file:
        for line in file:
            user, *own = map(int, line.split())
            following[user] = own[-held_back]
            for i, item in enumerate(own[:-held_back]):
                users.append(user)
                items.append(item)
                times.append(i)
    frame = pd.DataFrame({Columns.User: users, Columns.Item: items, Columns.Weight: 1.0})
    frame[Columns.Datetime] = pd.to_datetime(times, unit="D")
    return frame, following


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    seed_everything(1, verbose=False)
    train, valid_items = read(args.path, 2)
    longer, test_items = read(args.path, 1)

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
        n_heads=2,
        n_factors=64,
        dropout_rate=0.5,
        session_max_len=50,
        loss="softmax",
        lr=0.001,
        batch_size=128,
        get_trainer_func=trainer,
    )
    dataset, histories = Dataset.construct(train), Dataset.construct(longer)
    if args.steps:
        model.fit(dataset)
        print(json.dumps({"seconds": SECONDS[WARM_UP:]}))
        return
    for epoch in range(1, args.epochs + 1):
        begin = time.process_time()
        model.fit_partial(dataset, min_epochs=1, max_epochs=1)
        found: dict[str, Any] = {"epoch": epoch, "CPU seconds": round(time.process_time() - begin, 1)}
        found["valid"] = quality(model, dataset, valid_items)
        found["test"] = quality(model, histories, test_items)
        print(json.dumps(found), flush=True)


def quality(model: SASRecModel, dataset: Dataset, following: dict[int, int]) -> dict[str, float]:
    """Hit@10 and NDCG@10 of each user's next item, over all items that she has not seen."""
    lists = model.recommend(list(following), dataset, k=10, filter_viewed=True)
    hits = lists[lists[Columns.Item] == lists[Columns.User].map(following)][Columns.Rank]
    gain = sum(1 / math.log2(1 + rank) for rank in hits)
    return {"Hit@10": round(len(hits) / len(following), 4), "NDCG@10": round(gain / len(following), 4)}


if __name__ == "__main__":
    main()
