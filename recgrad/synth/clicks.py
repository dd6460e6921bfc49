"""A synthetic click dataset whose best reachable AUC is known.

Rows have the shape of Criteo's: 13 numeric and 26 categorical columns with zipf ids and
nulls, a user id for grouped metrics, a behaviour sequence and three labels:

- `label`: a click; depends on the numeric and categorical columns alone;
- `conversion`: happens only after a click, with a probability that shares part of the
  click's causes;
- `long_view`: depends on the click's causes and on how many items of `click_seq` are of the
  same type as the shown item `cat_0`.

The labels are drawn from a planted factorisation machine, so the probabilities that no
model can beat are known: their AUC on the written rows is the best reachable one. Only
frequent ids have an effect, so that a model can find all of it in a few hundred thousand
rows. Every block of rows has a generator of its own, seeded by (seed, part, block), so the
same seed gives the same bytes, and rows of any number stream in constant memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from recgrad.synth.config import deepfm_config

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NUM_NUMERIC = 13
CATEGORY_SIZES = (
    100_000, 20_000, 5_000, 1_000, 500, 200, 100, 50, 30, 20, 10, 10, 5,
    4, 3, 1_000, 2_000, 300, 40_000, 7_000, 60, 15, 24, 8, 6, 2,
)  # fmt: skip
USER_CATEGORIES = range(22, 26)  # columns that are properties of the user
NUM_USERS = 50_000
LABELS = ("label", "conversion", "long_view")
BLOCK_ROWS = 65_536

ZIPF_EXPONENT = 1.6
HEAD_IDS = 10  # ids of higher rank have no effect: nobody could learn it
LATENT_DIM = 4
INTERACTING = (1, 3, 6, 15, 22)
NULL_CATEGORIES = {5: 0.08, 9: 0.02, 17: 0.15}
NULL_NUMERICS = {2: 0.1, 7: 0.25}
ITEM_TYPES = 8
MAX_SEQUENCE = 30


@dataclass(frozen=True)
class SynthReport:
    """What was written, and the AUC that a perfect model reaches on the evaluation rows."""

    rows: int
    eval_rows: int
    seed: int
    format: str
    best_auc: dict[str, float]
    positive_rate: dict[str, float]


class PlantedModel:
    """The model that the labels are drawn from: linear and pairwise effects of frequent ids."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self.numeric_weights = rng.normal(0, 0.25, NUM_NUMERIC)
        self.id_weights = [rng.normal(0, 0.22, min(HEAD_IDS, size)) for size in CATEGORY_SIZES]
        self.id_vectors = [rng.normal(0, 0.55, (min(HEAD_IDS, size), LATENT_DIM)) for size in CATEGORY_SIZES]
        self.user_ranks = np.stack(
            [_zipf_ranks(rng, CATEGORY_SIZES[c], NUM_USERS) for c in USER_CATEGORIES], axis=1
        )
        self.conversion_numerics = rng.normal(0, 0.4, NUM_NUMERIC)
        self.user_types = rng.integers(0, ITEM_TYPES, NUM_USERS)

    def click_logit(self, numerics: Floats, ranks: Ints) -> Floats:
        """Linear effects plus Σ_{i<j} ⟨vᵢ, vⱼ⟩ over the interacting columns; rank −1 is a null."""
        logit = -1.6 + numerics @ self.numeric_weights
        total = np.zeros((len(ranks), LATENT_DIM))
        squares = np.zeros(len(ranks))
        for column in range(len(CATEGORY_SIZES)):
            rank = ranks[:, column]
            head = (rank >= 0) & (rank < HEAD_IDS)
            safe = np.where(head, rank, 0)
            logit += np.where(head, self.id_weights[column][safe], 0.0)
            if column in INTERACTING:
                vectors = np.where(head[:, None], self.id_vectors[column][safe], 0.0)
                total += vectors
                squares += (vectors**2).sum(axis=1)
        pairs: Floats = 0.5 * ((total**2).sum(axis=1) - squares)
        return logit + pairs


def write_synth(
    out: str | Path, rows: int, *, eval_rows: int | None = None, seed: int = 0, file_format: str = "parquet"
) -> SynthReport:
    """Write `rows` training rows and a tenth as many (at least 20,000) evaluation rows under `out`.

    Files: train.parquet and eval.parquet (or .csv), deepfm.config ready to train, and
    synth.json with the best reachable AUC of each label on the evaluation rows.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    if eval_rows is not None and eval_rows < 1:
        raise ValueError(f"eval_rows must be at least 1, got {eval_rows}")
    if file_format not in WRITERS:
        raise ValueError(f"file_format must be one of {sorted(WRITERS)}, got '{file_format}'")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    eval_rows = max(rows // 10, 20_000) if eval_rows is None else eval_rows
    model = PlantedModel(seed)
    WRITERS[file_format](folder / f"train.{file_format}", _blocks(model, seed, part=1, rows=rows))
    truths: list[dict[str, Floats]] = []
    WRITERS[file_format](
        folder / f"eval.{file_format}", _blocks(model, seed, part=2, rows=eval_rows, truths=truths)
    )
    columns = {name: np.concatenate([block[name] for block in truths]) for name in truths[0]}
    report = SynthReport(
        rows=rows,
        eval_rows=eval_rows,
        seed=seed,
        format=file_format,
        best_auc={name: auc(columns[f"p_{name}"], columns[name]) for name in LABELS},
        positive_rate={name: float(columns[name].mean()) for name in LABELS},
    )
    (folder / "synth.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    (folder / "deepfm.config").write_text(
        deepfm_config(folder, file_format, rows, NUM_NUMERIC, CATEGORY_SIZES)
    )
    return report


@dataclass(frozen=True)
class _Block:
    """Columns of a block before they become Arrow arrays."""

    users: Ints
    numerics: Floats
    ranks: Ints
    sequence_items: Ints
    sequence_lengths: Ints

    @cached_property
    def type_share(self) -> Floats:
        """The share of each row's sequence that has the type of its item; 1/8 when it is empty."""
        owner = np.repeat(np.arange(len(self.users)), self.sequence_lengths)
        same = _item_type(self.sequence_items) == _item_type(_rank_to_id(self.ranks[:, 0], 0))[owner]
        hits = np.bincount(owner, weights=same, minlength=len(self.users))
        share = hits / np.maximum(self.sequence_lengths, 1)
        return np.where(self.sequence_lengths > 0, share, 1 / ITEM_TYPES)


def _blocks(
    model: PlantedModel, seed: int, part: int, rows: int, truths: list[dict[str, Floats]] | None = None
) -> Iterator[pa.RecordBatch]:
    for index, start in enumerate(range(0, rows, BLOCK_ROWS)):
        rng = np.random.default_rng([seed, part, index])
        block = _draw_inputs(model, rng, min(BLOCK_ROWS, rows - start))
        probabilities, labels = _draw_labels(model, rng, block)
        if truths is not None:
            truths.append({f"p_{name}": p for name, p in probabilities.items()} | labels)
        yield _to_arrow(block, labels)


def _draw_inputs(model: PlantedModel, rng: np.random.Generator, size: int) -> _Block:
    users = _zipf_ranks(rng, NUM_USERS, size, exponent=0.6)
    ranks = np.stack([_zipf_ranks(rng, vocabulary, size) for vocabulary in CATEGORY_SIZES], axis=1)
    ranks[:, USER_CATEGORIES.start : USER_CATEGORIES.stop] = model.user_ranks[users]
    for column, share in NULL_CATEGORIES.items():
        ranks[rng.random(size) < share, column] = -1
    numerics = rng.normal(size=(size, NUM_NUMERIC))
    for column, share in NULL_NUMERICS.items():
        numerics[rng.random(size) < share, column] = np.nan
    lengths = rng.integers(0, MAX_SEQUENCE + 1, size)
    owner = np.repeat(users, lengths)
    items = _rank_to_id(_zipf_ranks(rng, CATEGORY_SIZES[0], len(owner)), 0)
    # Half of a user's history is of the user's own favourite type.
    favourite = rng.random(len(owner)) < 0.5
    moved = items - _item_type(items) + model.user_types[owner]
    items = np.where(favourite, np.minimum(moved, CATEGORY_SIZES[0] - 1), items)
    return _Block(users, numerics, ranks, items, lengths)


def _draw_labels(
    model: PlantedModel, rng: np.random.Generator, block: _Block
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    numerics = np.nan_to_num(block.numerics)
    click = model.click_logit(numerics, block.ranks)
    p_click = sigmoid(click)
    p_after_click = sigmoid(-0.5 + 0.5 * click + numerics @ model.conversion_numerics)
    p_view = sigmoid(0.7 * click + 4.0 * (block.type_share - 0.3))
    clicked = rng.random(len(click)) < p_click
    converted = clicked & (rng.random(len(click)) < p_after_click)
    viewed = rng.random(len(click)) < p_view
    probabilities = {"label": p_click, "conversion": p_click * p_after_click, "long_view": p_view}
    labels = {
        "label": clicked.astype(np.float64),
        "conversion": converted.astype(np.float64),
        "long_view": viewed.astype(np.float64),
    }
    return probabilities, labels


def _to_arrow(block: _Block, labels: dict[str, Floats]) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {name: pa.array(labels[name].astype(np.int64)) for name in LABELS}
    columns["user_id"] = pa.array(block.users)
    for column in range(NUM_NUMERIC):
        values = block.numerics[:, column]
        columns[f"int_{column}"] = pa.array(values.astype(np.float32), mask=np.isnan(values))
    for column in range(len(CATEGORY_SIZES)):
        ranks = block.ranks[:, column]
        columns[f"cat_{column}"] = pa.array(_rank_to_id(ranks, column), mask=ranks < 0)
    offsets = np.concatenate([[0], np.cumsum(block.sequence_lengths)]).astype(np.int32)
    columns["click_seq"] = pa.ListArray.from_arrays(offsets, pa.array(block.sequence_items))
    return pa.RecordBatch.from_pydict(columns)


def _zipf_ranks(
    rng: np.random.Generator, vocabulary: int, size: int, exponent: float = ZIPF_EXPONENT
) -> Ints:
    """Ranks 0 … vocabulary−1 with P(rank) ∝ about (rank+1)^−exponent: a bounded Pareto, inverted."""
    top = float(vocabulary + 1) ** (1 - exponent)
    ranks = (1 + rng.random(size) * (top - 1)) ** (1 / (1 - exponent))
    bounded: Ints = np.minimum(ranks.astype(np.int64) - 1, vocabulary - 1)
    return bounded


def _rank_to_id(ranks: Ints, column: int) -> Ints:
    """Scatter ranks over the id space, so that frequent ids do not lie side by side."""
    size = CATEGORY_SIZES[column]
    multiplier = next(m for m in range(int(size * 0.618) | 1, 2 * size + 3) if np.gcd(m, size) == 1)
    ids: Ints = (ranks * multiplier) % size
    return ids


def _item_type(items: Ints) -> Ints:
    return items % ITEM_TYPES


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e⁻ˣ)."""
    return 1 / (1 + np.exp(-x))


def auc(scores: Floats, labels: Floats) -> float:
    """Exact AUC by ranks; the scores are continuous, so ties do not matter."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    positives = labels.sum()
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    return float((ranks[labels > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _write_parquet(path: Path, blocks: Iterator[pa.RecordBatch]) -> None:
    first = next(blocks)
    with pa.parquet.ParquetWriter(path, first.schema, compression="snappy") as writer:
        writer.write_batch(first)
        for block in blocks:
            writer.write_batch(block)


def _write_csv(path: Path, blocks: Iterator[pa.RecordBatch]) -> None:
    first = _lists_as_text(next(blocks))
    with pa.csv.CSVWriter(path, first.schema) as writer:
        writer.write_batch(first)
        for block in blocks:
            writer.write_batch(_lists_as_text(block))


def _lists_as_text(block: pa.RecordBatch) -> pa.RecordBatch:
    """CSV has no lists: the sequence becomes text with `|` between the ids."""
    text = pa.compute.binary_join(block["click_seq"].cast(pa.list_(pa.string())), "|")
    return block.set_column(block.schema.get_field_index("click_seq"), "click_seq", text)


WRITERS: dict[str, Callable[[Path, Iterator[pa.RecordBatch]], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
}
