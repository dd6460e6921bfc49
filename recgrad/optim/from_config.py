"""The pieces of the update step that a TrainConfig message describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from recgrad.config.messages import to_kwargs
from recgrad.errors import ConfigError, Problem
from recgrad.optim.averaging import EMA
from recgrad.optim.clipping import GradientClipping
from recgrad.optim.precision import LossScaler


def build_ema(train: Any, named_parameters: Iterable[tuple[str, Tensor]], where: str) -> EMA | None:
    """The average of the dense weights that a TrainConfig asks for."""
    if not train.dense_optimizer.HasField("ema"):
        return None
    trained = [(name, p) for name, p in named_parameters if p.requires_grad]
    with problems_of(f"{where}.dense_optimizer.ema"):
        return EMA(trained, **to_kwargs(train.dense_optimizer.ema))


def build_scaler(train: Any, where: str) -> LossScaler | None:
    """The loss scale that a TrainConfig asks for."""
    if not train.HasField("grad_scaler"):
        return None
    with problems_of(f"{where}.grad_scaler"):
        return LossScaler(**to_kwargs(train.grad_scaler))


def build_clipping(train: Any, where: str) -> GradientClipping | None:
    """The clipping that a TrainConfig asks for."""
    if not train.HasField("grad_clipping"):
        return None
    clipping = train.grad_clipping
    if clipping.clipping_type == "value" and clipping.HasField("norm_type"):
        raise ConfigError(
            [
                Problem(
                    f"{where}.grad_clipping.norm_type",
                    "means nothing with clipping_type 'value'; leave it out",
                )
            ]
        )
    with problems_of(f"{where}.grad_clipping"):
        return GradientClipping(**to_kwargs(clipping))


@contextmanager
def problems_of(where: str) -> Iterator[None]:
    """Turns what a constructor refuses into a problem of the config."""
    try:
        yield
    except ValueError as error:
        raise ConfigError([Problem(where, str(error))]) from error
