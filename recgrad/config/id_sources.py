"""The fields of a feature by which its ids are made, of which it sets one."""

from __future__ import annotations

from typing import Any

ID_SOURCES = (
    "num_buckets",
    "hash_bucket_size",
    "vocab_list",
    "vocab_dict",
    "vocab_file",
    "zch",
    "dynamicemb",
)
BOUNDARIES = "boundaries"


def id_sources(message: Any) -> list[str]:
    """The fields by which ids are made that a feature's message sets."""
    fields = message.DESCRIPTOR.fields_by_name
    return [
        name
        for name in (*ID_SOURCES, BOUNDARIES)
        if name in fields
        and (len(getattr(message, name)) > 0 if fields[name].is_repeated else message.HasField(name))
    ]
