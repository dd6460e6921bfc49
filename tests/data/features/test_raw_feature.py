"""raw_feature against a plain Python reference: normalizers, vectors, boundaries, defaults, bad values."""

import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.data.features import Kind
from recgrad.errors import ConfigError

numbers = st.floats(-1e6, 1e6, width=32)


def config(body: str = "", name: str = "f") -> str:
    return f'raw_feature {{ feature_name: "{name}" expression: "user:c" {body} }}'


def single(x: float) -> float:
    """The nearest 32-bit float."""
    return struct.unpack("f", struct.pack("f", x))[0]


@settings(max_examples=25, deadline=None)
@given(cells=st.lists(st.none() | numbers, max_size=12), default=st.sampled_from(["0", "-2.5"]))
def test_numbers_in_every_form(encode, cells, default) -> None:
    want = [[single(float(default) if x is None else x)] for x in cells]
    texts = [None if x is None else repr(x) for x in cells]
    lists = [None if x is None else [x] for x in cells]
    arrays = [
        pa.array([1.0, None, *cells], pa.float64()).slice(2),
        pa.array([1.0, *cells, 3.0], pa.float32()).slice(1, len(cells)),
        pa.array(["1", "x", *texts], pa.string()).slice(2),
        pa.array(["1", *texts], pa.large_string()).dictionary_encode().slice(1),
        pa.array([[1.0], *lists], pa.list_(pa.float32())).slice(1),
        pa.array([[1.0], *lists], pa.list_(pa.float64(), 1)).slice(1),
    ]
    for array in arrays:
        assert encode(config(f'default_value: "{default}"'), {"c": array}).floats() == want


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64(), pa.bool_(), pa.decimal128(20, 0)])
def test_other_number_types(encode, kind) -> None:
    assert encode(config(), {"c": pa.array([1, 0, None], pa.int64()).cast(kind)}).floats() == [
        [1.0],
        [0.0],
        [0.0],
    ]


def test_texts_of_numbers(encode) -> None:
    texts = ["1e3", " 2 ", "+3", ".5", "4.", "-0.25", "1E-2", ""]
    want = [1000.0, 2.0, 3.0, 0.5, 4.0, -0.25, 0.01, 0.0]
    assert encode(config(), {"c": texts}).floats() == [[single(x)] for x in want]


@settings(max_examples=25, deadline=None)
@given(cells=st.lists(st.none() | st.lists(numbers, min_size=3, max_size=3), max_size=8))
def test_vectors_in_every_form(encode, cells) -> None:
    text = config('value_dim: 3 separator: "|" default_value: "1|2|3"')
    want = [[single(x) for x in cell or [1, 2, 3]] for cell in cells]
    texts = [None if cell is None else "|".join(map(repr, cell)) for cell in cells]
    for array in (
        pa.array([[0.0] * 3, *cells], pa.list_(pa.float32())).slice(1),
        pa.array([[0.0] * 3, *cells], pa.list_(pa.float64(), 3)).slice(1),
        pa.array([[0.0] * 3, *cells], pa.large_list(pa.float64())).slice(1),
        pa.array(["x", *texts], pa.string()).slice(1),
    ):
        assert encode(text, {"c": array}).floats() == want
    assert encode(text.replace("1|2|3", "7"), {"c": pa.array([None], pa.list_(pa.float32()))}).floats() == [
        [7.0] * 3
    ]


def test_dense_features_lie_side_by_side(encode) -> None:
    texts = [config(), config("value_dim: 2", "g").replace("user:c", "user:d")]
    result = encode(texts, {"c": [1.0, 2.0], "d": [[3.0, 4.0], [5.0, 6.0]]})
    assert result.encoded.dense.values.tolist() == [[1, 3, 4], [2, 5, 6]]
    assert (result.encoded.dense.keys, result.encoded.dense.dims) == (("f", "g"), (1, 2))


@settings(max_examples=25, deadline=None)
@given(cells=st.lists(st.none() | numbers, max_size=10))
@pytest.mark.parametrize(
    ("normalizer", "formula"),
    [
        ("method=log10,threshold=1e-10,default=-10", lambda x: math.log10(x) if x > 1e-10 else -10.0),
        ("method=log10", lambda x: math.log10(x) if x > 1e-10 else -10.0),
        ("method=zscore,mean=0.5,standard_deviation=10.0", lambda x: (x - 0.5) / 10),
        ("method=minmax,min=2.1,max=2.2", lambda x: (x - 2.1) / (2.2 - 2.1)),
        ("method=expression,expr=sign(x)", lambda x: (x > 0) - (x < 0)),
        ("method=expression, expr=min(max(x, -1), 1) * 2 + 3", lambda x: min(max(x, -1), 1) * 2 + 3),
        ("method=expression,expr=5", lambda x: 5),
    ],
)
def test_normalizers_apply_to_values_but_not_to_defaults(encode, cells, normalizer, formula) -> None:
    text = config(f'normalizer: "{normalizer}" default_value: "0.01"')
    want = [[0.01 if x is None else formula(x)] for x in cells]
    got = encode(text, {"c": pa.array(cells, pa.float64())}).floats()
    # one float64 rounding of the formula may differ before the rounding to float32
    np.testing.assert_allclose(np.array(got).reshape(-1), np.array(want).reshape(-1), rtol=1.2e-7, atol=1e-30)


@settings(max_examples=25, deadline=None)
@given(cells=st.lists(st.none() | st.sampled_from([0.1, 0.3, 0.7, 0.69, 0.71, -5.0, 1e9]), max_size=10))
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.string()])
def test_boundaries_count_edges_that_are_not_above(encode, cells, kind) -> None:
    edges = [0.1, 0.3, 0.7]
    text = config('boundaries: [0.1, 0.3, 0.7] embedding_dim: 4 default_value: "0.5"')
    want = [[sum(edge <= (0.5 if x is None else x) for edge in edges)] for x in cells]
    result = encode(text, {"c": pa.array(cells, pa.float64()).cast(kind)})
    assert result.ids() == want
    assert result.features[0].spec.num_rows == 4


def test_boundaries_of_integers_and_a_fractional_default(encode) -> None:
    text = config('boundaries: [0, 1, 2] embedding_dim: 4 default_value: "0.5"')
    assert encode(text, {"c": pa.array([-1, 0, 1, 5, None])}).ids() == [[0], [1], [2], [3], [1]]


def test_boundaries_of_vectors_and_without_default(encode) -> None:
    text = config(
        'boundaries: [0.05, 0.15, 0.25] embedding_dim: 4 value_dim: 2 default_value: "" separator: "|"'
    )
    assert encode(text, {"c": ["0.2|0.5", "", None, "0.3|0.1"]}).ids() == [[2, 3], [], [], [3, 1]]


def test_boundaries_follow_the_normalizer(encode) -> None:
    text = config(
        'boundaries: [0.05, 0.15] embedding_dim: 4 default_value: "0.1"'
        ' normalizer: "method=log10,threshold=0.05,default=-5"'
    )
    assert encode(text, {"c": [0.1, None, 10.0]}).ids() == [[0], [1], [2]]


def test_encoded_columns_are_neither_normalized_nor_cut(encode) -> None:
    text = config('normalizer: "method=log10" fg_encoded_default_value: "0.1"')
    assert encode(text, {"f": [None, 2.0]}, mode="FG_NONE").floats() == [[single(0.1)], [2.0]]
    vector = config('value_dim: 2 fg_encoded_default_value: "0\x031"')
    assert encode(vector, {"f": ["3\x034", None]}, mode="FG_NONE").floats() == [[3.0, 4.0], [0.0, 1.0]]
    ids = config("boundaries: [0.5, 0.6] embedding_dim: 4")
    assert encode(ids, {"f": [2, None, 0]}, mode="FG_NONE").ids() == [[2], [], [0]]
    faults = encode(ids, {"f": [3]}, mode="FG_NONE", bad=True).faults
    assert faults.first().problem == "id 3 is outside len(boundaries) + 1, 3"
    faults = encode(ids, {"f": [[0, 1]]}, mode="FG_NONE", bad=True).faults
    assert faults.first().problem == "has 2 values, not value_dim 1"


def test_bucketize_cuts_but_does_not_normalize(encode) -> None:
    text = config('normalizer: "method=log10" boundaries: [0.5, 5] embedding_dim: 4')
    assert encode(text, {"f": [0.1, 2.0, None, 10.0]}, mode="FG_BUCKETIZE").ids() == [[0], [1], [0], [2]]


@pytest.mark.parametrize(
    ("body", "column", "rows", "problem"),
    [
        ("", [1.0, float("nan"), 2.0, float("inf")], [1, 3], "nan is not a finite number"),
        ("", [1.0, -float("inf")], [1], "-inf is not a finite number"),
        ("", pa.array([1e300]), [0], "1e+300 is too large for a 32-bit float"),
        ("", ["1", "abc", "", "2x"], [1, 3], "'abc' is not a number"),
        ("", ["nan"], [0], "nan is not a finite number"),
        ('default_value: ""', [1.0, None], [1], "a value is missing"),
        ("value_dim: 2", [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]], [1, 2], "has 1 values, not value_dim 2"),
        ("value_dim: 2", [[1.0, None]], [0], "has 1 values, not value_dim 2"),
        ("", [[1.0, 2.0]], [0], "has 2 values, not value_dim 1"),
        ("value_dim: 2", [1.0], [0], "has 1 values, not value_dim 2"),
        ("boundaries: [1, 2] embedding_dim: 4", [float("nan")], [0], "nan is not a finite number"),
        ("boundaries: [1, 2] embedding_dim: 4", [[1.0], [1.0, 2.0]], [1], "has 2 values, not value_dim 1"),
        (
            'normalizer: "method=log10"',
            [float("nan"), float("inf"), 1.0],
            [0, 1],
            "nan is not a finite number",
        ),
        (
            'normalizer: "method=expression,expr=1/x"',
            [0.0, 1.0],
            [0],
            "the normalizer makes no finite number of 0.0",
        ),
    ],
)
def test_bad_numbers_are_faults_of_their_rows(encode, body, column, rows, problem) -> None:
    faults = encode(config(body), {"c": column}, bad=True).faults
    assert faults.rows.tolist() == rows
    assert faults.first().problem == problem
    assert (faults.first().column, faults.first().feature, faults.first().row) == ("c", "f", rows[0])


def test_encoded_nulls_need_a_default(encode) -> None:
    faults = encode(config(), {"f": [1.0, None]}, mode="FG_NONE", bad=True).faults
    assert str(faults.first()) == (
        "feature f: a value is missing (column 'f'); set fg_encoded_default_value, or fill the column"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('normalizer: "log"', "key=value pairs between commas, got 'log'"),
        ('normalizer: "method=log"', "did you mean 'log10'?"),
        ('normalizer: "method=zscore,mean=1"', "must set standard_deviation"),
        (
            'normalizer: "method=zscore,mean=1,standard_deviation=0"',
            "standard_deviation must be positive, got 0.0",
        ),
        ('normalizer: "method=minmax,min=1,max=1"', "max of minmax must be above min"),
        ('normalizer: "method=minmax,min=1,max=x"', "max of the normalizer must be a number, got 'x'"),
        ('normalizer: "method=minmax,min=1,max=2,mean=3"', "does not know 'mean'"),
        ('normalizer: "method=expression,expr=y+1"', "may only name x, got y"),
        ('normalizer: "method=expression,expr=len(x)"', "one number at a time"),
        ("boundaries: [1, 1] embedding_dim: 4", "boundaries must be rising numbers"),
        ("value_dim: 0", "value_dim must be at least 1, got 0"),
        ('value_dim: 3 separator: "|" default_value: "1|2"', "must have value_dim 3 numbers, got 2"),
        ('default_value: "x"', "'x' is not a number"),
        ('default_value: "nan"', "must be finite"),
        ('embedding_name: "t"', "embedding_name is of an embedding table"),
        ("storage: PLAIN", "storage is of an embedding table"),
        ("mlp {}", "mlp needs embedding_dim"),
        ("mlp {} embedding_dim: 4 boundaries: 1", "mlp is for float values"),
    ],
)
def test_settings_that_cannot_hold_are_refused(build, body, message) -> None:
    with pytest.raises(ConfigError) as error:
        build(config(body))
    assert message in str(error.value)


def test_spec_of_dense_and_bucketed_numbers(build) -> None:
    dense = build(config("value_dim: 4 autodis { num_channels: 3 } embedding_dim: 16"))[0].spec
    assert (dense.kind, dense.value_dim, dense.num_rows, dense.embedding_dim) == (Kind.DENSE, 4, 0, 16)
    assert dense.dense_embedding.num_channels == 3
    plain = build(config())[0].spec
    assert (plain.kind, plain.value_dim, plain.embedding_dim, plain.dense_embedding) == (
        Kind.DENSE,
        1,
        0,
        None,
    )
    cut = build(config("boundaries: [1, 2, 3] embedding_dim: 8"))[0].spec
    assert (cut.kind, cut.num_rows, cut.embedding_dim) == (Kind.SPARSE, 4, 8)
