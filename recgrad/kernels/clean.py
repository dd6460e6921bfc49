"""Removing compiled code that nobody has used for long."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

DAY_SECS = 86_400.0
UNUSED_DAYS = 30
KEEP_EACH = 32
"""Of a function's entries, so many stay however many its sources have had; the types count too."""


def remove_old(folder: Path, suffix: str) -> None:
    """Remove what was not used for 30 days, and of each function all but the entries last used.

    Entries of the last day stay in any case: other processes may be about to load them. One that
    does lose an entry compiles it again. The folders are what earlier versions kept.
    """
    now = time.time()
    entries: dict[str, list[tuple[float, str]]] = {}
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            with suppress(OSError):  # another process may have removed it
                age = now - entry.stat(follow_symlinks=False).st_mtime
                if age > UNUSED_DAYS * DAY_SECS:
                    _remove(entry)
                elif entry.name.endswith(suffix) and age > DAY_SECS:
                    name = entry.name.rpartition("-")[0]
                    entries.setdefault(name, []).append((age, entry.path))
                elif entry.name.endswith(".tmp") and age > DAY_SECS:
                    _remove(entry)
    for kept in entries.values():
        for _, path in sorted(kept)[KEEP_EACH:]:
            with suppress(OSError):
                os.unlink(path)


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path, ignore_errors=True)
    else:
        os.unlink(entry.path)
