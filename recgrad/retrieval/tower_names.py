"""What to say of a tower that a model has not."""

from __future__ import annotations

from collections.abc import Collection

from recgrad.errors import nearest

TREE_INSTEAD = (
    "its users have no vectors: `recgrad recommend --kind tdm --index TREE` and `recgrad serve --index TREE` "
    "search its tree"
)
"""Of a model that gives vectors of items alone."""


def tower_hint(tower: str, towers: Collection[str]) -> str:
    """How an error on an unknown tower ends: the nearest name, or what a model without users' vectors has."""
    if tower == "user" and "item" in towers:
        return f"; {TREE_INSTEAD}"
    return nearest(tower, towers)
