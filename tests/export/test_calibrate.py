"""`recgrad calibrate`: stored with the model, applied wherever it scores, and never to other weights."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

import recgrad
from recgrad.calibration.platt import Platt
from recgrad.calibration.stored import read_calibration
from recgrad.cli.main import main
from recgrad.config import load_config
from recgrad.errors import BundleError, RecgradError
from recgrad.serving.following import FollowingScorer
from recgrad.serving.manifest import read_manifest
from recgrad.serving.scorer import Scorer
from recgrad.serving.verify import checksum_of
from recgrad.synth import write_synth

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model_dir with the checkpoints of step 8 and of step 16; its data lie beside it."""
    folder = tmp_path_factory.mktemp("calibrate")
    write_synth(folder, 4_000, eval_rows=1_500, seed=2)
    config = load_config(folder / "deepfm.config")
    config.model_dir = str(folder / "model")
    config.data_config.batch_size = 256
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.save_checkpoints_steps = 8
    recgrad.train(config)
    assert (folder / "model/model.ckpt-8").is_dir()
    return folder / "model"


@pytest.fixture
def model_dir(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "model"))


@pytest.fixture(scope="module")
def rows(trained: Path) -> Path:
    return trained.parent / "eval.parquet"


def scores(source: Path, rows: Path, *flags: str) -> np.ndarray:
    out = rows.parent / "scores.parquet"
    line = ["predict", str(source), "--predict_input_path", str(rows), "--predict_output_path", str(out)]
    assert main([*line, *flags]) == 0
    return pq.read_table(out)["probs"].to_numpy()


@pytest.mark.usefixtures("_one_registry")
@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_every_way_to_score_applies_it(
    model_dir: Path, rows: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = scores(model_dir, rows)
    assert main(["calibrate", str(model_dir), "--data", str(rows), "--method", method]) == 0
    said = capsys.readouterr().out
    assert "calibration error" in said
    assert "model.ckpt-" in said
    assert (model_dir / "calibration.png").read_bytes().startswith(b"\x89PNG")
    stored = read_calibration(model_dir / "calibration.json")
    expected = stored.maps["probs"].apply(raw)
    assert np.abs(expected - raw).max() > 1e-4

    table = pq.read_table(rows)
    labels = table["label"].to_numpy()
    np.testing.assert_array_equal(scores(model_dir, rows), expected)
    np.testing.assert_array_equal(scores(model_dir, rows, "--raw_scores"), raw)
    close = 1e-6 if method == "platt" else 1e-3
    np.testing.assert_allclose(recgrad.load_model(model_dir).predict(table)["probs"], expected, atol=close)
    if method == "platt":  # the order stays, but for scores that become equal in float32
        assert (np.diff(expected[np.argsort(raw)]) >= 0).all()
    else:
        auc = roc_auc_score(labels, expected)
        assert auc == pytest.approx(roc_auc_score(labels, raw), abs=0.02)

    bundle = model_dir.parent / "bundle"
    assert main(["export", str(model_dir), "--export_dir", str(bundle)]) == 0
    np.testing.assert_allclose(scores(bundle, rows), expected, atol=close)
    np.testing.assert_allclose(scores(bundle, rows, "--raw_scores"), raw, atol=1e-6)
    loaded = recgrad.load_model(bundle, raw_scores=True)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(loaded)).predict(table)["probs"], raw, atol=1e-6)
    if method == "platt":
        # Some batches have fewer rows there, and on some processors torch's products then add up otherwise.
        np.testing.assert_allclose(scores(model_dir, rows, "--nproc", "2"), expected, atol=close)
        _only_whole_calibrations_load(bundle)


def _only_whole_calibrations_load(bundle: Path) -> None:
    """Golden rows notice another map whose checksum is right; checksums a changed or missing file."""
    with pytest.raises(BundleError, match="other weights"):
        FollowingScorer(bundle, bundle.parent)
    path, manifest = bundle / "calibration.json", read_manifest(bundle)
    stored = read_calibration(path)
    line = stored.maps["probs"]
    assert isinstance(line, Platt)
    other = replace(stored, maps={"probs": Platt(line.slope, line.offset + 0.1)})
    path.write_bytes(other.to_bytes())
    sealed = replace(manifest, files={**manifest.files, path.name: checksum_of(path)})
    (bundle / "manifest.json").write_bytes(sealed.to_bytes())
    with pytest.raises(BundleError, match="golden rows differs"):
        Scorer.load(bundle)
    path.write_bytes(path.read_bytes().replace(b'"rows": 1500', b'"rows": 1501'))
    with pytest.raises(BundleError, match="damaged"):
        Scorer.load(bundle)
    path.unlink()
    with pytest.raises(BundleError, match=r"calibration\.json"):
        Scorer.load(bundle)


def test_the_calibration_of_other_weights_is_refused(
    model_dir: Path, rows: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    early = model_dir / "model.ckpt-8"
    assert main(["calibrate", str(model_dir), "--data", str(rows), "--checkpoint_path", str(early)]) == 0
    assert read_calibration(model_dir / "calibration.json").step == 8
    scores(early, rows)
    line = ["predict", str(model_dir), "--predict_input_path", str(rows), "--predict_output_path"]
    capsys.readouterr()
    assert main([*line, str(tmp_path / "a.parquet")]) == 2
    said = capsys.readouterr().err
    assert "fitted to model.ckpt-8" in said
    assert "--raw_scores" in said
    assert main(["export", str(model_dir), "--export_dir", str(tmp_path / "bundle")]) == 2
    with pytest.raises(RecgradError, match=r"fitted to model.ckpt-8"):
        recgrad.load_model(model_dir)
    scores(model_dir, rows, "--raw_scores")
    # Another checkpoint in its place, such as of a run from the start.
    path = model_dir / "calibration.json"
    crc = read_calibration(path).crc32
    path.write_text(path.read_text().replace(str(crc), str(crc ^ 1)))
    with pytest.raises(RecgradError, match=r"another model.ckpt-8"):
        recgrad.load_model(early)


def test_what_cannot_be_calibrated_is_refused(
    model_dir: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pq.read_table(rows)
    negatives = tmp_path / "negatives.parquet"
    pq.write_table(table.filter(pq.read_table(rows)["label"].to_numpy() == 0), negatives)
    assert main(["calibrate", str(model_dir), "--data", str(negatives)]) == 2
    assert "both classes" in capsys.readouterr().err
    assert main(["calibrate", str(model_dir), "--data", str(tmp_path / "none.parquet")]) == 2
    assert not (model_dir / "calibration.json").exists()
    (model_dir / "calibration.json").write_text("{}")
    with pytest.raises(RecgradError, match="calibrate again"):
        recgrad.load_model(model_dir)
