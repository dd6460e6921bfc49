"""What ids of texts were hashed with when a checkpoint was made: rows mean nothing under another hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recgrad.data.hashes import DEFAULT_HASH
from recgrad.training.checkpoint.snapshot import Snapshot


def hashes_of(engine: Any) -> dict[str, str]:
    """By table, the hash of the ids that look it up; tables of other ids are left out."""
    tables = {} if engine is None else engine.tables
    return {name: table.spec.hash for name, table in tables.items() if table.spec.hash}


def hash_misfit(snapshot: Snapshot, table: str, own: str) -> str | None:
    """Why a table of a checkpoint cannot be looked up by ids of the hash `own`, or None.

    Ids that are not hashed here ("") may be anyone's. A run of a version that did not write
    hashes had the default one; weights from elsewhere say nothing of it.
    """
    saved = snapshot.tree.get("hashes")
    if isinstance(saved, Mapping):
        there = saved.get(table, "")
    else:
        there = DEFAULT_HASH if "updater" in snapshot.tree else ""
    if not own or not there or own == there:
        return None
    return f"texts were hashed with {there} in the checkpoint, with {own} here"
