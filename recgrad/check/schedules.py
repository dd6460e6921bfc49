"""Learning-rate schedules: what the rest of the config must have for them."""

from __future__ import annotations

from recgrad.check.rule import CHECKS, Context


@CHECKS.register("schedules")
def check_evaluated(context: Context) -> None:
    """A schedule that follows a metric has evaluations to follow."""
    for component in context.of_kind("schedule"):
        schedule = context.built.get(component.node.path)
        if schedule is not None and schedule.metric is not None and not context.config.eval_input_path:
            context.problem(component.node.path, "is driven by evaluation; set eval_input_path")


@CHECKS.register("warm-up within the run")
def check_warmup(context: Context) -> None:
    """A warm-up that outlasts training never reaches the rate."""
    train = context.config.train_config
    for component in context.of_kind("schedule"):
        node, message = component.node, component.node.message
        if "warmup_size" not in message.DESCRIPTOR.fields_by_name:
            continue
        length = train.num_epochs if getattr(message, "by_epoch", False) else train.num_steps
        if length and message.warmup_size >= length:
            unit = "epochs" if getattr(message, "by_epoch", False) else "steps"
            what = f"{message.warmup_size} is not less than the {length} {unit} of training"
            context.hint(node.at("warmup_size"), f"{what}, so the full rate is never reached")
