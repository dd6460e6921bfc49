"""How long training runs and when it saves."""

from __future__ import annotations

from recgrad.check.rule import CHECKS, Context


@CHECKS.register("training length")
def check_length(context: Context) -> None:
    """Exactly one of num_steps and num_epochs must be a length; 0 is none."""
    for node in context.of("TrainConfig"):
        train = node.message
        if train.num_steps and train.num_epochs:
            context.problem(node.path, "num_steps and num_epochs are both set; keep one")
        elif not train.num_steps and not train.num_epochs:
            context.problem(node.path, "neither num_steps nor num_epochs is set; set one to at least 1")
        if train.HasField("log_step_count_steps"):
            context.ranged(node, "log_step_count_steps", 1)
    for node in context.of("EvalConfig"):
        if node.message.HasField("log_step_count_steps"):
            context.ranged(node, "log_step_count_steps", 1)


@CHECKS.register("checkpoint interval")
def check_interval(context: Context) -> None:
    """At most one of save_checkpoints_steps and save_checkpoints_epochs may be an interval."""
    for node in context.of("TrainConfig"):
        train = node.message
        both = train.HasField("save_checkpoints_steps") and train.HasField("save_checkpoints_epochs")
        if both and train.save_checkpoints_steps and train.save_checkpoints_epochs:
            context.problem(
                node.path, "save_checkpoints_steps and save_checkpoints_epochs are both set; keep one"
            )
