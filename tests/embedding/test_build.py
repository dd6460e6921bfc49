"""The sparse optimizer of a config: which table gets which rule."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.protobuf import text_format

from recgrad.config.proto.optimizer_pb2 import SparseOptimizer as Message
from recgrad.embedding.build import build_sparse_optimizer
from recgrad.embedding.local.engine import LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import ConfigError
from recgrad.optim.sparse import SPARSE_OPTIMIZERS


def engine() -> LocalEngine:
    names = ["user_id", "item_id", "item_brand", "frozen"]
    tables = [TableSpec(n, 20, 4, trainable=n != "frozen") for n in names]
    return LocalEngine(tables, [LookupSpec(n, n, n) for n in names], keys=names)


def build(text: str) -> Any:
    return build_sparse_optimizer(engine(), text_format.Parse(text, Message()))


def assigned(optimizer: Any) -> list[tuple[str, list[str]]]:
    return [(g["name"], [t.name for t in optimizer._tables(g)]) for g in optimizer.param_groups]


@pytest.mark.parametrize("name", sorted(SPARSE_OPTIMIZERS))
def test_every_optimizer_is_built_from_its_message(name: str) -> None:
    optimizer = build(f"{name} {{ lr: 0.25 gradient_clipping: true max_gradient: 2 }}")
    assert type(optimizer) is SPARSE_OPTIMIZERS[name]
    group = optimizer.param_groups[0]
    assert (group["lr"], group["initial_lr"]) == (0.25, 0.25)
    assert (group["gradient_clipping"], group["max_gradient"]) == (True, 2.0)


def test_first_full_match_wins_and_the_rest_is_main() -> None:
    optimizer = build(
        """adagrad_optimizer { lr: 0.1 }
        part_optimizers { regex_pattern: "item_id" sgd_optimizer { lr: 0.2 } }
        part_optimizers { regex_pattern: "item_.*" adam_optimizer { lr: 0.3 } }"""
    )
    assert assigned(optimizer) == [
        ("main", ["user_id"]),
        ("item_id", ["item_id"]),
        ("item_.*", ["item_brand"]),
    ]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2, 0.3]


def test_main_stays_when_patterns_take_every_table() -> None:
    optimizer = build(
        'adagrad_optimizer { lr: 0.1 } part_optimizers { regex_pattern: ".*" sgd_optimizer { lr: 0.2 } }'
    )
    assert assigned(optimizer) == [("main", []), (".*", ["user_id", "item_id", "item_brand"])]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            "item",
            "part_optimizers[0].regex_pattern: 'item' matches no table (it must match the whole name); "
            "nearest: item_id",
        ),
        ("(", "'(' is not a regular expression"),
    ],
)
def test_pattern_without_a_table_is_an_error(pattern: str, message: str) -> None:
    part = f'part_optimizers {{ regex_pattern: "{pattern}" sgd_optimizer {{ lr: 1 }} }}'
    with pytest.raises(ConfigError, match=re.escape(message)):
        build(f"sgd_optimizer {{ lr: 1 }} {part}")


def test_pattern_whose_tables_are_taken_is_an_error() -> None:
    part = 'part_optimizers { regex_pattern: "item_id" sgd_optimizer { lr: 1 } }'
    with pytest.raises(ConfigError, match="all 1 that 'item_id' matches are taken by earlier patterns"):
        build(f"sgd_optimizer {{ lr: 1 }} {part} {part}")


def test_refused_settings_are_config_errors_with_their_path() -> None:
    with pytest.raises(
        ConfigError, match=r"sparse_optimizer.adam_optimizer: beta1 must be in \[0, 1\), got 2"
    ):
        build("adam_optimizer { lr: 0.1 beta1: 2 }")
    with pytest.raises(ConfigError, match="weight_decay has no effect with weight_decay_mode NONE"):
        build("rowwise_adagrad_optimizer { lr: 0.1 weight_decay: 0.1 }")
    with pytest.raises(ConfigError, match="no optimizer is set"):
        build("")


def test_custom_optimizer_by_class_path() -> None:
    params = 'params { fields { key: "lr" value { number_value: 0.5 } } }'
    text = f'custom_optimizer {{ class_path: "recgrad.optim.sparse.adagrad.Adagrad" {params} }}'
    assert build(text).param_groups[0]["lr"] == 0.5
    with pytest.raises(ConfigError, match="is not a SparseOptimizer class"):
        build('custom_optimizer { class_path: "torch.optim.Adam" }')
