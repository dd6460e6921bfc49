"""`recgrad predict` by bundles and checkpoints: the same scores, flags, several processes, rows in memory."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.cli.main import main
from recgrad.config import load_config
from recgrad.config.expand import expand_config
from recgrad.data.batch import Batch
from recgrad.data.encoded import DenseArray, Encoded, IdArrays
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.build import features_of
from recgrad.errors import DataError, RecgradError
from recgrad.export.feature_texts import feature_texts
from recgrad.synth import write_synth

pytest.importorskip("onnxruntime")

ROWS = 1_000


class Run(NamedTuple):
    """A trained model, its bundle, and rows to predict, in small row groups."""

    folder: Path
    model_dir: Path
    bundle: Path
    rows: Path
    expected: pa.Table


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, _one_registry: None) -> Run:
    folder = tmp_path_factory.mktemp("predict")
    write_synth(folder, 3_000, eval_rows=ROWS, seed=2)
    config = load_config(folder / "deepfm.config")
    config.model_dir = str(folder / "model")
    config.data_config.batch_size = 256
    result = recgrad.train(config)
    recgrad.export_model(str(result.model_dir), folder / "bundle")
    rows = folder / "rows.parquet"
    pq.write_table(pq.read_table(folder / "eval.parquet"), rows, row_group_size=130)
    out = folder / "expected.parquet"
    recgrad.predict(str(result.model_dir), input_path=str(rows), output_path=out, carry_columns=["user_id"])
    return Run(folder, Path(result.model_dir), folder / "bundle", rows, pq.read_table(out))


def same(found: pa.Table, run: Run, rows: slice = slice(None)) -> None:
    np.testing.assert_array_equal(found["user_id"].to_numpy(), run.expected["user_id"].to_numpy()[rows])
    np.testing.assert_allclose(
        found["probs"].to_numpy(), run.expected["probs"].to_numpy()[rows], rtol=0, atol=1e-6
    )


def line(source: Path, run: Run, out: Path, *more: str) -> list[str]:
    paths = ["--predict_input_path", str(run.rows), "--predict_output_path", str(out)]
    return ["predict", str(source), *paths, "--reserved_columns", "user_id", *more]


@pytest.mark.parametrize("source", ["bundle", "model_dir", "checkpoint", "config"])
def test_every_kind_of_model_gives_the_same_predictions(run: Run, tmp_path: Path, source: str) -> None:
    checkpoint = next(iter(run.model_dir.glob("model.ckpt-*")))
    path = {
        "bundle": run.bundle,
        "model_dir": run.model_dir,
        "checkpoint": checkpoint,
        "config": run.model_dir / "pipeline.config",
    }[source]
    assert main(line(path, run, tmp_path / "out.parquet", "--batch_size", "77")) == 0
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["user_id", "probs"]
    same(found, run)
    assert [file.name for file in tmp_path.iterdir()] == ["out.parquet"]


def test_a_bundle_is_predicted_without_torch(run: Run, tmp_path: Path) -> None:
    code = (
        "import sys; from recgrad.cli.main import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    words = line(run.bundle, run, tmp_path / "out.csv")
    subprocess.run([sys.executable, "-c", code, *words], check=True, timeout=300)
    same(pyarrow.csv.read_csv(tmp_path / "out.csv"), run)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["bundle", "model_dir"])
def test_several_processes_keep_the_order(run: Run, tmp_path: Path, source: str) -> None:
    path = getattr(run, source)
    assert main(line(path, run, tmp_path / "out.parquet", "--nproc", "3")) == 0
    same(pq.read_table(tmp_path / "out.parquet"), run)
    if source == "bundle":
        assert main(line(path, run, tmp_path / "parts", "--nproc", "2", "--writer_type", "CsvWriter")) == 0
        parts = [tmp_path / "parts" / f"part-{i}.csv" for i in range(2)]
        assert sorted((tmp_path / "parts").iterdir()) == parts
        same(pa.concat_tables([pyarrow.csv.read_csv(part) for part in parts]), run)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_flags_choose_outputs_steps_and_formats(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert main(line(run.bundle, run, out, "--batch_size", "100", "--predict_steps", "3")) == 0
    same(pq.read_table(out), run, slice(300))
    assert main(line(run.model_dir, run, out, "--batch_size", "100", "--predict_steps", "3")) == 0
    same(pq.read_table(out), run, slice(300))
    assert main(line(run.bundle, run, tmp_path / "folder")) == 0
    same(pq.read_table(tmp_path / "folder" / "part-0.parquet"), run)
    carried = recgrad.predict(
        str(run.bundle), input_path=run.rows, output_path=out, carry_columns=["ALL_COLUMNS"]
    )
    assert carried == ROWS
    assert pq.read_table(out).column_names == [*pq.read_schema(run.rows).names, "probs"]
    for source in (run.bundle, run.model_dir):
        recgrad.predict(
            str(source), input_path=run.rows, output_path=out, carry_columns=["ALL_EFFECTIVE_COLUMNS"]
        )
        names = pq.read_table(out).column_names
        assert "label" not in names
        assert set(names) == {*recgrad.load_model(run.bundle).columns, "probs"}


def test_batches_of_a_checkpoint_are_traced(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    assert main(line(run.model_dir, run, out, "--batch_size", "50", "--is_profiling")) == 0
    same(pq.read_table(out), run)
    (trace,) = (tmp_path / "out.parquet.profile").iterdir()
    events = json.loads(trace.read_text())["traceEvents"]
    steps = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep#")}
    assert steps == {f"ProfilerStep#{step}" for step in range(7, 15)}
    assert any(event.get("name") == "aten::linear" for event in events)


@pytest.mark.parametrize(
    ("source", "flags", "message"),
    [
        ("bundle", ["--output_columns", "prob"], "no prediction 'prob' (has: probs); did you mean 'probs'?"),
        ("model_dir", ["--output_columns", "prob"], "no prediction 'prob' (has: probs)"),
        ("bundle", ["--checkpoint_path", "x"], "has no checkpoints; leave out --checkpoint_path"),
        ("bundle", ["--device", "cuda"], "scored on the CPU"),
        ("bundle", ["--batch_size", "0"], "batch_size must be at least 1, got 0"),
        ("bundle", ["--nproc", "0"], "--nproc must be at least 1, got 0"),
        ("bundle", ["--nproc", "2", "--predict_steps", "1"], "goes with one process"),
        ("bundle", ["--writer_type", "CsvWriter"], "CsvWriter writes .csv files"),
        ("bundle", ["--writer_type", "OdpsWriter"], "no writer 'OdpsWriter'"),
        ("bundle", ["--dataset_type", "Parquet"], "data_config.dataset_type"),
        ("bundle", ["--edit_config_json", '{"train_config.seed": 3}'], "only data_config can be edited"),
        ("bundle", ["--num_threads", "1", "--predict_threads", "2"], "leave one out"),
        ("bundle", ["--scripted_model_path", "x"], "name one config, model_dir or bundle, got 2"),
        ("bundle", ["--debug_level", "2"], "debug_level must be 0, or 1 for encoded features"),
        ("bundle", ["--is_profiling"], "is_profiling traces torch, which a bundle is scored without"),
        ("model_dir", ["--is_profiling", "--nproc", "2"], "is_profiling goes with one process"),
    ],
)
def test_what_cannot_be_done_is_refused_and_leaves_nothing(
    run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    flags: list[str],
    message: str,
) -> None:
    assert main(line(getattr(run, source), run, tmp_path / "out.parquet", *flags)) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(RecgradError, match="is there already; remove it, or choose another"):
        recgrad.predict(str(run.bundle), input_path=run.rows, output_path=tmp_path)


def test_bad_rows_are_told_or_skipped_as_training_does(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = pq.read_table(run.rows)
    name = "user_id" if "user_id" in recgrad.load_model(run.bundle).columns else "cat_0"
    values = table[name].to_pylist()
    values[700] = -5
    at = table.schema.get_field_index(name)
    bad = tmp_path / "bad.parquet"
    pq.write_table(table.set_column(at, name, pa.array(values, table.schema.field(at).type)), bad)
    out = tmp_path / "out.parquet"
    for source in (run.bundle, run.model_dir):
        with pytest.raises(DataError, match=r"row 700 of bad\.parquet"):
            recgrad.predict(str(source), input_path=bad, output_path=out)
        assert not out.exists()
        rows = recgrad.predict(
            str(source),
            input_path=bad,
            output_path=out,
            carry_columns=["label"],
            edit_config_json={"data_config.on_bad_row": "SKIP", "data_config.max_bad_row_ratio": 0.01},
        )
        assert rows == ROWS - 1
        good = np.delete(run.expected["probs"].to_numpy(), 700)
        np.testing.assert_allclose(pq.read_table(out)["probs"].to_numpy(), good, rtol=0, atol=1e-6)
        out.unlink()
    assert "row 700 of bad.parquet" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them_and_nothing_is_written(
    run: Run, tmp_path: Path, number: int
) -> None:
    words = line(run.bundle, run, tmp_path / "out.parquet", "--nproc", "2")
    started = subprocess.Popen([sys.executable, "-m", "recgrad.predict", *words[1:]], start_new_session=True)
    parts: list[int] = []
    until = time.monotonic() + 120
    while len(parts) < 2 and time.monotonic() < until:
        time.sleep(0.02)
        assert started.poll() is None
        parts = children(started.pid)
    started.send_signal(number)
    assert started.wait(60) == (143 if number == signal.SIGTERM else -number)
    while any(Path(f"/proc/{part}").exists() for part in parts) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{part}").exists() for part in parts)
    assert not (tmp_path / "out.parquet").exists()


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()]


def test_rows_in_memory_come_back_in_their_own_kind(run: Run, tmp_path: Path) -> None:
    table = pq.read_table(run.rows)
    wanted = run.expected["probs"].to_numpy()
    pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    for source in (str(run.bundle), str(run.model_dir)):
        for rows in (table.to_pandas(), polars.from_arrow(table), table):
            found = recgrad.predict(source, input_path=rows)
            assert type(found) is type(rows)
            np.testing.assert_allclose(np.asarray(found["probs"]), wanted, rtol=0, atol=1e-6)
        out = tmp_path / "out.parquet"
        assert recgrad.predict(source, input_path=table, output_path=out, carry_columns=["user_id"]) == ROWS
        same(pq.read_table(out), run)
        with pytest.raises(DataError, match="rows: cannot be read as a table"):
            recgrad.predict(source, input_path=3.5)


def test_a_loaded_model_is_the_same_of_a_bundle_a_model_dir_and_a_checkpoint(run: Run) -> None:
    checkpoint = next(iter(run.model_dir.glob("model.ckpt-*")))
    table = pq.read_table(run.rows).slice(0, 40)
    of_bundle = recgrad.load_model(run.bundle)
    column = of_bundle.columns[-1]
    without = table.set_column(
        table.column_names.index(column), column, pa.nulls(40, table.schema.field(column).type)
    )
    for path in (run.bundle, run.model_dir, checkpoint):
        model = recgrad.load_model(path)
        assert (model.tasks, model.outputs, model.columns) == (
            of_bundle.tasks,
            of_bundle.outputs,
            of_bundle.columns,
        )
        assert [spec.name for spec in model.features] == [spec.name for spec in of_bundle.features]
        found = model.predict(table)["probs"].to_numpy()
        np.testing.assert_allclose(found, run.expected["probs"].to_numpy()[:40], rtol=0, atol=1e-6)
        again = pickle.loads(pickle.dumps(model)).predict(table)["probs"].to_numpy()
        np.testing.assert_array_equal(again, found)
        changes = model.explain(table)["probs"]
        assert set(changes) == {spec.name for spec in model.features}
        feature = next(spec.name for spec in model.features if column in spec.name)
        wanted = found - model.predict(without)["probs"].to_numpy()
        np.testing.assert_allclose(changes[feature], wanted, rtol=0, atol=1e-6)
        assert np.abs(wanted).max() > 0


def test_the_module_of_the_command_does_not_hide_the_function() -> None:
    code = "import recgrad.predict, recgrad; assert recgrad.predict.__module__ == 'recgrad.export.predict'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_encoded_features_stand_beside_predictions(run: Run, tmp_path: Path) -> None:
    texts = []
    for source in (run.model_dir, run.bundle):
        out = tmp_path / "out.parquet"
        assert main(line(source, run, out, "--debug_level", "1", "--output_columns", "probs")) == 0
        found = pq.read_table(out)
        assert found.column_names == ["user_id", "probs", "__features__"]
        same(found, run)
        texts.append(found["__features__"].to_pylist())
    assert texts[0] == texts[1]
    features = features_of(expand_config(load_config(run.model_dir / "pipeline.config")))
    encoded = FeatureEncoder(features).encode_table(pq.read_table(run.rows), Faults())
    key = encoded.sparse.keys[0]
    for row in (0, 1, ROWS - 1):
        parts = dict(part.split(":", 1) for part in texts[0][row].split(" | "))
        ids = encoded.sparse[key]
        own = ids.values[ids.offsets[row] : ids.offsets[row + 1]]
        assert parts[key] == ",".join(map(str, own.tolist()))
    assert main(line(run.bundle, run, tmp_path / "out.csv", "--debug_level", "1", "--nproc", "2")) == 0
    assert pyarrow.csv.read_csv(tmp_path / "out.csv")["__features__"].to_pylist() == texts[0]
    with pytest.raises(RecgradError, match="debug_level writes features of files"):
        recgrad.predict(str(run.bundle), input_path=pq.read_table(run.rows), debug_level=1)
    assert main([*line(run.bundle, run, tmp_path / "x.parquet"), "--debug_level", "1"]) == 0
    again = ["predict", str(run.bundle), "--predict_input_path", str(tmp_path / "named.parquet")]
    pq.write_table(
        pq.read_table(run.rows).append_column("__features__", pa.array(texts[0])), tmp_path / "named.parquet"
    )
    again += ["--predict_output_path", str(tmp_path / "y.parquet"), "--reserved_columns", "__features__"]
    assert main([*again, "--debug_level", "1"]) == 2


def test_features_of_every_kind_as_text() -> None:
    encoded = Encoded(
        size=3,
        dense=DenseArray(("d", "t"), (2, 1), np.array([[0.1, 1, 0], [2, -3, 0], [np.nan, 0, 0]], np.float32)),
        sparse=IdArrays(
            ("a", "b"),
            np.array([7, 2, 9, 4, 5, 6]),
            np.array([1, 2, 0, 1, 1, 1], np.int32),
            (3, 3),
            np.array([0.5, 1, 1, 1, 1, 1], np.float32),
        ),
        sequence_lengths={"s": np.array([2, 0, 1], np.int32), "n": np.array([1, 1, 0], np.int32)},
        sequence_sparse=IdArrays(("s",), np.array([1, 2, 3, 4]), np.array([1, 2, 1], np.int32), (3,)),
        sequence_dense={"n": np.array([[0.5, 1.5], [2, 3]], np.float32)},
        precise={"t": np.array([1e9 + 0.5, 2.0, 3.0])},
    )
    names = ["a", "b", "d", "t", "s", "n", "gone"]
    want = [
        "a:7:0.5 | b:4:1 | d:0.1,1 | t:1000000000.5 | s:1;2,3 | n:0.5,1.5",
        "a:2:1,9:1 | b:5:1 | d:2,-3 | t:2 | s: | n:2,3",
        "a: | b:6:1 | d:nan,0 | t:3 | s:4 | n:",
    ]
    assert feature_texts(encoded, names).to_pylist() == want
    assert feature_texts(Batch.of(encoded), names).to_pylist() == want
    assert feature_texts(encoded, []).to_pylist() == [""] * 3
