"""What a run leaves that ended before its first step, such as by a bad row in its first batch.

It has learned nothing, so the next run in the same folder begins as if it were empty: a newcomer corrects the
data or the config and enters the same command again.
"""

from __future__ import annotations

import json
from pathlib import Path

from recgrad.config.load import CONFIG_FILE
from recgrad.training.hooks.events import EVALUATIONS_FILE, EVENTS_FILE

VERSION_FILE = "version"
_WRITTEN_AT_THE_START = {CONFIG_FILE, VERSION_FILE, EVENTS_FILE, EVALUATIONS_FILE}


def remove_failed_start(folder: Path, keep: set[str]) -> bool:
    """Remove what such a run left; says whether the folder is now empty but for what is to `keep`.

    Nothing is removed where there is anything else, or an event after the start.
    """
    names = {path.name for path in folder.iterdir()} - keep
    if not names:
        return True
    if not names <= _WRITTEN_AT_THE_START or not _only_started(folder / EVENTS_FILE):
        return False
    for name in names:
        (folder / name).unlink()
    return True


def _only_started(events: Path) -> bool:
    """Whether the log tells of nothing but starts; a folder without one is not known to be a run's."""
    try:
        lines = events.read_text(encoding="utf-8").splitlines()
        return all(json.loads(line)["kind"] == "start" for line in lines)
    except (OSError, ValueError, KeyError, TypeError):
        return False
