"""Row weights and task weights as TaskTower states them."""

import pytest
import torch
from google.protobuf import text_format

from recgrad.config.proto.tower_pb2 import InterventionTaskTower, TaskTower
from recgrad.losses.weighting import TaskWeighting, normalize_weights


def test_normalized_weights_have_mean_one():
    weights = torch.tensor([1.0, 2.0, 5.0, 0.0])
    assert normalize_weights(weights).tolist() == [0.5, 1.0, 2.5, 0.0]


def test_all_zero_and_no_weights_stay_finite():
    assert normalize_weights(torch.zeros(3)).tolist() == [0, 0, 0]
    assert normalize_weights(torch.zeros(0)).tolist() == []


def test_task_space_multiplies_sample_weights():
    tower = text_format.Parse(
        "tower_name: 'cvr' label_name: 'buy' weight: 0.5 sample_weight_name: 'w' "
        "task_space_indicator_label: 'clk' in_task_space_weight: 2 out_task_space_weight: 0.1",
        TaskTower(),
    )
    weighting = TaskWeighting.from_config(tower)
    rows = weighting.rows({"clk": torch.tensor([0, 1, 3])}, {"w": torch.tensor([1.0, 2.0, 3.0])})
    assert rows.tolist() == pytest.approx([0.1, 4.0, 6.0])
    assert weighting.weight == 0.5


def test_tower_without_weights_has_none():
    tower = text_format.Parse("tower_name: 't' low_rank_dim: 2", InterventionTaskTower())
    assert TaskWeighting.from_config(tower).rows({}, {}) is None
