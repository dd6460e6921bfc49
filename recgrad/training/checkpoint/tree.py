"""The tree of values as JSON, with the arrays taken out and left by name.

Strings, bools, None, lists, finite floats (shortest decimal that reads back to the same bits)
and dicts with string keys are themselves. The rest is an object of one key:

    {"$tensor": name}, {"$array": name}, {"$scalar": name}, {"$bytes": name}   an array of the file
    {"$int": "-0x…"}       an int beyond 64 bits
    {"$float": "7ff0…"}    the bits of an infinity or a NaN
    {"$tuple": […]}
    {"$dict": [[key, value], …]}   keys that are not strings, or start with $
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint.arrays import METADATA, RawArray

MAX_DEPTH = 100


def encode_tree(tree: Any) -> tuple[Any, dict[str, RawArray]]:
    """The JSON of a tree, and its arrays by name; arrays are not copied."""
    arrays: dict[str, RawArray] = {}
    return _encode(tree, (), arrays), arrays


def decode_tree(skeleton: Any, arrays: Mapping[str, RawArray]) -> Any:
    """The tree that `encode_tree` took apart.

    Each array may be named once: a small file that names a large array over and over would
    otherwise fill the memory.
    """
    return _decode(skeleton, dict(arrays), 0)


def _encode(value: Any, path: tuple[str, ...], arrays: dict[str, RawArray]) -> Any:
    if len(path) > MAX_DEPTH:
        raise CheckpointError(f"{_spell(path)[:200]} …: nests deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, np.generic):
        return {"$scalar": _store(RawArray.of_numpy, np.asarray(value), path, arrays)}
    if isinstance(value, int):
        small = -(2**63) <= value < 2**63
        return int(value) if small else {"$int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, torch.Tensor):
        return {"$tensor": _store(RawArray.of_tensor, value, path, arrays)}
    if isinstance(value, np.ndarray):
        return {"$array": _store(RawArray.of_numpy, value, path, arrays)}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": _store(RawArray.of_numpy, np.frombuffer(value, np.uint8), path, arrays)}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, (*path, str(index)), arrays) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, Mapping):
        return _encode_mapping(value, path, arrays)
    raise CheckpointError(f"{_spell(path)}: a {type(value).__name__} cannot be stored in a checkpoint")


def _encode_mapping(value: Mapping[Any, Any], path: tuple[str, ...], arrays: dict[str, RawArray]) -> Any:
    for key in value:
        if not (key is None or isinstance(key, (str, int, float))):
            raise CheckpointError(f"{_spell(path)}: a key of type {type(key).__name__} cannot be stored")
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {str.__str__(key): _encode(item, (*path, key), arrays) for key, item in value.items()}
    return {
        "$dict": [
            [_encode(key, path, arrays), _encode(item, (*path, str(key)), arrays)]
            for key, item in value.items()
        ]
    }


def _store(
    convert: Callable[[Any], RawArray], value: Any, path: tuple[str, ...], arrays: dict[str, RawArray]
) -> str:
    name = _spell(path)
    # {1: a, "1": b} spells both paths alike; the names in the file must differ.
    while name in arrays or name == METADATA:
        name += "'"
    try:
        arrays[name] = convert(value)
    except CheckpointError as error:
        raise CheckpointError(f"{_spell(path)}: {error}") from error
    return name


def _spell(path: tuple[str, ...]) -> str:
    return "/".join(path)


def _decode(node: Any, arrays: dict[str, RawArray], depth: int) -> Any:
    if depth > 4 * MAX_DEPTH:
        raise CheckpointError("nests too deep")
    if isinstance(node, list):
        return [_decode(item, arrays, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1:
        (tag, value), *_ = node.items()
        if tag.startswith("$"):
            return _decode_tagged(tag, value, arrays, depth)
    return {key: _decode(item, arrays, depth + 1) for key, item in node.items()}


def _decode_tagged(tag: str, value: Any, arrays: dict[str, RawArray], depth: int) -> Any:
    try:
        if tag == "$tuple":
            return tuple(_decode(item, arrays, depth + 1) for item in _as(list, value))
        if tag == "$dict":
            pairs = [tuple(_decode(_as(list, pair), arrays, depth + 1)) for pair in _as(list, value)]
            return dict(pairs)
        if tag == "$int":
            return int(_as(str, value), 16)
        if tag == "$float":
            return struct.unpack(">d", bytes.fromhex(_as(str, value)))[0]
        if tag in _FROM_ARRAY:
            return _FROM_ARRAY[tag](arrays.pop(_as(str, value)))
    except (ValueError, TypeError, KeyError, struct.error) as error:
        raise CheckpointError(f"malformed {tag[:40]} ({error})") from error
    raise CheckpointError(f"unknown tag {tag[:40]!r}")


_FROM_ARRAY: dict[str, Callable[[RawArray], Any]] = {
    "$tensor": RawArray.tensor,
    "$array": RawArray.numpy,
    "$scalar": lambda array: array.numpy()[()],
    "$bytes": lambda array: array.data.tobytes(),
}


def _as(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value
