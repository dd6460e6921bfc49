"""A hold on the files of the bundle that is served, so that it can be loaded again after it was replaced.

A bundle is replaced by renaming, or by removing it and writing another. A file that is open outlives both,
so the supervisor opens every file of the bundle that its workers accepted. A worker that it starts
inherits the descriptors, and finds the bundle as a folder of links to its own /proc/self/fd.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from recgrad.errors import RecgradError
from recgrad.serving.answers import plain_content
from recgrad.serving.manifest import MANIFEST, read_manifest

DESCRIPTORS = Path("/proc/self/fd")


class KeptBundle:
    """The open files of a bundle, and a folder of links to them.

    Args:
        bundle: where it lies now.
        folder: where the links go; it must not be there yet.

    Attributes:
        path: a bundle for processes that inherit `descriptors`.
        descriptors: of its files.
        version: of it.

    Raises:
        OSError, RecgradError: it is not there, or not whole.
    """

    def __init__(self, bundle: str | Path, folder: str | Path) -> None:
        self.path = Path(folder)
        self.descriptors: tuple[int, ...] = ()
        root = Path(bundle).resolve(strict=True)
        try:
            self.path.mkdir()
            self._open(root / MANIFEST, self.path / MANIFEST)
            manifest = read_manifest(self.path)
            for name in manifest.files:
                link = self.path / name
                link.parent.mkdir(parents=True, exist_ok=True)
                self._open(root / name, link)
            # pipeline.config and the like are in the manifest too; nothing else is read.
            self.version = version_of_manifest(manifest)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path, link: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.descriptors += (descriptor,)
        link.symlink_to(DESCRIPTORS / str(descriptor))

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self.descriptors:
            with suppress(OSError):
                os.close(descriptor)
        self.descriptors = ()
        shutil.rmtree(self.path, ignore_errors=True)


class Keeper:
    """Keeps the newest bundle that a worker has accepted.

    Args:
        bundle: its place.
        folder: of the supervisor.
    """

    def __init__(self, bundle: str | Path, folder: str | Path) -> None:
        self._bundle = bundle
        self._folder = Path(folder)
        self._count = 0
        self.kept: KeptBundle | None = None

    def accepted(self, version: str) -> None:
        """A worker serves this version; keep it if it still lies in its place."""
        if self.kept is not None and self.kept.version == version:
            return
        if not DESCRIPTORS.is_dir():
            return
        self._count += 1
        try:
            found = KeptBundle(self._bundle, self._folder / f"kept-{self._count}")
        except (OSError, RecgradError):
            return  # it is being replaced again; what is kept stays
        if found.version != version:
            found.close()
            return
        if self.kept is not None:
            self.kept.close()
        self.kept = found


def version_of_manifest(manifest: Any) -> str:
    """A name for a bundle: the beginning of its manifest's SHA-256."""
    text = json.dumps(plain_content(manifest), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
