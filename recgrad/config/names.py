"""How the members of sequence features are named, and what the environment says of it."""

from __future__ import annotations

import os

from recgrad.config.proto.pipeline_pb2 import PipelineConfig

VARIABLE = "USE_RTP"
"""The variable by which TorchEasyRec's users ask for one underscore; the config then says so itself."""


def joiner_of(config: PipelineConfig) -> str:
    """What stands between the name of a sequence_feature and that of its member, in features and columns."""
    return "_" if config.rtp_names else "__"


def take_environment(config: PipelineConfig) -> None:
    """Write into a config what the environment asks for and the config does not say."""
    if os.environ.get(VARIABLE, "").lower() in ("1", "true") and not config.HasField("rtp_names"):
        config.rtp_names = True
