"""A first layer over embeddings of ids that repeat: how `recgrad.nn.distinct_kernels` is called.

`find_distinct` tells which fields of an input take part, if any. A `DistinctLayer` is one forward pass with
what its backward pass needs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.kernels.compile import compiled
from recgrad.kernels.numbering import number_ids
from recgrad.kernels.parallel import Launches
from recgrad.kernels.products import TILES
from recgrad.kernels.simd import LANES, LINE
from recgrad.nn import distinct_kernels as kernels
from recgrad.nn import layer_products as own
from recgrad.nn.field_ids import FieldIds, field_ids

Array = npt.NDArray[Any]
Runs = tuple[tuple[int, int], ...]
ROWS_OF_ID = 5  # rows that each id of a field of 16 columns must have on the average
MOST_IN_ALL = 1  # distinct ids of all fields, for each row: what is made of them is no larger than the output


class Distinct(NamedTuple):
    """The fields of a matrix whose ids repeat.

    Attributes:
        lines: int64 [fields, FIELD_COLUMNS].
        blocks: int64 [3, blocks]: of ROWS_OF_TASK distinct ids of a field each the field, its row in E, P
            and S, and how many they are.
        size: rows of all distinct ids, those for tiles that run over included.
        kept: what `lines` has the addresses of.
    """

    lines: Array
    blocks: Array
    size: int
    kept: tuple[Array, ...]

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First column and width of each field."""
        return tuple(map(tuple, self.lines[:, : kernels.WIDTH + 1].tolist()))


def find_distinct(x: Tensor) -> Distinct | None:
    """The fields of x whose products pay by distinct id; found once for all layers that read x."""
    fields = field_ids(x)
    if fields is None:
        return None
    if not fields.found:
        fields.found.append(_find(fields, x.shape[0]))
    found: Distinct | None = fields.found[0]
    return found


def most_ids(rows: int, widths: Array) -> Array:
    """How many distinct ids fields of these widths may have for their products to be looked up.

    A row takes as long to add what is looked up of a field of any width, a product the longer the wider the
    field is. So wider fields may have more ids; but what is looked up of them all must stay near.
    """
    wide, narrow = np.minimum(widths, 2 * LANES), np.minimum(widths, LANES)
    return rows * wide * narrow // (ROWS_OF_ID * LANES * LANES)


def _find(fields: FieldIds, rows: int) -> Distinct | None:
    found = number_ids(rows, fields.ids, fields.lengths, most_ids(rows, fields.widths), ordered=True)
    counts, codes, firsts, order = found.counts, found.codes, found.firsts, found.order
    assert order is not None
    few = np.flatnonzero(counts > 0)
    few = few[np.argsort(counts[few], kind="stable")]
    few = np.sort(few[np.cumsum(counts[few]) <= MOST_IN_ALL * rows])
    if not len(few):
        return None
    lines = np.empty((len(few), kernels.FIELD_COLUMNS), np.int64)
    lines[:, kernels.COLUMN], lines[:, kernels.WIDTH] = fields.columns[few], fields.widths[few]
    lines[:, kernels.CODES_OF] = codes.ctypes.data + codes.strides[0] * few
    lines[:, kernels.ORDER_OF] = order.ctypes.data + order.strides[0] * few
    lines[:, kernels.FIRSTS_OF] = firsts.ctypes.data + firsts.strides[0] * few
    counts = lines[:, kernels.COUNT] = counts[few]
    ends = np.cumsum(counts + TILES.slack)
    lines[:, kernels.START] = ends - counts - TILES.slack
    return Distinct(lines, _blocks(lines), int(ends[-1]), (codes, order, firsts))


def _blocks(lines: Array) -> Array:
    """The distinct ids of all fields, ROWS_OF_TASK at a time."""
    counts = lines[:, kernels.COUNT]
    parts = -(-counts // kernels.ROWS_OF_TASK)
    of_field = np.repeat(np.arange(len(lines)), parts)
    first = kernels.ROWS_OF_TASK * (np.arange(len(of_field)) - np.repeat(np.cumsum(parts) - parts, parts))
    size = np.minimum(kernels.ROWS_OF_TASK, counts[of_field] - first)
    return np.stack([of_field, first + lines[of_field, kernels.START], size])


class Split(NamedTuple):
    """How the columns of a first layer are divided.

    Attributes:
        rest: runs of other columns, (first, one past the last).
        runs: int64 [runs, 2], the same as (first, width).
        width: their number.
        vectors: of the widest field.
        fields: the same for the columns of fields, in their order.
        chosen: for each field 16 · vectors columns of the weight, one past its last where there are fewer;
            None where all fields have as many: they are those of `fields`.
        place: where each column of a field lies among those.
        columns: the columns themselves.
    """

    rest: Runs
    runs: Array
    width: int
    vectors: int
    fields: Runs
    chosen: Tensor | None
    place: Tensor
    columns: Tensor


@lru_cache(maxsize=256)
def split_columns(fields: tuple[tuple[int, int], ...], width: int) -> Split:
    """Divide the columns of a layer into those of `fields` and the rest."""
    taken = np.zeros(width + 2, bool)
    vectors = max(-(-own_width // LANES) for _, own_width in fields)
    chosen = np.full((len(fields), LANES * vectors), width)
    for i, (column, own_width) in enumerate(fields):
        taken[column + 1 : column + 1 + own_width] = True
        chosen[i, :own_width] = np.arange(column, column + own_width)
    taken[[0, -1]] = True
    edges = np.flatnonzero(np.diff(taken.astype(np.int8)))
    rest = tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    flat = chosen.reshape(-1)
    place = np.flatnonzero(flat < width)
    return Split(
        rest,
        np.array([(first, last - first) for first, last in rest], np.int64).reshape(-1, 2),
        sum(last - first for first, last in rest),
        vectors,
        tuple((column, column + own_width) for column, own_width in fields),
        torch.from_numpy(flat) if len(place) < len(flat) else None,
        torch.from_numpy(place),
        torch.from_numpy(flat[place]),
    )


class DistinctLayer:
    """relu(x·Wᵀ + b) of a batch, and its gradients.

    Args:
        x: [rows, width].
        distinct: of x.
        weight: [units, width].
        bias: [units] or none.
        out: [rows, units], with room, to be written.
        later: gets the kernels that do it.
    """

    def __init__(
        self, x: Tensor, distinct: Distinct, weight: Tensor, bias: Tensor | None, out: Tensor, later: Launches
    ) -> None:
        self.shape = x.shape
        self.distinct = distinct
        self.split = split = split_columns(distinct.spans, x.shape[1])
        self.of_fields, self.of_rest = _chosen(weight, split)[None], _columns(weight, split.rest)[None]
        self.rest = own.new_matrix(x.shape[0], 1, max(split.width, 1))
        if split.width:
            _move_rest(x, self.rest, split, later, back=False)
        else:
            self.rest.zero_()
        self.vectors = torch.zeros(distinct.size, LANES * split.vectors)
        self._move(x, self.vectors, later, back=False)
        products = self._products(weight.shape[0], later)
        panels = own.pack(self.of_rest, transposed=True, run=later.add)
        start = own.padded_bias(bias, 1, weight.shape[0])
        tasks = -(-x.shape[0] // kernels.ROWS_OF_TASK)
        later.add(
            compiled(kernels.row_tasks),
            *(tasks, x.shape[0], len(distinct.lines), distinct.lines, products),
            *(4 * products.stride(0), distinct.size, start.shape[1] // LANES),
            *(self.rest, 4 * self.rest.stride(0), panels.steps, panels.values),
            *(start, out, 4 * out.stride(0)),
            tasks=tasks,
        )

    def backward(
        self, g: Tensor, weight: Tensor, later: Launches, *, of_weight: bool, of_bias: bool, of_x: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients of weight, bias and x, where they are asked for; g is that of what ReLU takes.

        What `later` holds runs.
        """
        distinct, units = self.distinct, weight.shape[0]
        sums, vectors = own.new_matrix(distinct.size, 1, units), -(-units // LANES)
        tasks = -(-vectors // kernels.ACROSS)
        later.add(
            compiled(kernels.sum_tasks),
            *(tasks, g.shape[0], len(distinct.lines), distinct.lines, g, 4 * g.stride(0)),
            *(sums, 4 * sums.stride(0), distinct.size, vectors),
            tasks=tasks,
        )
        gradient = bias = found = rest = None
        if of_weight or of_bias:
            rest, bias = own.weight_gradients(g, self.rest, 1, with_bias=of_bias, run=later.add)
        if of_weight:
            found = self._field_gradients(sums, units, later)
        of_rows = self._x_gradient(g, sums, units, later) if of_x else None
        later.run()
        if found is not None and rest is not None:
            gradient = torch.empty(weight.shape)
            if self.split.chosen is None:
                _put_columns(gradient, found[:units], self.split.fields)
            else:
                picked = found[:units].index_select(1, self.split.place)
                gradient.index_copy_(1, self.split.columns, picked)
            _put_columns(gradient, rest[0], self.split.rest)
        return gradient, bias, of_rows

    def _products(self, units: int, later: Launches) -> Tensor:
        """P: what the layer makes of each distinct id."""
        (fields, rows, sizes), lines = self.distinct.blocks, self.distinct.lines
        panels = own.pack(self.of_fields, transposed=True, run=later.add)
        products = own.new_matrix(self.distinct.size, 1, units)
        blocks = _new_blocks(len(rows))
        blocks[:, kernels.BLOCK_A] = self.vectors.data_ptr() + 4 * self.vectors.stride(0) * rows
        blocks[:, kernels.BLOCK_B] = panels.values.data_ptr() + LINE * self.vectors.shape[1] * fields
        blocks[:, kernels.BLOCK_OUT] = products.data_ptr() + 4 * products.stride(0) * rows
        blocks[:, kernels.BLOCK_STEPS] = lines[fields, kernels.WIDTH]
        blocks[:, kernels.BLOCK_ROWS] = sizes
        blocks[:, kernels.BLOCK_VECTORS] = -(-units // LANES)
        strides = (4 * self.vectors.stride(0), 4, LINE * panels.steps, LINE, 4 * products.stride(0))
        _multiply(blocks, strides, later, self.vectors, panels.values, products)
        return products

    def _field_gradients(self, sums: Tensor, units: int, later: Launches) -> Tensor:
        """The gradient of the weight's columns of all fields, [units, fields · 16 · vectors]."""
        lines = self.distinct.lines
        found = torch.empty(units + TILES.slack, len(lines) * self.vectors.shape[1])
        first = np.tile(np.arange(0, units, kernels.ROWS_OF_TASK), len(lines))
        field = np.repeat(np.arange(len(lines)), len(first) // len(lines))
        start, width = lines[field, kernels.START], 4 * self.vectors.shape[1]
        blocks = _new_blocks(len(first))
        blocks[:, kernels.BLOCK_A] = sums.data_ptr() + 4 * sums.stride(0) * start + 4 * first
        blocks[:, kernels.BLOCK_B] = self.vectors.data_ptr() + width * start
        blocks[:, kernels.BLOCK_OUT] = found.data_ptr() + 4 * found.stride(0) * first + width * field
        blocks[:, kernels.BLOCK_STEPS] = lines[field, kernels.COUNT]
        blocks[:, kernels.BLOCK_ROWS] = np.minimum(kernels.ROWS_OF_TASK, units - first)
        blocks[:, kernels.BLOCK_VECTORS] = self.split.vectors
        strides = (4, 4 * sums.stride(0), LINE, width, 4 * found.stride(0))
        _multiply(blocks, strides, later, sums, self.vectors, found)
        return found

    def _x_gradient(self, g: Tensor, sums: Tensor, units: int, later: Launches) -> Tensor:
        (fields, rows, sizes), split = self.distinct.blocks, self.split
        panels = own.pack(self.of_fields, transposed=False, run=later.add)
        found = torch.empty(self.vectors.shape)
        blocks = _new_blocks(len(rows))
        blocks[:, kernels.BLOCK_A] = sums.data_ptr() + 4 * sums.stride(0) * rows
        blocks[:, kernels.BLOCK_B] = panels.values.data_ptr() + LINE * split.vectors * units * fields
        blocks[:, kernels.BLOCK_OUT] = found.data_ptr() + 4 * found.stride(0) * rows
        blocks[:, kernels.BLOCK_STEPS] = units
        blocks[:, kernels.BLOCK_ROWS] = sizes
        blocks[:, kernels.BLOCK_VECTORS] = split.vectors
        strides = (4 * sums.stride(0), 4, LINE * units, LINE, 4 * found.stride(0))
        _multiply(blocks, strides, later, sums, panels.values, found)
        rest = own.new_matrix(self.shape[0], 1, max(split.width, 1), odd=False)
        if split.width:
            own.backward(g, own.pack(self.of_rest, transposed=False, run=later.add), rest, None, later.add)
        below = torch.empty(self.shape)
        _move_rest(below, rest, split, later, back=True)
        self._move(below, found, later, back=True)
        return below

    def _move(self, x: Tensor, vectors: Tensor, later: Launches, *, back: bool) -> None:
        """vectors ← the columns of fields in the rows of x where their ids first appear, or back."""
        lines = self.distinct.lines
        places = (x, 4 * x.stride(0), vectors, 4 * vectors.stride(0), int(back))
        later.add(compiled(kernels.move_tasks), len(lines), lines, *places, tasks=len(lines))


def _new_blocks(count: int) -> Array:
    return np.empty((count, kernels.BLOCK_COLUMNS), np.int64)


def _multiply(blocks: Array, strides: tuple[int, ...], later: Launches, *owners: Tensor) -> None:
    """A product for each block, of matrices that it has the addresses of."""
    later.add(compiled(kernels.product_tasks), len(blocks), blocks, *strides, tasks=len(blocks))
    later.keep(*owners)


def _chosen(weight: Tensor, split: Split) -> Tensor:
    """[units, fields · 16 · vectors]: the columns of the fields, 0 where a field has fewer."""
    if split.chosen is None:
        return _columns(weight, split.fields)
    return torch.nn.functional.pad(weight, (0, 1)).index_select(1, split.chosen)


def _move_rest(x: Tensor, rest: Tensor, split: Split, later: Launches, *, back: bool) -> None:
    """rest ← the other columns of x; or back, with 0 in the columns of fields."""
    rows, width = x.shape
    tasks = -(-rows // kernels.ROWS_OF_TASK)
    later.add(
        compiled(kernels.rest_tasks),
        *(tasks, rows, split.runs, len(split.runs), x, 4 * x.stride(0), width),
        *(rest, 4 * rest.stride(0), int(back)),
        tasks=tasks,
    )


def _columns(weight: Tensor, runs: Runs) -> Tensor:
    """Some columns side by side; one of 0 where there are none."""
    if not runs:
        return weight.new_zeros(weight.shape[0], 1)
    return torch.cat([weight[:, first:last] for first, last in runs], dim=1)


def _put_columns(to: Tensor, columns: Tensor, runs: Runs) -> None:
    """Put them back."""
    at = 0
    for first, last in runs:
        to[:, first:last] = columns[:, at : at + last - first]
        at += last - first
