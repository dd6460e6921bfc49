"""One operation over many tensors at a time.

torch has these, under names that it does not promise to keep: `torch._foreach_mul_` and others.
Each is looked for once; where a torch has it no more, a loop over the tensors does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Many = Callable[..., Sequence[Tensor]]


def _find(name: str) -> Many:
    """torch's own function of many tensors, or a loop over them."""
    found: Many | None = getattr(torch, f"_foreach_{name}", None)
    return looped(name) if found is None else found


def looped(name: str) -> Many:
    """The method of this name on one tensor after another; arguments that are lists go by tensor."""

    def many(tensors: Sequence[Tensor], *others: Any, **settings: Any) -> Sequence[Tensor]:
        results = []
        for at, tensor in enumerate(tensors):
            own = [other[at] if isinstance(other, (list, tuple)) else other for other in others]
            if name.startswith("addc") and len(own) == 3:  # the factor, by position
                results.append(getattr(tensor, name)(*own[:2], value=own[2], **settings))
            else:
                results.append(getattr(tensor, name)(*own, **settings))
        return results

    return many


add = _find("add")
add_ = _find("add_")
addcdiv_ = _find("addcdiv_")
addcmul_ = _find("addcmul_")
clamp_max_ = _find("clamp_max_")
clamp_min_ = _find("clamp_min_")
copy_ = _find("copy_")
lerp = _find("lerp")
lerp_ = _find("lerp_")
mul = _find("mul")
mul_ = _find("mul_")
norm = _find("norm")
reciprocal_ = _find("reciprocal_")
sign_ = _find("sign_")
sqrt = _find("sqrt")
sub_ = _find("sub_")


def unscale_looped(gradients: Sequence[Tensor], found: Tensor, factor: Tensor) -> None:
    """Multiply gradients by a factor, in place, and set `found` to 1 where one is not finite."""
    for gradient in gradients:
        found.logical_or_(~torch.isfinite(gradient).all())
        gradient.mul_(factor)


unscale_: Callable[[Sequence[Tensor], Tensor, Tensor], Any] = getattr(
    torch, "_amp_foreach_non_finite_check_and_unscale_", unscale_looped
)
