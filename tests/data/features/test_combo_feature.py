"""combo_feature against itertools.product."""

from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.errors import ConfigError

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|"), max_size=4)
cell = st.none() | st.lists(words, max_size=3)


def config(body: str, inputs: int = 2) -> str:
    expressions = ", ".join(f'"user:c{i}"' for i in range(inputs))
    fixed = f'feature_name: "f" expression: [{expressions}] embedding_dim: 8 separator: "|"'
    return f"combo_feature {{ {fixed} {body} }}"


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.tuples(cell, cell, cell), max_size=8), default=st.sampled_from(["", "zz"]))
@pytest.mark.parametrize("inputs", [2, 3])
def test_crosses_in_every_form(encode, bucket, forms, rows, default, inputs) -> None:
    text = config(f'hash_bucket_size: 1000 default_value: "{default}"', inputs)
    columns = [[row[i] for row in rows] for i in range(inputs)]
    want = []
    for row in rows:
        parts = [[word for word in part or [] if word] for part in row[:inputs]]
        ids = [bucket("_".join(words), 1000) for words in product(*parts)]
        want.append(ids or ([bucket(default, 1000)] if default else []))
    rendered = [forms(column, "|") for column in columns]
    for form in rendered[0]:
        arrays = {f"c{i}": rendered[i][form] for i in range(inputs)}
        assert encode(text, arrays).ids() == want, form


def test_numbers_cross_with_texts_by_their_decimals(encode, bucket) -> None:
    result = encode(config("hash_bucket_size: 1000"), {"c0": pa.array([7, 12, None]), "c1": ["a", "b", "c"]})
    assert result.ids() == [[bucket("7_a", 1000)], [bucket("12_b", 1000)], []]
    assert encode(config("hash_bucket_size: 9"), {"c0": pa.array([7]), "c1": ["a"]}).encoded.sparse.single


def test_vocabularies_name_joined_words(encode) -> None:
    text = config('vocab_list: ["ua_ia", "ua_ib", "ub_ia"] value_dim: 3')
    result = encode(text, {"c0": ["ua|ub", "ua"], "c1": ["ia|ib", "ib"]})
    assert result.ids() == [[2, 3, 4], [3]]  # the fourth, ub_ib, falls to value_dim
    assert result.features[0].spec.num_rows == 5
    assert result.features[0].columns == ("c0", "c1")


def test_constants_may_take_part(encode, bucket) -> None:
    text = config("hash_bucket_size: 1000").replace("user:c1", "const:site a")
    assert encode(text, {"c0": ["x", None]}).ids() == [[bucket("x_site a", 1000)], []]


def test_a_float_with_a_fraction_is_a_fault(encode) -> None:
    faults = encode(config("hash_bucket_size: 9"), {"c0": ["a", "b"], "c1": [1.0, 1.5]}, bad=True).faults
    assert (faults.first().row, faults.first().column) == (1, "c1")


def test_one_expression_is_no_cross(build) -> None:
    with pytest.raises(ConfigError, match="at least 2 expressions, got 1"):
        build(config("hash_bucket_size: 9", 1))
