"""Vectors of sixteen float32 and raw addresses inside numba kernels.

LLVM does not keep a tile of a product in registers by itself, since numba's arrays may overlap; these
intrinsics say plainly what is meant. Addresses are int64. A machine with narrower registers
uses several for a vector.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16
LINE = 4 * LANES  # bytes of a vector, and of a line of the cache

_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_LANES = ir.VectorType(_FLOAT, LANES)


class _Vector(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name="float32x16")


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: _Vector) -> None:
        super().__init__(manager, kind, _LANES)


_VECTOR = _Vector()


def _reader(result: Any, target: Any, align: int) -> Any:
    """An intrinsic that reads at an address."""

    def read(context: Any, address: Any) -> Any:
        def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
            return b.load(b.inttoptr(args[0], target.as_pointer()), align=align)

        return result(types.int64), generate

    return intrinsic(read)


def _writer(kind: Any, target: Any) -> Any:
    """An intrinsic that writes at an address."""

    def write(context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
            b.store(args[1], b.inttoptr(args[0], target.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(types.int64, kind), generate

    return intrinsic(write)


load, load1 = _reader(_VECTOR, _LANES, 4), _reader(types.float32, _FLOAT, 4)
load_i64 = _reader(types.int64, _I64, 8)
store, store1 = _writer(_VECTOR, _LANES), _writer(types.float32, _FLOAT)


@intrinsic
def draw(context: Any, address: Any) -> Any:
    """Count an int64 in memory up as one indivisible step; returns what it was before."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        pointer = b.inttoptr(args[0], _I64.as_pointer())
        return b.atomic_rmw("add", pointer, ir.Constant(_I64, 1), "seq_cst")

    return types.int64(types.int64), generate


@intrinsic
def splat(context: Any, value: Any) -> Any:
    """A vector of one number."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        undefined = ir.Constant(_LANES, ir.Undefined)
        first = b.insert_element(undefined, args[0], ir.Constant(_I32, 0))
        return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))

    return _VECTOR(types.float32), generate


@intrinsic
def zeros(context: Any) -> Any:
    """A vector of zeros."""
    return _VECTOR(), lambda _, __, ___, ____: ir.Constant(_LANES, [0.0] * LANES)


@intrinsic
def add(context: Any, a: Any, b: Any) -> Any:
    """a + b."""
    return _VECTOR(_VECTOR, _VECTOR), lambda _, builder, __, args: builder.fadd(args[0], args[1])


@intrinsic
def multiply_add(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c."""

    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        kind = ir.FunctionType(_LANES, [_LANES] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
        return builder.call(function, args)

    return _VECTOR(_VECTOR, _VECTOR, _VECTOR), generate


@intrinsic
def keep_positive(context: Any, x: Any, gate: Any) -> Any:
    """x where the gate is above 0, else 0; with NaN as a gate, NaN, which thus is not lost."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        zero = ir.Constant(_LANES, [0.0] * LANES)
        return b.select(b.fcmp_ordered("<=", args[1], zero), zero, args[0])

    return _VECTOR(_VECTOR, _VECTOR), generate


@intrinsic
def total(context: Any, x: Any) -> Any:
    """The sum of a vector's numbers, in an order that is always the same."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        rest, width = args[0], LANES
        while width > 1:
            width //= 2
            low, high = (
                ir.Constant(ir.VectorType(_I32, width), list(range(i, i + width))) for i in (0, width)
            )
            rest = b.fadd(b.shuffle_vector(rest, rest, low), b.shuffle_vector(rest, rest, high))
        return b.extract_element(rest, ir.Constant(_I32, 0))

    return types.float32(_VECTOR), generate


@intrinsic
def lane(context: Any, x: Any, i: Any) -> Any:
    """One number of a vector."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.extract_element(args[0], b.trunc(args[1], _I32))

    return types.float32(_VECTOR, types.int64), generate
