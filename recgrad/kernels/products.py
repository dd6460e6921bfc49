"""Matrix products of blocks that lie in the cache, by tiles as large as the registers of the host hold.

A tile is some rows × some vectors of sums that stay in registers. Each step loads its vectors once and
one number a row, which multiplies all of them: the more vectors, the fewer loads for a product. What
becomes of the sums is a function of the caller's, compiled into the tile, so that they go from the
registers to their place:

    @finishing()
    def store_positive(row, column, value, to):
        out, out_row = to
        store(out + row * out_row + LINE * column, keep_positive(value, value))

Columns are counted in vectors of 16. Matrices are given by addresses and by the bytes from one row,
vector or step to the next. A tile that begins near the end may run over it: matrices of rows have
SLACK rows more, which hold nothing of worth and whose sums are the caller's to drop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import llvmlite.ir as ir
import numba
from numba import njit, types
from numba.core.codegen import get_host_cpu_features
from numba.core.imputils import lower_constant
from numba.extending import intrinsic, models, register_model, typeof_impl

from recgrad.kernels.simd import LANES, LINE, Vector, build_call, build_splat

_FLOAT, _I64 = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_SPAN = 3  # rows that one address register reaches: itself, and by once and twice the row's bytes

# Rows of a tile by its number of vectors. 32 registers of 16 floats hold 24 sums, the vectors and a
# factor; 16 of 8 floats (or 32 of 4) hold 12 sums, where a vector takes two of them.
WIDE = {4: 6, 3: 8, 2: 12, 1: 12}
NARROW = {1: 6}


def tile_rows(features: str) -> dict[int, int]:
    """Rows of a tile by its number of vectors, for a processor of LLVM's features."""
    return WIDE if "+avx512f" in features.split(",") else NARROW


def compiled_features() -> str:
    """The features that numba compiles for: the host's, unless its settings say others."""
    asked = numba.config.CPU_FEATURES
    return str(get_host_cpu_features() if asked is None else asked)


class Finish:
    """A function that products give their sums to, as `finishing` makes one.

    A kernel that hands on a function of numba's has its address in it and could not be kept for the next
    run. Of this one nothing but the type is handed on.
    """

    def __init__(self, function: Callable[..., None], before: Callable[..., None] | None) -> None:
        self.py_func = function
        self.type = FinishType(function, before)


class FinishType(types.Opaque):  # type: ignore[misc]
    """Of a `Finish`: a type of its own for each function."""

    def __init__(self, function: Callable[..., None], before: Callable[..., None] | None) -> None:
        self._compiled = [njit(one) for one in (function, before) if one]  # which numba's types do not keep
        self.function, *rest = map(types.Dispatcher, self._compiled)
        self.before = rest[0] if rest else None
        # A part of the names in compiled code, which must be the same in every process.
        super().__init__(f"finish {function.__module__}.{function.__qualname__}")

    @property
    def key(self) -> Any:
        """What tells functions apart that have one name."""
        return self.function


def finishing(before: Callable[..., None] | None = None) -> Callable[[Callable[..., None]], Finish]:
    """Makes a function of (row, column, vector, extra) for `Tiles.product`.

    Before the steps of a tile, `before` is called with (row, column, extra) of each of its vectors: to ask
    for memory that will be needed when they are done.
    """
    return lambda function: Finish(function, before)


@typeof_impl.register(Finish)
def _type_of_finish(value: Finish, _: Any) -> FinishType:
    return value.type


register_model(FinishType)(models.OpaqueModel)


@lower_constant(FinishType)
def _lower_finish(context: Any, *_: Any) -> Any:
    return context.get_dummy_value()


class Tiles(NamedTuple):
    """Products by tiles of some shapes.

    Attributes:
        product: f(finish, extra, a, a_row, a_step, b, b_vector, b_step, steps, n, column, end) calls
            finish(row, column, Σ_k a[row, k] · b[k, column], extra) for n rows and the columns from
            `column` up to `end`; b is the address of the first of them. steps is 1 at least.
        product_from: the same with the address of vectors to which the sums are added, after steps.
        group: how many columns to take at once where that many are left.
        most: no group has more columns.
        slack: rows that a tile may run over the last one, plus one.
    """

    product: Any
    product_from: Any
    group: Any
    most: int
    slack: int


def make_tiles(rows: Mapping[int, int]) -> Tiles:
    """Products by tiles of so many rows for each number of vectors."""
    most = max(rows)

    @njit
    def group(left):  # type: ignore[no-untyped-def]
        if most < 4:
            return min(left, most)
        # Two groups of 3, or of 3 and 2, are faster than one of 4 and a narrow rest.
        return 4 if left >= 7 or left == 4 else min(left, 3)

    products = [_product(rows, group, biased) for biased in (False, True)]
    return Tiles(products[0], products[1], group, most, max(rows.values()))


def _product(rows: Mapping[int, int], group: Any, biased: bool) -> Any:
    """All columns, by groups."""
    if max(rows) == 1:
        one = _column_group(rows[1], 1, biased)

        def columns(finish, a, a_row, a_step, b, b_vector, b_step, steps, start, n, column, end, extra):  # type: ignore[no-untyped-def]
            for p in range(column, end):
                one(finish, a, a_row, a_step, b, b_vector, b_step, steps, start, n, p, extra)
                b += b_vector
                start += LINE

    else:
        one, two, three, four = (_column_group(rows[count], count, biased) for count in (1, 2, 3, 4))

        def columns(finish, a, a_row, a_step, b, b_vector, b_step, steps, start, n, column, end, extra):  # type: ignore[no-untyped-def]
            while column < end:
                count = group(end - column)
                if count == 4:
                    four(finish, a, a_row, a_step, b, b_vector, b_step, steps, start, n, column, extra)
                elif count == 3:
                    three(finish, a, a_row, a_step, b, b_vector, b_step, steps, start, n, column, extra)
                elif count == 2:
                    two(finish, a, a_row, a_step, b, b_vector, b_step, steps, start, n, column, extra)
                else:
                    one(finish, a, a_row, a_step, b, b_vector, b_step, steps, start, n, column, extra)
                b += count * b_vector
                start += count * LINE
                column += count

    run = njit(columns)
    if biased:

        def product_from(finish, extra, a, a_row, a_step, b, b_vector, b_step, steps, start, n, column, end):  # type: ignore[no-untyped-def]
            run(finish, a, a_row, a_step, b, b_vector, b_step, steps, start, n, column, end, extra)

        return njit(product_from)

    def product(finish, extra, a, a_row, a_step, b, b_vector, b_step, steps, n, column, end):  # type: ignore[no-untyped-def]
        run(finish, a, a_row, a_step, b, b_vector, b_step, steps, b, n, column, end, extra)

    return njit(product)


def _column_group(rows: int, vectors: int, biased: bool) -> Any:
    """All rows of some columns; the last ones by a tile of half the rows where that is enough."""
    half = rows // 2
    whole, part = product_tile(rows, vectors, biased), product_tile(half, vectors, biased)

    @njit
    def run(finish, a, a_row, a_step, b, b_vector, b_step, steps, start, n, column, extra):  # type: ignore[no-untyped-def]
        for t in range(0, n, rows):
            at = a + t * a_row
            if n - t > half:
                whole(finish, at, a_row, a_step, b, b_vector, b_step, steps, start, t, column, extra)
            else:
                part(finish, at, a_row, a_step, b, b_vector, b_step, steps, start, t, column, extra)

    return run


def product_tile(rows: int, vectors: int, biased: bool) -> Any:
    """An intrinsic that sums one tile and gives each of its vectors to a function."""

    def tile(context, finish, a, a_row, a_step, b, b_vector, b_step, steps, start, row, column, extra):  # type: ignore[no-untyped-def]
        taken = (types.int64, types.int64, Vector(LANES), extra)
        called = finish.function.get_call_type(context, taken, {})
        asked = finish.before and finish.before.get_call_type(context, (*taken[:2], extra), {})

        def generate(target: Any, builder: Any, _: Any, args: Any) -> Any:
            places = [(r, c) for r in range(rows) for c in range(vectors)]
            if asked:
                begin = target.get_function(finish.before, asked)
                for r, c in places:
                    begin(builder, (builder.add(args[9], _I64(r)), builder.add(args[10], _I64(c)), args[11]))
            sums = _sum_tile(builder, args[1:9], rows, vectors, biased)
            end = target.get_function(finish.function, called)
            for r, c in places:
                at = builder.add(args[9], _I64(r)), builder.add(args[10], _I64(c))
                end(builder, (*at, sums[r][c], args[11]))
            return target.get_dummy_value()

        return types.void(finish, *[types.int64] * 10, extra), generate

    return intrinsic(tile)


def _sum_tile(builder: Any, args: Any, rows: int, vectors: int, biased: bool) -> list[list[Any]]:
    """The loop over the steps, with the sums in registers."""
    a, a_row, a_step, b, b_vector, b_step, steps, start = args
    zero = ir.Constant(_VECTOR, [0.0] * LANES)
    begin = [_load(builder, builder.add(start, _I64(LINE * c))) if biased else zero for c in range(vectors)]
    twice, spans = builder.mul(a_row, _I64(2)), -(-rows // _SPAN)
    starts = [builder.add(a, builder.mul(a_row, _I64(_SPAN * i))) for i in range(spans)]
    offsets = [builder.mul(b_vector, _I64(c)) for c in range(vectors)]
    before, loop = builder.basic_block, builder.append_basic_block("tile.loop")
    after = builder.append_basic_block("tile.end")
    builder.branch(loop)
    builder.position_at_end(loop)
    step, at_b = builder.phi(_I64), builder.phi(_I64)
    ats = [builder.phi(_I64) for _ in starts]
    sums = [[builder.phi(_VECTOR) for _ in range(vectors)] for _ in range(rows)]
    columns = [_load(builder, builder.add(at_b, offset)) for offset in offsets]
    added = []
    for r in range(rows):
        at, place = ats[r // _SPAN], r % _SPAN
        number = at if place == 0 else builder.add(at, a_row if place == 1 else twice)
        factor = builder.load(builder.inttoptr(number, _FLOAT.as_pointer()), align=4)
        by = build_splat(builder, factor, LANES)
        added.append([build_call(builder, "fmuladd", [by, v, s]) for v, s in zip(columns, sums[r])])
    following = builder.add(step, _I64(1))
    moved = [builder.add(at, a_step) for at in ats]
    next_b = builder.add(at_b, b_step)
    builder.cbranch(builder.icmp_signed("<", following, steps), loop, after)
    step.add_incoming(_I64(0), before)
    step.add_incoming(following, loop)
    at_b.add_incoming(b, before)
    at_b.add_incoming(next_b, loop)
    for at, first, then in zip(ats, starts, moved, strict=True):
        at.add_incoming(first, before)
        at.add_incoming(then, loop)
    for of_row, then_row in zip(sums, added, strict=True):
        for of_one, first, then in zip(of_row, begin, then_row, strict=True):
            of_one.add_incoming(first, before)
            of_one.add_incoming(then, loop)
    builder.position_at_end(after)
    return added


def _load(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _VECTOR.as_pointer()), align=4)


TILES = make_tiles(tile_rows(compiled_features()))
