"""Every registered model leaves the trainer: its bundle scores as the model does."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from recgrad.data.list_column import ListColumn, values_of
from recgrad.export.bundle import encoded_batch, write_bundle
from recgrad.models.base import MODELS
from recgrad.serving.scorer import Scorer

NAMES = sorted(MODELS)
pytestmark = pytest.mark.usefixtures("_one_registry")


def expected(model, table):
    batch = encoded_batch(model.features, table)
    with torch.no_grad():
        return {k: v.numpy() for k, v in model.task.predictions(model.task(batch)).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_scores_as_the_model_does(name, tmp_path, make_rows, make_trained):
    pytest.importorskip("onnxruntime")
    model = make_trained(name)
    manifest = write_bundle(tmp_path / "bundle", model, make_rows(6), precision="FP32")
    assert [program.note for program in manifest.programs.values() if program.kind != "onnx"] == []
    scorer = Scorer.load(tmp_path / "bundle")
    for count in (1, 2, 37):
        table = make_rows(count, seed=count)
        scores, wanted = scorer.score(table), expected(model, table)
        assert list(scores) == list(wanted)
        for key, values in wanted.items():
            assert isinstance(scores[key], ListColumn) == MODELS[name].lists
            np.testing.assert_allclose(values_of(scores[key]), values, rtol=0, atol=1e-6)
    assert set(scorer.towers) == set(model.task.model.tower_groups)
    for tower in scorer.towers:
        own = table.select(scorer.tower_schema(tower).names)
        with torch.no_grad():
            vectors = model.task.model.embed(encoded_batch(model.features, table), tower)
        np.testing.assert_allclose(scorer.embed(own, tower), vectors.numpy(), rtol=0, atol=1e-6)
    _check_candidates(scorer, table)


def _check_candidates(scorer, table):
    """One user with items scores as the joined rows do, wherever columns are cut."""
    names = [name for name in scorer.schema.names if not name.startswith("h__")]
    for cut in (1, len(names) - 1):
        of_user = [*names[:cut], *(name for name in scorer.schema.names if name.startswith("h__"))]
        of_items = names[cut:]
        if not of_items:
            continue
        user, items = table.slice(4, 1).select(of_user), table.select(of_items)
        zeros = pa.array(np.zeros(table.num_rows, np.int64))
        joined = {name: user.column(name).take(zeros) for name in of_user}
        joined |= {name: items.column(name) for name in of_items}
        for key, values in scorer.score(pa.table(joined)).items():
            found = scorer.score_candidates(user, items)[key]
            np.testing.assert_allclose(values_of(found), values_of(values), rtol=0, atol=1e-6)
