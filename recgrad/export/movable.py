"""Where the dense weights of an ONNX program lie in its file, so that deltas can replace them there."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from recgrad.serving.manifest import WeightRecord

_PREFIX = "task.model."
_TRIES = 100


def place_weights(model: Any, names: Collection[str]) -> tuple[bytes, tuple[WeightRecord, ...]]:
    """An ONNX model as bytes, and where each weight is in them.

    A weight is found by writing the model with bytes at random in its place.

    Args:
        model: whose initialisers are weights as they are: it was not optimised.
        names: of the weights, as the model of the run calls them.

    Returns:
        no places where an initialiser is none of the weights: then a delta could not say what it becomes.
    """
    from onnx import numpy_helper

    found = list(model.graph.initializer)
    for item in found:
        item.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(item), item.name))
    content = model.SerializeToString(deterministic=True)
    known = {item.name: item.name.removeprefix(_PREFIX) for item in found}
    if any(not name.startswith(_PREFIX) or short not in names for name, short in known.items()):
        return content, ()
    weights = [item.raw_data for item in found]
    for _ in range(_TRIES):
        marks = [os.urandom(len(data)) for data in weights]
        for item, mark in zip(found, marks, strict=True):
            item.raw_data = mark
        marked = model.SerializeToString(deterministic=True)
        if all(marked.count(mark) == 1 for mark in marks if mark):
            break
    else:
        return content, ()
    places = tuple(
        WeightRecord(known[item.name], marked.index(mark), len(mark))
        for item, mark in zip(found, marks, strict=True)
        if mark
    )
    for item, data in zip(found, weights, strict=True):
        item.raw_data = data
    return content, places
