"""The factorization machine by one pass, against its definition in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.nn import fm
from recgrad.nn.fm import factorization_machine, interacting, split_fields


def by_definition(x, first, fields, dim):
    return factorization_machine(split_fields(x[:, first : first + fields * dim], dim)), x


def run(function, x, place, gradients, dtype):
    """The interactions, what passes through, and the gradient of x."""
    x = x.detach().clone().to(dtype).requires_grad_()
    outputs = function(x, *place)
    used = [(y, g.to(dtype)) for y, g in zip(outputs, gradients, strict=True) if g is not None]
    torch.autograd.backward([y for y, _ in used], [g for _, g in used])
    return [*(y.detach() for y in outputs), x.grad]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 300),
    fields=st.integers(1, 8),
    dim=st.integers(1, 37),
    before=st.integers(0, 20),
    after=st.integers(0, 20),
    used=st.sampled_from([(True, True), (True, False), (False, True)]),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_are_those_of_float64(rows, fields, dim, before, after, used, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, before + fields * dim + after, generator=generator)
    given_ = [torch.randn(rows, dim, generator=generator), torch.randn(x.shape, generator=generator)]
    gradients = [g if use else None for g, use in zip(given_, used, strict=True)]
    place = (before, fields, dim)
    least, fm.MIN_FIELDS = fm.MIN_FIELDS, 1
    try:
        ours = run(interacting, x, place, gradients, torch.float32)
    finally:
        fm.MIN_FIELDS = least
    exact = run(by_definition, x, place, gradients, torch.float64)
    for found, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.fixture
def every_size(monkeypatch):
    monkeypatch.setattr(fm, "MIN_FIELDS", 1)


@pytest.mark.usefixtures("every_size")
def test_bits_do_not_depend_on_threads():
    x, before = torch.randn(1000, 60), torch.get_num_threads()
    gradients = [torch.randn(1000, 5), torch.randn(1000, 60)]
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(interacting, x.clone(), (3, 11, 5), gradients, torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.usefixtures("every_size")
def test_rows_and_gradients_that_lie_apart():
    wide = torch.randn(70, 90)
    gradients = [torch.randn(5, 70).t(), torch.randn(60, 70).t()]
    x = wide[:, 20:80]
    ours = run(interacting, x.detach(), (0, 12, 5), gradients, torch.float32)
    exact = run(by_definition, x.detach(), (0, 12, 5), gradients, torch.float64)
    for found, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("every_size")
def test_what_is_no_float32_goes_through_torch():
    x = torch.randn(9, 12).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: interacting(x, 2, 2, 5)[0], x)
