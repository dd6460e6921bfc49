"""Whether what a checkpoint has fits a model: values, hashes of ids, and the map of other names."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from recgrad.data.hashes import DEFAULT_HASH
from recgrad.embedding.engine import EmbeddingEngine
from recgrad.errors import CheckpointError, RecgradError, nearest, whole_path
from recgrad.training.checkpoint.snapshot import Snapshot

_MAX_BYTES = 64 << 20
_TABLE_WEIGHT = re.compile(r"(?:.*\.)?(?:embedding_bags|embeddings)\.(?P<table>.+)\.weight")


@contextmanager
def content_of(step: int, remedy: str) -> Iterator[None]:
    """Around code that only puts values of a checkpoint back.

    Checksums do not prove that the values have the types and shapes of a run: they may come from another
    config, or be forged. Whatever a value raises where it is used is then the checkpoint's fault, and its
    error; `remedy` says what to do.
    """
    try:
        yield
    except RecgradError:
        raise
    except Exception as error:
        what = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"the checkpoint of step {step} does not fit this config: {what}; {remedy}"
        ) from error


def hashes_of(engine: EmbeddingEngine | None) -> dict[str, str]:
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


def load_param_map(path: Path | str, *, here: Collection[str], there: Collection[str]) -> dict[str, str]:
    """Names in the checkpoint by names in this model.

    A line of the file is `name_in_this_model name_in_checkpoint`; empty lines and lines that
    start with # are left out. A table goes by its own name, or as TorchRec spells it
    (`….embedding_bags.user_id.weight`).

    Args:
        path: the file.
        here: parameters and tables of this model.
        there: parameters and tables of the checkpoint.

    Raises:
        CheckpointError: all lines that are malformed or name what does not exist.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            what = f"has {status.st_size:,} bytes" if stat.S_ISREG(status.st_mode) else "is no regular file"
            raise CheckpointError(
                f"fine_tune_ckpt_param_map {path}: {what}; "
                f"a map is a text file of up to {_MAX_BYTES >> 20} MB"
            )
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"fine_tune_ckpt_param_map {path}{whole_path(path)}: cannot be read ({error})"
        ) from error
    found: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}:{number}"
        if len(words) != 2:
            problems.append(f"{where} must be 'name_in_this_model name_in_checkpoint', got: {line.strip()}")
            continue
        own, theirs = _known_as(words[0], here), _known_as(words[1], there)
        if own not in here:
            problems.append(f"{where} this model has no '{own}'{nearest(own, here)}")
        if theirs not in there:
            problems.append(f"{where} the checkpoint has no '{theirs}'{nearest(theirs, there)}")
        if own in found:
            problems.append(f"{where} '{own}' is mapped twice; keep one line")
        found[own] = theirs
    if problems:
        raise CheckpointError("\n".join(problems))
    return found


def _known_as(name: str, known: Collection[str]) -> str:
    """The name, or the table that it spells out."""
    match = _TABLE_WEIGHT.fullmatch(name)
    if name not in known and match is not None and match["table"] in known:
        return match["table"]
    return name
