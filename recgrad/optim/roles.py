"""What a parameter is in its model: a hidden matrix, a bias, a norm's scale, an embedding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import torch
from torch import Tensor, nn

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


class Role(Enum):
    """The part a parameter plays, as weight decay, Muon, SOAP and LARS need to know it."""

    HIDDEN = "hidden matrix"
    FIRST = "first matrix"
    LAST = "last matrix"
    TENSOR = "other tensor"
    BIAS = "bias"
    NORM = "norm"
    EMBEDDING = "embedding"


#: What `exclude_bias_and_norm` takes out of the weight decay.
NOT_DECAYED = frozenset({Role.BIAS, Role.NORM, Role.EMBEDDING})
#: What LARS leaves without a trust ratio.
NOT_ADAPTED = frozenset({Role.BIAS, Role.NORM})


def parameter_roles(model: nn.Module) -> dict[str, Role]:
    """The roles of a model's parameters by name, from the modules that hold them.

    Parameters of norm layers are norms, those of embedding layers embeddings; the rest goes by
    shape and order, as `guess_roles` says.
    """
    certain: dict[str, Role] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, (*EMBEDDINGS, *NORMS)):
            role = Role.EMBEDDING if isinstance(module, EMBEDDINGS) else Role.NORM
            for name, _ in module.named_parameters(recurse=False):
                certain[f"{prefix}.{name}" if prefix else name] = role
    return guess_roles(model.named_parameters(), certain)


def guess_roles(
    named_parameters: Iterable[tuple[str, Tensor]], certain: Mapping[str, Role] | None = None
) -> dict[str, Role]:
    """Roles by shape and order, where `certain` does not give them.

    Scalars and vectors are biases (or norm scales: the two are treated alike). Of the
    matrices, the first in order is the first and the last the last; so is every matrix with
    one row, the head of another task or tower. Other matrices are hidden. Tensors of three and
    more dimensions are neither.
    """
    roles = dict(certain or {})
    matrices: list[tuple[str, Tensor]] = []
    for name, parameter in named_parameters:
        if name in roles:
            continue
        if parameter.ndim < 2:
            roles[name] = Role.BIAS
        elif parameter.ndim == 2:
            matrices.append((name, parameter))
        else:
            roles[name] = Role.TENSOR
    for i, (name, parameter) in enumerate(matrices):
        if i == len(matrices) - 1 or parameter.shape[0] == 1:
            roles[name] = Role.LAST
        else:
            roles[name] = Role.FIRST if i == 0 else Role.HIDDEN
    return roles


def batch_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The model's batch norms that keep running statistics."""
    found = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return [m for m in found if isinstance(m.running_mean, torch.Tensor)]
