"""Putting saved state back into optimizers and schedules, and refusing what does not fit."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from recgrad.errors import CheckpointError
from recgrad.optim.part import OptimizerPart

# What running optimizers keep in their parameter groups that is state and not a setting.
_RUNNING = frozenset({"k", "train_mode", "weight_sum", "lr_max", "scheduled_lr", "step"})


def describe_part(part: OptimizerPart) -> dict[str, Any]:
    """What must be the same for a part's state to fit: the optimizer and its parameters."""
    return {"optimizer": type(part.optimizer).__name__, "names": [list(names) for names in part.names]}


def check_parts(dense: Sequence[OptimizerPart], state: Mapping[str, Any]) -> None:
    """Raises unless the state was taken from the same parts over the same parameters."""
    saved = state["parts"]
    if {part.name for part in dense} != set(saved):
        names = ", ".join(part.name for part in dense)
        raise CheckpointError(f"updater: the dense parts are {names}; the checkpoint has {', '.join(saved)}")
    for part in dense:
        own, theirs = describe_part(part), saved[part.name]
        if own["optimizer"] != theirs["optimizer"]:
            raise CheckpointError(
                f"updater: part '{part.name}' is trained by {own['optimizer']}, the checkpoint's by "
                f"{theirs['optimizer']}; start from its weights alone (fine_tune_checkpoint) to change it"
            )
        if own["names"] != theirs["names"]:
            odd = {n for g in own["names"] for n in g} ^ {n for g in theirs["names"] for n in g}
            raise CheckpointError(
                f"updater: part '{part.name}' has other parameters than the checkpoint's "
                f"(differ: {', '.join(sorted(odd)) or 'their groups or order'})"
            )


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Loads a state into an optimizer and leaves its settings as they were.

    torch's `load_state_dict` would take rates, betas and decays from the checkpoint, and drop
    what the user has changed in the config since.
    """
    settings = [
        {key: value for key, value in group.items() if key != "params" and key not in _RUNNING}
        for group in optimizer.param_groups
    ]
    # A copy: torch keeps the very tensors it is given, and updates them in place from then on.
    optimizer.load_state_dict(copy.deepcopy(dict(state)))
    for group, own in zip(optimizer.param_groups, settings):
        group.update(own)
        for parameter in group["params"]:
            _check_state(parameter, optimizer.state.get(parameter, {}), fused=bool(group.get("fused")))


def _check_state(parameter: Tensor, state: Any, *, fused: bool) -> None:
    """Raise a ValueError for a state that is not this parameter's.

    torch's fused kernels do not look at sizes: they would read and write beyond the end of a shorter one.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"the state of a parameter is a {type(state).__name__}, not a map")
    for name, value in state.items():
        if not isinstance(value, Tensor):
            continue
        fits = value.numel() == 1 if name == "step" else value.shape == parameter.shape or not fused
        if not fits:
            raise ValueError(
                f"the optimizer's '{name}' is {list(value.shape)} for a parameter of {list(parameter.shape)}"
            )


def load_schedule(part: OptimizerPart, state: dict[str, Any], kind: str | None) -> None:
    """Loads the state of a part's schedule; one that the config has changed since begins from its start.

    Args:
        part: whose schedule it is.
        state: what its `state_dict` gave.
        kind: the class that gave it, or None of a checkpoint that does not say; states then fit when
            their names do.
    """
    schedule = part.schedule
    if kind != type(schedule).__qualname__ and (kind or state.keys() != schedule.state_dict().keys()):
        return
    try:
        schedule.load_state_dict(state)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"updater: the schedule {type(schedule).__name__} of part '{part.name}' does not take back its "
            f"state ({error!r}); start from the weights alone (fine_tune_checkpoint) to change it"
        ) from error
