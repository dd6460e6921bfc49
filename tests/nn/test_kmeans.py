"""k-means: ours against faiss and against a loop in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.nn.kmeans import KMeansSettings, first_permuted, kmeans, nearest_rows, residual_kmeans


def points(rows, dim=6, seed=1):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize(("rows", "k"), [(2000, 16), (9000, 8), (60, 16), (16, 16)])
def test_ours_is_what_faiss_computes(rows, k, spherical):
    pytest.importorskip("faiss")
    given_settings = KMeansSettings(spherical=spherical, nredo=2, min_points_per_centroid=1)
    theirs = kmeans(points(rows), k, given_settings)
    ours = kmeans(points(rows), k, given_settings, faiss=False)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_empty_centroids_take_half_of_another_as_in_faiss():
    pytest.importorskip("faiss")
    twice = points(300).round()  # equal points leave centroids without any
    given_settings = KMeansSettings(min_points_per_centroid=1)
    torch.testing.assert_close(
        kmeans(twice, 64, given_settings, faiss=False),
        kmeans(twice, 64, given_settings),
        rtol=1e-5,
        atol=1e-5,
    )


def lloyd(x, centroids, rounds):
    for _ in range(rounds):
        chosen = [min(range(len(centroids)), key=lambda j: ((p - centroids[j]) ** 2).sum()) for p in x]
        centroids = np.array([x[[c == j for c in chosen]].mean(0) for j in range(len(centroids))])
    return centroids


def test_rounds_are_lloyds():
    x = points(120, 3).double()
    first = x[torch.from_numpy(first_permuted(120, 4, 8))]
    expected = lloyd(x.numpy(), first.numpy(), 6)
    found = kmeans(x.float(), 4, KMeansSettings(niter=6, seed=7, min_points_per_centroid=1), faiss=False)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_further_starts_are_kept_where_they_are_better():
    x = points(400, 2, seed=3)

    def error(found):
        return float((x - found[nearest_rows(x, found)]).square().sum())

    errors = [
        error(kmeans(x, 12, KMeansSettings(nredo=n, min_points_per_centroid=1), faiss=False)) for n in (1, 8)
    ]
    assert errors[1] < errors[0]


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 200), seed=st.integers(0, 2**31), data=st.data())
def test_the_front_of_a_permutation_has_no_number_twice(n, seed, data):
    count = data.draw(st.integers(1, n))
    found = first_permuted(n, count, seed)
    assert len(set(found.tolist())) == count
    assert found.min() >= 0
    assert found.max() < n


def test_residual_levels_quantize_what_is_left_over():
    x = points(500, 4)
    books = residual_kmeans(x, (5, 7), KMeansSettings(min_points_per_centroid=1))
    rest = x - books[0][nearest_rows(x, books[0])]
    torch.testing.assert_close(books[1], kmeans(rest, 7, KMeansSettings(min_points_per_centroid=1)))
    assert [tuple(book.shape) for book in books] == [(5, 4), (7, 4)]


def test_too_few_points_and_numbers_that_are_not_finite_are_refused(caplog):
    with pytest.raises(ValueError, match="needs at least as many points, got 3"):
        kmeans(points(3), 4)
    with pytest.raises(ValueError, match="finite"):
        kmeans(torch.full((4, 2), torch.nan), 2)
    kmeans(points(8), 4)
    assert "fewer than min_points_per_centroid 39" in caplog.text
    with pytest.raises(ValueError, match="niter must be at least 1, got 0"):
        KMeansSettings(niter=0)
