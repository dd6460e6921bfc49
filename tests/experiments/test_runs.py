"""Repeats, tables of runs and comparisons of sets of runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recgrad.cli.main import main
from recgrad.errors import RecgradError
from recgrad.experiments.repeat import ENDED, parse_seeds
from recgrad.experiments.runs import differing, find_runs, read_run
from recgrad.experiments.sets import compare_sets, summarize
from recgrad.experiments.statistics import compare_paired, compare_welch, estimate_mean, t_cdf, t_quantile
from recgrad.starting import InitSettings, begin


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repeat")
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 40, 1500), rng.integers(0, 30, 1500)
    click = (rng.random(1500) < np.where(user % 2 == item % 2, 0.7, 0.2)).astype(int)
    pq.write_table(pa.table({"user_id": user, "item_id": item, "click": click}), folder / "log.parquet")
    return begin(InitSettings(str(folder / "log.parquet"), str(folder / "out"))).config


@pytest.fixture(scope="module")
def sets(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sets")
    slow = '{"train_config.dense_optimizer.adam_optimizer.lr": 0.1}'
    command = ["repeat", str(config), "--seeds", "3", "--num-threads", "1"]
    assert main([*command, "--out", str(folder / "a")]) == 0
    assert main([*command, "--out", str(folder / "b"), "--edit-config-json", slow]) == 0
    return folder / "a", folder / "b"


def test_seeds() -> None:
    assert parse_seeds("3") == [0, 1, 2]
    assert parse_seeds("3,7") == [3, 7]
    for bad in ("x", "0", "1,1", "-2,3"):
        with pytest.raises(RecgradError, match="--seeds"):
            parse_seeds(bad)


def test_every_seed_is_a_run_of_its_own(sets: tuple[Path, Path]) -> None:
    runs = find_runs(sets[0])
    assert [run.folder.name for run in runs] == ["seed-0", "seed-1", "seed-2"]
    assert [run.config.train_config.seed for run in runs] == [0, 1, 2]
    assert len({run.metrics["auc"] for run in runs}) == 3
    values = [run.metrics["auc"] for run in runs]
    found = summarize(runs)["auc"]
    assert found.mean == pytest.approx(np.mean(values))
    assert found.deviation == pytest.approx(np.std(values, ddof=1))
    assert list(differing(runs)) == ["train_config.seed"]


def test_a_set_is_resumed(
    config: Path, sets: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["repeat", str(config), "--seeds", "3", "--out", str(sets[0])]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert printed.count("(done before)") == 3
    assert "interval of the mean" in printed
    before = read_run(sets[0] / "seed-2").metrics
    (sets[0] / "seed-2" / ENDED).unlink()
    assert main(command) == 0
    assert capsys.readouterr().out.count("(done before)") == 2
    assert read_run(sets[0] / "seed-2").metrics == before
    other = '{"data_config.batch_size": 64}'
    assert main([*command, "--edit-config-json", other]) == 2
    assert "data_config.batch_size" in capsys.readouterr().err


def test_compare_takes_two_sets(
    sets: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a, b = (str(folder) for folder in sets)
    assert main(["compare", a, a]) == 0
    assert "no difference is shown" in capsys.readouterr().out
    assert main(["compare", a, b, "--json", str(tmp_path / "c.json")]) == 0
    assert "paired t" in capsys.readouterr().out
    found = json.loads((tmp_path / "c.json").read_text())["auc"]
    values = [np.array([run.metrics["auc"] for run in find_runs(folder)]) for folder in sets]
    assert found["difference"] == pytest.approx(values[1].mean() - values[0].mean())
    assert main(["compare", a, b, "--label", "x"]) == 2
    assert main(["compare", a, str(sets[1] / "seed-0")]) == 2
    assert "two of each" in capsys.readouterr().err
    assert compare_sets(find_runs(a), find_runs(b)[:2])["auc"].method == "Welch's t"


def test_runs_are_listed_sorted_and_filtered(
    sets: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "runs.json"
    command = ["runs", str(sets[0].parent), "--json", str(file)]
    assert main([*command, "--sort", "auc"]) == 0
    rows = json.loads(file.read_text())
    values = [row["auc"] for row in rows]
    assert values == sorted(values, reverse=True)
    assert len(rows) == 6
    assert {
        row["lr"] if "lr" in row else row["train_config.dense_optimizer.adam_optimizer.lr"] for row in rows
    } == {
        0.001,
        0.1,
    }
    assert main([*command, "--sort", "auc", "--reverse", "--where", "seed >= 1 and state = 'ended'"]) == 0
    kept = json.loads(file.read_text())
    assert len(kept) == 4
    assert [row["auc"] for row in kept] == sorted(row["auc"] for row in kept)
    assert "seed" in capsys.readouterr().out
    assert main([*command, "--sort", "aucc"]) == 2
    assert "did you mean 'auc'?" in capsys.readouterr().err
    assert main(["runs", str(tmp_path / "nothing")]) == 2
    assert main(["runs", str(tmp_path)]) == 2
    assert "no run is here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.975, 4, 2.7764451052), (0.975, 1, 12.7062047362), (0.995, 9, 3.2498355416), (0.95, 2, 2.9199855804)],
)
def test_quantiles_of_students_t(probability: float, freedom: int, expected: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9)
    assert t_quantile(1 - probability, freedom) == pytest.approx(-expected, rel=1e-9)


@pytest.mark.parametrize("freedom", [1.0, 2.5, 7.0, 40.0])
def test_students_t_is_the_integral_of_its_density(freedom: float) -> None:
    log_front = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    for t in (0.3, 1.7, 4.0):
        x = np.linspace(0, t, 200_001)
        density = np.exp(log_front) * (1 + x * x / freedom) ** (-(freedom + 1) / 2)
        integral = float(np.sum((density[1:] + density[:-1]) / 2 * np.diff(x)))
        assert t_cdf(t, freedom) == pytest.approx(0.5 + integral, abs=1e-9)
        assert t_cdf(-t, freedom) == pytest.approx(0.5 - integral, abs=1e-9)


def test_intervals_hold_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    inside = paired = welch = 0
    for _ in range(400):
        a, b = rng.normal(3, 1, 5), rng.normal(3, 2, 4)
        found = estimate_mean(a.tolist())
        inside += found.low <= 3 <= found.high
        paired += not compare_paired(a[:4].tolist(), b.tolist()).differs
        welch += not compare_welch(a.tolist(), b.tolist()).differs
    assert 364 <= inside <= 396
    assert 364 <= paired <= 396
    assert 360 <= welch <= 400
