"""Groups of sequences of equal lengths, such as the items, categories and times of past clicks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recgrad.config.messages import chosen
from recgrad.data.features.base import Feature
from recgrad.data.features.config import SequenceSetting, Setting
from recgrad.data.features.registry import FEATURES, build_kind


@FEATURES.register("sequence_feature")
class SequenceFeature(Feature):
    """A group: its members are named `<sequence_name>__<feature_name>`, with one `_` by rtp_names."""

    @classmethod
    def build(cls, config: Any, setting: Setting) -> list[Feature]:
        """The members, each a sequence cut as the group says."""
        if not config.features:
            raise ValueError("a sequence_feature must have features")
        if not config.sequence_delim:
            raise ValueError("sequence_delim must not be empty")
        if config.sequence_length < 1:
            raise ValueError(f"sequence_length must be at least 1, got {config.sequence_length}")
        group = SequenceSetting(config.sequence_name, config.sequence_length, config.sequence_delim)
        inner = replace(setting, sequence=group)
        members: list[Feature] = []
        for member in config.features:
            kind = chosen(member, "feature")
            if kind is None:
                raise ValueError("an entry of features is empty; name a feature kind in it")
            members.extend(build_kind(*kind, inner))
        return members
