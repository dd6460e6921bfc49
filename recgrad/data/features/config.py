"""Buckets, defaults and normalizers as a feature's message sets them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from recgrad.config.messages import to_kwargs
from recgrad.data.features.buckets import (
    Boundaries,
    Bucketizer,
    HashBuckets,
    NumBuckets,
    Report,
    Vocabulary,
    vocabulary_of_dict,
    vocabulary_of_file,
    vocabulary_of_list,
    whole_numbers,
)
from recgrad.data.features.columns import Values
from recgrad.data.features.normalizers import Normalizer, build_normalizer
from recgrad.data.features.outputs import FloatOutput, IdOutput
from recgrad.data.hashes import DEFAULT_HASH
from recgrad.data.hashing import Ints

BUCKETS = (
    "hash_bucket_size",
    "num_buckets",
    "vocab_list",
    "vocab_dict",
    "vocab_file",
    "boundaries",
    "zch",
    "dynamicemb",
)
LIVING_IDS = 2**63 - 2
"""Ids of tables whose rows belong to ids as they come are below this."""
_INTEGERS = ("int", "int32", "int64", "bigint")


@dataclass(frozen=True)
class SequenceSetting:
    """How a feature is a sequence: its group's name if any, longest length (0: any), delimiter."""

    name: str | None
    length: int
    delimiter: str


@dataclass(frozen=True)
class Setting:
    """What a feature is told beside its own message; `hash` holds where that names none."""

    mode: str
    multival_sep: str
    sequence: SequenceSetting | None = None
    joiner: str = "__"
    hash: str = DEFAULT_HASH

    @property
    def prefix(self) -> str:
        """What the names of a group's members and of their columns begin with; "" outside a group."""
        return f"{self.sequence.name}{self.joiner}" if self.sequence and self.sequence.name else ""

    @property
    def generates(self) -> bool:
        """Whether features are computed here (FG_NORMAL, FG_DAG), not read by their names."""
        return self.mode in ("FG_NORMAL", "FG_DAG")


class AsIntegers:
    """Reads values as integers before they are hashed or looked up: "012" is then 12."""

    def __init__(self, bucketizer: Bucketizer) -> None:
        self.bucketizer = bucketizer
        self.num_rows = bucketizer.num_rows
        self.hash = getattr(bucketizer, "hash", "")

    def __call__(self, values: Values, report: Report) -> Ints:
        """The ids of the integers."""
        return self.bucketizer(whole_numbers(values, report), report)


def bucket_setting(config: Any) -> str | None:
    """The one field that says how ids are made, or None."""
    fields = config.DESCRIPTOR.fields_by_name
    given = [
        name
        for name in BUCKETS
        if name in fields
        and (len(getattr(config, name)) > 0 if fields[name].is_repeated else config.HasField(name))
    ]
    if len(given) > 1:
        raise ValueError(f"only one of {', '.join(BUCKETS)} may be set, got {' and '.join(given)}")
    return given[0] if given else None


def separator_of(config: Any) -> str:
    """The separator of multi-valued texts."""
    if not config.separator:
        raise ValueError("separator must not be empty")
    return str(config.separator)


def default_of(config: Any, setting: Setting) -> list[str] | None:
    """The texts of the default values, in the place where the mode looks for them."""
    if setting.mode == "FG_NONE":
        text = config.fg_encoded_default_value
        return str(text).split(setting.multival_sep) if text else None
    if "default_value" not in config.DESCRIPTOR.fields_by_name:
        return ["0"]
    text = default_text(config, setting)
    return text.split(separator_of(config)) if text else None


def default_text(config: Any, setting: Setting) -> str:
    """default_value where values are bucketized here; a sequence always has one, "0" in place of ""."""
    text = str(config.default_value)
    return "0" if setting.sequence is not None and not text else text


def ids_output(config: Any, setting: Setting, *, value_dim: int = 0, weighted: bool = False) -> IdOutput:
    """The last step of a feature that makes ids of texts or integers."""
    bucketizer = _bucketizer(config, setting)
    return IdOutput(bucketizer, default_of(config, setting), value_dim, weighted)


def floats_output(
    config: Any, setting: Setting, *, value_dim: int, fallback: str | None = None
) -> FloatOutput | IdOutput:
    """The last step of a feature that computes floats, kept as they are or cut at boundaries.

    `fallback` is the default where default_value is empty; None leaves rows without a value.
    """
    values = to_kwargs(config)
    boundaries = Boundaries(values["boundaries"]) if values.get("boundaries") else None
    normalizer = _normalizer(values["normalizer"]) if values.get("normalizer") else None
    default = default_of(config, setting)
    if default is None and fallback is not None and setting.mode != "FG_NONE":
        default = [fallback]
    if setting.mode == "FG_NONE":
        if boundaries is not None:
            bucketizer = NumBuckets(boundaries.num_rows, "len(boundaries) + 1,")
            return IdOutput(bucketizer, default, value_dim, exact=value_dim > 0)
        remedy = "set fg_encoded_default_value, or fill the column"
        return FloatOutput(None, None, default, value_dim, remedy)
    if setting.mode == "FG_BUCKETIZE":
        normalizer = None
    return FloatOutput(normalizer, boundaries, default, value_dim, "set default_value, or fill the column")


def _normalizer(text: str) -> Normalizer:
    try:
        return build_normalizer(text)
    except ValueError as error:  # its expression is not the feature's
        what = str(error)
        raise ValueError(what if "normalizer" in what else f"normalizer: {what}") from error


def hash_of(output: FloatOutput | IdOutput) -> str:
    """The name of the hash that ids are made with; "" where there is none."""
    return str(getattr(output.bucketizer, "hash", "")) if isinstance(output, IdOutput) else ""


def _vocabulary_of_file(values: Mapping[str, Any]) -> Vocabulary:
    path = os.path.join(values.get("asset_dir", ""), values["vocab_file"])
    return vocabulary_of_file(path, *_of_other_words(values))


def _of_other_words(values: Mapping[str, Any]) -> tuple[str, int | None]:
    """The default word, and the id of words that a vocabulary does not have."""
    return values.get("default_value", ""), values.get("default_bucketize_value")


_BUCKETIZERS: dict[str, Callable[[Mapping[str, Any]], Bucketizer]] = {
    "hash_bucket_size": lambda values: HashBuckets(values["hash_bucket_size"], values["hash"]),
    "num_buckets": lambda values: NumBuckets(values["num_buckets"]),
    "vocab_list": lambda values: vocabulary_of_list(values["vocab_list"], *_of_other_words(values)),
    "vocab_dict": lambda values: vocabulary_of_dict(values["vocab_dict"], *_of_other_words(values)),
    "vocab_file": _vocabulary_of_file,
    "zch": lambda values: HashBuckets(LIVING_IDS, values["hash"]),
    "dynamicemb": lambda values: HashBuckets(LIVING_IDS, values["hash"]),
}
"""What makes ids of values, by the setting that asks for it."""


def _check_hash(name: str | None, setting: Setting) -> None:
    """Refuse a `hash` that nothing would use."""
    if name not in ("hash_bucket_size", "zch", "dynamicemb"):
        raise ValueError("hash needs hash_bucket_size, zch or dynamicemb, whose ids it makes; remove it")
    if setting.mode == "FG_NONE":
        raise ValueError("hash has no effect in fg_mode FG_NONE, which reads ids as they are; remove it")


def _bucketizer(config: Any, setting: Setting) -> Bucketizer:
    name = bucket_setting(config)
    values = {"hash": setting.hash, **to_kwargs(config), "default_value": default_text(config, setting)}
    if "hash" in config.DESCRIPTOR.fields_by_name and config.HasField("hash"):
        _check_hash(name, setting)
    if "default_bucketize_value" in values and name not in ("vocab_list", "vocab_dict", "vocab_file"):
        raise ValueError("default_bucketize_value needs vocab_list, vocab_dict or vocab_file")
    if name is None or name not in _BUCKETIZERS:
        known = [field for field in BUCKETS if field in config.DESCRIPTOR.fields_by_name]
        raise ValueError(f"one of {', '.join(known)} must be set, got none")
    bucketizer = _BUCKETIZERS[name](values)
    if setting.mode == "FG_NONE":
        return NumBuckets(bucketizer.num_rows, name if name.endswith(("size", "buckets")) else f"{name} size")
    kind = str(values.get("fg_value_type", "")).lower()
    if kind not in ("", "string", *_INTEGERS):
        raise ValueError(f"fg_value_type must be string or int64, got {kind!r}")
    return AsIntegers(bucketizer) if kind in _INTEGERS else bucketizer
