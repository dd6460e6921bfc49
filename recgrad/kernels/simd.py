"""Vectors of floats, raw addresses and prefetch inside numba kernels.

LLVM turns short loops over one embedding row into scalar code, because numba arrays may
overlap; these few intrinsics say plainly what is meant. Addresses are int64, as
`array.ctypes.data` gives them, so that one kernel reaches any number of tables.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

F32, F16, BF16 = 0, 1, 2  # storage kinds, as kernels know them

_FLOAT = ir.FloatType()
_HALF = ir.HalfType()
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


class Vector(types.Type):  # type: ignore[misc]
    """A register of `width` float32."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"float32x{width}")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, ir.VectorType(_FLOAT, kind.width))


def _ir(width: int, element: Any) -> Any:
    return element if width == 1 else ir.VectorType(element, width)


def _pointer(builder: Any, address: Any, target: Any) -> Any:
    return builder.inttoptr(address, target.as_pointer())


def _loader(width: int, kind: int) -> Any:
    """An intrinsic address → `width` float32, read from storage of `kind`, without alignment."""
    result = types.float32 if width == 1 else Vector(width)

    def load(context: Any, address: Any) -> Any:
        def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
            if kind == F32:
                return b.load(_pointer(b, args[0], _ir(width, _FLOAT)), align=4)
            if kind == F16:
                return b.fpext(b.load(_pointer(b, args[0], _ir(width, _HALF)), align=2), _ir(width, _FLOAT))
            bits = b.load(_pointer(b, args[0], _ir(width, _I16)), align=2)
            wide = b.zext(bits, _ir(width, _I32))
            sixteen = 16 if width == 1 else [16] * width
            return b.bitcast(b.shl(wide, ir.Constant(_ir(width, _I32), sixteen)), _ir(width, _FLOAT))

        return result(types.int64), generate

    return intrinsic(load)


load16, load8, load4, load1 = (_loader(width, F32) for width in (16, 8, 4, 1))
load16_half, load8_half, load4_half, load1_half = (_loader(width, F16) for width in (16, 8, 4, 1))
load16_bf16, load8_bf16, load4_bf16, load1_bf16 = (_loader(width, BF16) for width in (16, 8, 4, 1))


def _splatter(width: int) -> Any:
    def splat(context: Any, value: Any) -> Any:
        def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
            vector = ir.VectorType(_FLOAT, width)
            undefined = ir.Constant(vector, ir.Undefined)
            first = b.insert_element(undefined, args[0], ir.Constant(_I32, 0))
            lanes = ir.Constant(ir.VectorType(_I32, width), [0] * width)
            return b.shuffle_vector(first, undefined, lanes)

        return Vector(width)(types.float32), generate

    return intrinsic(splat)


splat16, splat8, splat4 = (_splatter(width) for width in (16, 8, 4))


@intrinsic
def add(context: Any, a: Any, b: Any) -> Any:
    """a + b, lane by lane."""
    return a(a, b), lambda _, builder, __, args: builder.fadd(args[0], args[1])


@intrinsic
def multiply(context: Any, a: Any, b: Any) -> Any:
    """a · b, lane by lane."""
    return a(a, b), lambda _, builder, __, args: builder.fmul(args[0], args[1])


@intrinsic
def subtract(context: Any, a: Any, b: Any) -> Any:
    """a − b, lane by lane."""
    return a(a, b), lambda _, builder, __, args: builder.fsub(args[0], args[1])


@intrinsic
def divide(context: Any, a: Any, b: Any) -> Any:
    """a/b, lane by lane; as the processor divides, without a look at zeros."""
    return a(a, b), lambda _, builder, __, args: builder.fdiv(args[0], args[1])


@intrinsic
def root(context: Any, value: Any) -> Any:
    """√value, lane by lane."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        kind = args[0].type
        name = "llvm.sqrt.f32" if kind == _FLOAT else f"llvm.sqrt.v{kind.count}f32"
        function = cgutils.get_or_insert_function(b.module, ir.FunctionType(kind, [kind]), name)
        return b.call(function, [args[0]])

    return value(value), generate


_LANES = ir.VectorType(_I32, 16)
_THREES = ir.Constant(_LANES, [3] * 16)
_OTHERS = ir.Constant(_LANES, [-4] * 16)  # all bits but the two lowest
_SHIFTS = ir.Constant(_LANES, list(range(0, 32, 2)))


@intrinsic
def load16_packed(context: Any, address: Any) -> Any:
    """Sixteen float32 without their two lowest bits, in which a number is kept."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        bits = b.and_(b.load(_pointer(b, args[0], _LANES), align=4), _OTHERS)
        return b.bitcast(bits, ir.VectorType(_FLOAT, 16))

    return Vector(16)(types.int64), generate


@intrinsic
def packed_i32(context: Any, address: Any) -> Any:
    """The int32 in the two lowest bits of sixteen float32."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        bits = b.shl(b.and_(b.load(_pointer(b, args[0], _LANES), align=4), _THREES), _SHIFTS)
        kind = ir.FunctionType(_I32, [_LANES])
        return b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.vector.reduce.or.v16i32"), [bits])

    return types.int32(types.int64), generate


@intrinsic
def store16_packed(context: Any, address: Any, value: Any, number: Any) -> Any:
    """Write sixteen float32, and an int32 into their two lowest bits."""

    def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
        first = b.insert_element(ir.Constant(_LANES, ir.Undefined), args[2], ir.Constant(_I32, 0))
        lanes = b.shuffle_vector(first, first, ir.Constant(_LANES, [0] * 16))
        low = b.and_(b.lshr(lanes, _SHIFTS), _THREES)
        bits = b.or_(b.and_(b.bitcast(args[1], _LANES), _OTHERS), low)
        b.store(bits, _pointer(b, args[0], _LANES), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, value, types.int32), generate


@intrinsic
def clamp(context: Any, value: Any, limit: Any) -> Any:
    """min(max(value, −limit), limit), lane by lane; NaN stays NaN."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        low = b.fneg(args[1])
        above = b.select(b.fcmp_ordered("<", args[0], low), low, args[0])
        return b.select(b.fcmp_ordered(">", above, args[1]), args[1], above)

    return value(value, limit), generate


@intrinsic
def store(context: Any, address: Any, value: Any) -> Any:
    """Write a vector or a float32 at an address, without alignment."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.store(args[1], _pointer(b, args[0], args[1].type), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, value), generate


def _plain(result: Any, element: Any, size: int) -> tuple[Any, Any]:
    """Intrinsics that read and write one integer at an address."""

    def read(context: Any, address: Any) -> Any:
        def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
            return b.load(_pointer(b, args[0], element), align=size)

        return result(types.int64), generate

    def write(context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
            b.store(args[1], _pointer(b, args[0], element), align=size)
            return context.get_dummy_value()

        return types.void(types.int64, result), generate

    return intrinsic(read), intrinsic(write)


load_i64, store_i64 = _plain(types.int64, _I64, 8)
load_i32, store_i32 = _plain(types.int32, _I32, 4)
load_i16, store_i16 = _plain(types.int16, _I16, 2)


@intrinsic
def store_half(context: Any, address: Any, value: Any) -> Any:
    """Write a float32 that float16 can hold exactly as float16."""

    def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
        b.store(b.fptrunc(args[1], _HALF), _pointer(b, args[0], _HALF), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


@intrinsic
def bits(context: Any, value: Any) -> Any:
    """The bits of a float32 as int32."""
    return types.int32(types.float32), lambda _, b, __, args: b.bitcast(args[0], _I32)


def _prefetcher(write: int) -> Any:
    """An intrinsic that brings the cache line of an address near; any address is harmless."""

    def near(context: Any, address: Any) -> Any:
        def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
            byte = _I8.as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
            function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
            b.call(function, [b.inttoptr(args[0], byte), _I32(write), _I32(3), _I32(1)])
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return intrinsic(near)


prefetch, prefetch_to_write = _prefetcher(0), _prefetcher(1)


@intrinsic
def fetch_add(context: Any, address: Any, value: Any) -> Any:
    """Add to an int64 in memory as one indivisible step; returns what it was before."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.atomic_rmw("add", _pointer(b, args[0], _I64), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def address(context: Any, array: Any) -> Any:
    """Where an array begins; unlike `array.ctypes.data`, signed: numba makes a float of int64 + uint64."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.ptrtoint(context.make_array(signature.args[0])(context, b, args[0]).data, _I64)

    return types.int64(array), generate


@intrinsic
def address_of(context: Any, pointer: Any) -> Any:
    """A pointer as an address."""
    return types.int64(pointer), lambda _, b, __, args: b.ptrtoint(args[0], _I64)


@intrinsic
def load_f64(context: Any, address: Any) -> Any:
    """The float64 at an address."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.load(_pointer(b, args[0], ir.DoubleType()), align=8)

    return types.float64(types.int64), generate


@intrinsic
def pointer(context: Any, address: Any) -> Any:
    """An address as a pointer that `numba.carray` takes."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.inttoptr(args[0], _I8.as_pointer())

    return types.voidptr(types.int64), generate


@intrinsic
def field(context: Any, line: Any, column: Any) -> Any:
    """One integer of a line of int64 whose address is given."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.load(b.gep(_pointer(b, args[0], _I64), [args[1]]), align=8)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def call(context: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
    """Call a C function of seven int64 by its address."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64] * 7)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), list(args[1:]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate
