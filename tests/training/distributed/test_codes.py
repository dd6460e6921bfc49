"""Models of semantic ids on two ranks: codebooks of the rows of all ranks, as one process has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

STEPS = 20
FEATURES = """
train_config { dense_optimizer { sgd_optimizer { lr: 0.05 } } }
feature_configs { raw_feature { feature_name: "cost" } }
feature_configs { raw_feature { feature_name: "weight" } }
"""
GROUP = """
feature_groups { group_name: "vector" group_type: DEEP feature_names: ["price", "cost", "weight"] }
"""
CASES = {
    "sid_rqkmeans": "sid_rqkmeans { codebook: [6, 5] train_sample_size: 100 }",
    # Sinkhorn shares the codes among the rows of a batch, which are fewer on each of several ranks.
    "sid_rqvae": """
      sid_rqvae { codebook: [20, 17] embed_dim: 4 kmeans_init: true sinkhorn_config { enabled: false } }
      losses { recon_loss {} } losses { commitment_loss {} }
    """,
}


def test_two_ranks_end_where_one_process_does(
    runs: Any, assert_agree: Callable[..., None], assert_same: Callable[..., None]
) -> None:
    """Both need more rows than one rank has: 17 to begin with k-means, 100 for the whole sample."""

    def config(name: str, ranks: int) -> Any:
        made = runs.config(FEATURES, GROUP + CASES[name], ranks=ranks, data="short")
        del made.data_config.label_fields[:]
        return made

    jobs = [runs.job(config(name, 2)) for name in CASES]
    for name, job, left in zip(CASES, jobs, runs.ranks(2, jobs), strict=True):
        result, folder = runs.local(config(name, 1))
        assert_agree(left)
        assert left[0]["step"] == result.step == STEPS
        # Of ids per batch there are fewer distinct ones in larger batches.
        for metric in ("mse", "rel_loss"):
            assert left[0]["metrics"][metric] == pytest.approx(result.metrics[metric], abs=2e-5), name
        assert_same(folder, job["model_dir"], STEPS)
