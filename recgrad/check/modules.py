"""MLPs: what their settings must have in common."""

from __future__ import annotations

import re

from recgrad.check.rule import CHECKS, Context
from recgrad.config.values import show

_ACTIVATION = re.compile(r"[A-Za-z_][\w.]*(?:\([^()]{0,200}\))?\Z")


@CHECKS.register("layers")
def check_mlps(context: Context) -> None:
    """Every MLP has one dropout for all of its layers or for each, one norm, and an activation."""
    for node in context.of("MLP"):
        units, ratios = node.message.hidden_units, node.message.dropout_ratio
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
