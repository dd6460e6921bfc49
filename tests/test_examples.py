"""Every example of `recgrad example` runs on data that it makes, and learns what is planted in them."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recgrad.cli.main import main
from recgrad.examples import EXAMPLES
from recgrad.synth import shop_log, write_days
from recgrad.synth.shop import FIRST_SECOND, STEPS

ROOT = Path(__file__).resolve().parents[1]
ROWS = {"ctr": 12_000, "multi-task": 8_000, "din": 16_000, "retrieval": 12_000, "served": 8_000}


@pytest.fixture
def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Callable[[str], str]:
    """Runs an example in `made`; gives what it logs and prints."""
    caplog.set_level(logging.INFO, "recgrad")
    return lambda name: _run(name, tmp_path, capsys, caplog)


def _run(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> str:
    rows = ["--rows", str(ROWS.get(name, 12_000))]
    assert main(["example", name, "--out", str(folder / "made"), *rows]) == 0
    printed = capsys.readouterr()
    assert "\nnext:\n" in printed.out
    return caplog.text + printed.err + printed.out


def value(text: str, metric: str) -> float:
    """The last value of a metric that was printed."""
    return float(re.findall(rf"\b{re.escape(metric)}:? +([\d.]+)", text)[-1])


@pytest.mark.slow
def test_ctr(tmp_path: Path, run: Callable[[str], str]) -> None:
    text = run("ctr")
    assert value(text, "auc") > 0.7
    assert "outcome" in text
    assert (tmp_path / "made/run/model/report.html").is_file()


@pytest.mark.slow
def test_multi_task(tmp_path: Path, run: Callable[[str], str]) -> None:
    text = run("multi-task")
    assert "mmoe" in (tmp_path / "made/run/pipeline.config").read_text()
    assert value(text, "auc_purchase") > 0.6
    assert (tmp_path / "made/scores.parquet").is_file()


@pytest.mark.slow
def test_din(tmp_path: Path, run: Callable[[str], str]) -> None:
    assert value(run("din"), "auc") > 0.7


@pytest.mark.slow
def test_retrieval(tmp_path: Path, run: Callable[[str], str]) -> None:
    text = run("retrieval")
    assert value(text, "catalogue_recall@20") > 2 * value(text, "most_popular_recall@20")
    lists = list(csv.DictReader((tmp_path / "made/lists.csv").open()))
    assert len(lists) == 5 * len({row["user_id"] for row in lists})


@pytest.mark.slow
def test_sequence(tmp_path: Path, run: Callable[[str], str]) -> None:
    text = run("sequence")
    model, popular = re.findall(r"ndcg@10 +([\d.]+) +([\d.]+)", text)[-1]
    assert float(model) > 2 * float(popular)


@pytest.mark.slow
def test_incremental(tmp_path: Path, run: Callable[[str], str]) -> None:
    text = run("incremental")
    before = [float(found) for found in re.findall(r"before training on it: auc ([\d.]+)", text)]
    assert len(before) == 6
    assert max(before[3:]) > before[0] + 0.02


@pytest.mark.slow
def test_served(tmp_path: Path, run: Callable[[str], str]) -> None:
    pytest.importorskip("uvloop")
    text = run("served")
    (answer,) = re.findall(r'^(\{.*"scores".*\})$', text, re.M)
    scores = json.loads(answer)["scores"]["probs"]
    assert len(scores) == 2
    assert all(0 < score < 1 for score in scores)


def test_every_example_has_a_test_and_is_on_the_page() -> None:
    tests = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")}
    page = (ROOT / "docs" / "examples.md").read_text()
    assert set(EXAMPLES) <= tests
    assert [name for name in EXAMPLES if f"recgrad example {name}\n" not in page] == []


def test_the_list_of_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example"]) == 0
    text = capsys.readouterr().out
    assert all(f"{name} " in text for name in EXAMPLES)


def test_an_unknown_example_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", "retreival"]) == 2
    assert "did you mean 'retrieval'?" in capsys.readouterr().err


def test_a_folder_with_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["example", "ctr", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_too_few_rows_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", "ctr", "--out", str(tmp_path / "made"), "--rows", "3"]) == 2
    assert "rows must be at least 40, got 3" in capsys.readouterr().err


def test_the_history_of_the_log_is_what_was_clicked_before() -> None:
    """Replayed by a loop over the rows: `recent` has no click of the row itself, nor of later ones."""
    log = shop_log(30 * STEPS, seed=3).log.to_pylist()
    clicked: dict[int, list[int]] = {}
    for row in log:
        seen = clicked.setdefault(row["user_id"], [])
        assert row["recent"] == seen[:10]
        assert row["click"] >= row["purchase"]
        if row["click"]:
            seen.insert(0, row["item_id"])


def test_the_log_repeats_and_its_days_are_whole(tmp_path: Path) -> None:
    shop = shop_log(20 * STEPS, seed=1)
    assert shop.log.equals(shop_log(20 * STEPS, seed=1).log)
    assert not shop.log.equals(shop_log(20 * STEPS, seed=2).log)
    paths = write_days(shop, tmp_path)
    import pyarrow.parquet as pq

    tables = [pq.read_table(path) for path in paths]
    assert sum(table.num_rows for table in tables) == shop.log.num_rows
    for number, table in enumerate(tables):
        days = (np.asarray(table["time"]) - FIRST_SECOND) // 86_400
        assert set(days) <= {number}
