"""What a bundle promises beside its scores: exactness, no torch, refusal of damage, whole or nothing."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from recgrad.embedding.mapped.packing import PACKINGS
from recgrad.errors import BundleError, DataError, RecgradError
from recgrad.export import bundle as bundle_module
from recgrad.export.bundle import encoded_batch, write_bundle
from recgrad.export.model import load_model
from recgrad.models import DSSM, Model
from recgrad.serving.part import BadRowsError
from recgrad.serving.scorer import Scorer

pytestmark = pytest.mark.usefixtures("_one_registry")


@pytest.fixture(scope="module")
def scorer(bundle):
    return Scorer.load(bundle)


def predicted(model, table):
    with torch.no_grad():
        outputs = model.task(encoded_batch(model.features, table))
    return {name: values.numpy() for name, values in model.task.predictions(outputs).items()}


def test_scoring_imports_no_torch(bundle, make_rows, tmp_path):
    """A server has no torch; the scores are the same."""
    table = make_rows(9, seed=3)
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    code = (
        "import sys, pyarrow as pa\n"
        "import recgrad\n"
        "model = recgrad.load_model(sys.argv[1])\n"
        "table = pa.ipc.open_file(sys.argv[2]).read_all()\n"
        "print(model.predict(table).column('probs').to_pylist())\n"
        "model.explain(table)\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(bundle), str(tmp_path / "rows.arrow")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    np.testing.assert_allclose(json.loads(run.stdout), Scorer.load(bundle).score(table)["probs"], atol=1e-6)


def test_rows_that_were_never_trained_score_as_in_predict(scorer, model, make_rows):
    """Few rows of `a` were trained, of the others the values are drawn."""
    table = make_rows(300, seed=5)
    np.testing.assert_allclose(scorer.score(table)["probs"], predicted(model, table)["probs"], atol=1e-6)


@pytest.mark.parametrize(("precision", "tolerance"), [("FP16", 2e-3), ("INT8", 4e-2)])
def test_smaller_tables_score_nearly_the_same(precision, tolerance, model, make_rows, bundle, tmp_path):
    manifest = write_bundle(tmp_path / "small", model, make_rows(6), precision=precision)
    table = make_rows(100, seed=8)
    small, whole = Scorer.load(tmp_path / "small").score(table), predicted(model, table)
    difference = np.abs(small["probs"] - whole["probs"]).max()
    assert 0 < difference < tolerance
    assert {record.packing for record in manifest.tables} == {precision}
    sizes = {
        p: sum(f.stat().st_size for f in Path(p).glob("tables/*.rows")) for p in (bundle, tmp_path / "small")
    }
    assert sizes[tmp_path / "small"] <= sizes[bundle] * {"FP16": 0.5, "INT8": 6 / 16}[precision]


@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.parametrize("dim", [1, 3, 8])
def test_packed_rows_are_read_back(name, dim):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, dim)).astype(np.float32) * np.float32(10) ** rng.integers(-6, 3, (50, 1))
    rows = rows.astype(np.float32)
    rows[0], rows[1, 0] = 0, 0
    packing = PACKINGS[name]
    packed = packing.pack(rows)
    assert packed.shape == (50, packing.stride(dim))
    # No packed row reads as one that was never trained.
    first = packed[:, : 4 if name == "FP32" else 2].any(axis=1)
    assert first.all()
    back = packing.unpack(packed, dim)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    relative = {"FP32": 0, "FP16": 2**-11, "BF16": 2**-8, "INT8": 0.5 * 1.01 / 127}[name]
    of_row = largest if name == "INT8" else np.abs(rows)
    assert (np.abs(back - rows) <= of_row * relative + (6e-8 if name == "FP16" else 0)).all()


def test_threads_share_a_scorer_and_pickling_keeps_its_scores(scorer, make_rows):
    table = make_rows(50, seed=2)
    wanted = scorer.score(table)["probs"]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: scorer.score(table)["probs"], range(12)):
            np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(scorer)).score(table)["probs"], wanted)


def test_more_rows_than_are_scored_at_once_and_none(scorer, make_rows, monkeypatch):
    table = make_rows(70, seed=2)
    wanted = scorer.score(table)["probs"]
    monkeypatch.setattr("recgrad.serving.scorer.CHUNK_ROWS", 32)
    np.testing.assert_allclose(scorer.score(table)["probs"], wanted, atol=1e-6)
    assert scorer.score(table.slice(0, 0))["probs"].shape == (0,)
    bad = table.set_column(0, "a", pa.array([1] * 60 + [9999] + [1] * 9))
    with pytest.raises(BadRowsError, match=r"row 60: feature a: id 9999") as caught:
        scorer.score(bad)
    assert caught.value.first_row + caught.value.faults.rows[0] == 60


def test_what_a_feature_adds_is_the_score_less_that_without_it(scorer, make_rows):
    table = make_rows(5, seed=4)
    without = table.set_column(2, "b", pa.nulls(5, table.schema.field("b").type))
    changes = scorer.explain(table)["probs"]
    wanted = scorer.score(table)["probs"] - scorer.score(without)["probs"]
    np.testing.assert_allclose(changes["b"], wanted, atol=1e-6)
    assert np.isnan(changes["x"]).all()  # has no default, so it cannot be missing
    assert set(changes) == {spec.name for spec in scorer.features}


def test_rows_come_back_in_the_form_in_which_they_were_given(bundle, make_rows):
    model = load_model(bundle)
    table = make_rows(4, seed=6)
    wanted = model.predict(table).column("probs").to_numpy()
    as_dicts = model.predict(table.to_pylist())
    assert [list(row) for row in as_dicts] == [["probs"]] * 4
    np.testing.assert_allclose([row["probs"] for row in as_dicts], wanted, atol=1e-7)
    np.testing.assert_allclose(model.predict(table.to_pydict())["probs"], wanted, atol=1e-7)
    pandas = pytest.importorskip("pandas")
    frame = table.to_pandas()
    frame.index = list("wxyz")
    found = model.predict(frame)
    assert isinstance(found, pandas.DataFrame)
    assert list(found.index) == list("wxyz")
    np.testing.assert_allclose(found["probs"], wanted, atol=1e-7)
    polars = pytest.importorskip("polars")
    found = model.predict(polars.from_arrow(table))
    assert isinstance(found, polars.DataFrame)
    np.testing.assert_allclose(found["probs"].to_numpy(), wanted, atol=1e-7)


@pytest.mark.parametrize("rows", [7, "text", [1, 2], {"a": [1], "b": [1, 2]}, [{"a": object()}]])
def test_rows_of_no_known_kind_are_refused(bundle, rows):
    with pytest.raises(DataError):
        load_model(bundle).predict(rows)


def test_a_missing_column_is_named(scorer, make_rows):
    with pytest.raises(DataError, match=r"column 'a' is missing \(has: .*\bA\b"):
        scorer.score(make_rows(2).rename_columns({"a": "A"}))


def test_a_bad_value_among_plain_rows_is_told_with_its_row(bundle, make_rows):
    rows = make_rows(3).to_pylist()
    name = next(key for key, value in rows[0].items() if isinstance(value, float))
    rows[2][name] = "abc"
    with pytest.raises(DataError, match=rf"row 2: .*'abc' is not a number \(column '{name}'\)"):
        load_model(bundle).predict(rows)
    rows[2][name] = {"x"}
    with pytest.raises(DataError, match=f"column '{name}'"):
        load_model(bundle).predict(rows)


def files_of(bundle):
    return sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file())


def copy_of(bundle, tmp_path):
    target = tmp_path / "copy"
    shutil.copytree(bundle, target)
    return target


def test_every_file_that_is_missing_cut_or_changed_is_named(bundle, tmp_path):
    """A changed bit anywhere in any file, a byte more or less, or no file at all."""
    copy = copy_of(bundle, tmp_path)
    for name in files_of(bundle):
        path = copy / name
        content = path.read_bytes()
        places = sorted(
            {0, len(content) // 3, len(content) // 2, len(content) - 1} & set(range(len(content)))
        )
        variants = [content[:-1], content + b"\0", b""]
        variants += [content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :] for i in places]
        for variant in variants:
            if variant.strip() == content.strip():  # another end of the manifest's last line says the same
                continue
            path.write_bytes(variant)
            with pytest.raises(BundleError, match=path.name):
                Scorer.load(copy)
        path.unlink()
        with pytest.raises(BundleError, match=path.name):
            Scorer.load(copy)
        path.write_bytes(content)
    Scorer.load(copy)


def test_a_bundle_of_another_format_says_which(bundle, tmp_path):
    copy = copy_of(bundle, tmp_path)
    content = json.loads((copy / "manifest.json").read_bytes())
    content["format"] = 99
    (copy / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(BundleError, match="format 99"):
        Scorer.load(copy)


def test_a_bundle_that_does_not_give_its_golden_scores_is_refused(bundle, tmp_path):
    """As one whose program another onnxruntime computes otherwise, with all checksums right."""
    copy = copy_of(bundle, tmp_path)
    path = copy / "golden_scores.arrow"
    scores = pa.ipc.open_file(path).read_all()
    other = pa.table({"probs": pa.array(scores.column("probs").to_numpy() + np.float32(0.01))})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, other.schema) as writer:
        writer.write_table(other)
    content = json.loads((copy / "manifest.json").read_bytes())
    content["files"][path.name] = {"num_bytes": path.stat().st_size, "crc32": zlib.crc32(path.read_bytes())}
    del content["checksum"]
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    content["checksum"] = zlib.crc32(text.encode())
    (copy / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(BundleError, match=r"golden rows differs by 0\.01"):
        Scorer.load(copy)


def test_a_folder_that_is_no_bundle_and_none_at_all(tmp_path):
    with pytest.raises(BundleError, match="not a bundle"):
        Scorer.load(tmp_path)
    with pytest.raises(BundleError, match="is not a folder"):
        Scorer.load(tmp_path / "nothing")
    with pytest.raises(RecgradError, match="does not exist"):
        load_model(tmp_path / "nothing")


def test_a_full_disk_leaves_nothing_behind(model, make_rows, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(bundle_module, "write_table", full)
    with pytest.raises(RecgradError, match="no space left"):
        write_bundle(tmp_path / "new" / "bundle", model, make_rows(6), precision="FP32")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 3_000, 8_000])
def test_files_that_cannot_grow_leave_nothing_behind(model, make_rows, tmp_path, most, bundle, caplog):
    """A limit of the system, met in whichever file is too large first: config, program, tables."""
    largest = max(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    assert most < largest
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        with pytest.raises(RecgradError, match=r"cannot be written: .*too large") as caught:
            write_bundle(tmp_path / "new" / "bundle", model, make_rows(6), precision="FP32")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "export" in str(caught.value) or "pipeline.config" in str(caught.value)
    assert "ONNX" not in caplog.text  # which has nothing to do with it
    assert list((tmp_path / "new").iterdir()) == []


def test_towers_without_vectors_are_told(make_trained, make_rows, tmp_path, monkeypatch):
    """A model whose embed is its own cannot be exported whole, and half a bundle would be a trap."""
    monkeypatch.setattr(DSSM, "tower_vectors", Model.tower_vectors)
    with pytest.raises(RecgradError, match=r"DSSM has towers \(user, item\) but no tower_vectors"):
        write_bundle(tmp_path / "bundle", make_trained("dssm"), make_rows(6), precision="FP32")
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_ones_own_that_onnx_cannot_express_keeps_torchs_program(
    model, make_rows, tmp_path, monkeypatch, caplog
):
    def cannot(*args, **kwargs):
        raise NotImplementedError("no such operator")

    monkeypatch.setattr("recgrad.export.program._write_onnx", cannot)
    manifest = write_bundle(tmp_path / "bundle", model, make_rows(6), precision="FP32")
    assert manifest.programs["score"].kind == "torch_export"
    assert manifest.programs["score"].note == "no such operator"
    assert "cannot be written as ONNX (no such operator)" in caplog.text
    table = make_rows(20, seed=9)
    found = Scorer.load(tmp_path / "bundle").score(table)["probs"]
    np.testing.assert_allclose(found, predicted(model, table)["probs"], atol=1e-6)
