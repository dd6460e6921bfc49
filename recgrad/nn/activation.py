"""Activations by the text a config gives: `nn.ReLU`, `nn.LeakyReLU(negative_slope=0.2)`, `Dice`, …"""

from __future__ import annotations

import ast
from typing import Any

import torch
from torch import Tensor, nn

from recgrad.errors import nearest
from recgrad.registry import import_class


class Dice(nn.Module):
    """Data-adaptive activation: p·x + (1 − p)·α·x with p = sigmoid(batch_norm(x)).

    α is learned for each channel and starts at 0; the norm has no scale and shift of its own, as in the
    paper. The last dimension is the channel; all others are batch. Zhou et al. 2018, Deep Interest
    Network, https://arxiv.org/abs/1706.06978

    Args:
        width: number of channels.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """The activation of x [..., width]."""
        gate = torch.sigmoid(self.norm(x.reshape(-1, x.shape[-1]))).reshape(x.shape)
        return x * torch.lerp(self.alpha, torch.ones_like(self.alpha), gate)


def build_activation(text: str, width: int) -> nn.Module | None:
    """The module that an activation text names, or None for the empty text (linear).

    Understood are `Dice`; classes of torch.nn as `nn.X`, `torch.nn.X` or `X`; and import
    paths of modules of one's own. Arguments are keyword arguments with literal values:
    `nn.Softplus(beta=2)`.

    Args:
        text: what the config says.
        width: channels of the last dimension, for activations that learn one weight each.
    """
    text = text.strip()
    if not text:
        return None
    name, _, arguments = text.partition("(")
    name = name.strip()
    kwargs = _arguments(text) if arguments else {}
    if name.lower() == "dice":
        if kwargs:
            raise ValueError(f"Dice takes no arguments, got '{text}'")
        return Dice(width)
    if name in ("nn.ReLU", "torch.nn.ReLU", "ReLU"):
        # What a linear or norm layer returns is not needed for its gradient, so ReLU may reuse the memory.
        kwargs.setdefault("inplace", True)
    return _activation_class(name)(**kwargs)


def _activation_class(name: str) -> type[nn.Module]:
    """The module class of a name; whatever else the name leads to is not called."""
    short = name.removeprefix("torch.").removeprefix("nn.")
    if "." in short:
        imported = import_class(name)
        if not issubclass(imported, nn.Module):
            raise ValueError(f"activation must name a subclass of torch.nn.Module, got '{name}'")
        return imported
    found = getattr(nn, short, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(
            f"activation must be a class of torch.nn or 'Dice', got '{name}'{nearest(short, dir(nn))}"
        )
    return found


def _arguments(text: str) -> dict[str, Any]:
    """The keyword arguments of a call such as `nn.Softplus(beta=2)`; literals only, nothing is run."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or isinstance(call.func, ast.Call) or call.args:
            raise ValueError
        if any(item.arg is None for item in call.keywords):
            raise ValueError
        return {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"activation must read like 'nn.LeakyReLU(negative_slope=0.2)', got '{text}'"
        ) from error
