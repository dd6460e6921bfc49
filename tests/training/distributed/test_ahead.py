"""Ids of the next batch are sent during this one: the same run, bit for bit, wherever it ends or goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 1_600  # 50 batches of two ranks with 16 rows each
BY_COST = 'data_config { shuffle: true sample_cost_field: "cost" batch_cost_size: 48 }'
TOWERS = """
feature_groups { group_name: "user" group_type: DEEP feature_names: ["user", "words"] }
feature_groups { group_name: "item" group_type: DEEP feature_names: ["item"] }
dssm {
  user_tower { input: "user" mlp { hidden_units: [8] } }
  item_tower { input: "item" mlp { hidden_units: [8] } }
  output_dim: 4
}
losses { softmax_cross_entropy {} } metrics { recall_at_k { top_k: 5 } }
"""


def training(text: str) -> str:
    return f"train_config {{ {text} }}"


def checksums(job: dict[str, Any], step: int) -> str:
    """What a checkpoint consists of, the data's position among it, with the checksum of every file."""
    text = (Path(job["model_dir"]) / f"model.ckpt-{step}" / "manifest.json").read_text()
    assert "crc32" in text
    return text


@pytest.fixture(scope="module")
def costs(runs: Any) -> Path:
    """Rows of which the second rank's cost more, so that it has more batches of them."""
    table = pq.read_table(runs.folder / "train_2.parquet")
    values = np.concatenate([np.full(ROWS // 2, 1), np.full(ROWS // 2, 3)])
    path: Path = runs.folder / "ahead_costs.parquet"
    pq.write_table(table.set_column(table.schema.get_field_index("cost"), "cost", pa.array(values)), path)
    return path


@pytest.fixture(scope="module")
def sampler(runs: Any) -> str:
    lines = ["id:int64\tweight:float\tattrs:string", *(f"{i}\t1\t{i}" for i in range(40))]
    path = runs.folder / "items.txt"
    path.write_text("\n".join(lines) + "\n")
    return (
        f"data_config {{ negative_sampler {{ input_path: '{path}' attr_fields: 'item' item_id_field: 'item' "
        "num_sample: 8 } }"
    )


def test_ids_sent_ahead_change_nothing(
    runs: Any, costs: Path, sampler: str, assert_agree: Callable[..., None]
) -> None:
    """With evaluations and checkpoints between steps, epochs, accumulation, uneven data, negatives."""
    shuffled = "data_config { shuffle: true }"
    cases = {  # config, model, steps, times that ids were sent
        "steps": (training("num_steps: 60 save_checkpoints_steps: 15") + shuffled, [], 60, 58),
        "accumulation": (training("num_epochs: 2 gradient_accumulation_steps: 3"), [], 34, 98),
        "row-wise": (training('global_embedding_constraints { sharding_types: "row_wise" }'), [], 50, 49),
        "costs": (BY_COST, [], 50, 49),
        "negatives": (sampler, [TOWERS], 50, 49),
    }
    jobs = []
    for name, (text, model, *_) in cases.items():
        config = runs.config(text, *model, ranks=2)
        if name == "costs":
            config.train_input_path = str(costs)
        jobs += [runs.job(config, ahead=False), runs.job(config)]
    left = runs.ranks(2, [dict(job) for job in jobs])
    for i, (name, (_, _, steps, times)) in enumerate(cases.items()):
        plain, ahead = left[2 * i], left[2 * i + 1]
        for ranks in (plain, ahead):
            assert_agree(ranks)
            assert ranks[0]["step"] == steps, name
        assert [rank["sent"] for rank in plain] == [[], []]
        assert [len(rank["sent"]) for rank in ahead] == [times, times], name
        assert repr(plain[0]["metrics"]) == repr(ahead[0]["metrics"]), name
        assert checksums(jobs[2 * i], steps) == checksums(jobs[2 * i + 1], steps), name


def test_a_run_resumes_with_the_batch_that_was_only_sent(
    runs: Any, costs: Path, assert_agree: Callable[..., None]
) -> None:
    for text, path in (("data_config { shuffle: true }", None), (BY_COST, costs)):
        # Stopping early ends a run after an evaluation, with ids under way.
        steps = 'num_steps: 40 save_checkpoints_steps: 10 early_stopping { metric: "auc" min_delta: 1.0 '
        whole, first, rest = (
            runs.config(text + training(f"{steps} patience: {patience} }}"), ranks=2)
            for patience in (9, 1, 9)
        )
        for config in (whole, first, rest):
            config.train_input_path = str(path or config.train_input_path)
        folder = runs.new_dir()
        jobs = [
            runs.job(whole),
            runs.job(first, folder),
            {**runs.job(rest), "model_dir": str(folder), "continue_train": True},
        ]
        left = runs.ranks(2, [dict(job) for job in jobs])
        for ranks in left:
            assert_agree(ranks)
        assert [ranks[0]["step"] for ranks in left] == [40, 20, 40]
        assert [len(ranks[0]["sent"]) for ranks in left] == [39, 20, 19]
        assert checksums(jobs[0], 40) == checksums(jobs[2], 40)


def test_what_is_wrong_with_a_batch_ahead_is_said_when_its_turn_comes(runs: Any) -> None:
    """The steps before it are made; a run that ends before it does not read it."""
    configs = [runs.config(training(f"num_steps: {n} save_checkpoints_steps: 20"), ranks=2) for n in (20, 30)]
    jobs = [runs.job(config, unsound=[1, 20]) for config in configs]  # the first is looked up as it comes
    enough, broken = runs.ranks(2, [dict(job) for job in jobs])
    assert [rank["step"] for rank in enough] == [20, 20]
    assert [rank["kind"] for rank in broken] == ["ProcessError", "DataError"]
    assert broken[0]["error"].startswith("rank 1 failed: an id is outside its table")
    assert [len(rank["sent"]) for rank in broken] == [19, 19]
    for whole, cut in zip(enough, broken, strict=True):
        assert cut["rows"] == whole["rows"] == [32] * 20
        for name, value in whole["dense"].items():
            assert cut["dense"][name].tobytes() == value.tobytes(), name
