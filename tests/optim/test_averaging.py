"""Averaged weights: what evaluation sees, and that training does not notice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recgrad.errors import CheckpointError
from recgrad.optim.averaging import EMA, ReestimatedBatchNorm


def test_ema_is_the_average_by_hand():
    p = nn.Parameter(torch.tensor([5.0], dtype=torch.float64))
    ema = EMA([("p", p)], decay=0.9)
    expected = None
    for value in (1.0, 2.0, 4.0, 3.0):
        p.data.fill_(value)
        ema.update()
        expected = value if expected is None else 0.9 * expected + 0.1 * value
        assert ema.averages["p"].item() == pytest.approx(expected, rel=1e-12)
    with ema.applied():
        assert p.item() == pytest.approx(expected)
    assert p.item() == 3.0


def test_ema_equals_torch_s():
    model = nn.Linear(3, 2)
    theirs = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    )
    ours = EMA(model.named_parameters(), decay=0.8)
    for _ in range(5):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        theirs.update_parameters(model)
        ours.update()
    for name, p in theirs.module.named_parameters():
        torch.testing.assert_close(ours.averages[name], p.data)


def test_ema_of_other_parameters_is_refused():
    one, two = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
    with pytest.raises(CheckpointError, match="differ: bias"):
        EMA(two.named_parameters()).load_state_dict(EMA(one.named_parameters()).state_dict())


KINDS = {
    "ema": "dense_optimizer { adam_optimizer { lr: 0.05 } ema { decay: 0.5 } }",
    "sgd": "dense_optimizer { schedule_free_sgd_optimizer { lr: 0.05 } }",
    "adamw": "dense_optimizer { schedule_free_adamw_optimizer { lr: 0.05 } }",
    "custom": 'dense_optimizer { custom_optimizer { class_path: "pytorch_optimizer.ScheduleFreeAdamW" } }',
    "part": "dense_optimizer { adam_optimizer { lr: 0.05 } "
    'part_optimizers { regex_pattern: ".*weight" schedule_free_adamw_optimizer { lr: 0.05 } } }',
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_evaluating_does_not_change_the_run(make_run, kind):
    """Evaluated after every update or never: the same weights, bit for bit."""
    watched, alone = make_run(KINDS[kind]), make_run(KINDS[kind])
    for seed in range(6):
        watched.micro(8, seed)
        alone.micro(8, seed)
        training = watched.model.weights()
        with watched.updater.averaged():
            averaged = watched.model.weights()
            with watched.updater.averaged():  # a second one inside changes nothing
                assert torch.equal(watched.model.weights()["tower.0.weight"], averaged["tower.0.weight"])
        for name, value in watched.model.weights().items():
            assert torch.equal(value, training[name])
    assert not torch.equal(averaged["tower.0.weight"], training["tower.0.weight"])
    for name, value in alone.model.weights().items():
        assert torch.equal(value, watched.model.weights()[name])


def test_an_error_inside_leaves_the_training_weights(make_run):
    run = make_run(KINDS["adamw"])
    run.micro(8, 0)
    run.micro(8, 1)
    before = run.model.weights()
    with pytest.raises(ZeroDivisionError), run.updater.averaged():
        raise ZeroDivisionError
    assert all(torch.equal(v, before[n]) for n, v in run.model.weights().items())
    assert run.micro(8, 2).updated


def test_updates_inside_are_refused(make_run):
    run = make_run(KINDS["ema"])
    with run.updater.averaged(), pytest.raises(RuntimeError, match="would train the averaged weights"):
        run.micro(8, 0)


def test_without_averages_nothing_happens(make_run):
    run = make_run("")
    run.micro(8, 0)
    before = run.model.weights()
    with run.updater.averaged():
        assert all(torch.equal(v, before[n]) for n, v in run.model.weights().items())


def test_batch_norm_gets_the_statistics_of_the_weights_in_the_model(make_run, batch_of):
    run = make_run(KINDS["adamw"], batch_norm=True)
    assert run.updater.reestimates_batch_norm
    for seed in range(4):
        run.micro(16, seed)
    norm = run.model.tower[1]
    run.model.train()
    run.model.tower[2].eval()
    old = [norm.running_mean.clone(), norm.running_var.clone(), norm.num_batches_tracked.clone()]
    batches = [batch_of(16, seed)[0] for seed in range(3)]

    def forward():
        for pairs in batches:
            run.model(pairs)

    estimate = ReestimatedBatchNorm()
    with run.updater.averaged(), estimate.applied(run.model, 4, forward):
        seen = [run.model.tower[0](embed(run.model, pairs)) for pairs in batches]
        torch.testing.assert_close(norm.running_mean, torch.stack([s.mean(0) for s in seen]).mean(0))
        torch.testing.assert_close(norm.running_var, torch.stack([s.var(0) for s in seen]).mean(0))
    for was, now in zip(old, (norm.running_mean, norm.running_var, norm.num_batches_tracked)):
        assert torch.equal(was, now)
    assert norm.momentum == 0.1
    assert norm.training
    assert not run.model.tower[2].training


def test_batch_norm_is_estimated_once_for_the_same_weights():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    batches = torch.randn(4, 8, 2, generator=torch.Generator().manual_seed(3))
    passes, estimate = [], ReestimatedBatchNorm()

    def forward():
        passes.append(len(passes))
        for batch in batches:
            model(batch)

    def seen(updates):
        with estimate.applied(model, updates, forward):
            return {name: value.clone() for name, value in model[1].named_buffers()}

    first, again = seen(7), seen(7)
    assert len(passes) == 1
    assert all(torch.equal(first[name], again[name]) for name in first)
    model[0].weight.data.mul_(2)
    later = seen(8)
    assert len(passes) == 2
    assert not torch.equal(first["running_var"], later["running_var"])
    assert model[1].num_batches_tracked == 0


def test_an_estimate_that_fails_is_not_remembered():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    estimate = ReestimatedBatchNorm()

    def fail():
        model(torch.ones(4, 2))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), estimate.applied(model, 1, fail):
        pass
    assert model[1].num_batches_tracked == 0
    assert model[1].momentum == 0.1
    with estimate.applied(model, 1, lambda: model(torch.randn(4, 2))):
        assert model[1].num_batches_tracked == 1


def embed(model, pairs):
    captured = []
    handle = model.tower[0].register_forward_pre_hook(lambda module, args: captured.append(args[0]))
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    with torch.no_grad():
        model(pairs)
    for module, mode in modes:
        module.training = mode
    handle.remove()
    return captured[0].detach()


def test_a_model_without_batch_norm_is_left_alone():
    model = nn.Linear(2, 2)

    def forward():
        raise AssertionError("there is nothing to estimate")

    with ReestimatedBatchNorm().applied(model, 0, forward):
        pass
