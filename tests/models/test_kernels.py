"""Models by kernels, as large batches take them, against the same models by torch's operations in float64."""

from __future__ import annotations

import pytest
import torch
from google.protobuf import text_format

from recgrad.models import base
from recgrad.models.base import MODELS
from recgrad.nn import fm, mixing, relu_layers

NAMES = ["deepfm", "mmoe", "ple", "dbmtl", "wide_and_deep", "multi_tower", "dssm", "dlrm", "stem"]


@pytest.fixture(params=[True, False], ids=["own products", "torch's products"])
def every_size(request, monkeypatch):
    """Kernels whatever the size, with both kinds of products."""
    monkeypatch.setattr(relu_layers, "own_products", lambda: request.param)
    for module, name in ((relu_layers, "MIN_OUTPUTS"), (fm, "MIN_FIELDS"), (mixing, "MIN_NUMBERS")):
        monkeypatch.setattr(module, name, 1)


def gradients(model, batch):
    outputs = model(batch)
    generator = torch.Generator().manual_seed(0)
    terms = [(v * torch.rand(v.shape, generator=generator)).sum() for v in outputs.values()]
    torch.stack(terms).sum().backward()
    return [*outputs.values(), *(p.grad for p in model.parameters())]


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("name", [name for name in NAMES if name in MODELS])
def test_outputs_and_gradients_are_those_of_float64(name, build, batch_of, features):
    batches = [batch_of(features, 70, seed=1, labels=("click", "buy"), double=d) for d in (False, True)]
    ours = gradients(build(name, double=False), batches[0])
    exact = gradients(build(name, double=True), batches[1])
    for found, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("every_size")
def test_the_fm_takes_its_fields_from_the_deep_input_if_they_are_there(config_of, build, batch_of, features):
    batches = [batch_of(features, 70, seed=1, labels=("click",), double=d) for d in (False, True)]
    for names, span in ((["a", "b", "c"], (3, 15)), (["b", "c"], (7, 15)), (["a", "c"], None)):
        config = config_of("deepfm")
        config.feature_groups[1].feature_names[:] = names
        model = build(config, double=False)
        assert model.fm_span == span
        found, wanted = gradients(model, batches[0]), gradients(build(config), batches[1])
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("every_size")
def test_variational_dropout_keeps_the_inputs_of_fm_and_deep_apart(config_of, build, batch_of, features):
    config = config_of("deepfm")
    text_format.Merge("variational_dropout {}", config)
    torch.manual_seed(0)
    model = build(config, double=False)
    assert model.fm_span is not None
    outputs = model.eval()(batch_of(features, 70, seed=1, labels=("click",)))
    exact = build(config).eval()(batch_of(features, 70, seed=1, labels=("click",), double=True))
    torch.testing.assert_close(outputs["logits"].double(), exact["logits"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("own", [True, False])
def test_kernels_of_a_model_are_named_before_its_first_step(own, build, monkeypatch):
    monkeypatch.setattr(base, "own_products", lambda: own)
    by_id = {"number_tasks", "product_tasks", "row_tasks", "sum_tasks", "gate_tasks"}  # whichever is faster
    names = {wanted.function.__name__ for wanted in build("deepfm", double=False, engine=None).kernels(None)}
    assert {"lookup_tasks", "interact_tasks", *by_id} <= names
    assert "bias_relu_tasks" not in names
    names = {wanted.function.__name__ for wanted in build("mmoe", engine=None).kernels(None)}
    assert {"mix_tasks", *by_id} <= names
    assert ("bias_relu_tasks" in names) != own
