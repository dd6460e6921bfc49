"""Paths that cannot be read are told apart from those that are not there."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recgrad.config import load_config
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.readers.csv import CsvReader
from recgrad.data.readers.files import list_files
from recgrad.data.readers.parquet import ParquetReader
from recgrad.data.readers.reader import Reader
from recgrad.errors import ConfigError, RecgradError, system_reason

NOBODY = 65534
DENIED = "permission denied; check the permissions of it and of the folders above it"


def message_of(call: Callable[[], object]) -> str:
    """The error of a call by somebody without rights, or ""; permissions do not bind root."""
    if os.geteuid() != 0:
        return _try(call)
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            sender.send(_try(call))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    text = receiver.recv()
    assert isinstance(text, str)
    return text


def _try(call: Callable[[], object]) -> str:
    try:
        call()
    except RecgradError as error:
        return str(error)
    return ""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Files and folders, some of them closed, under a path that anyone may follow."""
    for name in ("closed", "blind", "below/closed", "open"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "open" / "secret.csv").write_text("x,y\n1,2\n")
    (tmp_path / "open" / "secret.csv").chmod(0)
    (tmp_path / "open" / "secret.parquet").write_bytes(b"PAR1")
    (tmp_path / "open" / "secret.parquet").chmod(0)
    (tmp_path / "closed").chmod(0o311)
    (tmp_path / "below" / "closed").chmod(0)
    (tmp_path / "blind").chmod(0o444)
    (tmp_path / "loop").symlink_to("loop")
    parent = tmp_path
    while parent.stat().st_uid == os.geteuid() and parent != Path("/tmp") and parent != parent.parent:
        parent.chmod(parent.stat().st_mode | 0o055)
        parent = parent.parent
    yield tmp_path
    for name in ("closed", "below/closed", "blind"):
        (tmp_path / name).chmod(0o755)


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ("closed", "closed"),
        ("closed/*.csv", "closed"),
        ("blind", "blind"),
        ("blind/a.csv", "blind/a.csv"),
        ("blind/*", "blind"),
        ("below", "below/closed"),
    ],
)
def test_a_folder_without_rights_is_not_an_empty_one(folder: Path, entry: str, place: str) -> None:
    text = message_of(lambda: list_files(str(folder / entry), (".csv",)))
    assert text == f"data: cannot read '{folder / place}': {DENIED}"


@pytest.mark.parametrize(("name", "reader"), [("secret.csv", CsvReader), ("secret.parquet", ParquetReader)])
def test_a_file_without_rights_is_not_a_damaged_one(folder: Path, name: str, reader: type[Reader]) -> None:
    config = DataConfig(with_header=True)
    text = message_of(lambda: reader(str(folder / "open" / name), config))
    assert text == f"data: cannot read {name}: {DENIED}"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("loop", "a symbolic link leads back to itself; mend the link"),
        ("open/a.csv/b.csv", "a part of the path is a file where a folder must be; check the path"),
    ],
)
def test_other_paths_that_lead_nowhere(folder: Path, entry: str, reason: str) -> None:
    with pytest.raises(RecgradError) as error:
        list_files(str(folder / entry), (".csv",))
    assert str(error.value) == f"data: cannot read '{folder / entry}': {reason}"
    with pytest.raises(ConfigError) as refused:
        load_config(folder / entry)
    assert str(refused.value) == f"{folder / entry}: cannot be read: {reason}"


def test_configs_without_rights(folder: Path) -> None:
    secret = folder / "open" / "secret.csv"
    assert message_of(lambda: load_config(secret)) == f"{secret}: cannot be read: {DENIED}"
    # Whether a near name is there cannot be seen.
    absent = folder / "closed" / "b.csv"
    assert message_of(lambda: load_config(absent)) == f"{absent}: no such file"


def test_a_hidden_folder_without_rights_is_left_alone(folder: Path) -> None:
    (folder / "below" / "closed").rename(folder / "below" / "_temporary")
    (folder / "below" / "b.csv").write_text("x\n1\n")
    assert message_of(lambda: list_files(str(folder / "below"), (".csv",))) == ""
    files = list_files(str(folder / "below"), (".csv",))
    assert [file.name for file in files] == ["b.csv"]
    (folder / "below" / "_temporary").rename(folder / "below" / "closed")


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EISDIR, "it is a folder"), (errno.ENOSPC, "no space left"), (errno.EIO, os.strerror(errno.EIO))],
)
def test_system_errors_have_words(number: int, words: str) -> None:
    assert system_reason(OSError(number, os.strerror(number), "x")).startswith(words)


def test_a_system_error_without_a_number_keeps_its_text() -> None:
    assert system_reason(OSError("the stream broke")) == "the stream broke"
