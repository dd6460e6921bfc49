"""Attention over the positions of rows, scored by a ReLU MLP, by fused kernels.

    x₁[t] = relu(A·s_t + C·(q∘s_t) + c),   x_{i+1}[t] = relu(W_i·x_i[t] + b_i)
    out = Σ_t softmax_t(v·x_n[t]) · s_t

with q and c of the row that t belongs to. Of float32 on a CPU. `recgrad.nn.mlp_attention_kernels` has the
kernels; here arguments are laid out for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from recgrad.kernels.compile import compiled_with
from recgrad.kernels.parallel import launch_block
from recgrad.kernels.products import TILES
from recgrad.kernels.simd import LANES, LINE
from recgrad.nn import mlp_attention_kernels as k
from recgrad.nn.jagged import Segments, segment_sum

SPAN = 128  # no span is longer; a row that is has several
WINDOW = 64  # spans that begin in the same window of positions make a block
TASK = 2048  # positions that a task has at least
MAX_TASKS = 32
SLACK = TILES.slack  # rows that a tile may run over the end of a matrix


def mlp_attention(
    query: Tensor,
    sequence: Tensor,
    per_row: Tensor,
    of_sequence: Tensor,
    of_product: Tensor,
    layers: Sequence[tuple[Tensor, Tensor | None]],
    score: Tensor,
    segments: Segments,
) -> Tensor:
    """[rows, dim]: each row's positions, weighted and summed; 0 for empty rows.

    Args:
        query: q, [rows, dim].
        sequence: s, [positions, dim], of one position at least.
        per_row: c, [rows, hidden].
        of_sequence: A, [hidden, dim].
        of_product: C, [hidden, dim].
        layers: W and b of the layers after the first.
        score: v, [width of the last layer].
        segments: which row each position belongs to.
    """
    flat = list[Tensor]()
    for weight, bias in layers:
        flat += [weight, weight.new_zeros(weight.shape[0]) if bias is None else bias]
    if len(query) != len(segments.lengths):
        raise ValueError(f"query must have {len(segments.lengths)} rows, as lengths has, got {len(query)}")
    tensors = (query, sequence, per_row, of_sequence, of_product, score, *flat)
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return _Attention.apply(segments, keep, *tensors)  # type: ignore[no-any-return, no-untyped-call]


@dataclass(frozen=True)
class Blocks:
    """How positions are cut up, by lengths alone, so that results do not depend on the number of threads.

    Attributes:
        pieces: int64 [rows]: the number of spans of each row.
        spans: int64 [spans, 3]: row, first position and number of positions of each.
        blocks: int64 [blocks + 1]: the first span of each block, and the end.
        cuts: int64 [tasks + 1]: the first block of each task, and the end.
        offsets: int64 [rows + 1]: the first position of each row, and the end.
        row_cuts: int64 [tasks + 1]: the first row of each task that goes by rows, and the end.
        room: rows of a buffer that holds any block.
    """

    pieces: npt.NDArray[np.int64]
    spans: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]
    cuts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    row_cuts: npt.NDArray[np.int64]
    room: int

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.cuts) - 1


def cut_blocks(lengths: npt.NDArray[np.int64]) -> Blocks:
    """Blocks of rows of these lengths, of which one at least is not 0."""
    pieces = -(-lengths // SPAN)
    row = np.repeat(np.arange(len(lengths)), pieces)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin, end = (lengths[row] * (piece + i) // pieces[row] for i in (0, 1))
    start = (np.cumsum(lengths) - lengths)[row] + begin
    spans = np.stack([row, start, end - begin], axis=1)
    window = start // WINDOW
    blocks = np.flatnonzero(np.r_[True, window[1:] != window[:-1], True])
    positions, offsets = np.r_[start[blocks[:-1]], lengths.sum()], np.r_[0, np.cumsum(lengths)]
    tasks = int(np.clip(positions[-1] // TASK, 1, MAX_TASKS))
    begins = np.arange(tasks + 1) * positions[-1] // tasks
    cuts, row_cuts = np.searchsorted(positions, begins), np.searchsorted(offsets, begins)
    cuts[-1], row_cuts[-1] = len(blocks) - 1, len(lengths)
    room = int(np.diff(positions).max()) + SLACK
    return Blocks(pieces, spans, blocks, cuts, offsets, row_cuts, room)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, segments: Segments, keep: bool, *tensors: Tensor) -> Tensor:
        blocks = cut_blocks(segments.lengths.numpy())
        sequence, outs = tensors[1], [tensors[3].shape[0], *(w.shape[0] for w in tensors[6::2])]
        rows = len(sequence) + SLACK * len(blocks.blocks) if keep else blocks.tasks * blocks.room
        values = [sequence.new_empty(rows, _row_bytes(width) // 4) for width in outs]
        weights, out = sequence.new_empty(len(sequence)), sequence.new_empty(tensors[0].shape)
        arguments = _Arguments(blocks, tensors, values, weights, keep=keep)
        arguments.set(k.OUT, out)
        arguments.launch(k.over_blocks, k.forward_block)
        arguments.launch(k.over_rows, k.weigh_row)
        if keep:
            ctx.save_for_backward(*tensors, *values, weights)
            ctx.blocks = blocks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *saved, weights = ctx.saved_tensors
        layers = (len(saved) - 4) // 3  # six tensors, two more after the first layer, one value a layer
        arguments = _Arguments(ctx.blocks, saved[:-layers], saved[-layers:], weights, keep=True)
        gradients = _Gradients(arguments, grad.contiguous())
        arguments.launch(k.over_rows, k.unweigh_row)
        arguments.launch(k.over_blocks, k.backward_block)
        return None, None, *gradients.collect()


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _row_bytes(width: int) -> int:
    """From one row of a buffer to the next: an odd number of cache lines."""
    return LINE * (_up(width, LANES) // LANES | 1)


def _panels(weight: Tensor, outputs: int, inputs: int) -> Tensor:
    """[outputs / 16, inputs, 16] of weight [≤ outputs, ≤ inputs], zeros where it has nothing."""
    padded = F.pad(weight, (0, inputs - weight.shape[1], 0, outputs - weight.shape[0]))
    return padded.view(outputs // LANES, LANES, inputs).transpose(1, 2).contiguous()


def _pad(x: Tensor, width: int) -> Tensor:
    return F.pad(x, (0, width - x.shape[-1])).contiguous()


class _Arguments:
    """What the kernels are called with; holds on to all that it has addresses of."""

    def __init__(
        self,
        blocks: Blocks,
        tensors: Sequence[Tensor],
        values: Sequence[Tensor],
        weights_of_positions: Tensor,
        *,
        keep: bool,
    ) -> None:
        query, sequence, per_row, of_sequence, of_product, score, *weights = tensors
        self.blocks, self.tensors, self.held = blocks, tensors, list[Any]()
        self.dim = sequence.shape[1]
        self.rows = self.dim + SLACK  # of a panel of A or C
        self.outs = [of_sequence.shape[0], *(w.shape[0] for w in weights[::2])]
        self.widths = [_up(width, LANES) for width in self.outs]
        self.slots = np.zeros(k.ARGUMENTS, np.int64)
        self.table = np.zeros((len(self.outs), k.LAYER_FIELDS), np.int64)
        first, columns = self.widths[0], _up(self.dim, LANES)
        self.set(k.TASKS, blocks.tasks)
        self.set(k.CUTS, blocks.cuts)
        self.set(k.ROW_CUTS, blocks.row_cuts)
        self.set(k.BLOCKS, blocks.blocks)
        self.set(k.SPANS, blocks.spans)
        self.set(k.OFFSETS, blocks.offsets)
        self.set(k.KEEP, int(keep))
        self.set(k.ROOM, blocks.room)
        self.set(k.LAYERS, len(self.outs))
        self.set(k.TABLE, self.table)
        self.set(k.DIM, self.dim)
        self.set(k.SEQUENCE, sequence.contiguous())
        self.set(k.QUERY, query.contiguous())
        self.set(k.PER_ROW, _pad(per_row, first))
        self.set(k.A, _panels(of_sequence, first, self.rows))
        self.set(k.C, _panels(of_product, first, self.rows))
        self.set(k.A_BACK, _panels(of_sequence.t(), columns, first))
        self.set(k.C_BACK, _panels(of_product.t(), columns, first))
        self.set(k.SCORE, _pad(score, self.widths[-1]))
        self.set(k.WEIGHTS, weights_of_positions)
        self._set_scratch()
        for i, (width, out) in enumerate(zip(self.widths, values, strict=True)):
            self.table[i, [k.WIDTH, k.STRIDE]] = width, _row_bytes(width)
            self.table[i, k.VALUES] = self._address(out)
        for i, (weight, bias) in enumerate(zip(weights[::2], weights[1::2], strict=True), 1):
            self.table[i, k.INPUTS] = weight.shape[1]
            self.table[i, k.FORWARD] = self._address(_panels(weight, self.widths[i], weight.shape[1]))
            self.table[i, k.BACKWARD] = self._address(_panels(weight.t(), self.widths[i - 1], self.widths[i]))
            self.table[i, k.BIAS] = self._address(_pad(bias, self.widths[i]))

    def set(self, slot: int, value: Any) -> None:
        """Give a number, or the address of an array or tensor, which is held."""
        self.slots[slot] = value if isinstance(value, int) else self._address(value)

    def _address(self, value: Any) -> int:
        self.held.append(value)
        return int(value.data_ptr() if isinstance(value, Tensor) else value.ctypes.data)

    def launch(self, over: Callable[[Any], Any], body: Any) -> None:
        """Run a function of the kernels over all blocks or rows."""
        launch_block(compiled_with(over, body), self.slots, self.blocks.tasks)

    def _set_scratch(self) -> None:
        """Rooms that a task has for itself; the first holds as many panels of M as a tile takes at once."""
        position, room = _row_bytes(self.dim), self.blocks.room
        row, gradients = 4 * _up(self.dim, LANES) + LINE, max(map(_row_bytes, self.widths)) * room
        self.set(k.POSITION_ROW, position)
        self.set(k.GRADIENTS_BYTES, gradients)
        end = TILES.most * LINE * max(self.rows, self.widths[0])
        for slot, size in (
            (k.AT_POSITIONS, position * room),
            (k.AT_QUERY, row),
            (k.AT_OUT, row),
            (k.AT_OF_QUERY, LINE * self.rows),
            (k.AT_GRADIENTS, 2 * gradients),
        ):
            self.set(slot, end)
            end += _up(size, LINE)
        self.set(k.SCRATCH_BYTES, end)
        self.set(k.SCRATCH, torch.empty(self.blocks.tasks, end // 4))


class _Gradients:
    """Where the backward kernel writes: of weights, one sum a task."""

    def __init__(self, arguments: _Arguments, grad: Tensor) -> None:
        a, self.arguments = arguments, arguments
        first, spans, tasks = a.widths[0], len(a.blocks.spans), a.blocks.tasks
        shapes = [(a.rows, first), (a.rows, first), (a.widths[-1],)]
        for before, width in zip(a.widths, a.widths[1:], strict=False):
            shapes += [(width + SLACK, before), (width,)]
        sizes = [math.prod(shape) for shape in shapes]
        self.sums = grad.new_zeros(tasks, sum(sizes))
        self.of_sequence = grad.new_empty(a.tensors[1].shape)
        self.of_query = grad.new_empty(spans, a.dim)
        self.of_per_row = grad.new_empty(spans, first)
        self.shapes, self.sizes = shapes, sizes
        a.set(k.GRAD_OUT, grad)
        a.set(k.GRAD_SCORES, grad.new_empty(len(self.of_sequence)))
        a.set(k.GRAD_SEQUENCE, self.of_sequence)
        a.set(k.GRAD_QUERY, self.of_query)
        a.set(k.GRAD_PER_ROW, self.of_per_row)
        a.set(k.SUMS_BYTES, 4 * sum(sizes))
        starts = [self.sums.data_ptr() + 4 * sum(sizes[:i]) for i in range(len(sizes))]
        a.slots[[k.GRAD_A, k.GRAD_C, k.GRAD_SCORE]] = starts[:3]
        a.table[1:, k.GRAD_WEIGHT], a.table[1:, k.GRAD_BIAS] = starts[3::2], starts[4::2]

    def collect(self) -> tuple[Tensor, ...]:
        """Gradients of the tensors, in their order."""
        a = self.arguments
        parts = torch.split(self.sums.sum(0), self.sizes)
        of_a, of_c, of_score, *weights = (p.view(s) for p, s in zip(parts, self.shapes, strict=True))
        hidden = a.outs[0]
        cut = [
            (w[: t.shape[0], : t.shape[1]] if t.dim() == 2 else w[: t.shape[0]])
            for w, t in zip(weights, a.tensors[6:], strict=True)
        ]
        return (
            self._by_row(self.of_query),
            self.of_sequence,
            self._by_row(self.of_per_row)[:, :hidden],
            of_a[: a.dim, :hidden].t(),
            of_c[: a.dim, :hidden].t(),
            of_score[: a.outs[-1]],
            *cut,
        )

    def _by_row(self, of_spans: Tensor) -> Tensor:
        """Gradients of rows, from those of their spans."""
        pieces = self.arguments.blocks.pieces
        if (pieces == 1).all():
            return of_spans
        return segment_sum(of_spans, Segments.from_lengths(torch.from_numpy(pieces), len(of_spans)))
