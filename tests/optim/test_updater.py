"""The update step over both halves, with the real engine."""

from __future__ import annotations

import math

import pytest
import torch

from recgrad.embedding.local.engine import Ids
from recgrad.errors import CheckpointError, ConfigError, RecgradError
from recgrad.optim.part import OptimizerPart
from recgrad.optim.precision import LossScaler
from recgrad.optim.schedules.constant import Constant
from recgrad.optim.updater import Updater


def same(a, b, **tolerance):
    assert a.keys() == b.keys()
    for name in a:
        if tolerance:
            torch.testing.assert_close(a[name], b[name], msg=lambda m, n=name: f"{n}: {m}", **tolerance)
        else:
            assert torch.equal(a[name], b[name]), name


def moved(a, b):
    return {name for name in a if not torch.equal(a[name], b[name])}


HALVES = {
    "sgd": "dense_optimizer { sgd_optimizer { lr: 0.1 } } sparse_optimizer { sgd_optimizer { lr: 0.1 } }",
    "adam": "",
    "adagrad": "dense_optimizer { lion_optimizer { lr: 0.01 } } "
    "sparse_optimizer { rowwise_adagrad_optimizer { lr: 0.05 } }",
}


@pytest.mark.parametrize("halves", sorted(HALVES))
@pytest.mark.parametrize("clipping", ["", 'grad_clipping { clipping_type: "norm" max_gradient: 0.1 }'])
def test_accumulation_equals_one_large_batch(make_run, batch_of, halves, clipping):
    """Four micro-batches of 8 are one batch of 32, for the dense and the sparse weights."""
    text = f"{HALVES[halves]} {clipping}"
    whole, parts = make_run(text), make_run(text + " gradient_accumulation_steps: 4")
    for step in range(3):
        pairs, labels = batch_of(32, step)
        whole.updater.backward(whole.loss(pairs, labels))
        assert whole.updater.step().updated
        for i in range(4):
            rows = slice(8 * i, 8 * i + 8)
            parts.updater.backward(parts.loss(pairs[rows], labels[rows]))
            result = parts.updater.step()
            assert result.updated == (i == 3)
    assert parts.updater.num_updates == whole.updater.num_updates == 3
    same(whole.model.weights(), parts.model.weights(), rtol=5e-6, atol=5e-7)


def test_flush_updates_with_the_mean_of_what_is_there(make_run, batch_of):
    whole, parts = make_run(HALVES["sgd"]), make_run(HALVES["sgd"] + " gradient_accumulation_steps: 4")
    pairs, labels = batch_of(16, 0)
    whole.updater.backward(whole.loss(pairs, labels))
    whole.updater.step()
    for rows in (slice(0, 8), slice(8, 16)):
        parts.updater.backward(parts.loss(pairs[rows], labels[rows]))
        assert not parts.updater.step()
    assert parts.updater.flush().updated
    assert not parts.updater.flush().updated
    same(whole.model.weights(), parts.model.weights(), rtol=5e-6, atol=5e-7)


SCALER = "grad_scaler { init_scale: 1024 growth_interval: 3 }"


@pytest.mark.parametrize("precision", ["", 'mixed_precision: "FP16"', 'mixed_precision: "BF16"'])
def test_overflow_moves_neither_half_nor_the_schedule(make_run, precision):
    schedule = "step_decay_learning_rate { step_size: 1 gamma: 0.5 }"
    text = (
        f"{SCALER} {precision} dense_optimizer {{ adam_optimizer {{ lr: 0.05 }} {schedule} ema {{ }} }} "
        f"sparse_optimizer {{ adam_optimizer {{ lr: 0.05 }} {schedule} }}"
    )
    run, twin = make_run(text), make_run(text)
    run.micro(16, 0)
    before, rates = run.model.weights(), run.updater.rates()
    ema = {name: a.clone() for name, a in run.updater.ema.averages.items()}
    assert rates == {"dense": 0.025, "sparse": 0.025}
    result = run.micro(16, 1, factor=math.inf)
    assert (result.updated, result.skipped) == (False, True)
    same(before, run.model.weights())
    same(ema, run.updater.ema.averages)
    assert run.updater.rates() == rates
    assert run.updater.num_updates == 1
    assert run.updater.grad_scaler.scale == 512
    assert run.micro(16, 2).updated
    assert moved(before, run.model.weights()) >= {"user", "item", "tower.0.weight"}
    if "FP16" not in precision:  # whose smallest numbers know the scale
        twin.micro(16, 0)
        twin.micro(16, 2)
        same(run.model.weights(), twin.model.weights())


def test_an_overflow_in_the_sparse_half_alone_stops_the_dense_one(make_run):
    run = make_run(SCALER)
    run.micro(8, 0)
    before = run.model.weights()
    loss = run.loss(*torch.utils.data.default_collate([(torch.tensor([1, 2]), torch.tensor(1.0))]))
    run.updater.backward(loss)
    run.sparse.clip_(math.inf)
    assert run.updater.step().skipped
    same(before, run.model.weights())


def test_scaled_gradients_give_the_same_updates(make_run):
    """A power of two in and out of every gradient changes no bit."""
    plain, scaled = make_run(""), make_run("grad_scaler { init_scale: 4096 growth_interval: 2 }")
    for i in range(5):
        plain.micro(16, i)
        scaled.micro(16, i)
    assert scaled.updater.grad_scaler.scale == 4096 * 4
    same(plain.model.weights(), scaled.model.weights())


def test_the_scale_moves_as_torch_s_grad_scaler():
    ours = LossScaler(init_scale=8.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=3)
    theirs = torch.amp.GradScaler("cpu", 8.0, 2.0, 0.5, 3)
    p = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([p], lr=0.0)
    generator = torch.Generator().manual_seed(0)
    for overflow in (torch.rand(60, generator=generator) < 0.2).tolist():
        theirs.scale(torch.ones(1))
        p.grad = torch.full((1,), math.inf if overflow else 1.0)
        theirs.step(optimizer)
        theirs.update()
        ours.update(overflow=overflow)
        assert ours.scale == theirs.get_scale()


@pytest.mark.parametrize(("precision", "dtype"), [("FP16", torch.float16), ("BF16", torch.bfloat16)])
def test_mixed_precision_runs_the_model_in_it(make_run, batch_of, precision, dtype):
    run = make_run(f'mixed_precision: "{precision}" {SCALER}')
    with run.updater.autocast():
        assert run.model(batch_of(4, 0)[0]).dtype == dtype
    first = run.loss(*batch_of(64, 0)).item()
    for _ in range(40):
        run.micro(64, 0)
    assert run.loss(*batch_of(64, 0)).item() < 0.5 * first
    assert all(p.dtype == torch.float32 for _, p in run.model.dense())


# Clipping


def gradient_of(run, pairs, labels, sparse):
    """The gradient of the dense weights, and of dense copies of the tables, from autograd alone."""
    with torch.no_grad():
        every = Ids(torch.arange(20).repeat(2), torch.ones(40, dtype=torch.int32), [20, 20])
        looked_up = run.model.engine(every)
        tables = {name: looked_up.pooled([name]).clone().requires_grad_() for name in ("user", "item")}
    looked_up = torch.cat([tables["user"][pairs[:, 0]], tables["item"][pairs[:, 1]]], 1)
    loss = ((run.model.tower(looked_up).squeeze(1) - labels) ** 2).mean()
    wrt = [p for _, p in run.model.dense()] + (list(tables.values()) if sparse else [])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, wrt)])


@pytest.mark.parametrize("everything", [False, True], ids=["dense", "global"])
@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_clipping_takes_the_norm_that_autograd_gives(make_run, batch_of, everything, norm_type):
    text = (
        'grad_clipping { clipping_type: "norm" max_gradient: 0.01 '
        f"norm_type: {norm_type} enable_global_grad_clip: {str(everything).lower()} }}"
    )
    run = make_run(text + HALVES["sgd"].replace("lr: 0.1 } } sparse", "lr: 0.1 momentum: 0 } } sparse"))
    pairs, labels = batch_of(16, 0)
    expected = float(torch.linalg.vector_norm(gradient_of(run, pairs, labels, everything), norm_type))
    before = run.model.weights()
    run.updater.backward(run.loss(pairs, labels))
    result = run.updater.step()
    assert result.grad_norm == pytest.approx(expected, rel=1e-5)
    # SGD moves by rate times the clipped gradient.
    steps = [(run.model.weights()[n] - before[n]) / 0.1 for n, _ in run.model.dense()]
    dense_norm = float(torch.linalg.vector_norm(torch.cat([s.flatten() for s in steps]), norm_type))
    if everything:
        assert dense_norm < 0.01
    else:
        assert dense_norm == pytest.approx(0.01, rel=1e-3)


def test_value_clipping_clamps_every_element(make_run, batch_of):
    text = 'grad_clipping { clipping_type: "value" max_gradient: 0.002 enable_global_grad_clip: true }'
    run = make_run(text + HALVES["sgd"].replace("lr: 0.1 } } sparse", "lr: 0.1 momentum: 0 } } sparse"))
    pairs, labels = batch_of(16, 0)
    run.updater.backward(run.loss(pairs, labels))
    before = run.model.weights()
    run.updater.step()
    after = run.model.weights()
    largest = max(float((after[n] - before[n]).abs().max()) for n, _ in run.model.dense())
    assert largest == pytest.approx(0.0002, rel=1e-3)


def test_a_small_gradient_is_not_clipped(make_run):
    plain, clipped = make_run(""), make_run('grad_clipping { clipping_type: "norm" max_gradient: 1e6 }')
    for i in range(3):
        plain.micro(16, i)
        clipped.micro(16, i)
    same(plain.model.weights(), clipped.model.weights())


def test_a_norm_that_is_not_finite_skips_the_update_without_a_scaler(make_run):
    run = make_run('grad_clipping { clipping_type: "norm" max_gradient: 1 }')
    run.micro(8, 0)
    before = run.model.weights()
    result = run.micro(8, 1, factor=math.nan)
    assert result.skipped
    assert math.isnan(result.grad_norm)
    same(before, run.model.weights())


def test_global_clipping_sums_sparse_shares_over_processes(make_run, batch_of):
    """Two processes with a share each: the dense norm counts once, the sparse powers add up."""
    text = 'grad_clipping { clipping_type: "norm" max_gradient: 0.01 enable_global_grad_clip: true }'
    calls = []

    def reduce(value, op):
        calls.append(op)
        return value * 2 if op == "sum" else value

    run = make_run(text, reduce=reduce)
    pairs, labels = batch_of(16, 0)
    both = gradient_of(run, pairs, labels, True)
    dense = gradient_of(run, pairs, labels, False)
    sparse = both[dense.numel() :]
    expected = math.sqrt(float((dense**2).sum() + 2 * (sparse**2).sum()))
    run.updater.backward(run.loss(pairs, labels))
    assert run.updater.step().grad_norm == pytest.approx(expected, rel=1e-5)
    assert calls == ["sum"]


def test_another_process_s_overflow_skips_here_too(make_run):
    run = make_run(SCALER, reduce=lambda value, op: torch.ones(()) if op == "max" else value)
    before = run.model.weights()
    assert run.micro(8, 0).skipped
    same(before, run.model.weights())


def test_the_norm_is_taken_when_asked_for(make_run):
    assert make_run("").micro(8, 0).grad_norm is None
    assert make_run("", track_grad_norm=True).micro(8, 0).grad_norm > 0


# Rates


def test_rates_follow_the_count_of_finished_updates(make_run):
    run = make_run(
        "gradient_accumulation_steps: 2 "
        "dense_optimizer { adam_optimizer { lr: 0.1 } linear_decay_learning_rate { decay_size: 4 } } "
        "sparse_optimizer { adam_optimizer { lr: 0.2 } step_decay_learning_rate { step_size: 2 gamma: 0.5 } "
        '  part_optimizers { regex_pattern: "it.m" sgd_optimizer { lr: 1 } } } '
    )
    seen = [run.micro(4, i).rates for i in range(8)][1::2]
    assert [r["dense"] for r in seen] == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert [r["sparse"] for r in seen] == pytest.approx([0.2, 0.2, 0.1, 0.1])
    assert [r["sparse.it.m"] for r in seen] == pytest.approx([1, 1, 0.5, 0.5])
    assert run.updater.rates()["dense"] == 0


def test_a_part_s_own_schedule_goes_before_the_main_one(make_run):
    run = make_run(
        "dense_optimizer { adam_optimizer { lr: 0.1 } linear_decay_learning_rate { decay_size: 2 } "
        '  part_optimizers { regex_pattern: "tower.0.*" sgd_optimizer { lr: 0.3 } '
        "  constant_learning_rate { } } "
        '  part_optimizers { regex_pattern: "tower.2.*" sgd_optimizer { lr: 0.3 } } } '
    )
    run.micro(4, 0)
    rates = run.updater.rates()
    assert (rates["dense.tower.0.*"], rates["dense.tower.2.*"], rates["dense"]) == pytest.approx(
        (0.3, 0.15, 0.05)
    )


def test_by_epoch_counts_finished_epochs(make_run):
    run = make_run(
        "dense_optimizer { adam_optimizer { lr: 0.1 } "
        "step_decay_learning_rate { step_size: 1 gamma: 0.5 by_epoch: true } } "
    )
    run.micro(4, 0)
    assert run.updater.rates()["dense"] == 0.1
    run.updater.start_epoch(2)
    assert run.updater.rates()["dense"] == pytest.approx(0.025)


def test_a_frozen_half_does_not_move(make_run):
    run = make_run(
        "dense_optimizer { adamw_optimizer { lr: 0 weight_decay: 0.1 } "
        "constant_learning_rate { warmup_size: 3 warmup_learning_rate: 0.1 } }"
    )
    before = run.model.weights()
    for i in range(4):
        run.micro(8, i)
    assert not moved(before, run.model.weights()) & {name for name, _ in run.model.dense()}


def test_one_cycle_moves_momentum_against_the_rate(make_run):
    run = make_run(
        "dense_optimizer { adam_optimizer { lr: 0.1 } one_cycle_learning_rate { total_size: 10 } } "
        "sparse_optimizer { adam_optimizer { lr: 0.1 } one_cycle_learning_rate { total_size: 10 } }"
    )
    group, table = run.updater.dense[0].param_groups[0], run.sparse.param_groups[0]
    assert group["betas"] == (pytest.approx(0.95), 0.999)
    for i in range(2):
        run.micro(4, i)
    assert group["lr"] == pytest.approx(0.1)
    assert group["betas"] == (pytest.approx(0.85), 0.999)
    assert table["beta1"] == pytest.approx(0.85)


def test_a_plateau_hears_the_evaluation(make_run):
    run = make_run(
        "dense_optimizer { adam_optimizer { lr: 0.1 } "
        'reduce_on_plateau_learning_rate { metric: "auc_ctr" patience: 0 } }'
    )
    run.updater.observe({"auc_ctr": 0.7, "loss": 0.5})
    run.updater.observe({"auc_ctr": 0.6})
    assert run.updater.rates()["dense"] == pytest.approx(0.01)
    with pytest.raises(RecgradError, match="has no 'auc_ctr'; did you mean 'auc_cvr'"):
        run.updater.observe({"auc_cvr": 0.6})


# State

RESUMED = {
    "adam": "dense_optimizer { adam_optimizer { lr: 0.05 } ema { decay: 0.8 } "
    "cosine_annealing_learning_rate { T_max: 12 } } " + SCALER,
    "schedule_free": "dense_optimizer { schedule_free_adamw_optimizer { lr: 0.05 } }",
    "schedule_free_radam": "dense_optimizer { schedule_free_radam_optimizer { lr: 0.05 beta2: 0.9 } }",
    "muon": "dense_optimizer { muon_optimizer { lr: 0.02 } one_cycle_learning_rate { total_size: 10 } }",
    "soap": "dense_optimizer { soap_optimizer { lr: 0.02 precondition_frequency: 2 } }",
    "parts": "dense_optimizer { lion_optimizer { lr: 0.01 } reduce_on_plateau_learning_rate { patience: 0 } "
    'part_optimizers { regex_pattern: ".*bias" sgd_optimizer { lr: 0.1 } } } gradient_accumulation_steps: 2',
}


@pytest.mark.parametrize("name", sorted(RESUMED))
def test_a_resume_is_bit_for_bit(make_run, name):
    def steps(run, seeds):
        for seed in seeds:
            run.micro(8, seed)
            if seed % 4 == 3:
                run.updater.observe({"auc": -seed})

    whole = make_run(RESUMED[name])
    steps(whole, range(16))

    first = make_run(RESUMED[name])
    steps(first, range(8))
    state = first.updater.state_dict(sparse=True)
    with first.updater.averaged():
        weights = first.model.weights()

    second = make_run(RESUMED[name], seed=0)
    for parameter_name, p in second.model.dense():
        p.data.copy_(weights[parameter_name])
    for table in second.model.engine.tables:
        second.model.engine.import_table(table, weights[f"{table}.rows"].numpy(), weights[table].numpy())
    second.updater.load_state_dict(state)
    assert second.updater.rates() == first.updater.rates()
    steps(second, range(8, 16))
    same(whole.model.weights(), second.model.weights())
    with whole.updater.averaged(), second.updater.averaged():
        same(whole.model.weights(), second.model.weights())


def test_a_resume_keeps_settings_that_the_config_changed(make_run):
    first = make_run("dense_optimizer { adamw_optimizer { lr: 0.05 weight_decay: 0 } }")
    first.micro(8, 0)
    second = make_run("dense_optimizer { adamw_optimizer { lr: 0.02 weight_decay: 0.5 beta1: 0.5 } }")
    second.updater.load_state_dict(first.updater.state_dict())
    group = second.updater.dense[0].param_groups[0]
    assert (group["lr"], group["weight_decay"], group["betas"][0]) == (0.02, 0.5, 0.5)


def test_a_state_of_other_optimizers_or_parameters_is_refused(make_run):
    state = make_run("").updater.state_dict()
    with pytest.raises(CheckpointError, match="is trained by Lion, the checkpoint's by Adam"):
        make_run("dense_optimizer { lion_optimizer { } }").updater.load_state_dict(state)
    with pytest.raises(
        CheckpointError, match=r"the dense parts are dense, dense.*bias; the checkpoint has dense"
    ):
        make_run(
            "dense_optimizer { adam_optimizer { } "
            'part_optimizers { regex_pattern: ".*bias" adam_optimizer { } } }'
        ).updater.load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"has other parameters than the checkpoint's.*tower.1.weight"):
        make_run("", batch_norm=True).updater.load_state_dict(state)


def test_a_state_is_taken_between_updates_and_outside_averages(make_run):
    run = make_run("gradient_accumulation_steps: 2 dense_optimizer { adam_optimizer { } ema { } }")
    run.micro(4, 0)
    with pytest.raises(RuntimeError, match="between updates; 1 micro-batches are in"):
        run.updater.state_dict()
    run.micro(4, 1)
    with run.updater.averaged(), pytest.raises(RuntimeError, match="outside averaged"):
        run.updater.state_dict()


# The rest of the config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('mixed_precision: "FP8"', "train_config: mixed_precision must be one of BF16, FP16, got 'FP8'"),
        ("grad_scaler { init_scale: 0 }", "train_config.grad_scaler: init_scale must be greater than 0"),
        (
            'grad_clipping { clipping_type: "nrom" }',
            "clipping_type must be one of 'none', 'norm', 'value', got 'nrom'",
        ),
        ('grad_clipping { clipping_type: "value" norm_type: 1 }', "norm_type: means nothing with"),
        (
            "dense_optimizer { schedule_free_sgd_optimizer { } ema { } }",
            "ema and a schedule-free optimizer exclude each other",
        ),
        ("dense_optimizer { adam_optimizer { } ema { decay: 1 } }", r"ema: decay must be in \[0, 1\), got 1"),
        (
            "sparse_optimizer { adagrad_optimizer { } "
            "one_cycle_learning_rate { total_size: 9 cycle_momentum: true } }",
            "sparse_optimizer.one_cycle_learning_rate.cycle_momentum: Adagrad has no momentum to cycle",
        ),
    ],
)
def test_refuses_in_the_config_s_words(make_run, text, message):
    with pytest.raises(ConfigError, match=message):
        make_run(text)


def test_tf32_switches_are_set(make_run):
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        make_run("cudnn_allow_tf32: false cuda_matmul_allow_tf32: true")
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (False, True)
        make_run("")
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (True, False)
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize(
    "dense", ["adam_optimizer { lr: 0.05 }", "schedule_free_adamw_optimizer { lr: 0.05 }"]
)
def test_kept_gradients_are_those_of_the_update(make_run, batch_of, dense):
    run = make_run(f"dense_optimizer {{ {dense} }}", keep_gradients=True)
    pairs, labels = batch_of(8, 0)
    expected = torch.autograd.grad(run.loss(pairs, labels), [p for _, p in run.model.dense()])
    run.sparse.zero_grad()
    run.updater.backward(run.loss(pairs, labels))
    run.updater.step()
    for (_, p), g in zip(run.model.dense(), expected):
        torch.testing.assert_close(p.grad, g)
    # The next backward starts from nothing.
    run.updater.backward(run.loss(pairs, labels) * 0)
    assert all(float(p.grad.abs().sum()) == 0 for _, p in run.model.dense())


def test_python_without_a_config():
    p = torch.nn.Parameter(torch.ones(3))
    part = OptimizerPart("dense", torch.optim.SGD([p], lr=0.5), Constant(warmup_size=2))
    updater = Updater([part])
    for _ in range(3):
        updater.backward(p.sum())
        updater.step()
    torch.testing.assert_close(p.data, torch.ones(3) - 0.5 * (0 + 0.5 + 1))
    with pytest.raises(ValueError, match="accumulation_steps must be at least 1, got 0"):
        Updater([part], accumulation_steps=0)
    with pytest.raises(ValueError, match="names of their own"):
        Updater([part, part])


def test_no_accumulation_is_zero_or_one(make_run, batch_of):
    """TorchEasyRec's configs write 0 for off."""
    for steps in (0, 1):
        run = make_run(f"{HALVES['sgd']} gradient_accumulation_steps: {steps}")
        run.updater.backward(run.loss(*batch_of(8, 0)))
        assert run.updater.step().updated
