"""Models and the feature groups they need."""

from __future__ import annotations

from recgrad.check.rule import CHECKS, Context
from recgrad.config.proto.model_pb2 import FeatureGroupType
from recgrad.models.group_needs import group_problems


@CHECKS.register("model groups")
def check_model_groups(context: Context) -> None:
    """A model has the groups it needs, of the right types, and no group without use."""
    for model in context.of_kind("model"):
        groups = [
            (group.group_name, FeatureGroupType.Name(group.group_type))
            for group in model.holder.message.feature_groups
        ]
        if not groups or model.cls is None:
            continue
        for path, what in group_problems(model.name, model.cls, model.settings, groups):
            context.problem(model.holder.at(path), what)


@CHECKS.register("negatives")
def check_negatives(context: Context) -> None:
    """A two-tower model has negatives, of one kind."""
    sampler = next(context.of_kind("sampler"), None)
    draws = None if sampler is None else sampler.trait("draws")
    for model in context.of_kind("model"):
        needed = model.trait("needs_sampler")
        if needed is not None and draws != needed:
            context.problem(model.node.path, "has no items to compare; set data_config.next_item_sampler")
        in_batch = model.settings.get("in_batch_negative")
        if in_batch is None:
            continue
        if not in_batch and not context.config.data_config.WhichOneof("sampler"):
            what = "has no negatives; set in_batch_negative, or a negative_sampler in data_config"
            context.problem(model.node.path, what)
        elif not in_batch and sampler is not None and draws == "rows":
            context.problem(sampler.node.path, f"needs in_batch_negative: true in {model.node.path}")
        elif in_batch and sampler is not None and draws != "rows":
            what = "is not used: with in_batch_negative the items of other rows are the negatives"
            context.hint(sampler.node.path, what)
