"""Schedules against tables computed by hand, torch's own, and what holds for all of them."""

from __future__ import annotations

import math

import pytest
import torch
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.config.proto.optimizer_pb2 import DenseOptimizer, SequenceLR
from recgrad.errors import ConfigError
from recgrad.optim.schedules import SCHEDULES, build_schedule
from recgrad.optim.schedules.constant import Constant
from recgrad.optim.schedules.reduce_on_plateau import ReduceOnPlateau
from recgrad.optim.schedules.sequence import Sequence


def build(text):
    return build_schedule(text_format.Parse(text, DenseOptimizer()))


def rates(text, ns, base=1.0):
    schedule = build(text)
    return [schedule.rate(base, n) for n in ns]


# One of each, with and without warm-up, for what holds for all.
TEXTS = {
    "constant_learning_rate": "",
    "exponential_decay_learning_rate": "decay_size: 7 decay_factor: 0.5 min_learning_rate: 0.01",
    "manual_step_learning_rate": "schedule_sizes: [4, 9] learning_rates: [0.5, 0.25]",
    "step_decay_learning_rate": "step_size: 5 gamma: 0.3",
    "cosine_annealing_learning_rate": "T_max: 20 min_learning_rate: 0.01",
    "cosine_annealing_warm_restarts_learning_rate": "T_0: 4 T_mult: 2 min_learning_rate: 0.01",
    "one_cycle_learning_rate": "total_size: 30",
    "polynomial_decay_learning_rate": "decay_size: 20 power: 2",
    "linear_decay_learning_rate": "decay_size: 20 min_learning_rate: 0.1",
    "inverse_sqrt_learning_rate": "",
    "warmup_stable_decay_learning_rate": "stable_size: 5 decay_size: 10",
    "reduce_on_plateau_learning_rate": "",
    "sequence_learning_rate": "stages { size: 5 linear_decay_learning_rate { decay_size: 5 } } "
    "stages { cosine_annealing_learning_rate { T_max: 10 } }",
}
WARM = {
    name: text if name == "sequence_learning_rate" else text + " warmup_size: 6 warmup_learning_rate: 0.05"
    for name, text in TEXTS.items()
}


def test_covers_the_registry():
    assert set(TEXTS) == set(SCHEDULES)


@pytest.mark.parametrize("texts", [TEXTS, WARM], ids=["plain", "warm"])
@pytest.mark.parametrize("name", sorted(TEXTS))
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_the_rate_depends_on_n_alone(name, texts, data):
    """Asked in any order, often or once, from a fresh schedule or a used one."""
    text = f"{name} {{ {texts[name]} }}"
    used = build(text)
    ns = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=8))
    for n in ns:
        fresh = build(text)
        assert used.rate(0.7, n) == fresh.rate(0.7, n)
        assert used.momentum(n) == fresh.momentum(n)
        assert used.rate(0.7, n) >= 0
        assert math.isfinite(used.rate(0.7, n))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_zero_base_stays_zero(name):
    schedule = build(f"{name} {{ {WARM[name]} }}")
    assert all(schedule.rate(0.0, n) == 0.0 for n in range(40))


@pytest.mark.parametrize("name", sorted(set(TEXTS) - {"sequence_learning_rate"}))
def test_the_warm_up_is_a_line_from_its_rate_to_the_start(name):
    plain, warm = build(f"{name} {{ {TEXTS[name]} }}"), build(f"{name} {{ {WARM[name]} }}")
    base = 0.8
    start = plain.rate(base, 0)
    ahead = 1 if name == "inverse_sqrt_learning_rate" else 0
    for n in range(6 - ahead):
        assert warm.rate(base, n) == pytest.approx((start - 0.05) * (n + ahead) / 6 + 0.05, rel=1e-12)
    assert warm.rate(base, 6 - ahead) == pytest.approx(start, rel=1e-12)
    if name != "inverse_sqrt_learning_rate":  # whose fall depends on the length of the warm-up
        assert [warm.rate(base, 6 + n) for n in range(30)] == [plain.rate(base, n) for n in range(30)]


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_has_a_line_of_help(name):
    assert SCHEDULES[name].__doc__.strip().splitlines()[0].endswith(".")


def test_no_schedule_is_constant():
    assert isinstance(build_schedule(DenseOptimizer()), Constant)
    assert rates("", [0, 1, 1000], base=0.3) == [0.3, 0.3, 0.3]


# Tables by hand


def test_exponential_decay():
    text = "exponential_decay_learning_rate { decay_size: 10 decay_factor: 0.5 "
    text += "warmup_size: 4 warmup_learning_rate: 0.2"
    assert rates(text + "}", [0, 1, 4, 13, 14, 24, 34]) == pytest.approx([0.2, 0.4, 1, 1, 0.5, 0.25, 0.125])
    smooth = rates(text + " staircase: false min_learning_rate: 0.3 }", [4, 9, 14, 24])
    assert smooth == pytest.approx([1, 0.5**0.5, 0.5, 0.3])


def test_manual_step_keeps_the_old_rate_at_the_size_itself():
    """n > s, as TorchEasyRec compares: the update made after 100 finished ones has the old rate."""
    text = "manual_step_learning_rate { schedule_sizes: [100, 200] learning_rates: [0.5, 0.1]"
    assert rates(text + "}", [0, 99, 100, 101, 200, 201, 10**6], 2.0) == [2, 2, 2, 0.5, 0.5, 0.1, 0.1]
    assert rates(text + " warmup: true }", [0, 50, 100, 101], 0.1) == pytest.approx([0.1, 0.3, 0.5, 0.5])


def test_step_decay():
    text = "step_decay_learning_rate { step_size: 3 gamma: 0.5 min_learning_rate: 0.2 }"
    assert rates(text, [0, 2, 3, 5, 6, 9]) == [1, 1, 0.5, 0.5, 0.25, 0.2]


def test_cosine_annealing_stays_at_its_minimum():
    text = "cosine_annealing_learning_rate { T_max: 4 min_learning_rate: 0.1 }"
    half = math.sqrt(0.5)
    expected = [1, 0.1 + 0.45 * (1 + half), 0.55, 0.1 + 0.45 * (1 - half), 0.1, 0.1, 0.1]
    assert rates(text, [0, 1, 2, 3, 4, 5, 100]) == pytest.approx(expected)


@pytest.mark.parametrize(("t_0", "t_mult"), [(1, 3), (7, 3), (1, 10), (5, 10), (3, 2), (10, 1), (1000, 7)])
def test_warm_restarts_hit_every_restart(t_0, t_mult):
    """Sums of whole numbers; floor(log) misses some (T_mult 3 at the fifth, 10 at the third)."""
    schedule = build(
        "cosine_annealing_warm_restarts_learning_rate "
        f"{{ T_0: {t_0} T_mult: {t_mult} min_learning_rate: 0.1 }}"
    )
    start = 0
    for cycle in range(9):
        length = t_0 * t_mult**cycle
        assert schedule.rate(1.0, start) == 1.0
        if length > 1:
            last = 0.1 + 0.45 * (1 + math.cos(math.pi * (length - 1) / length))
            assert schedule.rate(1.0, start + length - 1) == pytest.approx(last)
        start += length


def test_polynomial_and_linear_decay():
    text = "polynomial_decay_learning_rate { decay_size: 4 power: 2 min_learning_rate: 0.2 }"
    assert rates(text, [0, 1, 2, 3, 4, 9]) == pytest.approx([1, 0.65, 0.4, 0.25, 0.2, 0.2])
    text = "linear_decay_learning_rate { decay_size: 4 min_learning_rate: 0.2 }"
    assert rates(text, [0, 1, 2, 3, 4, 9]) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_inverse_sqrt_is_the_transformer_s_formula():
    def paper(n, width=4):
        return min((n + 1) / width, math.sqrt(width / (n + 1)))

    ns = range(50)
    assert rates("inverse_sqrt_learning_rate { warmup_size: 4 }", ns) == pytest.approx([paper(n) for n in ns])
    assert rates("inverse_sqrt_learning_rate { }", [0, 3, 8]) == pytest.approx([1, 1 / 2, 1 / 3])
    assert rates("inverse_sqrt_learning_rate { min_learning_rate: 0.4 }", [100]) == [pytest.approx(0.4)]


@pytest.mark.parametrize(
    ("shape", "middle"),
    [("linear", 0.55), ("cos", 0.55), ("sqrt", 0.1 + 0.9 * (1 - 0.5**0.5)), ("exponential", 0.1**0.5)],
)
def test_warmup_stable_decay(shape, middle):
    text = (
        "warmup_stable_decay_learning_rate { warmup_size: 2 stable_size: 3 decay_size: 4 "
        f'min_learning_rate: 0.1 decay_shape: "{shape}" }}'
    )
    expected = [0, 0.5, 1, 1, 1, 1, middle, 0.1, 0.1]
    assert rates(text, [0, 1, 2, 3, 4, 5, 7, 9, 99]) == pytest.approx(expected)


def test_one_cycle_tops_at_max_lr_and_moves_momentum_the_other_way():
    schedule = build(
        'one_cycle_learning_rate { total_size: 11 pct_start: 0.5454545454 max_lr: 2 anneal: "linear" }'
    )
    # The rise ends at 0.5454…·11 − 1 = 5.
    assert schedule.rate(1.0, 0) == pytest.approx(0.08)
    assert schedule.rate(1.0, 5) == pytest.approx(2.0)
    assert schedule.rate(1.0, 10) == pytest.approx(0.08 / 1e4)
    assert schedule.rate(1.0, 500) == schedule.rate(1.0, 10)
    assert [schedule.momentum(n) for n in (0, 5, 10)] == pytest.approx([0.95, 0.85, 0.95])
    assert schedule.momentum(500) == pytest.approx(0.95)
    assert build("one_cycle_learning_rate { total_size: 10 cycle_momentum: false }").momentum(3) is None


@pytest.mark.parametrize("pct", [0.0, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("total", [1, 2, 10])
def test_one_cycle_with_a_short_rise_stays_finite(pct, total):
    schedule = build(f"one_cycle_learning_rate {{ total_size: {total} pct_start: {pct} }}")
    assert all(0 < schedule.rate(1.0, n) <= 1.0 for n in range(total + 3))


def test_sequence_counts_each_stage_from_zero():
    text = (
        "sequence_learning_rate { stages { size: 3 constant_learning_rate { warmup_size: 3 } } "
        "stages { size: 4 linear_decay_learning_rate { decay_size: 4 } } "
        "stages { one_cycle_learning_rate { total_size: 5 } } }"
    )
    schedule = build(text)
    got = [schedule.rate(1.0, n) for n in range(8)]
    assert got == pytest.approx([0, 1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25, 0.04])
    assert schedule.momentum(2) is None
    assert schedule.momentum(7) == pytest.approx(0.95)
    assert schedule.cycles_momentum


def test_a_sequence_with_a_sized_end_holds_its_last_rate():
    text = (
        "sequence_learning_rate { stages { size: 3 step_decay_learning_rate { step_size: 1 gamma: 0.5 } } }"
    )
    assert rates(text, [0, 1, 2, 3, 4, 100]) == [1, 0.5, 0.25, 0.125, 0.125, 0.125]


# Against torch


def torch_rates(make, steps, base=0.3):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base, momentum=0.9)
    scheduler = make(optimizer)
    got = []
    for _ in range(steps):
        group = optimizer.param_groups[0]
        got.append((group["lr"], group["momentum"]))
        optimizer.step()
        scheduler.step()
    return got


@pytest.mark.parametrize(
    ("text", "make", "steps"),
    [
        (
            "step_decay_learning_rate { step_size: 4 gamma: 0.5 }",
            lambda o: torch.optim.lr_scheduler.StepLR(o, 4, 0.5),
            30,
        ),
        (
            "exponential_decay_learning_rate { decay_size: 1 decay_factor: 0.9 }",
            lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
            30,
        ),
        (
            "cosine_annealing_learning_rate { T_max: 20 min_learning_rate: 0.01 }",
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20, 0.01),
            21,
        ),
        (
            "cosine_annealing_warm_restarts_learning_rate { T_0: 3 T_mult: 2 min_learning_rate: 0.01 }",
            lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
            60,
        ),
        (
            "polynomial_decay_learning_rate { decay_size: 20 power: 2 }",
            lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 20, 2.0),
            30,
        ),
        (
            "constant_learning_rate { warmup_size: 10 warmup_learning_rate: 0.03 }",
            lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=10),
            20,
        ),
    ],
)
def test_agrees_with_torch(text, make, steps):
    schedule = build(text)
    expected = [rate for rate, _ in torch_rates(make, steps)]
    assert [schedule.rate(0.3, n) for n in range(steps)] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("anneal", ["cos", "linear"])
@pytest.mark.parametrize("three_phase", [False, True])
@pytest.mark.parametrize("pct", [0.1, 0.25, 0.5])
def test_one_cycle_agrees_with_torch(anneal, three_phase, pct):
    total = 40
    schedule = build(
        f'one_cycle_learning_rate {{ total_size: {total} pct_start: {pct} anneal: "{anneal}" '
        f"three_phase: {str(three_phase).lower()} div_factor: 10 final_div_factor: 100 max_lr: 0.5 }}"
    )
    expected = torch_rates(
        lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o,
            0.5,
            total_steps=total,
            pct_start=pct,
            anneal_strategy=anneal,
            three_phase=three_phase,
            div_factor=10,
            final_div_factor=100,
        ),
        total - 1,
    )
    assert [schedule.rate(0.3, n) for n in range(total - 1)] == pytest.approx([r for r, _ in expected])
    assert [schedule.momentum(n) for n in range(total - 1)] == pytest.approx([m for _, m in expected])


@given(
    values=st.lists(st.floats(0.01, 1) | st.just(math.nan), min_size=1, max_size=40),
    mode=st.sampled_from(["max", "min"]),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    patience=st.integers(0, 3),
    cooldown=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_plateau_agrees_with_torch(values, mode, threshold_mode, patience, cooldown):
    options = {"mode": mode, "factor": 0.5, "patience": patience, "threshold_mode": threshold_mode}
    options |= {"threshold": 0.05, "cooldown": cooldown}
    ours = ReduceOnPlateau(min_lr=0.01, **options)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, min_lr=0.01, eps=0.0, **options)
    for value in values:
        ours.observe(value)
        theirs.step(value)
        assert ours.rate(1.0, 0) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


def test_plateau_resumes_where_it_was():
    first = ReduceOnPlateau(patience=1, factor=0.5, cooldown=1)
    for value in [0.5, 0.5, 0.5, 0.6]:
        first.observe(value)
    second = ReduceOnPlateau(patience=1, factor=0.5, cooldown=1)
    second.load_state_dict(first.state_dict())
    for value in [0.6, 0.6, 0.6, 0.7, 0.7, 0.7]:
        assert first.observe(value) == second.observe(value)
        assert first.rate(1.0, 3) == second.rate(1.0, 3)
    assert first.reductions > 1


def test_plateau_takes_a_worse_negative_value_for_worse():
    schedule = ReduceOnPlateau(mode="max", patience=0, threshold=0.1, factor=0.5)
    schedule.observe(-1.0)
    assert schedule.observe(-1.05)  # torch: −1.05 > −1·1.1, an improvement


# What is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exponential_decay_learning_rate { }", "exponential_decay_learning_rate.decay_size: is not set"),
        ("exponential_decay_learning_rate { decay_size: 0 }", "decay_size must be at least 1, got 0"),
        ("cosine_annealing_learning_rate { T_max: 0 }", "T_max must be at least 1, got 0"),
        (
            "manual_step_learning_rate { schedule_sizes: 3 }",
            "must be as many, got 1 and 0",
        ),
        (
            "manual_step_learning_rate { schedule_sizes: [3, 3] learning_rates: [1, 1] }",
            r"schedule_sizes\[1\] must rise, got 3 after 3",
        ),
        (
            "manual_step_learning_rate { schedule_sizes: 3 learning_rates: 1 warmup: true warmup_size: 2 }",
            "are both set",
        ),
        ("constant_learning_rate { warmup_learning_rate: 0.1 }", "needs a warmup_size of at least 1"),
        (
            'one_cycle_learning_rate { total_size: 9 anneal: "sin" }',
            "anneal must be one of 'cos', 'linear', got 'sin'",
        ),
        (
            'warmup_stable_decay_learning_rate { stable_size: 1 decay_size: 1 decay_shape: "exponential" }',
            "needs a min_learning_rate above 0",
        ),
        ('reduce_on_plateau_learning_rate { mode: "up" }', "mode must be one of 'max', 'min', got 'up'"),
        ("sequence_learning_rate { }", "stages is empty"),
        (
            "sequence_learning_rate { stages { constant_learning_rate { } } stages { size: 1 } }",
            r"stages\[0\] must have a size",
        ),
        (
            "sequence_learning_rate { stages { step_decay_learning_rate { step_size: 1 by_epoch: true } } }",
            r"by_epoch belongs on the sequence",
        ),
        (
            "sequence_learning_rate { stages { cosine_annealing_learning_rate { T_max: 0 } } }",
            r"sequence_learning_rate.stages\[0\].cosine_annealing_learning_rate: T_max must be at least 1",
        ),
    ],
)
def test_refuses_with_the_rule_and_the_value(text, message):
    with pytest.raises(ConfigError, match=message):
        build(text)


def test_a_sequence_refuses_a_schedule_with_a_state():
    with pytest.raises(ValueError, match="must be a function of the step, got ReduceOnPlateau"):
        Sequence(stages=[(None, ReduceOnPlateau())])


def test_by_epoch_is_read_from_the_config():
    assert build("step_decay_learning_rate { step_size: 1 by_epoch: true }").by_epoch
    message = DenseOptimizer(sequence_learning_rate=SequenceLR(by_epoch=True))
    message.sequence_learning_rate.stages.add().constant_learning_rate.SetInParent()
    assert build_schedule(message).by_epoch
