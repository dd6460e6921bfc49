"""Optimizer state of a checkpoint for the parameters that were restored from it.

A fine-tuning run counts its own steps and follows its own schedule; what it takes over is the
state that belongs to parameters, such as Adam's moments and their count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from recgrad.optim.optimizer_state import describe_part, load_optimizer
from recgrad.optim.part import OptimizerPart, averages_weights
from recgrad.optim.updater import Updater
from recgrad.training.checkpoint.report import Anew

# Counters that some optimizers keep for a whole parameter group.
_SHARED_COUNTERS = frozenset({"step", "k"})


@dataclass(frozen=True)
class _Saved:
    """The state of one parameter in the checkpoint."""

    optimizer: str
    state: Mapping[str, Any]
    shares_counter: bool


def restore_dense_optimizers(
    updater: Updater, state: Mapping[str, Any], sources: Mapping[str, str]
) -> tuple[list[str], list[Anew]]:
    """Give restored parameters their optimizer state back.

    Args:
        updater: whose optimizers get the state.
        state: what another updater's `state_dict` gave.
        sources: name in the checkpoint by name here, of the parameters that were restored.

    Returns:
        the names whose state was taken, and those that begin anew.
    """
    restored: list[str] = []
    anew: list[Anew] = []
    saved = dict(_saved_states(state))
    for part in updater.dense:
        if averages_weights(part.optimizer):
            reason = f"{type(part.optimizer).__name__} starts its average at the restored weights"
            anew += [Anew(name, reason) for names in part.names for name in names]
        elif _fits_whole(part, state, sources):
            load_optimizer(part.optimizer, state["dense"][part.name])
            restored += [name for names in part.names for name in names]
        else:
            _restore_part(part, saved, sources, restored, anew)
    return restored, anew


def restart_average(updater: Updater) -> None:
    """Let a moving average of the weights begin at the weights that are in the model now."""
    if updater.ema is None:
        return
    with torch.no_grad():
        for name, parameter in updater.ema.parameters.items():
            updater.ema.averages[name].copy_(parameter)


def _fits_whole(part: OptimizerPart, state: Mapping[str, Any], sources: Mapping[str, str]) -> bool:
    names = [name for group in part.names for name in group]
    same = state["parts"].get(part.name) == describe_part(part)
    return same and all(sources.get(name) == name for name in names)


def _restore_part(
    part: OptimizerPart,
    saved: Mapping[str, _Saved],
    sources: Mapping[str, str],
    restored: list[str],
    anew: list[Anew],
) -> None:
    kind = type(part.optimizer).__name__
    taken: dict[int, Mapping[str, Any]] = {}
    for position, name in enumerate(name for names in part.names for name in names):
        own = saved.get(sources.get(name, ""))
        if name not in sources:
            anew.append(Anew(name, "its weight was not restored"))
        elif own is None:
            anew.append(Anew(name, "the checkpoint has no state for it"))
        elif own.optimizer != kind:
            anew.append(Anew(name, f"trained by {own.optimizer} in the checkpoint, by {kind} here"))
        elif own.shares_counter:
            anew.append(Anew(name, f"{kind} counts steps for all its parameters, not all were restored"))
        else:
            taken[position] = own.state
            restored.append(name)
    groups = part.optimizer.state_dict()["param_groups"]
    load_optimizer(part.optimizer, {"state": taken, "param_groups": groups})


def _saved_states(state: Mapping[str, Any]) -> Iterator[tuple[str, _Saved]]:
    for part, description in state["parts"].items():
        optimizer = state["dense"][part]
        for names, group in zip(description["names"], optimizer["param_groups"]):
            shares = not _SHARED_COUNTERS.isdisjoint(group)
            for name, index in zip(names, group["params"]):
                if index in optimizer["state"]:
                    yield name, _Saved(description["optimizer"], optimizer["state"][index], shares)
