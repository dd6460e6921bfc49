"""Encoding by config text, and results as plain Python lists."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import text_format

from recgrad.config.proto import feature_pb2
from recgrad.data.encoded import Encoded
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features import Feature, build_features
from recgrad.data.hashing import hash_array


def _build(
    texts: str | Sequence[str], mode: str = "FG_NORMAL", sep: str = "\x03", **more: Any
) -> list[Feature]:
    messages = []
    for text in [texts] if isinstance(texts, str) else texts:
        message = feature_pb2.FeatureConfig()
        text_format.Parse(text, message)
        messages.append(message)
    return build_features(messages, fg_mode=mode, multival_sep=sep, **more)


@dataclass
class Result:
    """What came of encoding, with the first feature's results as lists."""

    encoded: Encoded
    faults: Faults
    features: list[Feature]

    def ids(self, name: str | None = None) -> list[list[int]]:
        """The ids of each row."""
        part = self.encoded.sparse[name or self.features[0].spec.name]
        offsets = part.offsets.tolist()
        values = part.values.tolist()
        return [values[a:b] for a, b in pairwise(offsets)]

    def weights(self) -> list[list[float]]:
        """The weights of each row."""
        part = self.encoded.sparse[self.features[0].spec.name]
        offsets, weights = part.offsets.tolist(), part.weights.tolist()
        return [weights[a:b] for a, b in pairwise(offsets)]

    def floats(self, name: str | None = None) -> list[list[float]]:
        """The vector of each row."""
        return self.encoded.dense[name or self.features[0].spec.name].tolist()

    def sequence_ids(self, name: str | None = None) -> list[list[list[int]]]:
        """The ids of each position of each row."""
        name = name or self.features[0].spec.name
        part = self.encoded.sequence_sparse[name]
        offsets, values = part.offsets.tolist(), part.values.tolist()
        bags = iter([values[a:b] for a, b in pairwise(offsets)])
        rows = [[next(bags) for _ in range(n)] for n in self.encoded.sequence_lengths[name].tolist()]
        assert next(bags, None) is None
        return rows

    def sequence_floats(self, name: str | None = None) -> list[list[list[float]]]:
        """The vector of each position of each row."""
        name = name or self.features[0].spec.name
        vectors = iter(self.encoded.sequence_dense[name].tolist())
        rows = [[next(vectors) for _ in range(n)] for n in self.encoded.sequence_lengths[name].tolist()]
        assert next(vectors, None) is None
        return rows


@pytest.fixture(scope="session")
def build() -> Callable[..., list[Feature]]:
    return _build


@pytest.fixture(scope="session")
def encode() -> Callable[..., Result]:
    def run(
        texts: str | Sequence[str],
        columns: dict[str, Any],
        mode: str = "FG_NORMAL",
        sep: str = "\x03",
        mask: Any = None,
        bad: bool = False,
        **more: Any,
    ) -> Result:
        features = _build(texts, mode, sep, **more)
        arrays = {k: v if isinstance(v, pa.Array) else pa.array(v) for k, v in columns.items()}
        size = len(next(iter(arrays.values())))
        faults = Faults()
        encoded = FeatureEncoder(features).encode(arrays, size, faults, mask)
        assert bool(faults) == bad, faults.first()
        return Result(encoded, faults, features)

    return run


@pytest.fixture(scope="session")
def bucket() -> Callable[[Any, int], int]:
    """The hash bucket of one value; hashing itself is proved in test_hashing."""
    return lambda value, size: int(hash_array(pa.array([str(value)]))[0]) % size


@pytest.fixture(scope="session")
def forms() -> Callable[[list[list[str] | None], str], dict[str, pa.Array]]:
    """The same cells of texts in every form a column can have, most of them as slices."""

    def render(cells: list[list[str] | None], sep: str) -> dict[str, pa.Array]:
        texts = [None if cell is None else sep.join(cell) for cell in cells]
        junk = ["junk", None]
        lists = pa.array([["junk"], None, *cells], pa.list_(pa.string()))
        return {
            "string": pa.array(texts, pa.string()),
            "sliced string": pa.array([*junk, *texts, "junk"], pa.string()).slice(2, len(texts)),
            "binary": pa.array([*junk, *texts], pa.string()).cast(pa.binary()).slice(2),
            "string_view": pa.array([*junk, *texts], pa.string_view()).slice(2),
            "large_string": pa.array([*junk, *texts], pa.large_string()).slice(2),
            "dictionary": pa.array([*junk, *texts], pa.string()).dictionary_encode().slice(2),
            "list": lists.slice(2),
            "large_list": lists.cast(pa.large_list(pa.string())).slice(2),
            "list of dictionary": pa.array(
                [["junk"], None, *cells], pa.list_(pa.dictionary(pa.int32(), pa.string()))
            ).slice(2),
        }

    return render
