"""`recgrad compare` on files as `recgrad predict` writes them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from recgrad.cli.main import main
from recgrad.report.comparison import compare


@pytest.fixture
def predictions(tmp_path):
    """Tables of two models for the same 3,000 rows, B the better one."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=3000)
    labels = (rng.random(3000) < 1 / (1 + np.exp(-truth))).astype(np.int64)
    users = pa.array([f"u{i}" for i in rng.integers(0, 200, 3000)])

    def table(noise):
        probs = 1 / (1 + np.exp(-(truth + noise * rng.normal(size=3000))))
        return pa.table(
            {"label": labels, "user": users, "id": np.arange(3000), "probs": probs.astype(np.float32)}
        )

    return table(2.0), table(0.3)


def write(folder, tables, suffix="parquet"):
    paths = [str(folder / f"{name}.{suffix}") for name in "ab"]
    for table, path in zip(tables, paths):
        (pa.parquet.write_table if suffix == "parquet" else pa.csv.write_csv)(table, path)
    return paths


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_table_verdict_json_and_plot(predictions, tmp_path, capsys, suffix):
    paths = write(tmp_path, predictions, suffix)
    plot, numbers = tmp_path / "plot.png", tmp_path / "numbers.json"
    flags = ["--label", "label", "--group", "user", "--plot", str(plot), "--json", str(numbers)]
    assert main(["compare", *paths, *flags]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == "verdict: B is better in auc, grouped_auc and log_loss"
    assert plot.read_bytes().startswith(b"\x89PNG")
    a, b = predictions
    expected = compare(
        a["label"].to_numpy(), a["probs"].to_numpy(), b["probs"].to_numpy(), a["user"].to_numpy()
    )
    found = json.loads(numbers.read_text())
    assert [d["difference"] for d in found["differences"]] == pytest.approx(
        [d.difference for d in expected.differences], rel=1e-6
    )


def test_without_a_group_there_is_no_grouped_auc(predictions, tmp_path, capsys):
    assert main(["compare", *write(tmp_path, predictions), "--label", "label"]) == 0
    assert "grouped_auc" not in capsys.readouterr().out


def test_rows_in_another_order_are_an_error_until_told_how_to_match(predictions, tmp_path, capsys):
    a, b = predictions
    straight = tmp_path / "straight.json"
    assert main(["compare", *write(tmp_path, (a, b)), "--label", "label", "--json", str(straight)]) == 0
    paths = write(tmp_path, (a, b.take(np.random.default_rng(1).permutation(3000))))
    assert main(["compare", *paths, "--label", "label"]) == 2
    assert "not in the same order; name a column of unique values with --on" in capsys.readouterr().err
    matched = tmp_path / "matched.json"
    assert main(["compare", *paths, "--label", "label", "--on", "id", "--json", str(matched)]) == 0
    assert json.loads(matched.read_text()) == json.loads(straight.read_text())
    assert main(["compare", *paths, "--label", "label", "--on", "user"]) == 2
    assert "must tell rows apart" in capsys.readouterr().err


def test_scores_of_tasks_and_of_two_classes(predictions, tmp_path, capsys):
    a, b = predictions
    probs = b["probs"].to_numpy()
    both = pa.FixedSizeListArray.from_arrays(pa.array(np.stack([1 - probs, probs], 1).reshape(-1)), 2)
    a = a.rename_columns(["label", "user", "id", "probs_ctr"])
    b = b.drop_columns(["probs"]).append_column("probs_x", both).append_column("probs_y", both)
    paths = write(tmp_path, (a, b))
    assert main(["compare", *paths, "--label", "label"]) == 2
    assert "which column holds the predictions" in capsys.readouterr().err
    assert main(["compare", *paths, "--label", "label", "--score-b", "probs_x"]) == 0
    assert "verdict: B is better in auc and log_loss" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--label", "lable"], "has no column 'lable'; did you mean 'label'?"),
        (["--label", "label", "--group", "users"], "has no column 'users'; did you mean 'user'?"),
        (["--label", "label", "--score", "prob"], "has no column 'prob'; did you mean 'probs'?"),
        (["--label", "label", "--confidence", "95"], "confidence must be in (0, 1), got 95"),
        (["--label", "label", "--weighting", "POSITIVES"], "weighting is of groups"),
    ],
)
def test_mistakes_end_with_code_2_and_a_remedy(predictions, tmp_path, capsys, flags, message):
    assert main(["compare", *write(tmp_path, predictions), *flags]) == 2
    assert message in capsys.readouterr().err


def test_files_that_do_not_fit(predictions, tmp_path, capsys):
    a, b = predictions
    paths = write(tmp_path, (a, b.slice(0, 10)))
    assert main(["compare", *paths, "--label", "label"]) == 2
    assert "has 10 rows, but" in capsys.readouterr().err
    assert main(["compare", paths[0], str(tmp_path / "none.parquet"), "--label", "label"]) == 2
    assert "none.parquet: there is no such file; give the predictions that" in capsys.readouterr().err
    assert main(["compare", paths[0], str(tmp_path / "none.csv"), "--label", "label"]) == 2
    assert "none.csv: there is no such file" in capsys.readouterr().err
    (tmp_path / "odd.parquet").write_text("no parquet")
    assert main(["compare", paths[0], str(tmp_path / "odd.parquet"), "--label", "label"]) == 2
    assert "odd.parquet: cannot be read as predictions (" in capsys.readouterr().err
