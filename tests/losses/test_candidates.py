"""Losses of an item against others: absent candidates, corrections for sampling, and softmax in chunks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from recgrad.losses.candidates import (
    bpr,
    cosine_contrastive,
    gbce_beta,
    generalized_bce,
    log_expected_counts,
    sampled_softmax,
    split_own,
)
from recgrad.losses.chunked_softmax import chunked_softmax
from recgrad.losses.softmax_kernels import exponentials

FORMULAS = {
    "sampled_softmax": sampled_softmax,
    "smoothed": lambda own, others: sampled_softmax(own, others, smoothing=0.2),
    "bpr": bpr,
    "cosine_contrastive": lambda own, others: cosine_contrastive(own, others, margin=0.1, weight=5.0),
    "generalized_bce": lambda own, others: generalized_bce(own, others, beta=0.3),
}


KINDS = (torch.float32, torch.float64)


def scores(rows, candidates, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, generator=generator, dtype=torch.float64),
        torch.randn(rows, candidates, generator=generator, dtype=torch.float64),
    )


@pytest.mark.parametrize("name", FORMULAS)
def test_absent_candidates_count_nowhere(name):
    own, others = scores(4, 5)
    there = torch.tensor(
        [[1, 1, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], dtype=torch.bool
    )
    padded = others.masked_fill(~there, -torch.inf).requires_grad_()
    found = FORMULAS[name](own, padded)
    found.sum().backward()
    for row in range(4):
        kept = others[row, there[row]].clone().requires_grad_()
        expected = FORMULAS[name](own[row], kept)
        expected.backward()
        assert found[row].item() == pytest.approx(expected.item(), rel=1e-12)
        assert torch.allclose(padded.grad[row, there[row]], kept.grad)
    assert not padded.grad[~there].any()


@pytest.mark.parametrize("name", FORMULAS)
def test_positions_of_sequences_need_no_reshaping(name):
    own, others = scores(6, 4)
    flat = FORMULAS[name](own, others)
    assert torch.equal(FORMULAS[name](own.view(2, 3), others.view(2, 3, 4)), flat.view(2, 3))


def test_smoothing_is_that_of_torch_where_all_candidates_are_there():
    own, others = scores(5, 7)
    logits = torch.cat([own[:, None], others], 1)
    expected = F.cross_entropy(
        logits, torch.zeros(5, dtype=torch.int64), reduction="none", label_smoothing=0.3
    )
    assert torch.allclose(sampled_softmax(own, others, smoothing=0.3), expected)


@pytest.mark.parametrize("column", [0, 2])
def test_the_own_column_is_split_off(column):
    _, logits = scores(3, 4)
    own, others = split_own(logits, torch.full((3,), column))
    assert torch.equal(own, logits[:, column])
    there = others[others > -torch.inf].view(3, 3)
    assert torch.equal(there, torch.cat([logits[:, :column], logits[:, column + 1 :]], 1))


def test_corrected_scores_estimate_the_softmax_over_the_whole_catalogue():
    """The mean over draws of e^own + Σ e^(score - log count) is the sum over all items."""
    generator = torch.Generator().manual_seed(3)
    items, draws, repeats = 12, 5, 40_000
    catalogue = torch.randn(items, generator=generator, dtype=torch.float64)
    weights = torch.rand(items, generator=generator, dtype=torch.float64) ** 3
    weights[0] = 0  # the own item is not drawn
    q = weights / weights.sum()
    drawn = torch.multinomial(q, repeats * draws, replacement=True, generator=generator).view(repeats, draws)
    counts = log_expected_counts(q.log(), draws)[drawn]
    own = catalogue[0].expand(repeats)
    loss = sampled_softmax(own, catalogue[drawn], log_counts=counts)
    total = (loss + own).exp()
    expected = catalogue.exp().sum().item()
    assert total.mean().item() == pytest.approx(expected, abs=5 * (total.std() / repeats**0.5).item())
    uncorrected = (sampled_softmax(own, catalogue[drawn]) + own).exp().mean().item()
    assert abs(uncorrected - expected) > 1


def test_calibration_of_gbce():
    assert gbce_beta(5, 101, 0.0).item() == 1
    assert gbce_beta(5, 101, 1.0).item() == pytest.approx(0.05)
    alpha, t = 0.05, 0.75
    assert gbce_beta(5, 101, t).item() == pytest.approx(alpha * (t * (1 - 1 / alpha) + 1 / alpha))
    assert gbce_beta(500, 101, 1.0).item() == 1


def test_gbce_without_calibration_is_binary_cross_entropy():
    own, others = scores(4, 6)
    logits = torch.cat([own[:, None], others], 1)
    labels = torch.zeros_like(logits)
    labels[:, 0] = 1
    expected = F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    assert torch.allclose(generalized_bce(own, others), expected)


@settings(max_examples=30, deadline=None)
@given(
    queries=st.integers(0, 7),
    items=st.integers(1, 9),
    chunk=st.sampled_from([1, 4, 20, 1000]),
    weighted=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_chunks_give_the_softmax_over_all_items_and_its_gradients(queries, items, chunk, weighted, seed):
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(queries, 3, generator=generator, dtype=torch.float64)
    v = torch.randn(items, 3, generator=generator, dtype=torch.float64)
    own = torch.randint(0, items, (queries,), generator=generator)
    weights = torch.rand(queries, generator=generator, dtype=torch.float64) if weighted else torch.ones(1)
    scale = torch.tensor(1.7, dtype=torch.float64)
    results = []
    for chunked in (True, False):
        leaves = [tensor.clone().requires_grad_() for tensor in (u, v, scale)]
        if chunked:
            rows = chunked_softmax(leaves[0], leaves[1], own, scale=leaves[2], scores=chunk)
        else:
            rows = F.cross_entropy(leaves[2] * leaves[0] @ leaves[1].t(), own, reduction="none")
        (rows * weights).sum().backward()
        results.append([rows.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs)


@settings(max_examples=40, deadline=None)
@given(
    queries=st.integers(0, 9),
    items=st.integers(1, 100),
    spread=st.sampled_from([0.1, 3.0, 30.0]),
    weighted=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_kernels_of_single_precision_give_what_double_precision_does(queries, items, spread, weighted, seed):
    generator = torch.Generator().manual_seed(seed)
    u = spread * torch.randn(queries, 8, generator=generator)
    v = torch.randn(items, 8, generator=generator)
    own = torch.randint(0, items, (queries,), generator=generator)
    weights = torch.rand(queries, generator=generator) if weighted else torch.ones(queries)
    ours, theirs = ([x.clone().requires_grad_() for x in (u.to(kind), v.to(kind))] for kind in KINDS)
    rows = chunked_softmax(*ours, own, scores=4 * items)
    expected = F.cross_entropy(theirs[0] @ theirs[1].t(), own, reduction="none")
    (rows * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(rows.double(), expected, rtol=1e-5, atol=1e-5 * spread)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(
            one.grad.double(), other.grad, rtol=1e-4, atol=1e-5 * spread * max(1, queries)
        )


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 4), max_size=7),
    items=st.integers(1, 30),
    chunk=st.sampled_from([1, 40, 1000]),
    weighted=st.booleans(),
    drawn=st.booleans(),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**6),
)
def test_a_query_of_several_items_is_the_sum_of_queries_of_one(
    counts, items, chunk, weighted, drawn, kind, seed
):
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(len(counts), 8, generator=generator, dtype=kind)
    v = torch.randn(items, 8, generator=generator, dtype=kind)
    own = torch.randint(0, items, (sum(counts),), generator=generator)
    rows = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64))
    weights = torch.rand(len(counts), generator=generator) if weighted else torch.ones(len(counts))
    ours, theirs = ([x.to(to).clone().requires_grad_() for x in (u, v)] for to in (kind, torch.float64))
    log_counts = (
        torch.randn(items, generator=generator, dtype=kind) if drawn else torch.zeros(items, dtype=kind)
    )
    log_counts[own] = 0
    found = chunked_softmax(*ours, own, own_rows=rows, log_counts=log_counts if drawn else None, scores=chunk)
    corrected = theirs[0][rows] @ theirs[1].t() - log_counts.double()
    each = F.cross_entropy(corrected, own, reduction="none")
    expected = torch.zeros(len(counts), dtype=torch.float64).index_add(0, rows, each)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-4)


def test_exponentials_are_the_same_for_any_number_of_threads():
    scores = 10 * torch.randn(70, 1003)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            powers = scores.clone()
            found.append([powers, *exponentials(powers)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other))


def test_a_score_that_is_no_number_shows():
    u, v = torch.ones(2, 2), torch.ones(40, 2)
    v[5, 0] = torch.nan
    assert chunked_softmax(u, v, torch.tensor([0, 1])).isnan().all()


def test_chunks_of_huge_scores_stay_finite():
    u = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    v = torch.tensor([[1.0], [-1.0], [0.5]], requires_grad=True)
    rows = chunked_softmax(u, v, torch.tensor([1, 1]), scores=3)
    rows.mean().backward()
    assert rows.tolist() == [20000.0, 0.0]
    assert torch.isfinite(u.grad).all()
    assert torch.isfinite(v.grad).all()


def test_the_matrix_of_all_scores_is_never_held():
    queries, items = 4096, 5000  # 80 MB of scores
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    u, v = torch.randn(queries, 4, requires_grad=True), torch.randn(items, 4, requires_grad=True)
    with Watch():
        chunked_softmax(u, v, torch.zeros(queries, dtype=torch.int64), scores=1 << 18).mean().backward()
    assert 4 * queries <= largest <= 1 << 18
