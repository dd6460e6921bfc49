"""Defaults of feature kinds and patterns in feature groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recgrad.check import check_rules
from recgrad.config import load_config, load_with_locations
from recgrad.config.expand import expand_config
from recgrad.errors import ConfigError

FEATURES = """
feature_configs { id_feature { feature_name: "uid" expression: "user:uid" num_buckets: 9 } }
feature_configs { id_feature { feature_name: "tag" expression: "item:tag" num_buckets: 7 embedding_dim: 4 } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" } }
feature_configs { raw_feature { feature_name: "age" expression: "user:age" boundaries: [1, 2] } }
feature_configs { sequence_id_feature { feature_name: "seen" expression: "user:seen" num_buckets: 9 } }
feature_configs {
  sequence_feature {
    sequence_name: "buys"
    features { id_feature { feature_name: "iid" expression: "user:iid" hash_bucket_size: 5 } }
  }
}
"""


def groups_of(*groups: str) -> str:
    """Groups as text."""
    return "model_config {" + "".join(f"feature_groups {{ {group} }}\n" for group in groups) + "}\n"


def expanded(text: str, tmp_path: Path) -> Any:
    path = tmp_path / "a.config"
    path.write_text(text)
    loaded = load_with_locations(path)
    return expand_config(loaded.message, loaded.locations)


@pytest.mark.parametrize(
    ("names", "kind", "expected"),
    [
        ('"*"', "DEEP", ["uid", "tag", "price", "age"]),
        ('"*"', "WIDE", ["uid", "tag", "age"]),
        ('"*"', "SEQUENCE", ["seen", "buys__iid"]),
        ('["*", "!tag"]', "DEEP", ["uid", "price", "age"]),
        ('["*", "!a*", "!item:*"]', "DEEP", ["uid"]),
        ('"user:*"', "DEEP", ["uid", "age"]),
        ('"raw_feature:*"', "DEEP", ["price", "age"]),
        ('["age", "id_feature:*"]', "DEEP", ["age", "uid", "tag"]),
        ('["price", "*"]', "DEEP", ["price", "uid", "tag", "age"]),
        ('"?ag"', "DEEP", ["tag"]),
        ('"sequence_id_feature:*"', "SEQUENCE", ["seen", "buys__iid"]),
    ],
)
def test_patterns_take_what_the_group_can_hold(
    names: str, kind: str, expected: list[str], tmp_path: Path
) -> None:
    text = FEATURES + groups_of(f'group_name: "a" group_type: {kind} feature_names: {names}')
    config = expanded(text, tmp_path)
    assert list(config.model_config.feature_groups[0].feature_names) == expected


def test_patterns_in_sequence_groups(tmp_path: Path) -> None:
    inner = 'sequence_groups { group_name: "s" feature_names: ["tag", "buys__*"] }'
    text = FEATURES + groups_of(f'group_name: "a" group_type: DEEP feature_names: "uid" {inner}')
    group = expanded(text, tmp_path).model_config.feature_groups[0]
    assert list(group.sequence_groups[0].feature_names) == ["tag", "buys__iid"]


def test_defaults_fill_what_a_feature_leaves_unset(tmp_path: Path) -> None:
    text = FEATURES.replace(' expression: "item:tag"', "") + (
        'feature_defaults { id_feature { embedding_dim: 16 hash_bucket_size: 100 expression: "item:*" } }\n'
        "feature_defaults { raw_feature { embedding_dim: 8 boundaries: [5] } }\n"
    )
    config = expanded(text, tmp_path)
    uid, tag, price, age, seen, buys = (item for item in config.feature_configs)
    assert uid.id_feature.embedding_dim == 16
    assert uid.id_feature.expression == "user:uid"
    assert not uid.id_feature.HasField("hash_bucket_size"), "it has num_buckets already"
    assert (tag.id_feature.embedding_dim, tag.id_feature.expression) == (4, "item:tag")
    assert list(price.raw_feature.boundaries) == [5]
    assert list(age.raw_feature.boundaries) == [1, 2]
    assert not seen.sequence_id_feature.HasField("embedding_dim"), "another kind"
    assert buys.sequence_feature.features[0].id_feature.embedding_dim == 16
    assert not config.feature_defaults


def test_a_config_without_shorthand_stays_the_same_object() -> None:
    config = load_config({"model_config": {"feature_groups": [{"group_name": "a", "feature_names": ["x"]}]}})
    assert expand_config(config) is config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (groups_of('group_name: "a" feature_names: "prise*"'), "a.config:13 model_config.feature_groups[0]"),
        (groups_of('group_name: "a" feature_names: "prise*"'), "did you mean 'price'?"),
        (
            groups_of('group_name: "a" group_type: WIDE feature_names: "raw_feature:p*"'),
            "a WIDE group can hold",
        ),
        (groups_of('group_name: "a" feature_names: ["*", "!seen"]'), "leaves out nothing"),
        (groups_of('group_name: "a" feature_names: ["!tag"]'), "leaves out nothing"),
        ("feature_defaults { combo_feature { embedding_dim: 3 } }", "there is no combo_feature to take them"),
        ("feature_defaults { }", "names no kind"),
        ('feature_defaults { id_feature { feature_name: "x" } }', "feature's own"),
        ("feature_defaults { id_feature {} }\nfeature_defaults { id_feature {} }", "has defaults already"),
    ],
)
def test_what_matches_nothing_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        expanded(FEATURES + text, tmp_path)
    assert message in str(caught.value)


def test_errors_of_expanded_fields_name_the_line_they_come_from(tmp_path: Path) -> None:
    path = tmp_path / "a.config"
    path.write_text(
        FEATURES
        + 'feature_defaults { id_feature { embedding_dim: 16 pooling: "best" } }\n'
        + groups_of('group_name: "a" feature_names: ["uid", "nothing", "item:*"]')
    )
    loaded = load_with_locations(path)
    problems = check_rules(loaded.message, locations=loaded.locations).problems
    texts = [str(problem) for problem in problems]
    assert any(t.startswith("a.config:13 feature_configs[0].id_feature.pooling") for t in texts), texts
    assert any("a.config:14" in t and "'nothing'" in t for t in texts), texts
