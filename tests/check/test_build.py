"""The check builds what a run would build: it refuses whatever a constructor refuses, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import recgrad.config
from recgrad.check import check_config, check_rules
from recgrad.config import PipelineConfig, edit_config, load_with_locations, save_config
from recgrad.data.features.build import features_of
from recgrad.embedding.build import build_sparse_optimizer
from recgrad.errors import RecgradError
from recgrad.models.base import MODELS as REGISTRY
from recgrad.models.base import Model
from recgrad.optim.from_config import build_updater
from recgrad.optim.roles import parameter_roles
from recgrad.training.assembly import build_task

Whole = Callable[[str], PipelineConfig]
MODELS = sorted(path.stem for path in (Path(__file__).parents[1] / "models" / "configs").glob("*.config"))


def problems(config: PipelineConfig, **edits: Any) -> list[str]:
    return [str(problem) for problem in check_config(edit_config(config, edits)).problems]


def run_builds(config: PipelineConfig) -> str:
    """What refuses the config where a run is built for real; "" if nothing does."""
    try:
        task = build_task(config, features_of(config))
        engine: Any = task.model.engine
        settings = config.train_config
        sparse = None if engine is None else build_sparse_optimizer(engine, settings.sparse_optimizer)
        named = task.model.dense_named_parameters()
        build_updater(settings, named, sparse, roles=parameter_roles(task.model))
    except (RecgradError, ValueError, RuntimeError, KeyError) as error:
        return str(error) or type(error).__name__
    return ""


def scalars(message: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Paths and values of the numbers and texts that a message sets."""
    for field, value in message.ListFields():
        items = list(enumerate(value)) if field.is_repeated else [(None, value)]
        for i, item in items:
            where = f"{path}.{field.name}" + ("" if i is None else f"[{i}]")
            if hasattr(item, "ListFields"):
                yield from scalars(item, where)
            elif field.enum_type is None:
                yield where, item


def test_every_model_has_a_config() -> None:
    assert set(MODELS) == set(REGISTRY)


@pytest.mark.parametrize("name", MODELS)
def test_the_check_refuses_what_the_build_refuses(whole: Whole, name: str) -> None:
    sound = whole(name)
    assert problems(sound) == []
    assert run_builds(sound) == ""
    rng = random.Random(name)
    places = [
        *scalars(getattr(sound.model_config, name), f"model_config.{name}"),
        *scalars(sound.train_config.dense_optimizer, "train_config.dense_optimizer"),
    ]
    for path, value in rng.sample(places, min(8, len(places))):
        other = rng.choice(["", "nn.Nope"]) if isinstance(value, str) else rng.choice([0, 1, 3, 7, -1])
        try:
            config = edit_config(sound, {path: other})
        except RecgradError:
            continue  # the schema has no such value
        if check_rules(config).problems:
            continue
        found, refused = check_config(config).problems, run_builds(config)
        assert bool(found) == bool(refused), (path, other, found, refused)


@pytest.mark.parametrize(
    ("name", "edits", "expected"),
    [
        ("wukong", {"model_config.wukong.dense_mlp.hidden_units": [5]}, "model_config.wukong.dense_mlp"),
        (
            "deepfm",
            {"feature_configs[3].raw_feature.normalizer": "method=expression,expr=log(x"},
            "feature_configs[3].raw_feature.normalizer",
        ),
        (
            "deepfm",
            {
                "feature_configs[3]": {
                    "expr_feature": {"feature_name": "x", "expression": "a +* b", "variables": ["user:a"]}
                }
            },
            "feature_configs[3].expr_feature.expression",
        ),
        ("deepfm", {"model_config.deepfm.deep.activation": "nn.Nope"}, "model_config.deepfm.deep.activation"),
        (
            "deepfm",
            {"train_config.dense_optimizer.part_optimizers": [{"regex_pattern": "no", "adam_optimizer": {}}]},
            "train_config.dense_optimizer.part_optimizers[0].regex_pattern",
        ),
        (
            "deepfm",
            {"train_config.sparse_optimizer.part_optimizers": [{"regex_pattern": "no", "sgd_optimizer": {}}]},
            "train_config.sparse_optimizer.part_optimizers[0].regex_pattern",
        ),
        (
            "deepfm",
            {
                "feature_configs[2].id_feature.vocab_list": None,
                "feature_configs[2].id_feature.vocab_file": "absent",
                "feature_configs[2].id_feature.default_bucketize_value": 0,
            },
            "feature_configs[2].id_feature.vocab_file",
        ),
    ],
)
def test_what_a_constructor_refuses_stands_at_its_field(
    whole: Whole, tmp_path: Path, name: str, edits: dict[str, Any], expected: str
) -> None:
    config = edit_config(whole(name), edits)
    assert not check_rules(config).problems
    assert run_builds(config)
    save_config(config, tmp_path / "x.config")
    loaded = load_with_locations(tmp_path / "x.config")
    (problem,) = check_config(loaded.message, locations=loaded.locations, files=True).problems
    line = loaded.locations.line(expected)
    assert problem.where == f"x.config:{line} {expected}", problem


def test_a_vocabulary_that_is_elsewhere_is_a_hint(whole: Whole) -> None:
    edits = {
        "feature_configs[2].id_feature.vocab_list": None,
        "feature_configs[2].id_feature.vocab_file": "absent.txt",
        "feature_configs[2].id_feature.default_bucketize_value": 7,
    }
    config = edit_config(whole("deepfm"), edits)
    report = check_config(config)
    assert report.ok
    where = "feature_configs[2].id_feature.vocab_file"
    assert str(report.hints[-1]) == f"{where}: no file 'absent.txt' here; a run needs it"
    (problem,) = map(str, check_config(config, files=True).problems)
    assert problem.startswith(f"{where}: 'c': vocab_file 'absent.txt' (")
    assert "/absent.txt) cannot be read: no such file" in problem
    for i in (0, 2):
        config.feature_configs[i].id_feature.embedding_name = "shared"
    assert check_config(config).ok  # the size of the shared table is not known


def test_batch_norm_needs_two_rows(whole: Whole) -> None:
    one = {"data_config.batch_size": 1, "model_config.deepfm.deep.use_bn": True}
    assert problems(whole("deepfm"), **one) == [
        "data_config.batch_size: BatchNorm (use_bn, Dice) cannot train on batches of one row; use at least 2"
    ]
    assert not problems(whole("deepfm"), **{**one, "data_config.batch_size": 2})
    assert not problems(whole("deepfm"), **{**one, "model_config.deepfm.deep.use_bn": False})


@pytest.mark.parametrize("units", [[1_000_000, 1_000_000], [4_000_000_000, 4_000_000_000]])
def test_a_model_larger_than_memory_is_refused(whole: Whole, units: list[int]) -> None:
    (problem,) = problems(whole("deepfm"), **{"model_config.deepfm.deep.hidden_units": units})
    assert problem.startswith("model_config.deepfm")


def test_tables_of_any_size_take_no_memory(whole: Whole) -> None:
    size = {"feature_configs[0].id_feature.num_buckets": 4 * 10**9}
    assert problems(whole("deepfm"), **size) == []


def test_python_refuses_what_the_command_refuses(whole: Whole) -> None:
    for config_check in (check_config, recgrad.config.check_config):
        config = edit_config(whole("deepfm"), {"data_config.dataset_type": "CustomDataset"})
        (problem,) = map(str, config_check(config).problems)
        assert "CustomDataset needs data_config.custom_reader" in problem
        sampled = whole("dssm")
        sampled.data_config.tdm_sampler.SetInParent()
        assert any("tdm_sampler" in str(problem) for problem in config_check(sampled).problems)


class Looking(Model):
    """A model that looks at its weights while it is built, and draws from generators."""

    def build(self) -> None:
        self.layer = nn.Linear(self.groups.dim("deep"), 1)
        self.scale = float(self.layer.weight.detach().abs().sum()) + random.random() + np.random.rand()  # noqa: NPY002

    def predict(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.head(self.layer(inputs["deep"]) * self.scale)


class Failing(Model):
    """A model that cannot be built."""

    def build(self) -> None:
        raise KeyError("lost")


def own_model(config: PipelineConfig, name: str) -> PipelineConfig:
    group = {"group_name": "deep", "group_type": "DEEP", "feature_names": ["a", "x"]}
    edits = {
        "model_config.feature_groups": [group],
        "model_config.custom_model.class_path": f"own_models_of_test.{name}",
    }
    return edit_config(config, edits)


def test_models_of_ones_own_are_built_too(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "own_models_of_test", sys.modules[__name__])
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert check_config(own_model(whole("dcn_v2"), "Looking")).problems == ()
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
    (problem,) = check_config(own_model(whole("dcn_v2"), "Failing")).problems
    assert str(problem) == "model_config.custom_model: cannot be built: KeyError: 'lost'"
