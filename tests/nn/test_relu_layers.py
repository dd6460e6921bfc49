"""Linear layers with ReLU by products and kernels, against torch's operations in float64."""

from __future__ import annotations

import copy
import ctypes
import mmap
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from recgrad.nn import mlp, moe
from recgrad.nn import relu_layers as module
from recgrad.nn.mlp import MLP
from recgrad.nn.moe import Experts
from recgrad.nn.relu_kernels import add_bias_relu, gate, new_sums
from recgrad.nn.relu_layers import relu_layers


def reference(x, layers):
    """The same by definition: each network alone."""
    count = layers[0][0].shape[0]
    outputs = []
    for e in range(count):
        y = x
        for weight, bias in layers:
            y = F.relu(F.linear(y, weight[e], None if bias is None else bias[e]))
        outputs.append(y)
    return torch.cat(outputs, dim=1)


def nearest_kink(x, layers):
    """The smallest number that ReLU takes: where it is as near to 0 as rounding, either gradient is right."""
    nearest = []
    for e in range(layers[0][0].shape[0]):
        y = x.double()
        for weight, bias in layers:
            y = F.linear(y, weight[e].double(), None if bias is None else bias[e].double())
            nearest.append(float(y.abs().min()))
            y = F.relu(y)
    return min(nearest)


def make(rows, widths, count, biased, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    layers = [(draw(count, b, a) / a**0.5, draw(count, b) if biased else None) for a, b in pairwise(widths)]
    return draw(rows, widths[0]), layers, draw(rows, count * widths[-1])


def run(function, x, layers, gradient, dtype):
    """Output, and gradients of the input, the weights and the biases."""
    leaf = lambda t: None if t is None else t.detach().to(dtype).requires_grad_()  # noqa: E731
    x, layers = leaf(x), [(leaf(w), leaf(b)) for w, b in layers]
    out = function(x, layers)
    out.backward(gradient.to(dtype))
    tensors = [x, *(t for layer in layers for t in layer if t is not None)]
    return [out.detach(), *(t.grad for t in tensors)]


@pytest.fixture(params=[True, False], ids=["own products", "torch's products"], autouse=True, scope="module")
def own(request):
    """Both ways to compute them, whichever this machine would choose."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "own_products", lambda: request.param)
        yield request.param


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 300),
    widths=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    count=st.integers(1, 3),
    biased=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_are_those_of_float64(rows, widths, count, biased, seed):
    x, layers, gradient = make(rows, widths, count, biased, seed)
    assume(nearest_kink(x, layers) > 3e-6)
    ours = run(relu_layers, x, layers, gradient, torch.float32)
    exact = run(reference, x, layers, gradient, torch.float64)
    for found, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4 * (1 + rows / 100))


def test_one_network_takes_plain_weights():
    x, layers, gradient = make(50, [7, 9, 5], 1, True)
    stacked = run(relu_layers, x, layers, gradient, torch.float32)
    plain = run(relu_layers, x, [(w[0], b[0]) for w, b in layers], gradient, torch.float32)
    for a, b in zip(stacked, plain, strict=True):
        assert torch.equal(a.reshape(b.shape), b)


def test_rows_that_lie_apart_are_read_where_they_are():
    x, layers, gradient = make(60, [10, 8, 4], 2, True)
    apart, wide = torch.randn(60, 3, 10), torch.randn(60, 20)
    apart[:, 1], gradient_apart = x, torch.stack([gradient, gradient], dim=2)[:, :, 0]
    wide[:, 5:15] = x
    expected = run(relu_layers, x, layers, gradient, torch.float32)
    leaves = [(w.clone().requires_grad_(), b.clone().requires_grad_()) for w, b in layers]
    for given_x in (apart[:, 1], wide[:, 5:15], x.t().contiguous().t()):
        out = relu_layers(given_x, leaves)
        out.backward(gradient_apart)
        assert torch.equal(out, expected[0])
        assert torch.equal(leaves[0][0].grad, expected[2])
        for weight, bias in leaves:
            weight.grad = bias.grad = None


@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_what_needs_no_gradient_gets_none(frozen):
    x, layers, gradient = make(30, [6, 5, 4], 1, True)
    tensors = {"x": x, "weight": layers[1][0], "bias": layers[1][1]}
    for name, tensor in tensors.items():
        tensor.requires_grad_(name != frozen)
    relu_layers(x, layers).backward(gradient)
    assert {name: t.grad is not None for name, t in tensors.items()} == {n: n != frozen for n in tensors}


def test_a_gradient_that_is_spread_over_rows_is_taken():
    x, layers, _ = make(40, [6, 5], 1, True)
    ours = run(lambda *a: relu_layers(*a).sum(0), x, layers, torch.ones(5), torch.float32)
    exact = run(lambda *a: reference(*a).sum(0), x, layers, torch.ones(5), torch.float64)
    for found, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-3)


def test_the_incoming_gradient_is_left_as_it_is():
    x, layers, gradient = make(40, [6, 5], 1, True)
    before = gradient.clone()
    run(relu_layers, x, layers, gradient, torch.float32)
    assert torch.equal(gradient, before)


def test_nan_stays_nan_and_passes_the_gradient_on_as_torchs_relu():
    x = torch.tensor([[float("nan"), -1.0, 2.0, 0.0] * 5])
    expected, gradient = x.clone().requires_grad_(), torch.arange(20.0)[None]
    F.relu(expected).backward(gradient)
    y = x.clone()
    add_bias_relu(y, None)
    torch.testing.assert_close(y, F.relu(x), equal_nan=True)
    out = torch.empty_like(y)
    gate(gradient, y, out, sums := new_sums(y))
    assert torch.equal(out, expected.grad)
    assert torch.equal(sums.sum(0), expected.grad[0])


def test_bits_of_passes_do_not_depend_on_threads():
    generator, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    x, gradient, bias = (torch.randn(*s, generator=generator) for s in ((1000, 37), (1000, 37), (37,)))
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            y, out = x.clone(), torch.empty_like(x)
            add_bias_relu(y, bias)
            gate(gradient, y, out, sums := new_sums(y))
            results.append((y, out, sums))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize(("widths", "count"), [([45, 70, 33], 2), ([40, 500, 20], 1)])
def test_bits_of_own_products_do_not_depend_on_threads(monkeypatch, widths, count):
    monkeypatch.setattr(module, "own_products", lambda: True)
    given_, before = make(700, widths, count, True), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(relu_layers, *given_, torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_memory_behind_an_input_is_not_read():
    # Its last bytes are the last of a page, and the next page is not ours.
    pages, size = mmap.mmap(-1, 8 * mmap.PAGESIZE), 7 * 40
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    last = address + 7 * mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(last), mmap.PAGESIZE, 0) == 0
    values = np.ctypeslib.as_array((ctypes.c_float * size).from_address(last - 4 * size))
    x, layers, gradient = make(40, [7, 20, 3], 1, True)
    values[:] = x.flatten().numpy()
    found = run_at(torch.from_numpy(values).view(40, 7), layers, gradient)
    expected = run(relu_layers, x, layers, gradient, torch.float32)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def run_at(x, layers, gradient):
    """As `run`, of an input that is read where it is."""
    x, layers = x.requires_grad_(), [tuple(t.clone().requires_grad_() for t in layer) for layer in layers]
    out = relu_layers(x, layers)
    out.backward(gradient)
    return [out.detach(), x.grad, *(t.grad for layer in layers for t in layer)]


# --- who uses it ---


@pytest.fixture
def calls(monkeypatch):
    """How often the kernels' layers were taken, where every size pays."""
    found = []
    monkeypatch.setattr(module, "MIN_OUTPUTS", 1)
    layers = module.relu_layers
    for user in (mlp, moe):
        monkeypatch.setattr(user, "relu_layers", lambda x, w: found.append(len(w)) or layers(x, w))
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [3]),
        ({"bias": False}, [3]),
        ({"dropout_ratio": [0.0, 0.5, 0.0]}, [2, 1]),
        ({"use_bn": True}, []),
        ({"use_ln": True}, []),
        ({"activation": "nn.GELU"}, []),
        ({"activation": ""}, []),
    ],
)
def test_mlp_takes_runs_of_linear_layers_with_relu(own, calls, options, expected):
    torch.manual_seed(0)
    block = MLP(6, [5, 4, 3], **options)
    x = torch.randn(20, 6)
    torch.manual_seed(1)
    found = block(x)
    assert calls == (expected if own else [])
    torch.manual_seed(1)
    for layer in block:
        x = layer(x)
    torch.testing.assert_close(found, x)


def test_a_hook_still_sees_what_its_layer_gives(own, calls):
    block, seen = MLP(6, [5, 4]), []
    block.linear1.register_forward_hook(lambda module, inputs, output: seen.append(output))
    block(torch.randn(20, 6))
    assert calls == ([1] if own else [])
    assert len(seen) == 1


@pytest.mark.parametrize("x", [torch.randn(20, 6).double(), torch.randn(2, 10, 6), torch.randn(0, 6)])
def test_other_inputs_go_through_torch(calls, x):
    block = MLP(6, [5, 4]).to(x.dtype)
    assert block(x).shape == (*x.shape[:-1], 4)
    assert calls == []


def test_autocast_goes_through_torch(calls):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert MLP(6, [5, 4])(torch.randn(20, 6)).dtype == torch.bfloat16
    assert calls == []


def test_export_sees_torchs_operations(calls):
    program = torch.export.export(MLP(6, [5, 4]).eval(), (torch.randn(20, 6),))
    assert calls == []
    assert any("linear" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("bias", [True, False])
def test_experts_by_products_are_the_batched_ones(calls, bias):
    torch.manual_seed(0)
    experts = Experts(3, 6, [5, 4], bias=bias)
    x, gradient = torch.randn(20, 6), torch.randn(20, 3, 4)
    exact = copy.deepcopy(experts).double()
    found = experts(x)
    found.backward(gradient)
    assert calls == [2]
    wanted = exact(x.double())
    wanted.backward(gradient.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(experts.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)


def test_experts_with_more_than_relu_are_batched(calls):
    Experts(2, 6, [5, 4], dropout_ratio=[0.5])(torch.randn(20, 6))
    Experts(2, 6, [5, 4], activation="nn.Tanh")(torch.randn(20, 6))
    assert calls == []


def test_small_inputs_and_those_that_do_not_pay_go_through_torch(own):
    one, experts = torch.randn(5, 6), torch.randn(3, 5, 6)
    small, large = torch.randn(10, 6), torch.randn(module.MIN_OUTPUTS // 5 + 1, 6)
    assert [module.fits(x, w) for x in (small, large) for w in (one, experts)] == [False, False, own, True]
