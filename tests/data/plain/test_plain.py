"""The kernel of plain features gives what FeatureEncoder gives, for every value, or leaves it to that."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.config.proto import feature_pb2
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features import build_features
from recgrad.data.features.base import Feature
from recgrad.data.features.id_feature import IdFeature
from recgrad.data.plain import layout
from recgrad.data.plain.encoder import Cells, PlainEncoder
from recgrad.data.plain.layout import EMPTY
from recgrad.errors import DataError

IDS = {
    "plain": "num_buckets: 100",
    "filled": 'num_buckets: 100 default_value: "7"',
    "xxh64": "hash_bucket_size: 97",
    "whole_hash": 'hash_bucket_size: 97 fg_value_type: "int64" default_value: "3"',
    "murmur": "hash_bucket_size: 1000 hash: MURMUR64",
    "words": 'vocab_list: "7" vocab_list: "-3" vocab_list: "é" vocab_list: "ab" default_value: "ab"',
    "numbered": (
        'vocab_dict { key: "7" value: 3 } vocab_dict { key: "a" value: 9 } default_bucketize_value: 5 '
        'separator: "::"'
    ),
}
NUMBERS = {
    "number": 'default_value: ""',
    "number_filled": 'default_value: "-1.5"',
    "scaled": 'normalizer: "method=zscore,mean=0.3,standard_deviation=0.7" default_value: "2"',
    "between": 'normalizer: "method=minmax,min=-1,max=3" default_value: ""',
    "cut": 'boundaries: [-1, 0, 0.7, 5] default_value: ""',
    "cut_filled": 'boundaries: [-1, 0, 0.7, 5] default_value: "0.7"',
    "cut_scaled": (
        'boundaries: [-1, 0, 0.7] normalizer: "method=zscore,mean=0.1,standard_deviation=3" '
        'default_value: "1"'
    ),
}


def made(mode: str = "FG_NORMAL") -> list[Feature]:
    texts = [
        f'id_feature {{ feature_name: "{name}" expression: "user:c" embedding_dim: 4 {body} }}'
        for name, body in IDS.items()
    ]
    for name, body in NUMBERS.items():
        width = "embedding_dim: 4" if "boundaries" in body else ""
        texts.append(f'raw_feature {{ feature_name: "{name}" expression: "user:c" {width} {body} }}')
    messages = [text_format.Parse(text, feature_pb2.FeatureConfig()) for text in texts]
    return build_features(messages, fg_mode=mode, multival_sep="\x03")


FEATURES = made()
PLAIN = PlainEncoder(FEATURES)
ALONE = {feature.name: FeatureEncoder([feature]) for feature in FEATURES}


def check_same(array: pa.Array, shared: bool = False) -> set[str]:
    """Compare every feature of one column with FeatureEncoder; returns those that are left to it."""
    rows = pa.record_batch({"c": array})
    if shared:
        other = pa.record_batch({"d": pa.array(range(5))})
        found = PLAIN.encode(other, rows)
    else:
        found = PLAIN.encode(rows)
    assert found is not None
    text = array.type in (pa.string(), pa.large_string(), pa.binary())
    # A separator alone leaves one value or none, and is still cut by the other encoder.
    cut = text and any(
        b"\x1d" in bytes(value) for value in array.cast(pa.large_binary()).to_pylist() if value
    )
    for name, encoder in ALONE.items():
        faults = Faults()
        try:
            wanted = encoder.encode({"c": array}, len(array), faults)
        except DataError:
            assert name in found.odd
            continue
        if name in found.odd:
            several = name in PLAIN.ids and bool((wanted.sparse.lengths > 1).any())
            assert faults or several or cut or (text and name in NUMBERS), (name, array)
            continue
        assert not faults, faults.first()
        if name in PLAIN.numbers:
            got = found.numbers[:, PLAIN.numbers.index(name)]
            if shared:
                assert (got == got[0]).all()
                got = got[:1]
            np.testing.assert_array_equal(got.view(np.int32), wanted.dense.values[:, 0].view(np.int32))
        else:
            at = PLAIN.ids.index(name)
            assert found.shared[at] == shared
            got = found.ids[at][: len(array)]
            np.testing.assert_array_equal(got != EMPTY, wanted.sparse.lengths == 1, name)
            np.testing.assert_array_equal(got[got != EMPTY], wanted.sparse.values, name)
    return set(found.odd)


INTEGERS = {
    kind: st.integers(np.iinfo(kind.to_pandas_dtype()).min, np.iinfo(kind.to_pandas_dtype()).max)
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
}
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{kind: st.integers(0, 99) | values for kind, values in INTEGERS.items()},
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32) | st.sampled_from([0.0, -0.0, 0.7, 7.0, 99.0, -1.0]),
    pa.float64(): st.floats() | st.sampled_from([0.0, 0.7, 7.0, 2.0**62, 2.0**63, 1e39, 1e-46]),
    pa.string(): st.text(max_size=40) | st.sampled_from(["", "7", " 7 ", "+7", "-3", "é", "a\x1d7", "a::7"]),
    pa.large_string(): st.text("0123456789-+ ", max_size=20),
    pa.binary(): st.text(max_size=9).map(str.encode),
}


@settings(max_examples=100, deadline=None)
@given(data=st.data(), kind=st.sampled_from(list(VALUES)), first=st.integers(0, 9), shared=st.booleans())
def test_every_value_is_encoded_as_ever(
    data: st.DataObject, kind: pa.DataType, first: int, shared: bool
) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=first + 1, max_size=first + 20))
    array = pa.array(values, kind).slice(first)
    check_same(array.slice(0, 1) if shared else array, shared)


def test_usual_values_are_not_left_to_others() -> None:
    assert check_same(pa.array([3, 0, 99])) == set()
    assert check_same(pa.array([3, None, 99])) == {"number", "between"}
    assert check_same(pa.array([3.0, 7.0], pa.float32())) == set()
    assert check_same(pa.array(["3", None, ""])) == set(NUMBERS)
    assert check_same(pa.array(["é", "x"])) == {*NUMBERS, "plain", "filled", "whole_hash"}


def test_what_the_kernel_cannot_read_is_left_to_others() -> None:
    every = {feature.name for feature in FEATURES}
    for array in (
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([[1], [2, 3]]),
        pa.array([None, None]),
        pa.array([1, 2**63], pa.uint64()),
        pa.array(["2020-01-01", "2020-01-02"]).cast(pa.date32()),
    ):
        found = PLAIN.encode(pa.record_batch({"c": array}))
        assert found is not None
        assert set(found.odd) == every


def test_long_texts_and_many_rows() -> None:
    rng = np.random.default_rng(0)
    check_same(pa.array(["x" * int(n) + str(n) for n in rng.integers(0, 300, 1000)]))
    check_same(pa.array(rng.integers(-(2**63), 2**63 - 1, 3000)))
    check_same(pa.array(rng.normal(size=3000)))


def test_encoded_columns_are_read_by_their_names() -> None:
    texts = [
        'id_feature { feature_name: "a" num_buckets: 9 embedding_dim: 4 }',
        'id_feature { feature_name: "b" hash_bucket_size: 9 embedding_dim: 4 fg_encoded_default_value: "2" }',
        'raw_feature { feature_name: "x" fg_encoded_default_value: "0.5" }',
    ]
    messages = [text_format.Parse(text, feature_pb2.FeatureConfig()) for text in texts]
    plain = PlainEncoder(build_features(messages, fg_mode="FG_NONE", multival_sep="\x03"))
    rows = pa.record_batch({"b": [8, None], "x": [None, 2.5], "more": ["", ""], "a": ["1", None]})
    found = plain.encode(rows)
    assert found is not None
    assert found.odd == ()
    assert found.ids.tolist() == [[1, EMPTY], [8, 2]]
    assert found.numbers.tolist() == [[0.5], [2.5]]


def test_features_that_are_more_than_plain_are_not_taken() -> None:
    texts = [
        'id_feature { feature_name: "w" expression: "user:c" weighted: true num_buckets: 9 '
        "embedding_dim: 4 }",
        'id_feature { feature_name: "two" expression: "user:c" num_buckets: 9 embedding_dim: 4 '
        'separator: "|" default_value: "1|2" }',
        'raw_feature { feature_name: "log" expression: "user:c" normalizer: "method=log10" }',
        'raw_feature { feature_name: "vector" expression: "user:c" value_dim: 3 }',
        'raw_feature { feature_name: "precise" expression: "user:c" data_type: "FP64" }',
        'combo_feature { feature_name: "pair" expression: "user:c" expression: "user:d" hash_bucket_size: 9 '
        "embedding_dim: 4 }",
        'sequence_id_feature { feature_name: "seq" expression: "user:c" num_buckets: 9 embedding_dim: 4 '
        'sequence_delim: ";" sequence_length: 3 }',
    ]
    messages = [text_format.Parse(text, feature_pb2.FeatureConfig()) for text in texts]
    plain = PlainEncoder(build_features(messages, fg_mode="FG_NORMAL", multival_sep="\x03"))
    assert plain.features == ()
    assert plain.encode(pa.record_batch({"c": [1]})) is None


def test_a_kind_with_a_step_of_its_own_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(IdFeature):
        def transform(self, inputs: list[Any], scope: Any) -> Any:
            return inputs[0]

    feature = next(feature for feature in made() if feature.name == "plain")
    assert len(PlainEncoder([feature]).features) == 1
    feature.__class__ = Odd
    assert PlainEncoder([feature]).features == ()


def test_columns_that_are_missing_or_there_twice_are_left_to_others() -> None:
    assert PLAIN.encode(pa.record_batch({"d": [1]})) is None
    twice = pa.record_batch([pa.array([1]), pa.array([1])], names=["c", "c"])
    assert PLAIN.encode(twice) is None
    one = pa.record_batch({"c": [1]})
    assert PLAIN.encode(one, one) is None


def test_memory_is_given_back() -> None:
    """Exported arrays are released: what they hold is freed."""
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    for _ in range(20):
        PLAIN.encode(pa.record_batch({"c": pa.array(np.arange(9_000)).cast(pa.int32())}))
    assert pool.bytes_allocated() - before < 9_000 * 4 * 3


def cells_of(array: pa.Array, present: tuple[int, ...] = (1,)) -> Cells:
    """A column as it is read from JSON, beside others."""
    size = len(array)
    values, ends = np.zeros((3, size + 4), np.int64), np.zeros((3, size + 4), np.int64)
    valid = np.zeros((3, size + 4), np.uint8)
    text = b"before"
    kind = layout.INT64
    for i, value in enumerate(array.to_pylist()):
        if value is None:
            continue
        valid[1, i] = 1
        if isinstance(value, str):
            kind = layout.SPANS
            values[1, i], ends[1, i] = len(text), len(text) + len(value.encode())
            text += value.encode() + b"|"
        elif isinstance(value, float):
            values.view(np.float64)[1, i] = value
        else:
            values[1, i] = value
    kinds = {pa.float64(): layout.FLOAT64, pa.float32(): layout.WIDE_FLOAT32, pa.string(): layout.SPANS}
    kind = kinds.get(array.type, kind)
    names = ("a", "c", "b")
    buffer = np.frombuffer(text, np.uint8)
    return Cells(size, names, (layout.INT64, kind, layout.INT64), present, values, ends, valid, buffer)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kind=st.sampled_from([pa.int64(), pa.float64(), pa.float32(), pa.string()]))
def test_cells_are_encoded_as_arrow_columns(data: st.DataObject, kind: pa.DataType) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=20))
    array = pa.array(values, kind)
    found, wanted = PLAIN.encode_cells(cells_of(array)), PLAIN.encode(pa.record_batch({"c": array}))
    assert found is not None
    assert wanted is not None
    assert found.odd == wanted.odd
    for i, name in enumerate(PLAIN.ids):
        if name not in found.odd:
            np.testing.assert_array_equal(found.ids[i], wanted.ids[i], name)
    for i, name in enumerate(PLAIN.numbers):
        if name not in found.odd:
            np.testing.assert_array_equal(found.numbers[:, i], wanted.numbers[:, i], name)


def test_cells_without_a_column_are_left_to_others() -> None:
    assert PLAIN.encode_cells(cells_of(pa.array([1, 2]), present=(0, 2))) is None
