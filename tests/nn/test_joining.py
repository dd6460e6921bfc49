"""Columns side by side: what torch.cat gives, wherever they lie."""

from __future__ import annotations

import pytest
import torch

from recgrad.nn import joining
from recgrad.nn.joining import join, note_room


@pytest.fixture(autouse=True)
def small_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MIN_OUTPUTS", 0)


def roomy(rows: int, width: int, room: int) -> torch.Tensor:
    """A tensor with room before its rows, as an engine gives it: of no leaf of the graph."""
    x = torch.randn(rows, room + width)[:, room:]
    return note_room(x.requires_grad_() * 1 if room == 0 else _With.apply(x.requires_grad_()), room)


class _With(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.detach()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("widths", "room"),
    [([3, 8], 16), ([3, 8], 3), ([3, 8], 2), ([1, 4, 2, 6], 16), ([5, 7], 0), ([0, 7], 0), ([0, 7], 16)],
)
def test_joined_columns_and_their_gradients_are_those_of_cat(monkeypatch, own, widths, room) -> None:
    monkeypatch.setattr(joining, "own_products", lambda: own)
    *others, last = widths
    columns = [torch.randn(20, width, requires_grad=True) for width in others]
    columns.append(roomy(20, last, room))
    columns[-1].retain_grad()
    before, expected = columns[-1].detach().clone(), torch.cat(columns, dim=1)
    joined = join(columns)
    assert torch.equal(joined, expected)
    assert torch.equal(columns[-1], before)
    shares = joined.untyped_storage().data_ptr() == columns[-1].untyped_storage().data_ptr()
    assert shares == (room >= sum(others) > 0)
    upstream = torch.randn_like(expected)
    joined.backward(upstream)
    for column, gradient in zip(columns, upstream.split(widths, dim=1), strict=True):
        assert torch.equal(column.grad, gradient)


def test_room_is_taken_once() -> None:
    last, first, second = roomy(20, 8, 16), torch.randn(20, 3), torch.randn(20, 4)
    one = join([first, last])
    two = join([second, last])
    assert torch.equal(one, torch.cat([first, last], dim=1))
    assert torch.equal(two, torch.cat([second, last], dim=1))
