"""One of several processes: feeds its share of the same rows to every metric and prints the values.

Run as `process_worker.py RANK WORLD STORE OUTPUT`; what it writes is a JSON of values by
scenario and metric.
"""

import inspect
import json
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from google.protobuf import text_format

from recgrad.config.messages import chosen, to_kwargs
from recgrad.config.proto.metric_pb2 import MetricConfig, TrainMetricConfig
from recgrad.losses.pareto import pareto_weights
from recgrad.losses.weighting import normalize_weights
from recgrad.metrics import build_metric, build_train_metric
from recgrad.metrics._torch_metric import torch_metric

ROWS = 1000
FLAT = [
    "auc {}",
    "auc { exact: true }",
    "mean_absolute_error {}",
    "mean_squared_error {}",
    "accuracy {}",
    "xauc {}",
    "xauc { exact: true }",
    "xauc { max_pairs: 3000 }",
    "normalized_entropy {}",
    "log_loss {}",
    "calibration {}",
]
KEYED = [
    "grouped_auc { grouping_key: 'u' }",
    "grouped_auc { grouping_key: 'u' weighting: IMPRESSIONS }",
    "grouped_xauc { grouping_key: 'u' }",
    "grouped_xauc { grouping_key: 'u' exact: true }",
    "recall_at_k { grouping_key: 'u' }",
    "ndcg_at_k { grouping_key: 'u' }",
    "hit_rate_at_k { grouping_key: 'u' }",
    "mrr { grouping_key: 'u' }",
]
SQUARE = ["recall_at_k {}", "ndcg_at_k {}", "hit_rate_at_k {}", "mrr {}"]
CLASSES = ["multiclass_auc {}", "multiclass_auc { exact: true }", "accuracy { top_k: 2 }"]
TRAIN = [
    "auc {}",
    "mean_absolute_error {}",
    "accuracy {}",
    "log_loss {}",
    "calibration {}",
    "normalized_entropy {}",
]
# Where the rows of each scenario are cut: uneven shares, and a rank without any.
SHARES = {
    "uneven": {1: [0, 1000], 2: [0, 130, 1000], 3: [0, 555, 557, 1000]},
    "empty": {1: [0, 1000], 2: [0, 1000, 1000], 3: [0, 0, 400, 1000]},
}


def columns() -> dict[str, torch.Tensor]:
    """The rows, the same in every process."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.randint(0, 2, (ROWS,), generator=generator)
    scores = (
        torch.rand(ROWS, generator=generator) * 0.6 + 0.3 * labels * torch.rand(ROWS, generator=generator)
    ).round(decimals=2)
    return {
        "scores": scores,
        "labels": labels,
        "keys": torch.randint(0, 90, (ROWS,), generator=generator),
        "square": torch.rand((ROWS, 8), generator=generator).round(decimals=1),
        "index": torch.randint(0, 8, (ROWS,), generator=generator),
        "classes": torch.rand((ROWS, 4), generator=generator).softmax(1),
        "class": torch.randint(0, 4, (ROWS,), generator=generator),
    }


def listed(value) -> list[float]:
    return [v.item() for v in value.values()] if isinstance(value, dict) else [value.item()]


def evaluated(texts, names, data, start, end, step, num_class=1) -> dict[str, list[float]]:
    """The values of metrics after this process's rows, given in updates of `step` rows."""
    values = {}
    for text in texts:
        for kind, build in (("plain", build_metric), ("torchmetrics", build_torch_metric)):
            metric = build(text_format.Parse(text, MetricConfig()), num_class=num_class)
            for at in range(start, end, step):
                metric.update(*(data[name][at : min(at + step, end)] for name in names))
            label = f"{text} of {num_class}, {kind}"
            values[label] = listed(metric.compute())
            # A second call, where some ranks have news and some have not, must not hang or change.
            assert values[label] == listed(metric.compute())
    return values


def build_torch_metric(config: MetricConfig, *, num_class: int) -> Any:
    """The metric as a torchmetrics.Metric."""
    kind = torch_metric(type(build_metric(config, num_class=num_class)))
    kwargs = to_kwargs(chosen(config, "metric")[1])
    if "num_class" in inspect.signature(kind).parameters:
        kwargs["num_class"] = num_class
    return kind(**kwargs)


def trained(data, shares, rank) -> dict[str, list[float]]:
    """Decayed metrics over 20 common steps of 50 rows, of which each process has its part."""
    values = {}
    for text in TRAIN:
        metric = build_train_metric(
            text_format.Parse(f"{text} decay_rate: 0.7 decay_step: 4", TrainMetricConfig())
        )
        seen = []
        for step in range(20):
            first, last = (50 * step + 50 * cut // ROWS for cut in shares[rank : rank + 2])
            if shares[rank] < shares[rank + 1]:  # a rank without rows makes no updates at all
                metric.update(data["scores"][first:last], data["labels"][first:last])
            if step % 7 == 2:
                seen += listed(metric.compute())
        values[f"train {text}"] = seen + listed(metric.compute())
    return values


def weights(data, start, end) -> dict[str, list[float]]:
    """Normalised weights and Pareto weights, which ranks must agree on."""
    normal = normalize_weights(data["scores"][start:end].double())
    largest = normal.max() if len(normal) else torch.zeros((), dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    x = torch.ones(8, dtype=torch.float64, requires_grad=True)
    # Each process's loss is its mean times its share, so that their mean is that of all rows.
    world = dist.get_world_size() if dist.is_initialized() else 1
    part = data["square"][start:end].double()
    tasks = [((part - t) * x).pow(2).sum() / ROWS * world for t in (0.1, 0.9)]
    return {"normalized": [largest.item()], "pareto": pareto_weights(tasks, [x]).tolist()}


def main(rank: int, world: int, store: str, output: str) -> None:
    warnings.simplefilter("error")
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
        )
    data, values = columns(), {}
    for scenario, shares in SHARES.items():
        start, end = shares[world][rank : rank + 2]
        found = evaluated(FLAT, ["scores", "labels"], data, start, end, 97)
        found |= evaluated(KEYED, ["scores", "labels", "keys"], data, start, end, 210)
        found |= evaluated(SQUARE, ["square", "index"], data, start, end, 300)
        found |= evaluated(CLASSES, ["classes", "class"], data, start, end, 1000, num_class=4)
        found |= trained(data, shares[world], rank)
        found |= weights(data, start, end)
        values[scenario] = found
    Path(output).write_text(json.dumps(values))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
