"""Vectors of float32, raw addresses and prefetch inside numba kernels.

LLVM turns short loops over one embedding row into scalar code and keeps no tile of a product in
registers, because numba's arrays may overlap; these intrinsics say plainly what is meant. Addresses
are int64, so that one kernel reaches any number of arrays; nothing checks them. A machine whose
registers are narrower than a vector uses several.

The width of a vector is its type: numba compiles a function once for each width that it is called
with. So code for any width is written once, over `like`, a vector or a float32 that says how many:

    def add_rows(like, a, b, out):
        store(out, add(load(like, a), load(like, b)))

    add_rows(zeros16(), a, b, out)  # sixteen floats
    add_rows(np.float32(0), a, b, out)  # one
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

F32, F16, BF16, I8 = 0, 1, 2, 3  # storage kinds, as kernels know them; I8 is for reading only
LANES = 16  # of the widest vector
LINE = 4 * LANES  # its bytes, and those of a line of the cache

_FLOAT, _HALF, _DOUBLE = ir.FloatType(), ir.HalfType(), ir.DoubleType()
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


def _is_float32(kind: Any) -> bool:
    """Whether a type is a vector or a float32. A float64 would be written over its neighbour."""
    return isinstance(kind, Vector) or kind == types.float32


def _ir(kind: Any, element: Any) -> Any:
    """LLVM's type for as many elements as a vector or a float32 has."""
    return ir.VectorType(element, kind.width) if isinstance(kind, Vector) else element


def _pointer(builder: Any, address: Any, target: Any) -> Any:
    return builder.inttoptr(address, target.as_pointer())


def build_splat(b: Any, value: Any, width: int) -> Any:
    """A vector of one number."""
    undefined = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    first = b.insert_element(undefined, value, _I32(0))
    return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, width), [0] * width))


# --- reading and writing floats, without alignment ---


def _loaded(b: Any, address: Any, like: Any, storage: int) -> Any:
    """As many float32 as `like` has, read from storage of a kind."""
    if storage == F32:
        return b.load(_pointer(b, address, _ir(like, _FLOAT)), align=4)
    if storage == F16:
        return b.fpext(b.load(_pointer(b, address, _ir(like, _HALF)), align=2), _ir(like, _FLOAT))
    if storage == I8:
        return b.sitofp(b.load(_pointer(b, address, _ir(like, _I8)), align=1), _ir(like, _FLOAT))
    wide = b.zext(b.load(_pointer(b, address, _ir(like, _I16)), align=2), _ir(like, _I32))
    sixteen = [16] * like.width if isinstance(like, Vector) else 16
    return b.bitcast(b.shl(wide, ir.Constant(_ir(like, _I32), sixteen)), _ir(like, _FLOAT))


def _loader(storage: int) -> Any:
    """An intrinsic (like, address) → float32 of storage of a kind."""

    def load(context: Any, like: Any, address: Any) -> Any:
        if not _is_float32(like):
            return None
        return like(like, types.int64), lambda _, b, __, args: _loaded(b, args[1], like, storage)

    return intrinsic(load)


load, load_half, load_bf16, load_i8 = (_loader(storage) for storage in (F32, F16, BF16, I8))


@intrinsic
def load16(context: Any, address: Any) -> Any:
    """Sixteen float32."""
    vector = Vector(LANES)
    return vector(types.int64), lambda _, b, __, args: _loaded(b, args[0], vector, F32)


@intrinsic
def load1(context: Any, address: Any) -> Any:
    """One float32."""
    return types.float32(types.int64), lambda _, b, __, args: _loaded(b, args[0], types.float32, F32)


@intrinsic
def store(context: Any, address: Any, value: Any) -> Any:
    """Write a vector or a float32."""
    if not _is_float32(value):
        return None

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.store(args[1], _pointer(b, args[0], args[1].type), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, value), generate


@intrinsic
def store_half(context: Any, address: Any, value: Any) -> Any:
    """Write a float32 that float16 can hold exactly as float16."""

    def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
        b.store(b.fptrunc(args[1], _HALF), _pointer(b, args[0], _HALF), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), generate


# --- a number in the two lowest bits of sixteen floats: its lower half in the lowest bits ---

_LANES = ir.VectorType(_I32, LANES)
_NONE, _ONES, _TWOS, _OTHERS = (ir.Constant(_LANES, [value] * LANES) for value in (0, 1, 2, -4))
_LOWER, _UPPER = (ir.Constant(_LANES, list(range(first, first + LANES))) for first in (0, LANES - 1))


@intrinsic
def load_packed(context: Any, like: Any, address: Any) -> Any:
    """As `load`; sixteen at once without their two lowest bits, in which a number may be kept."""
    if not _is_float32(like):
        return None

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        if like != Vector(LANES):
            return _loaded(b, args[1], like, F32)
        bits = b.and_(b.load(_pointer(b, args[1], _LANES), align=4), _OTHERS)
        return b.bitcast(bits, ir.VectorType(_FLOAT, LANES))

    return like(like, types.int64), generate


@intrinsic
def packed_i32(context: Any, address: Any) -> Any:
    """The int32 in the two lowest bits of sixteen float32."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        bits = b.load(_pointer(b, args[0], _LANES), align=4)
        # Comparisons of sixteen lanes are sixteen bits: an instruction or two, unlike a sum over the lanes.
        low, high = (
            b.zext(b.bitcast(b.icmp_signed("!=", b.and_(bits, mask), _NONE), ir.IntType(LANES)), _I32)
            for mask in (_ONES, _TWOS)
        )
        return b.or_(low, b.shl(high, _I32(LANES)))

    return types.int32(types.int64), generate


@intrinsic
def store16_packed(context: Any, address: Any, value: Any, number: Any) -> Any:
    """Write sixteen float32, and an int32 into their two lowest bits."""

    def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
        number = build_splat(b, args[2], LANES)
        low, high = b.and_(b.lshr(number, _LOWER), _ONES), b.and_(b.lshr(number, _UPPER), _TWOS)
        bits = b.or_(b.and_(b.bitcast(args[1], _LANES), _OTHERS), b.or_(low, high))
        b.store(bits, _pointer(b, args[0], _LANES), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, Vector(LANES), types.int32), generate


# --- arithmetic, lane by lane ---


def _zeros(width: int) -> Any:
    def zeros(context: Any) -> Any:
        constant = ir.Constant(ir.VectorType(_FLOAT, width), [0.0] * width)
        return Vector(width)(), lambda _, __, ___, ____: constant

    return intrinsic(zeros)


zeros16, zeros8, zeros4 = (_zeros(width) for width in (16, 8, 4))


@intrinsic
def splat(context: Any, like: Any, value: Any) -> Any:
    """A float32 in every lane; itself where `like` is one float32."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return build_splat(b, args[1], like.width) if isinstance(like, Vector) else args[1]

    return like(like, types.float32), generate


@intrinsic
def splat16(context: Any, value: Any) -> Any:
    """A float32 in sixteen lanes."""
    return Vector(LANES)(types.float32), lambda _, b, __, args: build_splat(b, args[0], LANES)


def _binary(instruction: str) -> Any:
    """An intrinsic of two vectors, or two float32, that is one instruction of LLVM."""

    def apply(context: Any, a: Any, b: Any) -> Any:
        return a(a, a), lambda _, builder, __, args: getattr(builder, instruction)(*args)

    return intrinsic(apply)


add, subtract, multiply = (_binary(name) for name in ("fadd", "fsub", "fmul"))
divide = _binary("fdiv")  # as the processor divides, without a look at zeros


def build_call(b: Any, name: str, args: Any) -> Any:
    """Call LLVM's function of this name for the type of its arguments."""
    kind = args[0].type
    suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
    function = ir.FunctionType(kind, [kind] * len(args))
    return b.call(cgutils.get_or_insert_function(b.module, function, f"llvm.{name}.{suffix}"), args)


@intrinsic
def root(context: Any, value: Any) -> Any:
    """√value."""
    return value(value), lambda _, b, __, args: build_call(b, "sqrt", args)


@intrinsic
def multiply_add(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c, rounded once where the processor can."""
    return a(a, a, a), lambda _, builder, __, args: build_call(builder, "fmuladd", args)


@intrinsic
def clamp(context: Any, value: Any, limit: Any) -> Any:
    """min(max(value, −limit), limit); NaN stays NaN."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        low = b.fneg(args[1])
        above = b.select(b.fcmp_ordered("<", args[0], low), low, args[0])
        return b.select(b.fcmp_ordered(">", above, args[1]), args[1], above)

    return value(value, limit), generate


@intrinsic
def keep_positive(context: Any, x: Any, gate: Any) -> Any:
    """x where the gate is above 0, else 0; with NaN as a gate, x, so that NaN is not lost."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        zero = ir.Constant(args[0].type, [0.0] * x.width)
        return b.select(b.fcmp_ordered("<=", args[1], zero), zero, args[0])

    return x(x, x), generate


@intrinsic
def total(context: Any, x: Any) -> Any:
    """The sum of a vector's numbers, in an order that is always the same."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        rest, width = args[0], x.width
        while width > 1:
            width //= 2
            low, high = (
                ir.Constant(ir.VectorType(_I32, width), list(range(i, i + width))) for i in (0, width)
            )
            rest = b.fadd(b.shuffle_vector(rest, rest, low), b.shuffle_vector(rest, rest, high))
        return b.extract_element(rest, _I32(0))

    return types.float32(x), generate


@intrinsic
def lane(context: Any, x: Any, i: Any) -> Any:
    """One number of a vector."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.extract_element(args[0], b.trunc(args[1], _I32))

    return types.float32(x, types.int64), generate


@intrinsic
def lanes_above(context: Any, x: Any, limit: Any) -> Any:
    """The numbers of the lanes of sixteen float32 that are above a limit, as the set bits of an int32."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        found = b.fcmp_ordered(">", args[0], build_splat(b, args[1], LANES))
        return b.zext(b.bitcast(found, ir.IntType(LANES)), _I32)

    return types.int32(Vector(LANES), types.float32), generate


@intrinsic
def any_above(context: Any, a: Any, b: Any, c: Any, limits: Any) -> Any:
    """Whether a number of three vectors is above the vector's limit, three float32 at an address."""

    def generate(_: Any, builder: Any, __: Any, args: Any) -> Any:
        found = None
        for place, x in enumerate(args[:3]):
            at = builder.add(args[3], _I64(4 * place))
            limit = build_splat(builder, builder.load(_pointer(builder, at, _FLOAT), align=4), LANES)
            above = builder.fcmp_ordered(">", x, limit)
            found = above if found is None else builder.or_(found, above)
        number = builder.bitcast(found, ir.IntType(LANES))
        return builder.icmp_unsigned("!=", number, ir.Constant(ir.IntType(LANES), 0))

    vector = Vector(LANES)
    return types.boolean(vector, vector, vector, types.int64), generate


@intrinsic
def lowest_bit(context: Any, value: Any) -> Any:
    """The number of the lowest set bit of an int32 that is not 0."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.zext(b.cttz(args[0], ir.Constant(ir.IntType(1), 1)), _I64)

    return types.int64(types.int32), generate


@intrinsic
def bits(context: Any, value: Any) -> Any:
    """The bits of a float32 as int32."""
    return types.int32(types.float32), lambda _, b, __, args: b.bitcast(args[0], _I32)


# --- integers, addresses, the cache ---


def _plain(result: Any, element: Any, size: int) -> tuple[Any, Any]:
    """Intrinsics that read and write one number at an address."""

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
load_u8, store_u8 = _plain(types.uint8, _I8, 1)
load_s8, _ = _plain(types.int8, _I8, 1)
load_u16, _ = _plain(types.uint16, _I16, 2)
load_u32, _ = _plain(types.uint32, _I32, 4)
load_f64, store_f64 = _plain(types.float64, _DOUBLE, 8)
load_word, _ = _plain(types.uint64, _I64, 1)


@intrinsic
def field(context: Any, line: Any, column: Any) -> Any:
    """One integer of a line of int64 whose address is given."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.load(b.gep(_pointer(b, args[0], _I64), [args[1]]), align=8)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def fetch_add(context: Any, address: Any, value: Any) -> Any:
    """Add to an int64 in memory as one indivisible step; returns what it was before."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.atomic_rmw("add", _pointer(b, args[0], _I64), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


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
def address(context: Any, array: Any) -> Any:
    """Where an array begins; unlike `array.ctypes.data`, signed: numba makes a float of int64 + uint64."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.ptrtoint(context.make_array(signature.args[0])(context, b, args[0]).data, _I64)

    return types.int64(array), generate


@intrinsic
def pointer(context: Any, address: Any) -> Any:
    """An address as a pointer that `numba.carray` takes."""

    def generate(_: Any, b: Any, __: Any, args: Any) -> Any:
        return b.inttoptr(args[0], _I8.as_pointer())

    return types.voidptr(types.int64), generate


@intrinsic
def call(context: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
    """Call a C function of seven int64 by its address."""

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64] * 7)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), list(args[1:]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate
