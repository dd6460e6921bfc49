"""Hints on configs that were written for TorchEasyRec and train otherwise here; docs/moving.md lists why."""

from __future__ import annotations

from recgrad.check.rule import CHECKS, Context

_BY_UPDATES = ("num_steps", "save_checkpoints_steps")


@CHECKS.register("hint: steps are updates")
def hint_steps(context: Context) -> None:
    """Steps that count updates, where several batches make one."""
    for node in context.of("TrainConfig"):
        batches = node.message.gradient_accumulation_steps
        given = [field for field in _BY_UPDATES if node.message.HasField(field)]
        counted = [field for field in given if getattr(node.message, field)]
        if batches > 1 and _scheduled_by_steps(context):
            counted.append("schedules")
        if batches < 2 or not counted:
            continue
        context.hint(
            node.at("gradient_accumulation_steps"),
            f"a step is an update of {batches} batches, also in {_listed(counted)}; "
            f"divide numbers that were meant as batches by {batches}",
        )


@CHECKS.register("hint: dense embeddings of positions")
def hint_positions(context: Context) -> None:
    """Numbers of a sequence that are embedded position by position."""
    for feature in context.features:
        message = feature.node.message
        if not feature.sequence or "dense_emb" not in message.DESCRIPTOR.oneofs_by_name:
            continue
        kind = message.WhichOneof("dense_emb")
        if kind is not None:
            what = "embeds the number of each position; TorchEasyRec ignores it in sequences"
            context.hint(feature.node.at(kind), what)


def _scheduled_by_steps(context: Context) -> bool:
    """Whether a schedule moves a rate by the count of updates."""
    for component in context.of_kind("schedule"):
        schedule = context.built.get(component.node.path)
        if schedule is not None and schedule.moves and not schedule.by_epoch:
            return True
    return False


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
