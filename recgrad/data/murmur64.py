"""MurmurHash64A with seed 0xc70f6907 over UTF-8 bytes: the hash that TorchEasyRec makes ids with.

It is what libstdc++ computes for `std::hash<std::string>` on 64-bit machines, and a test holds it
to vectors made there. Like XXH64 it has no secret and no state (Austin Appleby,
https://github.com/aappleby/smhasher, MurmurHash2.cpp):

    h = seed ⊕ (length · m), m = 0xc6a4a7935bd1e995
    for each 8 bytes k, little-endian: k ← k·m; k ← k ⊕ (k >> 47); h ← (h ⊕ k·m) · m
    for the bytes that are left, as a number t: h ← (h ⊕ t) · m
    h ← h ⊕ (h >> 47); h ← h·m; h ← h ⊕ (h >> 47)
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from recgrad.data.hashing import Bytes, Hashes, Ints, read32, read64, write_decimal
from recgrad.kernels import cached_njit

_M = np.uint64(0xC6A4A7935BD1E995)
_SEED = np.uint64(0xC70F6907)
_R = np.uint64(47)
_ZERO, _ONE, _TWO, _THREE = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
_FOUR, _EIGHT = np.uint64(4), np.uint64(8)


@numba.njit(inline="always")
def _tail(data: Any, at: Any, stop: Any, size: Any) -> Any:
    """The 1 to 7 bytes from `at` on as a little-endian number, in loads that overlap instead of a loop."""
    rest = stop - at
    if size >= _EIGHT:
        # The bytes before the rest are shifted out.
        return read64(data, stop - _EIGHT) >> ((_EIGHT - rest) << _THREE)
    if rest >= _FOUR:
        return read32(data, at) | read32(data, stop - _FOUR) << ((rest - _FOUR) << _THREE)
    middle = rest >> _ONE
    return (
        np.uint64(data[at])
        | np.uint64(data[at + middle]) << (middle << _THREE)
        | np.uint64(data[stop - _ONE]) << ((rest - _ONE) << _THREE)
    )


@cached_njit(nogil=True)
def murmur64(data: Any, start: Any, end: Any) -> Any:
    """MurmurHash64A of `data[start:end]`."""
    at, stop = np.uint64(start), np.uint64(end)
    size = stop - at
    result = _SEED ^ (size * _M)
    while at + _EIGHT <= stop:
        block = read64(data, at) * _M
        block ^= block >> _R
        result = (result ^ (block * _M)) * _M
        at += _EIGHT
    if at < stop:
        result = (result ^ _tail(data, at, stop, size)) * _M
    result ^= result >> _R
    result *= _M
    return result ^ (result >> _R)


@cached_njit(nogil=True)
def bucket_spans(data: Bytes, starts: Ints, ends: Ints, size: int) -> Ints:
    """The buckets of the byte spans `data[starts[i]:ends[i]]`: hash mod `size`."""
    buckets = np.empty(len(starts), np.int64)
    divisor = np.uint64(size)
    for i in range(len(starts)):
        buckets[i] = np.int64(murmur64(data, starts[i], ends[i]) % divisor)
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
            hashes[first + i] = murmur64(text, begins[i], 20 * i + 20)
    return hashes
