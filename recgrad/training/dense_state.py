"""The dense half of a model as checkpoints hold it: all but what lies in its embedding engine."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

_ENGINE = "engine."


def is_dense(name: str) -> bool:
    """Whether a parameter or buffer of a model, by its name, belongs to the dense half."""
    return not name.startswith(_ENGINE)


def dense_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Weights and buffers of the dense half, by name."""
    return {name: value for name, value in model.state_dict().items() if is_dense(name)}


def dense_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers of the dense half in training: BatchNorm's statistics may be others in evaluation.

    What a model derives from its settings, such as indices, is not state.
    """
    state = dense_state(model)
    return {name: value for name, value in model.named_buffers() if name in state}


def load_dense_state(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Put the dense half back; raises a ValueError that names what does not fit."""
    own = dense_state(model)
    if odd := sorted(set(own) ^ set(state)):
        raise ValueError(f"other weights than the model's (differ: {', '.join(odd)})")
    with torch.no_grad():
        for name, value in own.items():
            if value.shape != state[name].shape:
                raise ValueError(f"'{name}' is {list(state[name].shape)}, the model's is {list(value.shape)}")
            value.copy_(state[name])
