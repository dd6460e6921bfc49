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


@pytest.mark.parametrize(
    ("default", "ids", "floats"),
    [("0.1", [2, 3, 1, 1], 0.1), ("0", [2, 3, 0, 0], 0.0), ("", [2, 3, 0, 0], 0.0)],
)
def test_the_default_of_a_dot_product_is_cut_into_buckets(encode, default, ids, floats) -> None:
    """TorchEasyRec's cases: an empty default is the bucket of 0."""
    texts = {"q": ["a:0.5|b:0.5", "a|b|c", "a|b", None], "d": ["a:0.5|b:0.5", "a|b", "", ""]}
    lists = {
        "q": [["a:0.5", "b:0.5"], ["a", "b", "c"], ["a", "b"], None],
        "d": [["a:0.5", "b:0.5"], ["a", "b"], [], []],
    }
    body = f'default_value: "{default}"'
    for columns in (texts, lists):
        cut = encode(kv(f"{body} boundaries: [0.05, 0.15, 1.0] embedding_dim: 4"), columns)
        assert cut.ids() == [[one] for one in ids]
        got = encode(kv(body), columns).floats()
        assert got == [[0.5], [2.0], [pytest.approx(floats)], [pytest.approx(floats)]]


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


MEAN = lambda v: sum(v) / len(v)  # noqa: E731
COMBINE = {"sum": sum, "mean": MEAN, "avg": MEAN, "min": min, "max": max, "count": len}
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
    whole = combined('num_buckets: 5 embedding_dim: 4 combiner: "mean"')
    assert encode(whole, {"c": ["1|2", "3", None]}).ids() == [[1], [3], []]  # cut towards zero
    assert encode(whole, {"c": ["-1|0.5", "1.9"]}).ids() == [[0], [1]]
    edges = "boundaries: [-0.5, 0.5, 1.5, 2.5] embedding_dim: 4 combiner: "
    assert encode(combined(edges + '"sum"'), {"c": ["1|2"]}).ids() == [[4]]
    assert encode(combined(edges + '"mean"'), {"c": ["1|2"]}).ids() == [[3]]


def test_the_mean_of_words_is_cut_to_an_integer(encode) -> None:
    numbers = 'value_map { key: "t1" value: 1 } value_map { key: "t2" value: 2 }'
    body = f'{numbers} num_buckets: 10 embedding_dim: 4 default_value: "" combiner: '
    for combiner, want in (("mean", [1]), ("avg", [1]), ("sum", [3]), ("count", [2]), ("MAX", [2])):
        got = encode(combined(body + f'"{combiner}"'), {"c": ["t1|t2", "?"]}).ids()
        assert got == [want, []], combiner


def test_a_count_of_one_value_a_row(encode) -> None:
    assert encode(combined('combiner: "count"'), {"c": [7, 9]}).floats() == [[1.0], [1.0]]


def test_a_gap_combiner_is_refused(build) -> None:
    with pytest.raises(
        ConfigError, match="combiner 'gap_min' is not available: what it computes is published"
    ):
        build(combined('combiner: "gap_min"'))


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


def test_items_that_are_not_there_give_no_id(encode) -> None:
    """TorchEasyRec's own cases, then nulls among the items of a list and the parts of a text."""
    got = encode(masked("num_buckets: 10"), {"c": ["1", "2", None], "m": ["true", "false", "true"]})
    assert got.ids() == [[1], [], []]
    got = encode(masked("num_buckets: 10"), {"c": ["1,2", "3,4,5"], "m": ["true,false", "true,false,true"]})
    assert got.ids() == [[1], [3, 5]]
    values = pa.array([[1, None, 3], [None, 2], None, []])
    masks = pa.array([[True, True, False], [True, True], [True], None])
    assert encode(masked(), {"c": values, "m": masks}).ids() == [[1], [2], [], []]
    assert encode(masked(), {"c": ["1,,3", ",2"], "m": ["1,1,0", "1,1"]}).ids() == [[1], [2]]
    filled = masked('num_buckets: 10 default_value: "7"')
    assert encode(filled, {"c": pa.array([[1], None]), "m": pa.array([[0], [1]])}).ids() == [[7], [7]]


def test_a_row_of_another_length_does_not_change_the_others(encode) -> None:
    columns = {"c": pa.array([[1, None, 3], [5]]), "m": pa.array([[True, True, True], [True, True]])}
    result = encode(masked(), columns, bad=True)
    assert (result.faults.rows.tolist(), result.ids()) == ([1], [[1, 3], []])


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
