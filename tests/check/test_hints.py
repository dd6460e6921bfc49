# One line a case: the expected messages are kept whole.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recgrad.check import check_config
from recgrad.check import hints as thumb
from recgrad.check import schedule_hints as schedule_thumb
from recgrad.check.hints import usual_decay
from recgrad.config import edit_config, load_with_locations
from recgrad.optim.dense import DENSE_OPTIMIZERS
from recgrad.optim.schedules import step_decay
from recgrad.optim.sparse import SPARSE_OPTIMIZERS

DATA = Path(__file__).parents[1] / "config" / "data"
Hints = Callable[..., list[str]]
ADAM = "train_config.dense_optimizer.adam_optimizer"
SGD = "train_config.dense_optimizer.sgd_optimizer"
SPARSE = "train_config.sparse_optimizer"


@pytest.mark.parametrize(
    ("path", "rate", "expected"),
    [
        (f"{ADAM}.lr", 0.1, "0.1 is above the usual 0.0001 … 0.001 of adam_optimizer; training may be unstable"),
        (f"{ADAM}.lr", 1e-6, "1e-06 is below the usual 0.0001 … 0.001 of adam_optimizer; training may be slow"),
        (f"{ADAM}.lr", 3e-3, None),
        (f"{ADAM}.lr", 0, None),
        (f"{SGD}.lr", 1, "1 is above the usual 0.01 … 0.1 of sgd_optimizer; training may be unstable"),
        (f"{SPARSE}.sgd_optimizer.lr", 1, None),
        (f"{SPARSE}.sgd_optimizer.lr", 0.001, "0.001 is below the usual 0.1 … 1 of sgd_optimizer; training may be slow"),
        (f"{SPARSE}.adagrad_optimizer.lr", 1, "1 is above the usual 0.01 … 0.1 of adagrad_optimizer; training may be unstable"),
        (f"{SPARSE}.lion_optimizer.lr", 0.01, "0.01 is above the usual 0.0001 … 0.0003 of lion_optimizer; training may be unstable"),
        (f"{SPARSE}.lamb_optimizer.lr", 5, None),
        (f"{SPARSE}.adam_optimizer.lr", 0.02, None),
        (f"{SPARSE}.adam_optimizer.lr", 0.1, "0.1 is above the usual 0.0001 … 0.01 of adam_optimizer; training may be unstable"),
    ],
)  # fmt: skip
def test_unusual_learning_rates(hints: Hints, path: str, rate: float, expected: str | None) -> None:
    assert hints({path: rate}) == ([] if expected is None else [f"{path}: {expected}"])


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("data_config.odps_data_quota_name", "pay-as-you-go", None),
        ("data_config.odps_data_quota_name", "mine", "has no effect: it is for OdpsDataset"),
        ("data_config.odps_data_compression", "ZSTD", "has no effect: it is for OdpsDataset"),
        ("data_config.sample_mask_prob", 0.1, "has no effect: no feature has use_mask: true"),
        ("data_config.with_header", True, "has no effect: it is for CsvDataset"),
        ("train_config.global_embedding_constraints", {"sharding_types": ["row_wise"], "compute_kernels": ["fused"]}, None),
    ],
)  # fmt: skip
def test_fields_without_effect(hints: Hints, path: str, value: object, expected: str | None) -> None:
    assert hints({path: value}) == ([] if expected is None else [f"{path}: {expected}"])


@pytest.mark.parametrize("field", ["odps_data_quota_name", "odps_data_compression"])
def test_settings_of_tables_are_read_with_them(hints: Hints, field: str) -> None:
    given = {f"data_config.{field}": "ZSTD"}
    assert hints({**given, "data_config.dataset_type": "OdpsDataset"}) == []
    sampler = {
        "input_path": "odps://p/tables/items",
        "num_sample": 4,
        "attr_fields": ["cat_0"],
        "item_id_field": "cat_0",
    }
    assert hints({**given, "data_config.negative_sampler": sampler}) == []


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ({"sample_ratio": 0.1}, None),
        ({"sample_ratio": 0.1, "max_pairs": 100}, "has no effect with max_pairs; keep one"),
        ({"sample_ratio": 0.1, "in_batch": True}, "has no effect with in_batch; keep one"),
        ({"sample_ratio": 0.001, "max_pairs": 100}, None),
    ],
)
def test_a_sample_that_is_not_drawn(hints: Hints, metric: dict[str, object], expected: str | None) -> None:
    path = "model_config.metrics[0].xauc"
    got = hints({"model_config.metrics": [{"xauc": metric}]})
    assert got == ([] if expected is None else [f"{path}.sample_ratio: {expected}"])


def test_constraints_of_tables_mean_nothing_to_a_process_alone(hints: Hints) -> None:
    everywhere = {"train_config.global_embedding_constraints": {"sharding_types": ["row_wise"]}}
    why = "has no effect in one process; it is for several (recgrad train --nproc N, or torchrun)"
    assert hints(everywhere, ranks=0) == [f"train_config.global_embedding_constraints: {why}"]
    for ranks in (None, 1, 2):
        assert hints(everywhere, ranks=ranks) == []
    one = "feature_configs[13].id_feature.embedding_constraints"
    assert hints({one: {"sharding_types": ["row_wise"]}}, ranks=0) == [f"{one}: {why}"]
    both = {**everywhere, one: {"sharding_types": ["row_wise"]}}
    assert hints(both, ranks=0) == [
        f"train_config.global_embedding_constraints: {why}; the same holds for 1 more"
    ]


def test_a_process_alone_has_nobody_to_send_halves_to(hints: Hints) -> None:
    path = "train_config.half_precision_exchange"
    why = "has no effect in one process; it is for several (recgrad train --nproc N, or torchrun)"
    for ranks in (0, 1):  # one that a launcher has started sends nothing either
        assert hints({path: True}, ranks=ranks) == [f"{path}: {why}"]
        assert hints({path: False}, ranks=ranks) == []
    for ranks in (None, 2):
        assert hints({path: True}, ranks=ranks) == []


@pytest.mark.parametrize(
    ("rows", "decay", "expected"),
    [
        (None, 0.1, None),
        (5_000, 1e-3, None),
        (500_000, 1e-4, None),
        (5_000_000, 1e-3, "0.001 is far from the usual 5e-06 for 5000000 rows of data in 1 epoch"),
        (5_000, 1e-6, "1e-06 is far from the usual 0.0005 for 5000 rows of data in 1 epoch"),
        (5_000_000, 0, None),
    ],
)
def test_unusual_weight_decay(hints: Hints, rows: int | None, decay: float, expected: str | None) -> None:
    got = hints({f"{ADAM}.weight_decay": decay}, rows=rows)
    assert got == ([] if expected is None else [f"{ADAM}.weight_decay: {expected}"])


def test_usual_weight_decay_falls_with_the_data() -> None:
    assert [usual_decay(rows) for rows in (9_999, 10_000, 1_000_000, 1_000_001)] == [1e-3, 1e-4, 1e-4, 1e-5]


def test_usual_weight_decay_goes_by_the_length_of_the_run_and_the_model(hints: Hints) -> None:
    assert [usual_decay(50_000, epochs) for epochs in (19, 20, 100, 101, None)] == [
        5e-5,
        1e-4,
        1e-4,
        2e-4,
        1e-4,
    ]
    assert usual_decay(50_000, attention=True) == pytest.approx(1e-5)
    long = {"train_config.num_epochs": 200, f"{ADAM}.weight_decay": 3.0}
    assert hints(long, rows=50_000)[0].endswith(
        "3 is far from the usual 0.0002 for 50000 rows of data in 200 epochs"
    )
    by_steps = {"train_config.num_epochs": None, "train_config.num_steps": 9_000, f"{ADAM}.weight_decay": 3.0}
    assert hints(by_steps, rows=50_000)[0].endswith("the usual 0.0001 for 50000 rows of data")


NO_WARMUP = {"train_config.dense_optimizer.constant_learning_rate": {}, "data_config.batch_size": 500}
DENSE = "train_config.dense_optimizer"


def test_fine_tuning_wants_a_warmup_and_a_smaller_rate(hints: Hints) -> None:
    tuned = {**NO_WARMUP, "train_config.fine_tune_checkpoint": "old"}
    assert hints(tuned) == [
        f"{DENSE}: no warm-up with a fine_tune_checkpoint; a warmup_size of 6% of the steps is usual, and a tenth "
        "of the rate that it was trained with: large first steps undo what it learned"
    ]
    assert (
        "6% of the steps (600 here) is usual"
        in hints({**tuned, "train_config.num_epochs": None, "train_config.num_steps": 10_000})[0]
    )
    assert "6% of the steps (120 here) is usual" in hints(tuned, rows=1_000_000)[0]
    assert hints({"train_config.fine_tune_checkpoint": "old", f"{ADAM}.lr": 1e-5}) == []
    assert hints({f"{ADAM}.lr": 1e-5}) != []


def test_a_large_batch_says_how_many_steps_a_warmup_is(hints: Hints) -> None:
    no_warmup = {f"{DENSE}.constant_learning_rate": {}}
    assert "15–20% of the steps (37–49 here) is usual" in hints(no_warmup, rows=1_000_000)[0]


def test_self_attention_wants_a_warmup_and_less_decay() -> None:
    config = load_with_locations(DATA / "multi_tower_din_taobao.config").message
    encoder = config.model_config.feature_groups[0].sequence_encoders.add().self_attention_encoder
    encoder.input, encoder.multihead_attn_dim = "click_seq", 16
    edits = {**NO_WARMUP, "train_config.num_epochs": 30, f"{DENSE}.adam_optimizer.weight_decay": 1e-2}
    said = [str(hint) for hint in check_config(edit_config(config, edits), rows=500_000).hints]
    assert (
        f"{DENSE}: no warm-up with self-attention; a warmup_size of 10% of the steps (3000 here) is usual, since early steps are the least stable"
        in said
    )
    assert (
        f"{DENSE}.adam_optimizer.weight_decay: 0.01 is far from the usual 1e-05 for 500000 rows of data in 30 epochs with self-attention"
        in said
    )


USUAL_STEPS = "usual are a step_size of 2000–4000 steps and a gamma of 0.1–0.5"


@pytest.mark.parametrize(
    ("schedule", "steps", "expected"),
    [
        ({"step_size": 3000, "gamma": 0.3}, 10_000, None),
        ({"step_size": 100, "gamma": 0.98}, 10_000, None),
        ({"step_size": 10_000, "gamma": 0.3}, 10_000, f".step_size: 10000 is not less than the 10000 steps of training, so the rate never falls; {USUAL_STEPS}"),
        ({"step_size": 3, "gamma": 0.3, "by_epoch": True}, 10_000, None),
        ({"step_size": 3000, "gamma": 0.01}, 10_000, f".gamma: 0.01 ends training at the first step down; {USUAL_STEPS}"),
        ({"step_size": 200, "gamma": 0.5}, 10_000, f": the rate falls 50 times to 9e-16 of its start; {USUAL_STEPS}, or set min_learning_rate"),
        ({"step_size": 200, "gamma": 0.5, "min_learning_rate": 1e-5}, 10_000, None),
        ({"step_size": 200, "gamma": 1.0}, 10_000, None),
    ],
)  # fmt: skip
def test_step_decay_that_falls_at_once_or_never(
    hints: Hints, schedule: dict[str, object], steps: int, expected: str | None
) -> None:
    edits = {f"{DENSE}.step_decay_learning_rate": schedule, "data_config.batch_size": 500}
    got = hints({**edits, "train_config.num_epochs": None, "train_config.num_steps": steps})
    assert got == ([] if expected is None else [f"{DENSE}.step_decay_learning_rate{expected}"])


def test_the_rules_of_thumb_are_on_their_pages() -> None:
    """What the hints go by is what the pages say."""
    docs = Path(__file__).resolve().parents[2] / "docs"
    optimizers, schedules = ((docs / name).read_text() for name in ("optimizers.md", "schedules.md"))
    known = [*DENSE_OPTIMIZERS.items(), *SPARSE_OPTIMIZERS.items()]
    rates = [factory.usual_rates for _, factory in known if hasattr(factory, "usual_rates")]
    assert len(rates) > 10
    for low, high in [usual.of({"momentum": share}) for usual in rates for share in (0, 0.9)]:
        assert f"{low:g} … {high:g}" in optimizers
    for factor in (
        thumb.FINE_TUNING_RATE,
        thumb.SHORT_RUN_DECAY,
        thumb.LONG_RUN_DECAY,
        thumb.ATTENTION_DECAY,
    ):
        assert f"× {factor:g}" in optimizers
    for low, high in (
        schedule_thumb.LARGE_BATCH_WARMUP,
        schedule_thumb.ATTENTION_WARMUP,
        schedule_thumb.FINE_TUNING_WARMUP,
    ):
        assert (f"{low:.0%}" if low == high else f"{low * 100:.0f}–{high:.0%}") in schedules
    for low, high in (step_decay.STEP_SIZES, step_decay.STEP_GAMMAS):
        assert f"{low:g}–{high:g}" in schedules


def test_large_batches_want_a_warmup(hints: Hints) -> None:
    no_warmup = {"train_config.dense_optimizer.constant_learning_rate": {}}
    rest = (
        "; above 1000 a warmup_size of 15–20% of the steps is usual, since early steps are the least stable"
    )
    for ranks, batch in {None: "4096 rows per process", 0: "4096 rows", 1: "4096 rows"}.items():
        said = f"train_config.dense_optimizer: no warm-up with a batch of {batch}{rest}"
        assert hints(no_warmup, ranks=ranks) == [said]
    assert hints({**no_warmup, "data_config.batch_size": 1000}) == []
    accumulated = {**no_warmup, "data_config.batch_size": 512, "train_config.gradient_accumulation_steps": 4}
    assert "a batch of 2048 rows" in hints(accumulated)[0]
    small = {**no_warmup, "data_config.batch_size": 400}
    assert hints(small) == hints(small, ranks=1) == hints(small, ranks=2) == []
    assert "a batch of 1200 rows (3 processes of 400);" in hints(small, ranks=3)[0]
    one_cycle = {"train_config.dense_optimizer.one_cycle_learning_rate": {"total_size": 100}}
    assert hints(one_cycle) == []


def test_warmup_longer_than_the_run(hints: Hints) -> None:
    edits = {"train_config.num_epochs": 0, "train_config.num_steps": 500}
    assert hints(edits) == [
        "train_config.dense_optimizer.exponential_decay_learning_rate.warmup_size: "
        "500 is not less than the 500 steps of training, so the full rate is never reached"
    ]


def test_bf16_without_native_support(hints: Hints) -> None:
    bf16 = {"train_config.mixed_precision": "BF16"}
    assert hints(bf16, cpu_flags={"avx2", "avx512f"}) == [
        "train_config.mixed_precision: this CPU has no native BF16 (AVX512-BF16 or AMX) and emulates it, "
        "several times slower than FP32; leave it out unless training runs on a GPU"
    ]
    assert hints(bf16, cpu_flags={"avx512_bf16"}) == []
    assert hints(bf16, cpu_flags={"amx_bf16"}) == []
    assert hints({"train_config.mixed_precision": "FP16"}, cpu_flags={"avx2"}) == []


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("is_orderby_partition", "files are read in the order of their names"),
        ("force_base_data_group", "sampled items are always kept apart from rows"),
    ],
)
def test_what_would_change_nothing_is_a_hint(hints: Hints, field: str, reason: str) -> None:
    """Configs of TorchEasyRec hold these, and run."""
    path = f"data_config.{field}"
    assert hints({path: True}) == [f"{path}: has no effect here: {reason}"]
    assert hints({path: False}) == []


@pytest.mark.parametrize("kernel", ["TRITON", "CUTLASS"])
def test_kernels_of_gpus_are_answered_by_ours(hints: Hints, kernel: str) -> None:
    path = "model_config.kernel"
    assert hints({path: kernel}) == [f"{path}: has no effect here: Recgrad's own kernels compute the same"]
    assert hints({path: "PYTORCH"}) == []


def test_features_in_no_group(hints: Hints) -> None:
    assert hints({"model_config.feature_groups[2].feature_names[0]": None}) == [
        "feature_configs[0].raw_feature: 'int_0' is in no feature group"
    ]
    assert hints({"model_config.feature_groups[2].feature_names[0:7]": None}) == [
        "feature_configs[0].raw_feature: 7 features are in no feature group: "
        "'int_0', 'int_1', 'int_2', 'int_3', 'int_4' …"
    ]
    grouped = {
        "model_config.feature_groups[2].feature_names[0]": None,
        "model_config.metrics[1].grouped_auc.grouping_key": "int_0",
    }
    assert hints(grouped) == []


def test_keys_that_look_like_a_misspelt_feature(hints: Hints) -> None:
    assert hints({"model_config.metrics[1].grouped_auc.grouping_key": "cat_100"}) == [
        "model_config.metrics[1].grouped_auc.grouping_key: 'cat_100' is no feature, "
        "so it is read as a column of its own; did you mean 'cat_10'?"
    ]


def test_steps_that_count_updates_of_several_batches(hints: Hints) -> None:
    def said(edits: dict[str, object]) -> list[str]:
        accumulated = {"train_config.gradient_accumulation_steps": 4, **edits}
        return [hint for hint in hints(accumulated) if "gradient_accumulation_steps" in hint]

    by_epochs = {
        "train_config.num_epochs": 1,
        "train_config.num_steps": None,
        "train_config.save_checkpoints_steps": None,
        "train_config.dense_optimizer.constant_learning_rate": {},
        "train_config.sparse_optimizer.constant_learning_rate": {},
    }
    assert said(by_epochs) == []
    by_steps = {**by_epochs, "train_config.num_epochs": None, "train_config.num_steps": 100}
    assert said(by_steps) == [
        "train_config.gradient_accumulation_steps: a step is an update of 4 batches, also in num_steps; "
        "divide numbers that were meant as batches by 4"
    ]
    assert said({**by_steps, "train_config.gradient_accumulation_steps": 0}) == []
    decayed = {**by_epochs, "train_config.dense_optimizer.step_decay_learning_rate": {"step_size": 10}}
    (hint,) = said(decayed)
    assert "also in schedules;" in hint
    assert said({**decayed, "train_config.dense_optimizer.step_decay_learning_rate.by_epoch": True}) == []


def test_numbers_of_a_sequence_that_are_embedded(hints: Hints) -> None:
    raw = {"feature_name": "p", "sequence_delim": "|", "sequence_length": 5, "embedding_dim": 4, "mlp": {}}
    said = [hint.partition(": ")[2] for hint in hints({"feature_configs[+]": {"sequence_raw_feature": raw}})]
    assert "embeds the number of each position; TorchEasyRec ignores it in sequences" in said
