"""What the schema knows and nothing here builds: asking for it is an error, never silence."""

from __future__ import annotations

from typing import Any

KINDS = {
    ("DenseOptimizer", "optimizer"): "dense_optimizer",
    ("PartOptimizer", "optimizer"): "dense_optimizer",
    ("SparseOptimizer", "optimizer"): "sparse_optimizer",
    ("SparsePartOptimizer", "optimizer"): "sparse_optimizer",
    ("DenseOptimizer", "learning_rate"): "schedule",
    ("PartOptimizer", "learning_rate"): "schedule",
    ("SparseOptimizer", "learning_rate"): "schedule",
    ("SparsePartOptimizer", "learning_rate"): "schedule",
    ("Stage", "learning_rate"): "schedule",
    ("LossConfig", "loss"): "loss",
    ("LossConfig", "sid_loss"): "loss",
    ("MetricConfig", "metric"): "metric",
    ("TrainMetricConfig", "metric"): "train_metric",
    ("ModelConfig", "model"): "model",
    ("FeatureConfig", "feature"): "feature",
    ("SeqFeatureConfig", "feature"): "feature",
    ("DataConfig", "sampler"): "sampler",
    ("SeqEncoderConfig", "seq_module"): "sequence_encoder",
}
"""Which oneofs hold a kind of component, by message and oneof."""

UNSUPPORTED = {
    "DeltaEmbeddingDumpConfig.feature_store_config": "leave it out, deltas are files in output_dir",
}
"""`Message.field`, or `*.field` for that field of every message, and what to do instead.

A field counts as asked for when it is set to something other than its default.
"""

NO_EFFECT = {
    "DynamicEmbedding.cache_load_factor": "tables lie in main memory",
    "DynamicEmbedding.init_capacity_per_rank": "tables grow as they are filled",
    "DynamicEmbedding.bucket_capacity": "eviction is exact over the whole table",
    "DynamicEmbFrequencyAdmissionStrategy.counter_bucket_capacity": "counters lie in buckets of 16",
    "ModelConfig.kernel": "Recgrad's own kernels compute the same",
    "SequenceFeature.sequence_pk": "it is for serving",
    "STU.recompute_normed_x": "what is computed again is decided here",
    "STU.recompute_uvqk": "what is computed again is decided here",
    "STU.recompute_y": "what is computed again is decided here",
    "STU.sort_by_length": "rows are shared out by their lengths anyway",
    "GRSimpleActionEncoder.embedding_init_std": "vectors begin as N(0, 0.1), as in TorchEasyRec",
    "DataConfig.is_orderby_partition": "files are read in the order of their names",
    "MINDUserTower.user_seq_combine": "user and interests are always joined side by side",
    "NegativeSamplerV2.user_input_path": "users are those that the edges name",
    "HardNegativeSampler.user_input_path": "users are those that the edges name",
    "HardNegativeSamplerV2.user_input_path": "users are those that the edges name",
    "DataConfig.force_base_data_group": "sampled items are always kept apart from rows",
}
"""Fields that mean nothing to training here, and why; configs may hold them, and a hint says so."""


def unsupported(message: str, field: Any, value: Any) -> str | None:
    """The error for a field that nothing implements, or None."""
    remedy = _entry(UNSUPPORTED, message, field, value)
    return None if remedy is None else f"'{field.name}' is not supported yet; {remedy}"


def without_effect(message: str, field: Any, value: Any) -> str | None:
    """The hint for a field that means nothing to training here, or None."""
    reason = _entry(NO_EFFECT, message, field, value)
    return None if reason is None else f"has no effect here: {reason}"


def _entry(table: dict[str, str], message: str, field: Any, value: Any) -> str | None:
    if not field.is_repeated and field.message_type is None and value == field.default_value:
        return None
    return table.get(f"{message}.{field.name}") or table.get(f"*.{field.name}")
