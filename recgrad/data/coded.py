"""Encoding text columns through their dictionaries.

A parquet file keeps most text columns as a dictionary of distinct texts and a number for each
row. A feature that reads one such column needs to encode each distinct text once; rows then
take the ids of their texts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.encoded import Encoded, IdArrays, Ints
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.features.spec import Kind


@dataclass(frozen=True)
class _Codes:
    """The ids of each text of a dictionary; the last one stands for a null.

    Attributes:
        dictionary: kept so that its memory, by which it is known, is not used again.
        ids: ids, text after text.
        starts: where the ids of each text begin.
        single: every text, though perhaps not the null, has one id.
        weights: one for each id, or None.
        faulty: some text cannot be encoded.
    """

    dictionary: pa.Array
    ids: Ints
    starts: Ints
    single: bool
    weights: npt.NDArray[np.float32] | None
    faulty: bool


class CodedEncoder:
    """A FeatureEncoder that encodes dictionary columns by their distinct texts where it can.

    The result is the same as the FeatureEncoder's. When a dictionary holds a text that cannot be
    encoded, the rows themselves are encoded, so that faults name rows.

    Args:
        features: as build_features gives them.
        coded_columns: columns that come as dictionary arrays.
        capacity: dictionaries whose ids are kept for each feature.
    """

    def __init__(
        self, features: Sequence[Feature], coded_columns: Collection[str], capacity: int = 8
    ) -> None:
        self._plain = FeatureEncoder(features)
        self.columns = self._plain.columns
        self._coded = [feature for feature in features if _can_code(feature, coded_columns)]
        names = {feature.name for feature in self._coded}
        self._rest = FeatureEncoder([feature for feature in features if feature.name not in names])
        self._alone = {feature.name: FeatureEncoder([feature]) for feature in self._coded}
        self._order = [f.name for f in features if f.spec.kind is Kind.SPARSE and not f.spec.sequence]
        self._capacity = capacity
        self._kept: dict[str, OrderedDict[tuple[int, ...], _Codes]] = {name: OrderedDict() for name in names}
        self._lock = threading.Lock()

    def encode(
        self,
        columns: Mapping[str, pa.Array],
        size: int,
        faults: Faults,
        mask: npt.NDArray[np.bool_] | None = None,
    ) -> Encoded:
        """As FeatureEncoder.encode."""
        arrays = {feature.name: columns[feature.columns[0]] for feature in self._coded}
        ready = all(pa.types.is_dictionary(array.type) for array in arrays.values())
        if not arrays or not ready or mask is not None:
            return self._plain.encode(columns, size, faults, mask)
        codes = {name: self._codes(name, array) for name, array in arrays.items()}
        if any(item.faulty for item in codes.values()):
            return self._plain.encode(columns, size, faults, mask)
        rest = self._rest.encode(columns, size, faults)
        rows = {name: _row_codes(array, len(codes[name].dictionary)) for name, array in arrays.items()}
        single = all(item.single and not arrays[name].null_count for name, item in codes.items())
        sparse = self._merge(rest.sparse, codes, rows, size, single and rest.sparse.single)
        return replace(rest, sparse=sparse)

    def _codes(self, name: str, array: pa.Array) -> _Codes:
        dictionary = array.dictionary
        data = dictionary.buffers()
        key = (
            dictionary.offset,
            len(dictionary),
            *(0 if buffer is None else buffer.address for buffer in data),
        )
        with self._lock:
            kept = self._kept[name].get(key)
            if kept is not None:
                self._kept[name].move_to_end(key)
                return kept
        codes = self._encode_dictionary(name, dictionary)
        with self._lock:
            self._kept[name][key] = codes
            if len(self._kept[name]) > self._capacity:
                self._kept[name].popitem(last=False)
        return codes

    def _encode_dictionary(self, name: str, dictionary: pa.Array) -> _Codes:
        encoder = self._alone[name]
        texts = pa.concat_arrays([dictionary, pa.nulls(1, dictionary.type)])
        faults = Faults()
        encoded = encoder.encode({encoder.columns[0]: texts}, len(texts), faults).sparse
        single = bool((encoded.lengths[:-1] == 1).all())
        return _Codes(dictionary, encoded.values, encoded.offsets, single, encoded.weights, bool(faults))

    def _merge(
        self,
        rest: IdArrays,
        codes: Mapping[str, _Codes],
        rows: Mapping[str, Ints],
        size: int,
        single: bool,
    ) -> IdArrays:
        """All sparse features in the order of the config."""
        plain = rest.weights is None and all(item.weights is None for item in codes.values())
        at = {name: i for i, name in enumerate(rest.keys)}
        if single and plain:
            values = np.empty((len(self._order), size), np.int64)
            known = rest.values.reshape(len(at), size)
            for i, name in enumerate(self._order):
                if name in at:
                    values[i] = known[at[name]]
                else:
                    codes[name].ids.take(rows[name], out=values[i], mode="clip")
            ones = np.ones(values.size, np.int32)
            counts = (size,) * len(self._order)
            return IdArrays(tuple(self._order), values.reshape(-1), ones, counts, None, True)
        parts = [rest[name] if name in at else _gather(name, codes[name], rows[name]) for name in self._order]
        weights = None
        if not plain:
            weights = np.concatenate(
                [np.ones(len(p.values), np.float32) if p.weights is None else p.weights for p in parts]
            )
        return IdArrays(
            tuple(self._order),
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            (size,) * len(parts),
            weights,
            False,
        )


def _can_code(feature: Feature, coded_columns: Collection[str]) -> bool:
    spec = feature.spec
    alone = len(feature.columns) == 1 and feature.columns[0] in coded_columns and not feature.dependencies
    return alone and spec.kind is Kind.SPARSE and not spec.sequence


def _row_codes(array: pa.Array, null_code: int) -> Ints:
    indices = array.indices
    if indices.null_count:
        indices = indices.fill_null(null_code)
    codes: Ints = indices.to_numpy(zero_copy_only=False)
    return codes


def _gather(name: str, codes: _Codes, rows: Ints) -> IdArrays:
    """The ids of the texts of `rows`."""
    starts = codes.starts[rows]
    counts = codes.starts[rows + 1] - starts
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    index = np.repeat(starts - (ends - counts), counts) + np.arange(total)
    weights = None if codes.weights is None else codes.weights[index]
    return IdArrays((name,), codes.ids[index], counts.astype(np.int32), (len(rows),), weights)
