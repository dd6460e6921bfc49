"""The update step that a TrainConfig message describes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Message
from torch import Tensor
from torch.optim import Optimizer

from recgrad.config.messages import to_kwargs
from recgrad.errors import ConfigError, Problem
from recgrad.optim.averaging import EMA
from recgrad.optim.clipping import GradientClipping, Reduce
from recgrad.optim.groups import build_dense_optimizers
from recgrad.optim.precision import LossScaler, set_tf32
from recgrad.optim.roles import Role
from recgrad.optim.sparse_half import build_sparse_parts
from recgrad.optim.updater import Updater


def build_updater(
    config: Message,
    named_parameters: Iterable[tuple[str, Tensor]],
    sparse: Optimizer | None = None,
    *,
    roles: Mapping[str, Role] | None = None,
    device_type: str = "cpu",
    reduce: Reduce | None = None,
    synchronize: Callable[[Sequence[Any]], None] | None = None,
    track_grad_norm: bool = False,
    keep_gradients: bool = False,
    where: str = "train_config",
) -> Updater:
    """The update step that a TrainConfig message describes; sets the TF32 switches of torch as well.

    Args:
        config: the TrainConfig.
        named_parameters: the model's dense parameters.
        sparse: the optimizer of the embedding tables (a `SparseHalf`), when there are some.
        roles: what the parameters are, from `parameter_roles(model)`.
        where: the message's path in the config, for errors.

    The rest is as `Updater` has it.
    """
    train: Any = config
    named = list(named_parameters)
    set_tf32(cudnn=train.cudnn_allow_tf32, matmul=train.cuda_matmul_allow_tf32)
    dense = build_dense_optimizers(
        named, train.dense_optimizer, roles=roles, where=f"{where}.dense_optimizer"
    )
    with problems_of(where):
        return Updater(
            dense,
            ()
            if sparse is None
            else build_sparse_parts(sparse, train.sparse_optimizer, f"{where}.sparse_optimizer"),
            accumulation_steps=train.gradient_accumulation_steps or 1,
            mixed_precision=train.mixed_precision or None,
            grad_scaler=build_scaler(train, where),
            grad_clipping=build_clipping(train, where),
            ema=build_ema(train, named, where),
            device_type=device_type,
            reduce=reduce,
            synchronize=synchronize,
            track_grad_norm=track_grad_norm,
            keep_gradients=keep_gradients,
        )


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
