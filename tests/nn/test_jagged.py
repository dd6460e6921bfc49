"""Operations over rows of different lengths, against loops over rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.nn.jagged import (
    Segments,
    pad,
    repeat_rows,
    segment_mean,
    segment_softmax,
    segment_sum,
    truncate,
)

LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def setup(lengths, width=3):
    generator = torch.Generator().manual_seed(sum(lengths) + len(lengths))
    positions = sum(lengths)
    values = torch.randn(positions, width, dtype=torch.float64, generator=generator)
    return values, Segments.from_lengths(torch.tensor(lengths, dtype=torch.int32), positions)


def rows_of(values, lengths):
    return values.split(lengths)


@settings(max_examples=40, deadline=None)
@given(LENGTHS)
def test_sums_and_means(lengths):
    values, segments = setup(lengths)
    weights = torch.linspace(-1, 2, len(values), dtype=torch.float64)
    rows, row_weights = rows_of(values, lengths), rows_of(weights, lengths)
    expected = torch.stack([row.sum(0) for row in rows])
    torch.testing.assert_close(segment_sum(values, segments), expected)
    mean = torch.stack([row.sum(0) / max(len(row), 1) for row in rows])
    torch.testing.assert_close(segment_mean(values, segments), mean)
    weighted = torch.stack([(row * w[:, None]).sum(0) for row, w in zip(rows, row_weights, strict=True)])
    torch.testing.assert_close(segment_sum(values, segments, weights), weighted)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.sampled_from([0.0, 900.0, -900.0]))
def test_softmax_of_each_row(lengths, shift):
    """Also far from 0, where exp alone would overflow or vanish."""
    values, segments = setup(lengths, 1)
    scores = values[:, 0] * 3 + shift
    expected = torch.cat([row.softmax(0) for row in rows_of(scores, lengths)])
    torch.testing.assert_close(segment_softmax(scores, segments), expected)


@settings(max_examples=30, deadline=None)
@given(LENGTHS, st.integers(0, 4))
def test_repeat_truncate_and_pad(lengths, limit):
    values, segments = setup(lengths)
    per_row = torch.arange(len(lengths), dtype=torch.float64)[:, None]
    assert repeat_rows(per_row, segments)[:, 0].tolist() == [
        r for r, n in enumerate(lengths) for _ in range(n)
    ]
    assert segments.places().tolist() == [p for n in lengths for p in range(n)]
    kept, shorter = truncate(values, segments, limit)
    rows = [row[: limit or None] for row in rows_of(values, lengths)]
    torch.testing.assert_close(kept, torch.cat(rows))
    assert shorter.lengths.tolist() == [len(row) for row in rows]
    padded = pad(values, segments)
    for row, n, filled in zip(rows_of(values, lengths), lengths, padded, strict=True):
        assert torch.equal(filled[:n], row)
        assert not filled[n:].any()


@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0], [1]])
def test_gradients(lengths):
    values, segments = setup(lengths)
    values.requires_grad_()
    weights = torch.randn(len(values), dtype=torch.float64, requires_grad=True)
    rows = torch.randn(len(lengths), 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: segment_sum(v, segments), values)
    assert torch.autograd.gradcheck(lambda v, w: segment_sum(v, segments, w), (values, weights))
    assert torch.autograd.gradcheck(lambda r: repeat_rows(r, segments), rows)
    assert torch.autograd.gradcheck(lambda w: segment_softmax(w, segments), weights)
