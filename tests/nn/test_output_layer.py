"""The last layer of a model against torch's linear layer, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.nn import output_layer
from recgrad.nn.output_layer import OutputLayer


def gradients(layer: OutputLayer, x: torch.Tensor, upstream: torch.Tensor) -> list[torch.Tensor]:
    layer.zero_grad()
    x = x.detach().requires_grad_()
    y = layer(x)
    y.backward(upstream)
    return [y.detach(), x.grad, *(parameter.grad.clone() for parameter in layer.parameters())]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.sampled_from([1, 127, 128, 129, 1000]),
    width=st.integers(1, 100),
    bias=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_one_output_equals_torchs_linear_layer(
    rows: int, width: int, bias: bool, wide: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    layer = OutputLayer(width, 1, bias=bias)
    x = torch.randn(rows, width + 5 * wide, generator=generator)[:, 2 * wide : width + 2 * wide]
    upstream = torch.randn(rows, 1, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_layer, "MIN_INPUTS", 0)
        found = gradients(layer, x, upstream)
    inputs = [t.detach().double().requires_grad_() for t in (x, *layer.parameters())]
    expected = F.linear(*inputs)
    expected.backward(upstream.double())
    # Sums of float32 are off by a few of their terms' last digits.
    size = F.linear(*(t.abs() for t in inputs)).detach()
    assert ((found[0] - expected).abs() <= 1e-6 * (size + 1)).all()
    torch.testing.assert_close(found[1], inputs[0].grad.float())
    for ours, theirs in zip(found[2:], inputs[1:], strict=True):
        terms = (upstream.abs().double().T @ x.abs().double()).max() + upstream.abs().sum()
        assert ((ours - theirs.grad).abs() <= 1e-6 * terms).all()


def test_bits_do_not_depend_on_threads() -> None:
    layer, x, upstream = OutputLayer(70, 1), torch.randn(3000, 70), torch.randn(3000, 1)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(gradients(layer, x, upstream)[:-1])  # torch sums the bias's gradient
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_several_outputs_and_other_types_are_torchs() -> None:
    x = torch.randn(2000, 64)
    layer = OutputLayer(64, 3)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    layer = OutputLayer(64, 1).double()
    assert torch.equal(layer(x.double()), F.linear(x.double(), layer.weight, layer.bias))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert OutputLayer(64, 1)(x).dtype == torch.bfloat16


def test_what_needs_no_gradient_gets_none() -> None:
    layer = OutputLayer(64, 1)
    layer.weight.requires_grad_(False)
    x = torch.randn(2000, 64)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad.item() == 2000
