"""`POST /v1/recommend` of a trained sequence model, whose user is a history in the request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from serving_fake import running

import recgrad
from recgrad.cli.main import main
from recgrad.serving.holder import ModelHolder
from recgrad.serving.scorer import Scorer

ITEMS = 20
TEMPERATURE = 0.5


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that learned that item i + 1 comes after item i, its bundle and index."""
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(0)
    log = [
        {"user": user, "item_id": 1 + (int(start) + i) % ITEMS, "time": i}
        for user, start in enumerate(rng.integers(0, ITEMS, 150))
        for i in range(int(rng.integers(4, 9)))
    ]
    pq.write_table(pa.Table.from_pylist(log), path / "log.parquet")
    flags = ["--user", "user", "--item", "item_id", "--time", "time", "--out", str(path)]
    assert main(["sequences", str(path / "log.parquet"), *flags]) == 0
    text = (path / "sasrec.config").read_text().replace("lr: 0.001", "lr: 0.01")
    (path / "tiny.config").write_text(text)
    edits = {
        "train_config.num_epochs": 5,
        "data_config.batch_size": 32,
        "model_config.sasrec.temperature": TEMPERATURE,
    }
    recgrad.train(path / "tiny.config", edit_config_json=edits, model_dir=str(path / "model"))
    assert main(["export", str(path / "model"), "--export_dir", str(path / "bundle")]) == 0
    items = ["--items", str(path / "items.parquet"), "--id_field", "item_id"]
    assert main(["index", str(path / "bundle"), *items, "--out", str(path / "index")]) == 0
    return path


@pytest.mark.slow
def test_a_history_in_the_request_gets_what_comes_next(shop: Path) -> None:
    holder = ModelHolder("bundle", load=lambda _: Scorer.load(shop / "bundle"))
    with running(holder, index=str(shop / "index")) as served:
        client = served.client()
        histories = [[3, 4, 5], [9], [17, 18, 19, 20]]
        users = [{"history__item_id": history} for history in histories]
        body = {"users": users, "seen": "history__item_id", "k": 4}
        status, answer = client.ask("POST", "/v1/recommend", body)
        assert status == 200, answer
        for history, row in zip(histories, answer["users"], strict=True):
            assert row["items"][0] == 1 + history[-1] % ITEMS
            assert not set(row["items"]) & set(history)
        status, every = client.ask("POST", "/v1/recommend", {"user": users[0], "k": ITEMS})
        assert set(every["items"]) >= {3, 4, 5}
        status, answer = client.ask("POST", "/v1/recommend", {"user": {}, "k": 3})
        assert status == 422
        assert "history__item_id" in str(answer)


@pytest.mark.slow
def test_what_scores_are_is_said_and_score_divides_them_by_the_temperature(shop: Path) -> None:
    holder = ModelHolder("bundle", load=lambda _: Scorer.load(shop / "bundle"))
    with running(holder, index=str(shop / "index")) as served:
        client = served.client()
        user = {"history__item_id": [3, 4, 5]}
        _, found = client.ask("POST", "/v1/recommend", {"user": user, "k": ITEMS})
        rows = [{**user, "item_id": item} for item in found["items"]]
        status, scored = client.ask("POST", "/v1/score", {"rows": rows})
        assert status == 200, scored
        assert found["similarity"] == "INNER_PRODUCT"
        divided = np.array(found["scores"]) / TEMPERATURE
        np.testing.assert_allclose(scored["scores"]["similarity"], divided, rtol=1e-4, atol=1e-5)
