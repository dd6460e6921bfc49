"""The products of linear layers with ReLU by kernels of our own: how `recgrad.nn.layer_kernels` is called.

Matrices that are made here have room for vectors and tiles that run over their end, and rows an odd number
of cache lines apart, so that a column spreads over the whole cache. What calls a kernel takes `run`: `launch`
or, for later, `Launches.add`; what it returns is written only when the kernel has run.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from recgrad.kernels.compile import Wanted, compiled
from recgrad.kernels.parallel import Launch, launch, thread_count
from recgrad.kernels.products import NARROW, TILES, WIDE
from recgrad.kernels.simd import LANES, LINE
from recgrad.nn.layer_kernels import (
    GATED,
    PLAIN,
    RELU,
    ROWS_OF_TASK,
    STEPS,
    VECTORS_OF_LOT,
    lot_tasks,
    pack_tasks,
    row_tasks,
    weight_tasks,
)
from recgrad.nn.relu_kernels import gate_tasks

LOTS = 4  # of rows in the sums of weights' gradients, at most
LOT_ROWS = 1536  # of a lot, at least
PART_BYTES = 1 << 20  # of the sums of a task, which should stay in a cache of the core
# Units that neither a tile nor a vector runs over.
_EVEN = math.lcm(*WIDE.values(), *NARROW.values(), LANES)


def kernels() -> list[Wanted]:
    """What a step needs compiled."""
    return [Wanted(task) for task in (row_tasks, weight_tasks, lot_tasks, pack_tasks, gate_tasks)]


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def new_matrix(rows: int, count: int, width: int, *, odd: bool = True) -> Tensor:
    """[rows, count · width], to be written, with room behind each row and the last one.

    Rows are an odd number of cache lines apart, or with `odd=False` as few as will do.
    """
    lines = -(-((count - 1) * width + _up(width, LANES)) // LANES)
    pitch = LANES * (lines | 1 if odd else lines)
    return torch.empty(rows + TILES.slack + 1, pitch)[:rows, : count * width]


def has_room(x: Tensor) -> bool:
    """Whether kernels may read x where it is: what runs over its end stays in its memory."""
    pitch = x.stride(0)
    if x.stride(1) != 1 or pitch < x.shape[1]:
        return False
    behind = x.untyped_storage().nbytes() // 4 - x.storage_offset() - pitch * x.shape[0]
    return behind >= TILES.slack * pitch + LANES


def with_room(x: Tensor) -> Tensor:
    """x, or a copy with room."""
    return x if has_room(x) else new_matrix(x.shape[0], 1, x.shape[1]).copy_(x)


class Panels(NamedTuple):
    """Packed weights: of several networks, [steps, width] each."""

    values: Tensor
    networks: int
    steps: int
    width: int


def pack(weight: Tensor, *, transposed: bool, run: Launch = launch) -> Panels:
    """Panels of weight [count, units, width] for products with its transpose (forward) or with itself."""
    weight = weight if weight.stride(2) == 1 else weight.contiguous()
    count, units, width = weight.shape
    next_, row, _ = (4 * stride for stride in weight.stride())
    steps, columns, step, column = (width, units, 4, row) if transposed else (units, width, row, 4)
    panels = -(-columns // LANES)
    values = torch.empty(count, panels, steps, LANES)
    places = (weight, step, column, next_, values)
    # To wake a thread for fewer takes longer than to pack them.
    tasks = count * panels if weight.numel() >= 1 << 17 else 1
    run(compiled(pack_tasks), panels, steps, columns, count, *places, tasks=tasks)
    return Panels(values, count, steps, columns)


def forward(x: Tensor, panels: Panels, bias: Tensor | None, out: Tensor, run: Launch = launch) -> None:
    """out ← relu(x·W + b) of each network."""
    _rows(x, panels, padded_bias(bias, panels.networks, panels.width), out, 0, RELU, run)


def padded_bias(bias: Tensor | None, networks: int, width: int) -> Tensor:
    """[networks, width and 0 up to whole vectors]; 0 for no bias."""
    padded = torch.zeros(networks, _up(width, LANES))
    if bias is not None:
        padded[:, :width] = bias.reshape(networks, width)
    return padded


def backward(g: Tensor, panels: Panels, out: Tensor, gates: Tensor | None, run: Launch = launch) -> None:
    """out ← g·W of each network, where gates, which lie as out does, are above 0."""
    nothing = torch.zeros(1, _up(panels.width, LANES)).expand(panels.networks, -1)
    if gates is None:
        _rows(g, panels, nothing, out, 0, PLAIN, run)
    else:
        assert gates.stride() == out.stride()
        _rows(g, panels, nothing, out, gates, GATED, run)


def _rows(
    x: Tensor, panels: Panels, bias: Tensor, out: Tensor, gates: Tensor | int, mode: int, run: Launch
) -> None:
    rows, vectors = x.shape[0], -(-panels.width // LANES)
    tasks = -(-rows // ROWS_OF_TASK)
    run(
        compiled(row_tasks),
        *(tasks, rows, panels.networks, panels.steps, vectors, x, 4 * x.stride(0), 4 * panels.steps),
        *(panels.values, LINE * panels.steps * vectors, bias, 4 * bias.stride(0)),
        *(out, 4 * out.stride(0), 4 * panels.width, gates, mode),
        tasks=tasks,
    )


def weight_gradients(
    g: Tensor, x: Tensor, count: int, *, with_bias: bool, run: Launch = launch
) -> tuple[Tensor, Tensor | None]:
    """Σ_r g[r]·x[r]ᵀ as [count, units, width], and Σ_r g[r] as [count, units]."""
    rows, units, width = x.shape[0], g.shape[1] // count, x.shape[1] // count
    vectors, lot = -(-width // LANES), _lot(rows)
    lots = max(-(-rows // lot), 1)
    shape = (count, units + TILES.slack, LANES * vectors)
    size, sums = math.prod(shape), count * _up(units, LANES) if with_bias else 0
    memory = (torch.empty if rows else torch.zeros)(lots, size + sums)  # without rows, no kernel writes it
    memory[:, size:] = 0
    down, across = _parts(units, vectors, lots * count, thread_count())
    tasks = lots * count * -(-units // down) * -(-vectors // across)
    address = memory.data_ptr()
    run(
        compiled(weight_tasks),
        *(tasks, rows, units, down, vectors, across),
        *(g, 4 * g.stride(0), 4 * units, x, 4 * x.stride(0), 4 * width),
        *(memory, 4 * LANES * vectors, 4 * shape[1] * shape[2]),
        *(address + 4 * size if with_bias else 0, 4 * _up(units, LANES), lot, 4 * (size + sums)),
        tasks=tasks,
    )
    if lots > 1:
        vectors = (size + sums) // LANES
        tasks = -(-vectors // VECTORS_OF_LOT)
        run(compiled(lot_tasks), tasks, vectors, memory, 4 * (size + sums), lots, tasks=tasks)
    bias = memory[0, size:].view(count, -1)[:, :units] if with_bias else None
    return memory[0, :size].view(shape)[:, :units, :width], bias


def _lot(rows: int) -> int:
    """Rows of a lot: a matter of the rows alone, since sums depend on it; at most LOTS of them."""
    return max(LOT_ROWS, _up(-(-rows // LOTS), STEPS))


@lru_cache(maxsize=256)
def _parts(units: int, vectors: int, count: int, threads: int) -> tuple[int, int]:
    """Units and vectors of a task of `count` networks or lots; no result depends on it.

    Threads end a part of a task apart, the more where another program takes a core from one of them for a
    while; but parts across make g be read again, parts down x, and sums that a cache does not hold are slow.
    The shares were fitted to measurements with two threads. No part may run over into the next.
    """
    best, found = math.inf, (units, vectors)
    if threads == 1 and LINE * units * vectors <= PART_BYTES:
        return found
    for down, across in product(range(1, 4 * threads + 1), repeat=2):
        # Two for each thread at least: where it is held up, another takes over.
        if not 2 * threads <= count * down * across or down * across > 4 * threads:
            continue
        part = (units if down == 1 else _up(-(-units // down), _EVEN)), -(-vectors // across)
        size, turns = part[0] * part[1], -(-count * down * across // threads)
        # Between threads that are all busy to the end, and turns that all take as long as the largest part.
        each = (count * units * vectors / threads + turns * size) / 2
        slow = math.sqrt(max(LINE * size / PART_BYTES, 1))
        cost = (each + size / 4) * (1 + 0.1 * (down + across)) * slow
        if cost < best:
            best, found = cost, part
    return found
