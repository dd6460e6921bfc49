"""The planned rates are those that the update step will set."""

from __future__ import annotations

import pytest

from recgrad.errors import ConfigError
from recgrad.optim.plan import plan_parts

CONFIGS = [
    "",
    "dense_optimizer { muon_optimizer { lr: 0.02 fallback_lr: 0.004 } "
    "one_cycle_learning_rate { total_size: 8 max_lr: 0.1 } }",
    "dense_optimizer { adam_optimizer { lr: 0.1 } linear_decay_learning_rate { decay_size: 5 } "
    'part_optimizers { regex_pattern: ".*bias" sgd_optimizer { lr: 0.3 } '
    "constant_learning_rate { warmup_size: 3 } } "
    'part_optimizers { regex_pattern: "tower.0.*" lion_optimizer { lr: 0.01 } } } '
    "sparse_optimizer { adam_optimizer { lr: 0.2 } step_decay_learning_rate { step_size: 2 } "
    'part_optimizers { regex_pattern: "user" adagrad_optimizer { lr: 0.5 } '
    "inverse_sqrt_learning_rate { } } } ",
    'dense_optimizer { custom_optimizer { class_path: "torch.optim.Adamax" } }',
    "dense_optimizer { soap_optimizer { lr: 0 fallback_lr: 0.01 } "
    "cosine_annealing_learning_rate { T_max: 6 } }",
]


@pytest.mark.parametrize("text", CONFIGS, ids=range(len(CONFIGS)))
def test_planned_rates_are_the_updater_s(make_run, text):
    run = make_run(text)
    planned = plan_parts(run.config)
    assert {part.name for part in planned} == set(run.updater.rates())
    for n in range(8):
        assert {part.name: part.rate(n) for part in planned} == pytest.approx(run.updater.rates())
        run.micro(4, n)
    cycled = {part.name for part in run.updater.parts if part.cycles_momentum}
    assert {p.name for p in planned if p.momentum and p.schedule.cycles_momentum} == cycled


def test_no_optimizer_is_told_with_its_place(make_run):
    run = make_run("")
    run.config.dense_optimizer.part_optimizers.add().regex_pattern = "x"
    with pytest.raises(ConfigError, match=r"dense_optimizer.part_optimizers\[0\]: has no optimizer"):
        plan_parts(run.config)
