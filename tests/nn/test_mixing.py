"""Weighted sums of experts by kernels, against the formula in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.nn import mixing
from recgrad.nn.mixing import mix_experts


def by_definition(weights, experts):
    return torch.einsum("rse,rew->rsw", weights, torch.cat(list(experts), dim=1))


def run(function, weights, experts, gradient, dtype):
    leaves = [t.detach().to(dtype).requires_grad_() for t in (weights, *experts)]
    out = function(leaves[0], leaves[1:])
    out.backward(gradient.to(dtype))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def make(rows, sets, parts, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    experts = [draw(rows, count, width) for count in parts]
    return draw(rows, sets, sum(parts)), experts, draw(rows, sets, width)


@pytest.fixture(autouse=True, scope="module")
def _every_size():
    least, mixing.MIN_NUMBERS = mixing.MIN_NUMBERS, 1
    yield
    mixing.MIN_NUMBERS = least


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 300),
    sets=st.integers(1, 3),
    parts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    width=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_are_those_of_float64(rows, sets, parts, width, seed):
    given_ = make(rows, sets, parts, width, seed)
    ours, exact = (
        run(function, *given_, dtype)
        for function, dtype in ((mix_experts, torch.float32), (by_definition, torch.float64))
    )
    for found, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


def test_experts_and_gradients_that_lie_apart():
    weights, experts, _ = make(50, 2, [3], 20)
    apart = torch.randn(3, 50, 20).transpose(0, 1)
    gradient = torch.randn(2, 50, 20).transpose(0, 1)
    columns = torch.randn(50, 100)[:, 10:70].view(50, 3, 20)
    for part in (apart, columns, experts[0]):
        ours = run(mix_experts, weights, [part], gradient, torch.float32)
        exact = run(by_definition, weights, [part], gradient, torch.float64)
        for found, wanted in zip(ours, exact, strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


def test_bits_do_not_depend_on_threads():
    given_, before = make(1000, 2, [3, 2], 37), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(mix_experts, *given_, torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_what_is_no_float32_goes_through_torch():
    weights, experts, _ = make(5, 2, [3, 1], 4)
    leaves = [t.double().requires_grad_() for t in (weights, *experts)]
    assert torch.autograd.gradcheck(lambda p, *h: mix_experts(p, h), leaves)
