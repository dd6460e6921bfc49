"""The check: sound configs pass, and each mistake is named in these words."""

# One line a case: the expected messages are kept whole.
# ruff: noqa: E501

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recgrad.config import (
    PipelineConfig,
    check_config,
    edit_config,
    load_config,
    load_with_locations,
)
from recgrad.config.check.rule import CHECKS
from recgrad.config.check.unsupported import KINDS, UNSUPPORTED
from recgrad.config.proto import data_pb2, model_pb2, optimizer_pb2
from recgrad.errors import ConfigError

Problems = Callable[..., list[str]]
EXAMPLES = ["deepfm_criteo", "dssm_taobao", "mmoe_taobao", "multi_tower_din_taobao"]

TRAIN = "train_config"
DENSE = "train_config.dense_optimizer"
SPARSE = "train_config.sparse_optimizer"
MODEL = "model_config"
GROUPS = "model_config.feature_groups"
CAT = "feature_configs[13].id_feature"
INT = "feature_configs[0].raw_feature"
TOWERS = "model_config.mmoe.task_towers"
CLICKS = "feature_configs[13].sequence_feature"


@pytest.mark.parametrize("name", EXAMPLES)
def test_sound_configs_have_no_problems_and_no_hints(example: Callable[[str], Path], name: str) -> None:
    loaded = load_with_locations(example(name))
    report = check_config(loaded.message, locations=loaded.locations, rows=10_000_000)
    assert report.ok
    assert not report.hints


def test_problems_come_in_the_order_of_the_file_with_their_lines(example: Callable[[str], Path]) -> None:
    loaded = load_with_locations(example("deepfm_criteo"))
    edits = {
        "train_config.num_steps": 10,
        "model_config.feature_groups[0].feature_names[0]": "cat_99",
        "data_config.batch_size": 0,
    }
    edited = edit_config(loaded.message, edits)
    report = check_config(edited, locations=loaded.locations)
    assert [str(problem) for problem in report.problems] == [
        "deepfm_criteo.config:5 train_config: num_steps and num_epochs are both set; keep one",
        "deepfm_criteo.config:25 data_config.batch_size: must be at least 1, got 0",
        "deepfm_criteo.config:125 model_config.feature_groups[0].feature_names[0]: "
        "no feature 'cat_99'; did you mean 'cat_19'?",
    ]
    with pytest.raises(ConfigError) as raised:
        report.raise_problems()
    assert raised.value.problems == report.problems


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({TRAIN: None}, ["train_config: is missing"]),
        ({"data_config": None}, ["data_config: is missing"]),
        ({MODEL: None}, ["model_config: is missing"]),
        ({"train_input_path": None}, ["train_input_path: is required"]),
        ({"train_input_path": ""}, ["train_input_path: is empty"]),
        ({"model_dir": ""}, ["model_dir: is empty"]),
        ({"eval_input_path": ""}, []),
        ({SPARSE: None}, ["train_config.sparse_optimizer: is required"]),
        ({f"{CAT}.feature_name": ""}, ["feature_configs[13].id_feature.feature_name: is empty"]),
        ({f"{CAT}.embedding_dim": None}, ["feature_configs[13].id_feature.embedding_dim: is required"]),
        ({f"{MODEL}.deepfm.deep": None}, ["model_config.deepfm.deep: is required"]),
        ({f"{MODEL}.deepfm": None}, ["model_config: names no model"]),
        ({f"{MODEL}.losses": [{}]}, ["model_config.losses[0]: names no loss"]),
        ({f"{MODEL}.metrics[+]": {}}, ["model_config.metrics[2]: names no metric"]),
        ({DENSE: {}}, ["train_config.dense_optimizer: names no optimizer"]),
        ({"feature_configs[+]": {}}, ["feature_configs[39]: names no feature"]),
        (
            {f"{MODEL}.metrics[1].grouped_auc": {}},
            ["model_config.metrics[1].grouped_auc.grouping_key: is required"],
        ),
    ],
    ids=str,
)
def test_required(problems: Problems, edits: dict[str, Any], expected: list[str]) -> None:
    got = problems(edits)
    assert [
        line for line in got if "no feature ''" not in line and "no feature 'cat_0'" not in line
    ] == expected


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


NONE_EFFECT = "has no effect with weight_decay_mode NONE; set the mode to L2 or DECOUPLE"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("lr", -1, "must be at least 0, got -1"),
        ("lr", "nan", "must be a finite number, got nan"),
        ("lr", "inf", "must be a finite number, got inf"),
        ("beta1", 1, "must be in [0, 1), got 1"),
        ("beta2", -0.5, "must be in [0, 1), got -0.5"),
        ("eps", 0, "must be greater than 0, got 0"),
        ("weight_decay", -1, "must be at least 0, got -1"),
    ],
)
def test_adam_ranges(problems: Problems, path: str, value: Any, expected: str) -> None:
    assert problems({f"{DENSE}.adam_optimizer.{path}": value}) == [
        f"{DENSE}.adam_optimizer.{path}: {expected}"
    ]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (f"{DENSE}.sgd_optimizer {{ momentum: 1 }}", [".momentum: must be in [0, 1), got 1"]),
        (
            f"{DENSE}.sgd_optimizer {{ nesterov: true momentum: 0 }}",
            [".nesterov: needs a momentum above 0 and no dampening"],
        ),
        (f"{DENSE}.adadelta_optimizer {{ rho: 2 }}", [".rho: must be in [0, 1], got 2"]),
        (f"{DENSE}.muon_optimizer {{ ns_steps: 0 fallback_lr: -1 }}", [
            ".fallback_lr: must be at least 0, got -1", ".ns_steps: must be at least 1, got 0"]),
        (f"{DENSE}.schedule_free_sgd_optimizer {{ momentum: 0 }}", [".momentum: must be in (0, 1), got 0"]),
        (f"{DENSE}.adafactor_optimizer {{ beta2_decay: 0.5 }}", [".beta2_decay: must be less than 0, got 0.5"]),
        (f"{SPARSE}.ftrl_optimizer {{ lr_power: 1 }}", [".lr_power: must be at most 0, got 1"]),
        (f"{SPARSE}.rowwise_adagrad_optimizer {{ weight_decay: 0.1 }}", [f".weight_decay: 0.1 {NONE_EFFECT}"]),
        (
            f"{SPARSE}.adam_optimizer {{ weight_decay: 0.1 weight_decay_mode: NONE }}",
            [f".weight_decay: 0.1 {NONE_EFFECT}"],
        ),
        (f"{SPARSE}.adam_optimizer {{ weight_decay: 0.1 }}", []),
        (
            f"{SPARSE}.sgd_optimizer {{ max_gradient: 2 }}",
            [".max_gradient: has no effect without gradient_clipping: true; set that, or remove it"],
        ),
        (f"{SPARSE}.sgd_optimizer {{ gradient_clipping: true max_gradient: 2 }}", []),
    ],
    ids=str,
)  # fmt: skip
def test_optimizers(problems: Problems, optimizer: str, expected: list[str]) -> None:
    path, _, body = optimizer.partition(" ")
    assert problems({path: body}) == [path + line for line in expected]


def test_every_optimizer_is_sound_with_its_defaults(problems: Problems) -> None:
    for holder, message in ((DENSE, optimizer_pb2.DenseOptimizer), (SPARSE, optimizer_pb2.SparseOptimizer)):
        for field in message.DESCRIPTOR.oneofs_by_name["optimizer"].fields:
            value = {"class_path": "a.B"} if field.name.startswith("custom") else {}
            assert problems({f"{holder}.{field.name}": value}) == [], field.name


def test_part_optimizers(problems: Problems) -> None:
    parts = [
        {"regex_pattern": "a(", "sgd_optimizer": {}},
        {"regex_pattern": "b"},
        {"regex_pattern": "c", "sgd_optimizer": {}},
        {"regex_pattern": "c", "sgd_optimizer": {"lr": "nan"}},
        {"regex_pattern": "(" * 1001, "sgd_optimizer": {}},
    ]
    long = f"'{'(' * 60}'… (1001 characters)"
    assert sorted(problems({f"{DENSE}.part_optimizers": parts})) == [
        f"{DENSE}.part_optimizers[0].regex_pattern: 'a(' is not a pattern: "
        "missing ), unterminated subpattern at position 1",
        f"{DENSE}.part_optimizers[1]: names no optimizer",
        f"{DENSE}.part_optimizers[3].regex_pattern: 'c' is given twice; the first would take all that it matches",
        f"{DENSE}.part_optimizers[3].sgd_optimizer.lr: must be a finite number, got nan",
        f"{DENSE}.part_optimizers[4].regex_pattern: {long} is not a pattern: longer than 1000 characters",
    ]


def test_ema(problems: Problems) -> None:
    assert problems({f"{DENSE}.ema.decay": 1}) == [f"{DENSE}.ema.decay: must be in [0, 1), got 1"]
    needs = "eval_config.use_dense_ema: needs an ema in train_config.dense_optimizer"
    assert problems({"eval_config.use_dense_ema": True}) == [needs]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (
            "manual_step_learning_rate { schedule_sizes: [1, 2] learning_rates: 0.1 }",
            [": schedule_sizes has 2 values and learning_rates 1; give as many of each"],
        ),
        (
            "manual_step_learning_rate { schedule_sizes: [5, 5] learning_rates: [0.1, -1] }",
            [
                ".schedule_sizes[1]: must rise, got 5 before 5",
                ".learning_rates[1]: must be at least 0, got -1",
            ],
        ),
        (
            "manual_step_learning_rate {}",
            [": schedule_sizes and learning_rates are empty; give at least one of each"],
        ),
        (
            "manual_step_learning_rate { schedule_sizes: 5 learning_rates: 1 warmup: true warmup_size: 3 }",
            [": warmup and warmup_size are both set; keep one"],
        ),
        (
            "manual_step_learning_rate { schedule_sizes: 0 learning_rates: 1 warmup: true }",
            [".schedule_sizes[0]: must be at least 1 with warmup, got 0"],
        ),
        ("manual_step_learning_rate { schedule_sizes: [5, 6] learning_rates: [0.1, 0.2] }", []),
        ("exponential_decay_learning_rate {}", [".decay_size: is required"]),
        (
            "exponential_decay_learning_rate { decay_size: 0 decay_factor: 0 min_learning_rate: -1 }",
            [
                ".decay_size: must be at least 1, got 0",
                ".min_learning_rate: must be at least 0, got -1",
                ".decay_factor: must be greater than 0, got 0",
            ],
        ),
        ("cosine_annealing_learning_rate {}", [".T_max: is required"]),
        (
            "cosine_annealing_warm_restarts_learning_rate { T_0: 5 T_mult: 0 }",
            [".T_mult: must be at least 1, got 0"],
        ),
        (
            "one_cycle_learning_rate { total_size: 5 pct_start: 2 anneal: 'cosine' base_momentum: 0.97 }",
            [
                ".anneal: must be one of 'cos', 'linear', got 'cosine'; did you mean 'cos'?",
                ".pct_start: must be in [0, 1], got 2",
                ".base_momentum: must be at most max_momentum 0.95, got 0.97",
            ],
        ),
        ("step_decay_learning_rate { step_size: 5 gamma: 0 }", [".gamma: must be in (0, 1], got 0"]),
        (
            "polynomial_decay_learning_rate { decay_size: 5 power: 0 }",
            [".power: must be greater than 0, got 0"],
        ),
        ("inverse_sqrt_learning_rate { warmup_size: 0 }", [".warmup_size: must be at least 1, got 0"]),
        (
            "warmup_stable_decay_learning_rate { decay_size: 5 decay_shape: 'exponential' }",
            [": decay_shape 'exponential' needs a min_learning_rate above 0"],
        ),
        (
            "reduce_on_plateau_learning_rate { mode: 'up' factor: 1 threshold_mode: 'x' metric: '' }",
            [
                ".mode: must be one of 'max', 'min', got 'up'",
                ".threshold_mode: must be one of 'rel', 'abs', got 'x'",
                ".factor: must be in (0, 1), got 1",
                ".metric: is empty; name the metric to watch",
            ],
        ),
        (
            "sequence_learning_rate { stages { constant_learning_rate {} } stages {} }",
            [
                ".stages[0]: 'size' must be at least 1 for every stage but the last",
                ".stages[1]: names no schedule",
            ],
        ),
        (
            "sequence_learning_rate { stages { linear_decay_learning_rate { decay_size: 2 by_epoch: true } } }",
            [
                ".stages[0].linear_decay_learning_rate.by_epoch: belongs on the sequence; all stages count the same"
            ],
        ),
        (
            "sequence_learning_rate { stages { size: 2 linear_decay_learning_rate {} } stages "
            "{ constant_learning_rate {} } }",
            [".stages[0].linear_decay_learning_rate.decay_size: is required"],
        ),
        ("linear_decay_learning_rate { decay_size: 10 warmup_size: 3 }", []),
    ],
)
def test_schedules(problems: Problems, schedule: str, expected: list[str]) -> None:
    name, _, body = schedule.partition(" ")
    got = problems({f"{DENSE}.{name}": body})
    assert got == [f"{DENSE}.{name}{line}" for line in expected]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("train_config.mixed_precision", "FP8", ": must be one of '', 'BF16', 'FP16', got 'FP8'"),
        ("train_config.mixed_precision", "bf16", ": must be one of '', 'BF16', 'FP16', got 'bf16'; did you mean 'BF16'?"),
        ("export_config.mixed_precision", "BF16", ": 'mixed_precision' is not supported yet; leave it out; predictions are made in float32"),
        ("train_config.grad_clipping", {"clipping_type": "nrom"}, ".clipping_type: must be one of 'none', 'norm', 'value', got 'nrom'; did you mean 'norm'?"),
        ("train_config.grad_clipping", {"max_gradient": 5}, ".max_gradient: has no effect with clipping_type 'none'; set it to norm or value"),
        ("train_config.grad_clipping", {"clipping_type": "value", "norm_type": 1}, ".norm_type: has no effect with clipping_type 'value'; set it to norm"),
        ("train_config.grad_clipping", {"clipping_type": "norm", "norm_type": "inf"}, None),
        ("train_config.grad_clipping", {"clipping_type": "norm", "max_gradient": 0}, ".max_gradient: must be greater than 0, got 0"),
        ("train_config.grad_scaler", {"growth_factor": 1}, ".growth_factor: must be greater than 1, got 1"),
        ("train_config.tensorboard_summaries", ["los"], "[0]: no summary 'los'; did you mean 'loss'?"),
        ("train_config.early_stopping", {"mode": "up"}, ".mode: must be one of 'max', 'min', got 'up'"),
        ("train_config.early_stopping", {"min_delta": "-inf"}, ".min_delta: must be a finite number, got -inf"),
        ("train_config.log_step_count_steps", 0, ": must be at least 1, got 0"),
        ("train_config.gradient_accumulation_steps", 0, ": must be at least 1, got 0"),
        ("train_config.fine_tune_ckpt_param_map", "a", ": needs a fine_tune_checkpoint"),
        ("export_config.exporter_type", "bst", ": must be one of 'latest', 'best', got 'bst'; did you mean 'best'?"),
        ("data_config.batch_size", 0, ": must be at least 1, got 0"),
        ("data_config.eval_batch_size", 0, ": must be at least 1, got 0"),
        ("data_config.max_bad_row_ratio", 2, ": must be in [0, 1], got 2"),
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


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({f"{CAT}.num_buckets": None}, [f"{CAT}: one of num_buckets, hash_bucket_size, vocab_list, vocab_dict, vocab_file is needed"]),
        ({f"{CAT}.hash_bucket_size": 5}, [f"{CAT}: num_buckets and hash_bucket_size are both set; keep one"]),
        ({f"{CAT}.num_buckets": 0}, [f"{CAT}.num_buckets: must be in [1, 9223372036854775807], got 0"]),
        ({f"{CAT}.embedding_dim": 0}, [f"{CAT}.embedding_dim: ids need an embedding_dim of at least 1"]),
        ({f"{CAT}.pooling": "max"}, [f"{CAT}.pooling: must be one of 'sum', 'mean', got 'max'"]),
        ({f"{CAT}.pooling": "MEAN"}, []),
        ({f"{CAT}.data_type": "FP8"}, [f"{CAT}.data_type: must be one of 'FP32', 'FP16', 'BF16', got 'FP8'"]),
        ({f"{CAT}.init_fn": "nn.init.uniform,a=1"}, [f"{CAT}.init_fn: no initialiser 'uniform'; did you mean 'uniform_'?"]),
        ({f"{CAT}.init_fn": "nn.init.uniform_,c=1"}, [f"{CAT}.init_fn: no argument of uniform_ 'c' (has: a, b)"]),
        ({f"{CAT}.init_fn": "nn.init.uniform_,a"}, [f"{CAT}.init_fn: must read like 'nn.init.uniform_,a=-0.01,b=0.01', got 'nn.init.uniform_,a'"]),
        ({f"{CAT}.init_fn": "nn.init.uniform_,a=-0.1,b=0.1"}, []),
        ({f"{CAT}.sequence_length": 5}, [f"{CAT}.sequence_length: belongs to a sequence_id_feature; remove it here"]),
        ({f"{CAT}.sequence_fields": ["a"]}, [f"{CAT}.sequence_fields: is for sequence features; remove it"]),
        ({f"{CAT}.default_bucketize_value": 5}, [f"{CAT}.default_bucketize_value: needs vocab_list, vocab_dict or vocab_file; it is for their words"]),
        ({f"{CAT}.num_buckets": None, f"{CAT}.vocab_list": ["a", "a"]}, [f"{CAT}.vocab_list[1]: word 'a' is given twice; keep one"]),
        ({f"{CAT}.num_buckets": None, f"{CAT}.vocab_file": "a"}, [f"{CAT}: vocab_file needs default_bucketize_value, the id of words not in the file"]),
        ({f"{INT}.boundaries": [1, 1], f"{INT}.embedding_dim": 4}, [f"{INT}.boundaries[1]: must rise, got 1 before 1"]),
        ({f"{INT}.boundaries": [1, 2]}, [f"{INT}: ids need an embedding_dim of at least 1"]),
        ({f"{INT}.boundaries": [1, "nan"], f"{INT}.embedding_dim": 4}, [f"{INT}.boundaries: must be a finite number, got nan"]),
        ({f"{INT}.embedding_dim": 4}, [f"{INT}.embedding_dim: needs ids (boundaries, num_buckets …), mlp or autodis; this feature is used as it is"]),
        ({f"{INT}.mlp": {}}, [f"{INT}: mlp needs an embedding_dim of at least 1"]),
        ({f"{INT}.boundaries": [1], f"{INT}.embedding_dim": 4, f"{INT}.mlp": {}}, [f"{INT}.mlp: is for float values, but this feature makes ids; keep one"]),
        ({f"{INT}.autodis": {"num_channels": 0}, f"{INT}.embedding_dim": 4}, [f"{INT}.autodis.num_channels: must be at least 1, got 0"]),
        ({f"{INT}.value_dim": 0}, [f"{INT}.value_dim: must be at least 1, got 0"]),
        ({f"{CAT}.embedding_name": "x", "feature_configs[14].id_feature.embedding_name": "x"}, ["feature_configs[14].id_feature.embedding_name: cannot share 'x' with 'cat_0': the number of rows is 200 here and 100 there"]),
    ],
    ids=str,
)  # fmt: skip
def test_features(problems: Problems, edits: dict[str, Any], expected: list[str]) -> None:
    # the widths of DeepFM's fields are another rule
    assert [line for line in problems(edits) if "equal width" not in line] == expected


def test_features_are_defined_once(example: Callable[[str], Path]) -> None:
    loaded = load_with_locations(example("mmoe_taobao"))
    edited = edit_config(loaded.message, {"feature_configs[1].id_feature.feature_name": "user_id"})
    lines = [str(problem) for problem in check_config(edited, locations=loaded.locations).problems]
    assert lines[0] == (
        "mmoe_taobao.config:41 feature_configs[1].id_feature.feature_name: "
        "'user_id' is defined twice, first on line 32; rename one"
    )


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("feature_configs[0].id_feature.expression", None, "feature_configs[0].id_feature.expression: is required"),
        ("feature_configs[0].id_feature.expression", "usr:user_id", "feature_configs[0].id_feature.expression: must read side:name with a side of user, item, context, feature, const, got 'usr:user_id'; did you mean 'user'?"),
        ("feature_configs[0].id_feature.expression", "user:", "feature_configs[0].id_feature.expression: must read side:name with a side of user, item, context, feature, const, got 'user:'"),
        ("feature_configs[0].id_feature.expression", "feature:agee", "feature_configs[0].id_feature.expression: no feature 'agee'; did you mean 'age'?"),
        ("feature_configs[0].id_feature.expression", "feature:age", None),
        ("feature_configs[0].id_feature.expression", "user_id", None),
    ],
)  # fmt: skip
def test_feature_inputs(problems: Problems, path: str, value: Any, expected: str | None) -> None:
    assert problems({path: value}, "mmoe_taobao") == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({f"{GROUPS}[2].feature_names[0]": "int_99"}, [f"{GROUPS}[2].feature_names[0]: no feature 'int_99'; did you mean 'int_9'?"]),
        ({f"{GROUPS}[2].feature_names[+]": "cat_0"}, [f"{GROUPS}[2].feature_names[39]: feature 'cat_0' is listed twice; keep one"]),
        ({f"{GROUPS}[2].feature_names": []}, [f"{GROUPS}[2]: has no features; list them in feature_names"]),
        ({GROUPS: None}, ["model_config: feature_groups is missing; a model needs at least one"]),
        ({f"{GROUPS}[0]": None}, [f"{GROUPS}: deepfm needs a group 'wide' of type WIDE"]),
        ({f"{GROUPS}[2]": None}, [f"{GROUPS}: deepfm needs a group 'deep' of type DEEP"]),
        ({f"{GROUPS}[0].group_type": "DEEP"}, [f"{GROUPS}[0].group_type: deepfm needs the group 'wide' to be WIDE, got DEEP"]),
        ({f"{GROUPS}[+]": {"group_name": "more", "feature_names": ["cat_0"]}}, [f"{GROUPS}[3].group_name: deepfm does not read a group 'more', only 'wide', 'deep', 'fm'"]),
        ({f"{GROUPS}[+]": {"group_name": "fm", "feature_names": ["cat_0"]}}, [f"{GROUPS}[3].group_name: two groups are called 'fm'; rename one"]),
        ({f"{GROUPS}[0].feature_names[+]": "int_0"}, [f"{GROUPS}[0].feature_names[26]: feature 'int_0' has no ids, so no WIDE group can hold it; give it boundaries"]),
        ({f"{GROUPS}[1]": None}, [f"{GROUPS}[1]: deepfm needs features of equal width in it, got 'int_0' 1, 'cat_0' 16; give them one embedding_dim, or list those that have one in a group 'fm'"]),
        ({f"{GROUPS}[0].sequence_groups": [{"feature_names": ["cat_0"]}]}, [f"{GROUPS}[0]: sequence_groups and sequence_encoders belong in DEEP groups only"]),
    ],
    ids=str,
)  # fmt: skip
def test_deepfm_groups(problems: Problems, edits: dict[str, Any], expected: list[str]) -> None:
    assert problems(edits) == expected


@pytest.mark.parametrize(
    ("base", "edits", "expected"),
    [
        ("mmoe_taobao", {f"{GROUPS}[+]": {"group_name": "b", "feature_names": ["age"]}}, [f"{GROUPS}: mmoe takes one group, got 'all', 'b'"]),
        ("mmoe_taobao", {f"{GROUPS}[0].group_type": "WIDE"}, [f"{GROUPS}[0].group_type: mmoe needs the group 'all' to be DEEP, got WIDE"]),
        ("dssm_taobao", {f"{MODEL}.dssm.user_tower.input": "usr"}, [
            f"{MODEL}.dssm.user_tower.input: no feature group 'usr'; did you mean 'user'?",
            f"{GROUPS}[0].group_name: no tower of dssm reads the group 'user'; name it, or remove it"]),
        ("dssm_taobao", {"data_config.negative_sampler": None}, [f"{MODEL}.dssm: has no negatives; set in_batch_negative, or a negative_sampler in data_config"]),
        ("dssm_taobao", {f"{GROUPS}[0].sequence_encoders[0].pooling_encoder.input": "click"}, [
            f"{GROUPS}[0].sequence_encoders[0].pooling_encoder.input: no sequence group 'click'; did you mean 'clicks'?",
            f"{GROUPS}[0].sequence_groups[0]: no sequence_encoders entry reads 'clicks'; add one, or remove the group"]),
        ("dssm_taobao", {f"{GROUPS}[0].sequence_groups[0].feature_names": ["age"]}, [f"{GROUPS}[0].sequence_groups[0]: has no sequence feature; a sequence group needs at least one"]),
        ("dssm_taobao", {f"{GROUPS}[0].sequence_groups[0].feature_names[0]": "clicks__ad"}, [f"{GROUPS}[0].sequence_groups[0].feature_names[0]: no feature 'clicks__ad'; did you mean 'clicks__ad_id'?"]),
        ("dssm_taobao", {"data_config.negative_sampler.attr_fields": []}, ["data_config.negative_sampler: attr_fields is empty; list the item's fields"]),
        ("dssm_taobao", {"data_config.negative_sampler.num_sample": 0}, ["data_config.negative_sampler.num_sample: must be at least 1, got 0"]),
        ("dssm_taobao", {f"{CLICKS}.sequence_length": 0}, [f"{CLICKS}.sequence_length: must be at least 1, got 0"]),
        ("dssm_taobao", {f"{CLICKS}.sequence_delim": ""}, [f"{CLICKS}.sequence_delim: is empty"]),
        ("dssm_taobao", {f"{CLICKS}.features[0].id_feature.sequence_delim": ";"}, [f"{CLICKS}.features[0].id_feature.sequence_delim: belongs to the sequence_feature around it; remove it here"]),
        ("multi_tower_din_taobao", {f"{GROUPS}[1].group_type": "DEEP"}, [f"{GROUPS}[1].group_type: multi_tower_din needs the group 'seq' to be SEQUENCE, got DEEP"]),
        ("multi_tower_din_taobao", {f"{MODEL}.multi_tower_din.din_towers": []}, [f"{GROUPS}[1].group_name: no tower of multi_tower_din reads the group 'seq'; name it, or remove it"]),
        ("multi_tower_din_taobao", {f"{MODEL}.multi_tower_din.final.hidden_units": []}, [f"{MODEL}.multi_tower_din.final: hidden_units is empty"]),
        ("multi_tower_din_taobao", {f"{MODEL}.multi_tower_din.final": {"hidden_units": [64, 0], "dropout_ratio": [0.1, 0.2, 1]}}, [
            f"{MODEL}.multi_tower_din.final.hidden_units[1]: must be at least 1, got 0",
            f"{MODEL}.multi_tower_din.final.dropout_ratio[2]: must be in [0, 1), got 1",
            f"{MODEL}.multi_tower_din.final: dropout_ratio has 3 values for 2 layers; give one, or one for each"]),
    ],
    ids=str,
)  # fmt: skip
def test_groups_and_models(problems: Problems, base: str, edits: dict[str, Any], expected: list[str]) -> None:
    assert problems(edits, base) == expected


def test_models_of_sparse_and_dense_groups(problems: Problems) -> None:
    dlrm = {
        GROUPS: [
            {"group_name": "sparse", "feature_names": ["cat_0", "cat_1"]},
            {"group_name": "dense", "feature_names": ["int_0"]},
        ],
        f"{MODEL}.dlrm": {"dense_mlp": {"hidden_units": [16]}, "final": {"hidden_units": [8]}},
    }
    assert problems(dlrm) == []
    assert problems({**dlrm, f"{MODEL}.dlrm.dense_mlp": None}) == [
        "model_config.dlrm: the group 'dense' needs a dense_mlp"
    ]
    assert problems({**dlrm, f"{GROUPS}[1]": None}) == [
        "model_config.dlrm.dense_mlp: needs a group 'dense' beside the group 'sparse'"
    ]
    assert problems({**dlrm, f"{GROUPS}[0].group_name": "sparce"}) == [
        f"{GROUPS}[0].group_name: dlrm does not read a group 'sparce', only 'sparse', 'dense'",
        f"{GROUPS}: dlrm needs a group 'sparse' of type DEEP",
    ]
    assert problems({**dlrm, "feature_configs[14].id_feature.embedding_dim": 8}) == [
        f"{GROUPS}[0]: dlrm needs features of equal width in it, got 'cat_1' 8, 'cat_0' 16; give them one embedding_dim"
    ]


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({f"{MODEL}.num_class": 2}, [f"{MODEL}.losses[0].binary_cross_entropy: needs num_class 1, got 2"]),
        ({f"{MODEL}.losses": [{"softmax_cross_entropy": {}}]}, [f"{MODEL}.losses[0].softmax_cross_entropy: needs num_class of at least 2, got 1"]),
        ({f"{MODEL}.losses": []}, [f"{MODEL}: losses is empty; name at least one"]),
        ({f"{MODEL}.losses[+]": {"binary_cross_entropy": {}}}, [f"{MODEL}.losses[0].binary_cross_entropy: binary_cross_entropy is given twice; keep one"]),
        ({f"{MODEL}.losses[+]": {"jrc_loss": {"session_name": "user_id"}}}, [f"{MODEL}: jrc_loss has two logits and binary_cross_entropy one; keep one of them"]),
        ({f"{MODEL}.losses": [{"jrc_loss": {"session_name": "user_id", "alpha": 2}}]}, [f"{MODEL}.losses[0].jrc_loss.alpha: must be in [0, 1], got 2"]),
        ({f"{MODEL}.losses": [{"jrc_loss": {"session_name": ""}}]}, [f"{MODEL}.losses[0].jrc_loss.session_name: is empty"]),
        ({f"{MODEL}.losses": [{"jrc_loss": {"session_name": "user_id"}}], f"{MODEL}.num_class": 2}, []),
        ({f"{MODEL}.losses": [{"binary_cross_entropy": {"label_smoothing": -1}}]}, [f"{MODEL}.losses[0].binary_cross_entropy.label_smoothing: must be in [0, 1], got -1"]),
        ({f"{MODEL}.losses": [{"l2_loss": {}}], f"{MODEL}.metrics": [{"auc": {}}, {"xauc": {}}], f"{MODEL}.train_metrics": []}, [f"{MODEL}.metrics[0].auc: needs probabilities, but l2_loss predicts values; use mean_squared_error"]),
        ({f"{MODEL}.metrics": [{"multiclass_auc": {}}]}, [f"{MODEL}.metrics[0].multiclass_auc: needs num_class of at least 2, got 1; use auc"]),
        ({f"{MODEL}.metrics": [{"accuracy": {"top_k": 5}}]}, [f"{MODEL}.metrics[0].accuracy.top_k: must be at most num_class 1, got 5"]),
        ({f"{MODEL}.metrics": [{"recall_at_k": {}}]}, [f"{MODEL}.metrics[0].recall_at_k: needs a grouping_key, the field whose rows are ranked together"]),
        ({f"{MODEL}.metrics": [{"recall_at_k": {"grouping_key": "user_id"}}]}, []),
        ({f"{MODEL}.train_metrics": [{"recall_at_k": {"grouping_key": "user_id"}}]}, [f"{MODEL}.train_metrics[0].recall_at_k.grouping_key: is for evaluation, where all rows are kept; remove it here"]),
        ({f"{MODEL}.train_metrics": [{"auc": {"thresholds": 1}, "decay_rate": 1}]}, [f"{MODEL}.train_metrics[0].auc.thresholds: must be at least 2, got 1", f"{MODEL}.train_metrics[0].decay_rate: must be in [0, 1), got 1"]),
        ({f"{MODEL}.use_pareto_loss_weight": True}, [f"{MODEL}.use_pareto_loss_weight: needs a model of two or more task_towers"]),
    ],
    ids=str,
)  # fmt: skip
def test_losses_and_metrics(problems: Problems, edits: dict[str, Any], expected: list[str]) -> None:
    assert problems(edits) == expected


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ({TOWERS: []}, [f"{MODEL}.mmoe: task_towers is empty"]),
        ({f"{TOWERS}[0].label_name": "click"}, [f"{TOWERS}[0].label_name: no label 'click'; did you mean 'clk'?"]),
        ({f"{TOWERS}[0].tower_name": "cvr"}, [f"{TOWERS}[1].tower_name: two towers are called 'cvr'; rename one"]),
        ({f"{MODEL}.losses": [{"l2_loss": {}}]}, [f"{MODEL}.losses[0]: losses of a multi-task model belong into its task_towers"]),
        ({f"{MODEL}.num_class": 2}, [f"{MODEL}.num_class: num_class of a multi-task model belongs into its task_towers"]),
        ({f"{TOWERS}[0].losses": []}, [f"{TOWERS}[0]: losses is empty; name at least one"]),
        ({f"{TOWERS}[0].sample_weight_name": "w"}, [f"{TOWERS}[0].sample_weight_name: no sample weight field 'w'"]),
        ({f"{TOWERS}[0].task_space_indicator_label": "cl"}, [f"{TOWERS}[0].task_space_indicator_label: no label 'cl'; did you mean 'clk'?"]),
        ({f"{TOWERS}[0].pareto_min_loss_weight": 0.5}, [f"{TOWERS}[0].pareto_min_loss_weight: needs use_pareto_loss_weight: true"]),
        ({f"{TOWERS}[:].pareto_min_loss_weight": 0.6, f"{MODEL}.use_pareto_loss_weight": True}, [f"{MODEL}: the towers' pareto_min_loss_weight add up to 1.2, which must be at most 1"]),
        ({f"{TOWERS}[:].pareto_min_loss_weight": 0.5, f"{MODEL}.use_pareto_loss_weight": True}, []),
        ({f"{MODEL}.mmoe.num_expert": 0}, [f"{MODEL}.mmoe.num_expert: must be at least 1, got 0"]),
    ],
    ids=str,
)  # fmt: skip
def test_task_towers(problems: Problems, edits: dict[str, Any], expected: list[str]) -> None:
    assert problems(edits, "mmoe_taobao") == expected


def test_related_towers_come_before(problems: Problems) -> None:
    tower = {
        "label_name": "clk",
        "losses": [{"binary_cross_entropy": {}}],
        "relation_mlp": {"hidden_units": [4]},
    }
    towers = [
        {**tower, "tower_name": "ctr", "relation_tower_names": ["cvr"]},
        {**tower, "tower_name": "cvr", "label_name": "buy", "relation_tower_names": ["ctr"]},
    ]
    assert problems({f"{MODEL}.dbmtl": {"task_towers": towers}}, "mmoe_taobao") == [
        "model_config.dbmtl.task_towers[0].relation_tower_names[0]: no tower before this one 'cvr'"
    ]


def test_two_towers_learn_by_softmax(problems: Problems) -> None:
    edits = {f"{MODEL}.losses": [{"binary_cross_entropy": {}}], f"{MODEL}.metrics": [{"auc": {}}]}
    assert problems(edits, "dssm_taobao") == [
        "model_config.losses[0].binary_cross_entropy: "
        "a two-tower model learns by softmax_cross_entropy; use that",
        "model_config.metrics[0].auc: does not fit a two-tower model; "
        "use one of recall_at_k, ndcg_at_k, hit_rate_at_k, mrr",
    ]


@pytest.mark.parametrize(
    ("base", "edits", "expected"),
    [
        ("deepfm_criteo", {f"{TRAIN}.early_stopping": {}}, []),
        ("deepfm_criteo", {f"{TRAIN}.early_stopping.metric": "grouped_auc"}, []),
        ("deepfm_criteo", {f"{TRAIN}.early_stopping.metric": "gauc"}, [f"{TRAIN}.early_stopping.metric: no metric of the evaluation 'gauc'; did you mean 'auc'?"]),
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


def test_what_is_not_available_is_named_and_not_looked_into(problems: Problems) -> None:
    broken = {f"{MODEL}.deepfm.deep": None, f"{DENSE}.adam_optimizer.lr": "nan"}
    available = {"model": ["dlrm", "dcn_v1"], "dense_optimizer": {"sgd_optimizer"}, "reader": ["CsvDataset"]}
    assert problems(broken, available=available) == [
        "train_config.dense_optimizer.adam_optimizer: "
        "'adam_optimizer' is not supported yet; available: sgd_optimizer",
        "model_config.deepfm: 'deepfm' is not supported yet; available: dcn_v1, dlrm",
        "data_config.dataset_type: 'ParquetDataset' is not supported yet; available: CsvDataset",
    ]


def test_naming_a_refused_feature_is_no_second_problem(problems: Problems) -> None:
    edits = {f"{GROUPS}[2].feature_names[0]": "int_99"}
    got = problems(edits, available={"feature": ["id_feature"]})
    refused = [line for line in got if "'raw_feature' is not supported yet; available: id_feature" in line]
    assert len(refused) == 13
    assert [line for line in got if line not in refused] == [
        f"{GROUPS}[2].feature_names[0]: no feature 'int_99' (has: cat_0, cat_1, cat_10, cat_11, cat_12, cat_13, "
        "cat_14, cat_15, cat_16, cat_17, cat_18, cat_19 …)"
    ]


def test_every_kind_of_component_can_be_unavailable(problems: Problems) -> None:
    edits = {
        f"{MODEL}.dssm.in_batch_negative": True,
        f"{MODEL}.train_metrics": [{"recall_at_k": {}}],
    }
    everything = {kind: [] for kind in {*KINDS.values(), "reader"}}
    refused = problems(edits, "dssm_taobao", available=everything)
    assert all(line.endswith("is not supported yet; available: none") for line in refused)
    named = {line.split("'")[1] for line in refused}
    assert named >= {
        "adam_optimizer", "adagrad_optimizer", "constant_learning_rate", "softmax_cross_entropy", "recall_at_k",
        "dssm", "id_feature", "sequence_feature", "pooling_encoder", "negative_sampler", "ParquetDataset",
    }  # fmt: skip


def test_every_name_of_the_schema_can_be_available(config: PipelineConfig) -> None:
    names: dict[str, set[str]] = {"reader": set(data_pb2.DatasetType.keys())}
    for message in (
        *optimizer_pb2.DESCRIPTOR.message_types_by_name.values(),
        model_pb2.ModelConfig.DESCRIPTOR,
    ):
        for oneof in message.oneofs:
            kind = KINDS.get((message.name, oneof.name))
            if kind:
                names.setdefault(kind, set()).update(field.name for field in oneof.fields)
    assert check_config(config, available=names).ok


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (f"{CAT}.zch", {"zch_size": 5}, "'zch' is not supported yet; use num_buckets, hash_bucket_size or a vocabulary"),
        (f"{MODEL}.kernel", "TRITON", "'kernel' is not supported yet; use PYTORCH"),
        (f"{MODEL}.kernel", "PYTORCH", None),
        (f"{TRAIN}.save_checkpoints_timestamps", [5], "'save_checkpoints_timestamps' is not supported yet; use save_checkpoints_steps"),
        (f"{TRAIN}.save_checkpoints_timestamp_interval", 0, None),
        (f"{TRAIN}.delta_embedding_dump_config", {}, "'delta_embedding_dump_config' is not supported yet; leave it out"),
    ],
    ids=str,
)  # fmt: skip
def test_fields_that_nothing_implements(
    problems: Problems, path: str, value: Any, expected: str | None
) -> None:
    assert problems({path: value}) == ([] if expected is None else [f"{path}: {expected}"])


def test_the_table_of_unsupported_fields_names_fields_that_exist() -> None:
    fields: dict[str, set[str]] = {}
    stack: list[Any] = [PipelineConfig.DESCRIPTOR]
    while stack:
        message = stack.pop()
        if message.name not in fields:
            fields[message.name] = set(message.fields_by_name)
            stack += [field.message_type for field in message.fields if field.message_type is not None]
    for entry in UNSUPPORTED:
        message, _, field = entry.partition(".")
        known = set().union(*fields.values()) if message == "*" else fields[message]
        assert field in known, entry
    for message, oneof in KINDS:
        assert message in fields, (message, oneof)


def test_an_empty_config_is_reported_not_crashed_on() -> None:
    report = check_config(PipelineConfig())
    assert [str(problem) for problem in report.problems] == [
        "train_config: is missing",
        "data_config: is missing",
        "model_config: is missing",
        "feature_configs: is missing; a model needs features",
        "train_input_path: is required",
        "eval_input_path: is required",
        "model_dir: is required",
    ]


def test_the_check_leaves_the_config_alone(config: PipelineConfig) -> None:
    before = config.SerializePartialToString(deterministic=True)
    check_config(config)
    assert config.SerializePartialToString(deterministic=True) == before


def test_large_configs_are_checked_quickly() -> None:
    features = [{"id_feature": {"feature_name": f"cat_{i}", "num_buckets": 5}} for i in range(10_000)]
    groups = [
        {"group_name": f"g{i % 50}", "feature_names": [f"dog_{j}" for j in range(i, i + 100)]}
        for i in range(300)
    ]
    config = load_config(
        {"feature_configs": features, "model_config": {"feature_groups": groups, "dcn_v1": {}}}
    )
    start = time.process_time()
    report = check_config(config)
    assert time.process_time() - start < 6
    assert len(report.problems) <= 501
    assert str(report.problems[-1]).startswith("more than 500 of these")


def test_rules_are_listed_with_what_they_check() -> None:
    assert len(CHECKS) > 20
    for name, rule in CHECKS.items():
        assert rule.__doc__, name


def test_watching_needs_something_to_evaluate(problems: Problems) -> None:
    found = problems({"eval_input_path": "", f"{TRAIN}.early_stopping": {"metric": "auc"}})
    expected = f"{TRAIN}.early_stopping.metric: waits for evaluations, and eval_input_path is empty; set it"
    assert expected in found


def test_positive_labels_belong_to_labels_and_name_texts(problems: Problems) -> None:
    path = "data_config.positive_labels"
    found = problems({path: [{"label_field": "labell", "values": ["yes"]}]})
    assert [line for line in found if line.startswith(f"{path}[0].label_field: no label 'labell'")] == found
    label = {"label_field": "label", "values": []}
    assert problems({"data_config.label_fields": ["label"], path: [label]}) == [
        f"{path}[0]: values is empty; name the texts that count as 1"
    ]
