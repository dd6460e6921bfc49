"""Building blocks of models: layers, dropout, experts and capsules."""

from __future__ import annotations

import re

from recgrad.check.rule import CHECKS, Context, Node
from recgrad.config.values import show

_ACTIVATION = re.compile(r"[A-Za-z_][\w.]*(?:\([^()]{0,200}\))?\Z")
_AT_LEAST_ONE = {
    "Cross": ("cross_num",),
    "CrossV2": ("cross_num", "low_rank"),
    "MaskNetModule": ("n_mask_blocks",),
    "MaskBlock": ("hidden_dim",),
    "MMoE": ("num_expert",),
    "DBMTL": ("num_expert",),
    "DC2VR": ("num_expert",),
    "ExtractionNetwork": ("expert_num_per_task",),
    "B2ICapsule": ("max_k", "max_seq_len", "high_dim", "num_iters"),
    "WuKongLayer": ("lcb_feature_num", "fmb_feature_num", "compressed_feature_num"),
    "SelfAttentionEncoder": ("multihead_attn_dim", "num_heads"),
    "InterventionTaskTower": ("low_rank_dim",),
    "PEPNet": ("task_domain_num",),
}
MAX_PARTS = 10_000
"""Layers or experts of one kind: more would take minutes to build, and no model has them."""
_PARTS = {"cross_num", "n_mask_blocks", "num_expert", "expert_num_per_task", "share_num", "num_iters"}
_SAMPLERS = ("NegativeSampler", "NegativeSamplerV2", "HardNegativeSampler", "HardNegativeSamplerV2")


@CHECKS.register("layers")
def check_mlps(context: Context) -> None:
    """Every MLP has layers, and one dropout for all of them or for each."""
    for node in context.of("MLP"):
        units, ratios = node.message.hidden_units, node.message.dropout_ratio
        if not units:
            context.problem(node.path, "hidden_units is empty")
        _check_units(context, node, "hidden_units")
        _check_dropout(context, node, "dropout_ratio", len(units))
        if len(ratios) not in (0, 1, len(units)) and units:
            what = (
                f"dropout_ratio has {len(ratios)} values for {len(units)} layers; give one, or one for each"
            )
            context.problem(node.path, what)
        if node.message.use_bn and node.message.use_ln:
            context.problem(node.path, "use_bn and use_ln are both set; keep one")
        if node.message.activation and not _ACTIVATION.match(node.message.activation):
            what = f"must read like 'nn.ReLU', got {show(node.message.activation)}"
            context.problem(node.at("activation"), what)
    for node in context.of("PEPNet"):
        _check_units(context, node, "ppnet_hidden_units")
        _check_dropout(context, node, "ppnet_dropout_ratio", len(node.message.ppnet_hidden_units))
    for node in context.of("CIN"):
        _check_units(context, node, "cin_layer_size")


@CHECKS.register("module sizes")
def check_sizes(context: Context) -> None:
    """Counts of layers, experts and heads are at least 1; dropouts are shares."""
    for kind, fields in _AT_LEAST_ONE.items():
        for node in context.of(kind):
            for field in fields:
                if node.message.HasField(field) or field in ("cross_num", "low_rank"):
                    context.ranged(node, field, 1)
            for field in _PARTS & set(node.message.DESCRIPTOR.fields_by_name):
                context.ranged(node, field, high=MAX_PARTS)
    for node in context.of("SelfAttentionEncoder"):
        context.ranged(node, "dropout", 0, 1, below=True)
        encoder = node.message
        if encoder.num_heads > 0 and encoder.multihead_attn_dim % encoder.num_heads:
            what = f"{encoder.multihead_attn_dim} is not a multiple of num_heads {encoder.num_heads}"
            context.problem(node.at("multihead_attn_dim"), what)
    for node in context.of("PoolingEncoder"):
        context.one_of(node, "pooling_type", ("mean", "sum"))
    for node in context.of("DINEncoder", "SimpleAttention", "PoolingEncoder", "SelfAttentionEncoder"):
        context.ranged(node, "max_seq_length", 0)
    for node in context.of("MaskBlock"):
        context.ranged(node, "reduction_ratio", 0, above=True)
    for node in context.of("InterventionTaskTower"):
        context.ranged(node, "dropout_ratio", 0, 1, below=True)
    for node in context.of("VariationalDropout"):
        context.ranged(node, "regularization_lambda", 0)


@CHECKS.register("samplers")
def check_samplers(context: Context) -> None:
    """Samplers draw something, and give items attributes."""
    for node in context.of(*_SAMPLERS):
        if node.message.HasField("num_sample"):
            context.ranged(node, "num_sample", 1)
    for node in context.of("HardNegativeSampler", "HardNegativeSamplerV2"):
        if node.message.HasField("num_hard_sample"):
            context.ranged(node, "num_hard_sample", 1)
    for node in context.of(*_SAMPLERS, "TDMSampler", "CatalogueSampler"):
        if not node.message.attr_fields:
            context.problem(node.path, "attr_fields is empty; list the item's fields")
    for node in context.of("TDMSampler"):
        if not node.message.layer_num_sample:
            context.problem(
                node.path, "layer_num_sample is empty; give one number for each level of the tree"
            )
        context.ranged(node, "remain_ratio", 0, 1, above=True)


def _check_units(context: Context, node: Node, field: str) -> None:
    for i, units in enumerate(getattr(node.message, field)):
        if units < 1:
            context.problem(f"{node.at(field)}[{i}]", f"must be at least 1, got {units}")


def _check_dropout(context: Context, node: Node, field: str, layers: int) -> None:
    for i, ratio in enumerate(getattr(node.message, field)):
        if not 0 <= ratio < 1 and ratio == ratio:
            context.problem(f"{node.at(field)}[{i}]", f"must be in [0, 1), got {ratio:.7g}")
