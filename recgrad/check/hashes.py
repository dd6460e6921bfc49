"""The hash of texts: that it is used, and that it is the one that the environment asks for."""

from __future__ import annotations

import os

from recgrad.check.rule import CHECKS, Context
from recgrad.config.proto.data_pb2 import FG_NONE
from recgrad.config.proto.feature_pb2 import MURMUR64

FARM_HASH = "USE_FARM_HASH_TO_BUCKETIZE"
"""The environment variable by which TorchEasyRec hashes with FarmHash."""


@CHECKS.register("hashes")
def check_hashes(context: Context) -> None:
    """A hash that is set makes ids of texts, and those that TorchEasyRec would make here."""
    data = context.config.data_config
    encoded = data.fg_mode == FG_NONE
    hashed = [
        feature.node
        for feature in context.features
        if "hash" in feature.node.message.DESCRIPTOR.fields_by_name
        and feature.node.message.HasField("hash_bucket_size")
    ]
    asked = [("data_config.hash", data.hash)] if data.HasField("hash") else []
    if asked and (encoded or not hashed):
        why = "fg_mode FG_NONE reads ids as they are" if encoded else "no feature has hash_bucket_size"
        context.problem("data_config.hash", f"has no effect: {why}; remove it")
    for feature in context.features:
        node = feature.node
        if "hash" not in node.message.DESCRIPTOR.fields_by_name or not node.message.HasField("hash"):
            continue
        asked.append((node.at("hash"), node.message.hash))
        if encoded or not node.message.HasField("hash_bucket_size"):
            why = "fg_mode FG_NONE reads ids as they are" if encoded else "it needs hash_bucket_size"
            context.problem(node.at("hash"), f"has no effect: {why}; remove it")
    if os.environ.get(FARM_HASH, "").lower() not in ("true", "1"):
        return
    for path, hash in asked:
        if hash == MURMUR64:
            context.problem(
                path,
                f"MURMUR64 gives the ids that TorchEasyRec makes without {FARM_HASH}, but the environment "
                "sets that, and FarmHash is not available; unset it, or encode texts beforehand (FG_NONE)",
            )
