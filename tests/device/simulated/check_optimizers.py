"""Optimizers and averages on a device do what they do on the CPU, and take state from one to the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from recgrad.optim.averaging import EMA, evaluation_weights
from recgrad.optim.dense import DENSE_OPTIMIZERS
from recgrad.optim.optimizer_state import load_optimizer
from recgrad.optim.part import averages_weights
from recgrad.optim.precision import unscale_

CPU = torch.device("cpu")
STEPS = 4
CUSTOM = {"class_path": "pytorch_optimizer.AdaBelief", "params": {"lr": 0.03}}
NAMES = sorted(DENSE_OPTIMIZERS)


def make(name: str, device: torch.device, **changes: Any) -> tuple[list[Parameter], Optimizer]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(5, 4), (3, 6)] if name == "muon_optimizer" else [(5, 4), (3, 3), (7,)]
    parameters = [Parameter(torch.randn(shape, generator=generator).to(device)) for shape in shapes]
    options = CUSTOM if name == "custom_optimizer" else {"lr": 0.05, **changes}
    optimizer = DENSE_OPTIMIZERS[name](parameters, **options)
    if averages_weights(optimizer):
        optimizer.train()  # type: ignore[attr-defined]
    return parameters, optimizer


def step(parameters: list[Parameter], optimizer: Optimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(10 + number)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)
    optimizer.step()


def on_host(parameters: list[Parameter]) -> list[Tensor]:
    return [parameter.detach().to("cpu", copy=True) for parameter in parameters]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_steps_as_on_the_cpu(name: str, decay: float, accelerator: torch.device) -> None:
    found = []
    for device in (CPU, accelerator):
        parameters, optimizer = make(name, device, **({"weight_decay": decay} if decay else {}))
        for number in range(STEPS):
            step(parameters, optimizer, number)
        found.append(on_host(parameters))
        if averages_weights(optimizer):
            with evaluation_weights(optimizer):
                found[-1] += on_host(parameters)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_state_goes_from_the_cpu_to_the_device_and_back(name: str, accelerator: torch.device) -> None:
    parameters, optimizer = make(name, CPU)
    for number in range(STEPS):
        step(parameters, optimizer, number)
    expected = on_host(parameters)
    parameters, optimizer = make(name, CPU)
    for number, device in enumerate((accelerator, CPU, accelerator, CPU)):
        saved, weights = _owned(optimizer.state_dict()), on_host(parameters)
        parameters, optimizer = make(name, device)
        with torch.no_grad():
            for parameter, weight in zip(parameters, weights, strict=True):
                parameter.copy_(weight)
        load_optimizer(optimizer, saved)
        step(parameters, optimizer, number)
    torch.testing.assert_close(on_host(parameters), expected, rtol=0, atol=0)


def _owned(value: Any) -> Any:
    """As a checkpoint takes it: every tensor on the host."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _owned(item) for key, item in value.items()}
    return type(value)(map(_owned, value)) if isinstance(value, (list, tuple)) else value


def test_an_average_is_where_its_weights_are(accelerator: torch.device) -> None:
    weights, other = torch.arange(3.0, device=accelerator), torch.zeros(3, device=accelerator)
    ema = EMA([("w", weights)], decay=0.5)
    for _ in range(2):
        ema.update()
        weights += 2
    assert ema.averages["w"].device == accelerator
    assert ema.averages["w"].tolist() == [1, 2, 3]
    with ema.applied():
        assert weights.tolist() == [1, 2, 3]
    assert weights.tolist() == [4, 5, 6]
    copy = EMA([("w", other)], decay=0.5)
    copy.load_state_dict(_owned(ema.state_dict()))
    assert copy.averages["w"].device == accelerator
    assert copy.averages["w"].tolist() == [1, 2, 3]


def test_unscaling_sees_what_is_not_finite_on_either_side(accelerator: torch.device) -> None:
    gradients = [torch.ones(2, device=accelerator), torch.ones(2)]
    assert unscale_(gradients, 0.5)
    assert [gradient.tolist() for gradient in gradients] == [[0.5, 0.5], [0.5, 0.5]]
    for broken in range(2):
        gradients[broken][0] = torch.inf
        assert not unscale_(gradients, 0.5)
        gradients[broken][0] = 1
