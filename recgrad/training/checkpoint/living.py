"""Ids of tables whose rows belong to ids as they come, and their marks, as a checkpoint keeps them.

The rows themselves are saved as those of every table, numbered by their ids. What decides who stays
(counts, last passes, the window of a round, counters of ids that are not admitted yet) is a branch of the
tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recgrad.embedding.engine import EmbeddingEngine
from recgrad.training.checkpoint.snapshot import DeferredBranch

LIVING = "living"
"""The branch of the tree."""


def living_state(
    engine: EmbeddingEngine | None, collect: Callable[[Any], Sequence[Any]] | None = None
) -> dict[str, Any]:
    """The branch, with all that rows do not hold by table; nothing where there are no such tables.

    Args:
        engine: with its tables, of which each is on one rank.
        collect: gives rank 0 what all ranks have; called on all of them, table by table. None where there
            is one process: then what is of this moment is put in order by who looks at it.
    """
    tables = {} if engine is None else engine.living_tables()
    if not tables:
        return {}
    if collect is None:
        return {LIVING: {name: DeferredBranch(table.begin_scores()) for name, table in tables.items()}}
    found = {name: [own for own in collect(table.export_scores()) if own] for name, table in tables.items()}
    return {LIVING: {name: own[0] if own else {} for name, own in found.items()}}


def load_living_state(
    tree: Mapping[str, Any], engine: EmbeddingEngine | None, moved: Mapping[str, str] | None = None
) -> None:
    """Take over the ids of a checkpoint, before its rows; `moved` has names in the checkpoint by names here.

    A table that had no ids of its own then, as one with num_buckets, has none here: its rows bring them.
    """
    saved: Any = tree.get(LIVING) or {}
    for name, table in ({} if engine is None else engine.living_tables()).items():
        own = saved.get((moved or {}).get(name, name))
        if own is not None:
            table.import_scores(own)
