"""Refuse settings outside their bounds: each function raises a ValueError that names rule and value.

Comparisons are written so that a NaN, which compares as false, is refused too.
"""

from __future__ import annotations


def at_least(value: float, bound: float, name: str) -> None:
    """Raises unless value ≥ bound."""
    if not value >= bound:
        raise ValueError(f"{name} must be at least {bound}, got {value}")


def at_most(value: float, bound: float, name: str) -> None:
    """Raises unless value ≤ bound."""
    if not value <= bound:
        raise ValueError(f"{name} must be at most {bound}, got {value}")


def above(value: float, bound: float, name: str) -> None:
    """Raises unless value > bound."""
    if not value > bound:
        raise ValueError(f"{name} must be greater than {bound}, got {value}")


def below_one(value: float, name: str) -> None:
    """Raises unless 0 ≤ value < 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")


def inside_unit(value: float, name: str) -> None:
    """Raises unless 0 < value < 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, got {value}")


def one_of(value: str, known: tuple[str, ...], name: str) -> None:
    """Raises unless the value is one of the known ones."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got '{value}'")
