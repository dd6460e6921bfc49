"""Encoding by dictionaries gives what encoding the rows gives."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data import build_features
from recgrad.data.coded import CodedEncoder
from recgrad.data.encoded import IdArrays
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults

FEATURES = """
feature_configs { id_feature { feature_name: "n" expression: "item:n" embedding_dim: 4 num_buckets: 9 } }
feature_configs { id_feature { feature_name: "a" expression: "item:a"
  embedding_dim: 4 hash_bucket_size: 50 } }
feature_configs { id_feature {
  feature_name: "tags" expression: "item:b" embedding_dim: 4 hash_bucket_size: 50
  separator: "|" default_value: "x" } }
feature_configs { id_feature {
  feature_name: "weighted" expression: "item:c" embedding_dim: 4 hash_bucket_size: 50
  separator: "|" weighted: true } }
feature_configs { combo_feature {
  feature_name: "cross" expression: "item:a" expression: "item:b" embedding_dim: 4 hash_bucket_size: 50 } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" } }
"""


def features(text: str = FEATURES):
    head = 'train_input_path: "" eval_input_path: "" model_dir: ""'
    config = text_format.Parse(head + text, PipelineConfig())
    return build_features(config.feature_configs, fg_mode="FG_DAG", multival_sep="\x03")


def same(a: IdArrays, b: IdArrays) -> None:
    assert a.keys == b.keys
    assert a.bag_counts == b.bag_counts
    assert np.array_equal(a.values, b.values)
    assert np.array_equal(a.lengths, b.lengths)
    assert (a.weights is None) == (b.weights is None)
    assert a.weights is None or np.array_equal(a.weights, b.weights)
    assert a.single == b.single or not a.single


TEXTS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(["", "u", "vv", "ü"])),
        st.one_of(st.none(), st.sampled_from(["", "p|q", "q", "p|q|r"])),
        st.one_of(st.none(), st.sampled_from(["p:0.5|q:2", "q:1", ""])),
    ),
    max_size=30,
)


@given(rows=TEXTS, start=st.integers(0, 5), weighted=st.booleans())
@settings(max_examples=60, deadline=None)
def test_dictionaries_and_rows_give_the_same_batches(rows, start, weighted):
    built = [f for f in features() if weighted or f.name != "weighted"]
    count = len(rows)
    plain = {name: pa.array([row[i] for row in rows], pa.string()) for i, name in enumerate("abc")}
    numbers = {
        "n": pa.array([i % 9 for i in range(count)], pa.int64()),
        "price": pa.array([0.5] * count, pa.float32()),
    }
    coded = {name: array.dictionary_encode() for name, array in plain.items()}
    encoder = CodedEncoder(built, {"a", "b", "c"})
    for cut in (0, min(start, count)):
        part = {name: array.slice(cut) for name, array in {**numbers, **plain}.items()}
        expected = FeatureEncoder(built).encode(part, count - cut, Faults())
        part = {name: array.slice(cut) for name, array in {**numbers, **coded}.items()}
        got = encoder.encode(part, count - cut, Faults())
        same(got.sparse, expected.sparse)
        assert np.array_equal(got.dense.values, expected.dense.values)


def test_ids_of_a_dictionary_are_kept_and_forgotten():
    built = features(
        'feature_configs { id_feature { feature_name: "a" expression: "item:a" embedding_dim: 4 '
        "hash_bucket_size: 50 } }"
    )
    encoder = CodedEncoder(built, {"a"}, capacity=2)
    arrays = [pa.array([f"t{i}", f"t{i + 1}"]).dictionary_encode() for i in range(5)]
    for array in [*arrays, *arrays]:
        for part in (array, array.slice(1)):
            got = encoder.encode({"a": part}, len(part), Faults())
            expected = FeatureEncoder(built).encode({"a": part.dictionary_decode()}, len(part), Faults())
            same(got.sparse, expected.sparse)
    assert len(encoder._kept["a"]) == 2


def test_a_bad_text_is_named_by_its_row():
    built = features(
        "feature_configs { id_feature { feature_name: 'a' expression: 'item:a' embedding_dim: 4 "
        "num_buckets: 9 }}"
    )
    encoder = CodedEncoder(built, {"a"})
    array = pa.array(["1", "2", "77", "2"]).dictionary_encode()
    faults = Faults()
    encoder.encode({"a": array}, 4, faults)
    assert faults.rows.tolist() == [2]
    # The bad text is in the dictionary, but no row of the slice has it.
    faults = Faults()
    got = encoder.encode({"a": array.slice(0, 2)}, 2, faults)
    assert not faults
    assert got.sparse.values.tolist() == [1, 2]


@pytest.mark.parametrize("empty", [True, False])
def test_no_rows(empty):
    built = features()
    encoder = CodedEncoder(built, {"a", "b", "c"})
    texts = pa.array([] if empty else ["x"], pa.string()).dictionary_encode().slice(0, 0)
    columns = {
        "a": texts,
        "b": texts,
        "c": texts,
        "n": pa.array([], pa.int64()),
        "price": pa.array([], pa.float32()),
    }
    assert encoder.encode(columns, 0, Faults()).sparse.bag_counts == (0,) * 5
