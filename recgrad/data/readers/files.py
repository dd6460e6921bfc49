"""Finding the files that an input path means."""

from __future__ import annotations

import errno
import os
import posixpath
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs

from recgrad.errors import DataError, system_reason, whole_path

_MAGIC = "*?["


@dataclass(frozen=True)
class SourceFile:
    """A file of any file system that fsspec knows.

    Attributes:
        path: as its file system spells it, without the protocol.
        filesystem: the fsspec file system.
        name: path below the folder that all files of the dataset share.
        size: bytes.
    """

    path: str
    filesystem: Any
    name: str
    size: int

    @property
    def local(self) -> bool:
        """Whether the file lies on this machine's own disks."""
        return _is_local(self.filesystem)

    def open_arrow(self) -> pa.NativeFile:
        """A random-access file for pyarrow, read without Python where that is possible."""
        if self.local:
            return pa.OSFile(self.path, "rb")
        handler = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(self.filesystem))
        return handler.open_input_file(self.path)

    def open_binary(self) -> Any:
        """A binary file object for reading."""
        return open(self.path, "rb") if self.local else self.filesystem.open(self.path, "rb")


def list_files(input_path: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    """The files of an input path, sorted by path, each once.

    An input path is one or more entries joined by commas. An entry is a file, a glob or a
    folder, local or with an fsspec protocol (`s3://…`). Of a folder, the files that end in
    one of `suffixes` are taken, with those of its sub-folders; names that begin with `_` or
    `.` are markers of the writer and are left out. The order does not depend on how the
    path is spelled.
    """
    found: dict[tuple[str, str], tuple[str, Any, int]] = {}
    for entry in (part.strip() for part in input_path.split(",")):
        if not entry:
            continue
        filesystem, path = fsspec.core.url_to_fs(os.path.expanduser(entry))
        protocol = filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
        for item, size in _expand(filesystem, path, entry, suffixes):
            found[protocol, item] = (item, filesystem, size)
    if not found:
        raise DataError(f"data: input path '{input_path}' is empty; give a file, a glob or a folder")
    paths = sorted(found)
    root = _common_folder([path for _, path in paths])
    return [
        SourceFile(path, found[protocol, path][1], posixpath.relpath(path, root), found[protocol, path][2])
        for protocol, path in paths
    ]


def _expand(filesystem: Any, path: str, entry: str, suffixes: tuple[str, ...]) -> list[tuple[str, int]]:
    """Path and size of each file that one entry means."""
    try:
        if _is_local(filesystem):
            _check_access(path)
        if any(sign in path for sign in _MAGIC):
            details = filesystem.glob(path, detail=True)
            files = {name: info for name, info in details.items() if info["type"] == "file"}
            if not files:
                raise DataError(
                    f"data: no file matches '{entry}'{whole_path(entry)}; check the path and the pattern"
                )
        elif filesystem.isdir(path):
            details = filesystem.find(path, detail=True)
            files = {name: info for name, info in details.items() if _is_data(name, path, suffixes)}
            if not files:
                kinds = " or ".join(suffixes)
                raise DataError(f"data: folder '{entry}'{whole_path(entry)} has no file that ends in {kinds}")
        elif filesystem.exists(path):
            files = {path: filesystem.info(path)}
        else:
            raise DataError(f"data: no file '{entry}'{whole_path(entry)}; check the path")
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else entry
        raise DataError(f"data: cannot read '{place}'{whole_path(place)}: {system_reason(error)}") from error
    except ValueError as error:
        raise DataError(f"data: cannot list '{entry}'{whole_path(entry)} ({error})") from error
    return [(name, int(info["size"])) for name, info in files.items()]


def _is_local(filesystem: Any) -> bool:
    protocol = filesystem.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


def _check_access(path: str) -> None:
    """Raise the system's error for a path, or a folder in it, that cannot be looked into.

    fsspec takes such paths for absent and such folders for empty; files would be missing unnoticed.
    """
    parts = path.split("/")
    fixed = next((i for i, part in enumerate(parts) if any(sign in part for sign in _MAGIC)), len(parts))
    path = "/".join(parts[:fixed]) or "/"
    try:
        os.stat(path)
    except FileNotFoundError:
        return  # there are words of its own for that
    for folder, below, _ in os.walk(path, onerror=_refuse) if os.path.isdir(path) else ():
        below[:] = [] if fixed < len(parts) else [name for name in below if not name.startswith(("_", "."))]
        if not os.access(folder, os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_data(name: str, folder: str, suffixes: tuple[str, ...]) -> bool:
    parts = posixpath.relpath(name, folder).split("/")
    return name.endswith(suffixes) and not any(part.startswith(("_", ".")) for part in parts)


def _common_folder(paths: list[str]) -> str:
    folders = [posixpath.dirname(path) for path in paths]
    try:
        return posixpath.commonpath(folders) or "."
    except ValueError:  # absolute paths and paths of another file system side by side
        return "."
