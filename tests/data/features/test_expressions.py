"""Expressions against Python's own arithmetic."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.data.features.expressions import LengthMismatchError, compile_expression
from recgrad.data.features.functions import Vector

X = np.array([-2.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.5, 100.0])


def value(source: str, **names) -> np.ndarray:
    return compile_expression(source).evaluate({k: np.asarray(v, np.float64) for k, v in names.items()})


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("2 ^ 3 ^ 2", 512),
        ("-2 ^ 2", -4),
        ("2 ^ -1", 0.5),
        ("10 - 4 - 3", 3),
        ("16 / 4 / 2", 2),
        ("1 < 2 == 1", 1),
        ("1 || 0 && 0", 1),
        ("6 & 3 | 8", 10),
        ("1 + 1 > 1 && 2 >= 2", 1),
        ("!0 + !5", 1),
        ("0 ? 1 : 1 ? 2 : 3", 2),
        ("1 ? 2 : 3 + 4", 2),
        ("_pi", math.pi),
        ("_e", math.e),
        ("1e-3 + .5 + 2.", 2.501),
        ("min(3, 1, 2) + max(3, 1, 2) + sum(1, 2, 3) + avg(1, 2, 6)", 13),
        ("roundp(3.14159, 2)", 3.14),
        ("haversine(0, 0, 90, 0)", 6371 * math.pi / 2),
        ("sphere_dist(0, 0, 90, 0)", 6371 * math.pi / 2),
    ],
)
def test_constants(source, want) -> None:
    assert float(value(source)) == pytest.approx(want, rel=1e-12)


# All that TorchEasyRec's expressions can call, by how many arguments.
THEIRS = {
    1: "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh log2 log10 log ln exp sqrt sign abs rint "
    "floor ceil trunc round sigmoid isnan len l2_norm squared_norm std_dev pop_std_dev variance pop_variance "
    "reduce_min reduce_max reduce_sum reduce_mean reduce_prod",
    2: "roundp mod dot euclid_dist corr",
    3: "min max sum avg",
    4: "haversine sphere_dist",
}


@pytest.mark.parametrize(("name", "count"), [(n, c) for c, names in THEIRS.items() for n in names.split()])
def test_every_function_of_torcheasyrec_is_there(name: str, count: int) -> None:
    names = "abcd"[:count]
    vectors = {n: Vector(np.array([0.25, 0.5 + i, 1.0]), np.array([0, 3])) for i, n in enumerate(names)}
    result = compile_expression(f"{name}({', '.join(names)})").evaluate(vectors)
    assert np.isfinite(result.values if isinstance(result, Vector) else result).any()


def test_no_function_is_missing_from_the_page() -> None:
    from pathlib import Path

    from recgrad.data.features.functions import ELEMENTWISE, REDUCTIONS

    assert {*ELEMENTWISE, *REDUCTIONS} == set(" ".join(THEIRS.values()).split())
    words = set((Path(__file__).parents[3] / "docs/features.md").read_text(encoding="utf-8").split())
    known = {word.strip(",|").partition("(")[0] for word in words}
    assert {*ELEMENTWISE, *REDUCTIONS} <= known


def test_random_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="rnd is random"):
        compile_expression("rnd()")


@pytest.mark.parametrize(
    ("a", "b", "want"), [(7, 3, 1), (-7, 3, -1), (7, -3, 1), (5.5, 2, 1.5), (6, 3, 0), (1, 0, math.nan)]
)
def test_mod_has_the_sign_of_the_dividend(a, b, want) -> None:
    assert value("mod(a, b)", a=[a], b=[b]).tolist() == pytest.approx([want], nan_ok=True)


def test_isnan() -> None:
    assert value("isnan(x)", x=[1, math.nan, math.inf]).tolist() == [0, 1, 0]
    assert value("isnan(x) ? 7 : x", x=[1, math.nan]).tolist() == [1, 7]
    assert value("isnan(0 / 0) + isnan(log(-1))").tolist() == 2


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=1, max_size=8), max_size=6
    )
)
def test_corr_is_that_of_numpy(rows) -> None:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
    a, b = (np.array([pair[i] for row in rows for pair in row], np.float64) * 0.1 for i in (0, 1))
    got = compile_expression("corr(a, b)").evaluate({"a": Vector(a, offsets), "b": Vector(b, offsets)})
    for row, one in zip(rows, np.atleast_1d(got).tolist(), strict=True):
        x, y = zip(*row, strict=True)
        if len(set(x)) == 1 or len(set(y)) == 1:
            assert math.isnan(one)
        else:
            assert one == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)


@pytest.mark.parametrize("name", ["haversine", "sphere_dist"])
def test_distances_are_angles_between_directions(name) -> None:
    def direction(lng: float, lat: float) -> np.ndarray:
        a, b = math.radians(lng), math.radians(lat)
        return np.array([math.cos(b) * math.cos(a), math.cos(b) * math.sin(a), math.sin(b)])

    a, b = (13.4, 52.5), (2.35, 48.86)
    angle = 2 * math.asin(np.linalg.norm(direction(*a) - direction(*b)) / 2)
    assert float(value(f"{name}({a[0]}, {a[1]}, {b[0]}, {b[1]})")) == pytest.approx(6371 * angle, rel=1e-9)


@pytest.mark.parametrize(
    "name", ["sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "asinh", "exp", "floor", "ceil", "trunc"]
)
def test_functions_of_any_number(name) -> None:
    np.testing.assert_allclose(value(f"{name}(x)", x=X), [getattr(math, name)(x) for x in X], rtol=1e-14)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("log2", math.log2),
        ("log10", math.log10),
        ("log", math.log),
        ("ln", math.log),
        ("sqrt", math.sqrt),
        ("acosh", math.acosh),
    ],
)
def test_functions_of_positive_numbers(name, function) -> None:
    x = np.array([1.0, 1.5, 7.0, 1e6])
    np.testing.assert_allclose(value(f"{name}(x)", x=x), [function(v) for v in x], rtol=1e-14)


@pytest.mark.parametrize("name", ["asin", "acos", "atanh"])
def test_functions_of_small_numbers(name) -> None:
    x = np.array([-0.9, 0.0, 0.3])
    np.testing.assert_allclose(value(f"{name}(x)", x=x), [getattr(math, name)(v) for v in x], rtol=1e-14)


def test_rounding_signs_and_sigmoid() -> None:
    x = np.array([-2.5, -0.5, 0.5, 1.4, 2.5])
    assert value("round(x)", x=x).tolist() == [-3, -1, 1, 1, 3]
    assert value("rint(x)", x=x).tolist() == [-2, 0, 0, 1, 2]
    assert value("sign(x)", x=[-3, 0, 2]).tolist() == [-1, 0, 1]
    assert value("abs(x)", x=[-3, 0, 2]).tolist() == [3, 0, 2]
    np.testing.assert_allclose(
        value("sigmoid(x)", x=[-800.0, 0.0, 3.0]), [0, 0.5, 1 / (1 + math.exp(-3))], atol=1e-15
    )


@settings(max_examples=80, deadline=None)
@given(st.recursive(
    st.sampled_from(["x", "y", "2", "0.5"]),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "<", ">=", "==", "!="]), inner, inner).map(
        lambda t: f"({t[1]} {t[0]} {t[2]})"
    ),
    max_leaves=8,
))  # fmt: skip
def test_nested_arithmetic_is_pythons(source: str) -> None:
    x, y = np.array([0.25, -3.0, 2.0]), np.array([2.0, 0.5, -3.0])
    want = [float(eval(source, {"x": a, "y": b})) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    np.testing.assert_array_equal(np.broadcast_to(value(source, x=x, y=y), 3), want)


ROWS = [[1.0, 2.0, 3.0], [4.0], [0.5, -0.5]]
OTHER = [[2.0, 0.0, 1.0], [3.0], [1.0, 1.0]]


def vector(rows: list[list[float]]) -> Vector:
    return Vector(np.array([x for row in rows for x in row]), np.cumsum([0, *map(len, rows)]))


@pytest.mark.parametrize(
    ("source", "reference"),
    [
        ("len(a)", lambda a, b: len(a)),
        ("l2_norm(a)", lambda a, b: math.sqrt(sum(x * x for x in a))),
        ("squared_norm(a)", lambda a, b: sum(x * x for x in a)),
        ("dot(a, b)", lambda a, b: sum(x * y for x, y in zip(a, b, strict=True))),
        ("euclid_dist(a, b)", lambda a, b: math.dist(a, b)),
        ("std_dev(a)", lambda a, b: float(np.std(a))),
        ("variance(a)", lambda a, b: float(np.var(a))),
        ("reduce_min(a) + reduce_max(a)", lambda a, b: min(a) + max(a)),
        ("reduce_sum(a * b)", lambda a, b: sum(x * y for x, y in zip(a, b, strict=True))),
        ("reduce_mean(a + 1)", lambda a, b: sum(a) / len(a) + 1),
        ("reduce_prod(a)", lambda a, b: math.prod(a)),
        ("dot(a, 2)", lambda a, b: 2 * sum(a)),
        ("dot(a, b) > s ? 1 : 0", lambda a, b: float(sum(x * y for x, y in zip(a, b, strict=True)) > 4)),
    ],
)
def test_functions_of_vectors(source, reference) -> None:
    names = {"a": vector(ROWS), "b": vector(OTHER), "s": np.full(3, 4.0)}
    got = compile_expression(source).evaluate(names)
    np.testing.assert_allclose(got, [reference(a, b) for a, b in zip(ROWS, OTHER, strict=True)], rtol=1e-12)


def test_sample_variance_divides_by_n_less_one() -> None:
    names = {"a": vector([[1.0, 2.0, 4.0], [5.0, 5.0]])}
    want = [np.var([1, 2, 4], ddof=1), 0.0]
    np.testing.assert_allclose(compile_expression("pop_variance(a)").evaluate(names), want, rtol=1e-12)
    np.testing.assert_allclose(
        compile_expression("pop_std_dev(a)").evaluate(names), np.sqrt(want), rtol=1e-12
    )


def test_numbers_and_vectors_of_one_are_repeated() -> None:
    names = {"a": vector(ROWS), "b": vector([[10.0], [20.0], [1.0, 2.0]]), "s": np.array([1.0, 2.0, 3.0])}
    got = compile_expression("a * b + s").evaluate(names)
    assert got.values.tolist() == [11, 21, 31, 82, 3.5, 2]
    assert got.offsets.tolist() == [0, 3, 4, 6]


def test_vectors_that_do_not_fit_are_named() -> None:
    names = {"a": vector(ROWS), "b": vector([[1.0, 2.0], [3.0], [1.0, 2.0]])}
    with pytest.raises(LengthMismatchError) as error:
        compile_expression("dot(a, b)").evaluate(names)
    assert error.value.bags.tolist() == [0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "must not be empty"),
        ("1 +", "expected a number, a name or '(' before 'the end'"),
        ("(1", "expected ')' before 'the end'"),
        ("1 2", "expected an operator before '2'"),
        ("x ? 1", "expected ':' before"),
        ("x.y", "'.' at 1 is no operator"),
        ("x; y", "';' at 1 is no operator"),
        ("x = 1", "'=' at 2 is no operator"),
        ("__import__('os')", "is no operator"),
        ("sqr(x)", "did you mean 'sqrt'?"),
        ("sin(x, x)", "sin takes 1 arguments, got 2"),
        ("max()", "max takes at least 1 arguments, got 0"),
        ("rnd()", "rnd is random"),
    ],
)
def test_nonsense_is_refused(source, message) -> None:
    with pytest.raises(ValueError, match=r"\w") as error:
        compile_expression(source)
    assert message in str(error.value)


def test_names_of_python_are_only_variables() -> None:
    assert compile_expression("exit + open").variables == {"exit", "open"}


@pytest.mark.parametrize(
    "source", ["(" * 3000 + "x" + ")" * 3000, "-" * 3000 + "x", "^".join(["x"] * 3000), "x?1:" * 3000 + "0"]
)
def test_expressions_that_are_nested_without_end_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match="is nested more than 50 deep") as raised:
        compile_expression(source)
    assert len(str(raised.value)) < 200
    assert compile_expression("(" * 40 + "x" + ")" * 40).evaluate({"x": np.ones(1)}) == 1


def test_sums_of_many_terms_are_not_deep() -> None:
    expression = compile_expression(" + ".join(["x"] * 5000) + " - 1 / 2 / 2")
    assert expression.evaluate({"x": np.ones(1)}) == 4999.75
