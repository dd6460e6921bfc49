"""embed, index and recommend of an exported model: the lists of its checkpoint, and no torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.cli.main import main
from recgrad.errors import RecgradError

Vectors = Callable[[str, pa.Table], np.ndarray]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def bundle(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("export") / "bundle"
    assert run("export", model_dir, "--export-dir", path) == 0
    return path


def test_a_loaded_model_embeds_rows_of_any_kind(
    shop, model_dir: Path, bundle: Path, vectors: Vectors
) -> None:
    rows = shop.users.slice(3, 5)
    expected = vectors("user", rows)
    for place in (bundle, model_dir):
        model = recgrad.load_model(place)
        for given in (rows, rows.to_pydict(), rows.to_pylist(), rows.to_pandas()):
            np.testing.assert_allclose(model.embed(given, "user"), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(
            model.embed(shop.items, "item"), vectors("item", shop.items), rtol=1e-4, atol=1e-6
        )
        with pytest.raises(RecgradError, match="no tower 'itm'"):
            model.embed(shop.items, "itm")
        with pytest.raises(RecgradError, match="country"):
            model.embed({"user_id": [1]}, "user")


def test_commands_take_a_bundle_and_load_no_torch(
    shop, model_dir: Path, bundle: Path, vectors: Vectors, tmp_path: Path
) -> None:
    vectors_file, index, lists = tmp_path / "v.parquet", tmp_path / "index", tmp_path / "lists.parquet"
    users, items = shop.folder / "users.parquet", shop.folder / "items.parquet"
    only = ["--k", 7, "--exclude", shop.folder / "train.parquet", "--filter", "price > 0.1"]
    lines: list[list[object]] = [
        ["embed", bundle, "--tower", "user", "--input", users, "--output", vectors_file],
        ["index", bundle, "--items", items, "--out", index],
        ["recommend", bundle, "--index", index, "--users", users, "--output", lists, *only],
    ]
    code = "import sys\nfrom recgrad.cli.main import main\n"
    code += "".join(f"assert main({[str(word) for word in line]!r}) == 0\n" for line in lines)
    code += "assert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    found = np.stack(pq.read_table(vectors_file)["user_tower_emb"].to_numpy())
    np.testing.assert_allclose(found, vectors("user", shop.users), rtol=1e-4, atol=1e-6)
    # The index of the bundle is that of its checkpoint, and the other way round.
    again = tmp_path / "again.parquet"
    assert run("recommend", model_dir, "--index", index, "--users", users, "--output", again, *only) == 0
    assert pq.read_table(again)["items"].equals(pq.read_table(lists)["items"])


def test_flags_that_a_bundle_cannot_follow_are_refused(
    shop, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--tower", "user", "--input", shop.folder / "users.parquet", "--output", tmp_path / "x.parquet"]
    assert run("embed", bundle, *flags, "--checkpoint-path", tmp_path) == 2
    assert "--checkpoint-path" in capsys.readouterr().err
    assert run("embed", bundle, *flags, "--edit-config-json", '{"train_config.seed": 1}') == 2
    assert "is a bundle" in capsys.readouterr().err
    assert run("embed", bundle, "--tower", "itm", *flags[2:]) == 2
    assert "did you mean 'item'" in capsys.readouterr().err
