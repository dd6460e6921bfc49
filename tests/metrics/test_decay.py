"""Training metrics: the rule of decay, the first value, and exact resumption."""

import copy
import math

import numpy as np
import pytest
import torch
from google.protobuf import text_format
from sklearn.metrics import roc_auc_score

from recgrad.config.proto.metric_pb2 import MetricConfig, TrainMetricConfig
from recgrad.errors import ConfigError
from recgrad.metrics import (
    TRAIN_METRICS,
    Decayed,
    MeanAbsoluteError,
    UndefinedMetricWarning,
    build_metric,
    build_train_metric,
)

CONFIGS = [
    "auc {}",
    "recall_at_k { top_k: 2 }",
    "mean_absolute_error {}",
    "mean_squared_error {}",
    "accuracy {}",
    "xauc {}",
    "xauc { in_batch: true }",
    "log_loss {}",
    "calibration {}",
    "normalized_entropy {}",
]
CONFIGS += [f"{name} {{}}" for name in TRAIN_METRICS if name not in {text.split()[0] for text in CONFIGS}]


def built(text: str, decay_rate: float = 0.9, decay_step: int = 3):
    config = text_format.Parse(
        f"{text} decay_rate: {decay_rate} decay_step: {decay_step}", TrainMetricConfig()
    )
    return build_train_metric(config)


def batches(count: int, text: str = "", rows: int = 64):
    generator = torch.Generator().manual_seed(0)
    for i in range(count):
        if text.startswith("recall"):
            yield torch.rand(rows, 6, generator=generator), torch.randint(0, 6, (rows,), generator=generator)
        else:
            labels = torch.randint(0, 2, (rows,), generator=generator)
            noise = torch.rand(rows, generator=generator)
            yield 0.4 * labels / (1 + i) + 0.5 * noise, labels


def numbers(value):
    return [v.item() for v in value.values()] if isinstance(value, dict) else [value.item()]


@pytest.mark.parametrize("text", CONFIGS)
def test_the_first_value_is_a_real_one(text):
    metric = built(text, decay_step=100)
    preds, target = next(iter(batches(1, text)))
    metric.update(preds, target)
    plain = build_metric(text_format.Parse(text, MetricConfig()))
    plain.update(preds, target)
    assert numbers(metric.compute()) == pytest.approx(numbers(plain.compute()), rel=1e-9)
    assert all(value != 0 for value in numbers(metric.compute()))


def test_value_decays_window_by_window():
    metric = built("mean_absolute_error {}", decay_rate=0.75, decay_step=3)
    windows, expected = [], None
    for i, (preds, target) in enumerate(batches(14), 1):
        metric.update(preds, target)
        windows.append((preds.double() - target).abs())
        if i % 3 == 0:
            new = torch.cat(windows).mean().item()
            expected = new if expected is None else 0.75 * expected + 0.25 * new
            windows = []
        if expected is not None:
            assert metric.compute().item() == pytest.approx(expected, rel=1e-12)


def test_auc_decays_its_counts():
    metric = built("auc {}", decay_rate=0.6, decay_step=2)
    rows, weights = [], []
    for i, (preds, target) in enumerate(batches(9), 1):
        metric.update(preds, target)
        rows.append((preds, target))
        if i == 2:
            weights = [1.0, 1.0]
        elif i % 2 == 0:
            weights = [0.6 * w for w in weights] + [0.4, 0.4]
    used = rows[: len(weights)]
    scores, labels = (torch.cat([row[k] for row in used]).numpy() for k in range(2))
    sample_weight = np.repeat(weights, 64)
    expected = roc_auc_score(labels, scores, sample_weight=sample_weight)
    assert metric.compute().item() == pytest.approx(expected, abs=2e-3)
    exact = roc_auc_score(labels, cut_to_bins(scores), sample_weight=sample_weight)
    assert metric.compute().item() == pytest.approx(exact, rel=1e-12)


def cut_to_bins(scores):
    """The score cut to the bins of the metric: equal steps of the logit."""
    logit = torch.logit(torch.tensor(scores).double())
    return ((logit + 20) * (200 * 64 / 40)).clamp(0, 200 * 64 - 1).floor().numpy()


@pytest.mark.parametrize("text", CONFIGS)
@pytest.mark.parametrize("cut", [2, 3, 7])
def test_state_dict_resumes_bit_for_bit(text, cut, tmp_path):
    whole, first = built(text), built(text)
    stream = list(batches(11, text))
    for batch in stream:
        whole.update(*batch)
    for batch in stream[:cut]:
        first.update(*batch)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    kept = copy.deepcopy(saved)
    second = built(text)
    second.load_state_dict(saved)
    assert numbers(second.compute()) == numbers(first.compute())
    for batch in stream[cut:]:
        second.update(*batch)
    assert numbers(second.compute()) == numbers(whole.compute())
    for name, value in kept.items():  # what was loaded is not written to
        assert all(
            torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
            for a, b in zip(_list(value), _list(saved[name]))
        )


def _list(value):
    return value if isinstance(value, list) else [value]


def test_a_window_of_one_class_changes_nothing():
    metric = built("normalized_entropy {}", decay_step=1)
    metric.update(torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))
    before = metric.compute().item()
    metric.update(torch.tensor([0.2, 0.7]), torch.tensor([1, 1]))
    assert metric.compute().item() == before
    assert math.isfinite(before)


def test_a_window_that_comes_late_from_another_rank_is_not_folded_again():
    metric = built("mean_absolute_error {}", decay_rate=0.5, decay_step=1)
    windows = torch.tensor([[1.0, 6.0, 2.0], [2.0, 2.0, 2.0], [2.0, 0.0, 2.0]])  # number, total, rows
    metric._fold(windows)  # two ranks' windows of number 2 are added up
    assert metric.compute() == 0.5 * 3.0 + 0.5 * 0.5
    metric._fold(torch.tensor([[2.0, 100.0, 1.0]]))
    assert metric.compute() == 1.75


def test_nothing_seen_is_undefined_with_one_warning():
    metric = built("mean_absolute_error {}")
    with pytest.warns(UndefinedMetricWarning) as caught:
        assert math.isnan(metric.compute())
    assert len(caught) == 1


@pytest.mark.parametrize("text", CONFIGS)
def test_reset_forgets(text):
    metric, fresh = built(text), built(text)
    stream = list(batches(8, text))
    for batch in stream:
        metric.update(*batch)
    metric.reset()
    for m in (metric, fresh):
        for batch in stream[:4]:
            m.update(*batch)
    assert numbers(metric.compute()) == numbers(fresh.compute())


def test_calling_it_returns_the_decayed_value():
    called, updated = (
        Decayed(MeanAbsoluteError(), decay_step=2),
        built("mean_absolute_error {}", decay_step=2),
    )
    for batch in batches(5):
        updated.update(*batch)
        assert called(*batch) == updated.compute()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("auc { exact: true }", "exact is for evaluation"),
        ("recall_at_k { grouping_key: 'u' }", "grouping_key is for evaluation"),
        ("auc {} decay_rate: 1.5", r"^train_metrics.auc: decay_rate must be in \[0, 1\), got 1.5"),
        ("log_loss {} decay_step: 0", "^train_metrics.log_loss: decay_step must be at least 1, got 0"),
        ("log_loss { eps: 0.5 }", r"^train_metrics.log_loss: eps must be in \(0, 0.5\), got 0.5"),
        ("accuracy { top_k: 2 }", "^train_metrics.accuracy: top_k must be at most 1 with num_class 1"),
        ("", "no metric is set"),
    ],
)
def test_configs_that_cannot_work_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        build_train_metric(text_format.Parse(text, TrainMetricConfig()))


def test_the_schema_has_no_train_metric_without_a_class():
    assert {field.name for field in TrainMetricConfig.DESCRIPTOR.oneofs_by_name["metric"].fields} == set(
        TRAIN_METRICS
    )


def test_decayed_takes_any_metric_of_sums():
    metric = Decayed(MeanAbsoluteError(), decay_rate=0.5, decay_step=1)
    metric.update(torch.tensor([1.0]), torch.tensor([0.0]))
    metric.update(torch.tensor([3.0]), torch.tensor([0.0]))
    assert metric.compute() == 2


def test_as_a_torchmetric_it_saves_and_resets_the_open_window():
    first, second = (Decayed(MeanAbsoluteError(), decay_step=3) for _ in range(2))
    stream = list(batches(5))
    for batch in stream[:4]:
        first.update(*batch)
    second.load_state_dict(first.state_dict())
    for metric in (first, second):
        metric.update(*stream[4])
    assert second.compute() == first.compute()
    second.reset()
    assert not second.metric.rows


def test_a_torchmetric_does_not_take_in_a_plain_metric():
    plain = build_metric(text_format.Parse("mean_absolute_error {}", MetricConfig()))
    with pytest.raises(TypeError, match="if and only if"):
        Decayed(plain)


def test_a_state_of_other_bins_is_refused():
    wide, narrow = built("auc {}"), built("auc { thresholds: 100 }")
    with pytest.raises(
        ValueError, match=r"auc: the state 'counts' is \[2, 12800\], the metric's is \[2, 6400\]"
    ):
        narrow.load_state_dict(wide.state_dict())


def test_a_state_of_another_metric_is_refused():
    with pytest.raises(ValueError, match=r"mean_absolute_error: another state .*counts"):
        built("mean_absolute_error {}").load_state_dict(built("auc {}").state_dict())
