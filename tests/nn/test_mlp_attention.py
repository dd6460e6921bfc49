"""The fused attention kernels against the same formula in float64, written with plain torch operations."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from recgrad.nn import mlp_attention as module
from recgrad.nn.encoders.base import build_encoder
from recgrad.nn.jagged import Segments
from recgrad.nn.mlp_attention import cut_blocks, mlp_attention


def make_tensors(lengths, dim, widths, seed=0):
    """Query, sequence, per_row, A, C, score, then W and b of each layer after the first, in float32.

    They are small whole numbers, whose sums float32 holds exactly, so that no rounding decides on
    which side of 0 a unit is; scores are scaled by a power of two to be no larger than 4.
    """
    rng = torch.Generator().manual_seed(seed)

    def whole(*shape, top=1):
        return torch.randint(-top, top + 1, shape, generator=rng).float()

    rows, positions = len(lengths), sum(lengths)
    tensors = [whole(rows, dim, top=2), whole(positions, dim, top=2), whole(rows, widths[0])]
    tensors += [whole(widths[0], dim), whole(widths[0], dim), whole(widths[-1])]
    for before, width in pairwise(widths):
        tensors += [whole(width, before), whole(width)]
    largest = max((s.abs().max().item() for s in scores(lengths, *tensors) if len(s)), default=0)
    tensors[5] *= 2.0 ** -max(0, math.ceil(math.log2(max(largest, 4) / 4)))
    return tensors


def scores(lengths, query, sequence, per_row, a, c, score, *layers):
    """Row by row, as the docstring has it."""
    for q, s, bias in zip(query, sequence.split(list(lengths)), per_row, strict=True):
        x = F.relu(s @ a.T + (q * s) @ c.T + bias)
        for weight, b in zip(layers[::2], layers[1::2], strict=True):
            x = F.relu(x @ weight.T + b)
        yield x @ score


def fused(lengths, query, sequence, per_row, a, c, score, *layers):
    segments = Segments.from_lengths(torch.tensor(lengths), sum(lengths))
    pairs = list(zip(layers[::2], layers[1::2], strict=True))
    return mlp_attention(query, sequence, per_row, a, c, pairs, score, segments)


def reference(lengths, query, sequence, *rest):
    of_rows = zip(scores(lengths, query, sequence, *rest), sequence.split(list(lengths)), strict=True)
    return torch.stack([of_row.softmax(0) @ s for of_row, s in of_rows])


def weights_of(out):
    """Of the outputs in what is differentiated."""
    return torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype)


def sizes_of_terms(lengths, tensors):
    """For the output and each gradient, the size of the numbers that add up to it, where they cancel.

    A gradient is Σ_t p_t(o_t − Σ p·o)·∂score_t over the positions of a row with softmax p: what rounding can
    do follows Σ_t p_t(|o_t| + |Σ p·o|)·∂score_t, however small the sum itself is.
    """
    leaves = [tensor.double().clone().requires_grad_() for tensor in tensors]
    of_rows = list(scores(lengths, *leaves))
    parts = leaves[1].detach().split(list(lengths))
    gradients = weights_of(torch.empty(len(lengths), leaves[1].shape[1], dtype=torch.float64))
    total = 0.0
    for of_row, part, gradient in zip(of_rows, parts, gradients, strict=True):
        p, o = of_row.detach().softmax(0), part @ gradient
        total = total + (p * (o.abs() + (p @ o).abs()) * of_row).sum()
    total.backward()
    return [0.0, *(0.0 if leaf.grad is None else leaf.grad.abs().max().item() for leaf in leaves)]


def outputs_and_gradients(function, lengths, tensors, dtype):
    leaves = [tensor.to(dtype).clone().requires_grad_() for tensor in tensors]
    out = function(lengths, *leaves)
    (out * weights_of(out)).sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def check(lengths, dim, widths):
    tensors = make_tensors(lengths, dim, widths)
    got = outputs_and_gradients(fused, lengths, tensors, torch.float32)
    expected = outputs_and_gradients(reference, lengths, tensors, torch.float64)
    for ours, exact, terms in zip(got, expected, sizes_of_terms(lengths, tensors), strict=True):
        # Sums of numbers of both signs: what rounding can do follows the largest of them.
        scale = exact.abs().max().clamp(min=max(1.0, terms))
        torch.testing.assert_close(ours.double() / scale, exact / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("dim", "widths"),
    [(48, [256, 64]), (16, [32]), (5, [7]), (17, [33, 20, 5]), (1, [1, 1]), (50, [16, 16]), (6, [80, 40])],
)
def test_values_and_gradients(dim, widths):
    check([3, 0, 5, 1, 129, 7, 0, 300, 6, 12], dim, widths)


@pytest.mark.parametrize(
    "lengths", [[1], [1] * 70, [6] * 50, [50, 0, 0], [0, 0, 128], [500], [64, 64, 64], [3, 3000, 2]]
)
def test_shapes_of_rows(lengths):
    check(lengths, 4, [8, 4])


@given(
    lengths=st.lists(st.integers(0, 200), min_size=1, max_size=40).filter(any),
    dim=st.integers(1, 40),
    widths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
)
@example(lengths=[0, 64, 200], dim=1, widths=[39, 1])  # a gradient that cancels to a fifteenth of its terms
@settings(deadline=None, max_examples=25)
def test_any_shape(lengths, dim, widths):
    check(lengths, dim, widths)


def test_what_lies_in_fresh_memory_does_not_matter():
    """torch fills it with NaN when it is told to be deterministic."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(4).isnan().all()
        check([3, 0, 5, 1, 129, 7, 0, 300, 6, 12], 17, [33, 20])
    finally:
        torch.use_deterministic_algorithms(False)


def test_rows_of_one_position_give_scores_no_gradient():
    """Their weight is 1 whatever the score; rounding noise here would be a step of full size under Adam."""
    tensors = make_tensors([1] * 30, 8, [16, 8])
    got = outputs_and_gradients(fused, [1] * 30, tensors, torch.float32)
    assert not any(gradient.any() for i, gradient in enumerate(got[1:]) if i != 1)


@pytest.mark.parametrize("lengths", [[40, 0, 70, 1] * 100])
def test_bits_do_not_depend_on_threads_or_runs(lengths):
    tensors, before = make_tensors(lengths, 12, [24, 8]), torch.get_num_threads()
    assert cut_blocks(np.array(lengths)).tasks > 2
    try:
        runs = []
        for threads in (1, 2, 3, 2):
            torch.set_num_threads(threads)
            runs.append(outputs_and_gradients(fused, lengths, tensors, torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(runs[0], other, strict=True))


def test_without_gradients_nothing_is_kept_and_values_are_the_same():
    lengths = [30, 2, 200]
    tensors = [tensor.requires_grad_() for tensor in make_tensors(lengths, 8, [16])]
    out = fused(lengths, *tensors)
    with torch.no_grad():
        alone = fused(lengths, *tensors)
    assert torch.equal(out, alone)
    assert alone.grad_fn is None


def test_backward_twice_with_a_kept_graph():
    tensors = [tensor.requires_grad_() for tensor in make_tensors([5, 9], 8, [16])]
    out = fused([5, 9], *tensors).sum()
    once = torch.autograd.grad(out, tensors, retain_graph=True)
    again = torch.autograd.grad(out, tensors)
    assert all(torch.equal(x, y) for x, y in zip(once, again, strict=True))


def test_nan_is_not_lost():
    tensors = make_tensors([4, 3], 8, [16, 8])
    tensors[1][5, 2] = torch.nan
    out = fused([4, 3], *tensors)
    assert out[1].isnan().all()
    assert not out[0].isnan().any()


def test_inputs_that_are_not_contiguous():
    query, sequence, *rest = make_tensors([4, 3], 8, [16, 8])
    apart = [torch.stack([x, x], dim=2)[:, :, 0] for x in (query, sequence)]
    assert torch.equal(fused([4, 3], *apart, *rest), fused([4, 3], query, sequence, *rest))


def test_rows_of_the_query_must_match():
    query, *rest = make_tensors([4, 3], 8, [16])
    with pytest.raises(ValueError, match="must have 2 rows"):
        fused([4, 3], query[:1], *rest)


@given(lengths=st.lists(st.integers(0, 1000), min_size=1, max_size=300).filter(any))
@settings(deadline=None, max_examples=50)
def test_blocks_cover_every_position_once(lengths):
    lengths = np.array(lengths)
    blocks = cut_blocks(lengths)
    covered = [np.arange(start, start + count) for _, start, count in blocks.spans]
    assert np.array_equal(np.concatenate(covered), np.arange(lengths.sum()))
    starts = np.cumsum(lengths) - lengths
    for row, start, count in blocks.spans:
        assert starts[row] <= start
        assert start + count <= starts[row] + lengths[row]
        assert 1 <= count <= module.SPAN
    assert np.array_equal(np.bincount(blocks.spans[:, 0], minlength=len(lengths)), blocks.pieces)
    assert blocks.blocks[0] == 0
    assert blocks.blocks[-1] == len(blocks.spans)
    assert (np.diff(blocks.blocks) > 0).all()
    for cuts, end in ((blocks.cuts, len(blocks.blocks) - 1), (blocks.row_cuts, len(lengths))):
        assert cuts[0] == 0
        assert cuts[-1] == end
        assert (np.diff(cuts) >= 0).all()


def encoder_and_inputs(lengths, **attn_mlp):
    torch.manual_seed(0)
    encoder = build_encoder("din_encoder", 12, 16, {"attn_mlp": {"hidden_units": [32, 16], **attn_mlp}})
    return encoder, (torch.randn(len(lengths), 12), torch.randn(sum(lengths), 16), torch.tensor(lengths))


def spy(monkeypatch):
    calls, real = [], module.mlp_attention
    monkeypatch.setattr(module, "mlp_attention", lambda *args: calls.append(1) or real(*args))
    return calls


@pytest.mark.parametrize("attn_mlp", [{}, {"bias": False}, {"hidden_units": [8]}])
def test_din_uses_the_kernels_and_agrees_with_its_plain_path(attn_mlp, monkeypatch):
    encoder, (query, sequence, lengths) = encoder_and_inputs([3, 0, 140, 1], **attn_mlp)
    calls = spy(monkeypatch)
    encoder(query, sequence, lengths).square().sum().backward()
    assert calls
    got = [p.grad.clone() for p in encoder.parameters()]
    encoder.zero_grad()
    encoder.double()(query.double(), sequence.double(), lengths).square().sum().backward()
    assert len(calls) == 1
    for ours, exact in zip(got, encoder.parameters(), strict=True):
        torch.testing.assert_close(ours.double(), exact.grad, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "attn_mlp",
    [
        {"use_bn": True}, {"use_ln": True}, {"dropout_ratio": [0.1, 0.1]}, {"activation": "nn.PReLU"},
        {"activation": "Dice"}, {"activation": ""},
    ],
)  # fmt: skip
def test_din_with_anything_but_relu_takes_the_plain_path(attn_mlp, monkeypatch):
    calls = spy(monkeypatch)
    encoder, inputs = encoder_and_inputs([3, 0, 9, 1], **attn_mlp)
    encoder(*inputs).sum().backward()
    assert not calls
    assert all(p.grad is not None for p in encoder.parameters())


def test_din_under_autocast_takes_the_plain_path(monkeypatch):
    calls = spy(monkeypatch)
    encoder, inputs = encoder_and_inputs([3, 0, 9, 1])
    exact = encoder(*inputs)
    assert len(calls) == 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = encoder(*inputs)
        out.sum().backward()
    assert len(calls) == 1
    torch.testing.assert_close(out, exact, rtol=0, atol=0.05)  # bfloat16 keeps 8 bits


def test_models_without_attention_do_not_bring_numba_by_this_room():
    code = "import sys, recgrad.nn.encoders.din; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
