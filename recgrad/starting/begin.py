"""From a table to a config: look, decide, split, write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from recgrad.errors import DataError
from recgrad.starting.config import write_config
from recgrad.starting.labels import find_kind, label_candidates
from recgrad.starting.profile import Profile, look
from recgrad.starting.roles import Asked, Roles, check_asked, find_roles
from recgrad.starting.source import open_source
from recgrad.starting.splits import Split, choose_split

CONFIG = "pipeline.config"


@dataclass(frozen=True)
class InitSettings:
    """What is asked of `recgrad init`.

    Attributes:
        data: the input path.
        out: the folder to write into.
        evaluate: an input path of rows to evaluate on; "" splits `data`.
        asked: what the user has said of the columns.
        names: of the columns of text files without a header.
        split: time, users or random; "" chooses.
        share: of the rows to evaluate on.
    """

    data: str
    out: str
    evaluate: str = ""
    asked: Asked = field(default_factory=Asked)
    names: Sequence[str] = ()
    split: str = ""
    share: float = 0.1


@dataclass(frozen=True)
class Beginning:
    """What was found and written."""

    profile: Profile
    roles: Roles
    split: Split
    config: Path


def begin(settings: InitSettings, choose_label: Callable[[list[str]], str] | None = None) -> Beginning:
    """Look at a table and write a config for it.

    Args:
        choose_label: asks the user which of several columns is the label; None raises instead.

    Raises:
        DataError: the table cannot be read, or it cannot be known what to learn.
    """
    path = Path(settings.out) / CONFIG
    if path.exists():
        raise DataError(f"init: {path} exists; remove it or choose another --out")
    if not 0 < settings.share < 1:
        raise DataError(f"init: --eval-share must be above 0 and below 1, got {settings.share}")
    reader, data = open_source(settings.data, settings.names)
    readers = [reader]
    if settings.evaluate:
        readers.append(open_source(settings.evaluate, settings.names)[0])
        _check_same_columns(reader.schema, readers[1].schema, settings)
    profile = look(reader)
    check_asked(profile, settings.asked)
    asked = _with_label(profile, settings.asked, choose_label)
    labels = {name: find_kind(profile, readers, name) for name in asked.labels}
    roles = find_roles(profile, asked, labels)
    if not roles.inputs():
        raise DataError("init: no column is left to learn from; see --keep")
    split = choose_split(
        profile,
        roles,
        data=settings.data,
        evaluate=settings.evaluate,
        wanted=settings.split,
        share=settings.share,
    )
    model_dir = (Path(settings.out) / "model").as_posix()
    text = write_config(profile, roles, split, data, path.as_posix(), model_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return Beginning(profile, roles, split, path)


def _check_same_columns(ours: pa.Schema, theirs: pa.Schema, settings: InitSettings) -> None:
    missing = [name for name in ours.names if theirs.get_field_index(name) < 0]
    if missing:
        raise DataError(f"init: {settings.evaluate} has no column '{missing[0]}', which {settings.data} has")


def _with_label(profile: Profile, asked: Asked, choose: Callable[[list[str]], str] | None) -> Asked:
    if asked.labels:
        return asked
    found = label_candidates(profile)
    certain = [name for name in found if name.lower() in ("label", "is_click", "click", "target")]
    if len(found) == 1 or certain:
        label = found[0]
    elif choose is not None and found:
        label = choose(found)
    else:
        those = f"candidates: {', '.join(found)}" if found else "no column has two values and a usual name"
        raise DataError(f"init: which column is the label? Name it with --label ({those})")
    return Asked((label,), asked.time, asked.user, asked.item, asked.keep, asked.ignore)
