"""Features from `feature_configs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from recgrad.config.messages import chosen, to_kwargs
from recgrad.config.names import joiner_of
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.features.base import MODES, Feature
from recgrad.data.features.config import SequenceSetting, Setting
from recgrad.data.features.registry import build_kind
from recgrad.data.hashes import DEFAULT_HASH
from recgrad.errors import ConfigError, Problem
from recgrad.registry import UnknownNameError


def features_of(config: PipelineConfig) -> list[Feature]:
    """The encoders of all features of a config."""
    data = to_kwargs(config.data_config)
    return build_features(
        config.feature_configs,
        fg_mode=data["fg_mode"],
        multival_sep=data["fg_encoded_multival_sep"],
        joiner=joiner_of(config),
        hash=data["hash"],
    )


def build_features(
    feature_configs: Sequence[Any],
    *,
    fg_mode: str,
    multival_sep: str,
    joiner: str = "__",
    hash: str = DEFAULT_HASH,
) -> list[Feature]:
    """The features of a config, in its order, groups taken apart.

    Features with stub_type are left out; those that read them carry them along.

    Args:
        feature_configs: FeatureConfig messages.
        fg_mode: "FG_NONE", "FG_NORMAL", "FG_DAG" or "FG_BUCKETIZE".
        multival_sep: what separates values of a text when columns are already encoded.
        joiner: what stands between the names of a sequence_feature and of its member.
        hash: what makes ids of texts, by its name in HASHES, for features that do not name one.
    """
    if fg_mode not in MODES:
        raise ConfigError(
            [Problem("data_config.fg_mode", f"must be one of {', '.join(MODES)}, got {fg_mode!r}")]
        )
    if not multival_sep:
        raise ConfigError([Problem("data_config.fg_encoded_multival_sep", "must not be empty")])
    common = Setting(fg_mode, multival_sep, joiner=joiner, hash=hash)
    problems: list[Problem] = []
    features: list[Feature] = []
    for i, message in enumerate(feature_configs):
        kind = chosen(message, "feature")
        if kind is None:
            problems.append(Problem(f"feature_configs[{i}]", "is empty; name a feature kind in it"))
            continue
        where = f"feature_configs[{i}].{kind[0]} '{_name(kind[1])}'"
        try:
            features.extend(build_kind(*kind, _setting(*kind, common)))
        except (ValueError, UnknownNameError) as error:
            problems.append(Problem(where, str(error)))
    problems.extend(_link(features))
    if problems:
        raise ConfigError(problems)
    return [feature for feature in features if not feature.stub]


def in_order(features: Sequence[Feature]) -> list[Feature]:
    """The features and the stubs they need, each after those that it reads."""
    order: dict[str, Feature] = {}

    def visit(feature: Feature, path: tuple[str, ...]) -> None:
        if feature.name in path:
            raise ValueError(f"features read each other in a circle: {' → '.join((*path, feature.name))}")
        if feature.name not in order:
            for needed in feature.needs:
                visit(needed, (*path, feature.name))
            order[feature.name] = feature

    for feature in features:
        visit(feature, ())
    return list(order.values())


def _name(message: Any) -> str:
    return str(getattr(message, "feature_name", "") or getattr(message, "sequence_name", ""))


def _setting(kind: str, message: Any, setting: Setting) -> Setting:
    if not kind.startswith("sequence_") or kind == "sequence_feature":
        return setting
    if not message.sequence_delim:
        raise ValueError("sequence_delim must not be empty")
    return replace(setting, sequence=SequenceSetting(None, message.sequence_length, message.sequence_delim))


def _link(features: list[Feature]) -> list[Problem]:
    problems = []
    known: dict[str, Feature] = {}
    for feature in features:
        if feature.name in known:
            problems.append(Problem(f"feature '{feature.name}'", "is defined twice; rename one"))
        known[feature.name] = feature
    for feature in features:
        try:
            feature.link(known)
        except ValueError as error:
            problems.append(Problem(f"feature '{feature.name}'", str(error)))
    if not problems:
        try:
            in_order(features)
        except ValueError as error:
            problems.append(Problem("feature_configs", str(error)))
    return problems
