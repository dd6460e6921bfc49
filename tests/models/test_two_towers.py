"""Whom two towers compare: left out pairs, hard negatives, corrections, whole catalogues, temperatures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from google.protobuf import text_format
from torch.nn import functional as F

from recgrad.config.proto.model_pb2 import FeatureGroupConfig, ModelConfig
from recgrad.config.proto.simi_pb2 import Similarity
from recgrad.data.batch import Comparison
from recgrad.losses.softmax_cross_entropy import SoftmaxCrossEntropy
from recgrad.models import two_towers
from recgrad.training.task import Task

INF = math.inf


@pytest.fixture
def sampled(config_of, build, batch, batch_of, features):
    """A DSSM on 6 rows with 4 shared negatives and hard ones of rows 1, 1 and 4."""

    def make(text="", comparison=None, loss="softmax_cross_entropy {}", **options):
        config = config_of("dssm")
        config.dssm.in_batch_negative = False
        text_format.Merge(f"dssm {{ {text} }}", config)
        del config.losses[:]
        text_format.Merge(f"losses {{ {loss} }}", config)
        items = [spec for spec in features if spec.name in "bc"]
        hard = 0 if comparison is None or comparison.hard_rows is None else len(comparison.hard_rows)
        negatives = batch_of(items, 4 + hard, seed=8, double=True)
        return build(config, **options), replace(batch, negatives=negatives, comparison=comparison)

    return make


def pairs(*found):
    return torch.tensor(found, dtype=torch.int64).reshape(-1, 2)


def scores(model, batch):
    """All similarities, by the towers alone."""
    model = model.eval()
    users, own = model.user_embedding(batch), model.item_embedding(batch)
    negatives = model.item_embedding(batch.negatives)
    model.train()
    return torch.cat([(users * own).sum(1, keepdim=True), users @ negatives.t()], dim=1) / 0.5


def test_left_out_pairs_are_no_candidates(sampled):
    model, batch = sampled(comparison=Comparison(pairs((0, 3), (5, 0), (5, 1))))
    expected = scores(model, batch)
    expected[[0, 5, 5], [4, 1, 2]] = -INF
    torch.testing.assert_close(model(batch)["logits"], expected)


@pytest.mark.parametrize("similarity", ["COSINE", "EUCLID"])
def test_hard_negatives_stand_in_the_columns_of_their_row(similarity, sampled):
    comparison = Comparison(pairs((2, 0)), hard_rows=torch.tensor([1, 1, 4]))
    model, batch = sampled(f"similarity: {similarity}", comparison)
    logits = model(batch)["logits"]
    assert logits.shape == (6, 1 + 4 + 2)
    users, items = model.eval().user_embedding(batch), model.item_embedding(batch.negatives)
    for row in range(6):
        expected = {1: [4, 5], 4: [6]}.get(row, [])
        for slot in range(2):
            found = logits[row, 5 + slot].item()
            if slot >= len(expected):
                assert found == -INF
                continue
            u, v = users[row], items[expected[slot]]
            one = -(u - v).norm() if similarity == "EUCLID" else u @ v
            assert found == pytest.approx(one.item() / 0.5, rel=1e-9)


def test_without_hard_negatives_no_column_is_there(sampled):
    model, batch = sampled(comparison=Comparison(pairs(), hard_rows=torch.zeros(0, dtype=torch.int64)))
    assert model(batch)["logits"].shape == (6, 5)


@pytest.mark.parametrize(
    "loss",
    [
        "softmax_cross_entropy {}",
        "softmax_cross_entropy { label_smoothing: 0.1 }",
        "bpr_loss {}",
        "cosine_contrastive_loss { margin: 0 }",
        "gbce_loss { num_items: 20 }",
    ],
)
def test_gradients_are_those_of_what_is_compared(loss, sampled):
    """A row without some candidates has the gradient of a row that never had them."""
    comparison = Comparison(pairs((0, 0), (0, 1), (0, 2), (0, 3)), hard_rows=torch.tensor([1, 1, 4]))
    model, batch = sampled(comparison=comparison, loss=loss)
    task = Task(model)
    losses = task.losses(task(batch), batch)
    losses["total"].backward()
    assert losses["total"].isfinite()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


def test_corrected_scores_are_for_the_loss_alone(sampled):
    log_counts = torch.tensor([0.5, -2.0, 1.0, 0.0], dtype=torch.float64)
    comparison = Comparison(pairs((3, 1)), log_counts, torch.tensor([2]))
    model, batch = sampled(comparison=comparison, loss="softmax_cross_entropy { log_q_correction: true }")
    outputs = model(batch)
    expected = outputs["logits"].clone()
    expected[:, 1:5] -= log_counts
    torch.testing.assert_close(outputs["corrected"], expected)
    task = Task(model)
    value = task.losses(outputs, batch)["total"]
    assert value.item() == pytest.approx(F.cross_entropy(expected, torch.zeros(6).long()).item())
    assert set(model.eval()(batch)) == {"logits"}
    plain, _ = sampled(comparison=comparison)
    assert set(plain(batch)) == {"logits"}


def test_items_of_other_rows_are_left_out_and_corrected(config_of, build, batch):
    config = config_of("dssm")
    config.losses[0].softmax_cross_entropy.log_q_correction = True
    model = build(config)
    plain = model(batch)["logits"]
    log_counts = torch.linspace(-1, 1, 6, dtype=torch.float64)
    outputs = model(replace(batch, comparison=Comparison(pairs((0, 2), (4, 0)), log_counts)))
    expected = plain.clone()
    expected[0, 2], expected[4, 1] = -INF, -INF
    torch.testing.assert_close(outputs["logits"], expected)
    for row in range(6):
        others = [log_counts[k].item() for k in range(6) if k != row]
        expected[row, 1:] -= torch.tensor(others)
    torch.testing.assert_close(outputs["corrected"], expected)


def test_the_whole_catalogue(sampled):
    """Losses over vectors are the cross entropy of the scores of all items."""
    own = torch.tensor([3, 0, 1, 2, 2, 0])
    comparison = Comparison(torch.stack([torch.arange(6), own], 1), own=own)
    model, batch = sampled(comparison=comparison, loss="full_softmax { chunk_scores: 8 }")
    task = Task(model)
    outputs = task(batch)
    assert outputs["logits"].shape == (6, 1)
    total = task.losses(outputs, batch)["total"]
    total.backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    users = model.user_embedding(batch)
    expected = F.cross_entropy(users @ model.item_embedding(batch.negatives).t() / 0.5, own)
    expected.backward()
    assert total.item() == pytest.approx(expected.item())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, msg=name)
    scored = model.eval()(batch)
    assert set(scored) == {"logits"}
    assert scored["logits"].shape == (6, 5)
    torch.testing.assert_close(scored["logits"][:, 0], outputs["logits"][:, 0])
    assert (scored["logits"][torch.arange(6), 1 + own] == -INF).all()


@pytest.mark.parametrize(
    ("text", "losses", "message"),
    [
        (
            "similarity: EUCLID",
            "losses { full_softmax {} }",
            "full_softmax does not go with similarity EUCLID",
        ),
        (
            "in_batch_negative: true",
            "losses { full_softmax {} }",
            "full_softmax does not go with in_batch_negative",
        ),
        ("", "losses { full_softmax {} } losses { bpr_loss {} }", "keep one of them"),
    ],
)
def test_what_a_full_softmax_cannot_do(text, losses, message, config_of, build):
    config = config_of("dssm")
    del config.losses[:]
    config.dssm.in_batch_negative = False
    text_format.Merge(f"dssm {{ {text} }} {losses}", config)
    with pytest.raises(Exception, match=message):
        build(config)


@pytest.mark.parametrize("name", ["dssm", "dssm_v2"])
def test_a_learned_temperature_begins_where_it_is_set(name, config_of, build, batch):
    config = config_of(name)
    getattr(config, name).temperature = 0.25
    fixed = build(config)(batch)["logits"]
    getattr(config, name).learned_temperature = True
    model = build(config)
    outputs = model(batch)
    torch.testing.assert_close(outputs["logits"], fixed)
    task = Task(model)
    task.losses(task(batch), batch)["total"].backward()
    assert model.log_scale.grad != 0
    with torch.no_grad():
        model.log_scale.fill_(50.0)
    torch.testing.assert_close(model(batch)["logits"], fixed * 100 * 0.25)


@pytest.mark.parametrize("name", ["dssm", "dssm_v2"])
def test_a_tower_takes_the_sum_of_its_features(name, config_of, build, batch):
    """An id's vector and the mean of others', as in SimpleX (Mao et al. 2021)."""
    config = config_of(name)
    settings = getattr(config, name)
    settings.output_dim, settings.similarity, settings.temperature = 0, Similarity.Value("INNER_PRODUCT"), 0.5
    for group, features, tower in zip(
        config.feature_groups, (["a", "b"], ["c"]), (settings.user_tower, settings.item_tower), strict=True
    ):
        group.feature_names[:] = features
        group.combine = FeatureGroupConfig.SUM
        tower.ClearField("mlp")
    model = build(config)
    assert not list(model.dense_named_parameters())
    tables, bags = model.engine.tables, batch.sparse["b"]
    means = [
        rows.mean(0) if len(rows) else rows.sum(0)
        for rows in tables["b"][bags.values].split(bags.lengths.tolist())
    ]
    users = tables["a"][batch.sparse["a"].values] + torch.stack(means)
    torch.testing.assert_close(model.user_embedding(batch), users)
    items = tables["c"][batch.sparse["c"].values]
    torch.testing.assert_close(model(batch)["logits"][:, 0], (users * items).sum(1) / 0.5)


def test_metrics_take_no_notice_of_what_is_left_out(sampled):
    """A candidate of −inf is below everything."""
    config = text_format.Parse("metrics { recall_at_k { top_k: 1 } }", ModelConfig())
    comparison = Comparison(pairs(*[(row, place) for row in range(6) for place in range(4)]))
    model, batch = sampled(comparison=comparison)
    model.tasks = (replace(model.tasks[0], metrics=_metrics(config)),)
    task = Task(model).eval()
    task.update_metrics(task(batch), batch)
    assert task.compute_metrics() == {"recall@1": 1.0}


def _metrics(config):
    from recgrad.metrics import build_metric

    return tuple(build_metric(metric, num_class=1) for metric in config.metrics)


@pytest.mark.parametrize("scaled", ["temperature: 0.5", "similarity: COSINE learned_temperature: true"])
def test_other_rows_compared_by_vectors_are_those_of_the_matrix(scaled, config_of, build, batch, monkeypatch):
    config = config_of("dssm")
    text_format.Merge(f"dssm {{ in_batch_negative: true {scaled} }}", config)
    del config.losses[:]
    text_format.Merge("losses { softmax_cross_entropy {} }", config)
    found = []
    for many in (2, 100):
        monkeypatch.setattr(two_towers, "MANY_ROWS", many)
        task = Task(build(config))
        outputs = task(batch)
        assert ("users" in outputs) == (many == 2)
        loss = task.losses(outputs, batch)["total"]
        loss.backward()
        found.append([loss.detach(), *(p.grad for _, p in task.model.dense_named_parameters())])
    for by_vectors, by_matrix in zip(*found, strict=True):
        torch.testing.assert_close(by_vectors, by_matrix)


@pytest.mark.parametrize(
    "other",
    [
        "losses { softmax_cross_entropy { label_smoothing: 0.1 } }",
        "losses { softmax_cross_entropy {} } losses { bpr_loss {} }",
        "losses { softmax_cross_entropy {} } train_metrics { recall_at_k { top_k: 1 } }",
        "dssm { similarity: EUCLID } losses { softmax_cross_entropy {} }",
        "left out",
    ],
)
def test_what_needs_all_scores_gets_their_matrix(other, config_of, build, batch, monkeypatch):
    monkeypatch.setattr(two_towers, "MANY_ROWS", 2)
    config = config_of("dssm")
    config.dssm.in_batch_negative = True
    del config.losses[:]
    if other == "left out":
        other = "losses { softmax_cross_entropy {} }"
        batch = replace(batch, comparison=Comparison(pairs((0, 1))))
    text_format.Merge(other, config)
    outputs = build(config)(batch)
    assert "users" not in outputs
    assert outputs["logits"].shape == (6, 6)


def test_a_loss_of_ones_own_is_asked_for_its_rows():
    class Doubled(SoftmaxCrossEntropy):
        def rows(self, logits, labels, session):
            return 2 * super().rows(logits, labels, session)

    assert SoftmaxCrossEntropy().takes_vectors
    assert not Doubled().takes_vectors
