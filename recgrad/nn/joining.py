"""Columns of several tensors side by side, as the first layer of a network reads them.

Where the last tensor has room before its rows, the others are written there, and what is joined is the memory
that it lies in already:

    row r   │  room  │ last ………………………… │            others ─▶ room;  the copy of the last is spared
            │  others│ last ………………………… │
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recgrad.nn.field_ids import carry_field_ids
from recgrad.nn.relu_layers import MIN_OUTPUTS, own_products, runs_kernels

_NOTE = "_recgrad_room_before"


def note_room(x: Tensor, columns: int) -> Tensor:
    """x, with how many columns of memory before its first one are free in every row."""
    if columns:
        setattr(x, _NOTE, columns)
    return x


def _take_room(x: Tensor, columns: int) -> bool:
    """Whether there was room for so many columns, at least one; there is none any more."""
    room: int = getattr(x, _NOTE, 0)
    if not columns or room < columns:
        return False
    delattr(x, _NOTE)
    return True


def join(columns: Sequence[Tensor]) -> Tensor:
    """[rows, sum of widths]: columns side by side, where `relu_layers` reads them without a copy."""
    if len(columns) == 1:
        return columns[0]
    width = sum(part.shape[1] for part in columns)
    large = columns[0].shape[0] * width >= MIN_OUTPUTS and runs_kernels(*columns)
    if large and _take_room(columns[-1], width - columns[-1].shape[1]):
        joined: Tensor = _JoinInRoom.apply(*columns)  # type: ignore[no-untyped-call]
    elif large and own_products():
        joined = _Join.apply(*columns)  # type: ignore[no-untyped-call]
    else:
        joined = torch.cat(list(columns), dim=1)
    return carry_field_ids(joined, columns)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *columns: Tensor) -> Tensor:
        # Imported here, since it brings numba along.
        from recgrad.nn.layer_products import new_matrix

        ctx.widths = [part.shape[1] for part in columns]
        out = new_matrix(columns[0].shape[0], 1, sum(ctx.widths))
        for part, to in zip(columns, torch.split(out, ctx.widths, dim=1), strict=True):
            to.copy_(part)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return torch.split(gradient, ctx.widths, dim=1)


class _JoinInRoom(_Join):
    @staticmethod
    def forward(ctx: Any, *columns: Tensor) -> Tensor:
        ctx.widths = [part.shape[1] for part in columns]
        *others, last = columns
        width, before = sum(ctx.widths), sum(ctx.widths[:-1])
        # Not a view in autograd's eyes: gradients go the way of `backward`.
        out = torch.empty(0).set_(
            last.untyped_storage(), last.storage_offset() - before, (last.shape[0], width), last.stride()
        )
        for part, to in zip(others, torch.split(out, ctx.widths, dim=1)):
            to.copy_(part)
        return out
