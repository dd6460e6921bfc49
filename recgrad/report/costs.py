"""What each ranking model costs for a config's features: parameters, multiply-adds per row, speed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.batch import Batch, KeyedDense, KeyedJagged
from recgrad.data.features.build import features_of
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.errors import RecgradError, nearest
from recgrad.models.base import Model
from recgrad.models.build import build_model
from recgrad.models.sketches import Fields, sketch, sketched
from recgrad.optim.sparse import Adagrad

ROWS, POSITIONS = 512, 50
SECONDS = 0.4
"""How long each model is timed."""


@dataclass(frozen=True)
class Cost:
    """What a model costs.

    Attributes:
        name: config name.
        parameters: of the layers.
        table_parameters: of all tables, if every row were used.
        multiply_adds: per row, of matrix products, forward.
        rows_per_sec: trained on this machine; None if it was not timed.
        problem: why it does not fit the features; "" if it does.
    """

    name: str
    parameters: int = 0
    table_parameters: int = 0
    multiply_adds: int = 0
    rows_per_sec: float | None = None
    problem: str = ""


def model_costs(
    config: PipelineConfig, *, timed: bool = False, names: Sequence[str] | None = None
) -> Iterator[Cost]:
    """The cost of each model that there is a sketch of, over a config's features.

    Of its sequences only one is read, by models of a history: the first whose table a row's id shares.
    """
    specs = [feature.spec for feature in features_of(config)]
    rows = [spec for spec in specs if not spec.sequence]
    fields = fields_of(rows, list(config.data_config.label_fields))
    batch = random_batch(rows, fields.labels)
    if (history := history_of(specs)) is not None:
        fields = replace(fields, history=(history[0].name, history[1].name))
        batch = with_history(batch, history[1])
        rows = [*rows, history[1]]
    for name in sketched() if names is None else names:
        if name not in sketched():
            raise RecgradError(f"list: no ranking model '{name}'{nearest(name, sketched())}")
        try:
            model = _build(sketch(name, fields), rows, fields)
        except (RecgradError, ValueError) as error:
            yield Cost(name, problem=str(error).partition("\n")[0])
            continue
        yield _cost(name, model, batch, timed)


def fields_of(specs: Sequence[FeatureSpec], labels: Sequence[str]) -> Fields:
    """The features by kind; embeddings have the width that most of them have."""
    ids = [spec for spec in specs if spec.kind is Kind.SPARSE]
    if not ids:
        raise RecgradError("list: the config has no feature with ids, which all of these models need")
    dim = Counter(spec.embedding_dim for spec in ids).most_common(1)[0][0]
    numbers = [spec.name for spec in specs if spec.kind is Kind.DENSE]
    first = labels[0] if labels else "label"
    second = labels[1] if len(labels) > 1 else "another"
    return Fields([spec.name for spec in ids], numbers, dim, [first, second])


def random_batch(specs: Sequence[FeatureSpec], labels: Sequence[str], rows: int = ROWS) -> Batch:
    """Rows of random ids, one of each feature, and of random numbers."""
    draw = torch.Generator().manual_seed(0)
    ids = [spec for spec in specs if spec.kind is Kind.SPARSE]
    dense = [spec for spec in specs if spec.kind is Kind.DENSE]
    values = [torch.randint(spec.num_rows, (rows,), generator=draw) for spec in ids]
    weights = torch.ones(rows * len(ids)) if any(spec.weighted for spec in ids) else None
    widths = tuple(spec.value_dim for spec in dense)
    return Batch(
        rows,
        KeyedDense(
            tuple(spec.name for spec in dense), widths, torch.randn(rows, sum(widths), generator=draw)
        ),
        KeyedJagged(
            tuple(spec.name for spec in ids),
            torch.cat(values),
            torch.ones(rows * len(ids), dtype=torch.int32),
            (rows,) * len(ids),
            weights,
            True,
        ),
        labels={label: torch.randint(2, (rows,), generator=draw).float() for label in labels},
    )


def history_of(specs: Sequence[FeatureSpec]) -> tuple[FeatureSpec, FeatureSpec] | None:
    """An id of the row and a sequence of ids in its table; None if there are none."""
    ids = [spec for spec in specs if spec.kind is Kind.SPARSE and spec.embedding_dim]
    by_table = {spec.embedding_name: spec for spec in ids if not spec.sequence}
    for spec in ids:
        if spec.sequence and spec.embedding_name in by_table:
            return by_table[spec.embedding_name], spec
    return None


def with_history(batch: Batch, spec: FeatureSpec) -> Batch:
    """The batch with POSITIONS random ids of a sequence in each row."""
    count = POSITIONS * batch.size
    ids = torch.randint(spec.num_rows, (count,), generator=torch.Generator().manual_seed(1))
    ones = torch.ones(count, dtype=torch.int32)
    weights = torch.ones(count) if spec.weighted else None
    return replace(
        batch,
        sequence_lengths={spec.name: torch.full((batch.size,), POSITIONS, dtype=torch.int32)},
        sequence_sparse=KeyedJagged((spec.name,), ids, ones, (count,), weights, True),
    )


def _build(config: ModelConfig, specs: Sequence[FeatureSpec], fields: Fields) -> Model:
    return build_model(config, specs, label_fields=list(fields.labels))


def _cost(name: str, model: Model, batch: Batch, timed: bool) -> Cost:
    counter = FlopCounterMode(display=False)
    with torch.no_grad():
        parts = model.eval().groups.gather(batch, model.engine)
        # In mixed precision attention runs on torch's operations, which are counted; kernels are not.
        with counter, torch.autocast("cpu", torch.bfloat16):
            model.dense_half(parts)
    tables = model.groups.plan.tables
    return Cost(
        name,
        parameters=sum(parameter.numel() for _, parameter in model.dense_named_parameters()),
        table_parameters=sum(table.num_rows * table.dim for table in tables),
        multiply_adds=counter.get_total_flops() // 2 // batch.size,
        rows_per_sec=_rows_per_sec(model.train(), batch) if timed else None,
    )


def _rows_per_sec(model: Model, batch: Batch) -> float:
    """Rows that are trained on in a second: lookup, forward, backward and both updates, the median step."""
    assert model.engine is not None
    dense = [parameter for _, parameter in model.dense_named_parameters()]
    optimizers = [torch.optim.Adam(dense, lr=1e-3), Adagrad(model.engine, lr=0.01)]
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 4 or time.perf_counter() < end:
        started = time.perf_counter()
        outputs = model(batch)
        total = sum(model.own_losses(outputs).values(), torch.zeros(()))
        for task in model.tasks:
            for loss in task.losses:
                total = total + loss(outputs[task.logits], batch.labels[task.label_name])
        for optimizer in optimizers:
            optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        times.append(time.perf_counter() - started)
    return batch.size / sorted(times[1:])[len(times[1:]) // 2]
