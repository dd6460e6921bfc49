"""Self-attention over the positions of rows of different lengths, by fused kernels or torch's operations.

    s_ij = α·q_i·k_j + p[N − 1 + j − i] + w[bucket(t_i − t_j)]           of a row's positions, per head
    "silu":     o_i = Σ_j M_ij · silu(s_ij) / N · v_j
    "softmax":  o_i = Σ_j softmax_j(s_ij over M_ij) · v_j

The biases p (of relative positions) and w (of differences of times) are optional. M is one of the
masks of `Mask`. The kernels compute nothing for padding and keep no matrix of length × length for
the backward pass. They are of float32 on a CPU; elsewhere, under autocast and under compile
`padded_attention` computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from recgrad.kernels.compile import compiled_with
from recgrad.kernels.parallel import launch_block, thread_count
from recgrad.kernels.simd import LANES, LINE
from recgrad.kernels.tiles import TILE
from recgrad.nn.attention import blocks as k
from recgrad.nn.attention.backward_kernels import backward_item
from recgrad.nn.attention.forward_kernels import forward_item
from recgrad.nn.attention.mask import Mask
from recgrad.nn.attention.padded import padded_attention
from recgrad.nn.attention.setting import Biases, Setting
from recgrad.nn.jagged import Segments

MAX_TASKS = 64
_ROW_COST = 16  # of a row and head beside its pairs of positions, in rows of a tile


def jagged_attention(
    q: Tensor,
    key: Tensor,
    v: Tensor,
    segments: Segments,
    setting: Setting,
    *,
    targets: Tensor | None = None,
    biases: Biases | None = None,
) -> Tensor:
    """[positions, heads · width of v]: attention of each position to those of its row that it may see.

    Args:
        q: [positions, heads · d].
        key: k, [positions, heads · d].
        v: [positions, heads · dv].
        segments: which row each position belongs to.
        setting: what is computed.
        targets: int64 [rows]: how many of a row's last positions are candidates, for the mask; 0 if None.
        biases: added to scores.
    """
    biases = biases or Biases()
    if not torch.compiler.is_compiling():
        check_attention(q, key, v, segments, setting, targets, biases)
    seed = 0
    if setting.dropout > 0:
        seed = int(torch.randint(0, 2**31, ()).item())
    if not torch.compiler.is_compiling() and q.shape[0] == 0:
        # Every weight gets a gradient, for processes wait for each other's.
        used = [x for x in (q, key, v, biases.positions, biases.times) if x is not None]
        return v.new_zeros(0, v.shape[1]) + 0 * torch.stack([x.sum() for x in used]).sum()
    if not uses_kernels(q, key, v):
        return padded_attention(q, key, v, segments, setting, targets=targets, biases=biases, seed=seed)
    plan = plan_attention(segments, setting, targets, seed)
    tensors = (q, key, v, biases.positions, biases.times)
    return _Attention.apply(plan, biases, *tensors)  # type: ignore[no-any-return, no-untyped-call]


def uses_kernels(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors, here and now."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in tensors)


def check_attention(
    q: Tensor,
    key: Tensor,
    v: Tensor,
    segments: Segments,
    setting: Setting,
    targets: Tensor | None,
    biases: Biases,
) -> None:
    """Refuse what does not fit together, as kernels read addresses that nothing checks."""
    rows, positions = segments.lengths.shape[0], segments.rows.shape[0]
    if q.shape != key.shape or q.shape[1] % setting.heads or v.shape[1] % setting.heads:
        raise ValueError(
            f"q and k must be alike, and divide into {setting.heads} heads as v must; got {tuple(q.shape)}, "
            f"{tuple(key.shape)} and {tuple(v.shape)}"
        )
    if not q.shape[0] == v.shape[0] == positions:
        raise ValueError(f"segments have {positions} positions, q {q.shape[0]} and v {v.shape[0]}")
    if targets is not None and targets.shape[0] != rows:
        raise ValueError(f"targets must have {rows} rows, got {targets.shape[0]}")
    if biases.positions is not None and rows:
        longest, most = int(segments.lengths.max()), (biases.positions.shape[0] + 1) // 2
        if longest > most:
            raise ValueError(f"position biases are for rows of {most} positions at most, got {longest}")


@dataclass(frozen=True)
class Plan:
    """How the work is cut up, by lengths alone."""

    setting: Setting
    offsets: npt.NDArray[np.int64]
    cuts: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64] | None
    longest: int
    seed: int

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return len(self.cuts) - 1


def plan_attention(segments: Segments, setting: Setting, targets: Tensor | None, seed: int = 0) -> Plan:
    """How the work is cut up; `seed` is that of the dropout."""
    lengths = segments.lengths.numpy()
    costs = np.repeat(lengths * (lengths + _ROW_COST), setting.heads).cumsum()
    tasks = min(MAX_TASKS, len(costs))
    cuts = np.searchsorted(costs, np.arange(tasks + 1) * (costs[-1] / tasks))
    cuts[0], cuts[-1] = 0, len(costs)
    return Plan(
        setting,
        np.r_[0, lengths.cumsum()].astype(np.int64),
        np.unique(cuts).astype(np.int64),
        None if targets is None else np.ascontiguousarray(targets.numpy(), np.int64),
        int(lengths.max()),
        seed,
    )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        biases: Biases,
        q: Tensor,
        key: Tensor,
        v: Tensor,
        positions: Tensor | None,
        times: Tensor | None,
    ) -> Tensor:
        call = Call(plan, biases, q, key, v, positions, times)
        out = v.new_empty(v.shape[0], plan.setting.heads * call.dv)
        stats = q.new_empty(2, q.shape[0], plan.setting.heads) if plan.setting.kind == "softmax" else None
        call.set_out(out, stats)
        call.scratch()
        call.launch(forward_item)
        # What biases hold beside their weights needs no gradient: times, buckets.
        ctx.plan, ctx.biases = plan, biases
        ctx.save_for_backward(q, key, v, positions, times, out, stats)
        return call.cut_values(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, key, v, positions, times, out, stats = ctx.saved_tensors
        call = Call(ctx.plan, ctx.biases, q, key, v, positions, times)
        call.set_out(out, stats)
        gradients = call.set_gradients(grad)
        call.scratch(backward=True)
        call.launch(backward_item)
        return (None, None, *gradients.collect())


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _row_bytes(width: int) -> int:
    """From one row of scratch to the next: an odd number of lines, so that columns spread over the cache."""
    return LINE * (_up(width, LANES) // LANES | 1)


def _widen(x: Tensor, heads: int, width: int, padded: int) -> Tensor:
    """Heads of `padded` columns, zeros behind those of x; contiguous along the last axis."""
    if padded == width:
        return x if x.stride(1) == 1 else x.contiguous()
    return F.pad(x.reshape(-1, heads, width), (0, padded - width)).reshape(-1, heads * padded)


class Call:
    """What the kernels are called with; holds on to all that it has addresses of."""

    def __init__(
        self,
        plan: Plan,
        biases: Biases,
        q: Tensor,
        key: Tensor,
        v: Tensor,
        positions: Tensor | None,
        times: Tensor | None,
    ) -> None:
        setting, heads = plan.setting, plan.setting.heads
        self.plan, self.held, self.slots = plan, list[Any](), np.zeros(k.ARGUMENTS, np.int64)
        self.width, self.value_width = q.shape[1] // heads, v.shape[1] // heads
        self.dq, self.dv = _up(self.width, LANES), _up(self.value_width, LANES)
        self.shapes = (q.shape, v.shape)
        self.positions, self.times = positions, times
        self.set(k.TASKS, plan.tasks)
        self.set(k.CUTS, plan.cuts)
        self.set(k.OFFSETS, plan.offsets)
        self.set(k.HEADS, heads)
        self.set(k.DQ, self.dq)
        self.set(k.DV, self.dv)
        self.set_rows(k.Q, _widen(q, heads, self.width, self.dq))
        self.set_rows(k.K, _widen(key, heads, self.width, self.dq))
        self.set_rows(k.V, _widen(v, heads, self.value_width, self.dv))
        self.set(k.SOFTMAX, int(setting.kind == "softmax"))
        kept = 1 / (1 - setting.dropout)
        self.set(k.NUMBERS, np.array([setting.alpha, 1 / setting.divisor, kept], np.float32))
        self.set(k.DROP_BELOW, setting.drop_below)
        self.set(k.DROP_KEY, plan.seed)
        self._set_mask(setting.mask)
        if positions is not None:
            self.set(k.POSITION, F.pad(positions, (0, LANES)))
            self.set(k.ORIGIN, (positions.shape[0] - 1) // 2)
        if times is not None:
            assert biases.key_times is not None
            assert biases.query_times is not None
            assert biases.buckets is not None
            bounds, guesses = biases.buckets.arrays
            self.set(k.TIME, times.contiguous())
            self.set(k.TIMES, biases.key_times.contiguous())
            self.set(k.QUERY_TIMES, biases.query_times.contiguous())
            self.set(k.BOUNDS, bounds)
            self.set(k.GUESSES, guesses)

    def _set_mask(self, mask: Mask) -> None:
        self.set(k.MASK, mask.code)
        self.set(k.CONTEXTUAL, mask.contextual)
        self.set(k.WINDOW, mask.window)
        self.set(k.NEAR, mask.near)
        self.set(k.GLOBAL, mask.first)
        if self.plan.targets is not None:
            self.set(k.TARGETS, self.plan.targets)

    def set(self, slot: int, value: Any) -> None:
        """Give a number, or the address of an array or tensor, which is held."""
        if not isinstance(value, int):
            self.held.append(value)
            value = value.data_ptr() if isinstance(value, Tensor) else value.ctypes.data
        self.slots[slot] = value

    def set_rows(self, slot: int, value: Tensor) -> None:
        """Give a tensor of a row per position, and the bytes from one to the next."""
        self.set(slot, value)
        self.slots[slot + 1] = value.stride(0) * 4

    def set_out(self, out: Tensor, stats: Tensor | None) -> None:
        """Where outputs go, and what softmax keeps of each query."""
        self.set_rows(k.OUT, out)
        if stats is not None:
            self.set(k.TOPS, stats[0])
            self.set(k.SHARES, stats[1])

    def cut_values(self, x: Tensor) -> Tensor:
        """Without columns that heads were widened by."""
        return _narrow(x, self.plan.setting.heads, self.value_width, self.dv)

    def scratch(self, backward: bool = False) -> None:
        """Rooms that a thread has for itself."""
        keys, query, value = _up(self.plan.longest, LANES), _row_bytes(self.dq), _row_bytes(self.dv)
        scores, block = _row_bytes(k.STRETCH), k.BLOCK + TILE
        self.set(k.QUERY_ROW, query)
        self.set(k.VALUE_ROW, value)
        self.set(k.SCORE_ROW, scores)
        rooms = [
            (k.AT_KEYS, 4 * keys * self.dq),
            (k.AT_QUERY, block * query),
            (k.AT_SCORES, block * scores),
            (k.AT_OUT, block * max(query, value)),
            (k.AT_STATS, 8 * block),
            (k.AT_RANGES, 8 * k.RANGE_FIELDS * block),
            (k.AT_BIAS, 8 * (k.STRETCH + LANES)),
        ]
        if backward:
            rooms += [
                (k.AT_VALUE_PANELS, 4 * keys * self.dv),
                (k.AT_KEY_ROWS, keys * query),
                (k.AT_OF_SCORES, block * scores),
                (k.AT_GRAD, block * value),
                (k.AT_OF_KEYS, (keys + TILE) * query),
                (k.AT_OF_VALUES, (keys + TILE) * value),
            ]
        else:
            rooms.append((k.AT_VALUES, keys * value))
        end = 0
        for slot, size in rooms:
            self.set(slot, end)
            end += _up(size, LINE)
        self.set(k.SCRATCH_BYTES, end)
        self.set(k.SCRATCH, torch.empty(min(thread_count(), self.plan.tasks), end // 4))

    def set_gradients(self, grad: Tensor, into: tuple[Tensor, Tensor, Tensor] | None = None) -> Gradients:
        """Where gradients go; those of q, k, v to `into` if heads fill whole vectors, else to new tensors."""
        return Gradients(self, grad, into)

    def launch(self, body: Any) -> None:
        """Run a function of the kernels over all heads of all rows."""
        launch_block(compiled_with(k.over_items, body), self.slots, self.plan.tasks)


def _narrow(x: Tensor, heads: int, width: int, padded: int) -> Tensor:
    if width == padded:
        return x
    return x.view(-1, heads, padded)[:, :, :width].reshape(-1, heads * width)


class Gradients:
    """Where the backward kernel writes: of biases, one sum a task."""

    def __init__(self, call: Call, grad: Tensor, into: tuple[Tensor, Tensor, Tensor] | None) -> None:
        heads, (rows, _) = call.plan.setting.heads, call.shapes[0]
        self.call = call
        if into is None:
            q, key = (grad.new_empty(rows, heads * call.dq) for _ in range(2))
            into = q, key, grad.new_empty(rows, heads * call.dv)
        self.of_q, self.of_k, self.of_v = into
        call.set_rows(k.GRAD_OUT, _widen(grad, heads, call.value_width, call.dv))
        for slot, tensor in ((k.GRAD_Q, self.of_q), (k.GRAD_K, self.of_k), (k.GRAD_V, self.of_v)):
            call.set_rows(slot, tensor)
        self.sizes = [0 if bias is None else bias.shape[0] for bias in (call.positions, call.times)]
        padded = [size + LANES if size else 0 for size in self.sizes]
        self.sums = grad.new_zeros(call.plan.tasks, sum(padded))
        self.starts = (0, padded[0])
        call.set(k.SUMS_BYTES, 4 * sum(padded))
        call.set(k.GRAD_POSITION, self.sums)
        call.slots[k.GRAD_TIME] = self.sums.data_ptr() + 4 * padded[0]

    def collect(self) -> tuple[Tensor | None, ...]:
        """Gradients of q, k, v and the biases."""
        call, heads, whole = self.call, self.call.plan.setting.heads, self.sums.sum(0)
        of_biases = [
            whole[start : start + size] if size else None
            for start, size in zip(self.starts, self.sizes, strict=True)
        ]
        return (
            _narrow(self.of_q, heads, call.width, call.dq),
            _narrow(self.of_k, heads, call.width, call.dq),
            _narrow(self.of_v, heads, call.value_width, call.dv),
            *of_biases,
        )
