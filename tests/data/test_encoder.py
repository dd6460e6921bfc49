"""FeatureEncoder: packing, features that read features, faults, and batches of no rows."""

import json
import subprocess
import sys
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.config.proto import feature_pb2
from recgrad.data.encoded import Encoded
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Fault, Faults
from recgrad.data.features import FEATURES, build_features
from recgrad.errors import ConfigError, DataError


def encoder(*texts: str, mode: str = "FG_NORMAL") -> FeatureEncoder:
    messages = [text_format.Parse(text, feature_pb2.FeatureConfig()) for text in texts]
    return FeatureEncoder(build_features(messages, fg_mode=mode, multival_sep="\x03"))


def encode(made: FeatureEncoder, columns: dict[str, Any], bad: bool = False) -> tuple[Encoded, Faults]:
    arrays = {name: v if isinstance(v, pa.Array) else pa.array(v) for name, v in columns.items()}
    faults = Faults()
    encoded = made.encode(arrays, len(next(iter(arrays.values()))), faults)
    assert bool(faults) == bad, faults.first()
    return encoded, faults


def ids(name: str, body: str = "num_buckets: 100", expression: str | None = None) -> str:
    expression = expression or f"user:{name}"
    return f'id_feature {{ feature_name: "{name}" expression: "{expression}" embedding_dim: 4 {body} }}'


def raw(name: str, body: str = "", expression: str | None = None) -> str:
    return f'raw_feature {{ feature_name: "{name}" expression: "{expression or f"user:{name}"}" {body} }}'


def test_ids_lie_feature_after_feature() -> None:
    encoded, _ = encode(
        encoder(ids("a"), raw("x"), ids("b")), {"a": [1, 2], "b": [[3, 4], []], "x": [0.5, 1.5]}
    )
    assert encoded.sparse.keys == ("a", "b")
    assert encoded.sparse.values.tolist() == [1, 2, 3, 4]
    assert encoded.sparse.lengths.tolist() == [1, 1, 2, 0]
    assert encoded.sparse.bag_counts == (2, 2)
    assert not encoded.sparse.single
    assert encoded.sparse.weights is None
    assert encoded.dense.values.tolist() == [[0.5], [1.5]]
    assert encoded.sequence_sparse is None
    dtypes = (encoded.sparse.values.dtype, encoded.sparse.lengths.dtype, encoded.dense.values.dtype)
    assert dtypes == (np.int64, np.int32, np.float32)


def test_results_share_no_memory_with_the_columns() -> None:
    column, floats = np.array([1, 2, 3]), np.array([1, 2, 3], np.float32)
    encoded, _ = encode(encoder(ids("a"), raw("x")), {"a": pa.array(column), "x": pa.array(floats)})
    column[:], floats[:] = 9, 9
    assert encoded.sparse.values.tolist() == [1, 2, 3]
    assert encoded.dense.values.tolist() == [[1], [2], [3]]


def test_columns_are_named_once_and_those_of_others_are_not() -> None:
    made = encoder(ids("a"), raw("x", expression="user:a"), ids("b", expression="const:7"))
    assert made.columns == ("a",)
    encoded, _ = encode(made, {"a": [1, 2]})
    assert encoded.sparse["b"].values.tolist() == [7, 7]


def test_no_features_of_a_kind() -> None:
    encoded, _ = encode(encoder(raw("x")), {"x": [1.0]})
    assert encoded.sparse.values.tolist() == []
    assert encoded.sparse.lengths.tolist() == []
    encoded, _ = encode(encoder(ids("a")), {"a": [1]})
    assert encoded.dense.values.shape == (1, 0)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(DataError, match=r"column 'a' is missing \(has: b, c\)"):
        encode(encoder(ids("a")), {"c": [1], "b": [2]})


AGE = raw("age_bin", "boundaries: [18, 25, 30] embedding_dim: 4", "user:age")
BY_AGE = 'lookup_feature { feature_name: "by_age" map: "item:by_age" key: "feature:age_bin" }'


def test_a_feature_may_read_another_one() -> None:
    columns = {"age": [17.0, 26.0, None], "by_age": ["0:5\x1d2:7"] * 3}
    for texts in ((AGE, BY_AGE), (BY_AGE, AGE)):
        made = encoder(*texts, mode="FG_DAG")
        encoded, _ = encode(made, columns)
        assert encoded.dense["by_age"].tolist() == [[5.0], [7.0], [5.0]]
        assert encoded.sparse["age_bin"].values.tolist() == [0, 2, 0]
        assert set(made.columns) == {"age", "by_age"}
        assert [f.spec.name for f in made.features] == [("age_bin", "by_age")[t == BY_AGE] for t in texts]


def test_stubs_are_computed_but_not_given() -> None:
    made = encoder(AGE.replace("embedding_dim", "stub_type: true embedding_dim"), BY_AGE, mode="FG_DAG")
    encoded, _ = encode(made, {"age": [26.0], "by_age": ["2:7"]})
    assert encoded.dense.values.tolist() == [[7.0]]
    assert encoded.sparse.keys == ()
    assert [f.spec.name for f in made.features] == ["by_age"]


def test_floats_and_sequences_may_be_read_too() -> None:
    half = raw("half", 'normalizer: "method=expression,expr=x/2"', "user:x")
    double = 'expr_feature { feature_name: "d" expression: "half * 4" variables: "feature:half" }'
    seq = 'sequence_id_feature { feature_name: "s" expression: "user:s" num_buckets: 9 embedding_dim: 4 }'
    cross = """sequence_combo_feature {
      feature_name: "c" expression: ["feature:s", "user:w"] hash_bucket_size: 100 embedding_dim: 4
    }"""
    encoded, _ = encode(
        encoder(half, double, seq, cross, mode="FG_DAG"), {"x": [3.0], "s": ["1;2"], "w": ["q"]}
    )
    assert encoded.dense["d"].tolist() == [[6.0]]
    plain = encoder(cross.replace("feature:s", "item:s"))
    assert encoded.sequence_sparse["c"].values.tolist() == (
        encode(plain, {"s": ["1;2"], "w": ["q"]})[0].sequence_sparse.values.tolist()
    )


def test_in_normal_mode_a_feature_side_is_a_column() -> None:
    made = encoder(BY_AGE)
    assert made.columns == ("by_age", "age_bin")
    assert encode(made, {"by_age": ["2:7"], "age_bin": [2]})[0].dense.values.tolist() == [[7.0]]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([BY_AGE], "'feature:age_bin' must name a feature of this config"),
        (
            [ids("a", expression="feature:b"), ids("b", expression="feature:a")],
            "features read each other in a circle: a → b → a",
        ),
        (
            [ids("a", expression="feature:s"), "sequence_" + ids("s")],
            "input 's' is a sequence; use the sequence_ kind",
        ),
    ],
)
def test_features_that_cannot_be_linked_are_refused(texts, message) -> None:
    with pytest.raises(ConfigError) as error:
        encoder(*texts, mode="FG_DAG")
    assert message in str(error.value)


def test_unknown_modes_and_empty_messages_are_refused() -> None:
    with pytest.raises(ConfigError, match="FG_NONE, FG_NORMAL, FG_DAG, FG_BUCKETIZE, got 'FG'"):
        build_features([], fg_mode="FG", multival_sep="\x03")
    with pytest.raises(ConfigError, match=r"feature_configs\[0\]: is empty"):
        build_features([feature_pb2.FeatureConfig()], fg_mode="FG_NONE", multival_sep="\x03")


def test_faults_of_all_features_come_together() -> None:
    made = encoder(ids("a"), raw("x"), ids("b"))
    columns = {"a": [1, -1, 5, 500], "x": [1.0, 1.0, float("nan"), 2.0], "b": [700, 1, 1, 800]}
    _, faults = encode(made, columns, bad=True)
    assert faults.rows.tolist() == [0, 1, 2, 3]
    assert str(faults.first()) == (
        "feature b: id 700 is outside num_buckets 100 (column 'b');"
        " raise num_buckets above the largest id, or hash ids with hash_bucket_size"
    )
    assert [(f.feature, f.row) for f in faults.firsts()] == [("a", 1), ("a", 3), ("x", 2), ("b", 0)]
    assert faults.counts()["b", "id {value} is outside num_buckets 100"] == 2
    assert sum(faults.counts().values()) == 5


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.integers(-3, 12), min_size=1, max_size=20))
def test_what_is_left_without_bad_rows_encodes(values) -> None:
    made = encoder(ids("a", "num_buckets: 10"))
    faults = Faults()
    array = pa.array(values, pa.int64())
    made.encode({"a": array}, len(values), faults)
    good = [i for i in range(len(values)) if i not in set(faults.rows.tolist())]
    encoded, _ = encode(made, {"a": array.take(pa.array(good, pa.int64()))})
    assert encoded.sparse.values.tolist() == [v for v in values if 0 <= v < 10]


def test_faults_by_hand() -> None:
    faults = Faults()
    faults.add([], column="c", feature="f", reason="r", values=[], remedy="m")
    assert not faults
    assert faults.first() is None
    assert faults.rows.tolist() == []
    faults.add(
        np.array([4, 2, 2]), column="c", feature="f", reason="bad {value}", values=["x", "y", "z"], remedy="m"
    )
    faults.add([3], column="c", feature="f", reason="bad {value}", values=pa.array([7]), remedy="m")
    assert faults.rows.tolist() == [2, 3, 4]
    assert faults.first() == Fault(2, "c", "f", "bad {value}", "y", "m")
    assert faults.counts() == {("f", "bad {value}"): 3}
    long = Fault(0, "c", "f", "bad {value}", "x" * 500, "m")
    assert len(long.problem) < 100


MINIMAL = {
    "id_feature": 'expression: "item:a" embedding_dim: 4 num_buckets: 9',
    "raw_feature": 'expression: "item:a"',
    "combo_feature": 'expression: ["item:a", "item:b"] embedding_dim: 4 hash_bucket_size: 9',
    "lookup_feature": 'map: "user:m" key: "item:a"',
    "match_feature": 'nested_map: "user:n" pkey: "item:a" skey: "item:b"',
    "expr_feature": 'expression: "a + b" variables: ["item:a", "item:b"]',
    "overlap_feature": 'query: "user:a" title: "item:b" method: "is_equal"',
    "kv_dot_product": 'query: "user:a" document: "item:b"',
    "combine_feature": 'expression: "item:a" default_value: "0"',
    "bool_mask_feature": 'expression: ["item:a", "item:b"] embedding_dim: 4 num_buckets: 9',
    "tokenize_feature": 'expression: "item:a" embedding_dim: 4 vocab_file: "TOKENIZER"',
    "custom_feature": 'expression: ["item:a", "item:b"] operator_name: "EditDistance" '
    'operator_lib_file: "recgrad"',
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a tokenizer of a few words."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "1": 1, "2": 2}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Punctuation()
    path = tmp_path_factory.mktemp("tokens") / "tokenizer.json"
    made.save(str(path))
    return str(path)


VOCABULARY = 'expression: "item:a" embedding_dim: 4 vocab_list: ["1", "2"] default_value: "2" value_dim: 1'
LOGARITHM = 'expression: "item:a" normalizer: "method=expression,expr=log(x)"'


@pytest.mark.parametrize("kind", sorted(FEATURES))
@pytest.mark.parametrize("size", [0, 3])
def test_every_kind_encodes_any_number_of_rows(kind: str, size: int, tokenizer: str) -> None:
    """A kind that joins the registry must join MINIMAL: this is the contract that all kinds share."""
    if kind == "sequence_feature":
        members = " ".join(f'features {{ {k} {{ feature_name: "{k}" {v} }} }}' for k, v in MINIMAL.items())
        text = f'sequence_feature {{ sequence_name: "s" sequence_length: 5 sequence_delim: ";" {members} }}'
    else:
        text = f'{kind} {{ feature_name: "f" {MINIMAL[kind.removeprefix("sequence_")]} }}'
    assert FEATURES[kind].__doc__
    text = text.replace("TOKENIZER", tokenizer)
    made = encoder(text)
    columns = {name: pa.array(["1"] * size, pa.string()) for name in made.columns}
    columns |= {"m": pa.array(["1:2"] * size, pa.string()), "n": pa.array(["1^1:2"] * size, pa.string())}
    encoded = made.encode(columns, size, faults := Faults())
    assert not faults, faults.first()
    assert encoded.dense.values.shape[0] == size
    assert all(count == size for count in encoded.sparse.bag_counts)
    assert all(len(lengths) == size for lengths in encoded.sequence_lengths.values())
    for feature in made.features:
        spec = feature.spec
        assert spec.sequence == kind.startswith("sequence_")
        assert (spec.num_rows > 0) == (spec.kind.value == "sparse")
    encoded_names = encoder(text, mode="FG_NONE").columns
    assert encoded_names == tuple(f.spec.name for f in made.features)


CELLS = st.sampled_from(
    [None, "", "1", "2", "1;2", "1;;7", "1\x1d2", "2\x1d1;1", "x", "1:2", "2:x", "1:2\x1d2:5", "1:nan", "nan",
     "-3", "9999",
     "1^1:2", "1^1:x|2^2:1", "1^", "1^1:2,1:4;1^2:3", "1e39", "true", "0;1", "1,2", "1:1,2\x1d2:3"]
)  # fmt: skip
VARIANTS = {
    **{kind: [body] for kind, body in MINIMAL.items()},
    "id_feature": [MINIMAL["id_feature"], MINIMAL["id_feature"] + " weighted: true", VOCABULARY],
    "raw_feature": [
        MINIMAL["raw_feature"],
        MINIMAL["raw_feature"] + ' value_dim: 2 default_value: ""',
        LOGARITHM,
    ],
    "lookup_feature": [MINIMAL["lookup_feature"], MINIMAL["lookup_feature"] + " value_dim: 2"],
    "expr_feature": [MINIMAL["expr_feature"], MINIMAL["expr_feature"].replace("a + b", "dot(a, b) / a")],
}


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", sorted(FEATURES))
def test_a_row_is_encoded_alike_alone_and_in_company(kind: str, data: st.DataObject, tokenizer: str) -> None:
    """Rows are independent: bad ones neither hide others nor spoil them, whatever the kind."""
    if kind == "sequence_feature":
        bodies = {k: data.draw(st.sampled_from(v)) for k, v in VARIANTS.items()}
        members = " ".join(f'features {{ {k} {{ feature_name: "{k}" {v} }} }}' for k, v in bodies.items())
        text = f'sequence_feature {{ sequence_name: "s" sequence_length: 2 sequence_delim: ";" {members} }}'
    else:
        body = data.draw(st.sampled_from(VARIANTS[kind.removeprefix("sequence_")]))
        text = f'{kind} {{ feature_name: "f" {body} }}'
    made = encoder(text.replace("TOKENIZER", tokenizer))
    size = data.draw(st.integers(0, 6))
    cells = {name: data.draw(st.lists(CELLS, min_size=size, max_size=size)) for name in made.columns}
    columns = {name: pa.array(column, pa.string()) for name, column in cells.items()}
    made.encode(columns, size, together := Faults())
    alone = []
    for row in range(size):
        encoded = made.encode({n: c.slice(row, 1) for n, c in columns.items()}, 1, faults := Faults())
        alone.append(None if faults else flat(encoded))
        assert bool(faults) == (row in together.rows), (row, faults.first(), together.first())
    good = pa.array([row for row in range(size) if alone[row] is not None], pa.int64())
    rest, _ = encode(made, {n: c.take(good) for n, c in columns.items()}) if len(good) else (None, None)
    if rest is not None:
        kept = [row for row in alone if row is not None]
        assert flat(rest) == [list(chain.from_iterable(parts)) for parts in zip(*kept, strict=True)]


def flat(encoded: Encoded) -> list[list[Any]]:
    """Each feature's values and lengths, so that those of rows can be strung together."""
    lists = [encoded.dense[key].reshape(-1).tolist() for key in encoded.dense.keys]
    for jagged in (encoded.sparse, encoded.sequence_sparse):
        for key in jagged.keys if jagged is not None else ():
            part = jagged[key]
            lists += [part.values.tolist(), part.lengths.tolist()]
            lists += [part.weights.tolist()] if part.weights is not None else []
    lists += [lengths.tolist() for lengths in encoded.sequence_lengths.values()]
    lists += [part.reshape(-1).tolist() for part in encoded.sequence_dense.values()]
    return lists


def test_threads_may_share_an_encoder() -> None:
    from concurrent.futures import ThreadPoolExecutor

    made = encoder(ids("a", "hash_bucket_size: 1000"), raw("x"))
    batches = [{"a": [f"{i}-{j}" for j in range(500)], "x": [float(i)] * 500} for i in range(20)]
    alone = [encode(made, batch)[0] for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda batch: encode(made, batch)[0], batches))
    for a, b in zip(alone, together, strict=True):
        assert np.array_equal(a.sparse.values, b.sparse.values)
        assert np.array_equal(a.dense.values, b.dense.values)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it is an ImportError
import json
import pyarrow as pa
from google.protobuf import text_format
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.coded import CodedEncoder
from recgrad.data.faults import Faults
from recgrad.data.features import FEATURES
from recgrad.data.features.build import features_of

assert len([FEATURES[name] for name in FEATURES]) > 10
features = features_of(text_format.Parse(sys.argv[1], PipelineConfig()))
table = pa.table({"a": ["u", "v|w", None], "x": [0.5, None, 2.0], "s": [[1, 2], [], [3]]})
for rows in (table, table.to_batches()[0], pa.concat_tables([table[:1], table[1:]])):
    encoded = FeatureEncoder(features).encode_table(rows, Faults())
    print(json.dumps([encoded.sparse.values.tolist(), encoded.dense.values.tolist(),
        encoded.sequence_sparse.values.tolist()]))
"""


def test_rows_are_encoded_without_torch() -> None:
    body = 'separator: "|" hash_bucket_size: 1000'
    sequence = ids("s", 'sequence_length: 5 sequence_delim: ";" num_buckets: 9')
    texts = [ids("a", body), raw("x", 'default_value: "1"'), sequence.replace("id_f", "sequence_id_f", 1)]
    config = 'train_input_path: "" eval_input_path: "" model_dir: "" data_config { fg_mode: FG_NORMAL }'
    config += "".join(f" feature_configs {{ {text} }}" for text in texts)
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, config], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    first, *others = run.stdout.splitlines()
    assert others == [first, first]
    columns = {"a": ["u", "v|w", None], "x": [0.5, None, 2.0], "s": [[1, 2], [], [3]]}
    here, _ = encode(encoder(*texts), columns)
    expected = [here.sparse.values, here.dense.values, here.sequence_sparse.values]
    assert json.loads(first) == [part.tolist() for part in expected]


def test_a_column_that_a_table_has_twice_is_refused() -> None:
    table = pa.table([[1], [2]], names=["a", "a"])
    with pytest.raises(DataError, match="column 'a' occurs 2 times; keep one"):
        encoder(ids("a")).encode_table(table, Faults())
    with pytest.raises(DataError, match=r"column 'a' is missing \(has: b\)"):
        encoder(ids("a")).encode_table(pa.table({"b": [1]}), Faults())
