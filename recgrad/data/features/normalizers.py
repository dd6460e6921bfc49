"""Normalizers of numbers, as configs write them: `method=zscore,mean=0,standard_deviation=1`.

| method | formula |
| --- | --- |
| log10 | log10(x) if x > threshold else default |
| zscore | (x − mean) / standard_deviation |
| minmax | (x − min) / (max − min) |
| expression | any expression of x, see `expressions` |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.data.features.expressions import compile_expression
from recgrad.errors import nearest

Numbers = npt.NDArray[Any]
Normalizer = Callable[[Numbers], Numbers]


@dataclass(frozen=True)
class Linear:
    """(x − shift) / scale, in float64."""

    shift: float
    scale: float

    def __call__(self, x: Numbers) -> Numbers:
        """The normalized numbers."""
        return (x.astype(np.float64) - self.shift) / self.scale


def build_normalizer(text: str) -> Normalizer:
    """The function that a normalizer setting names."""
    settings = _settings(text)
    method = settings.pop("method", None)
    if method == "expression":
        source = settings.pop("expr", "")
        _no_more(settings, text)
        return _expression(source)
    if method not in _METHODS:
        known = (*_METHODS, "expression")
        raise ValueError(
            f"normalizer must begin with method={'|'.join(known)}, got {text!r}{nearest(method or '', known)}"
        )
    build, defaults = _METHODS[method]
    values = {name: _number(settings.pop(name, None), name, default) for name, default in defaults.items()}
    _no_more(settings, text)
    return build(**values)


def log10(threshold: float, default: float) -> Normalizer:
    """log10(x) above the threshold, else the default."""
    if threshold < 0:
        raise ValueError(f"threshold of log10 must not be negative, got {threshold}")

    def normalize(x: Numbers) -> Numbers:
        large = x > threshold
        return np.where(
            large | ~np.isfinite(x), np.log10(np.where(large, x, 1.0), dtype=np.float64) + (x - x), default
        )

    return normalize


def zscore(mean: float, standard_deviation: float) -> Normalizer:
    """(x − mean) / standard_deviation."""
    if standard_deviation <= 0:
        raise ValueError(f"standard_deviation must be positive, got {standard_deviation}")
    return Linear(mean, standard_deviation)


def minmax(min: float, max: float) -> Normalizer:
    """(x − min) / (max − min)."""
    if max <= min:
        raise ValueError(f"max of minmax must be above min, got min {min} and max {max}")
    return Linear(min, max - min)


_METHODS: dict[str, tuple[Callable[..., Normalizer], dict[str, float | None]]] = {
    "log10": (log10, {"threshold": 1e-10, "default": -10.0}),
    "zscore": (zscore, {"mean": None, "standard_deviation": None}),
    "minmax": (minmax, {"min": None, "max": None}),
}


def _settings(text: str) -> dict[str, str]:
    """key=value pairs between commas; `expr` takes all that follows, commas too."""
    settings: dict[str, str] = {}
    rest = text.strip()
    while rest:
        key, equals, after = rest.partition("=")
        key = key.strip()
        if not equals:
            raise ValueError(f"a normalizer must be key=value pairs between commas, got {text!r}")
        if key in settings:
            raise ValueError(f"a normalizer must set each key once, got {key!r} twice in {text!r}")
        value, rest = (after, "") if key == "expr" else (after.partition(",")[0], after.partition(",")[2])
        settings[key] = value.strip()
    return settings


def _no_more(settings: dict[str, str], text: str) -> None:
    if settings:
        raise ValueError(f"the normalizer does not know {', '.join(map(repr, settings))} in {text!r}")


def _number(text: str | None, name: str, default: float | None) -> float:
    if text is None:
        if default is None:
            raise ValueError(f"the normalizer must set {name}")
        return default
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{name} of the normalizer must be a number, got {text!r}") from None
    if not np.isfinite(number):
        raise ValueError(f"{name} of the normalizer must be finite, got {text!r}")
    return number


def _expression(source: str) -> Normalizer:
    expression = compile_expression(source)
    unknown = expression.variables - {"x"}
    if unknown:
        raise ValueError(f"the expression of a normalizer may only name x, got {', '.join(sorted(unknown))}")
    if expression.reduces:
        raise ValueError(f"the expression of a normalizer takes one number at a time, got {source!r}")
    return lambda x: np.broadcast_to(expression.scalars({"x": x.astype(np.float64)}), x.shape)
