"""The simulated accelerator is as strict as a GPU, and computes what the CPU computes."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import nn
from torch.nn import functional as F

MIXED = {
    "an elementwise operation": lambda x, y: x + y,
    "a matrix product": lambda x, y: x @ y.t(),
    "a layer": lambda x, y: F.linear(x, y),
    "cat": lambda x, y: torch.cat([x, y]),
    "an index": lambda x, y: x[y.argmax(1)],
    "index_select": lambda x, y: x.index_select(0, y.argmax(1)),
    "where": lambda x, y: torch.where(y > 0, x, x),
    "an in-place operation": lambda x, y: x.mul_(y),
    "an operation of lists": lambda x, y: torch._foreach_add_([x, x], [x, y]),
    "an output": lambda x, y: torch.add(y, y, out=x),
}


@pytest.mark.parametrize("name", MIXED)
def test_refuses_a_tensor_of_the_cpu_in(name: str, accelerator: torch.device) -> None:
    host = torch.randn(3, 3)
    MIXED[name](host.clone(), host.clone())
    MIXED[name](host.to(accelerator), host.to(accelerator))
    with pytest.raises(RuntimeError, match="same device"):
        MIXED[name](host.to(accelerator), host.clone())


def test_takes_scalars_of_the_cpu(accelerator: torch.device) -> None:
    x = torch.arange(3.0, device=accelerator)
    assert (x * torch.tensor(2.0) + 1).tolist() == [1, 3, 5]


def test_numpy_cannot_read_it(accelerator: torch.device) -> None:
    with pytest.raises(TypeError, match="to host memory first"):
        torch.ones(2, device=accelerator).numpy()


def test_code_of_the_cpu_that_follows_an_address_ends_the_process(accelerator: torch.device) -> None:
    import ctypes

    address = torch.ones(2, device=accelerator).data_ptr()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(address, 4)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) in (signal.SIGSEGV, signal.SIGBUS)


def test_views_and_outputs_share_memory(accelerator: torch.device) -> None:
    x = torch.zeros(4, 3, device=accelerator)
    x.t()[1] = 1
    x.view(-1)[0] = 5
    torch.add(x[3], 1, out=x[2])
    assert x.tolist() == [[5, 1, 0], [0, 1, 0], [1, 2, 1], [0, 1, 0]]
    grown = torch.empty(0, device=accelerator)
    torch.add(x, 1, out=grown)
    assert torch.equal(grown.cpu(), x.cpu() + 1)


def test_gradients_cross_to_the_host_and_back(accelerator: torch.device) -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1)) for _ in "ab"]
    layers[1].load_state_dict(layers[0].state_dict())
    layers[1].to(accelerator)
    x = torch.randn(7, 3)
    inputs = [x.clone().requires_grad_() for _ in layers]
    layers[0](inputs[0]).square().mean().backward()
    layers[1](inputs[1].to(accelerator)).square().mean().cpu().backward()
    assert torch.equal(inputs[0].grad, inputs[1].grad)
    for (name, one), (_, other) in zip(
        layers[0].state_dict().items(), layers[1].state_dict().items(), strict=True
    ):
        assert other.device == accelerator
        assert torch.equal(one, other.cpu()), name


def test_draws_from_a_generator_of_its_own(accelerator: torch.device) -> None:
    torch.manual_seed(1)
    host = torch.get_rng_state()
    first = torch.rand(4, device=accelerator), F.dropout(torch.ones(9, device=accelerator))
    assert torch.equal(torch.get_rng_state(), host)
    torch.manual_seed(1)
    again = torch.rand(4, device=accelerator), F.dropout(torch.ones(9, device=accelerator))
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(first, again, strict=True))
    assert not torch.equal(torch.rand(4, device=accelerator).cpu(), first[0].cpu())
