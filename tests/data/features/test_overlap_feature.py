"""overlap_feature against plain Python over lists of words."""

from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.errors import ConfigError

words = st.lists(st.sampled_from(["a", "b", "c", "ж", "ab"]), max_size=5)


def index_of(query, title):
    at = [i for i in range(len(title) - len(query) + 1) if query and title[i : i + len(query)] == query]
    return at[0] if at else -1


def min_cover(query, title):
    sizes = [
        j - i
        for i in range(len(title))
        for j in range(i + 1, len(title) + 1)
        if query and set(query) <= set(title[i:j])
    ]
    return min(sizes, default=0)


def distances(query, title):
    there = [word for word in dict.fromkeys(query) if word in title]
    if not there:
        return [len(title) + 1]
    pairs = [
        min(abs(i - j) for i, x in enumerate(title) for j, y in enumerate(title) if x == a and y == b)
        for a, b in combinations(there, 2)
    ]
    return pairs or [len(title)]


REFERENCE = {
    "query_common_ratio": lambda q, t: sum(w in t for w in q) / len(q) if q and t else 0,
    "title_common_ratio": lambda q, t: sum(w in q for w in t) / len(t) if q and t else 0,
    "is_contain": lambda q, t: float(index_of(q, t) >= 0),
    "is_equal": lambda q, t: float(q == t and q != []),
    "index_of": index_of,
    "proximity_min_cover": min_cover,
    "proximity_min_dist": lambda q, t: min(distances(q, t)),
    "proximity_max_dist": lambda q, t: max(distances(q, t)),
    "proximity_avg_dist": lambda q, t: sum(distances(q, t)) / len(distances(q, t)),
}


def config(method: str, body: str = "") -> str:
    return (
        'overlap_feature { feature_name: "f" query: "user:q" title: "item:t" separator: "|"'
        f' method: "{method}" {body} }}'
    )


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(st.none() | words, st.none() | words), max_size=8))
@pytest.mark.parametrize("method", REFERENCE)
def test_measures(encode, forms, rows, method) -> None:
    want = [[pytest.approx(REFERENCE[method](q or [], t or []), rel=1e-7)] for q, t in rows]
    queries, titles = forms([q for q, _ in rows], "|"), forms([t for _, t in rows], "|")
    for form in ("string", "sliced string", "list"):
        assert encode(config(method), {"q": queries[form], "t": titles[form]}).floats() == want


@pytest.mark.parametrize(
    ("method", "want"),
    [
        ("is_equal", 0),
        ("is_contain", 1),
        ("index_of", 1),
        ("query_common_ratio", 1),
        ("title_common_ratio", 0.5),
        ("proximity_min_dist", 1),
        ("proximity_max_dist", 1),
        ("proximity_avg_dist", 1),
        ("proximity_min_cover", 2),
    ],
)
def test_bc_in_abcd(encode, method, want) -> None:
    assert encode(config(method), {"q": [["b", "c"]], "t": [["a", "b", "c", "d"]]}).floats() == [[want]]


def test_integers_are_words_too(encode) -> None:
    assert encode(config("is_equal"), {"q": pa.array([[1, 2]]), "t": ["1|2"]}).floats() == [[1.0]]


def test_boundaries(encode) -> None:
    text = config("query_common_ratio", "boundaries: [0.25, 0.75] embedding_dim: 4")
    assert encode(text, {"q": ["a|b", "a|b", None], "t": ["a|c", "a|b", "x"]}).ids() == [[1], [2], [0]]


def test_unknown_methods_are_refused(build) -> None:
    with pytest.raises(ConfigError, match="did you mean 'is_contain'"):
        build(config("is_contains"))
