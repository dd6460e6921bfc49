"""Mixed precision: the autocast, the loss scale, and TF32."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import torch
from torch import Tensor

from recgrad.limits import Count, Inside, Positive, Range, keep_limits
from recgrad.optim import foreach

PRECISIONS = {"BF16": torch.bfloat16, "FP16": torch.float16}
_LARGEST = float(torch.finfo(torch.float32).max)


def check_precision(mixed_precision: str | None) -> torch.dtype | None:
    """The type that BF16 or FP16 names; None for nothing or the empty string."""
    if not mixed_precision:
        return None
    if mixed_precision not in PRECISIONS:
        raise ValueError(f"mixed_precision must be one of {', '.join(PRECISIONS)}, got '{mixed_precision}'")
    return PRECISIONS[mixed_precision]


def autocast(dtype: torch.dtype | None, device_type: str) -> AbstractContextManager[Any]:
    """The context in which the model runs in `dtype`; nothing changes for None."""
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype=dtype)


def set_tf32(*, cudnn: bool, matmul: bool) -> None:
    """Lets GPUs round the inputs of convolutions (cudnn) and matrix products to TF32, or not."""
    torch.backends.cudnn.allow_tf32 = cudnn
    torch.backends.cuda.matmul.allow_tf32 = matmul


@keep_limits
class LossScaler:
    """A loss scale that grows while gradients stay finite and backs off when they do not.

    The rules are those of torch.amp.GradScaler: after growth_interval finite updates in a row
    the scale is multiplied by growth_factor (unless that leaves the range of float32), after
    an overflow by backoff_factor. That one judges each optimizer on its own and knows nothing
    of sparse gradients; here one verdict holds for the dense and the sparse half.
    """

    def __init__(
        self,
        *,
        init_scale: Positive = 65536.0,
        growth_factor: Annotated[float, Range("(1, ∞)")] = 2.0,
        backoff_factor: Inside = 0.5,
        growth_interval: Count = 2000,
    ) -> None:
        self.scale = float(init_scale)
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.finite_updates = 0

    def update(self, *, overflow: bool) -> None:
        """Moves the scale after an update, or after one that overflowed."""
        if overflow:
            self.scale *= self.backoff_factor
            self.finite_updates = 0
            return
        self.finite_updates += 1
        if self.finite_updates == self.growth_interval:
            self.finite_updates = 0
            if self.scale * self.growth_factor <= _LARGEST:
                self.scale *= self.growth_factor

    def state_dict(self) -> dict[str, Any]:
        """The scale and the count of finite updates since it last moved."""
        return {"scale": self.scale, "finite_updates": self.finite_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
        self.scale = state["scale"]
        self.finite_updates = state["finite_updates"]


def unscale_(gradients: Iterable[Tensor], factor: float) -> bool:
    """Multiplies gradients by a factor, in place; says whether all were finite."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        by_kind.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    finite = True
    for (device, _), alike in by_kind.items():
        found = torch.zeros((), device=device)
        scale = torch.full((), factor, device=device)
        foreach.unscale_(alike, found, scale)
        finite = finite and not bool(found.item())
    return finite
