"""What holds of every registered model; a new one is covered by adding its config to conftest.py."""

from __future__ import annotations

import pytest
import torch
from google.protobuf import json_format, text_format

from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.data.features.spec import Kind
from recgrad.models.base import MODELS

NAMES = [name for name, model in MODELS.items() if not model.learns_codes]
"""Models of labels; those of codes are in test_semantic_ids.py."""


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def total(outputs):
    # A random weighting, so that no gradient cancels by symmetry.
    generator = torch.Generator().manual_seed(0)
    terms = [(v * torch.rand(v.shape, generator=generator)).sum() for v in outputs.values()]
    return torch.stack(terms).sum()


def test_every_model_has_a_config(config_of):
    for name in MODELS:
        assert config_of(name).WhichOneof("model") == name


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_the_logits_of_every_task(name, build, batch):
    model = build(name)
    outputs = model(batch)
    assert list(outputs)[: len(model.tasks)] == [task.logits for task in model.tasks]
    for task in model.tasks:
        compared = 6 if getattr(model, "in_batch_negative", False) else 1  # with other rows, or the own item
        shape = (6, compared) if task.retrieval else (6,)
        if model.lists:
            shape = (int(outputs["lengths"].sum()),)
            assert outputs["rows"].bincount(minlength=6).equal(outputs["lengths"])
        assert outputs[task.logits].shape == shape
        assert outputs[task.logits].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name, build, batch):
    model = build(name)
    total(model(batch)).backward()
    missing = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # A layer right before a softmax over experts, and dead ReLUs of six rows, may leave a zero; a whole
    # tensor of zeros means that the parameter is not used.
    assert missing == []


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_is_deterministic_and_changes_nothing(name, build, batch):
    model = build(name).eval()
    before = weights(model)
    first, second = model(batch), model(batch)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_the_weights_and_leaves_torchs_generator_alone(name, build):
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = weights(build(name, seed=5))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    again, other = weights(build(name, seed=5)), weights(build(name, seed=6))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", NAMES)
def test_a_config_survives_text_and_json(name, build, batch, config_of):
    config = config_of(name)
    expected = build(config)(batch)
    text = text_format.Parse(text_format.MessageToString(config), ModelConfig())
    json = json_format.Parse(json_format.MessageToJson(config), ModelConfig())
    for copy in (text, json):
        outputs = build(copy)(batch)
        assert all(torch.equal(outputs[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_local_engine_gives_what_the_plain_one_gives(name, build, batch_of, features, config_of):
    plain = build(name, double=False)
    local = build(name, engine=None, double=False)
    local.load_state_dict(plain.state_dict(), strict=False)
    for table, rows in plain.engine.tables.items():
        local.engine.import_table(table, range(len(rows)), rows.detach().numpy())
    batch = batch_of(features, 7, seed=4, labels=("click", "buy"))
    ours, theirs = local(batch), plain(batch)
    for key in theirs:
        torch.testing.assert_close(ours[key], theirs[key], rtol=5e-6, atol=5e-6)
    total(ours).backward()
    assert local.engine.pending_tables() == set(plain.engine.tables)


@pytest.mark.parametrize("name", NAMES)
def test_dense_parameters_are_all_but_the_tables(name, build):
    model = build(name)
    dense = dict(model.dense_named_parameters())
    assert dense
    assert not any(key.startswith("engine.") for key in dense)
    assert set(dense) == {key for key, _ in model.named_parameters() if not key.startswith("engine.")}
    shared = dict(model.shared_named_parameters())
    assert set(shared) <= set(dense)
    assert (set(shared) < set(dense)) == hasattr(model, "towers")


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_influence_each_other_in_evaluation(name, build, features, batch_of):
    """Without batch norm the logits of a row are the same alone as in a batch."""
    if MODELS[name].retrieval:
        pytest.skip("similarities are with the other rows' items")
    model = build(name).eval()
    pair = batch_of(features, 2, seed=9, labels=("click", "buy"), double=True)
    both = model(pair)
    for row in range(2):
        alone = model(one_row(pair, row))
        if model.lists:
            own = both["rows"] == row
            for task in model.tasks:
                torch.testing.assert_close(alone[task.logits], both[task.logits][own], rtol=1e-12, atol=1e-12)
            continue
        for key, value in alone.items():
            torch.testing.assert_close(value[0], both[key][row], rtol=1e-12, atol=1e-12)


def one_row(batch, row):
    """Row `row` of a batch of two rows, cut out by hand."""
    from recgrad.data.batch import Batch, JaggedDense, KeyedDense, KeyedJagged

    def cut(ids, spans):
        values, lengths, counts = [], [], []
        for key in ids.keys:
            one = ids[key]
            start, stop = spans(key)
            first = int(one.lengths[:start].sum())
            values.append(one.values[first : first + int(one.lengths[start:stop].sum())])
            lengths.append(one.lengths[start:stop])
            counts.append(stop - start)
        return KeyedJagged(ids.keys, torch.cat(values), torch.cat(lengths), tuple(counts))

    def positions(key):
        lengths = batch.sequence_lengths[key]
        return int(lengths[:row].sum()), int(lengths[: row + 1].sum())

    return Batch(
        1,
        KeyedDense(batch.dense.keys, batch.dense.dims, batch.dense.values[row : row + 1]),
        cut(batch.sparse, lambda key: (row, row + 1)),
        {key: lengths[row : row + 1] for key, lengths in batch.sequence_lengths.items()},
        cut(batch.sequence_sparse, positions),
        {
            key: JaggedDense(value.values[slice(*positions(key))], value.lengths[row : row + 1])
            for key, value in batch.sequence_dense.items()
        },
        {key: value[row : row + 1] for key, value in batch.labels.items()},
    )


def test_features_without_ids_need_no_engine(build, config_of, features, batch_of):
    config = text_format.Parse(
        'feature_groups { group_name: "all" feature_names: ["x", "y"] group_type: DEEP }'
        "dcn_v1 { cross {} deep { hidden_units: 4 } final { hidden_units: 4 } }"
        "losses { binary_cross_entropy {} }",
        ModelConfig(),
    )
    model = build(config)
    assert model.engine is None
    assert model.memory()["tables"] == 0
    numbers = [spec for spec in features if spec.kind is Kind.DENSE and not spec.sequence]
    assert model(batch_of(numbers, 3, double=True))["logits"].shape == (3,)


@pytest.mark.parametrize("name", NAMES)
def test_the_dense_half_is_a_function_of_the_named_tensors_of_its_parts(name, build, batch):
    """So that it can be compiled, or exported, apart from tables and batches."""
    model = build(name).eval()
    expected = model(batch)
    parts = model.groups.gather(batch, model.engine)
    tensors = {place: tensor.detach().clone() for place, tensor in parts.tensors().items()}
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    outputs = model.dense_half(parts.replaced(tensors))
    for key, value in outputs.items():
        torch.testing.assert_close(value, expected[key])
    other = {place: tensor * 2 if tensor.is_floating_point() else tensor for place, tensor in tensors.items()}
    assert any(
        not torch.equal(value, outputs[key]) for key, value in model.dense_half(parts.replaced(other)).items()
    )
