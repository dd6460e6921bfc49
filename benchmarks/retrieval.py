"""Search, filters and evaluation over whole catalogues against named peers on the same vectors.

    python benchmarks/retrieval.py [--json FILE] [--rounds N] [--items N] [--only search,filter,training]

Each comparison is first checked to find the same items; rounds are interleaved and medians compared.
Draws of samplers and evaluation ("training") need gowalla in ../shared/data and are left out without it.
How good recommendations are there: benchmarks/gowalla.py.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from google.protobuf import text_format
from results.bars import Bar, describe_bar, write_bars

import recgrad
from recgrad.config import PipelineConfig
from recgrad.retrieval.exact import PackedVectors
from recgrad.serving.index import build_index

DIM, QUERIES, K, BATCH, ITEMS = 64, 1000, 100, 2048, 40981
EDGES = "userid:int64\titemid:int64\tweight:float"
GOWALLA = Path(__file__).resolve().parents[1] / "../shared/data/gowalla"


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def medians(rounds: int, *functions: Callable[[], Any]) -> list[float]:
    """The median seconds of each function, called in turn `rounds` times."""
    times = [[seconds(function) for function in functions] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times)]


def against(ours: float, peer: float) -> str:
    return f"{ours:.2f} s against {peer:.2f} s"


def drawn(items: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((items, DIM), np.float32), rng.standard_normal((QUERIES, DIM), np.float32)


def check_same(
    found: np.ndarray, other: np.ndarray, vectors: np.ndarray, queries: np.ndarray, peer: str
) -> None:
    """The same items, but for such whose exact scores are closer than float32 tells apart."""
    for row in range(len(found)):
        for item in np.setxor1d(found[row], other[row]):
            last = vectors[found[row, -1]].astype(np.float64) @ queries[row]
            assert abs(vectors[item].astype(np.float64) @ queries[row] - last) < 1e-4, (peer, row, item)


def exact_search(rounds: int, items: int) -> list[Bar]:
    import faiss

    vectors, queries = drawn(items)
    packed, flat = PackedVectors(vectors), faiss.IndexFlatIP(DIM)
    flat.add(vectors)
    faiss.omp_set_num_threads(torch.get_num_threads())
    a, b = torch.from_numpy(queries), torch.from_numpy(vectors).t()

    def by_torch() -> np.ndarray:
        # A matrix of all scores would take 4 GB.
        return torch.cat([(a[i : i + 250] @ b).topk(K).indices for i in range(0, QUERIES, 250)]).numpy()

    found = packed.search(queries, K).items
    check_same(found, flat.search(queries, K)[1], vectors, queries, "faiss")
    check_same(found, by_torch(), vectors, queries, "torch")
    ours, theirs, torchs = medians(
        rounds, lambda: packed.search(queries, K), lambda: flat.search(queries, K), by_torch
    )
    what = f"exact top-{K} of {items:,} × {DIM} for {QUERIES:,} users: time over"
    return [
        Bar(f"{what} IndexFlatIP", ours / theirs, 1, at_least=False, note=against(ours, theirs)),
        Bar(f"{what} torch.matmul + topk", ours / torchs, 1, at_least=False, note=against(ours, torchs)),
    ]


def filtered_search(rounds: int, items: int) -> list[Bar]:
    vectors, queries = drawn(items)
    table = pa.table({"id": np.arange(items), "group": np.random.default_rng(1).integers(0, 20, items)})
    with tempfile.TemporaryDirectory() as folder:
        index = build_index(Path(folder) / "index", table, vectors, id_field="id")

        def search(condition: str | None) -> np.ndarray:
            return index.view(condition).search(queries, K).items

        found = search("group == 3")
        assert (found >= 0).all()
        assert (table["group"].to_numpy()[found] == 3).all()
        plain, filtered = medians(rounds, lambda: search(None), lambda: search("group == 3"))
    name = "recommend with a filter of 5 %, filter included: time over that without"
    return [Bar(name, filtered / plain, 1.5, at_least=False, note=against(filtered, plain))]


CONFIG = """
train_input_path: "{folder}/train.parquet"
eval_input_path: "{folder}/test.parquet"
model_dir: "{folder}/model"
train_config {{
  sparse_optimizer {{ adam_optimizer {{ lr: 0.001 }} constant_learning_rate {{}} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.001 }} constant_learning_rate {{}} }}
  num_epochs: 1 use_tensorboard: false
}}
eval_config {{ catalogue {{
  item_input_path: "{folder}/items.parquet" item_id_field: "item_id" user_id_field: "user_id" top_k: 20
}} }}
data_config {{
  batch_size: 2048 dataset_type: ParquetDataset fg_mode: FG_NORMAL num_workers: 1 shuffle: true
  negative_sampler {{
    input_path: "{folder}/items.txt" num_sample: 1024 attr_fields: "item_id" item_id_field: "item_id"
  }}
}}
feature_configs {{ id_feature {{
  feature_name: "user_id" expression: "user:user_id" num_buckets: 29858 embedding_dim: 64
}} }}
feature_configs {{ id_feature {{
  feature_name: "item_id" expression: "item:item_id" num_buckets: 40981 embedding_dim: 64
}} }}
model_config {{
  feature_groups {{ group_name: "user" feature_names: "user_id" group_type: DEEP }}
  feature_groups {{ group_name: "item" feature_names: "item_id" group_type: DEEP }}
  dssm {{
    user_tower {{ input: "user" mlp {{ hidden_units: 64 }} }}
    item_tower {{ input: "item" mlp {{ hidden_units: 64 }} }}
    output_dim: 64 similarity: COSINE temperature: 0.1
  }}
  losses {{ softmax_cross_entropy {{}} }}
}}
"""


def pairs(*names: str) -> pa.Table:
    """Users and items of files with a line a user."""
    users, items = [], []
    for name in names:
        for line in (GOWALLA / name).read_text().splitlines():
            user, *own = map(int, line.split())
            users += [user] * len(own)
            items += own
    return pa.table({"user_id": users, "item_id": items})


ITEM_SIDE = 'num_sample: 1024 attr_fields: "item_id" item_id_field: "item_id"'
USER_SIDE = (
    f'user_input_path: "none" user_id_field: "user_id" item_input_path: "{{folder}}/items.txt" {ITEM_SIDE}'
)
POSITIVE = 'pos_edge_input_path: "{folder}/edges.txt"'
HARD = 'hard_neg_edge_input_path: "{folder}/hard.txt" num_hard_sample: 1'
SAMPLERS = {
    "negative_sampler": f'input_path: "{{folder}}/items.txt" {ITEM_SIDE}',
    "negative_sampler_v2": f"{USER_SIDE} {POSITIVE}",
    "hard_negative_sampler": f"{USER_SIDE} {HARD}",
    "hard_negative_sampler_v2": f"{USER_SIDE} {POSITIVE} {HARD}",
}


def write_tables(folder: str, train: pa.Table) -> None:
    """The tables of samplers: items by their visits, edges of users, and two hard items of each user."""
    users, items = train["user_id"].to_numpy(), train["item_id"].to_numpy()
    counts = np.bincount(items, minlength=ITEMS)
    lines = [f"{item}\t{count}\t{item}" for item, count in enumerate(counts)]
    Path(f"{folder}/items.txt").write_text("\n".join(["id:int64\tweight:float\tattrs:string", *lines]))
    every = np.unique(users).repeat(2)
    hard = np.random.default_rng(0).integers(0, ITEMS, len(every))
    for name, left, right in (("edges", users, items), ("hard", every, hard)):
        lines = [f"{user}\t{item}\t1" for user, item in zip(left.tolist(), right.tolist())]
        Path(f"{folder}/{name}.txt").write_text("\n".join([EDGES, *lines]))


def drawing(config: PipelineConfig, folder: str, features: Any, rounds: int, step: float) -> list[Bar]:
    """What a batch costs more with each sampler, draws and encoding of what was drawn, over a step."""
    from recgrad.data.loader import build_loader
    from recgrad.models.targets import find_targets

    loaders = []
    for name in ("", *SAMPLERS):
        one = PipelineConfig()
        one.CopyFrom(config)
        one.data_config.num_workers = 0
        one.data_config.ClearField("negative_sampler")
        if name:
            text = f"{name} {{{{ {SAMPLERS[name]} }}}}".format(folder=folder)
            text_format.Merge(text, one.data_config)
        loader = build_loader(
            one, one.train_input_path, features=features, targets=find_targets(one), training=True
        )
        loaders.append(loader)

    def batches(loader: Any) -> int:
        return sum(batch.size > 0 for batch, _ in zip(loader.epoch(0), range(100)))

    without, *times = medians(max(rounds, 3), *(lambda loader=loader: batches(loader) for loader in loaders))
    bars = []
    for name, taken in zip(SAMPLERS, times, strict=True):
        cost = max(taken - without, 0) / 100
        note = f"{1e3 * cost:.2f} ms against {1e3 * step:.1f} ms"
        what = f"draws of {name}: time over a DSSM step"
        bars.append(Bar(what, cost / step, 0.05, at_least=False, note=note))
    return bars


def training(rounds: int, items: int) -> list[Bar]:
    """Draws over a step, and evaluation over an epoch, of gowalla, whatever the size of the searches."""
    if not GOWALLA.exists():
        print("gowalla is not in ../shared/data; draws and evaluation are left out")
        return []
    from recgrad.data.features.build import features_of
    from recgrad.training.catalogue import CatalogueEvaluation
    from recgrad.training.run import load_trained

    with tempfile.TemporaryDirectory() as folder:
        train = pairs("train.txt", "valid.txt")
        pq.write_table(train, f"{folder}/train.parquet")
        pq.write_table(pairs("test.txt"), f"{folder}/test.parquet")
        pq.write_table(pa.table({"item_id": np.arange(ITEMS)}), f"{folder}/items.parquet")
        write_tables(folder, train)
        config = text_format.Parse(CONFIG.format(folder=folder), PipelineConfig())
        trained = PipelineConfig()
        trained.CopyFrom(config)
        trained.ClearField("eval_config")
        trained.eval_input_path = ""
        result = recgrad.train(trained)
        epoch = train.num_rows / result.samples_per_sec
        loaded = load_trained(trained, result.model_dir, device=torch.device("cpu"))
        task, features = loaded.task, loaded.features
        assert [f.name for f in features] == [f.name for f in features_of(config)]

        def evaluate() -> dict[str, float]:
            return CatalogueEvaluation(config, features, task.model).run()

        draws = drawing(config, folder, features, rounds, BATCH / result.samples_per_sec)
        taken = statistics.median(seconds(evaluate) for _ in range(rounds))
    name = "evaluation of 29,858 users × 40,981 items, files included: time over an epoch"
    return [*draws, Bar(name, taken / epoch, 1, at_least=False, note=against(taken, epoch))]


PARTS = {"search": exact_search, "filter": filtered_search, "training": training}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each pair (default: %(default)s)")
    parser.add_argument("--items", type=int, default=1_000_000, help="of the searches (default: %(default)s)")
    parser.add_argument(
        "--only", default=",".join(PARTS), metavar="A,B", help="parts to run (default: %(default)s)"
    )
    args = parser.parse_args()
    names = args.only.split(",")
    if odd := [name for name in names if name not in PARTS]:
        parser.error(f"--only: no part '{odd[0]}' (there are: {', '.join(PARTS)})")
    bars: list[Bar] = []
    for name in names:
        found = PARTS[name](args.rounds, args.items)
        for bar in found:
            print(describe_bar(bar), flush=True)
        bars += found
    write_bars(args.json, bars)


if __name__ == "__main__":
    main()
