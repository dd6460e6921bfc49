"""Pareto weights: the least norm over all allowed weights, whatever the gradients are."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.losses.pareto import min_norm_weights, pareto_weights


def grid(tasks: int, steps: int) -> np.ndarray:
    """All points of the simplex whose shares are multiples of 1 / steps."""
    points = [p for p in itertools.product(range(steps + 1), repeat=tasks) if sum(p) == steps]
    return np.array(points) / steps


@settings(max_examples=80, deadline=None)
@given(
    tasks=st.integers(2, 4),
    width=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-6, 1.0, 1e4]),
    bound=st.sampled_from([0.0, 0.1, 0.25]),
    repeated=st.booleans(),
)
def test_no_allowed_weights_have_a_smaller_norm(tasks, width, seed, scale, bound, repeated):
    rng = np.random.default_rng(seed)
    gradients = scale * rng.normal(size=(tasks, width))
    if repeated:
        gradients[1] = gradients[0]
    minimum = np.full(tasks, bound) * rng.integers(0, 2, tasks)
    gram = gradients @ gradients.T
    w = min_norm_weights(gram, minimum)
    assert w.sum() == pytest.approx(1, abs=1e-12)
    assert (w >= minimum - 1e-12).all()
    others = minimum + (1 - minimum.sum()) * grid(tasks, 12)
    size = np.trace(gram)
    assert w @ gram @ w <= np.min(np.einsum("pi,ij,pj->p", others, gram, others)) + 1e-11 * size
    # Optimal, not only better than a grid: no task whose weight could grow pulls harder than the mean.
    pull = gram @ w
    slack = w > minimum + 1e-9
    assert (pull[slack].max(initial=-np.inf) <= pull.min() + 1e-9 * size) or not slack.any()


def test_two_tasks_have_the_closed_form():
    a, b = torch.tensor([3.0, 1.0]), torch.tensor([-1.0, 2.0])
    x = torch.zeros(2, requires_grad=True)
    w = pareto_weights([(a * x).sum(), (b * x).sum()], [x])
    share = float((b - a) @ b / ((a - b) @ (a - b)))
    assert w.tolist() == pytest.approx([share, 1 - share], rel=1e-6)
    assert not w.requires_grad


@pytest.mark.parametrize("gram", [np.zeros((3, 3)), np.ones((3, 3)), np.full((3, 3), np.nan)])
def test_where_all_weights_are_equally_good_shares_are_equal(gram):
    assert min_norm_weights(gram, np.zeros(3)).tolist() == pytest.approx([1 / 3] * 3, abs=1e-9)


def test_a_task_with_a_minimum_keeps_it():
    x = torch.zeros(1, requires_grad=True)
    w = pareto_weights([10 * x.sum(), x.sum()], [x], [0.3, 0.0])
    assert w.tolist() == pytest.approx([0.3, 0.7])


def test_parameters_of_one_task_alone_and_the_later_backward():
    shared, own = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    losses = [(shared * 2).sum(), (shared * own).sum()]
    w = pareto_weights(losses, [shared, torch.ones(2)])
    (w[0] * losses[0] + w[1] * losses[1]).backward()
    assert torch.isfinite(shared.grad).all()
    assert w.tolist() == pytest.approx([0.0, 1.0], abs=1e-6)


@pytest.mark.parametrize(
    ("minimum", "message"), [([0.7, 0.6], "sum to at most 1"), ([0.1], "one weight for each")]
)
def test_minimum_weights_that_cannot_be_kept_are_refused(minimum, message):
    x = torch.zeros(1, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        pareto_weights([x.sum(), x.sum()], [x], minimum)
