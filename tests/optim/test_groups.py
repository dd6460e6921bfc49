"""Who gets which optimizer."""

from __future__ import annotations

import logging

import pytest
import torch
from google.protobuf import text_format
from torch import nn

from recgrad.config.proto.optimizer_pb2 import DenseOptimizer
from recgrad.errors import ConfigError
from recgrad.optim.groups import build_dense_optimizers
from recgrad.optim.roles import Role, guess_roles, parameter_roles


def tower():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 1)
    )


def build(text, model=None, **options):
    model = model or tower()
    return build_dense_optimizers(
        model.named_parameters(), text_format.Parse(text, DenseOptimizer()), **options
    )


def names(part):
    return [name for group in part.names for name in group]


def test_the_first_pattern_that_matches_the_whole_name_wins():
    main, first, second = build(
        "adam_optimizer { lr: 0.1 } "
        'part_optimizers { regex_pattern: "[02].weight" sgd_optimizer { lr: 0.2 } } '
        'part_optimizers { regex_pattern: ".*weight" lion_optimizer { lr: 0.3 } } '
        'part_optimizers { regex_pattern: "4.bias" adagrad_optimizer { } } '
    )[:3]
    assert names(first) == ["0.weight", "2.weight"]
    assert names(second) == ["1.weight", "3.weight", "4.weight"]
    assert names(main) == ["0.bias", "1.bias", "2.bias", "3.bias"]
    assert [type(p.optimizer).__name__ for p in (main, first, second)] == ["Adam", "SGD", "Lion"]
    assert (main.name, first.name) == ("dense", "dense.[02].weight")


def test_a_pattern_that_matches_nothing_names_the_nearest():
    with pytest.raises(ConfigError) as caught:
        build('adam_optimizer { } part_optimizers { regex_pattern: "2.wieght" adam_optimizer { } }')
    assert str(caught.value).startswith(
        "train_config.dense_optimizer.part_optimizers[0].regex_pattern: "
        "'2.wieght' matches no dense parameter (it must match the whole name); nearest: 2.weight"
    )


def test_all_bad_patterns_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        build(
            "adam_optimizer { } "
            'part_optimizers { regex_pattern: "(" adam_optimizer { } } '
            'part_optimizers { regex_pattern: ".*" adam_optimizer { } } '
            'part_optimizers { regex_pattern: ".*bias" adam_optimizer { } } '
        )
    first, second = caught.value.problems
    assert "part_optimizers[0].regex_pattern: '(' is not a regular expression" in str(first)
    assert "part_optimizers[2].regex_pattern: all 5 that '.*bias' matches are taken by earlier" in str(second)


def test_no_optimizer_is_an_error():
    with pytest.raises(ConfigError, match=r"train_config.dense_optimizer: has no optimizer"):
        build("constant_learning_rate { }")


def test_exclude_bias_and_norm_leaves_decay_to_matrices():
    model = tower()
    (part,) = build(
        "adamw_optimizer { weight_decay: 0.1 } exclude_bias_and_norm: true",
        model,
        roles=parameter_roles(model),
    )
    decays = {n: g["weight_decay"] for g, ns in zip(part.param_groups, part.names) for n in ns}
    assert {n for n, decay in decays.items() if decay == 0.1} == {
        "0.weight",
        "2.weight",
        "3.weight",
        "4.weight",
    }
    (part,) = build("adamw_optimizer { weight_decay: 0.1 }")
    assert [g["weight_decay"] for g in part.param_groups] == [0.1]


def test_exclude_bias_and_norm_needs_a_weight_decay():
    text = 'custom_optimizer { class_path: "torch.optim.LBFGS" params { } } exclude_bias_and_norm: true'
    model = nn.Linear(3, 3, bias=False)
    with pytest.raises(ConfigError, match="exclude_bias_and_norm: LBFGS has no weight_decay"):
        build(text, model)


@pytest.mark.parametrize("kind", ["muon", "soap"])
def test_hidden_matrices_to_the_optimizer_and_the_rest_to_its_fallback(kind):
    main, fallback = build(
        f"{kind}_optimizer {{ lr: 0.02 fallback_lr: 0.005 fallback_beta1: 0.8 fallback_weight_decay: 0.3 }}"
    )
    assert names(main) == ["2.weight", "3.weight"]
    assert {"0.weight", "4.weight", "0.bias", "1.weight"} <= set(names(fallback))
    assert type(fallback.optimizer).__name__ == "AdamW"
    group = fallback.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.005, (0.8, 0.999), 0.3)
    assert fallback.name == "dense.fallback"


def test_the_fallback_keeps_its_ratio_when_rates_are_written_out():
    main, fallback = build(
        "muon_optimizer { lr: 0.02 fallback_lr: 0.005 } "
        "manual_step_learning_rate { schedule_sizes: 1 learning_rates: 0.01 }"
    )
    main.set_rates(2)
    fallback.set_rates(2)
    assert main.param_groups[0]["lr"] == pytest.approx(0.01)
    assert fallback.param_groups[0]["lr"] == pytest.approx(0.0025)


def test_muon_without_a_hidden_matrix_is_an_error():
    with pytest.raises(ConfigError, match="there is no hidden matrix among its 2 parameters"):
        build("muon_optimizer { }", nn.Linear(3, 1))


def test_lars_leaves_biases_and_norms_alone():
    (part,) = build("lars_optimizer { weight_decay: 0.1 }")
    excluded = next(g for g in part.param_groups if g["adapt"] is False)
    assert excluded["weight_decay"] == 0
    assert len(excluded["params"]) == 6


def test_roles_come_from_the_modules():
    model = nn.ModuleDict(
        {
            "emb": nn.Embedding(5, 4),
            "a": nn.Linear(4, 4),
            "ln": nn.LayerNorm((2, 4)),
            "b": nn.Linear(4, 4),
            "conv": nn.Conv1d(2, 2, 3),
            "head": nn.Linear(4, 1),
            "last": nn.Linear(4, 2),
        }
    )
    roles = parameter_roles(model)
    assert roles["emb.weight"] is Role.EMBEDDING
    assert roles["ln.weight"] is Role.NORM
    assert roles["ln.bias"] is Role.NORM
    assert roles["a.weight"] is Role.FIRST
    assert roles["b.weight"] is Role.HIDDEN
    assert roles["conv.weight"] is Role.TENSOR
    assert roles["head.weight"] is Role.LAST
    assert roles["last.weight"] is Role.LAST
    assert roles["b.bias"] is Role.BIAS
    guessed = guess_roles(model.named_parameters())
    assert guessed["emb.weight"] is Role.FIRST


def test_frozen_parameters_are_left_out():
    model = tower()
    model[0].weight.requires_grad_(False)
    (part,) = build("adam_optimizer { }", model)
    assert "0.weight" not in names(part)


def test_every_field_of_every_message_reaches_the_optimizer():
    """All messages of the oneof build, with every field written down."""
    for field in DenseOptimizer.DESCRIPTOR.oneofs_by_name["optimizer"].fields:
        if field.name == "custom_optimizer":
            continue
        config = DenseOptimizer()
        message = getattr(config, field.name)
        message.SetInParent()
        for option in field.message_type.fields:
            if option.name not in ("nesterov", "fused", "eps1", "shampoo_beta"):
                setattr(message, option.name, option.default_value)
            elif option.name != "eps1":
                setattr(message, option.name, 0)
        parts = build_dense_optimizers(tower().named_parameters(), config)
        assert parts[0].param_groups[0]["lr"] == pytest.approx(message.lr)


def test_fused_false_is_kept_and_fused_unset_is_chosen():
    assert build("adam_optimizer { }")[0].param_groups[0]["fused"] is True
    assert build("adam_optimizer { fused: false }")[0].param_groups[0]["fused"] is False
    assert build("adam_optimizer { fused: true }")[0].param_groups[0]["fused"] is True
    model = nn.Module()
    model.w = nn.Parameter(torch.randn(3, 4).T)
    assert build("adam_optimizer { }", model)[0].param_groups[0]["fused"] is False
    with pytest.raises(ConfigError, match="fused needs contiguous floating-point parameters"):
        build("adam_optimizer { fused: true }", model)


def test_custom_optimizers_of_another_package():
    (part,) = build(
        'custom_optimizer { class_path: "pytorch_optimizer.AdaBelief" '
        'params { fields { key: "lr" value { number_value: 0.3 } } fields { key: "betas" value { list_value '
        "{ values { number_value: 0.8 } values { number_value: 0.9 } } } } } }"
    )
    assert type(part.optimizer).__name__ == "AdaBelief"
    assert part.param_groups[0]["betas"] == (0.8, 0.9)
    assert part.base_rates == (0.3,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('class_path: "torch.optim.Adem"', "has no 'Adem'; did you mean 'Adam'"),
        ('class_path: "torch.nn.Linear"', "must name a torch.optim.Optimizer class, got torch.nn.Linear"),
        (
            'class_path: "torch.optim.Adam" params { fields { key: "rate" value { number_value: 1 } } }',
            "unexpected keyword argument 'rate'",
        ),
    ],
)
def test_custom_optimizers_that_cannot_be_built(text, message):
    with pytest.raises(ConfigError, match=message):
        build(f"custom_optimizer {{ {text} }}")


def test_a_custom_optimizer_without_its_class_is_an_error():
    config = DenseOptimizer()
    config.custom_optimizer.SetInParent()
    with pytest.raises(ConfigError, match=r"custom_optimizer.class_path: is not set"):
        build_dense_optimizers(tower().named_parameters(), config)


def test_settings_that_an_optimizer_refuses_are_told_with_their_place():
    with pytest.raises(
        ConfigError, match=r"dense_optimizer.lion_optimizer: beta1 must be in \[0, 1\), got 1"
    ):
        build("lion_optimizer { beta1: 1 }")


def test_cycle_momentum_written_for_an_optimizer_without_one_is_refused():
    with pytest.raises(ConfigError, match=r"one_cycle_learning_rate.cycle_momentum: Adagrad has no momentum"):
        build("adagrad_optimizer { } one_cycle_learning_rate { total_size: 9 cycle_momentum: true }")
    (part,) = build("adagrad_optimizer { } one_cycle_learning_rate { total_size: 9 }")
    assert not part.cycles_momentum
    (part,) = build("rmsprop_optimizer { } one_cycle_learning_rate { total_size: 9 }")
    assert not part.cycles_momentum  # a momentum of 0 stays 0
    (part,) = build("schedule_free_sgd_optimizer { } one_cycle_learning_rate { total_size: 9 }")
    assert not part.cycles_momentum


def test_the_log_shows_who_got_what(caplog):
    with caplog.at_level(logging.DEBUG, "recgrad.optim.groups"):
        build("muon_optimizer { lr: 0.02 } ")
    summary, table = (record.getMessage() for record in caplog.records)
    assert summary.startswith("dense: Muon, lr 0.02, Constant, 2 parameters of 50 weights; fallback: AdamW, ")
    muon, fallback = table.split("dense.fallback: AdamW, ")
    assert "dense: Muon, lr 0.02, " in muon
    assert any("2.weight" in line and "hidden matrix" in line for line in muon.splitlines())
    assert any("0.bias" in line and "bias" in line for line in fallback.splitlines())
    assert max(map(len, table.splitlines())) <= 80
