"""Losses: the classes, and by config name: `build_loss(config)` makes one, `LOSSES` lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.config.messages import chosen, to_kwargs
from recgrad.errors import ConfigError
from recgrad.lazy import lazy_names
from recgrad.losses._public import HOMES
from recgrad.losses.base import Loss
from recgrad.registry import Registry

if TYPE_CHECKING:
    from recgrad.config.proto.loss_pb2 import LossConfig
    from recgrad.losses._public import *  # noqa: F403

CUSTOM = "custom_loss"
"""The config name of a loss of the user's own, which no registry holds."""

LOSSES: Registry[type[Loss]] = Registry("loss", "recgrad.losses")

__all__ = [*HOMES, "LOSSES", "Loss", "build_loss"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, __all__, HOMES)


def loss_class(config: LossConfig) -> type[Loss]:
    """The class of the loss that a LossConfig names."""
    name = str(config.WhichOneof("loss") or config.WhichOneof("sid_loss"))
    if name != CUSTOM:
        return LOSSES[name]
    path = config.custom_loss.class_path
    cls = LOSSES.resolve(path)
    if not issubclass(cls, Loss):
        raise ConfigError(
            f"{CUSTOM}: {path} is not a subclass of recgrad.losses.Loss; "
            "subclass it and write rows(logits, labels, session)"
        )
    return cls


def build_loss(config: LossConfig) -> Loss:
    """The loss that a LossConfig names, with its options; `.config_name` is the name."""
    choice = chosen(config, "loss") or chosen(config, "sid_loss")
    if choice is None:
        raise ConfigError("losses: no loss is set; name one, such as binary_cross_entropy {}")
    name, message = choice
    cls, kwargs = loss_class(config), to_kwargs(message)
    try:
        settings = kwargs.get("params", {}) if name == CUSTOM else kwargs
        loss = cls(**settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"losses.{name}: {error}") from error
    loss.config_name = name
    loss.session_name = settings.get("session_name", loss.session_name)
    return loss
