"""A reader, a feature kind, an encoder and a sampler of one's own (docs/extending.md) on two ranks."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from google.protobuf import text_format

STEPS = 20
PAGE = Path(__file__).resolve().parents[3] / "docs" / "extending.md"
OWN = """
train_config { sparse_optimizer { sgd_optimizer { lr: 0.1 } } dense_optimizer { sgd_optimizer { lr: 0.1 } } }
data_config {
  dataset_type: CustomDataset fg_mode: FG_DAG
  custom_reader {
    class_path: "parts.FeatherFiles"
    params { fields { key: "fragment_rows" value { number_value: 150 } } }
  }
}
feature_configs {
  id_feature { feature_name: "user" expression: "user:user" num_buckets: 60 embedding_dim: 8 }
}
feature_configs {
  id_feature { feature_name: "item" expression: "item:item" num_buckets: 40 embedding_dim: 8 }
}
feature_configs {
  sequence_id_feature {
    feature_name: "seen" expression: "user:seen" num_buckets: 40 embedding_dim: 8 sequence_length: 6
  }
}
feature_configs {
  custom_kind_feature {
    feature_name: "angle" expression: "user:price" class_path: "parts.Cyclic"
    params { fields { key: "period" value { number_value: 3 } } }
  }
}
"""
RANKING = """
feature_groups {
  group_name: "all" group_type: DEEP feature_names: ["user", "item", "angle"]
  sequence_groups { group_name: "history" feature_names: "seen" }
  sequence_encoders {
    custom_sequence_encoder {
      input: "history" class_path: "parts.Recency"
      params { fields { key: "decay" value { number_value: 0.7 } } }
    }
  }
}
multi_tower { towers { input: "all" mlp { hidden_units: [8] } } final { hidden_units: [4] } }
losses { binary_cross_entropy {} } metrics { auc {} }
"""
TOWERS = """
feature_groups { group_name: "user" group_type: DEEP feature_names: ["user", "angle"] }
feature_groups { group_name: "item" group_type: DEEP feature_names: ["item"] }
dssm {
  user_tower { input: "user" mlp { hidden_units: [8] } }
  item_tower { input: "item" mlp { hidden_units: [8] } }
  output_dim: 4 in_batch_negative: true
}
losses { softmax_cross_entropy {} } metrics { recall_at_k { top_k: 3 } }
"""
SAMPLER = """
data_config { custom_sampler {
  class_path: "parts.OtherGroups" params { fields { key: "column" value { string_value: "city" } } }
} }
"""


@pytest.fixture(scope="module")
def config(runs: Any) -> Iterator[Callable[..., Any]]:
    """A config over Arrow files of the same rows, with the classes of the page where Python finds them."""
    folder: Path = runs.folder
    parts = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (folder / "parts.py").write_text("\n\n".join(parts))
    for path in folder.glob("*.parquet"):
        feather.write_feather(pq.read_table(path), path.with_suffix(".feather"))
    sys.path.insert(0, str(folder))  # ranks begin with it, too

    def make(model: str, ranks: int, more: str = "") -> Any:
        config = runs.config(model=model, ranks=ranks, data="short")
        del config.feature_configs[:]
        text_format.Merge(OWN + more, config)
        config.train_input_path = config.train_input_path.replace(".parquet", ".feather")
        config.eval_input_path = config.eval_input_path.replace(".parquet", ".feather")
        return config

    yield make
    sys.path.remove(str(folder))
    sys.modules.pop("parts", None)


def test_two_ranks_end_where_one_process_does(
    runs: Any,
    config: Callable[..., Any],
    assert_agree: Callable[..., None],
    assert_same: Callable[..., None],
) -> None:
    result, folder = runs.local(config(RANKING, 1))
    jobs = [runs.job(config(RANKING, 2)), runs.job(config(TOWERS, 2, SAMPLER))]
    ranking, towers = runs.ranks(2, jobs)
    assert_agree(ranking)
    assert ranking[0]["step"] == result.step == STEPS
    assert ranking[0]["metrics"] == pytest.approx(result.metrics, abs=2e-5)
    assert_same(folder, jobs[0]["model_dir"], STEPS)
    # Negatives are of a rank's own batch, so that one process has others.
    assert_agree(towers)
    assert towers[0]["step"] == STEPS
    assert 0 < towers[0]["metrics"]["recall@3"] <= 1
