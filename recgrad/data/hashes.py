"""The hashes that ids of texts can be made with, by the names that a config gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recgrad.data import hashing, murmur64
from recgrad.data.hashing import Bytes, Hashes, Ints


@dataclass(frozen=True)
class TextHash:
    """A hash of texts, as kernels over byte spans and over integers, which hash as their decimal texts.

    Attributes:
        buckets: hash mod size of the byte spans `data[starts[i]:ends[i]]`, given data, starts, ends and size.
        ints: the hashes of integers.
    """

    buckets: Callable[[Bytes, Ints, Ints, int], Ints]
    ints: Callable[[Ints], Hashes]


HASHES: dict[str, TextHash] = {
    "XXH64": TextHash(hashing.bucket_spans, hashing.hash_ints),
    "MURMUR64": TextHash(murmur64.bucket_spans, murmur64.hash_ints),
}
"""XXH64 is Recgrad's own; MURMUR64 gives the ids of TorchEasyRec."""

DEFAULT_HASH = "XXH64"
