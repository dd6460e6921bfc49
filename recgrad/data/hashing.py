"""The hash of string ids: XXH64 with seed 0 over UTF-8 bytes.

It has no secret and no state, so a string has the same hash on every machine, in every
process and in every version; a test holds it to vectors of the published algorithm
(Yann Collet, https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md). A bucket is
`hash mod size` in unsigned arithmetic. An integer is hashed as its decimal text, so 12 and
"12" fall into the same bucket, whatever type a column has in a file.

The kernels run over Arrow's buffers without making Python strings, and without the GIL.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.arrow_columns import as_numbers, nulls_of
from recgrad.kernels import cached_njit

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Hashes = npt.NDArray[np.uint64]

_P1 = np.uint64(11400714785074694791)
_P2 = np.uint64(14029467366897019727)
_P3 = np.uint64(1609587929392839161)
_P4 = np.uint64(9650029242287828579)
_P5 = np.uint64(2870177450012600261)

_S1, _S7, _S12, _S18 = np.uint64(1), np.uint64(7), np.uint64(12), np.uint64(18)
_S11, _S23, _S27, _S31 = np.uint64(11), np.uint64(23), np.uint64(27), np.uint64(31)
_S29, _S32, _S33, _S64 = np.uint64(29), np.uint64(32), np.uint64(33), np.uint64(64)
_ZERO, _TEN, _HUNDRED = np.uint64(0), np.uint64(10), np.uint64(100)
# Positions are unsigned in the kernels: a signed index costs a test for negative ones, and
# keeps the compiler from joining eight byte loads into one.
_U1, _U2, _U3, _U4, _U8 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4), np.uint64(8)
_U16, _U24, _U32 = np.uint64(16), np.uint64(24), np.uint64(32)
_PAIRS = np.frombuffer("".join(f"{number:02d}" for number in range(100)).encode(), np.uint8)
_NO_BYTES = np.frombuffer(b"", np.uint8)


@numba.njit(inline="always")
def _rotate(value: Any, bits: Any) -> Any:
    return (value << bits) | (value >> (_S64 - bits))


@numba.njit(inline="always")
def read32(data: Any, at: Any) -> Any:
    """Four bytes as a little-endian number."""
    return (
        np.uint64(data[at])
        | np.uint64(data[at + _U1]) << np.uint64(8)
        | np.uint64(data[at + _U2]) << np.uint64(16)
        | np.uint64(data[at + _U3]) << np.uint64(24)
    )


@numba.njit(inline="always")
def read64(data: Any, at: Any) -> Any:
    """Eight bytes as a little-endian number."""
    return read32(data, at) | read32(data, at + _U4) << _S32


@numba.njit(inline="always")
def _round(lane: Any, value: Any) -> Any:
    return _rotate(lane + value * _P2, _S31) * _P1


@numba.njit(inline="always")
def _merge(result: Any, lane: Any) -> Any:
    return (result ^ _round(_ZERO, lane)) * _P1 + _P4


@cached_njit(nogil=True)
def xxh64(data: Any, start: Any, end: Any) -> Any:
    """XXH64 with seed 0 of `data[start:end]`."""
    at, stop = np.uint64(start), np.uint64(end)
    size = stop - at
    if size >= _U32:
        a, b, c, d = _P1 + _P2, _P2, _ZERO, _ZERO - _P1
        while at + _U32 <= stop:
            a = _round(a, read64(data, at))
            b = _round(b, read64(data, at + _U8))
            c = _round(c, read64(data, at + _U16))
            d = _round(d, read64(data, at + _U24))
            at += _U32
        result = _rotate(a, _S1) + _rotate(b, _S7) + _rotate(c, _S12) + _rotate(d, _S18)
        result = _merge(_merge(_merge(_merge(result, a), b), c), d)
    else:
        result = _P5
    result += size
    while at + _U8 <= stop:
        result = _rotate(result ^ _round(_ZERO, read64(data, at)), _S27) * _P1 + _P4
        at += _U8
    if at + _U4 <= stop:
        result = _rotate(result ^ (read32(data, at) * _P1), _S23) * _P2 + _P3
        at += _U4
    while at < stop:
        result = _rotate(result ^ (np.uint64(data[at]) * _P5), _S11) * _P1
        at += _U1
    result ^= result >> _S33
    result *= _P2
    result ^= result >> _S29
    result *= _P3
    return result ^ (result >> _S32)


@cached_njit(nogil=True)
def hash_spans(data: Bytes, starts: Ints, ends: Ints) -> Hashes:
    """The hashes of the byte spans `data[starts[i]:ends[i]]`."""
    hashes = np.empty(len(starts), np.uint64)
    for i in range(len(starts)):
        hashes[i] = xxh64(data, starts[i], ends[i])
    return hashes


@cached_njit(nogil=True)
def bucket_spans(data: Bytes, starts: Ints, ends: Ints, size: int) -> Ints:
    """The buckets of the byte spans: hash mod `size`."""
    buckets = np.empty(len(starts), np.int64)
    divisor = np.uint64(size)
    for i in range(len(starts)):
        buckets[i] = np.int64(xxh64(data, starts[i], ends[i]) % divisor)
    return buckets


@cached_njit(nogil=True)
def hash_ints(values: Ints) -> Hashes:
    """The hashes of the decimal texts of integers."""
    hashes = np.empty(len(values), np.uint64)
    # A block of numbers is written before it is hashed: reading bytes that were just written stalls.
    text = np.empty(64 * 20, np.uint8)
    begins = np.empty(64, np.int64)
    for first in range(0, len(values), 64):
        count = min(64, len(values) - first)
        for i in range(count):
            begins[i] = write_decimal(values[first + i], text, 20 * i + 20)
        for i in range(count):
            hashes[first + i] = xxh64(text, begins[i], 20 * i + 20)
    return hashes


@cached_njit(nogil=True)
def write_decimal(value: Any, text: Any, end: Any) -> Any:
    """Writes an integer so that it ends at `end`, two digits at a time; returns where it begins."""
    # The two's complement negation is right for −2⁶³ too, whose positive has no int64.
    rest = _ZERO - np.uint64(value) if value < 0 else np.uint64(value)
    at = np.uint64(end)
    while rest >= _HUNDRED:
        above = rest // _HUNDRED
        pair = (rest - above * _HUNDRED) * _U2
        rest = above
        at -= _U2
        text[at], text[at + _U1] = _PAIRS[pair], _PAIRS[pair + _U1]
    if rest >= _TEN:
        at -= _U2
        text[at], text[at + _U1] = _PAIRS[rest * _U2], _PAIRS[rest * _U2 + _U1]
    else:
        at -= _U1
        text[at] = np.uint8(48) + np.uint8(rest)
    if value < 0:
        at -= _U1
        text[at] = np.uint8(45)
    return np.int64(at)


def buckets_of(hashes: Hashes, size: int) -> Ints:
    """Hash mod `size`, unsigned."""
    return (hashes % np.uint64(size)).view(np.int64)


def string_spans(array: pa.Array) -> tuple[Bytes, Ints, Ints]:
    """Bytes, starts and ends of the values of a string or large_string array; nulls are empty spans."""
    wide = array.type.id in (pa.lib.Type_LARGE_STRING, pa.lib.Type_LARGE_BINARY)
    _, offset_buffer, data_buffer = array.buffers()
    if offset_buffer is None or len(array) == 0:
        return _NO_BYTES, np.zeros(len(array), np.int64), np.zeros(len(array), np.int64)
    first = array.offset
    offsets: Any = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)
    offsets = offsets[first : first + len(array) + 1].astype(np.int64)
    data = _NO_BYTES if data_buffer is None else _frozen(np.frombuffer(data_buffer, np.uint8))
    starts: Ints = offsets[:-1]
    ends: Ints = offsets[1:]
    if array.null_count:
        # Arrow lets a null cover bytes; they must not be read as a value.
        ends = np.where(nulls_of(array), starts, ends)
    return data, starts, ends


def _frozen(data: Bytes) -> Bytes:
    """The same bytes, read-only, so that kernels are compiled for one kind of array."""
    data.flags.writeable = False
    return data


def hash_array(array: pa.Array) -> Hashes:
    """The hash of each value of a string, dictionary, integer or boolean array; a null hashes as ""."""
    if pa.types.is_dictionary(array.type):
        hashes = hash_array(array.dictionary)
        indices = array.indices
        if indices.null_count == 0 and array.dictionary.null_count == 0:
            return np.asarray(hashes[as_numbers(indices)])
        array = array.dictionary_decode()
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        if array.null_count or array.type == pa.uint64():
            return hash_array(array.cast(pa.string()))
        return hash_ints(as_numbers(array.cast(pa.int64())))
    if array.type.id not in (
        pa.lib.Type_STRING,
        pa.lib.Type_LARGE_STRING,
        pa.lib.Type_BINARY,
        pa.lib.Type_LARGE_BINARY,
    ):
        array = array.cast(pa.string())
    return hash_spans(*string_spans(array))
