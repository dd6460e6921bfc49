"""Keeps the model that is served, and takes up a new one in its place.

A new bundle is loaded beside the old one, which serves on meanwhile; loading scores its golden
rows. One that cannot be loaded is refused and the old one stays.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from recgrad.errors import RecgradError
from recgrad.serving.joins import FeatureStore
from recgrad.serving.joins import signature as file_signature
from recgrad.serving.kept import version_of_manifest
from recgrad.serving.scorer import Scorer
from recgrad.serving.served import Served
from recgrad.serving.settings import StoreSettings
from recgrad.serving.warming import warm_up

logger = logging.getLogger("recgrad.serving")

MANIFEST = "manifest.json"
LOOKS_BEFORE_GONE = 3
"""A replacement may lack its files for a moment; so many looks without them are told."""


@dataclass(frozen=True)
class Refused:
    """A replacement that was not taken up: what, why, and when (Unix time)."""

    what: str
    why: str
    at: float


class ModelHolder:
    """The served model, and whether something newer lies in its place.

    Args:
        path: of the bundle; a link is followed again at each look.
        stores: files of stored features, by role.
        folder: where mapped copies of these are kept.
        load: gives the scorer of a bundle.
        fallback: a copy of the bundle that was served last, taken where the one in its place is bad.
        on_event: called with "swap" or "refused".

    Raises:
        RecgradError: the first model, or a store, cannot be loaded.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        stores: Mapping[str, StoreSettings] | None = None,
        folder: str | Path = "",
        fallback: str | Path = "",
        load: Callable[[Path], Scorer] = Scorer.load,
        on_event: Callable[[str], None] = lambda event: None,
    ) -> None:
        self.path = Path(path)
        self.refused: Refused | None = None
        self.loaded_at = 0.0
        self.row_s = 0.0  # what a row of the newest model took while it was warmed up
        self._settings = dict(stores or {})
        self._folder = folder
        self._load = load
        self._on_event = on_event
        self._seen = self._signatures()
        self._last = dict(self._seen)
        self._gone: dict[str, int] = {}
        self._stores: dict[str, FeatureStore] = {}
        self._current = self._first(Path(fallback) if fallback else None)
        self.loaded_at = time.time()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def current(self) -> Served:
        """The model to score with; hold on to it for the length of a batch."""
        return self._current

    def follow(self, every_s: float) -> None:
        """Look for replacements on a thread."""
        self._thread = threading.Thread(target=self._follow, args=(every_s,), name="following", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ending.set()

    def look(self) -> bool:
        """Take up what has been replaced, and has lain still since the last look; True if something was."""
        now = self._signatures()
        before, self._last = self._last, now
        taken = False
        for what, known in sorted(now.items()):
            self._gone[what] = self._gone.get(what, 0) + 1 if known is None else 0
            if self._gone[what] == LOOKS_BEFORE_GONE:
                self._refuse(what, "there is nothing in its place")
            if known is None or known == self._seen.get(what) or known != before.get(what):
                continue
            self._seen[what] = known
            taken |= self._take_up(what)
        return taken

    def _first(self, fallback: Path | None) -> Served:
        """What to begin with: what lies in its place, or what was served before that came.

        Without a fallback nothing was served before, and the first error is raised.
        """
        opens: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            role: (partial(self._open, role), partial(self._open, role, accepted=True))
            for role in self._settings
        }
        opens["bundle"] = (partial(self._load, self.path), partial(self._load, fallback or self.path))
        found: dict[str, Any] = {}
        refused: dict[str, Exception] = {}
        for what, (new, old) in opens.items():
            try:
                found[what] = new()
            except (RecgradError, OSError) as error:
                if fallback is None:
                    raise
                found[what] = old()
                refused[what] = error
        scorer = found.pop("bundle")
        try:
            served = self._served(scorer, found)
        except (RecgradError, OSError) as error:
            if fallback is None:
                raise
            # Each is sound by itself, but they do not fit: those that were served before do.
            found = {role: opens[role][1]() for role in found}
            served = self._served(opens["bundle"][1](), found)
            refused["bundle"] = error
        self._stores = found
        for store in found.values():
            store.accept()
        for what, why in refused.items():
            self._refuse(what, str(why))
        return served

    def _take_up(self, what: str) -> bool:
        try:
            if what == "bundle":
                self._current = self._served(self._load(self.path), self._stores)
            else:
                stores = {**self._stores, what: self._open(what)}
                self._current = self._served(self._current.scorer, stores, self._current.version)
                self._stores = stores
                stores[what].accept()
        except (RecgradError, OSError) as error:
            self._refuse(what, str(error))
            return False
        except Exception as error:
            logger.exception("%s could not be loaded", self._name(what))
            self._refuse(what, f"{type(error).__name__}: {error}")
            return False
        self.loaded_at = time.time()
        self.refused = None
        logger.info("took up %s (version %s)", self._name(what), self._current.version)
        self._on_event("swap")
        return True

    def _refuse(self, what: str, why: str) -> None:
        self.refused = Refused(self._name(what), why, time.time())
        logger.warning("refused %s, the old one stays: %s", self._name(what), why)
        self._on_event("refused")

    def _name(self, what: str) -> str:
        return str(self.path) if what == "bundle" else self._settings[what].path

    def _open(self, role: str, *, accepted: bool = False) -> FeatureStore:
        return FeatureStore(role, self._settings[role], self._folder, accepted=accepted)

    def _served(
        self, scorer: Scorer, stores: Mapping[str, FeatureStore], version: str | None = None
    ) -> Served:
        served = Served(scorer, version or version_of(scorer), tuple(stores.values()))
        self.row_s = warm_up(served)
        return served

    def _signatures(self) -> dict[str, str | None]:
        found: dict[str, str | None] = {"bundle": bundle_signature(self.path)}
        for role, store in self._settings.items():
            try:
                found[role] = file_signature(Path(store.path))
            except OSError:
                found[role] = None
        return found

    def _follow(self, every_s: float) -> None:
        while not self._ending.wait(every_s):
            try:
                self.look()
            except Exception:
                logger.exception("looking for a new bundle failed")


def bundle_signature(path: Path) -> str | None:
    """What changes when any file of a bundle is replaced or written; None if there is no manifest."""
    try:
        folder = path.resolve(strict=True)
        if not (folder / MANIFEST).is_file():
            return None
        names = sorted(os.path.join(where, name) for where, _, files in os.walk(folder) for name in files)
        return str(folder) + "".join(f"\n{name} {file_signature(Path(name))}" for name in names)
    except OSError:
        return None


def version_of(scorer: Scorer) -> str:
    """A name for a bundle: the beginning of its manifest's SHA-256."""
    return version_of_manifest(scorer.manifest)
