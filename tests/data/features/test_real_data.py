"""Rows of the kuairand set, with its nulls, multi-valued tags and sequences, against plain Python."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

KUAIRAND = Path(__file__).resolve().parents[3] / "../shared/data/kuairand/train.parquet"
FEATURES = [
    """id_feature {
      feature_name: "user_id" expression: "user:user_id" hash_bucket_size: 5000 embedding_dim: 4
    }""",
    """id_feature {
      feature_name: "tag" expression: "item:tag" hash_bucket_size: 100 separator: "," embedding_dim: 4
    }""",
    """id_feature {
      feature_name: "degree" expression: "user:user_active_degree" embedding_dim: 4
      vocab_list: ["full_active", "high_active"]
    }""",
    'id_feature { feature_name: "onehot4" expression: "user:onehot_feat4" embedding_dim: 4 num_buckets: 20 }',
    """raw_feature {
      feature_name: "width" expression: "item:server_width" default_value: "-1"
      normalizer: "method=zscore,mean=700,standard_deviation=100"
    }""",
    """raw_feature {
      feature_name: "days" expression: "user:register_days" boundaries: [30, 365, 1000] embedding_dim: 4
    }""",
    """sequence_id_feature {
      feature_name: "watched" expression: "user:watch_seq" num_buckets: 10000 embedding_dim: 4
      sequence_length: 20
    }""",
    """sequence_lookup_feature {
      feature_name: "again" map: "user:weights" key: "item:long_watch_seq" sequence_length: 5
    }""",
]


@pytest.mark.skipif(not KUAIRAND.exists(), reason="../shared/data/kuairand is not there")
def test_rows_of_kuairand(encode, bucket) -> None:
    table = pq.read_table(KUAIRAND).slice(50_000, 3000).combine_chunks()
    columns = {name: table[name].chunk(0) for name in table.column_names}
    seqs = columns["watch_seq"].to_pylist()
    columns["weights"] = pa.array(["\x1d".join(f"{v}:{i}" for i, v in enumerate(seq or [])) for seq in seqs])
    result = encode(FEATURES, columns)
    rows = table.to_pylist()
    words = {"full_active": 2, "high_active": 3}
    assert result.ids("user_id") == [[bucket(r["user_id"], 5000)] for r in rows]
    assert result.ids("tag") == [[bucket(t, 100) for t in (r["tag"] or "").split(",") if t] for r in rows]
    degrees = [r["user_active_degree"] for r in rows]
    assert result.ids("degree") == [[words.get(d, 1)] if d else [] for d in degrees]
    onehots = [r["onehot_feat4"] for r in rows]
    assert any(x is None for x in onehots)
    assert result.ids("onehot4") == [[] if x is None else [x] for x in onehots]
    assert result.ids("days") == [[sum(edge <= r["register_days"] for edge in (30, 365, 1000))] for r in rows]
    widths = [r["server_width"] for r in rows]
    want = [[-1.0 if w is None else pytest.approx((w - 700) / 100, rel=1e-7)] for w in widths]
    assert result.floats("width") == want
    assert result.sequence_ids("watched") == [[[v] for v in (seq or [0])[:20]] for seq in seqs]
    again = [
        [
            [float({v: i for i, v in enumerate(r["watch_seq"] or [])}.get(v, 0))]
            for v in (r["long_watch_seq"] or [None])[:5]
        ]
        for r in rows
    ]
    assert result.sequence_floats("again") == again
