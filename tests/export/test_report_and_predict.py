"""A trained run's predictions and report, as files that a user opens."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score

import recgrad
from recgrad.cli.main import main
from recgrad.config import PipelineConfig, load_config
from recgrad.data.batch import Batch
from recgrad.errors import RecgradError
from recgrad.export.predict import predict
from recgrad.export.prediction_files import with_predictions
from recgrad.report import plots
from recgrad.report.page import write_report
from recgrad.synth import write_synth
from recgrad.training.runtime import flushes_subnormals
from recgrad.training.task import Task

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[PipelineConfig, recgrad.TrainResult, Path]:
    folder = tmp_path_factory.mktemp("trained")
    write_synth(folder, 6_000, eval_rows=1_500, seed=2)
    config = load_config(folder / "deepfm.config")
    config.train_config.log_step_count_steps = 2
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.save_checkpoints_steps = 3
    return config, recgrad.train(config), folder


@pytest.fixture
def model_dir(trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(trained[1].model_dir, tmp_path / "model"))


def test_predictions_keep_the_order_and_carry_columns(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path
) -> None:
    config, result, folder = trained
    rows = predict(
        config,
        input_path=str(folder / "eval.parquet"),
        output_path=tmp_path / "out.parquet",
        carry_columns=["user_id", "label"],
    )
    table = pq.read_table(tmp_path / "out.parquet")
    source = pq.read_table(folder / "eval.parquet")
    assert rows == table.num_rows == source.num_rows
    assert table.column_names == ["user_id", "label", "probs"]
    assert table["user_id"].equals(source["user_id"])
    auc = roc_auc_score(table["label"].to_numpy(), table["probs"].to_numpy())
    # The run's AUC is binned; its bins keep it within a thousandth of the exact one.
    assert auc == pytest.approx(result.metrics["auc"], abs=1e-3)


def test_csv_predictions_are_the_same(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path
) -> None:
    config, _, folder = trained
    for name in ("a.parquet", "a.csv"):
        predict(config, input_path=str(folder / "eval.parquet"), output_path=tmp_path / name)
    parquet = pq.read_table(tmp_path / "a.parquet")["probs"].to_numpy()
    csv = pyarrow.csv.read_csv(tmp_path / "a.csv")["probs"].to_numpy()
    assert parquet == pytest.approx(csv, rel=1e-6)


def test_prediction_needs_no_labels(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path
) -> None:
    config, _, folder = trained
    table = pq.read_table(folder / "eval.parquet").drop_columns(["label", "user_id"])
    pq.write_table(table, tmp_path / "in.parquet")
    assert (
        predict(config, input_path=str(tmp_path / "in.parquet"), output_path=tmp_path / "o.parquet") == 1_500
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [("out.json", "must end with one of .parquet, .csv"), ("folder.parquet", "is a folder")],
    ids=["suffix", "folder"],
)
def test_what_cannot_be_written_is_refused(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path, name: str, message: str
) -> None:
    config, _, folder = trained
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(RecgradError, match=message):
        predict(config, input_path=str(folder / "eval.parquet"), output_path=tmp_path / name)


def test_predictions_do_not_replace_their_input(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path
) -> None:
    config, _, folder = trained
    shutil.copy(folder / "eval.parquet", tmp_path / "a.parquet")
    shutil.copy(folder / "eval.parquet", tmp_path / "b.parquet")
    (tmp_path / "link.parquet").symlink_to(tmp_path / "b.parquet")
    before = (tmp_path / "b.parquet").read_bytes()
    for name in ("b.parquet", "link.parquet"):
        with pytest.raises(RecgradError, match="one of the files to predict for"):
            predict(config, input_path=f"{tmp_path}/[ab].parquet", output_path=tmp_path / name)
    assert (tmp_path / "b.parquet").read_bytes() == before


def test_a_carried_column_with_the_name_of_a_prediction_is_refused(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path
) -> None:
    config, _, folder = trained
    table = pq.read_table(folder / "eval.parquet")
    pq.write_table(table.append_column("probs", table["label"]), tmp_path / "in.parquet")
    source, target = str(tmp_path / "in.parquet"), tmp_path / "out.parquet"
    with pytest.raises(RecgradError, match="column 'probs' of the input has the name of a prediction"):
        predict(config, input_path=source, output_path=target, carry_columns=["user_id", "probs"])
    assert not target.exists()
    assert predict(config, input_path=source, output_path=target, carry_columns=["user_id"]) == 1_500


class _SignalWhenDropped:
    """Sends a signal from a finalizer, where Python loses what a handler raises."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        sum(range(100_000))  # so that Python calls the handler in here


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("command", ["predict", "eval"])
def test_a_signal_ends_the_command_whenever_it_comes_and_leaves_nothing(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    number: int,
    code: int,
) -> None:
    _, result, folder = trained
    original = Task.forward
    seen: list[_SignalWhenDropped | None] = []

    def forward(self: Task, batch: Batch) -> dict[str, torch.Tensor]:
        seen.append(_SignalWhenDropped(number) if len(seen) == 1 else None)
        seen[-1] = None
        return original(self, batch)

    monkeypatch.setattr(Task, "forward", forward)
    line = [command, str(result.model_dir / "pipeline.config"), "--num-threads", "1"]
    line += ["--edit-config-json", '{"data_config.batch_size": 100, "data_config.eval_batch_size": 100}']
    if command == "predict":
        line += ["--predict-input-path", str(folder / "eval.parquet")]
        line += ["--predict-output-path", str(tmp_path / "out.parquet")]
    threads = torch.get_num_threads()
    try:
        assert main(line) == code
    finally:
        torch.set_num_threads(threads)
    assert len(seen) == 2
    assert list(tmp_path.iterdir()) == []


def test_all_that_computes_takes_subnormal_numbers_for_zero(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, result, folder = trained
    source = str(result.model_dir / "pipeline.config")
    original = Task.forward
    seen: list[bool] = []

    def forward(self: Task, batch: Batch, *prepared: object) -> dict[str, torch.Tensor]:
        seen.append(flushes_subnormals())
        return original(self, batch, *prepared)  # type: ignore[arg-type]

    monkeypatch.setattr(Task, "forward", forward)
    rows, out = str(folder / "eval.parquet"), tmp_path / "out.parquet"
    lr_find = ["lr-find", source, "--steps", "10", "--half", "dense", "--num-threads", "1"]
    threads = torch.get_num_threads()
    for compute in (
        lambda: recgrad.evaluate(source),
        lambda: recgrad.predict(source, input_path=rows, output_path=out),
        lambda: recgrad.train(source, model_dir=tmp_path / "model"),
        lambda: write_report(result.model_dir, tmp_path / "report.html"),
        lambda: main(lr_find),
    ):
        seen.clear()
        compute()
        assert seen
        assert all(seen)
        assert not flushes_subnormals()
    torch.set_num_threads(threads)


def test_the_report_is_one_file_without_links_outside(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path
) -> None:
    _, result, _ = trained
    page = write_report(result.model_dir, tmp_path / "report.html").read_text()
    for title in ("Training loss", "Learning rates", "Throughput", "Gradient norm", "Calibration", "Config"):
        assert title in page
    assert re.search(r"Memory, at most resident \d+\.\d\d GB, tables \d+\.\d\d GB", page)
    assert "Share of the cores in use" in page
    assert f"{result.metrics['auc']:.6f}" in page
    assert "AUC by size of user_id groups" in page
    outside = set(re.findall(r'(?:src|href)="(?!#)([^"]*)"', page))
    assert not outside, outside


def test_a_task_of_two_classes_is_calibrated_as_one_of_one_logit_is(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path
) -> None:
    config = load_config(trained[0])
    config.model_dir = str(tmp_path)
    config.train_config.num_epochs, config.train_config.num_steps = 0, 2
    model = config.model_config
    model.num_class = 2
    model.losses[0].softmax_cross_entropy.SetInParent()
    result = recgrad.train(config)
    page = write_report(result.model_dir, tmp_path / "report.html").read_text()
    assert "<h2>Calibration</h2>" in page
    assert "AUC by size of user_id groups" in page


def test_a_report_without_its_data_says_so(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], model_dir: Path
) -> None:
    config = model_dir / "pipeline.config"
    config.write_text(config.read_text().replace(str(trained[2]), "/gone"))
    page = write_report(model_dir).read_text()
    assert "This cannot be computed now" in page
    assert "Training loss" in page


def test_a_report_without_events_says_so_and_goes_where_it_is_told(model_dir: Path, tmp_path: Path) -> None:
    (model_dir / "events.jsonl").unlink()
    page = write_report(model_dir, tmp_path / "new/folder/report.html").read_text()
    assert "no steps logged" in page
    assert "events.jsonl is gone" in page
    assert "Calibration" in page


def test_a_report_tells_where_the_run_was_made(model_dir: Path) -> None:
    page = write_report(model_dir).read_text()
    assert f'<th>torch</th><td class="number">{torch.__version__}</td>' in page
    assert '<th>device</th><td class="number">cpu</td>' in page
    # A log from a machine that is not this one.
    log = (model_dir / "events.jsonl").read_text()
    start, rest = log.split("\n", 1)
    elsewhere = json.dumps({**json.loads(start), "machine": {"machine": "Plan 9 <vax>"}})
    (model_dir / "events.jsonl").write_text(f"{elsewhere}\n{rest}")
    page = write_report(model_dir).read_text()
    assert "Plan 9 &lt;vax&gt;" in page
    assert "<th>torch</th>" not in page
    (model_dir / "events.jsonl").write_text(f"{elsewhere}\n{rest}{start.replace(': 0,', ': 9,', 1)}\n")
    page = write_report(model_dir).read_text()
    assert "From step 9 on; other machines" in page
    assert "<th>torch</th>" in page


def test_a_report_tells_of_the_run_and_its_best_step(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], model_dir: Path
) -> None:
    _, result, _ = trained
    page = write_report(model_dir).read_text()
    assert f"last, step {result.step}" in page
    assert f"best, step {result.best_step}" in page
    assert f"Best by {result.best_metric}." in page
    assert f"{result.best_metrics['auc']:.6f}" in page
    rows = dict(re.findall(r"<tr><th>([^<]*)</th><td>([^<]*)</td></tr>", page))
    assert rows.keys() >= {"date", "duration"}
    assert rows["trained on"].endswith("train.parquet, 6,000 rows")
    assert re.fullmatch(
        r"deepfm, [\d,]+ dense weights, [\d,]+ values in \d+ tables of [\d,]+ rows", rows["model"]
    )
    assert "begun to overfit" not in page
    events = [json.loads(line) for line in (model_dir / "events.jsonl").read_text().splitlines()]
    worse = [
        {"kind": "eval", "step": 10**6, "time": events[-1]["time"], "metrics": {"log_loss": 9.0}},
        {
            **[event for event in events if event["kind"] == "train"][-1],
            "step": 10**6,
            "losses": {"total": 0.0},
        },
    ]
    (model_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in [*events, *worse]))
    page = write_report(model_dir).read_text()
    assert "begun to overfit" in page
    assert "log_loss of the evaluation rose from" in page


@pytest.mark.parametrize(("points", "marked"), [(2, True), (12, True), (20, True), (21, False)])
def test_few_points_have_markers(points: int, marked: bool) -> None:
    steps = list(range(points))
    svg = plots.curves({"auc": (steps, [0.1 * step for step in steps])}, y_label="auc")
    line = svg[svg.index('id="line2d_') :]
    drawn = max(len(re.findall(r"<use ", part)) for part in line.split('<g id="'))
    assert (drawn >= points) == marked


def test_curves_over_few_steps_have_whole_steps_on_their_axis() -> None:
    svg = plots.curves({"loss": ([1], [0.5])}, y_label="loss")
    marks = re.findall(r"text-anchor: middle[^>]*>([^<]+)</text>", svg)
    assert "step" in marks
    assert all(re.fullmatch(r"[−-]?\d+", mark) for mark in marks if mark not in ("step", "loss"))
    assert "1" in marks


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecgradError, match=r"has no pipeline\.config"):
        write_report(tmp_path)


@pytest.mark.skipif(BROWSER is None, reason="needs Debian's chromium")
def test_a_browser_shows_the_report(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path
) -> None:
    _, result, _ = trained
    page = write_report(result.model_dir, tmp_path / "report.html")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    done = subprocess.run(
        [str(BROWSER), *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    # What the browser has parsed, not what was written: pictures are elements, text is in place.
    assert done.stdout.count("<svg") >= 6
    assert "Last and best evaluation" in done.stdout


MEASURE = """<html><body style="margin:0">
<iframe id="phone" src="report.html" style="width:390px;height:844px;border:0"></iframe><script>
document.getElementById("phone").onload = function () {
  const page = this.contentDocument, all = names => Array.from(page.querySelectorAll(names));
  const right = Math.max(...all("section, h1, svg, table").map(e => e.getBoundingClientRect().right));
  const hidden = Math.max(...all("section").map(e => e.scrollWidth - e.clientWidth));
  const width = page.documentElement.scrollWidth;
  document.body.append(`width ${width} right ${Math.ceil(right)} hidden ${hidden} end`);
};
</script></body></html>"""


@pytest.mark.skipif(BROWSER is None, reason="needs Debian's chromium")
def test_the_report_fits_a_phone(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path
) -> None:
    """In a frame of 390 px, since a headless window has a least width of its own."""
    write_report(trained[1].model_dir, tmp_path / "report.html")
    page = tmp_path / "phone.html"
    page.write_text(MEASURE)
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--allow-file-access-from-files",
    ]
    flags += ["--disable-background-networking", "--virtual-time-budget=10000"]
    done = subprocess.run(
        [str(BROWSER), *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r"width (\d+) right (\d+) hidden (\d+) end", done.stdout)
    assert found is not None, done.stdout[-500:]
    width, right, hidden = map(int, found.groups())
    assert width <= 390
    assert right <= 390
    assert hidden == 0  # nothing to be scrolled to inside a card


def test_classes_become_columns_of_a_csv_file() -> None:
    table = pyarrow.table({"user_id": [1, 2]})
    probabilities = {"probs": np.array([[0.2, 0.8], [0.5, 0.5]], np.float32)}
    assert with_predictions(table, probabilities, flat=True).column_names == [
        "user_id",
        "probs_0",
        "probs_1",
    ]
    assert with_predictions(table, probabilities, flat=False)["probs"].to_pylist()[1] == [0.5, 0.5]


def test_a_column_that_csv_cannot_hold_is_refused_and_leaves_nothing(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path
) -> None:
    config, _, folder = trained
    with pytest.raises(RecgradError, match="write parquet"):
        predict(
            config,
            input_path=str(folder / "eval.parquet"),
            output_path=tmp_path / "out.csv",
            carry_columns=["click_seq"],
        )
    assert list(tmp_path.iterdir()) == []


def test_export_config_says_in_which_precision_predictions_are_made(
    trained: tuple[PipelineConfig, recgrad.TrainResult, Path], tmp_path: Path
) -> None:
    config, _, folder = trained
    found = {}
    for precision in ("", "BF16"):
        path = tmp_path / f"{precision}.parquet"
        edits = {"export_config.mixed_precision": precision}
        source = str(folder / "eval.parquet")
        predict(config, input_path=source, output_path=path, edit_config_json=edits)
        found[precision] = pq.read_table(path)["probs"].to_numpy()
    assert found["BF16"].dtype == np.float32
    gaps = np.abs(found["BF16"] - found[""])
    assert 0 < gaps.max() < 0.05  # eight bits of a logit
    with pytest.raises(
        RecgradError, match=r"mixed_precision is for `recgrad predict`, bundles compute in float32"
    ):
        recgrad.export_model(
            config, tmp_path / "bundle", edit_config_json={"export_config.mixed_precision": "BF16"}
        )
