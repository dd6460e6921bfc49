"""Metrics that are means over rows, against their definitions and other libraries."""

import math

import numpy as np
import pytest
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from recgrad.errors import RecgradError
from recgrad.metrics import (
    Accuracy,
    Calibration,
    LogLoss,
    MeanAbsoluteError,
    MeanSquaredError,
    MulticlassAUC,
    NormalizedEntropy,
    UndefinedMetricWarning,
)

probabilities = st.lists(st.tuples(st.floats(0, 1, width=32), st.integers(0, 1)), min_size=1, max_size=30)


def entropy(p: float, y: float, eps: float) -> float:
    p = min(max(p, eps), 1 - eps)
    return -y * math.log(p) - (1 - y) * math.log1p(-p)


def tensors(rows):
    return torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])


@settings(max_examples=60, deadline=None)
@given(probabilities)
def test_log_loss_is_its_definition(rows):
    expected = sum(entropy(p, y, 1e-7) for p, y in rows) / len(rows)
    assert LogLoss()(*tensors(rows)).item() == pytest.approx(expected, rel=1e-12)


def test_log_loss_is_that_of_scikit_learn():
    torch.manual_seed(0)
    preds, target = torch.rand(999, dtype=torch.float64), torch.randint(0, 2, (999,))
    assert LogLoss()(preds, target).item() == pytest.approx(log_loss(target, preds), rel=1e-12)


def test_log_loss_of_classes_is_that_of_scikit_learn():
    torch.manual_seed(1)
    preds, target = torch.rand(500, 5, dtype=torch.float64).softmax(1), torch.randint(0, 5, (500,))
    expected = log_loss(target, preds, labels=range(5))
    assert LogLoss(num_class=5)(preds, target).item() == pytest.approx(expected, rel=1e-9)


def test_log_loss_of_certain_and_wrong_predictions_is_that_of_eps():
    assert LogLoss(eps=1e-7)(torch.tensor([0.0]), torch.tensor([1])).item() == pytest.approx(-math.log(1e-7))
    assert LogLoss(eps=1e-7)(torch.tensor([1.0]), torch.tensor([1])).item() == pytest.approx(1e-7, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(probabilities)
@pytest.mark.filterwarnings("ignore::recgrad.metrics.base.UndefinedMetricWarning")
def test_normalized_entropy_is_relative_to_the_base_rate(rows):
    rate = sum(y for _, y in rows) / len(rows)
    held = min(max(rate, 1e-12), 1 - 1e-12)
    base = -rate * math.log(held) - (1 - rate) * math.log1p(-held)
    expected = sum(entropy(p, y, 1e-12) for p, y in rows) / len(rows) / base
    assert NormalizedEntropy()(*tensors(rows)).item() == pytest.approx(expected, rel=1e-12)


def test_normalized_entropy_of_the_base_rate_is_1():
    labels = torch.tensor([1, 0, 0, 0])
    assert NormalizedEntropy()(torch.full((4,), 0.25), labels).item() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(("label", "loss"), [(0, -math.log(0.7)), (1, -math.log(0.3))])
def test_normalized_entropy_of_one_class_is_relative_to_a_rate_of_eta(label, loss):
    metric = NormalizedEntropy(eta=1e-6)
    value = metric(torch.tensor([0.3, 0.3], dtype=torch.float64), torch.tensor([label, label])).item()
    assert value == pytest.approx(loss / -math.log1p(-1e-6), rel=1e-9)


def test_normalized_entropy_without_rows_is_undefined():
    with pytest.warns(UndefinedMetricWarning, match="no rows"):
        assert torch.isnan(NormalizedEntropy()(torch.empty(0), torch.empty(0)))


def test_calibration_is_that_of_torchmetrics():
    torch.manual_seed(1)
    preds = torch.rand(5000) ** 2
    target = (torch.rand(5000) < preds**1.3).long()
    found = Calibration(num_bins=20)(preds, target)
    theirs = torchmetrics.functional.classification.binary_calibration_error(preds, target, n_bins=20)
    assert found["ece"].item() == pytest.approx(theirs.item(), rel=1e-4)  # theirs sums in float32
    assert found["ratio"].item() == pytest.approx(
        preds.double().mean().item() / target.double().mean().item()
    )


def test_calibration_without_positives_has_an_error_but_no_ratio():
    with pytest.warns(UndefinedMetricWarning, match="no label is above 0") as caught:
        found = Calibration()(torch.tensor([0.1, 0.2]), torch.tensor([0, 0]))
    assert len(caught) == 1
    assert math.isnan(found["ratio"])
    assert found["ece"].item() == pytest.approx(0.15)


def test_probability_1_falls_in_the_last_bin():
    assert Calibration(num_bins=4)(torch.tensor([1.0, 0.0]), torch.tensor([1, 0]))["ece"] == 0


def test_binary_accuracy_is_that_of_torchmetrics():
    torch.manual_seed(2)
    preds, target = torch.rand(2000), torch.randint(0, 2, (2000,))
    theirs = torchmetrics.functional.classification.binary_accuracy(preds, target, threshold=0.3)
    assert Accuracy(threshold=0.3)(preds, target).item() == pytest.approx(theirs.item())
    both = torch.stack([1 - preds, preds], 1)
    assert Accuracy(threshold=0.3, num_class=2)(both, target).item() == pytest.approx(theirs.item())


@pytest.mark.parametrize("top_k", [1, 2])
def test_multiclass_accuracy_is_that_of_torchmetrics(top_k):
    torch.manual_seed(3)
    preds, target = torch.rand(2000, 5).softmax(1), torch.randint(0, 5, (2000,))
    theirs = torchmetrics.functional.classification.multiclass_accuracy(
        preds, target, num_classes=5, average="micro", top_k=top_k
    )
    assert Accuracy(num_class=5, top_k=top_k)(preds, target).item() == pytest.approx(theirs.item())


def test_tied_classes_share_the_place():
    assert Accuracy(num_class=4)(torch.full((3, 4), 0.25), torch.tensor([0, 1, 3])).item() == pytest.approx(
        0.25
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=20))
def test_errors_of_numbers(rows):
    preds, target = (torch.tensor([r[i] for r in rows], dtype=torch.float64) for i in range(2))
    differences = [p - y for p, y in rows]
    absolute = MeanAbsoluteError()(preds, target).item()
    squared = MeanSquaredError()(preds[:, None], target).item()
    assert absolute == pytest.approx(np.mean(np.abs(differences)), rel=1e-12, abs=1e-300)
    assert squared == pytest.approx(np.mean(np.square(differences)), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("cls", [LogLoss, NormalizedEntropy, Calibration])
def test_what_is_not_a_probability_or_label_is_refused(cls):
    with pytest.raises(RecgradError, match=r"probabilities in \[0, 1\], got -1 … 3"):
        cls()(torch.tensor([-1.0, 3.0]), torch.tensor([0, 1]))
    with pytest.raises(RecgradError, match="label 2 at row 1"):
        cls()(torch.tensor([0.1, 0.3]), torch.tensor([0, 2]))


@pytest.mark.parametrize("cls", [Accuracy, LogLoss, MulticlassAUC])
@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 3, 1)])
def test_scores_have_a_column_for_each_class(cls, shape):
    with pytest.raises(ValueError, match=r"preds must be \[rows, 3\], got \[4"):
        cls(num_class=3).update(torch.full(shape, 0.5), torch.zeros(4))


def test_many_small_updates_lose_nothing():
    """10 million rows of one tenth: a float32 sum would be off in the third digit."""
    metric = MeanAbsoluteError()
    for _ in range(100):
        metric.update(torch.full((100_000,), 0.1), torch.zeros(100_000))
    assert metric.compute().item() == pytest.approx(float(np.float32(0.1)), rel=1e-12)
