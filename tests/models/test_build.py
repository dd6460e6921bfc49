"""From a config to a model: tasks, classes, options, refusals, parameter counts."""

from __future__ import annotations

import logging
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from google.protobuf import text_format

from recgrad.check import check_rules
from recgrad.check.capabilities import available
from recgrad.config import PipelineConfig
from recgrad.config.proto.model_pb2 import FeatureGroupConfig, ModelConfig
from recgrad.errors import ConfigError, RecgradError
from recgrad.losses.weighting import TaskWeighting
from recgrad.models.base import MODELS

CONFIGS = Path(__file__).parent / "configs"


def chain(*widths):
    """Weights and biases of linear layers one after another."""
    return sum(a * b + b for a, b in pairwise(widths))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_parameter_counts(name, build):
    """As many as the comment at the top of the model's config has counted by hand."""
    counted = re.search(r"^# dense weights: (.+)$", (CONFIGS / f"{name}.config").read_text(), re.M)
    assert counted is not None, f"{name}.config: begin with '# dense weights: ' and their number, as a sum"
    wanted = eval(counted[1], {"__builtins__": {}, "chain": chain})
    assert sum(p.numel() for _, p in build(name).dense_named_parameters()) == wanted


# --- tasks ---


def test_a_single_task_takes_the_first_label(build):
    (task,) = build("deepfm").tasks
    assert (task.name, task.label_name, task.logits, task.suffix) == ("", "click", "logits", "")
    assert task.losses[0].config_name == "binary_cross_entropy"
    assert task.metrics[0].config_name == "auc"


def test_task_towers_become_tasks(build, config_of):
    config = config_of("mmoe")
    tower = config.mmoe.task_towers[1]
    tower.weight = 0.5
    tower.sample_weight_name = "w"
    tower.task_space_indicator_label = "click"
    tower.in_task_space_weight = 2
    tower.out_task_space_weight = 0.1
    tower.pareto_min_loss_weight = 0.2
    config.use_pareto_loss_weight = True
    model = build(config)
    ctr, cvr = model.tasks
    assert (ctr.name, ctr.label_name, ctr.logits) == ("ctr", "click", "logits_ctr")
    assert ctr.weighting == TaskWeighting()
    assert cvr.weighting == TaskWeighting(
        weight=0.5,
        sample_weight_name="w",
        task_space_indicator_label="click",
        in_task_space_weight=2,
        out_task_space_weight=0.1,
        pareto_min_loss_weight=0.2,
    )
    assert model.use_pareto_loss_weight
    assert not build("mmoe").use_pareto_loss_weight


def test_shared_parameters_are_those_outside_the_towers(build):
    model = build("mmoe")
    shared = {name for name, _ in model.shared_named_parameters()}
    assert {name.split(".")[0] for name in shared} == {"mixture"}
    towers = {name for name, _ in model.dense_named_parameters()} - shared
    assert {name.split(".")[0] for name in towers} == {"towers"}


# --- classes ---


def single(name, loss, num_class, config_of):
    config = config_of(name)
    del config.losses[:]
    text_format.Parse(f"losses {{ {loss} }}", scratch := ModelConfig())
    config.losses.extend(scratch.losses)
    config.num_class = num_class
    del config.metrics[:]
    return config


SINGLE = [
    "wide_and_deep", "deepfm", "dlrm", "dcn_v1", "dcn_v2", "xdeepfm", "mask_net", "wukong",
    "multi_tower", "multi_tower_din", "final_mlp", "final_net", "gdcn", "autoint", "fibinet", "pnn", "onn",
    "rank_mixer", "eulernet",
]  # fmt: skip


@pytest.mark.parametrize("name", SINGLE)
def test_several_classes(name, build, batch, config_of):
    model = build(single(name, "softmax_cross_entropy {}", 3, config_of))
    logits = model(batch)["logits"]
    assert logits.shape == (6, 3)
    loss = model.tasks[0].losses[0]
    loss(logits, torch.tensor([0, 1, 2, 0, 1, 2])).backward()
    # A part that all classes share cancels in the softmax: its parameters would get (almost) nothing.
    for key, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 1e-8, key


def test_jrc_has_two_logits(build, batch, config_of):
    model = build(single("deepfm", 'jrc_loss { session_name: "user" }', 1, config_of))
    assert model.tasks[0].num_logits == 2
    assert model(batch)["logits"].shape == (6, 2)


def test_classes_of_a_tower(build, batch, config_of):
    config = config_of("pepnet")
    tower = config.pepnet.task_towers[1]
    tower.num_class = 4
    del tower.metrics[:]
    tower.losses[0].softmax_cross_entropy.SetInParent()
    outputs = build(config)(batch)
    assert outputs["logits_ctr"].shape == (6,)
    assert outputs["logits_cvr"].shape == (6, 4)


# --- options ---


def test_variational_dropout(build, batch, config_of):
    config = config_of("deepfm")
    config.variational_dropout.regularization_lambda = 0.6
    model = build(config)
    assert set(model.variational) == {"wide", "fm", "deep"}
    outputs = model(batch)
    p = [torch.sigmoid(dropout.theta) for dropout in model.variational.values()]
    expected = sum(0.6 / 6 * (1 - value).sum() for value in p)
    torch.testing.assert_close(outputs["regularization"], expected)
    model.eval()
    keep = 1 - torch.sigmoid(model.variational["deep"].theta)
    inputs = model.groups(model.groups.gather(batch, model.engine))
    kept, _ = model.dropped(inputs)
    widths = torch.tensor(list(model.groups.widths("deep").values()))
    torch.testing.assert_close(kept["deep"], inputs["deep"] * keep.repeat_interleave(widths))


def test_variational_dropout_of_a_sum_is_refused(build, config_of):
    config = config_of("dssm")
    config.variational_dropout.SetInParent()
    config.feature_groups[1].combine = FeatureGroupConfig.SUM
    with pytest.raises(ConfigError, match=r"variational_dropout: .* 'item' adds them \(combine: SUM\)"):
        build(config)


def test_variational_dropout_of_columns(build, config_of):
    config = config_of("deepfm")
    config.variational_dropout.embedding_wise_variational_dropout = True
    model = build(config)
    assert model.variational["deep"].theta.numel() == model.groups.dim("deep")


def test_domains_of_pepnet(build, batch, config_of):
    config = config_of("pepnet")
    config.pepnet.domain_input_name = "buy"
    config.pepnet.task_domain_num = 2
    model = build(config)
    outputs = model(batch)
    for task in ("ctr", "cvr"):
        every = torch.stack([outputs[f"logits_{task}_0"], outputs[f"logits_{task}_1"]], dim=1)
        own = every[torch.arange(6), batch.labels["buy"].long()]
        assert torch.equal(outputs[f"logits_{task}"], own)
    without = type(batch)(**{**vars(batch), "labels": {}})
    assert set(model(without)) == {f"logits_{t}_{i}" for t in ("ctr", "cvr") for i in (0, 1)}
    config.pepnet.task_domain_num = 1
    with pytest.raises(RecgradError, match="domains go from 0 to 0"):
        build(config)(batch)


@pytest.mark.parametrize("group", ["domain", "uia"])
def test_pepnet_without_a_gate(group, build, batch, config_of):
    config = config_of("pepnet")
    kept = [g for g in config.feature_groups if g.group_name != group]
    del config.feature_groups[:]
    config.feature_groups.extend(kept)
    if group == "domain":
        config.pepnet.ClearField("epnet_hidden_unit")
    else:
        config.pepnet.ClearField("ppnet_hidden_units")
    assert set(build(config)(batch)) == {"logits_ctr", "logits_cvr"}


def test_a_model_of_ones_own(build, batch, monkeypatch):
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    config = text_format.Parse(
        'feature_groups { group_name: "all" feature_names: ["a", "x"] group_type: DEEP }'
        'custom_model { class_path: "own_model.TwoLayers" params { fields { key: "hidden" '
        "value { number_value: 7 } } } } losses { binary_cross_entropy {} }",
        ModelConfig(),
    )
    model = build(config)
    assert model(batch)["logits"].shape == (6,)
    assert sum(p.numel() for _, p in model.dense_named_parameters()) == chain(5, 7, 1)
    config.custom_model.class_path = "own_model.NotAModel"
    with pytest.raises(ConfigError, match=r"not a subclass of recgrad\.models\.base\.Model"):
        build(config)
    config.custom_model.class_path = "own_model.TwoLayer"
    with pytest.raises(RecgradError, match="did you mean 'TwoLayers'"):
        build(config)


# --- refusals ---


MORE = "feature_groups { group_name: 'more' feature_names: 'a' group_type: DEEP }"
REFUSED = """
deepfm          | MORE | does not read a group 'more'
deepfm          | MORE variational_dropout {} | does not read a group 'more'
dcn_v1          | MORE | takes one group
deepfm          | num_class: 3 | binary_cross_entropy needs 1, got 3
deepfm          | losses { softmax_cross_entropy {} } | needs at least 2, got 1
deepfm          | losses { jrc_loss { session_name: 's' } } | different numbers of logits
deepfm          | deepfm { deep { use_bn: true use_ln: true } } | model_config.deepfm: use_bn and use_ln
mmoe            | mmoe { num_expert: 0 } | num_expert must be in [1, 10000]
mmoe            | mmoe { TOWER 'x' label_name: 'l' num_class: 2 losses { l2_loss {} } } } | l2_loss needs 1
dlrm            | dlrm { dense_mlp { hidden_units: 3 } } | end as wide as an embedding
dssm            | dssm { temperature: 0 } | temperature must be greater than 0
ple             | ple { extraction_networks { network_name: 'l1' EXPERTS } } | 'l1' twice
dbmtl           | dbmtl { TOWER 'x' label_name: 'l' relation_tower_names: 'ctr' } } | need a relation_mlp
dbmtl           | dbmtl { TOWER 'x' label_name: 'l' RELATION 'y' } } | must be towers, got 'y'
dbmtl           | dbmtl { TOWER 'x' label_name: 'l' RELATION 'x' } } | circle
pepnet          | pepnet { task_domain_num: 3 } | needs a domain_input_name
mask_net        | mask_net { MODULE { mask_block { aggregation_dim: 3 reduction_ratio: 0.5 } } } | exclude
multi_tower     | multi_tower { towers { input: 'user' } } | 'user' twice
multi_tower     | multi_tower { towers { input: 'usr' } } | no feature group 'usr'
multi_tower_din | multi_tower_din { towers { input: 'hist' } } | needs the group 'hist' to be DEEP
xdeepfm         | xdeepfm { wide_init_fn: 'nn.init.nothing_' } | nothing_
"""
SHORT = {
    "MORE": MORE,
    "TOWER": "task_towers { tower_name:",
    "EXPERTS": "expert_num_per_task: 1 task_expert_net { hidden_units: 5 }",
    "RELATION": "relation_mlp { hidden_units: 2 } relation_tower_names:",
    "MODULE": "mask_net_module",
    "ENCODERS": "feature_groups { group_name: 'seq' feature_names: 'a' group_type: DEEP sequence_encoders",
}


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_refused_configs(case, config_of, build):
    """A small config with one thing added (model | addition | words of the error)."""
    name, text, message = (part.strip() for part in case.split("|"))
    for word, meaning in SHORT.items():
        text = text.replace(word, meaning)
    config = config_of(name)
    text_format.Merge(text, config)
    with pytest.raises(RecgradError, match=re.escape(message)):
        build(config, engine=None)


TAKEN_FOR_GRANTED = """
deepfm | use_pareto_loss_weight: true | use_pareto_loss_weight: needs a model of two or more task_towers
deepfm | ENCODERS {} } | sequence_encoders[0]: names no encoder
mmoe   | num_class: 2 | num_class of a multi-task model belongs into its task_towers
mmoe   | losses { binary_cross_entropy {} } | losses of a multi-task model belong into its task_towers
mmoe   | metrics { auc {} } | metrics of a multi-task model belong into its task_towers
mmoe   | mmoe { TOWER 'ctr' label_name: 'l' } } | two towers are called 'ctr'
mmoe   | mmoe { TOWER 'x' label_name: '' losses { l2_loss {} } } } | label_name: is empty
dbmtl  | dbmtl { TOWER 'x' losses { l2_loss {} } } } | label_name: is required
"""


def check(config):
    report = check_rules(PipelineConfig(model_config=config), available=available())
    return "\n".join(str(problem) for problem in report.problems)


@pytest.mark.parametrize("case", TAKEN_FOR_GRANTED.strip().splitlines())
def test_what_is_taken_for_granted_has_been_checked(case, config_of):
    """A small config with one thing added (model | addition | words of the check)."""
    name, text, message = (part.strip() for part in case.split("|"))
    for word, meaning in SHORT.items():
        text = text.replace(word, meaning)
    config = config_of(name)
    assert message not in check(config)
    text_format.Merge(text, config)
    assert message in check(config)


def test_a_model_with_groups_and_towers_is_taken_for_granted(config_of):
    assert "model_config: is missing" in str(check_rules(PipelineConfig()).problems[2])
    assert "model_config: names no model" in check(ModelConfig())
    config = config_of("ple")
    del config.ple.task_towers[:], config.feature_groups[:]
    assert "ple: task_towers is empty" in check(config)
    assert "model_config: feature_groups is missing" in check(config)


def test_settings_of_ones_own_model_are_its_own(build, batch, monkeypatch):
    """Even where a model of ours would read them otherwise."""
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    config = text_format.Parse(
        'feature_groups { group_name: "all" feature_names: ["a", "x"] group_type: DEEP }'
        'custom_model { class_path: "own_model.Named" params { fields { key: "task_towers" '
        "value { number_value: 7 } } } } losses { binary_cross_entropy {} }",
        ModelConfig(),
    )
    assert build(config).task_towers == 7


# --- compile ---


@pytest.mark.slow
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="torch's compiler makes no valid C++ where vector instructions are switched off",
)
@pytest.mark.parametrize("name", ["multi_tower_din", "dssm"])
def test_compiled_equals_eager(name, build, batch_of, features, config_of):
    config = config_of(name)
    eager = build(config, double=False)
    config.compile = True
    compiled = build(config, double=False)
    assert compiled._dense_half != compiled.dense_half
    for rows in (5, 8, 9):
        batch = batch_of(features, rows, seed=rows, labels=("click", "buy"))
        ours, theirs = compiled(batch), eager(batch)
        for key in theirs:
            torch.testing.assert_close(ours[key], theirs[key], rtol=5e-6, atol=5e-6)
        for outputs in (ours, theirs):
            sum(value.square().sum() for value in outputs.values()).backward()
    for (key, a), (_, b) in zip(eager.named_parameters(), compiled.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=2e-6, msg=key)


def test_without_a_compiler_the_model_runs_eagerly_with_one_warning(
    build, batch, config_of, monkeypatch, caplog
):
    from torch._inductor import cpp_builder, exc

    def missing():
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    config = config_of("deepfm")
    config.compile = True
    with caplog.at_level(logging.WARNING):
        model = build(config)
        model(batch)
        model(batch)
    assert len(caplog.records) == 1
    assert "no C++ compiler" in caplog.text
    assert torch.equal(model(batch)["logits"], build("deepfm")(batch)["logits"])
