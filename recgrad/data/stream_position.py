"""Where a rank stands in a stream, and the positions of all ranks as one text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from recgrad.data.position import FROM_WEIGHTS
from recgrad.data.readers.streams.source import Source, State
from recgrad.errors import DataError


@dataclass(frozen=True)
class StreamPosition:
    """After the last batch that was trained on.

    Attributes:
        stream: the kind of the source.
        name: what is read.
        at: where the source stands; rows that were read ahead lie beyond it.
        rows: rows given out, bad ones counted.
        batches: batches given out.
        bad_rows: rows left out as bad.
    """

    stream: str
    name: str
    at: State
    rows: int = 0
    batches: int = 0
    bad_rows: int = 0

    def after(self, at: State, *, rows: int, bad_rows: int, batches: int) -> StreamPosition:
        """The position after a further batch."""
        return replace(
            self,
            at=at,
            rows=self.rows + rows,
            batches=self.batches + batches,
            bad_rows=self.bad_rows + bad_rows,
        )

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


def position_of(text: str) -> StreamPosition:
    """The position of one rank that `to_json` wrote."""
    return _position(json.loads(text))


def join_stream_positions(texts: Sequence[str]) -> str:
    """The positions of ranks 0, 1, 2 … as one text; that of a single rank stays as it is."""
    if len(texts) == 1:
        return texts[0]
    ranks = [json.loads(text) for text in texts]
    return json.dumps({"stream": ranks[0]["stream"], "name": ranks[0]["name"], "ranks": ranks})


def resume_position(text: str, source: Source, rank: int, ranks: int) -> StreamPosition:
    """Where a rank resumes, with this or another number of ranks.

    Raises:
        DataError: the run was on other data.
    """
    values = json.loads(text)
    if values.get("stream") != source.kind or values.get("name") != source.name:
        was = values.get("name") or "files that were all there"
        raise DataError(
            f"data: the run was on {was}, and now on {source.name}; resume with the same data, or "
            f"{FROM_WEIGHTS}"
        )
    saved = [_position(own) for own in values.get("ranks", [values])]
    at = source.resume([one.at for one in saved])
    if len(saved) == ranks:
        return replace(saved[rank], at=at)
    # Rows and batches are what masks and negatives are drawn by: none is to come twice.
    return StreamPosition(
        source.kind,
        source.name,
        at,
        rows=max(one.rows for one in saved),
        batches=max(one.batches for one in saved),
        bad_rows=max(one.bad_rows for one in saved),
    )


def _position(values: dict[str, Any]) -> StreamPosition:
    return StreamPosition(
        stream=str(values["stream"]),
        name=str(values["name"]),
        at=dict(values["at"]),
        rows=int(values["rows"]),
        batches=int(values["batches"]),
        bad_rows=int(values["bad_rows"]),
    )
