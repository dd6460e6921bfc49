# One line a case: the expected messages are kept whole.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable

import pytest

from recgrad.config.check.cpu import native_bf16, parse_flags, read_flags
from recgrad.config.check.hints import usual_decay

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


@pytest.mark.parametrize(
    ("rows", "decay", "expected"),
    [
        (None, 0.1, None),
        (5_000, 1e-3, None),
        (500_000, 1e-4, None),
        (5_000_000, 1e-3, "0.001 is far from the usual 1e-05 for 5000000 rows of data"),
        (5_000, 1e-6, "1e-06 is far from the usual 0.001 for 5000 rows of data"),
        (5_000_000, 0, None),
    ],
)
def test_unusual_weight_decay(hints: Hints, rows: int | None, decay: float, expected: str | None) -> None:
    got = hints({f"{ADAM}.weight_decay": decay}, rows=rows)
    assert got == ([] if expected is None else [f"{ADAM}.weight_decay: {expected}"])


def test_usual_weight_decay_falls_with_the_data() -> None:
    assert [usual_decay(rows) for rows in (9_999, 10_000, 1_000_000, 1_000_001)] == [1e-3, 1e-4, 1e-4, 1e-5]


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


def test_cpu_flags_are_read_from_cpuinfo() -> None:
    x86 = (
        "processor\t: 0\nmodel name\t: X\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\nflags\t: none\n"
    )
    assert parse_flags(x86) == {"fpu", "avx2", "avx512_bf16"}
    assert native_bf16(parse_flags(x86))
    assert native_bf16(parse_flags("Features\t: fp asimd bf16\n"))
    assert not native_bf16(parse_flags("flags : avx2"))
    assert parse_flags("nothing here") == frozenset()
    assert isinstance(read_flags(), frozenset)


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
