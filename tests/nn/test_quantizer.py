"""Residual quantization against loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from recgrad.nn.quantizer import (
    distances,
    near_codes,
    quantize,
    quantize_softly,
    rotated,
    sinkhorn,
    straight_through,
)

ROWS, DIM, SIZES = 7, 3, (4, 5)


@pytest.fixture
def books():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(size, DIM, generator=generator, dtype=torch.float64).requires_grad_() for size in SIZES
    ]


@pytest.fixture
def vectors():
    return torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def apart(v, c, kind):
    if kind == "l2":
        return sum((a - b) ** 2 for a, b in zip(v, c, strict=True))
    return -sum(v * c) / math.sqrt(sum(v * v)) / math.sqrt(sum(c * c))


def walked(vector, books, kind, normalize):
    rest, total, codes, sums = vector.copy(), np.zeros(DIM), [], []
    for book in books:
        if normalize:
            rest = rest / math.sqrt(sum(rest * rest))
        code = min(range(len(book)), key=lambda k: apart(rest, book[k], kind))
        codes.append(code)
        total = total + book[code]
        rest = rest - book[code]
        sums.append(total)
    return codes, sums


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", ["l2", "cosine"])
def test_codes_are_those_of_a_loop(kind, normalize, books, vectors):
    walk = quantize(vectors, books, distance=kind, normalize=normalize)
    plain = [book.detach().numpy() for book in books]
    for row, vector in enumerate(vectors.numpy()):
        codes, sums = walked(vector, plain, kind, normalize)
        assert walk.codes[row].tolist() == codes
        np.testing.assert_allclose(walk.sums[row].detach().numpy(), sums, rtol=1e-12)


def test_distances(books, vectors):
    for kind in ("l2", "cosine"):
        found = distances(vectors, books[0], kind).detach().numpy()
        expected = [[apart(v, c, kind) for c in books[0].detach().numpy()] for v in vectors.numpy()]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_sinkhorn_is_the_loop_of_its_definition():
    d = np.random.default_rng(2).random((6, 4))
    scaled = (d - d.mean()) / (d.std() + 1e-12)
    q = np.exp(-10 * (scaled - scaled.min())).T
    q /= q.sum()
    for _ in range(5):
        for k in range(4):
            q[k] /= (q[k].sum() + 1e-8) * 4
        for b in range(6):
            q[:, b] /= (q[:, b].sum() + 1e-8) * 6
    assert sinkhorn(torch.from_numpy(d)).tolist() == q.argmax(0).tolist()


def test_sinkhorn_uses_codes_more_evenly():
    d = torch.rand(200, 8, generator=torch.Generator().manual_seed(0))
    d[:, 0] -= 0.5  # one code is nearest to almost all rows
    most = [int(torch.bincount(codes, minlength=8).max()) for codes in (d.argmin(1), sinkhorn(d))]
    assert most[1] < 60 < most[0]
    assert sinkhorn(d[:0]).shape == (0,)


def test_straight_through_has_the_value_of_the_codes_and_the_gradient_of_the_vectors(books, vectors):
    z = vectors.clone().requires_grad_()
    total = quantize(z, books).total
    found = straight_through(z, total)
    torch.testing.assert_close(found, total.detach())
    weights = torch.rand_like(z)
    (found * weights).sum().backward()
    torch.testing.assert_close(z.grad, weights)
    assert books[0].grad is None


def rotation(z, s):
    """The rotation in the plane of two vectors that takes one's direction to the other's, by its angle."""
    a, b = z / np.linalg.norm(z), s / np.linalg.norm(s)
    cos = a @ b
    normal = b - cos * a
    normal /= np.linalg.norm(normal)
    sin = math.sqrt(1 - cos**2)
    plane = np.outer(a, a) + np.outer(normal, normal)
    turn = cos * plane + sin * (np.outer(normal, a) - np.outer(a, normal))
    return np.eye(len(z)) - plane + turn


def test_the_rotation_trick_turns_gradients(books, vectors):
    z = vectors.clone().requires_grad_()
    total = quantize(z, books).total.detach()
    found = rotated(z, total)
    torch.testing.assert_close(found, total)
    weights = torch.rand_like(z)
    (found * weights).sum().backward()
    for row in range(ROWS):
        scale = np.linalg.norm(total[row]) / np.linalg.norm(vectors[row])
        matrix = scale * rotation(vectors[row].numpy(), total[row].numpy())
        np.testing.assert_allclose(z.grad[row].numpy(), matrix.T @ weights[row].numpy(), rtol=1e-9)


def test_soft_codes_reach_vectors_and_codebooks(books, vectors):
    z = vectors.clone().requires_grad_()
    walk = quantize_softly(z, books)
    for row in range(ROWS):
        total = sum(book[code] for book, code in zip(books, walk.codes[row], strict=True))
        torch.testing.assert_close(walk.total[row], total)
    walk.total.square().sum().backward()
    assert z.grad.any()
    assert all(book.grad.any() for book in books)


def test_soft_codes_are_drawn_by_softmax_of_minus_the_distance(books, vectors):
    torch.manual_seed(0)
    drawn = quantize_softly(vectors[:1].expand(20_000, -1), books[:1]).codes[:, 0]
    shares = torch.bincount(drawn, minlength=SIZES[0]) / 20_000
    expected = torch.softmax(-distances(vectors[:1], books[0]), dim=1)[0]
    torch.testing.assert_close(shares.double(), expected.detach(), rtol=0, atol=0.02)


def test_candidates_differ_in_the_last_code_alone(books, vectors):
    walk = quantize(vectors, books)
    codes, scores = near_codes(walk, books[-1], 3, "l2")
    assert codes.shape == (ROWS, 3, 2)
    assert torch.equal(codes[:, 0], walk.codes)
    for row in range(ROWS):
        rest = vectors[row] - books[0][walk.codes[row, 0]]
        gaps = (books[1] - rest).square().sum(1)
        order = gaps.argsort()[:3]
        assert codes[row, :, 1].tolist() == order.tolist()
        assert (codes[row, :, 0] == walk.codes[row, 0]).all()
        torch.testing.assert_close(scores[row], gaps[order])
