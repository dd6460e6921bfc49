"""Optimizers without the compiler's marks are the same optimizers."""

import copy
import subprocess
import sys

import pytest
import torch

from recgrad.optim.eager import eager

KINDS = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"lr": 0.1},
    "AdamW": {"lr": 0.1},
    "Adagrad": {"lr": 0.1},
    "RMSprop": {"lr": 0.1},
    "Adadelta": {"lr": 0.1},
}


def trained(make, options, steps=3):
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    optimizer = make(model.parameters(), **options)
    for _ in range(steps):
        model(torch.ones(2, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize("name", KINDS)
def test_updates_are_bit_for_bit_those_of_the_class(name):
    kind = getattr(torch.optim, name)
    model, optimizer = trained(eager(kind), KINDS[name])
    theirs, reference = trained(kind, KINDS[name])
    assert isinstance(optimizer, kind)
    assert type(optimizer).__name__ == name
    for own, other in zip(model.parameters(), theirs.parameters()):
        assert torch.equal(own, other)
        assert own.grad is None
    assert str(optimizer.state_dict()) == str(reference.state_dict())


@pytest.mark.parametrize("name", KINDS)
def test_hooks_closures_and_state_dicts_work(name):
    model, optimizer = trained(eager(getattr(torch.optim, name)), KINDS[name])
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    twin = copy.deepcopy(optimizer)
    twin.load_state_dict(optimizer.state_dict())

    def closure():
        loss = model(torch.ones(2, 5)).square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    assert calls == ["before", "after"]
    assert str(twin.state_dict()["param_groups"]) == str(optimizer.state_dict()["param_groups"])


DENSE = """
import sys, torch
from recgrad.optim.dense import DENSE_OPTIMIZERS
for name, make in DENSE_OPTIMIZERS.items():
    if name != "custom_optimizer":
        weight = torch.nn.Parameter(torch.ones(4, 4))
        optimizer = make([weight])
        weight.grad = torch.ones(4, 4)
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
        assert "torch._dynamo" not in sys.modules, name
"""

SPARSE = """
import sys
from recgrad.embedding.local.engine import LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import SPARSE_OPTIMIZERS
for name, make in SPARSE_OPTIMIZERS.items():
    engine = LocalEngine([TableSpec("t", 10, 4)], [LookupSpec("f", "f", "t")], keys=["f"])
    optimizer = make(engine)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    assert "torch._dynamo" not in sys.modules, name
"""


@pytest.mark.parametrize("code", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_no_optimizer_imports_the_compiler(code):
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
