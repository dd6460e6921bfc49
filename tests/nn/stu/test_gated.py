"""The kernels around an STU layer's attention against torch's operations in float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from recgrad.nn.attention import Mask
from recgrad.nn.jagged import Segments
from recgrad.nn.stu import gated
from recgrad.nn.stu.layer import STULayer

LENGTHS = [7, 0, 1, 30, 8, 13, 3, 200]


def layer(dim=32, heads=2, width=16, **more):
    torch.manual_seed(0)
    made = STULayer(
        embedding_dim=dim,
        num_heads=heads,
        hidden_dim=width,
        attention_dim=width,
        divisor=9.0,
        mask=Mask(contextual=1),
        output_dropout_ratio=0.0,
        **more,
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return made


def results(made, lengths=LENGTHS):
    """The output and all gradients, of random tokens with two candidates a row."""
    own = torch.Generator().manual_seed(1)
    dtype, dim = made.uvqk.weight.dtype, made.uvqk.in_features
    segments = Segments.from_lengths(torch.tensor(lengths), sum(lengths))
    x = torch.randn(sum(lengths), dim, generator=own).to(dtype).requires_grad_()
    out = made(x, segments, (segments.lengths - 1).clamp(min=0, max=2))
    weight = torch.randn(out.shape, generator=own).to(dtype)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), [x, *made.parameters()])]


def assert_alike(found, exact):
    for ours, expected in zip(found, exact, strict=True):
        scale = expected.abs().max().clamp(min=1)
        torch.testing.assert_close(ours.double() / scale, expected.double() / scale, rtol=0, atol=3e-5)


@pytest.mark.parametrize(("heads", "width"), [(1, 16), (2, 32), (4, 48)])
def test_outputs_and_gradients_are_those_of_the_formula(heads, width, monkeypatch):
    made = layer(32, heads, width)
    launched = []
    launch = gated._GateCall.launch
    monkeypatch.setattr(gated._GateCall, "launch", lambda self, k: (launched.append(k), launch(self, k))[1])
    found = results(made)
    assert len(launched) == 2
    exact = results(copy.deepcopy(made).double())
    assert len(launched) == 2, "float64 takes torch's operations"
    assert_alike(found, exact)


def test_widths_that_fill_no_vector_and_other_norms_take_torchs_operations():
    for made in (layer(width=8), layer(width=17), layer(use_group_norm=True)):
        assert_alike(results(made), results(copy.deepcopy(made).double()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert results(layer())[0].isfinite().all()
    assert results(layer(), [0, 0])[0].shape == (0, 32)


def test_bits_do_not_depend_on_the_number_of_threads():
    made, threads, found = layer(), torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            x = torch.randn(sum(LENGTHS), 64, generator=torch.Generator().manual_seed(2)).requires_grad_()
            segments = Segments.from_lengths(torch.tensor(LENGTHS), len(x))
            mixed = torch.cat([x, 0.5 * x], dim=1)
            parts = gated.gated_attention(mixed, made.widths, segments, made.setting, made.output_norm)
            grads = torch.autograd.grad(parts.square().sum(), [x, *made.output_norm.parameters()])
            found.append([parts.detach(), *grads])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_constant_output_of_attention_has_no_variance():
    made, mixed = layer(), torch.zeros(5, 128, requires_grad=True)
    segments = Segments.from_lengths(torch.tensor([5]), 5)
    parts = gated.gated_attention(mixed, made.widths, segments, made.setting, made.output_norm)
    (of_mixed,) = torch.autograd.grad(parts.sum(), mixed)
    exact = mixed.detach().double().requires_grad_()
    norm = copy.deepcopy(made.output_norm).double()
    whole = gated.gated_attention(exact, made.widths, segments, made.setting, norm)
    (of_exact,) = torch.autograd.grad(whole.sum(), exact)
    np.testing.assert_allclose(parts.detach(), whole.detach(), atol=1e-6)
    np.testing.assert_allclose(of_mixed, of_exact, rtol=1e-3, atol=1e-3)
