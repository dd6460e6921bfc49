"""Checks of the run, of what it watches, and of the data it reads."""

# One line a case: the expected messages are kept whole.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Problems = Callable[..., list[str]]
TRAIN = "train_config"
MODEL = "model_config"


@pytest.mark.parametrize(
    ("steps", "epochs", "expected"),
    [
        (10, 1, ["train_config: num_steps and num_epochs are both set; keep one"]),
        (1, 10, ["train_config: num_steps and num_epochs are both set; keep one"]),
        (0, 0, ["train_config: neither num_steps nor num_epochs is set; set one to at least 1"]),
        (None, None, ["train_config: neither num_steps nor num_epochs is set; set one to at least 1"]),
        (None, 0, ["train_config: neither num_steps nor num_epochs is set; set one to at least 1"]),
        (10, 0, []),
        (0, 1, []),
        (1000, None, []),
    ],
)
def test_exactly_one_length(
    problems: Problems, steps: int | None, epochs: int | None, expected: list[str]
) -> None:
    assert problems({f"{TRAIN}.num_steps": steps, f"{TRAIN}.num_epochs": epochs}) == expected


def test_one_checkpoint_interval(problems: Problems) -> None:
    both = {f"{TRAIN}.save_checkpoints_steps": 10, f"{TRAIN}.save_checkpoints_epochs": 1}
    expected = "train_config: save_checkpoints_steps and save_checkpoints_epochs are both set; keep one"
    assert problems(both) == [expected]
    # the default of 1000 steps is not something the user wrote
    assert problems({f"{TRAIN}.save_checkpoints_epochs": 1}) == []


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("train_config.mixed_precision", "FP8", ": must be one of '', 'BF16', 'FP16', got 'FP8'"),
        ("train_config.mixed_precision", "bf16", ": must be one of '', 'BF16', 'FP16', got 'bf16'; did you mean 'BF16'?"),
        ("export_config.mixed_precision", "BF16", None),
        ("export_config.mixed_precision", "FP8", ": must be one of '', 'BF16', 'FP16', got 'FP8'"),
        ("export_config.cuda_matmul_allow_tf32", True, None),
        ("train_config.grad_clipping", {"clipping_type": "nrom"}, ".clipping_type: must be one of 'none', 'norm', 'value', got 'nrom'; did you mean 'norm'?"),
        ("train_config.grad_clipping", {"max_gradient": 5}, ".max_gradient: has no effect with clipping_type 'none'; set it to norm or value"),
        ("train_config.grad_clipping", {"clipping_type": "value", "norm_type": 1}, ".norm_type: has no effect with clipping_type 'value'; set it to norm"),
        ("train_config.grad_clipping", {"clipping_type": "norm", "norm_type": "inf"}, None),
        ("train_config.grad_clipping", {"clipping_type": "norm", "max_gradient": 0}, ".max_gradient: must be greater than 0, got 0"),
        ("train_config.grad_scaler", {"growth_factor": 1}, ".growth_factor: must be greater than 1, got 1"),
        ("train_config.tensorboard_summaries", ["los"], "[0]: no summary 'los'; did you mean 'loss'?"),
        ("train_config.global_embedding_constraints", {"sharding_types": ["row_wise", "column_wise"], "compute_kernels": ["fused"]}, None),
        ("train_config.global_embedding_constraints", {"sharding_types": ["row_wise", "rowwise"]}, ".sharding_types[1]: no sharding type 'rowwise'; did you mean 'row_wise'?"),
        ("train_config.global_embedding_constraints", {"compute_kernels": ["fused_uvm", "customized_kernel"]}, None),
        ("train_config.global_embedding_constraints", {"compute_kernels": ["fuse"]}, ".compute_kernels[0]: no compute kernel 'fuse'; did you mean 'fused'?"),
        ("train_config.global_embedding_constraints", {"compute_kernels": ["dense"]}, ".compute_kernels[0]: no compute kernel 'dense' (has: customized_kernel, fused, fused_uvm, fused_uvm_caching)"),
        ("train_config.process_timeout_secs", 0, ": must be at least 1, got 0"),
        ("train_config.early_stopping", {"mode": "up"}, ".mode: must be one of 'max', 'min', got 'up'"),
        ("train_config.delta_embedding_dump_config", {"dump_interval_secs": 0}, ".dump_interval_secs: must be at least 0.1, got 0"),
        ("train_config.delta_embedding_dump_config", {"dump_interval_minutes": 1, "dump_interval_secs": 5}, ".dump_interval_secs: is beside dump_interval_minutes; keep one"),
        ("train_config.early_stopping", {"min_delta": "-inf"}, ".min_delta: must be a finite number, got -inf"),
        ("train_config.log_step_count_steps", 0, ": must be at least 1, got 0"),
        ("train_config.fine_tune_ckpt_param_map", "a", ": needs a fine_tune_checkpoint"),
        ("export_config.exporter_type", "bst", ": must be one of 'latest', 'best', got 'bst'; did you mean 'best'?"),
        ("data_config.batch_size", 0, ": must be at least 1, got 0"),
        ("data_config.eval_batch_size", 0, ": must be at least 1, got 0"),
        ("data_config.max_bad_row_ratio", 2, ": must be in [0, 1], got 2"),
        ("data_config.batch_cost_size", 100, ": needs a sample_cost_field, the column of costs"),
        ("data_config.sample_cost_field", "user_id", ": needs a batch_cost_size, the most that a batch may cost"),
        ("data_config.label_fields", [], None),
        ("data_config.label_fields", ["label", "label"], "[1]: 'label' is named twice; keep one"),
        ("data_config.input_fields", [{"input_name": "a"}, {"input_name": "a"}], "[1]: column 'a' is declared twice; keep one"),
        ("data_config.fg_encoded_multival_sep", "", ": is empty; give the separator of values"),
    ],
    ids=str,
)  # fmt: skip
def test_training_and_data(problems: Problems, path: str, value: Any, expected: str | None) -> None:
    wanted = [] if expected is None else [path + expected]
    if value == []:
        wanted = ["data_config: label_fields is empty; name the column to learn"]
    assert problems({path: value}) == wanted


def test_csv_without_header_needs_its_columns(problems: Problems) -> None:
    csv = {"data_config.dataset_type": "CsvDataset", "data_config.delimiter": "ab"}
    assert problems(csv) == [
        "data_config.delimiter: must be one ASCII character other than a quote, got 'ab'",
        "data_config: a CSV file without a header needs input_fields, one for each column in order; "
        "or set with_header: true",
    ]
    columns = {
        "data_config.dataset_type": "CsvDataset",
        "data_config.input_fields": [{"input_name": "labl"}, {"input_name": "user_id"}],
    }
    assert problems(columns) == [
        "data_config.label_fields[0]: no column in data_config.input_fields 'label'; did you mean 'labl'?"
    ]
    assert problems({"data_config.dataset_type": "CsvDataset", "data_config.with_header": True}) == []


def test_positive_labels_belong_to_labels_and_name_texts(problems: Problems) -> None:
    path = "data_config.positive_labels"
    found = problems({path: [{"label_field": "labell", "values": ["yes"]}]})
    assert [line for line in found if line.startswith(f"{path}[0].label_field: no label 'labell'")] == found
    label = {"label_field": "label", "values": []}
    assert problems({"data_config.label_fields": ["label"], path: [label]}) == [
        f"{path}[0]: values is empty; name the texts or numbers that count as 1"
    ]


def test_label_classes_belong_to_labels_and_are_as_many_as_the_task_has(problems: Problems) -> None:
    path = "data_config.label_classes"
    found = problems({path: [{"label_field": "labell", "values": ["a", "b"]}]})
    assert [line for line in found if line.startswith(f"{path}[0].label_field: no label 'labell'")] == found
    label = {"label_field": "label", "values": ["a"]}
    assert problems({path: [label]}) == [f"{path}[0]: needs two or more values, one for each class; got 1"]
    assert problems({path: [{**label, "values": ["a", "b"]}]}) == []
    assert problems({path: [{**label, "values": ["a", "b", "a "]}]}) == [
        f"{path}[0].values[2]: 'a' is named twice; keep one",
        "model_config: num_class is 1, but data_config.label_classes names 3 of 'label'; set num_class: 3",
    ]
    both = {path: [{**label, "values": ["a", "b"]}], "data_config.positive_labels": [label]}
    assert problems(both) == [f"{path}[0]: 'label' has positive_labels, too; keep one"]


@pytest.mark.parametrize(
    ("base", "edits", "expected"),
    [
        ("deepfm_criteo", {f"{TRAIN}.early_stopping": {}}, []),
        ("deepfm_criteo", {f"{TRAIN}.early_stopping.metric": "grouped_auc"}, []),
        ("deepfm_criteo", {f"{TRAIN}.early_stopping.metric": "gauc"}, [f"{TRAIN}.early_stopping.metric: no metric of the evaluation 'gauc'; did you mean 'grouped_auc'?"]),
        ("deepfm_criteo", {f"{TRAIN}.early_stopping.metric": "ece_calibration", f"{MODEL}.metrics[+]": {"calibration": {}}}, []),
        ("deepfm_criteo", {"export_config": {"exporter_type": "best", "best_exporter_metric": "loss"}}, ["export_config.best_exporter_metric: no metric of the evaluation 'loss' (has: auc, grouped_auc)"]),
        ("deepfm_criteo", {"export_config": {"best_exporter_metric": "loss"}}, []),
        ("mmoe_taobao", {f"{TRAIN}.early_stopping": {}}, [f"{TRAIN}.early_stopping.metric: no metric of the evaluation 'auc'; did you mean 'auc_ctr'?"]),
        ("mmoe_taobao", {f"{TRAIN}.early_stopping.metric": "auc_cvr"}, []),
        ("dssm_taobao", {f"{TRAIN}.early_stopping.metric": "recall@5"}, []),
        ("dssm_taobao", {f"{TRAIN}.early_stopping.metric": "recall@10"}, [f"{TRAIN}.early_stopping.metric: no metric of the evaluation 'recall@10'; did you mean 'recall@1'?"]),
        ("deepfm_criteo", {f"{MODEL}.metrics[+]": {"auc": {"exact": True}}}, [f"{MODEL}.metrics[2].auc: 'auc' is given twice; keep one"]),
    ],
    ids=str,
)  # fmt: skip
def test_watched_metrics(problems: Problems, base: str, edits: dict[str, Any], expected: list[str]) -> None:
    assert problems(edits, base) == expected


def test_watching_needs_something_to_evaluate(problems: Problems) -> None:
    found = problems({"eval_input_path": "", f"{TRAIN}.early_stopping": {"metric": "auc"}})
    expected = f"{TRAIN}.early_stopping.metric: waits for evaluations, and eval_input_path is empty; set it"
    assert expected in found


def test_zero_is_off_and_all(problems: Callable[..., list[str]]) -> None:
    edits = {"train_config.gradient_accumulation_steps": 0, "eval_config.num_steps": 0}
    assert problems(edits) == []


def test_more_threads_than_any_machine_has_are_refused(problems: Callable[..., list[str]]) -> None:
    (problem,) = problems({"data_config.num_workers": 100_000})
    assert problem.startswith("data_config.num_workers: 100000 workers are more than 1024 threads")
    assert problems({"data_config.num_workers": 200, "data_config.fg_threads": 8})
    assert not problems({"data_config.num_workers": 128, "data_config.fg_threads": 8})
