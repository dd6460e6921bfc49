"""The kernels of attention over jagged rows against the formulas in float64, position by position."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.nn.attention import Biases, Mask, Setting, TimeBuckets, jagged_attention
from recgrad.nn.attention.padded import padded_attention
from recgrad.nn.attention.time_buckets import log_bucket
from recgrad.nn.jagged import Segments

MASKS = [
    Mask(),
    Mask("EVERYTHING"),
    Mask(contextual=2),
    Mask(window=3),
    Mask(contextual=2, window=2),
    Mask("SEMI_LOCAL", near=3, first=1),
    Mask("SEMI_LOCAL", near=2, first=0, contextual=3),
]


def sees(mask, i, j, length, targets):
    """M_ij as the schema's models define it."""
    c, h = mask.contextual, length - targets
    if mask.kind == "EVERYTHING":
        return True
    if mask.kind == "SEMI_LOCAL":
        k = max(mask.first, c)
        return j < h if i >= h else j < min(i + 1, k) or max(i - mask.near + 1, k) <= j < i + 1
    last = h - c + 1 if c else h
    of_i, of_j = (min(max(x - c + 1, 0) if c else x, last) for x in (i, j))
    seen = (i == j or of_i > of_j) and (mask.window == 0 or of_i - of_j <= mask.window)
    return seen or (c > 0 and i < c and j < h)


def reference(q, k, v, segments, setting, targets, biases):
    """In float64, with loops over rows, heads and pairs of positions."""
    outputs, start = [], 0
    for row, length in enumerate(segments.lengths.tolist()):
        span = slice(start, start + length)
        t = 0 if targets is None else int(targets[row])
        by_head = [x[span].chunk(setting.heads, dim=1) for x in (q, k, v)]
        heads = []
        for qh, kh, vh in zip(*by_head, strict=True):
            out = []
            for i in range(length):
                seen = [j for j in range(length) if sees(setting.mask, i, j, length, t)]
                if not seen:
                    out.append(vh.new_zeros(vh.shape[1]))
                    continue
                s = setting.alpha * kh[seen] @ qh[i]
                if biases.positions is not None:
                    n = (len(biases.positions) + 1) // 2
                    s = s + biases.positions[[n - 1 + j - i for j in seen]]
                if biases.times is not None:
                    apart = [float(biases.query_times[start + i] - biases.key_times[start + j]) for j in seen]
                    s = s + biases.times[[log_bucket(d) for d in apart]]
                softmax = setting.kind == "softmax"
                w = s.softmax(0) if softmax else s * torch.sigmoid(s) / setting.divisor
                out.append(w @ vh[seen])
            heads.append(torch.stack(out) if out else vh)
        outputs.append(torch.cat(heads, dim=1))
        start += length
    return torch.cat(outputs)


def results(function, lengths, setting, *, width=8, value_width=8, targets=None, biased=False, dtype, **more):
    """The outputs, and the gradients of q, k, v and of biases."""
    rng = torch.Generator().manual_seed(1)
    positions = sum(lengths)

    def draw(*shape):
        return torch.randn(*shape, generator=rng).to(dtype).requires_grad_()

    q, k = draw(positions, setting.heads * width), draw(positions, setting.heads * width)
    v, leaves, biases = draw(positions, setting.heads * value_width), [], Biases()
    if biased:
        gaps = 10 ** (torch.rand(positions, generator=rng, dtype=torch.float64) * 6)
        times = gaps.round().cumsum(0)
        leaves = [draw(2 * max(lengths) + 3), draw(129)]
        biases = Biases(*leaves, times, times + 7, TimeBuckets())
    segments = Segments.from_lengths(torch.tensor(lengths), positions)
    given = None if targets is None else torch.tensor(targets)
    out = function(q, k, v, segments, setting, targets=given, biases=biases, **more)
    weight = torch.randn(out.shape, generator=rng).to(dtype)
    (out * weight).sum().backward()
    return [out.detach(), q.grad, k.grad, v.grad, *(leaf.grad for leaf in leaves)]


def assert_alike(got, exact, tolerance=2e-5):
    for ours, expected in zip(got, exact, strict=True):
        scale = expected.abs().max().clamp(min=1)
        torch.testing.assert_close(ours.double() / scale, expected.double() / scale, rtol=0, atol=tolerance)


def setting(kind, mask=None, heads=2, width=8, **more):
    return Setting(kind, heads, width**-0.5, divisor=4.0, mask=mask or Mask(), **more)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("kind", ["softmax", "silu"])
def test_every_mask_gives_the_formula(kind, mask):
    lengths, targets = [7, 0, 1, 12, 4], [2, 0, 0, 5, 0]
    for biased in (False, True):
        more = {"targets": targets, "biased": biased}
        got = results(jagged_attention, lengths, setting(kind, mask), dtype=torch.float32, **more)
        exact = results(reference, lengths, setting(kind, mask), dtype=torch.float64, **more)
        padded = results(padded_attention, lengths, setting(kind, mask), dtype=torch.float64, **more)
        assert_alike(got, exact)
        assert_alike(padded, exact, 1e-12)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(
        st.sampled_from(
            [0, 1, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 25, 47, 48, 49, 100, 127, 128, 129, 136, 200]
        ),
        max_size=4,
    ),
    width=st.sampled_from([1, 7, 16, 17, 32]),
    value_width=st.sampled_from([3, 16, 48]),
    heads=st.integers(1, 3),
    mask=st.sampled_from(MASKS),
    kind=st.sampled_from(["softmax", "silu"]),
    share=st.floats(0, 1),
)
def test_any_lengths_and_widths(lengths, width, value_width, heads, mask, kind, share):
    lengths, what = [*lengths, 3], setting(kind, mask, heads, width)
    # A row begins with its contextual positions: none of them is a candidate.
    targets = [int(max(n - mask.contextual, 0) * share) for n in lengths]
    more = {"width": width, "value_width": value_width, "targets": targets, "biased": True}
    got = results(jagged_attention, lengths, what, dtype=torch.float32, **more)
    assert_alike(got, results(padded_attention, lengths, what, dtype=torch.float64, **more))


@pytest.mark.parametrize("kind", ["softmax", "silu"])
def test_dropout_draws_alike_in_kernels_and_in_torch(kind):
    what, lengths = setting(kind, dropout=0.4), [150, 3, 20]
    torch.manual_seed(5)
    seed = int(torch.randint(0, 2**31, ()))
    torch.manual_seed(5)
    got = results(jagged_attention, lengths, what, dtype=torch.float32)
    exact = results(padded_attention, lengths, what, dtype=torch.float64, seed=seed)
    assert_alike(got, exact)
    plain = results(jagged_attention, lengths, setting(kind), dtype=torch.float32)
    assert not torch.allclose(got[0], plain[0])


def test_dropout_leaves_the_share_that_it_should():
    what, n = setting("silu", Mask("EVERYTHING"), heads=3, dropout=0.3), 400
    q = torch.ones(n, 24)
    segments = Segments.from_lengths(torch.tensor([n]), n)
    weights = jagged_attention(q, q, torch.eye(n).repeat(1, 3), segments, what)
    kept = (weights != 0).float().mean()
    assert abs(float(kept) - 0.7) < 0.005  # six deviations of 480,000 draws are 0.004
    value = float(weights.max())
    s = 8**0.5
    assert value == pytest.approx(s / (1 + math.exp(-s)) / 4 / 0.7, rel=1e-5)


@pytest.mark.parametrize("kind", ["softmax", "silu"])
def test_bits_do_not_depend_on_the_number_of_threads(kind):
    rng = np.random.default_rng(0)
    lengths = rng.zipf(1.5, 60).clip(0, 300).tolist()
    more = {"biased": True, "targets": [min(n, 2) for n in lengths], "dtype": torch.float32}
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(results(jagged_attention, lengths, setting(kind, Mask(contextual=1)), **more))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_the_numbers_of_one_head_of_width_one():
    """q = (1, 2, −1), k = (1, −1, ½), v = (1, 2, 3), α = 1, N = 4, worked out by hand."""
    q, k, v = (torch.tensor(x)[:, None] for x in ([1.0, 2.0, -1.0], [1.0, -1.0, 0.5], [1.0, 2.0, 3.0]))
    segments = Segments.from_lengths(torch.tensor([3]), 3)
    first, second = 0.182764644657501, 0.321195616966824
    for targets, third in ((1, 0.156716183173199), (2, -0.208813106141803)):
        out = jagged_attention(
            q, k, v, segments, Setting("silu", 1, 1.0, 4.0), targets=torch.tensor([targets])
        )
        if targets == 1:
            assert out[:2, 0].tolist() == pytest.approx([first, second], rel=1e-6)
        else:
            assert float(out[0]) == pytest.approx(first, rel=1e-6)
        assert float(out[2]) == pytest.approx(third, rel=1e-6)


def test_mask_of_the_worked_example():
    """Two contextual tokens, four of history, two candidates."""
    lengths, targets = torch.tensor([8]), torch.tensor([2])

    def rows(mask):
        return ["".join(str(j) for j in range(8) if row[j]) for row in mask.matrix(lengths, 8, targets)[0]]

    plain = ["012345", "012345", "012", "0123", "01234", "012345", "0123456", "0123457"]
    assert rows(Mask(contextual=2)) == plain
    assert rows(Mask(contextual=2, window=2))[4:] == ["234", "345", "456", "457"]
    local = rows(Mask("SEMI_LOCAL", contextual=2, near=2, first=1))
    assert local[4:] == ["0134", "0145", "012345", "012345"]


def test_rows_do_not_depend_on_their_batch():
    lengths, what = [9, 60, 2], setting("silu", Mask(contextual=1))
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(71, 16, generator=rng) for _ in range(3))

    def run(span, lengths):
        segments = Segments.from_lengths(torch.tensor(lengths), sum(lengths))
        return jagged_attention(q[span], k[span], v[span], segments, what)

    whole = run(slice(0, 71), lengths)
    alone = [run(slice(a, b), [b - a]) for a, b in ((0, 9), (9, 69), (69, 71))]
    assert torch.equal(whole, torch.cat(alone))


def test_nothing_of_length_by_length_is_kept():
    """What the forward pass holds for the backward one grows with positions, not with pairs of them."""

    def held(length):
        q = torch.zeros(length, 16, requires_grad=True)
        segments = Segments.from_lengths(torch.tensor([length]), length)
        out = jagged_attention(q, q, q, segments, setting("softmax"))
        assert out.grad_fn is not None
        return sum(x.numel() for x in out.grad_fn.saved_tensors if x is not None)

    assert held(512) == 8 * held(64)


def test_other_precisions_and_autocast_take_torchs_operations():
    lengths, what = [5, 0, 9], setting("softmax")
    exact = results(jagged_attention, lengths, what, dtype=torch.float64)
    assert exact[0].dtype == torch.float64
    assert_alike(results(jagged_attention, lengths, what, dtype=torch.float32), exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = results(jagged_attention, lengths, what, dtype=torch.float32)
    assert_alike(half, exact, 0.05)


def test_a_batch_without_positions():
    segments = Segments.from_lengths(torch.tensor([0, 0]), 0)
    q = torch.zeros(0, 16, requires_grad=True)
    out = jagged_attention(q, q, q, segments, setting("silu"))
    out.sum().backward()
    assert out.shape == (0, 16)
    assert q.grad is not None


def test_nan_is_not_lost():
    q = torch.ones(4, 16)
    q[1, 0] = float("nan")
    segments = Segments.from_lengths(torch.tensor([4]), 4)
    for kind in ("softmax", "silu"):
        out = jagged_attention(q, torch.ones(4, 16), torch.ones(4, 16), segments, setting(kind))
        assert out[1, :8].isnan().all()
        assert out[0].isfinite().all()


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("kind", ["softmax", "silu"])
def test_what_lay_in_scratch_memory_does_not_matter(kind, mask, monkeypatch):
    lengths, targets = [1, 5, 7, 8, 9, 13, 20, 0, 24, 27], [0, 1, 2, 0, 3, 5, 0, 0, 2, 7]
    more = {"targets": targets, "biased": True}
    exact = results(padded_attention, lengths, setting(kind, mask), dtype=torch.float64, **more)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **kind: empty(*shape, **kind).fill_(float("nan")))
    assert_alike(results(jagged_attention, lengths, setting(kind, mask), dtype=torch.float32, **more), exact)


def test_what_does_not_fit_is_refused():
    q, segments = torch.ones(4, 16), Segments.from_lengths(torch.tensor([4]), 4)
    with pytest.raises(ValueError, match="kind must be softmax or silu"):
        Setting("relu", 2, 1.0)
    with pytest.raises(ValueError, match="divide into 3 heads"):
        jagged_attention(q, q, q, segments, Setting("silu", 3, 1.0))
    with pytest.raises(ValueError, match="targets must have 1 rows"):
        jagged_attention(q, q, q, segments, Setting("silu", 2, 1.0), targets=torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="rows of 2 positions at most, got 4"):
        jagged_attention(q, q, q, segments, Setting("silu", 2, 1.0), biases=Biases(torch.zeros(3)))


def test_time_buckets_are_those_of_the_formula():
    buckets = TimeBuckets()
    whole = np.unique(np.round(np.logspace(0, 17, 20000)))
    deltas = torch.from_numpy(np.r_[0.0, whole, -whole])
    expected = [log_bucket(float(d)) for d in deltas]
    assert buckets.of(deltas).tolist() == expected
    bounds, guesses = buckets.arrays
    for delta, bucket in zip(deltas[::37].abs().clamp(min=1).tolist(), expected[::37], strict=True):
        cell = int(np.array(delta).view(np.int64) >> 49) - (1023 << 3)
        guess = guesses[cell]
        assert guess + (delta >= bounds[guess + 1]) == bucket
