"""Deltas of tables that are spread by columns or have FBGEMM's kernels lead to an export."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.embedding.deltas.record import published, read_record
from recgrad.serving.following import FollowingScorer
from recgrad.serving.manifest import read_manifest
from recgrad.serving.scorer import Scorer

pytestmark = pytest.mark.slow
DELTAS = "delta_embedding_dump"
DELTA_STEPS = [4, 8, 10, 12, 16, 20]
DIN = """
feature_groups { group_name: "deep" group_type: DEEP feature_names: ["user", "item", "words", "tags"] }
feature_groups { group_name: "seq" group_type: SEQUENCE feature_names: ["item", "seen"] }
multi_tower_din {
  towers { input: "deep" mlp { hidden_units: [8] } }
  din_towers { input: "seq" attn_mlp { hidden_units: [4] } }
  final { hidden_units: [4] }
}
losses { binary_cross_entropy {} }
metrics { auc {} }
"""


def spread(kind: str, kernel: str = "customized_kernel") -> str:
    return f"""train_config {{
      global_embedding_constraints {{ sharding_types: "{kind}" compute_kernels: "{kernel}" }}
      num_steps: 20 save_checkpoints_steps: 10 delta_embedding_dump_config {{ dump_interval_steps: 4 }}
    }}"""


CASES = {
    "columns": (spread("column_wise"), DIN),
    "fused": (spread("table_wise", "fused"), DIN),
    "fused rows": (spread("row_wise", "fused"), None),
    "fused columns": (spread("column_wise", "fused"), DIN),
}


def config_of(runs: Any, case: str, ranks: int) -> Any:
    text, model = CASES[case]
    config = runs.config(text, *([] if model is None else [model]), ranks=ranks)
    config.feature_configs[0].id_feature.storage = 2  # COMPACT
    return config


class Served:
    """A run with deltas, and bundles of its checkpoints of steps 10 and 20."""

    def __init__(self, model: Path) -> None:
        self.model = model

    def bundle(self, step: int) -> Path:
        folder = self.model.with_name(f"{self.model.name}_bundle_{step}")
        if not folder.exists():
            checkpoint = self.model / f"model.ckpt-{step}"
            recgrad.export_model(self.model, export_dir=folder, checkpoint_path=checkpoint)
        return folder

    def assert_follows(self, rows: Any) -> None:
        """The bundle of step 10 becomes that of step 20."""
        scorer, expected = FollowingScorer(self.bundle(10), self.model / DELTAS), Scorer.load(self.bundle(20))
        before, after = scorer.score(rows), expected.score(rows)
        assert any(before[name].tobytes() != after[name].tobytes() for name in after)
        assert scorer.follow() > 0
        assert not scorer.refused
        assert scorer.applied.number == read_manifest(self.bundle(20)).delta
        found = scorer.score(rows)
        for name in after:
            assert found[name].tobytes() == after[name].tobytes(), name


@pytest.fixture(scope="module")
def trained(runs: Any) -> dict[tuple[str, int], Served]:
    """By case and number of ranks."""
    pytest.importorskip("onnxruntime")
    found = {}
    for ranks, cases in ((2, list(CASES)), (1, ["fused"])):
        jobs = [runs.job(config_of(runs, case, ranks)) for case in cases]
        for case, job, left in zip(cases, jobs, runs.ranks(ranks, jobs), strict=True):
            for rank in left:
                assert "error" not in rank, rank["error"]
            found[case, ranks] = Served(Path(job["model_dir"]))
    return found


@pytest.mark.parametrize(("case", "ranks"), [*((case, 2) for case in CASES), ("fused", 1)])
def test_a_bundle_that_follows_is_an_export(
    runs: Any, trained: dict[tuple[str, int], Served], case: str, ranks: int
) -> None:
    served = trained[case, ranks]
    folder = served.model / DELTAS
    records = {number: read_record(path) for number, path in published(folder).items()}
    assert [records[number].step for number in sorted(records)] == DELTA_STEPS
    assert {path.suffix for path in folder.iterdir()} == {".arrow", ".npz", ".json"}
    joined = [name for record in records.values() for name in record.files if name.endswith(".columns.arrow")]
    assert bool(joined) == ("columns" in case and ranks > 1)
    named = {name for record in records.values() for name in record.files}
    assert named == {path.name for path in folder.iterdir() if path.suffix != ".json"}
    served.assert_follows(pq.read_table(runs.folder / "eval.parquet"))


def test_a_run_that_resumes_puts_right_what_a_killed_one_wrote(
    runs: Any, trained: dict[tuple[str, int], Served]
) -> None:
    """Steps after the checkpoint are trained again, with another rate, so that they end elsewhere."""
    cases = ["columns", "fused columns"]
    jobs, copies = [], []
    for case in cases:
        model = trained[case, 2].model
        copy = Served(runs.new_dir())
        shutil.copytree(model, copy.model)
        shutil.copytree(trained[case, 2].bundle(10), copy.model.with_name(f"{copy.model.name}_bundle_10"))
        shutil.rmtree(copy.model / "model.ckpt-20")
        config = config_of(runs, case, 2)
        config.train_config.sparse_optimizer.adagrad_optimizer.lr = 0.5
        jobs.append(runs.job(config, copy.model, continue_train=True))
        copies.append(copy)
    for left in runs.ranks(2, jobs):
        for rank in left:
            assert "error" not in rank, rank["error"]
    for case, copy in zip(cases, copies, strict=True):
        numbers = sorted(published(copy.model / DELTAS))
        assert numbers == list(range(1, numbers[-1] + 1)), case
        assert numbers[-1] > len(DELTA_STEPS), case
        copy.assert_follows(pq.read_table(runs.folder / "eval.parquet"))
