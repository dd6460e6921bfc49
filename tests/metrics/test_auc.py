"""AUC: exact against all pairs and scikit-learn, binned close to exact where equal bins are not."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from recgrad.errors import RecgradError
from recgrad.metrics import AUC, MulticlassAUC, UndefinedMetricWarning


def all_pairs(scores, labels):
    wins = [
        (p > n) + (p == n) / 2 for p, y in zip(scores, labels) if y for n, z in zip(scores, labels) if not z
    ]
    return sum(wins) / len(wins) if wins else float("nan")


def clicks(rows: int, bias: float, spread: float, noise: float, seed: int = 0):
    """Probabilities of a model and clicks drawn from the truth behind it."""
    rng = np.random.default_rng(seed)
    truth = bias + spread * rng.normal(size=rows)
    labels = rng.random(rows) < 1 / (1 + np.exp(-truth))
    scores = 1 / (1 + np.exp(-(truth + noise * rng.normal(size=rows))))
    return torch.tensor(scores, dtype=torch.float32), torch.tensor(labels)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), st.integers(0, 1)), max_size=30))
@pytest.mark.filterwarnings("ignore::recgrad.metrics.base.UndefinedMetricWarning")
def test_exact_counts_every_pair_and_ties_half(rows):
    scores, labels = [r[0] for r in rows], [r[1] for r in rows]
    exact = AUC(exact=True)(torch.tensor(scores), torch.tensor(labels))
    binned = AUC()(torch.tensor(scores), torch.tensor(labels))
    expected = all_pairs(scores, labels)
    assert exact.item() == pytest.approx(expected, rel=1e-14, nan_ok=True)
    # These scores lie in bins of their own, so the bins lose nothing.
    assert binned.item() == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_exact_is_that_of_scikit_learn_in_double_precision():
    rng = np.random.default_rng(3)
    scores, labels = 1 + 1e-12 * rng.normal(size=5000), rng.integers(0, 2, 5000)
    ours = AUC(exact=True)(torch.tensor(scores), torch.tensor(labels))
    assert ours.item() == pytest.approx(roc_auc_score(labels, scores), rel=1e-12)


@pytest.mark.parametrize(
    ("bias", "spread", "noise"),
    [
        (-5.0, 0.6, 0.2),  # click rate 0.8%: nearly all scores below 0.05
        (-5.2, 1.2, 0.5),
        (-9.0, 1.0, 0.3),  # one click in 5,000
        (0.0, 2.0, 0.5),
        (6.0, 1.0, 0.5),
        (-4.0, 0.02, 0.02),  # a model that hardly tells rows apart
    ],
)
def test_200_thresholds_stay_within_a_thousandth_of_exact(bias, spread, noise):
    scores, labels = clicks(300_000, bias, spread, noise)
    exact = roc_auc_score(labels, scores)
    assert AUC(thresholds=200)(scores, labels).item() == pytest.approx(exact, abs=1e-3)


def test_equal_bins_would_have_failed_that():
    """The case is hard: 200 bins of equal width in probability are off by more than 0.01."""
    scores, labels = clicks(300_000, -5.0, 0.6, 0.2)
    coarse = (scores * 199).floor()
    assert abs(roc_auc_score(labels, coarse) - roc_auc_score(labels, scores)) > 0.01


def test_scores_of_two_columns_are_those_of_the_positive_class():
    scores, labels = clicks(1000, 0.0, 1.0, 0.1)
    both = torch.stack([1 - scores, scores], 1)
    assert AUC(exact=True)(both, labels) == AUC(exact=True)(scores, labels)


def test_infinite_scores_rank_and_logits_need_exact():
    scores, labels = torch.tensor([-torch.inf, 2.0, torch.inf]), torch.tensor([0, 1, 1])
    assert AUC(exact=True)(scores, labels) == 1
    with pytest.raises(RecgradError, match="set exact"):
        AUC()(scores, labels)


def test_labels_other_than_0_and_1_are_named():
    with pytest.raises(RecgradError, match="label 2 at row 1 of the batch is not 0 or 1"):
        AUC().update(torch.tensor([0.1, 0.2]), torch.tensor([1, 2]))
    with pytest.raises(RecgradError, match=r"label 0\.5 at row 0"):
        AUC().update(torch.tensor([0.1, 0.2]), torch.tensor([0.5, 1.0]))
    with pytest.raises(RecgradError, match="label 257 at row 0"):
        AUC().update(torch.tensor([0.1, 0.2]), torch.tensor([257, 1]))


def test_one_class_warns_once_with_the_reason():
    metric = AUC()
    metric.update(torch.tensor([0.2, 0.3]), torch.tensor([1, 1]))
    with pytest.warns(UndefinedMetricWarning, match="all of one class") as caught:
        assert torch.isnan(metric.compute())
    assert len(caught) == 1


@pytest.mark.parametrize("average", ["macro", "weighted"])
@pytest.mark.parametrize("exact", [True, False])
def test_multiclass_auc_is_that_of_scikit_learn(average, exact):
    torch.manual_seed(0)
    preds, target = (
        torch.randn(4000, 4).softmax(1),
        torch.multinomial(torch.tensor([5.0, 2, 2, 1]), 4000, True),
    )
    preds[torch.arange(4000), target] += 0.3
    preds = preds / preds.sum(1, keepdim=True)
    metric = MulticlassAUC(num_class=4, average=average, exact=exact)
    metric.update(preds[:1500], target[:1500])
    metric.update(preds[1500:], target[1500:])
    expected = roc_auc_score(target, preds, multi_class="ovr", average=average)
    assert metric.compute().item() == pytest.approx(expected, abs=1e-9 if exact else 1e-4)


def test_multiclass_auc_by_class_leaves_absent_ones_undefined():
    preds, target = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1], [0.4, 0.5, 0.1]]), torch.tensor([0, 1, 1])
    with pytest.warns(UndefinedMetricWarning, match=r"classes \[2\]"):
        value = MulticlassAUC(num_class=3, average="none")(preds, target)
    assert value["class_0"] == 1
    assert torch.isnan(value["class_2"])


def test_counting_pairs_leaves_no_thread_at_work() -> None:
    """NumPy's BLAS has threads of its own, which wait in a loop for more: steps would compute beside them."""
    program = """
import time
import numpy as np
from recgrad.metrics.pairs import binned_auc

counts = np.arange(400_000.0)
binned_auc(counts, counts)
before = time.process_time()
time.sleep(0.1)
print(time.process_time() - before)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(said.stdout) < 0.02  # seconds of processor time while it slept
