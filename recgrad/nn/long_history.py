"""Which positions of a long history matter to a query: found by hashing, or by an equal key.

Each function has two ways: kernels for float32 on a CPU, whose memory does not grow with the number of
hashes, and torch's operations for everything else (float64, other devices, `compile`, export), whose shapes
depend on the shapes of the input alone. Both give the same positions.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recgrad.nn.jagged import Segments, segment_sum

MAX_BITS = 64
_CHUNK = 65_536  # positions that are projected at a time


def fits_kernels(*tensors: Tensor) -> bool:
    """Whether the kernels take these: float32 on a CPU, no empty ones, and no other compiler."""
    return (
        all(t.dtype == torch.float32 and t.device.type == "cpu" and t.numel() > 0 for t in tensors)
        and not torch.compiler.is_compiling()
        and not torch.compiler.is_exporting()
    )


def signatures(values: Tensor, planes: Tensor) -> Any:
    """uint64 [n]: bit b of a vector says on which side of hyperplane b it lies (SimHash).

    Args:
        values: float32 [n, dim], on the CPU.
        planes: [dim, bits], up to 64.
    """
    from recgrad.kernels.compile import compiled
    from recgrad.kernels.parallel import launch
    from recgrad.nn import long_history_kernels as k

    codes = np.empty(len(values), np.uint64)
    for start in range(0, len(values), _CHUNK):
        sides = _sides(values[start : start + _CHUNK], planes).contiguous().numpy()
        part = codes[start : start + len(sides)]
        launch(compiled(k.sign_bits), *sides.shape, sides, part, tasks=-(-len(sides) // k.BLOCK))
    return codes


def _sides(values: Tensor, planes: Tensor) -> Tensor:
    """[n, bits]: products of vectors and hyperplanes, in their own precision also under autocast."""
    kind = values.device.type
    quiet = torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
    with quiet:
        return values.to(planes.dtype) @ planes


def nearest(query: Tensor, sequence: Tensor, planes: Tensor, segments: Segments, limit: int) -> Tensor:
    """int64 [rows, limit]: the positions whose signatures differ least from the query's, −1 after the last.

    Of equally near ones the first count; they stand in the order of the sequence. No gradient flows.

    Args:
        query: [rows, dim].
        sequence: [positions, dim].
        planes: [dim, bits].
        segments: which row each position belongs to.
        limit: positions that a row has at most.
    """
    query, sequence = query.detach(), sequence.detach()
    if fits_kernels(query, sequence):
        from recgrad.kernels.compile import compiled
        from recgrad.kernels.parallel import launch
        from recgrad.nn import long_history_kernels as k

        out = np.empty((len(query), limit), np.int64)
        arrays = signatures(sequence, planes), signatures(query, planes), *_spans(segments), out
        launch(compiled(k.nearest_codes), len(query), limit, *arrays, tasks=len(query))
        return torch.from_numpy(out)
    differ = (_sides(sequence, planes) > 0) != (_sides(query, planes) > 0).index_select(0, segments.rows)
    chosen = _least(differ.sum(1), planes.shape[1] + 1, segments, limit)
    return _in_order(chosen)


def equal(query: Tensor, keys: Tensor, segments: Segments, limit: int) -> Tensor:
    """int64 [rows, limit]: the first positions whose keys equal the query's, −1 after the last.

    A key is what a table holds for an id, so that equal ids have equal keys. A query of zeros, such as that
    of no id, equals none. No gradient flows.

    Args:
        query: [rows, width].
        keys: [positions, width].
        segments: which row each position belongs to.
        limit: positions that a row has at most.
    """
    query, keys = query.detach(), keys.detach()
    if fits_kernels(query, keys):
        from recgrad.kernels.compile import compiled
        from recgrad.kernels.parallel import launch
        from recgrad.nn import long_history_kernels as k

        out = np.empty((len(query), limit), np.int64)
        arrays = keys.contiguous().numpy(), query.contiguous().numpy(), *_spans(segments), out
        launch(compiled(k.equal_keys), len(query), limit, query.shape[1], *arrays, tasks=len(query))
        return torch.from_numpy(out)
    same = (keys == query.index_select(0, segments.rows)).all(1)
    same = same & (query != 0).any(1).index_select(0, segments.rows)
    chosen = _least((~same).long(), 2, segments, limit)
    # Those that follow the equal ones are others.
    found = torch.zeros_like(segments.lengths).index_add(0, segments.rows, same.long())
    places = torch.arange(limit, device=query.device)
    return torch.where(places < found.unsqueeze(1), chosen, -1)


def bucket_sums(query: Tensor, sequence: Tensor, planes: Tensor, segments: Segments, width: int) -> Tensor:
    """[rows, groups, dim]: for each group of `width` hashes the sum of positions that hash like the query.

    Args:
        query: [rows, dim]; no gradient flows into it.
        sequence: [positions, dim]; gradients flow into the values that are added, not into their hashes.
        planes: [dim, bits], bits a multiple of `width`.
        segments: which row each position belongs to.
        width: hashes of a group.
    """
    if fits_kernels(query, sequence):
        codes = signatures(sequence.detach(), planes), signatures(query.detach(), planes)
        sums: Tensor = _BucketSums.apply(  # type: ignore[no-untyped-call]
            sequence, codes, _spans(segments), planes.shape[1] // width, width
        )
        return sums
    groups, dim = planes.shape[1] // width, sequence.shape[1]
    of_query = (_sides(query.detach(), planes) > 0).index_select(0, segments.rows)
    same = (_sides(sequence.detach(), planes) > 0) == of_query
    agree = same.view(-1, groups, width).all(2).to(sequence.dtype)
    products = (agree.unsqueeze(2) * sequence.unsqueeze(1)).view(-1, groups * dim)
    return segment_sum(products, segments).view(-1, groups, dim)


class _BucketSums(torch.autograd.Function):
    """`bucket_sums` by kernels, of codes that are known."""

    @staticmethod
    def forward(ctx: Any, sequence: Tensor, codes: Any, spans: Any, groups: int, width: int) -> Tensor:
        from recgrad.nn import long_history_kernels as k

        values = sequence.contiguous()
        sums = np.zeros((len(codes[1]), groups, values.shape[1]), np.float32)
        ctx.codes, ctx.spans, ctx.width, ctx.shape = codes, spans, width, values.shape
        _launch_buckets(k.add_to_buckets, codes, spans, width, values.numpy(), sums)
        return torch.from_numpy(sums)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from recgrad.nn import long_history_kernels as k

        values = np.zeros(ctx.shape, np.float32)
        sums = grad.float().contiguous().numpy()
        _launch_buckets(k.add_from_buckets, ctx.codes, ctx.spans, ctx.width, values, sums)
        return torch.from_numpy(values), None, None, None, None


def _launch_buckets(kernel: Any, codes: Any, spans: Any, width: int, values: Any, sums: Any) -> None:
    from recgrad.kernels.compile import compiled
    from recgrad.kernels.parallel import launch

    rows, groups, dim = sums.shape
    launch(compiled(kernel), rows, groups, width, dim, *codes, *spans, values, sums, tasks=rows)


def _spans(segments: Segments) -> tuple[Any, Any]:
    """Where each row begins, and its length."""
    return segments.offsets.contiguous().numpy(), segments.lengths.contiguous().numpy()


def _least(scores: Tensor, bound: int, segments: Segments, limit: int) -> Tensor:
    """int64 [rows, limit]: the positions of the smallest scores of each row, smallest first; −1 for none.

    Args:
        scores: int64 [positions], of one at least, in [0, bound).
        bound: above all scores.
        segments: which row each position belongs to.
        limit: positions that a row has at most.
    """
    count = scores.shape[0]
    place = torch.arange(count, device=scores.device)
    # Sorting by (row, score, position) brings a row's best to the front of its span; keys are unique.
    order = ((segments.rows * bound + scores) * count + place).argsort()
    places = torch.arange(limit, device=scores.device)
    exists = places < segments.lengths.unsqueeze(1)
    index = (segments.offsets.unsqueeze(1) + places).clamp(max=count - 1)
    return torch.where(exists, order[index], -1)


def _in_order(chosen: Tensor) -> Tensor:
    """Positions of each row sorted, −1 at the end."""
    last = torch.iinfo(torch.int64).max
    ordered = torch.where(chosen < 0, last, chosen).sort(dim=1).values
    return torch.where(ordered == last, -1, ordered)
