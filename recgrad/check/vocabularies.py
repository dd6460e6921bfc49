"""Vocabulary files that are on another machine than the one that checks the config."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.config.values import show
from recgrad.errors import Problem

_NEEDED = {"vocab_file", "vocab_list", "default_bucketize_value"}


def with_stand_ins(config: PipelineConfig) -> tuple[PipelineConfig, list[Problem], bool]:
    """The config with one word in place of each vocabulary file that is not here; hints on them.

    The last value says whether tables can be planned all the same: not where a table is shared, since its
    features must agree on a size that nobody knows.
    """
    copy = PipelineConfig()
    copy.CopyFrom(config)
    hints: list[Problem] = []
    whole = True
    for path, feature in _features(copy):
        if not set(feature.DESCRIPTOR.fields_by_name) >= _NEEDED or not feature.vocab_file:
            continue
        file = os.path.join(getattr(feature, "asset_dir", ""), feature.vocab_file)
        if os.path.exists(file):
            continue
        hints.append(Problem(f"{path}.vocab_file", f"no file {show(file)} here; a run needs it"))
        feature.ClearField("vocab_file")
        feature.vocab_list.append("word")
        whole = whole and not feature.embedding_name
    return copy, hints, whole


def _features(config: PipelineConfig) -> Iterator[tuple[str, Any]]:
    """Path and message of every feature; the members of sequences one by one."""
    for i, item in enumerate(config.feature_configs):
        choice = item.WhichOneof("feature")
        message = getattr(item, str(choice))
        path = f"feature_configs[{i}].{choice}"
        if choice != "sequence_feature":
            yield path, message
            continue
        for j, member in enumerate(message.features):
            inner = member.WhichOneof("feature")
            yield f"{path}.features[{j}].{inner}", getattr(member, str(inner))
