"""MurmurHash64A against TorchEasyRec's vectors and a plain Python rendering of the algorithm."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.data.hashes import DEFAULT_HASH, HASHES
from recgrad.data.hashing import string_spans
from recgrad.data.murmur64 import bucket_spans, hash_ints

MASK, MULTIPLIER, SEED = 2**64 - 1, 0xC6A4A7935BD1E995, 0xC70F6907
# Made by TorchEasyRec's feature generator with hash_bucket_size 100.
VECTORS = {
    "abc": 33, "efg": 44, "hij": 66, "xyz": 13, "0": 26, "1": 95, "2": 70, "3": 13, "4": 56,
    "x": 35, "y": 30, "z": 54,
    "ua_ia": 37, "ua_ib": 90, "ub_ia": 5, "ub_ib": 97, "uc_ic": 60, "ud_ic": 56, "ug_id": 40, "": 90,
}  # fmt: skip


def murmur(data: bytes) -> int:
    """The algorithm as it is published, byte by byte."""
    result = SEED ^ (len(data) * MULTIPLIER & MASK)
    whole = len(data) // 8 * 8
    for at in range(0, whole, 8):
        block = int.from_bytes(data[at : at + 8], "little") * MULTIPLIER & MASK
        block ^= block >> 47
        result = (result ^ (block * MULTIPLIER & MASK)) * MULTIPLIER & MASK
    if len(data) > whole:
        result = (result ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & MASK
    result ^= result >> 47
    result = result * MULTIPLIER & MASK
    return result ^ (result >> 47)


@pytest.mark.parametrize(("text", "bucket"), VECTORS.items())
def test_vectors(text: str, bucket: int) -> None:
    assert bucket_spans(*string_spans(pa.array([text])), 100).tolist() == [bucket]
    assert murmur(text.encode()) % 100 == bucket


@pytest.mark.parametrize("size", [1, 2, 1000, 2**31, 2**63 - 1])
def test_every_length_of_the_last_block_among_other_bytes(size: int) -> None:
    rng = np.random.default_rng(3)
    texts = ["".join(map(chr, rng.integers(32, 127, length))) for length in range(70)]
    data, starts, ends = string_spans(pa.array(["before", *texts, "after"]).slice(1, len(texts)))
    want = [murmur(text.encode()) % size for text in texts]
    assert bucket_spans(data, starts, ends, size).tolist() == want


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=20))
def test_any_text(texts: list[str]) -> None:
    got = bucket_spans(*string_spans(pa.array(texts, pa.string())), 10**6)
    assert got.tolist() == [murmur(text.encode()) % 10**6 for text in texts]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=200))
def test_integers_hash_as_their_decimal_text(values: list[int]) -> None:
    got = hash_ints(np.array(values, np.int64))
    assert got.tolist() == [murmur(str(value).encode()) for value in values]


def test_every_hash_of_the_schema_is_there() -> None:
    from recgrad.config.proto.data_pb2 import DataConfig
    from recgrad.config.proto.feature_pb2 import TextHash

    assert set(HASHES) == set(TextHash.keys())
    assert TextHash.Name(DataConfig().hash) == DEFAULT_HASH
