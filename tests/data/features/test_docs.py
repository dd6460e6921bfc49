"""The examples of docs/features.md, run as they stand there."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs/features.md"
EXAMPLE = re.compile(r"```protobuf\n([^`]*)```\n\n((?:\|[^\n]*\n)+)")


def examples() -> list[Any]:
    found = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    return [
        pytest.param(config, table, id=f"{i}-{config.split()[0]}") for i, (config, table) in enumerate(found)
    ]


def cells(line: str) -> list[str]:
    return [
        cell.strip().strip("`").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]
    ]


def column(values: list[Any]) -> pa.Array:
    if isinstance(values[0], dict):
        return pa.array(
            [None if v is None else list(v.items()) for v in values], pa.map_(pa.string(), pa.int64())
        )
    return pa.array(values)


@pytest.mark.parametrize(("config", "table"), examples())
def test_examples_hold(encode, config: str, table: str) -> None:
    header, _, *lines = table.splitlines()
    rows = [[json.loads(cell) for cell in cells(line)] for line in lines]
    by_name = dict(zip(cells(header), zip(*rows, strict=True), strict=True))
    results = {
        name: list(by_name.pop(name)) for name in list(by_name) if name in KINDS or name.startswith("pos")
    }
    assert results
    result = encode(config, {name: column(list(values)) for name, values in by_name.items()}, mode="FG_DAG")
    for name, want in results.items():
        if name.startswith("positions"):
            assert result.sequence_ids(name.removeprefix("positions").removeprefix(" of ") or None) == want
        else:
            assert getattr(result, name)() == want


KINDS = ("ids", "floats", "weights")


def test_the_page_shows_every_kind() -> None:
    from recgrad.data.features import FEATURES

    text = PAGE.read_text(encoding="utf-8")
    kinds = [kind for kind in FEATURES if not kind.startswith("sequence_") or kind == "sequence_feature"]
    assert [kind for kind in kinds if f"### {kind}\n" not in text] == []
    assert len(examples()) >= 20
