"""expr_feature: variables from columns, missing ones, vectors, boundaries."""

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.errors import ConfigError

numbers = st.integers(-50, 50)


def config(expression: str, body: str = "", variables: str = '"user:a", "item:b"') -> str:
    return f'expr_feature {{ feature_name: "f" expression: "{expression}" variables: [{variables}] {body} }}'


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(st.none() | numbers, st.none() | numbers), max_size=8))
@pytest.mark.parametrize(
    ("expression", "formula"),
    [
        ("a + b", lambda a, b: a + b),
        ("a == b ? 1 : 0", lambda a, b: float(a == b)),
        ("a > 18 && b < 3", lambda a, b: float(a > 18 and b < 3)),
        ("max(a, b) * 0.5", lambda a, b: max(a, b) * 0.5),
        ("7", lambda a, b: 7.0),
    ],
)
def test_a_missing_variable_gives_the_default(encode, rows, expression, formula) -> None:
    want = [[-1.0 if a is None or b is None else formula(a, b)] for a, b in rows]
    for kind in (pa.int64(), pa.float32(), pa.string()):
        columns = {
            "a": pa.array([a for a, _ in rows], pa.int64()).cast(kind),
            "b": pa.array([1, *(b for _, b in rows)], pa.int64()).cast(kind).slice(1),
        }
        assert encode(config(expression, 'default_value: "-1"'), columns).floats() == want


def test_fill_missing_stands_in_for_what_a_shorter_vector_lacks(encode) -> None:
    columns = {
        "a": [[1.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0], None, [4.0], [5.0, 6.0, 7.0]],
        "b": [[3.0, 4.0, 5.0], [3.0, 4.0], [3.0, 4.0], [1.0, 2.0], [1.0, 2.0], [2.0]],
    }
    # Nothing at all is still the default's case, and one number goes with every element.
    text = config("dot(a, b)", 'fill_missing: 0.5 default_value: "-1"')
    want = [3 + 8 + 0.5 * 5, 3 + 8 + 3 * 0.5, 11.0, -1.0, 4 * 3.0, 18 * 2.0]
    assert encode(text, columns).floats() == [[value] for value in want]


@given(rows=st.lists(st.tuples(*[st.lists(st.integers(-9, 9), max_size=4)] * 2), min_size=1, max_size=8))
def test_padding_against_plain_python(encode, rows) -> None:
    def want(a: list[int], b: list[int]) -> float:
        if not a or not b:
            return -1.0
        longest = max(len(a), len(b))
        full = [v * longest if len(v) == 1 else v + [2] * (longest - len(v)) for v in (a, b)]
        return float(sum(x * y for x, y in zip(*full)))

    kind = pa.list_(pa.float64())
    columns = {name: pa.array([row[i] for row in rows], kind) for i, name in enumerate("ab")}
    text = config("dot(a, b)", 'fill_missing: 2 default_value: "-1"')
    assert encode(text, columns).floats() == [[want(*row)] for row in rows]


def test_boundaries_of_vectors_give_several_ids(encode) -> None:
    columns = {"a": [[0.1, 0.5], [0.9], None], "b": [1.0, 1.0, 1.0]}
    text = config("a * b", 'boundaries: [0.2, 0.6] embedding_dim: 4 default_value: ""')
    assert encode(text, columns).ids() == [[0, 1], [2], []]


def test_dot_of_vectors(encode) -> None:
    text = config("dot(a, b)", 'separator: "|" default_value: "0.1"')
    columns = {"a": ["2|3", "", "3|4"], "b": [[2.0, 2.0], [2.0, 2.0], [0.5, 0.25]]}
    assert encode(text, columns).floats() == [[10.0], [pytest.approx(0.1)], [2.5]]


def test_vectors_are_dense_features_of_value_dim(encode) -> None:
    text = config("a - b", 'value_dim: 2 default_value: "0"')
    columns = {"a": [[3.0, 4.0], None], "b": [1.0, 1.0]}
    assert encode(text, columns).floats() == [[2.0, 3.0], [0.0, 0.0]]
    assert encode(text, columns).features[0].spec.value_dim == 2


@pytest.mark.parametrize(
    ("expression", "columns", "rows", "problem"),
    [
        ("a / b", {"a": [1.0, 1.0], "b": [2.0, 0.0]}, [1], "inf is not a finite number"),
        ("log(a)", {"a": [1.0, -1.0], "b": [1.0, 1.0]}, [1], "nan is not a finite number"),
        ("a + b", {"a": ["1", "x"], "b": [1.0, 1.0]}, [1], "'x' is not a number"),
        (
            "dot(a, b)",
            {"a": [None, [1.0, 2.0], [1.0, 2.0, 3.0]], "b": [[1.0], [1.0, 2.0], [1.0, 2.0]]},
            [2],
            "vectors of 'dot(a, b)' differ in length",
        ),
    ],
)
def test_bad_rows_are_faults(encode, expression, columns, rows, problem) -> None:
    faults = encode(config(expression), columns, bad=True).faults
    assert faults.rows.tolist() == rows
    assert faults.first().problem == problem


def test_vectors_that_differ_do_not_hide_other_faults(encode) -> None:
    columns = {"a": [[1.0, 2.0], [1.0, 2.0], [3.0], [0.0]], "b": [[1.0, 2.0, 3.0], [1.0, 2.0], [0.0], [5.0]]}
    faults = encode(config("1 / dot(a, b)"), columns, bad=True).faults
    assert faults.rows.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (config("a + c"), "names c, which is not among variables"),
        (config("a +"), "expected a number"),
        (config("1", variables=""), "must have variables"),
    ],
)
def test_settings_that_cannot_hold_are_refused(build, text, message) -> None:
    with pytest.raises(ConfigError) as error:
        build(text)
    assert message in str(error.value)


def test_encoded_columns_need_no_expression(encode) -> None:
    assert encode(config("", 'fg_encoded_default_value: "1"'), {"f": [None, 2]}, mode="FG_NONE").floats() == [
        [1],
        [2],
    ]


def test_a_correlation_that_does_not_exist_is_missing(encode) -> None:
    text = (
        'expr_feature { feature_name: "f" expression: "corr(a, b)" variables: ["user:a", "user:b"]'
        ' default_value: "9" }'
    )
    a = [[1.0, 2.0, 3.0], [0.1, 0.1, 0.1], [1.0, 2.0], [5.0], None]
    b = [[2.0, 4.0, 6.0], [1.0, 2.0, 3.0], [2.0, 1.0], [7.0], [1.0]]
    got = encode(text, {"a": pa.array(a), "b": pa.array(b)}).floats()
    assert got == [[pytest.approx(1.0)], [9.0], [pytest.approx(-1.0)], [9.0], [9.0]]
    a[1] = [math.nan, 1.0, 2.0]
    faults = encode(text, {"a": pa.array(a), "b": pa.array(b)}, bad=True).faults
    assert faults.rows.tolist() == [1]  # nan in the data is no missing value
