"""Operations over many tensors: a torch without its private ones computes the same in a loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recgrad.optim import foreach

NAMES = [name for name, value in vars(foreach).items() if callable(value) and name.rstrip("_").islower()]
OPERATIONS = sorted({"add", "sub_", "mul", "norm"} | (set(NAMES) & {*dir(Tensor)}))


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, generator=generator).to(dtype) + 0.5 for shape in ((3,), (2, 4), ())]


ARGUMENTS: dict[str, list[tuple[list[Any], dict[str, Any]]]] = {
    "add": [([tensors(1)], {"alpha": -0.5}), ([0.25], {}), ([[1.0, 2.0, 3.0]], {})],
    "addcdiv": [([tensors(1), tensors(2), [0.1, 0.2, 0.3]], {}), ([tensors(1), tensors(2)], {"value": 2.0})],
    "addcmul": [([tensors(1), tensors(2)], {"value": 0.5})],
    "clamp_max": [([1.0], {})],
    "clamp_min": [([1.0], {})],
    "copy": [([tensors(1)], {})],
    "lerp": [([tensors(1), 0.3], {})],
    "mul": [([tensors(1)], {}), ([0.25], {}), ([[1.0, 2.0, 3.0]], {})],
    "norm": [([], {})],
    "reciprocal": [([], {})],
    "sign": [([], {})],
    "sqrt": [([], {})],
    "sub": [([tensors(1)], {})],
}


def test_every_operation_is_tried() -> None:
    assert {name.rstrip("_") for name in OPERATIONS} == set(ARGUMENTS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_loop_computes_what_torch_does(name: str) -> None:
    for others, settings in ARGUMENTS[name.rstrip("_")]:
        own, plain = tensors(0), tensors(0)
        found = getattr(torch, f"_foreach_{name}")(own, *others, **settings)
        looped = foreach.looped(name)(plain, *others, **settings)
        if name.endswith("_"):
            found, looped = own, plain
        for one, other in zip(found, looped, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("value", [1.0, float("inf"), float("nan")])
def test_the_loop_finds_what_is_not_finite(value: float) -> None:
    results = []
    for unscale in (foreach.unscale_, foreach.unscale_looped):
        gradients, found = tensors(0), torch.zeros(())
        gradients[1][0, 2] = value
        unscale(gradients, found, torch.full((), 0.5))
        results.append((float(found), gradients))
    assert results[0][0] == results[1][0] == float(value != 1.0)
    for one, other in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_a_torch_without_a_function_gets_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert foreach._find("mul_") is torch._foreach_mul_
    monkeypatch.delattr(torch, "_foreach_mul_")
    own = tensors(0)
    foreach._find("mul_")(own, 2.0)
    for one, other in zip(own, tensors(0), strict=True):
        assert torch.equal(one, 2 * other)
