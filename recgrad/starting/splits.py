"""Which rows train and which evaluate, as conditions on one input path: no row is copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recgrad.data.readers.where_text import split_where
from recgrad.errors import DataError
from recgrad.starting.profile import Profile
from recgrad.starting.roles import Roles
from recgrad.starting.times import cut_of

SPLITS = ("time", "users", "random")


@dataclass(frozen=True)
class Split:
    """Input paths, and why they are so."""

    train: str
    evaluate: str
    reason: str


def choose_split(
    profile: Profile, roles: Roles, *, data: str, evaluate: str, wanted: str, share: float
) -> Split:
    """The split that was asked for, else by time where there is a time, else at random.

    Args:
        data: input path of the rows.
        evaluate: input path of rows that are held back already; "" for none.
        wanted: one of SPLITS, or "".
        share: of the rows to evaluate on.
    """
    labelled = [f"{_name(name)} is not null" for name in roles.labels if profile.columns[name].nulls]
    labelled += [f"{_name(name)} != ''" for name, kind in roles.labels.items() if kind.blank]
    if evaluate:
        return Split(_where(data, labelled), _where(evaluate, labelled), "evaluation rows as given")
    how = wanted or ("time" if roles.time else "random")
    if how == "time":
        if not roles.time:
            raise DataError("init: --split time needs a column of times; name it with --time")
        cut = cut_of(profile.sample.column(roles.time), share)
        if cut is not None:
            name = _name(roles.time)
            reason = f"by time: rows from {cut} on evaluate, about {share:.0%} of them"
            return Split(
                _where(data, [f"{name} < {_literal(cut)}", *labelled]),
                _where(data, [f"{name} >= {_literal(cut)}", *labelled]),
                reason,
            )
        if wanted:
            raise DataError(f"init: --split time: every row has the same {roles.time}; use --split random")
        how = "random"
    if how == "users" and not roles.user:
        raise DataError("init: --split users needs a column of users; name it with --user")
    key = _name(roles.user) if how == "users" else "row()"
    held = max(1, round(100 * share))
    whom = f"{held} of 100 {'users' if how == 'users' else 'rows'} evaluate, by their hash"
    return Split(
        _where(data, [f"hash({key}) % 100 >= {held}", *labelled]),
        _where(data, [f"hash({key}) % 100 < {held}", *labelled]),
        f"{'by users' if how == 'users' else 'at random'}: {whom}",
    )


def _where(path: str, conditions: list[str]) -> str:
    files, already = split_where(path)
    joined = [f"({already})"] * bool(already) + conditions
    return f"{files} where {' and '.join(joined)}" if joined else files


def _name(column: str) -> str:
    return column if column.isidentifier() and column.lower() not in ("hash", "not", "row") else f"`{column}`"


def _literal(value: Any) -> str:
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    text: str = value.isoformat(timespec="seconds") if hasattr(value, "hour") else value.isoformat()
    return text[:19]
