"""Whole configs around the small models of tests/models/configs, and what the check says of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format

from recgrad.check import Report, check_config, check_rules
from recgrad.config import PipelineConfig, edit_config, load_config

MODELS = Path(__file__).parents[1] / "models" / "configs"
_REST = """
train_input_path: "train.parquet" eval_input_path: "" model_dir: "out"
train_config {
  num_epochs: 1
  sparse_optimizer { adagrad_optimizer { lr: 0.05 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.001 } constant_learning_rate {} }
}
data_config { dataset_type: ParquetDataset fg_mode: FG_DAG batch_size: 64 label_fields: ["click", "buy"] }
feature_configs { id_feature { feature_name: "a" expression: "user:a" num_buckets: 20 embedding_dim: 4 } }
feature_configs { id_feature { feature_name: "b" expression: "item:b" hash_bucket_size: 9 embedding_dim: 4 } }
feature_configs { id_feature { feature_name: "c" expression: "item:c" vocab_list: ["u"] embedding_dim: 4 } }
feature_configs { raw_feature { feature_name: "x" expression: "user:x" normalizer: "method=log10" } }
feature_configs { raw_feature { feature_name: "y" expression: "item:y" value_dim: 2 } }
feature_configs {
  sequence_feature {
    sequence_name: "h" sequence_length: 5 sequence_delim: "|"
    features { id_feature { feature_name: "item" expression: "item:item" num_buckets: 9 embedding_dim: 4 } }
    features { raw_feature { feature_name: "price" expression: "item:price" } }
  }
}
"""
_NEXT_ITEM = """
next_item_sampler {
  input_path: "items.parquet" item_id_field: "b" history_field: "h__item" attr_fields: ["b", "c"]
}
"""
_NEGATIVES = """
negative_sampler { input_path: "items.parquet" item_id_field: "b" num_sample: 2 attr_fields: ["b", "c"] }
"""


@pytest.fixture(scope="session")
def whole() -> Callable[[str], PipelineConfig]:
    """The config of a model by name, with features and training."""

    def load(name: str) -> PipelineConfig:
        config = PipelineConfig()
        text_format.Parse(_REST, config)
        text_format.Parse((MODELS / f"{name}.config").read_text(), config.model_config)
        if name == "dbmtl":  # a tower of this one builds on the one behind it
            config.model_config.dbmtl.task_towers.reverse()
        if name in ("sasrec", "hstu"):  # these learn from the items of a history
            text_format.Parse(_NEXT_ITEM, config.data_config)
        if name == "hstu_match":  # it takes no items of other rows
            text_format.Parse(_NEGATIVES, config.data_config)
        return config

    return load


@pytest.fixture
def problems(config: PipelineConfig, example: Callable[[str], Path]) -> Callable[..., list[str]]:
    """The problems of the DeepFM config, or of another example, after edits; `build` builds it too."""

    def problems(
        edits: dict[str, object], base: str | None = None, build: bool = False, **options: object
    ) -> list[str]:
        message = config if base is None else load_config(example(base))
        check = check_config if build else check_rules
        report: Report = check(edit_config(message, edits), **options)  # type: ignore[operator]
        return [str(problem) for problem in report.problems]

    return problems


@pytest.fixture
def hints(config: PipelineConfig) -> Callable[..., list[str]]:
    """The hints on the DeepFM config after edits; there must be no problems."""

    def check(edits: dict[str, object], **options: object) -> list[str]:
        report: Report = check_rules(edit_config(config, edits), **options)  # type: ignore[arg-type]
        assert report.ok, report.problems
        return [str(hint) for hint in report.hints]

    return check
