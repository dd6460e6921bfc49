"""kv_dot_product, combine_feature and bool_mask_feature against plain Python."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.errors import ConfigError

keys = st.sampled_from(["a", "b", "вв", "d"])
vector = st.none() | st.dictionaries(keys, st.none() | st.integers(-8, 8), max_size=4)


def kv(body: str = "") -> str:
    return f'kv_dot_product {{ feature_name: "f" query: "user:q" document: "item:d" separator: "|" {body} }}'


def items(cell) -> list[str] | None:
    return None if cell is None else [k if v is None else f"{k}:{v}" for k, v in cell.items()]


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(vector, vector), max_size=8))
def test_dot_products_of_key_values(encode, rows) -> None:
    def dot(q, d) -> float:
        if not q or not d:
            return -1.0
        one = {k: 1 if v is None else v for k, v in d.items()}
        return sum((1 if v is None else v) * one[k] for k, v in q.items() if k in one)

    want = [[float(dot(q, d))] for q, d in rows]
    sides = [[items(row[i]) for row in rows] for i in (0, 1)]
    texts = [pa.array([None if c is None else "|".join(c) for c in side], pa.string()) for side in sides]
    lists = [pa.array([["x"], *side], pa.list_(pa.string())).slice(1) for side in sides]
    text = kv('default_value: "-1"')
    assert encode(text, {"q": texts[0], "d": texts[1]}).floats() == want
    assert encode(text, {"q": lists[0], "d": texts[1]}).floats() == want


def test_dot_products_of_maps(encode) -> None:
    q = pa.array([[("a", 0.5), ("b", 0.5)]], pa.map_(pa.string(), pa.float64()))
    assert encode(kv(), {"q": q, "d": ["d:0.5|b:0.5"]}).floats() == [[0.25]]
    assert encode(kv(), {"q": [["a", "b", "c"]], "d": q}).floats() == [[1.0]]
    assert encode(kv(), {"q": pa.array([[1, 2, 3]]), "d": ["2|3|4"]}).floats() == [[2.0]]


def test_a_value_that_is_no_number_is_a_fault(encode) -> None:
    faults = encode(kv(), {"q": ["a:1", "b|a:x"], "d": ["a:1", "a:1"]}, bad=True).faults
    assert (faults.first().row, faults.first().column, faults.first().problem) == (
        1,
        "q",
        "'x' is not a number",
    )


def test_kv_delimiter_is_refused(build) -> None:
    with pytest.raises(ConfigError, match="kv_delimiter"):
        build(kv("kv_delimiter: 1"))


COMBINE = {"sum": sum, "mean": lambda v: sum(v) / len(v), "min": min, "max": max}
MAP = 'value_map { key: "a" value: 1.5 } value_map { key: "b" value: -2 } value_map { key: "ц" value: 4 }'


def combined(body: str) -> str:
    return f'combine_feature {{ feature_name: "f" expression: "user:c" separator: "|" {body} }}'


@settings(max_examples=25, deadline=None)
@given(
    cells=st.lists(st.none() | st.lists(st.sampled_from(["a", "b", "ц", "", "?"]), max_size=4), max_size=8)
)
@pytest.mark.parametrize("combiner", COMBINE)
def test_words_become_numbers(encode, forms, cells, combiner) -> None:
    numbers = {"a": 1.5, "b": -2.0, "ц": 4.0}
    known = [[numbers[w] for w in cell or [] if w in numbers] for cell in cells]
    want = [[pytest.approx(COMBINE[combiner](row), rel=1e-7) if row else 9.0] for row in known]
    text = combined(f'{MAP} combiner: "{combiner}" default_value: "9"')
    for form, array in forms(cells, "|").items():
        assert encode(text, {"c": array}).floats() == want, form


def test_combined_numbers_as_ids(encode) -> None:
    columns = {"c": ["1|2", "3", None]}
    assert encode(combined("num_buckets: 5 embedding_dim: 4"), columns).ids() == [[3], [3], []]
    cut = combined('boundaries: [1, 2.5] embedding_dim: 4 combiner: "mean" default_value: "0"')
    assert encode(cut, columns).ids() == [[1], [2], [0]]


def test_a_missing_number_without_default_is_a_fault(encode) -> None:
    assert encode(combined(MAP), {"c": ["a", "?"]}, bad=True).faults.rows.tolist() == [1]


def masked(body: str = "num_buckets: 1000") -> str:
    return (
        'bool_mask_feature { feature_name: "f" expression: ["user:c", "user:m"] embedding_dim: 4'
        f' separator: "," {body} }}'
    )


@pytest.mark.parametrize(
    ("values", "mask"),
    [
        ("123,456,90,80", "true,false,True,0"),
        ("123,456,90,80", [1, 0, 1, 0]),
        ([123, 456, 90, 80], [True, False, True, False]),
        ([123, 456, 90, 80], "TRUE,FALSE,1,0"),
        (["123", "456", "90", "80"], [1.0, 0.0, 0.5, 0.0]),
    ],
)
def test_masked_values(encode, values, mask) -> None:
    result = encode(masked(), {"c": pa.array([values, None]), "m": pa.array([mask, None])})
    assert result.ids() == [[123, 90], []]


@pytest.mark.parametrize(
    ("values", "mask", "problem"),
    [
        (["1,2", "1"], ["1,0", "1,0"], "has 2 masks, not one for each value"),
        (["1,2", "1"], ["1,0", "yes"], "mask 'yes' is neither true nor false"),
    ],
)
def test_masks_that_do_not_fit_are_faults(encode, values, mask, problem) -> None:
    faults = encode(masked(), {"c": values, "m": mask}, bad=True).faults
    assert (faults.rows.tolist(), faults.first().problem, faults.first().column) == ([1], problem, "m")
