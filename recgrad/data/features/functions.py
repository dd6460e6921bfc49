"""The functions that expressions may call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.data.hashing import Ints

Numbers = npt.NDArray[np.float64]

EARTH_RADIUS_KM = 6371.0
"""Mean radius, as great-circle distances take it."""


@dataclass(frozen=True)
class Vector:
    """A vector for each bag: bag i is `values[offsets[i]:offsets[i + 1]]`."""

    values: Numbers
    offsets: Ints


def align(results: Sequence[Any], vectors: bool = False) -> tuple[list[Any], Ints, Ints]:
    """Arguments element by element, where each bag begins, and the bags whose vectors do not fit.

    A number, and a vector of one, is repeated along the longest vector of its bag.

    Args:
        results: numbers for each bag, constants, or vectors.
        vectors: numbers count as vectors of one where there is no other vector.
    """
    all_lengths = [np.diff(result.offsets) for result in results if isinstance(result, Vector)]
    if not all_lengths:
        count = max((result.size for result in results if np.ndim(result)), default=1)
        offsets = np.arange(count + 1)
        return [np.broadcast_to(result, count) for result in results], offsets, np.empty(0, np.int64)
    target = all_lengths[0]
    for lengths in all_lengths[1:]:
        target = np.where(target == 1, lengths, target)
    wrong = np.zeros(len(target), np.bool_)
    for lengths in all_lengths:
        wrong |= (lengths != target) & (lengths != 1)
    offsets = np.concatenate([[0], np.cumsum(target)])
    if wrong.any():
        return [], offsets, np.flatnonzero(wrong)
    parts = []
    for result in results:
        if isinstance(result, Vector):
            parts.append(_stretch(result, target, offsets))
        else:
            parts.append(np.repeat(result, target) if np.ndim(result) else result)
    if vectors:
        parts = [np.broadcast_to(part, offsets[-1]) for part in parts]
    return parts, offsets, np.empty(0, np.int64)


def _stretch(vector: Vector, target: Ints, offsets: Ints) -> Numbers:
    lengths = np.diff(vector.offsets)
    if np.array_equal(lengths, target):
        return vector.values
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], target)
    return vector.values[
        np.repeat(vector.offsets[:-1], target) + np.where(np.repeat(lengths == 1, target), 0, within)
    ]


def fold(ufunc: Any, offsets: Ints, values: Numbers, empty: float) -> Numbers:
    """A ufunc reduced over each bag; `empty` for bags without values."""
    out = np.full(len(offsets) - 1, empty)
    full = offsets[1:] > offsets[:-1]
    if full.any():
        out[full] = ufunc.reduceat(values, offsets[:-1][full])
    return out


def _sum(offsets: Ints, values: Numbers) -> Numbers:
    return fold(np.add, offsets, values, 0.0)


def _mean(offsets: Ints, values: Numbers) -> Numbers:
    return _sum(offsets, values) / np.diff(offsets)


def _variance(offsets: Ints, values: Numbers, less: int) -> Numbers:
    lengths = np.diff(offsets)
    centred = values - np.repeat(_mean(offsets, values), lengths)
    variance: Numbers = _sum(offsets, centred * centred) / (lengths - less)
    return variance


def _corr(offsets: Ints, a: Numbers, b: Numbers) -> Numbers:
    """Pearson's correlation; nan where a vector is constant, as one of a single element is."""
    lengths = np.diff(offsets)
    constant = np.zeros(len(lengths), np.bool_)
    centred = []
    for values in (a, b):
        # By its ends: rounding may leave a constant vector a variance that is not 0.
        constant |= fold(np.minimum, offsets, values, 0.0) == fold(np.maximum, offsets, values, 0.0)
        centred.append(values - np.repeat(_mean(offsets, values), lengths))
    spread = [np.sqrt(_sum(offsets, part * part)) for part in centred]
    result = np.clip(_sum(offsets, centred[0] * centred[1]) / spread[0] / spread[1], -1.0, 1.0)
    return np.where(constant, np.nan, result)


def _away_from_zero(x: Any) -> Any:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _round_places(x: Any, places: Any) -> Any:
    scale = np.power(10.0, places)
    return _away_from_zero(x * scale) / scale


def _sigmoid(x: Any) -> Any:
    return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(x)))


def _haversine(lng1: Any, lat1: Any, lng2: Any, lat2: Any) -> Any:
    lng1, lat1, lng2, lat2 = (np.radians(angle) for angle in (lng1, lat1, lng2, lat2))
    half = np.sin((lat2 - lat1) / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin((lng2 - lng1) / 2) ** 2
    return 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(half, 0, 1)))


def _sphere_dist(lng1: Any, lat1: Any, lng2: Any, lat2: Any) -> Any:
    lng1, lat1, lng2, lat2 = (np.radians(angle) for angle in (lng1, lat1, lng2, lat2))
    cosine = np.sin(lat1) * np.sin(lat2) + np.cos(lat1) * np.cos(lat2) * np.cos(lng2 - lng1)
    return EARTH_RADIUS_KM * np.arccos(np.clip(cosine, -1, 1))


def _all(ufunc: Any) -> Callable[..., Any]:
    def function(*values: Any) -> Any:
        result = values[0]
        for value in values[1:]:
            result = ufunc(result, value)
        return result

    return function


CONSTANTS = {"_pi": np.pi, "_e": np.e}

ELEMENTWISE: dict[str, tuple[int, Callable[..., Any]]] = {
    "sin": (1, np.sin),
    "cos": (1, np.cos),
    "tan": (1, np.tan),
    "asin": (1, np.arcsin),
    "acos": (1, np.arccos),
    "atan": (1, np.arctan),
    "sinh": (1, np.sinh),
    "cosh": (1, np.cosh),
    "tanh": (1, np.tanh),
    "asinh": (1, np.arcsinh),
    "acosh": (1, np.arccosh),
    "atanh": (1, np.arctanh),
    "log2": (1, np.log2),
    "log10": (1, np.log10),
    "log": (1, np.log),
    "ln": (1, np.log),
    "exp": (1, np.exp),
    "sqrt": (1, np.sqrt),
    "sign": (1, np.sign),
    "abs": (1, np.abs),
    "rint": (1, np.rint),
    "floor": (1, np.floor),
    "ceil": (1, np.ceil),
    "trunc": (1, np.trunc),
    "round": (1, _away_from_zero),
    "roundp": (2, _round_places),
    "sigmoid": (1, _sigmoid),
    "isnan": (1, lambda x: np.isnan(x).astype(np.float64)),
    "mod": (2, np.fmod),
    "haversine": (4, _haversine),
    "sphere_dist": (4, _sphere_dist),
    "min": (0, _all(np.minimum)),
    "max": (0, _all(np.maximum)),
    "sum": (0, _all(np.add)),
    "avg": (0, lambda *values: _all(np.add)(*values) / len(values)),
}
"""By name: number of arguments (0: one or more) and function, element by element."""

REDUCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "len": (1, lambda offsets, a: np.diff(offsets)),
    "l2_norm": (1, lambda offsets, a: np.sqrt(_sum(offsets, a * a))),
    "squared_norm": (1, lambda offsets, a: _sum(offsets, a * a)),
    "dot": (2, lambda offsets, a, b: _sum(offsets, a * b)),
    "euclid_dist": (2, lambda offsets, a, b: np.sqrt(_sum(offsets, (a - b) ** 2))),
    "corr": (2, _corr),
    "std_dev": (1, lambda offsets, a: np.sqrt(_variance(offsets, a, 0))),
    "pop_std_dev": (1, lambda offsets, a: np.sqrt(_variance(offsets, a, 1))),
    "variance": (1, lambda offsets, a: _variance(offsets, a, 0)),
    "pop_variance": (1, lambda offsets, a: _variance(offsets, a, 1)),
    "reduce_min": (1, lambda offsets, a: fold(np.minimum, offsets, a, np.nan)),
    "reduce_max": (1, lambda offsets, a: fold(np.maximum, offsets, a, np.nan)),
    "reduce_sum": (1, _sum),
    "reduce_mean": (1, _mean),
    "reduce_prod": (1, lambda offsets, a: fold(np.multiply, offsets, a, 1.0)),
}
"""By name: number of arguments and function of (where bags begin, values of each argument)."""

PARTIAL = frozenset({"corr"})
"""Functions that have no value for some vectors of finite numbers, which is nan."""
