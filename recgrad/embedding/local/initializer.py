"""The value of a row before it is first updated: torch's initialisers, drawn by row number.

A row's numbers depend on (seed, table name, row) alone, so it does not matter when, in
which order, or by which thread a row is first looked up.
"""

from __future__ import annotations

import ast
import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from recgrad.errors import ConfigError, Problem, nearest

UNIFORM, NORMAL, TRUNCATED, CONSTANT = 0, 1, 2, 3
_GOLDEN = -7046029254386353131  # 2⁶⁴/φ, odd, as int64
_MIX_A = -4658895280553007687
_MIX_B = -7723592293110705685


@dataclass(frozen=True)
class Initializer:
    """A distribution: kind and up to four parameters.

    UNIFORM(low, high), NORMAL(mean, std), TRUNCATED(mean, std, low, high), CONSTANT(value).
    """

    kind: int
    parameters: tuple[float, ...]


def _xavier(normal: bool, rows: int, dim: int, gain: float = 1.0) -> Initializer:
    std = gain * math.sqrt(2 / (rows + dim))
    return _centred(normal, std)


def _kaiming(
    normal: bool, rows: int, dim: int, a: float = 0.0, mode: str = "fan_in", nonlinearity: Any = "leaky_relu"
) -> Initializer:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode must be 'fan_in' or 'fan_out', got '{mode}'")
    from torch.nn.init import calculate_gain  # here, since served models draw rows without torch

    return _centred(normal, calculate_gain(nonlinearity, a) / math.sqrt(dim if mode == "fan_in" else rows))


def _centred(normal: bool, std: float) -> Initializer:
    bound = math.sqrt(3) * std
    return Initializer(NORMAL, (0.0, std)) if normal else Initializer(UNIFORM, (-bound, bound))


def _uniform(rows: int, dim: int, a: float = 0.0, b: float = 1.0) -> Initializer:
    if not a <= b:
        raise ValueError(f"a must not exceed b, got a={a}, b={b}")
    return Initializer(UNIFORM, (a, b))


def _normal(rows: int, dim: int, mean: float = 0.0, std: float = 1.0) -> Initializer:
    if std < 0:
        raise ValueError(f"std must not be negative, got {std}")
    return Initializer(NORMAL, (mean, std))


def _truncated(
    rows: int, dim: int, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Initializer:
    if std <= 0 or not a < b or max(abs(a - mean), abs(b - mean)) < 0.05 * std:
        raise ValueError(
            f"needs std > 0, a < b and bounds that the distribution reaches, got {std}, {a}, {b}"
        )
    if a > mean + 2 * std or b < mean - 2 * std:
        raise ValueError(f"bounds {a} … {b} must come within two std of the mean {mean}")
    return Initializer(TRUNCATED, (mean, std, a, b))


_KINDS: dict[str, Any] = {
    "uniform_": _uniform,
    "normal_": _normal,
    "trunc_normal_": _truncated,
    "constant_": lambda rows, dim, val: Initializer(CONSTANT, (val,)),
    "zeros_": lambda rows, dim: Initializer(CONSTANT, (0.0,)),
    "ones_": lambda rows, dim: Initializer(CONSTANT, (1.0,)),
    "xavier_uniform_": lambda rows, dim, **kw: _xavier(False, rows, dim, **kw),
    "xavier_normal_": lambda rows, dim, **kw: _xavier(True, rows, dim, **kw),
    "kaiming_uniform_": lambda rows, dim, **kw: _kaiming(False, rows, dim, **kw),
    "kaiming_normal_": lambda rows, dim, **kw: _kaiming(True, rows, dim, **kw),
}


def parse_init_fn(text: str | None, rows: int, dim: int, table: str) -> Initializer:
    """The initialiser that a text such as "nn.init.normal_,mean=0,std=0.01" names.

    The default is TorchRec's: uniform between ±1/√rows. Xavier and Kaiming kinds take the
    table as torch would, a [rows, dim] matrix with fan_in dim and fan_out rows.
    """
    if not text:
        bound = 1 / math.sqrt(rows)
        return Initializer(UNIFORM, (-bound, bound))
    name, *arguments = (part.strip() for part in text.split(","))
    where = f"table '{table}' init_fn"
    short = name.rpartition(".")[2]
    if short not in _KINDS:
        raise ConfigError([Problem(where, f"no initialiser '{name}'{nearest(short, _KINDS)}")])
    try:
        pairs = [argument.partition("=") for argument in arguments if argument]
        kwargs = {key.strip(): ast.literal_eval(value.strip()) for key, _, value in pairs}
        initializer: Initializer = _KINDS[short](rows, dim, **kwargs)
        values = tuple(float(value) for value in initializer.parameters)
        if not all(map(math.isfinite, values)):
            raise ValueError("all numbers must be finite")
    except (TypeError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ConfigError([Problem(where, f"cannot read '{text}': {error}")]) from error
    return Initializer(initializer.kind, values)


def table_key(seed: int, name: str) -> int:
    """A 64-bit number for (seed, table name), the same on every machine."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


@njit(nogil=True)
def mix(x: int) -> int:
    """A bijection of 64-bit integers whose outputs look random (splitmix64's finaliser)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIX_A
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MIX_B
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@njit(nogil=True)
def row_stream(key: int, row: int) -> int:
    """The start of a row's own stream of random numbers."""
    return mix(mix(row * _GOLDEN + 1) ^ key)


@njit(nogil=True)
def draw(stream: int, counter: int) -> int:
    """The `counter`-th 64 random bits of a stream."""
    return mix(stream + (counter + 1) * _GOLDEN)


@njit(nogil=True)
def unit(bits: int) -> float:
    """A number in (0, 1) from the upper 52 of 64 bits."""
    return (((bits >> 12) & 0xFFFFFFFFFFFFF) + 0.5) * 2.0**-52


@njit(nogil=True)
def element(kind: int, p0: float, p1: float, p2: float, p3: float, stream: int, j: int) -> Any:
    """Element j of an untouched row, as float32."""
    if kind == UNIFORM:
        u = unit(draw(stream, j))
        return np.float32(p0 + (p1 - p0) * u)
    if kind == CONSTANT:
        return np.float32(p0)
    attempt = 0
    while True:
        # Box and Muller 1958; attempts of one element must not meet those of the next
        a = draw(stream, (j << 20) + 2 * attempt)
        b = draw(stream, (j << 20) + 2 * attempt + 1)
        normal = math.sqrt(-2.0 * math.log(unit(a))) * math.cos(2.0 * math.pi * unit(b))
        value = p0 + p1 * normal
        if kind == NORMAL or p2 <= value <= p3:
            return np.float32(value)
        attempt += 1
