"""custom_feature: operators that are built in, and classes of one's own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.config.class_paths import class_paths
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.features.operators import Operator
from recgrad.data.features.operators.edit_distance import EditDistance
from recgrad.errors import ConfigError, DataError


class Ratio(Operator):
    """The first input over the second, times a factor."""

    def __init__(self, *, factor=1.0):
        self.factor = factor

    def compute(self, columns):
        a, b = columns.values()
        return pc.multiply(pc.divide(a.cast(pa.float64()), b.cast(pa.float64())), self.factor)


class Both(Operator):
    """Two numbers a row."""

    def compute(self, columns):
        (a,) = columns.values()
        numbers = a.fill_null(0).to_numpy().astype(np.float64)
        return np.stack([numbers, -numbers], axis=1)


class Short(Operator):
    def compute(self, columns):
        return [1]


def config(operator, body="", inputs='"user:a", "item:b"', library=__name__, kind="custom_feature"):
    return (
        f'{kind} {{ feature_name: "f" operator_name: "{operator}" operator_lib_file: "{library}" '
        f"expression: [{inputs}] {body} }}"
    )


PARAMS = 'operator_params {{ fields {{ key: "{}" value {{ {} }} }} }}'


def test_a_class_of_ones_own_computes_columns(encode):
    text = config("Ratio", PARAMS.format("factor", "number_value: 10"))
    assert encode(text, {"a": [3, None, 4], "b": [2.0, 1.0, 4.0]}).floats() == [[15.0], [0.0], [10.0]]


def test_lists_are_vectors_and_values_become_ids(encode):
    assert encode(config("Both", "value_dim: 2", '"user:a"'), {"a": [3, None]}).floats() == [[3, -3], [0, 0]]
    text = config("Ratio", "boundaries: [0.5, 1.5] embedding_dim: 4")
    assert encode(text, {"a": [1, 2], "b": [1, 1]}).ids() == [[1], [2]]
    text = config("Ratio", "num_buckets: 9 embedding_dim: 4")
    assert encode(text, {"a": [8, 2], "b": [1, 1]}).ids() == [[8], [2]]


def test_sequences_are_computed_position_by_position(encode):
    text = config("Ratio", 'sequence_fields: "a"', kind="sequence_custom_feature")
    found = encode(text, {"a": ["6;4", "9"], "b": [2, 3]})
    assert found.encoded.sequence_dense["f"].reshape(-1).tolist() == [3, 2, 3]


def test_what_an_operator_gives_must_fit(encode):
    with pytest.raises(DataError, match="Short gave 1 values for 2 rows"):
        encode(config("Short"), {"a": [1, 2], "b": [1, 2]})


def plain_distance(a, b):
    if not a or not b:
        return len(a) + len(b)
    return min(
        plain_distance(a[1:], b) + 1,
        plain_distance(a, b[1:]) + 1,
        plain_distance(a[1:], b[1:]) + (a[0] != b[0]),
    )


@settings(deadline=None, max_examples=40)
@given(rows=st.lists(st.tuples(st.text("abé中", max_size=4), st.text("abé中", max_size=4)), max_size=5))
@pytest.mark.parametrize("encoding", ["utf-8", "latin"])
def test_edit_distance_is_that_of_the_recursion(rows, encoding):
    columns = {name: pa.array([row[i] for row in rows], pa.string()) for i, name in enumerate("ab")}
    units = (lambda text: text) if encoding == "utf-8" else str.encode
    found = EditDistance(encoding=encoding).compute(columns).to_pylist()
    assert found == [plain_distance(units(a), units(b)) for a, b in rows]


def test_edit_distance_in_a_config(encode):
    text = config(
        "EditDistance",
        "boundaries: [0, 5, 10] embedding_dim: 4 " + PARAMS.format("encoding", 'string_value: "utf-8"'),
        library="pyfg/lib/libedit_distance.so",
    )
    assert encode(text, {"a": ["裙子", None], "b": ["连衣裙", "x"]}).ids() == [[1], [1]]


def test_regex_replace(encode):
    params = (
        'operator_params { fields { key: "regex_patten" value { string_value: "[0-9]+" } } '
        'fields { key: "replacement" value { string_value: "#" } } }'
    )
    body = f'vocab_list: ["a#b", "#"] embedding_dim: 4 default_bucketize_value: 2 {params}'
    text = config("RegexReplace", body, '"user:a"', library="recgrad")
    assert encode(text, {"a": ["a12b", "7", "x"]}).ids() == [[0], [1], [2]]


def seq_expr(formula, body, inputs):
    params = PARAMS.format("formula", f'string_value: "{formula}"')
    return config(
        "SeqExpr",
        f'{params} sequence_delim: "|" {body}',
        inputs,
        "pyfg/lib/libseq_expr.so",
        "sequence_custom_feature",
    )


def test_expressions_of_sequences(encode):
    text = seq_expr(
        "cur_time-clk_time_seq", 'sequence_fields: "clk_time_seq"', '"user:cur_time", "user:clk_time_seq"'
    )
    columns = {"cur_time": [10, None, None], "clk_time_seq": ["2|3", "4", None]}
    found = encode(text, columns)
    assert found.encoded.sequence_dense["f"].reshape(-1).tolist() == [8, 7, 0, 0]


def test_spherical_distance(encode):
    names = ["lng", "lat", "lngs", "lats"]
    inputs = ", ".join(f'"user:{name}"' for name in names)
    body = 'sequence_fields: ["lngs", "lats"] boundaries: [0, 150, 1500] embedding_dim: 4'
    columns = {
        "lng": [113.1057, 116.4074, None],
        "lat": [22.5614, 39.9042, None],
        "lngs": ["113.728|116.4074", "121.4737", None],
        "lats": ["23.002|39.9042", "31.2304", None],
    }
    found = encode(seq_expr("spherical_distance", body, inputs), columns)
    assert found.sequence_ids() == [[[1], [3]], [[2]], [[1]]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            config("Other", library="pyfg/lib/libother.so"),
            r"C\+\+ operators are not loaded \(built in: EditDist",
        ),
        (config("Nope", library="recgrad"), "there is no operator 'Nope'"),
        (config("Nope"), "has no 'Nope'"),
        (config("Operators", library="my/operators.py"), "operator_lib_file must be an import path"),
        (config("Path", library="pathlib"), "is not a subclass of recgrad.data.features.operators.Operator"),
        (config("Ratio", PARAMS.format("x", "number_value: 1")), "operator_params: .*'x'"),
        (config("Ratio", "", '"user:a", "item:a"'), "names an input twice"),
        (config("SeqExpr", library="recgrad"), "operator_params: .*formula"),
    ],
)
def test_operators_that_cannot_be_are_refused(encode, text, message):
    with pytest.raises(ConfigError, match=message):
        encode(text, {"a": [1], "b": [1]})


def test_modules_of_operators_count_as_custom_code():
    config_of = text_format.Parse(
        f"feature_configs {{ {config('Ratio', library='my.operators')} }} "
        f"feature_configs {{ {config('EditDistance', library='pyfg/lib/libedit_distance.so')} }} "
        f"feature_configs {{ {config('EditDistance', library='recgrad')} }}",
        PipelineConfig(),
    )
    found = class_paths(config_of)
    assert [(path.name, path.imports) for path in found] == [
        ("my.operators.Ratio", True),
        ("EditDistance", False),
    ]
