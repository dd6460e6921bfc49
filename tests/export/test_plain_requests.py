"""A model of plain features alone: requests as JSON, and of a user with items, score as tables do."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import text_format

from recgrad.config import PipelineConfig
from recgrad.data.features.build import features_of
from recgrad.export.bundle import write_bundle
from recgrad.serving.answers import Answer, RequestError
from recgrad.serving.metrics import Metrics
from recgrad.serving.quick import MAX_ROWS
from recgrad.serving.requests import decode
from recgrad.serving.scorer import Scorer
from recgrad.serving.scoring import Body, score_bodies
from recgrad.serving.served import Served
from recgrad.serving.service import HttpRequest, Service, now
from recgrad.serving.settings import ServerSettings
from recgrad.training.assembly import build_task
from recgrad.training.run import Trained

pytestmark = pytest.mark.usefixtures("_one_registry")

CONFIG = """
feature_configs { id_feature { feature_name: "a" expression: "user:a" num_buckets: 50 embedding_dim: 4 } }
feature_configs { id_feature { feature_name: "t" expression: "item:t"
  hash_bucket_size: 99 embedding_dim: 4 } }
feature_configs { raw_feature { feature_name: "x" expression: "user:x"
  normalizer: "method=zscore,mean=0.5,standard_deviation=2" } }
feature_configs { raw_feature { feature_name: "p" expression: "item:p"
  boundaries: [0, 0.7, 2] embedding_dim: 4 } }
feature_configs { raw_feature { feature_name: "l" expression: "item:p" default_value: "0.25" } }
data_config { fg_mode: FG_NORMAL label_fields: "click" }
model_config {
  feature_groups { group_name: "wide" feature_names: ["a", "t", "p"] group_type: WIDE }
  feature_groups { group_name: "fm" feature_names: ["a", "t", "p"] group_type: DEEP }
  feature_groups { group_name: "deep" feature_names: ["a", "t", "p", "l", "x"] group_type: DEEP }
  deepfm { deep { hidden_units: [8] } final { hidden_units: [4] } }
  losses { binary_cross_entropy {} }
}
"""


def rows(count: int) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "a": pa.array(rng.integers(0, 50, count).tolist(), pa.int32()),
            "t": pa.array([None if i % 5 == 4 else f"wörd {i % 7}" for i in range(count)]),
            "x": pa.array(rng.normal(size=count), pa.float32()),
            "p": pa.array([None if i % 6 == 5 else v for i, v in enumerate(rng.normal(size=count))]),
        }
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, _one_registry: None) -> Served:
    pytest.importorskip("onnxruntime")
    config = text_format.Parse(CONFIG, PipelineConfig())
    features = features_of(config)
    trained = Trained(config, build_task(config, features).eval(), features, 3, {})
    folder = tmp_path_factory.mktemp("plain") / "bundle"
    write_bundle(folder, trained, rows(6), precision="FP32")
    return Served(Scorer.load(folder), "v")


def body(content: object) -> Body:
    data = json.dumps(content, ensure_ascii=False).encode()
    return Body(data, "application/json", lambda: decode(data, "application/json", max_rows=1000))


def test_json_scores_as_tables_do(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    table = rows(40)
    wanted = served.scorer.score(table)["probs"]
    monkeypatch.setattr(Scorer, "score", None)  # no table is made of what the kernels can take
    parts = [table.slice(0, 1), table.slice(1, 30), table.slice(31)]
    results = score_bodies(served, [body({"rows": part.to_pylist()}) for part in parts], 1000)
    found = np.concatenate([result.scores["probs"] for result in results])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_bad_rows_are_told_in_training_s_words(served: Served) -> None:
    good = rows(3)
    bad = good.set_column(0, "a", pa.array([1, 50, 2], pa.int32()))
    first, second, third = score_bodies(
        served,
        [body({"rows": good.to_pylist()}), body({"rows": bad.to_pylist()}),
         body({"rows": [{"a": 2**40, "t": "x", "x": 1.0, "p": 1.0}]})],
        1000,
    )  # fmt: skip
    np.testing.assert_allclose(first.scores["probs"], served.scorer.score(good)["probs"], rtol=0, atol=1e-6)
    assert isinstance(second, RequestError)
    assert "feature a: id 50 is outside num_buckets 50 (column 'a', row 1)" in str(second)
    assert isinstance(third, RequestError)
    assert "is not an integer of int32" in str(third)


def test_a_user_with_items_scores_as_whole_rows(served: Served) -> None:
    table = rows(40)
    for number in (0, 4, 5):
        user, items = table.slice(number, 1).select(["a", "x"]), table.select(["t", "p"])
        every = pa.array(np.zeros(40, np.int64))
        whole = pa.table(
            {"a": user["a"].take(every), "x": user["x"].take(every), "t": items["t"], "p": items["p"]}
        )
        wanted = served.scorer.score(whole)["probs"]
        found = served.scorer.score_candidates(user, items)["probs"]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def plain_rows(count: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(count)
    return [
        {
            "a": int(rng.integers(0, 50)),
            "t": None if i % 5 == 4 else f"word {i % 7}" if i % 2 else f"wörd {i}",
            "x": round(float(rng.normal()), 4),
            "p": None if i % 6 == 5 else round(float(rng.normal()), 4),
        }
        for i in range(count)
    ]


def test_plain_bodies_of_all_sizes_are_scored_in_memory_laid_out_before(served: Served) -> None:
    assert served.quick is not None
    for counts in ((1,), (7,), (1,), (2, 1, 30), (MAX_ROWS,), (1, 1, 1), (7,)):
        parts = [plain_rows(count) for count in counts]
        found = served.quick.score([body({"rows": part}).data for part in parts], 1000)
        assert found is not None
        assert found[1] == list(counts)
        wanted = served.scorer.score(
            pa.Table.from_pylist([row for part in parts for row in part], served.scorer.schema)
        )["probs"]
        np.testing.assert_allclose(found[0]["probs"], wanted, rtol=0, atol=1e-6)
        results = score_bodies(served, [body({"rows": part}) for part in parts], 1000)
        whole = np.concatenate([result.scores["probs"] for result in results])
        np.testing.assert_array_equal(whole, found[0]["probs"])


@pytest.mark.parametrize(
    "content",
    [
        {"rows": plain_rows(MAX_ROWS + 1)},
        {"rows": [{"a": 1, "t": "x", "x": 1.0}]},  # p is missing
        {"rows": [{"a": 2**40, "t": "x", "x": 1.0, "p": 1.0}]},  # no int32
        {"rows": [{"a": 50, "t": "x", "x": 1.0, "p": 1.0}]},  # outside num_buckets
        {"rows": [{"a": 1, "t": "x\ty", "x": 1.0, "p": 1.0}]},
        {"rows": plain_rows(1), "on_bad_row": "null"},
        {"user": {"a": 1, "x": 0.5}, "items": [{"t": "x", "p": 1.0}]},
    ],
)
def test_what_is_more_than_plain_is_left_to_other_ways(served: Served, content: object) -> None:
    assert served.quick is not None
    assert served.quick.score([body({"rows": plain_rows(1)}).data, body(content).data], 1000) is None
    good = plain_rows(3)
    first, second = score_bodies(served, [body({"rows": good}), body(content)], 1000)
    wanted = served.scorer.score(pa.Table.from_pylist(good, served.scorer.schema))["probs"]
    np.testing.assert_allclose(first.scores["probs"], wanted, rtol=0, atol=1e-6)
    alone = Served(served.scorer, "v")
    object.__setattr__(alone, "quick", None)
    expected = score_bodies(alone, [body(content)], 1000)[0]
    assert type(second) is type(expected)
    if isinstance(expected, RequestError):
        assert second.message == expected.message
    else:
        np.testing.assert_allclose(second.scores["probs"], expected.scores["probs"], rtol=0, atol=1e-6)


def test_bodies_that_are_not_utf_8_are_not_scored(served: Served) -> None:
    data = body({"rows": plain_rows(1)}).data.replace("wörd".encode(), b"w\xffrd")
    other = Body(data, "application/json", lambda: decode(data, "application/json", max_rows=9))
    (found,) = score_bodies(served, [other], 9)
    assert isinstance(found, RequestError)
    assert found.status == 400


def test_threads_that_score_at_once_do_not_disturb_each_other(served: Served) -> None:
    parts = [plain_rows(count) for count in (1, 2, 5, 20)]
    tables = [pa.Table.from_pylist(part, served.scorer.schema) for part in parts]
    wanted = [served.scorer.score(table)["probs"] for table in tables]

    def score(number: int) -> None:
        for _ in range(50):
            (found,) = score_bodies(served, [body({"rows": parts[number]})], 100)
            np.testing.assert_allclose(found.scores["probs"], wanted[number], rtol=0, atol=1e-6)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(score, range(4)))


def test_many_rows_of_several_bodies_are_scored_some_at_a_time(served: Served) -> None:
    counts = [MAX_ROWS, 100, 100, 100, 1, MAX_ROWS - 1, 3]
    parts = [plain_rows(count) for count in counts]
    bodies = [body({"rows": part}) for part in parts]
    bodies.insert(3, body({"rows": [{"a": 99}]}))  # which is bad
    results = score_bodies(served, bodies, 1000)
    assert isinstance(results.pop(3), RequestError)
    for part, result in zip(parts, results, strict=True):
        wanted = served.scorer.score(pa.Table.from_pylist(part, served.scorer.schema))["probs"]
        np.testing.assert_allclose(result.scores["probs"], wanted, rtol=0, atol=1e-6)
    assert [one.rows for at, one in enumerate(bodies) if at != 3] == counts


def test_a_plain_request_that_is_alone_is_answered_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.new_event_loop()
    metrics = Metrics(None, ["/v1/score"])
    holder = SimpleNamespace(current=served, row_s=0.0)
    service = Service(ServerSettings(bundle="b"), holder, metrics, loop)  # type: ignore[arg-type]
    quick = served.quick
    assert quick is not None
    asked: list[int] = []
    score = quick.score

    def counted(bodies: list[bytes], max_rows: int) -> object:
        asked.append(len(bodies))
        return score(bodies, max_rows)

    monkeypatch.setattr(quick, "score", counted)

    def answer(content: object, query: str = "") -> object:
        request = HttpRequest(body(content).data, "application/json", "*/*", query, now())
        found = service.score(request)
        return json.loads(found.body) if isinstance(found, Answer) else found

    plain = plain_rows(20)
    wanted = served.scorer.score(pa.Table.from_pylist(plain, served.scorer.schema))["probs"]
    found = answer({"rows": plain})
    np.testing.assert_allclose(found["scores"]["probs"], wanted, rtol=0, atol=1e-6)
    assert metrics.total("recgrad_rows_total") == 20
    assert asked == [1]
    # What the quick way refuses it is not asked again.
    found = answer({"rows": plain, "on_bad_row": "null"})
    np.testing.assert_allclose(found["scores"]["probs"], wanted, rtol=0, atol=1e-6)
    assert asked == [1, 1]
    assert "outside num_buckets" in answer({"rows": [{**plain[0], "a": 50}]})["error"]["message"]
    assert asked == [1, 1, 1]
    assert "only on_bad_row is known" in answer({"rows": plain}, "x=1")["error"]["message"]
    service.batcher.clients = 2
    assert isinstance(answer({"rows": plain}), asyncio.Future), "others may come"
    loop.close()
