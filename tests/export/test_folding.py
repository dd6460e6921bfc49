"""Folded programs: first layers that look up what small tables times their weights are."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.config import PipelineConfig
from recgrad.data.features.build import features_of
from recgrad.data.plain.layout import EMPTY
from recgrad.errors import BundleError
from recgrad.export import folding
from recgrad.export.bundle import encoded_batch, write_bundle
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch
from recgrad.serving import fold_kernel
from recgrad.serving.folding import Folding
from recgrad.serving.manifest import WeightRecord, read_manifest
from recgrad.serving.requests import decode
from recgrad.serving.scorer import Scorer
from recgrad.serving.scoring import Body, score_bodies
from recgrad.serving.served import Served
from recgrad.training.assembly import build_task
from recgrad.training.run import Trained

pytestmark = pytest.mark.usefixtures("_one_registry")

SIZES = {"a": 50, "b": 7, "c": 300, "d": 90, "e": 1_000_000, "f": 40}
FEATURES = "".join(
    f'feature_configs {{ id_feature {{ feature_name: "{name}" expression: "{side}:{name}" '
    f"num_buckets: {size} embedding_dim: {4 if name == 'f' else 16} }} }}\n"
    for side, (name, size) in zip(("user", "item") * 3, SIZES.items())
)
COMMON = """
feature_configs { raw_feature { feature_name: "x" expression: "user:x" } }
feature_configs { raw_feature { feature_name: "y" expression: "item:y" } }
data_config { fg_mode: FG_NORMAL label_fields: ["click", "buy"] }
"""
ALL = '["x", "a", "b", "e", "c", "f", "d", "y"]'
TOWERS = """
  task_towers { tower_name: "ctr" label_name: "click" losses { binary_cross_entropy {} } }
  task_towers { tower_name: "cvr" label_name: "buy" losses { binary_cross_entropy {} } }
"""
MODELS = {
    "deepfm": """
      feature_groups { group_name: "wide" feature_names: ["a", "b", "e"] group_type: WIDE }
      feature_groups { group_name: "fm" feature_names: ["a", "b", "e", "c", "d"] group_type: DEEP }
      feature_groups { group_name: "deep" feature_names: ["x", "a", "e", "c", "d", "b"] group_type: DEEP }
      deepfm { deep { hidden_units: [96, 16] } final { hidden_units: 8 } }
      losses { binary_cross_entropy {} }""",
    "wide_and_deep": f"""
      feature_groups {{ group_name: "wide" feature_names: ["a", "b"] group_type: WIDE }}
      feature_groups {{ group_name: "deep" feature_names: {ALL} group_type: DEEP }}
      wide_and_deep {{ deep {{ hidden_units: [144, 16] }} }}
      losses {{ binary_cross_entropy {{}} }}""",
    "mmoe": f"""
      feature_groups {{ group_name: "all" feature_names: {ALL} group_type: DEEP }}
      mmoe {{ expert_mlp {{ hidden_units: [64, 8] }} num_expert: 3 {TOWERS} }}""",
    "dcn_v2": f"""
      feature_groups {{ group_name: "all" feature_names: {ALL} group_type: DEEP }}
      dcn_v2 {{ cross {{ cross_num: 2 }} deep {{ hidden_units: 64 }} final {{ hidden_units: 5 }} }}
      losses {{ binary_cross_entropy {{}} }}""",
    "nothing but small tables": """
      feature_groups { group_name: "wide" feature_names: ["a"] group_type: WIDE }
      feature_groups { group_name: "deep" feature_names: ["a", "b", "c", "d"] group_type: DEEP }
      wide_and_deep { deep { hidden_units: [64, 16] } }
      losses { binary_cross_entropy {} }""",
}


def rows(count: int) -> pa.Table:
    """Rows, some of them without an id here and there."""
    rng = np.random.default_rng(0)
    ids = {
        name: pa.array([None if rng.random() < 0.1 else int(rng.integers(size)) for _ in range(count)])
        for name, size in SIZES.items()
    }
    numbers = {name: pa.array(rng.normal(size=count), pa.float32()) for name in ("x", "y")}
    return pa.table({**ids, **numbers})


def made(model: str, folder, precision: str = "FP32") -> tuple[Trained, Scorer]:
    """A model whose tables have some trained rows, and its bundle."""
    config = text_format.Parse(FEATURES + COMMON, PipelineConfig())
    text_format.Parse(MODELS[model], config.model_config)
    features = features_of(config)
    task = build_task(config, features).eval()
    rng = np.random.default_rng(1)
    for table in task.model.engine.tables.values():
        some = np.unique(rng.integers(0, table.spec.num_rows, 40))
        table.write(some, rng.normal(size=(len(some), table.spec.dim)).astype(np.float32))
    trained = Trained(config, task, features, 3, {})
    write_bundle(folder, trained, rows(6), precision=precision)
    return trained, Scorer.load(folder)


@pytest.fixture(scope="module", params=MODELS)
def pair(request, tmp_path_factory, _one_registry) -> tuple[Trained, Scorer]:
    return made(request.param, tmp_path_factory.mktemp("folded") / "bundle")


def unfolded(scorer: Scorer) -> Scorer:
    other = Scorer.load(scorer.path)
    for part in other._parts.values():
        part.folding = None
    return other


def scores_of(trained: Trained, table: pa.Table) -> dict[str, np.ndarray]:
    batch = encoded_batch(trained.features, table)
    parts = trained.task.model.groups.gather(batch, trained.task.model.engine, None)
    return {
        name: value.detach().numpy()
        for name, value in trained.task.predictions(trained.task.model.scores(parts)).items()
    }


def close(found, wanted) -> None:
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-6)


def test_folded_programs_score_as_the_model_does(pair) -> None:
    trained, scorer = pair
    folds = scorer.manifest.programs["score"].folds
    small = {"a", "b", "c", "d"}  # e is large, f is narrow
    assert {scorer._tables.lookups[name].key for fold in folds for name in fold.lookups} == small
    for count in (1, 5, 200):
        table = rows(count)
        close(scorer.score(table), scores_of(trained, table))
        close(scorer.score(table), unfolded(scorer).score(table))


def test_every_way_of_asking_is_folded_and_gives_the_same(pair, monkeypatch) -> None:
    _, scorer = pair
    table = rows(130).select(scorer.schema.names)
    wanted = unfolded(scorer).score(table)
    for part in scorer._parts.values():
        monkeypatch.setattr(part, "program", None)  # none of these ways needs it
    users = [name for name in ("a", "c", "e", "x") if name in table.schema.names]
    user, items = table.slice(3, 1).select(users), table.drop_columns(users)
    every = pa.array(np.zeros(130, np.int64))
    whole = pa.table({n: user[n].take(every) if n in users else items[n] for n in table.schema.names})
    close(scorer.score_candidates(user, items), unfolded(scorer).score(whole))
    served = Served(scorer, "v")
    assert served.quick is not None
    for first, last in ((0, 1), (1, 130)):  # of prepared memory, one size after another
        data = json.dumps({"rows": table.slice(first, last - first).to_pylist()}).encode()
        body = Body(
            data, "application/json", lambda data=data: decode(data, "application/json", max_rows=999)
        )
        result = score_bodies(served, [body], 999)[0]
        close(result.scores, {name: values[first:last] for name, values in wanted.items()})


def test_odd_values_are_scored_without_folding(pair) -> None:
    _, scorer = pair
    table = rows(5).select(scorer.schema.names)
    lists = table.set_column(
        table.schema.get_field_index("a"), "a", pa.array([[value] for value in table["a"].to_pylist()])
    )
    close(scorer.score(lists), scorer.score(table))


@pytest.mark.parametrize("precision", ["FP16", "INT8"])
def test_folded_tables_are_those_of_the_bundle_s_precision(precision, tmp_path) -> None:
    _, scorer = made("deepfm", tmp_path / "bundle", precision)
    assert scorer._parts["score"].folding is not None
    close(scorer.score(rows(50)), unfolded(scorer).score(rows(50)))


def test_what_is_not_worth_it_is_not_folded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(folding, "MOST_BYTES", 4 * 96 * 100)
    made("deepfm", tmp_path / "one")
    assert not (tmp_path / "one/score.folded.onnx").exists()
    monkeypatch.setattr(folding, "MIN_COLUMNS", 16)
    _, scorer = made("deepfm", tmp_path / "two")
    (fold,) = read_manifest(tmp_path / "two").programs["score"].folds
    assert [scorer._tables.lookups[name].key for name in fold.lookups] == ["a", "b"]  # as many as have room
    record = replace(read_manifest(tmp_path / "two").programs["score"], folded_file="", folds=())
    # Nothing is read: there is no such file in this folder. Deltas would have to fold again.
    for other in (replace(record, kind="torch_export"), replace(record, weights=(WeightRecord("w", 0, 4),))):
        assert folding.fold_program(tmp_path, other, (), ()) is other


def test_weights_of_another_shape_are_refused(tmp_path) -> None:
    _, scorer = made("deepfm", tmp_path / "bundle")
    (record,) = scorer.manifest.programs["score"].folds
    np.save(tmp_path / "bundle" / record.file, np.zeros((2, 2), np.float32))
    with pytest.raises(BundleError, match=r"score\.fold0\.npy"):
        Scorer.load(tmp_path / "bundle")  # its checksum is another
    part = scorer._parts["score"]
    given = tmp_path / "bundle", part.record, scorer._tables, list(SIZES), 1
    with pytest.raises(BundleError, match=r"is float32 \(2, 2\), not float32"):
        Folding.of(*given)
    odd = replace(part.record, folds=(replace(record, lookups=("nothing",)),))
    with pytest.raises(BundleError, match="no lookup 'nothing'"):
        Folding.of(given[0], odd, *given[2:])
    assert Folding.of(*given[:3], ["a"], 1) is None  # another feature that is folded is not plain


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 150),
    units=st.sampled_from([16, 64, 128, 144, 272]),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    shared=st.integers(0, 6),
    threads=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_the_kernel_adds_up_what_numpy_does(rows, units, sizes, shared, threads, seed) -> None:
    rng = np.random.default_rng(seed)
    shared = min(shared, len(sizes))
    products = [rng.standard_normal((size, units)).astype(np.float32) for size in sizes]
    ids = [rng.integers(EMPTY, size, rows) for size in sizes]
    bias, out = rng.standard_normal(units).astype(np.float32), np.empty((rows, units), np.float32)
    lines = np.array([[p.ctypes.data, i.ctypes.data] for p, i in zip(products, ids)], np.int64)
    tasks = -(-rows // fold_kernel.ROWS_PER_TASK)
    kernel = compiled(fold_kernel.fold_tasks)
    launch(kernel, tasks, rows, units, len(sizes), shared, lines, bias, out, tasks=min(tasks, threads))
    wanted = np.tile(bias.astype(np.float64), (rows, 1))
    for number, (matrix, of) in enumerate(zip(products, ids)):
        of = np.full(rows, of[0]) if number < shared else of
        wanted += np.where(of[:, None] == EMPTY, 0, matrix[of])
    np.testing.assert_allclose(out, wanted, rtol=0, atol=4e-6)  # of sums of up to 7 numbers around 1
