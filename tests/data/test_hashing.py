"""XXH64 against published vectors, a plain Python rendering of its specification, and xxhash."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.data.hashing import bucket_spans, buckets_of, hash_array, hash_ints, string_spans

M = 2**64 - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def rotate(x: int, r: int) -> int:
    return ((x << r) | (x >> (64 - r))) & M


def lane(acc: int, value: int) -> int:
    return rotate((acc + value * P2) & M, 31) * P1 & M


def xxh64(data: bytes) -> int:
    """XXH64, seed 0, as the specification words it."""
    rest = data
    if len(data) >= 32:
        acc = [(P1 + P2) & M, P2, 0, -P1 & M]
        while len(rest) >= 32:
            for i in range(4):
                acc[i] = lane(acc[i], int.from_bytes(rest[8 * i : 8 * i + 8], "little"))
            rest = rest[32:]
        h = sum(rotate(a, r) for a, r in zip(acc, (1, 7, 12, 18), strict=True)) & M
        for a in acc:
            h = ((h ^ lane(0, a)) * P1 + P4) & M
    else:
        h = P5
    h = (h + len(data)) & M
    while len(rest) >= 8:
        h = (rotate(h ^ lane(0, int.from_bytes(rest[:8], "little")), 27) * P1 + P4) & M
        rest = rest[8:]
    if len(rest) >= 4:
        h = (rotate(h ^ (int.from_bytes(rest[:4], "little") * P1 & M), 23) * P2 + P3) & M
        rest = rest[4:]
    for byte in rest:
        h = rotate(h ^ (byte * P5 & M), 11) * P1 & M
    h = (h ^ (h >> 33)) * P2 & M
    h = (h ^ (h >> 29)) * P3 & M
    return h ^ (h >> 32)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0xEF46DB3751D8E999),
        ("a", 0xD24EC4F1A98C6E5B),
        ("abc", 0x44BC2CF5AD770999),
        ("Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_published_vectors_hold_for_all_versions(text: str, value: int) -> None:
    assert xxh64(text.encode()) == value
    assert int(hash_array(pa.array([text]))[0]) == value


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=100), max_size=20))
def test_strings_hash_as_the_specification_says(texts: list[str]) -> None:
    array = pa.array(["junk", *texts], pa.string()).slice(1)
    want = [xxh64(text.encode()) for text in texts]
    assert hash_array(array).tolist() == want
    assert hash_array(array.cast(pa.large_string())).tolist() == want
    assert hash_array(array.dictionary_encode()).tolist() == want


def test_every_length_up_to_two_stripes() -> None:
    xxhash = pytest.importorskip("xxhash")
    texts = ["abcdefghij"[n % 10] * n for n in range(100)]
    assert hash_array(pa.array(texts)).tolist() == [xxhash.xxh64_intdigest(t.encode()) for t in texts]
    assert hash_array(pa.array(texts)).tolist() == [xxh64(t.encode()) for t in texts]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_integers_hash_as_their_decimal_text(numbers: list[int]) -> None:
    want = [xxh64(str(number).encode()) for number in numbers]
    assert hash_ints(np.array(numbers, np.int64)).tolist() == want
    assert hash_array(pa.array(numbers, pa.int64())).tolist() == want


def test_small_and_unsigned_integers_and_nulls() -> None:
    assert hash_array(pa.array([0, 255], pa.uint8())).tolist() == [xxh64(b"0"), xxh64(b"255")]
    assert hash_array(pa.array([2**64 - 1], pa.uint64())).tolist() == [xxh64(str(2**64 - 1).encode())]
    assert hash_array(pa.array([5, None])).tolist() == [xxh64(b"5"), xxh64(b"")]
    assert hash_array(pa.array(["x", None]).dictionary_encode()).tolist() == [xxh64(b"x"), xxh64(b"")]


def test_a_null_that_covers_bytes_hashes_as_empty() -> None:
    data = pa.py_buffer(b"abcdef")
    offsets = pa.py_buffer(np.array([0, 3, 6], np.int32))
    array = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x01"), offsets, data])
    assert array.to_pylist() == ["abc", None]
    assert hash_array(array).tolist() == [xxh64(b"abc"), xxh64(b"")]


@pytest.mark.parametrize("size", [1, 2, 1000, 2**31 + 11, 2**63 - 1])
def test_buckets_are_unsigned_remainders(size: int) -> None:
    texts = [f"item-{i}" for i in range(200)]
    want = [xxh64(text.encode()) % size for text in texts]
    assert bucket_spans(*string_spans(pa.array(texts)), size).tolist() == want
    assert buckets_of(hash_array(pa.array(texts)), size).tolist() == want


def test_buckets_are_even() -> None:
    """χ² of 100,000 sequential ids in 97 buckets, against its 1e-6 quantile (174.7 for 96 degrees)."""
    counts = np.bincount(buckets_of(hash_ints(np.arange(100_000)), 97), minlength=97)
    expected = 100_000 / 97
    assert ((counts - expected) ** 2 / expected).sum() < 174.7
