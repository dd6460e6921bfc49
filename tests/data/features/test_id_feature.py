"""id_feature against a plain Python reference, over forms of columns, nulls, defaults and vocabularies."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.data.features import Kind
from recgrad.errors import ConfigError, DataError

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x1d|"), max_size=6)
cells = st.lists(st.none() | st.lists(words, max_size=4), max_size=12)


def config(body: str, kind: str = "id_feature") -> str:
    return f'{kind} {{ feature_name: "f" expression: "user:c" embedding_dim: 8 {body} }}'


def reference(cell: list[Any] | None, number: Any, default: list[int], value_dim: int = 0) -> list[int]:
    """The ids of one row: what is there, else the default."""
    ids = [number(word) for word in cell or [] if word not in (None, "")]
    ids = ids or default
    return ids[:value_dim] if value_dim else ids


@settings(max_examples=25, deadline=None)
@given(cells=cells, default=st.sampled_from(["", "zz"]), value_dim=st.sampled_from([0, 1, 2]))
def test_hashing_is_the_same_in_every_form(encode, bucket, forms, cells, default, value_dim) -> None:
    text = config(f'hash_bucket_size: 1000 separator: "|" default_value: "{default}" value_dim: {value_dim}')
    want = [
        reference(
            cell, lambda word: bucket(word, 1000), [bucket(default, 1000)] if default else [], value_dim
        )
        for cell in cells
    ]
    for form, array in forms(cells, "|").items():
        result = encode(text, {"c": array})
        assert result.ids() == want, form
        assert result.encoded.sparse.single == all(len(row) == 1 for row in want), form


@settings(max_examples=25, deadline=None)
@given(
    cells=st.lists(st.none() | st.lists(st.none() | st.integers(0, 99), max_size=4), max_size=10),
    default=st.sampled_from(["", "7"]),
)
@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.uint8(), pa.float64(), pa.int16()])
def test_lists_of_numbers(encode, cells, default, kind) -> None:
    text = config(f'num_buckets: 100 default_value: "{default}"')
    array = pa.array([[1], *cells], pa.list_(kind)).slice(1)
    want = [reference(cell, int, [7] if default else []) for cell in cells]
    assert encode(text, {"c": array}).ids() == want


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.int32(), pa.uint64(), pa.float32(), pa.string(), pa.decimal128(21, 2)]
)
def test_single_numbers_with_and_without_nulls(encode, kind) -> None:
    text = config("num_buckets: 100")
    full = pa.array([9, 3, 4, 99]).cast(kind).slice(1)
    result = encode(text, {"c": full})
    assert result.ids() == [[3], [4], [99]]
    assert result.encoded.sparse.single
    assert result.encoded.sparse.lengths.tolist() == [1, 1, 1]
    holes = pa.array([9, 3, None, 99]).cast(kind).slice(1)
    assert encode(text, {"c": holes}).ids() == [[3], [], [99]]
    assert encode(config('num_buckets: 100 default_value: "5"'), {"c": holes}).ids() == [[3], [5], [99]]


def test_numbers_and_their_texts_hash_alike(encode, bucket) -> None:
    text = config("hash_bucket_size: 1000")
    want = [[bucket(n, 1000)] for n in (0, -12, 12, 2**62)]
    for kind in (pa.int64(), pa.string(), pa.large_string()):
        assert encode(text, {"c": pa.array([0, -12, 12, 2**62]).cast(kind)}).ids() == want
    assert encode(text, {"c": pa.array([12.0, None])}).ids() == [[bucket(12, 1000)], []]
    big = pa.array([2**63 + 5], pa.uint64())
    assert encode(text, {"c": big}).ids() == [[bucket(2**63 + 5, 1000)]]


def test_booleans_are_0_and_1(encode) -> None:
    assert encode(config("num_buckets: 2"), {"c": pa.array([True, None, False])}).ids() == [[1], [], [0]]


@pytest.mark.parametrize("array", [pa.nulls(3), pa.array([None] * 3, pa.list_(pa.string()))])
def test_columns_of_nulls_take_the_default(encode, array) -> None:
    assert encode(config("num_buckets: 9"), {"c": array}).ids() == [[], [], []]
    assert encode(config('num_buckets: 9 default_value: "4"'), {"c": array}).ids() == [[4]] * 3


@settings(max_examples=20, deadline=None)
@given(
    cells=st.lists(
        st.none() | st.lists(st.sampled_from(["a", "b", "日本", "", "x", "aa"]), max_size=3), max_size=8
    )
)
@pytest.mark.parametrize(
    ("body", "numbers", "unknown", "default", "rows"),
    [
        ('vocab_list: ["a", "日本"]', {"a": 2, "日本": 3}, 1, [], 4),
        ('vocab_list: ["a", "日本"] default_value: "d"', {"a": 2, "日本": 3, "d": 0}, 1, [0], 4),
        ('vocab_list: ["a", "日本"] default_value: "a"', {"a": 2, "日本": 3}, 1, [2], 4),
        ('vocab_list: ["a", "b"] default_bucketize_value: 1', {"a": 0, "b": 1}, 1, [], 2),
        ('vocab_list: ["a", "b"] default_bucketize_value: 2 default_value: "q"', {"a": 0, "b": 1}, 2, [2], 3),
        ('vocab_dict { key: "a" value: 5 } vocab_dict { key: "aa" value: 2 }', {"a": 5, "aa": 2}, 1, [], 6),
        ('vocab_dict { key: "a" value: 2 } default_value: "a"', {"a": 0}, 1, [0], 2),
        ('vocab_dict { key: "a" value: 0 } default_bucketize_value: 3', {"a": 0}, 3, [], 4),
    ],
)
def test_vocabularies(encode, forms, cells, body, numbers, unknown, default, rows) -> None:
    text = config(body + ' separator: "|"')
    want = [reference(cell, lambda word: numbers.get(word, unknown), default) for cell in cells]
    for form, array in forms(cells, "|").items():
        result = encode(text, {"c": array})
        assert result.ids() == want, form
        assert result.features[0].spec.num_rows == rows


def test_vocabulary_finds_each_of_many_words(encode) -> None:
    names = [f"w{i}" for i in range(3000)]
    body = " ".join(f'vocab_list: "{name}"' for name in names)
    assert (
        encode(config(body), {"c": [*names, "w", "w3000"]}).ids()
        == [[i + 2] for i in range(3000)] + [[1]] * 2
    )


def test_vocabulary_reads_numbers_as_text(encode) -> None:
    text = config('vocab_list: ["7", "12"]')
    assert encode(text, {"c": pa.array([12, 7, 1])}).ids() == [[3], [2], [1]]


@pytest.mark.parametrize(
    ("lines", "want", "rows"),
    [
        ("a\nb c\n日本\n", [0, 1, 2, 5], 6),
        ("a 4\nb c 1\r\n日本 0\n", [4, 1, 0, 5], 6),
        ("a 4\nb c\n日本\n", [5, 1, 2, 5], 6),
    ],
)
def test_vocabulary_files(encode, tmp_path, lines, want, rows) -> None:
    (tmp_path / "words.txt").write_text(lines, encoding="utf-8", newline="")
    text = config(f'vocab_file: "words.txt" asset_dir: "{tmp_path}" default_bucketize_value: 5')
    result = encode(text, {"c": ["a", "b c", "日本", "?"]})
    assert result.ids() == [[n] for n in want]
    assert result.features[0].spec.num_rows == rows


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["1:0.5|12:2", None, "", "7:-1"]),
        pa.array([["1:0.5", "12:2"], None, [], ["7:-1"]]),
        pa.array(
            [[(3, 9.0)], [(1, 0.5), (12, 2.0)], None, [], [(7, -1.0)]], pa.map_(pa.int64(), pa.float32())
        ).slice(1),
        pa.array([[("1", 0.5), ("12", 2.0)], None, [], [("7", -1.0)]], pa.map_(pa.string(), pa.float64())),
    ],
    ids=["text", "list", "map of ints", "map of texts"],
)
@pytest.mark.parametrize("mode", ["FG_NORMAL", "FG_NONE"])
def test_weighted_ids(encode, array, mode) -> None:
    text = config('weighted: true separator: "|" num_buckets: 20').replace("user:c", "user:f")
    result = encode(text, {"f": array}, mode=mode, sep="|")
    assert result.ids() == [[1, 12], [], [], [7]]
    assert result.weights() == [[0.5, 2.0], [], [], [-1.0]]
    assert result.features[0].spec.weighted


def test_weighted_default_carries_its_weight(encode) -> None:
    text = config('weighted: true separator: "|" num_buckets: 20 default_value: "3:0.25|4"')
    result = encode(text, {"c": ["1:2", None]})
    assert result.ids() == [[1], [3, 4]]
    assert result.weights() == [[2.0], [0.25, 1.0]]


def test_unweighted_features_beside_weighted_ones_weigh_1(encode) -> None:
    other = 'id_feature { feature_name: "g" expression: "user:g" embedding_dim: 8 num_buckets: 5 }'
    result = encode([config("weighted: true num_buckets: 20"), other], {"c": ["1:2", None], "g": [3, 4]})
    assert result.encoded.sparse.weights.tolist() == [2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("column", "values", "lengths"),
    [
        (["1\x032", "", None, "3"], [1, 2, 3], [2, 0, 0, 1]),
        ([1, 2, None, 3], [1, 2, 3], [1, 1, 0, 1]),
        ([[1, 2], [], None, [3]], [1, 2, 3], [2, 0, 0, 1]),
    ],
)
def test_encoded_columns_are_used_as_they_are(encode, column, values, lengths) -> None:
    for bucket in ("num_buckets: 4", "hash_bucket_size: 4", 'vocab_list: ["a", "b"]'):
        text = f'id_feature {{ feature_name: "f" expression: "" embedding_dim: 8 {bucket} }}'
        result = encode(text, {"f": column}, mode="FG_NONE")
        assert result.encoded.sparse.values.tolist() == values
        assert result.encoded.sparse.lengths.tolist() == lengths
    filled = f'id_feature {{ feature_name: "f" expression: "" embedding_dim: 8 num_buckets: 4 {FILL} }}'
    assert encode(filled, {"f": column}, mode="FG_NONE").ids() == [
        ids or [0, 1] for ids in encode(text, {"f": column}, mode="FG_NONE").ids()
    ]


FILL = 'fg_encoded_default_value: "0\x031"'


def test_bucketize_hashes_the_column_of_the_features_name(encode, bucket) -> None:
    text = 'id_feature { feature_name: "f" expression: "user:c" embedding_dim: 8 hash_bucket_size: 50 }'
    result = encode(text, {"f": ["a\x03b", None]}, mode="FG_BUCKETIZE")
    assert result.ids() == [[bucket("a", 50), bucket("b", 50)], []]
    assert result.features[0].columns == ("f",)


def test_value_type_int64_reads_integers_before_hashing(encode, bucket) -> None:
    text = config('hash_bucket_size: 1000 fg_value_type: "int64"')
    assert encode(text, {"c": ["012", "+12", "12"]}).ids() == [[bucket(12, 1000)]] * 3


def test_an_empty_batch(encode) -> None:
    for kind in (pa.int64(), pa.string(), pa.list_(pa.string()), pa.float32(), pa.null()):
        result = encode(config("hash_bucket_size: 9"), {"c": pa.array([], kind)})
        assert result.ids() == []
        assert result.encoded.sparse.bag_counts == (0,)


def test_masked_rows_count_as_missing(encode) -> None:
    texts = [
        config('num_buckets: 100 use_mask: true default_value: "9"'),
        'id_feature { feature_name: "g" expression: "user:c" embedding_dim: 8 num_buckets: 100 }',
    ]
    result = encode(texts, {"c": [1, 2, 3]}, mask=[True, False, True])
    assert result.ids() == [[9], [2], [9]]
    assert result.ids("g") == [[1], [2], [3]]


def test_maps_are_masked_too(encode) -> None:
    weights = pa.array([[(1, 2.0)], [(3, 4.0)]], pa.map_(pa.int64(), pa.float32()))
    result = encode(
        config("num_buckets: 9 weighted: true use_mask: true"), {"c": weights}, mask=[True, False]
    )
    assert result.ids() == [[], [3]]


@pytest.mark.parametrize(
    ("body", "column", "rows", "problem"),
    [
        ("num_buckets: 500", [1, 991, 2, 500], [1, 3], "id 991 is outside num_buckets 500"),
        ("num_buckets: 500", [1, -3], [1], "id -3 is negative; ids are 0 … 499"),
        ("num_buckets: 500", ["1", "x7"], [1], "'x7' is not a 64-bit integer"),
        ("num_buckets: 500", ["9223372036854775808"], [0], "'9223372036854775808' is not a 64-bit integer"),
        ("num_buckets: 500", ["1", "2.0"], [1], "'2.0' is not a 64-bit integer"),
        ("num_buckets: 500", [[1], [2, 3, 700]], [1], "id 700 is outside num_buckets 500"),
        ("num_buckets: 500", [1.0, None, 2.5], [2], "id 2.5 is not a whole number"),
        (
            "num_buckets: 500",
            pa.array([1.0, float("nan"), float("inf"), 1e300]),
            [1, 2, 3],
            "id nan is not a whole number",
        ),
        ("weighted: true num_buckets: 9", ["1:2", "3"], [1], "id '3' has no weight"),
        ("weighted: true num_buckets: 9", pa.array([5]), [0], "id 5 has no weight"),
        ("weighted: true num_buckets: 9", ["1:2", "3:x"], [1], "'x' is not a number"),
        ("weighted: true num_buckets: 9", ["1:nan"], [0], "weight nan is not a finite 32-bit float"),
        (
            "weighted: true num_buckets: 9",
            pa.array([[(1, None)], [(1, 1.0)]], pa.map_(pa.int64(), pa.float32())),
            [0],
            "id 1 has no weight",
        ),
    ],
)
def test_bad_ids_are_faults_of_their_rows(encode, body, column, rows, problem) -> None:
    faults = encode(config(body), {"c": column}, bad=True).faults
    assert faults.rows.tolist() == rows
    first = faults.first()
    assert first.problem == problem
    assert first.row == rows[0]
    assert (first.column, first.feature) == ("c", "f")
    assert first.remedy


def test_encoded_ids_out_of_a_hash_table_name_it(encode) -> None:
    text = 'id_feature { feature_name: "f" expression: "" embedding_dim: 8 hash_bucket_size: 4 }'
    faults = encode(text, {"f": [4]}, mode="FG_NONE", bad=True).faults
    assert faults.first().problem == "id 4 is outside hash_bucket_size 4"


def test_types_that_hold_no_ids_are_refused_whole(encode) -> None:
    array = pa.array([{"x": 1}])
    with pytest.raises(
        DataError, match=r"feature f: column 'c': type struct<x: int64> .*IdFeature cannot read it"
    ):
        encode(config("num_buckets: 9"), {"c": array})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "one of hash_bucket_size, num_buckets, vocab_list, vocab_dict, vocab_file, zch"),
        ("num_buckets: 3 hash_bucket_size: 4", "got hash_bucket_size and num_buckets"),
        ("num_buckets: 0", "num_buckets must be at least 1, got 0"),
        ("hash_bucket_size: 0", "hash_bucket_size must be between 1"),
        ('num_buckets: 3 default_value: "9"', "id 9 is outside num_buckets 3"),
        ('num_buckets: 3 default_value: "x"', "'x' is not a 64-bit integer"),
        ("num_buckets: 3 default_bucketize_value: 1", "default_bucketize_value needs vocab_list"),
        ('vocab_list: ["a", "a"]', "got 'a' twice"),
        ('vocab_file: "nowhere.txt" default_bucketize_value: 0', "/nowhere.txt) cannot be read"),
        ('vocab_file: "nowhere.txt"', "vocab_file needs default_bucketize_value"),
        ('num_buckets: 3 pooling: "max"', "pooling must be sum or mean, got 'max'"),
        ('num_buckets: 3 separator: ""', "separator must not be empty"),
        ("num_buckets: 3 sequence_length: 5", "sequence_length belongs to a sequence_ kind"),
        ('num_buckets: 3 sequence_fields: "c"', "sequence_fields is for sequence features"),
        ('num_buckets: 3 fg_value_type: "blob"', "fg_value_type must be string or int64, got 'blob'"),
        ("num_buckets: 3 stub_type: true", "stub_type needs fg_mode FG_DAG"),
        ("num_buckets: 3 zch { zch_size: 5 }", "may be set, got num_buckets and zch"),
        ("storage: PLAIN zch { zch_size: 5 }", "remove it beside zch or dynamicemb"),
    ],
)
def test_settings_that_cannot_hold_are_refused(build, body, message) -> None:
    with pytest.raises(ConfigError) as error:
        build(config(body))
    assert message in str(error.value)
    assert "feature_configs[0].id_feature 'f'" in str(error.value)


def test_expressions_need_a_known_side(build) -> None:
    for expression in ("", "usr:c", "user:"):
        with pytest.raises(ConfigError, match="an expression must be side:name"):
            build(config("num_buckets: 3").replace("user:c", expression))
    assert build(config("num_buckets: 3").replace("user:c", "c"))[0].columns == ("c",)


def test_all_problems_come_at_once(build) -> None:
    with pytest.raises(ConfigError) as error:
        build([config(""), config("num_buckets: 0"), config("num_buckets: 3"), config("num_buckets: 4")])
    assert len(error.value.problems) == 3
    assert "feature 'f': is defined twice" in str(error.value)


def test_spec_says_what_the_config_asks_for(build) -> None:
    spec = build(
        config(
            'num_buckets: 30 embedding_name: "shared" pooling: "mean" value_dim: 2 trainable: false'
            ' init_fn: "nn.init.zeros_" data_type: "FP16" storage: COMPACT use_mask: true weighted: true'
            ' embedding_constraints { sharding_types: "row_wise" }'
        )
    )[0].spec
    assert (spec.name, spec.kind, spec.sequence, spec.num_rows) == ("f", Kind.SPARSE, False, 30)
    assert (spec.embedding_dim, spec.embedding_name, spec.pooling) == (8, "shared", "mean")
    assert (spec.value_dim, spec.trainable, spec.init_fn) == (2, False, "nn.init.zeros_")
    assert (spec.data_type, spec.storage, spec.use_mask, spec.weighted) == ("FP16", "COMPACT", True, True)
    assert list(spec.embedding_constraints.sharding_types) == ["row_wise"]
    plain = build(config("num_buckets: 30"))[0].spec
    assert (plain.embedding_name, plain.init_fn, plain.storage, plain.value_dim) == ("f_emb", None, "AUTO", 0)
