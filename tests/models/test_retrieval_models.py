"""DAT, MIND and TDM against their formulas: float64 numpy, one row at a time, from the groups' inputs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from recgrad.data.batch import Comparison
from recgrad.nn.capsule import B2ICapsule
from recgrad.training.task import Task


def array(tensor):
    return tensor.detach().numpy()


def linear(module, x):
    y = array(module.weight) @ x
    return y if module.bias is None else y + array(module.bias)


def mlp(module, x):
    for layer in module:
        x = linear(layer, x) if isinstance(layer, torch.nn.Linear) else np.maximum(x, 0)
    return x


def unit(x):
    return x / np.linalg.norm(x)


def inputs_of(model, batch):
    return model.groups(model.groups.gather(batch, model.engine))


def history(inputs, group, row):
    given = inputs.sequences[group]
    ends = given.lengths.cumsum(0).tolist()
    return array(given.sequence)[ends[row] - int(given.lengths[row]) : ends[row]]


# --- DAT ---


def dat_vectors(model, batch):
    inputs = inputs_of(model, batch)
    rows = []
    for row in range(batch.size):
        x = {group: array(value)[row] for group, value in inputs.rows.items()}
        user, item = np.append(x["user"], x["user_augment"]), np.append(x["item"], x["item_augment"])
        u = unit(linear(model.user_tower[1], mlp(model.user_tower[0], user)))
        v = unit(linear(model.item_tower[1], mlp(model.item_tower[0], item)))
        rows.append((u, v, unit(x["user_augment"]), unit(x["item_augment"])))
    return rows


def test_dat_is_two_towers_that_see_augmented_vectors(build, batch):
    model = build("dat")
    outputs = model(batch)
    rows = dat_vectors(model, batch)
    for i, (u, *_) in enumerate(rows):
        order = [i, *(k for k in range(6) if k != i)]
        expected = [u @ rows[k][1] / 0.5 for k in order]
        np.testing.assert_allclose(array(outputs["logits"])[i], expected, rtol=1e-9)
    task = Task(model)
    losses = task.losses(task(batch), batch)
    users = 0.2 * sum(((a - v) ** 2).sum() for _, v, a, _ in rows)
    items = 0.3 * sum(((a - u) ** 2).sum() for u, _, _, a in rows)
    assert losses["amm_loss_u"].item() == pytest.approx(users, rel=1e-6)
    assert losses["amm_loss_i"].item() == pytest.approx(items, rel=1e-6)
    parts = losses["softmax_cross_entropy"] + losses["amm_loss_u"] + losses["amm_loss_i"]
    assert losses["total"].item() == pytest.approx(parts.item())
    assert set(model.eval()(batch)) == {"logits"}


def test_dat_weighs_the_distances_of_rows_with_weights(build, batch):
    model = build("dat")
    task = Task(model, sample_weight_fields=["w"])
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0, 3.0, 1.0])
    weighted = replace(batch, sample_weights={"w": weights})
    losses = task.losses(task(weighted), weighted)
    rows = dat_vectors(model, batch)
    distances = [((a - v) ** 2).sum() for _, v, a, _ in rows]
    expected = 0.2 * np.average(distances, weights=weights)
    assert losses["amm_loss_u"].item() == pytest.approx(expected, rel=1e-6)


def test_augmented_vectors_imitate_and_are_not_imitated(build, batch):
    """The vectors of the other tower are constants of the distances."""
    model = build("dat")
    model(batch)["amm_loss_u"].sum().backward()
    assert all(parameter.grad is None for parameter in model.item_tower.parameters())
    assert model.engine.tables["a"].grad.any()


def test_dat_with_negatives_compares_them_by_the_item_tower(build, batch, batch_of, features, config_of):
    config = config_of("dat")
    config.dat.in_batch_negative = False
    model = build(config)
    negatives = batch_of([spec for spec in features if spec.name in "bc"], 4, seed=8, double=True)
    logits = model(replace(batch, negatives=negatives, comparison=Comparison(torch.zeros(0, 2).long())))[
        "logits"
    ]
    users, items = model.eval().embed(batch, "user"), model.embed(negatives, "item")
    torch.testing.assert_close(logits[:, 1:], users @ items.t() / 0.5)
    torch.testing.assert_close(logits[:, 0], (users * model.embed(batch, "item")).sum(1) / 0.5)


def test_augmented_vectors_are_as_wide_as_the_others(build, config_of):
    config = config_of("dat")
    config.dat.output_dim = 3
    with pytest.raises(Exception, match=r"user_tower\.augment_input must be as wide as the vectors, 3"):
        build(config)


# --- MIND ---


def routed(module, positions):
    """The interests of one row, by the formulas of the paper's routing."""
    positions = positions[: module.max_seq_len]
    length = len(positions)
    count = max(1, min(math.ceil(math.log2(length)) if length > 1 else 1, module.max_k))
    if module.const_caps_num:
        count = module.max_k
    u = positions @ array(module.bilinear)
    r = array(module.noise)[:length, :count].copy()
    for turn in range(module.num_iters):
        e = np.exp(module.scale * (r - r.max(1, keepdims=True)))
        w = e / e.sum(1, keepdims=True)
        z = w.T @ u
        if turn < module.num_iters - 1:
            r = w + (u / np.linalg.norm(u, axis=1, keepdims=True)) @ z.T
    norms = np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-7)
    return (norms**2 / (1 + norms**2)) ** module.squash_pow * z / norms


@pytest.mark.parametrize(
    "settings",
    [{}, {"const_caps_num": True}, {"num_iters": 1}, {"squash_pow": 0.5}, {"routing_logits_scale": 3.0}],
)
def test_capsules_are_routed(settings):
    torch.manual_seed(1)
    module = B2ICapsule(5, max_k=4, max_seq_len=6, high_dim=3, **settings).double()
    lengths = torch.tensor([0, 1, 2, 3, 5, 6, 9])
    sequence = torch.randn(int(lengths.sum()), 5, dtype=torch.float64)
    found, valid = module(sequence, lengths)
    ends = lengths.cumsum(0).tolist()
    for row, length in enumerate(lengths.tolist()):
        expected = routed(module, array(sequence)[ends[row] - length : ends[row]])
        assert valid[row].tolist() == [k < len(expected) for k in range(4)]
        np.testing.assert_allclose(array(found)[row, : len(expected)], expected, rtol=1e-9, atol=1e-12)
        assert not found[row, len(expected) :].any()


def test_gradients_of_capsules_are_finite_also_for_empty_histories():
    module = B2ICapsule(5, max_k=3, max_seq_len=4, high_dim=3)
    sequence = torch.zeros(2, 5, requires_grad=True)
    found, _ = module(sequence, torch.tensor([0, 2]))
    found.sum().backward()
    assert sequence.grad.isfinite().all()
    assert module.bilinear.grad.isfinite().all()


def test_mind_is_its_formula(build, batch):
    model = build("mind")
    inputs = inputs_of(model, batch)
    logits = array(model(batch)["logits"])
    items = [
        unit(linear(model.item_tower[1], mlp(model.item_tower[0], array(inputs["item"])[row])))
        for row in range(6)
    ]
    vectors = array(model.eval().embed(batch, "user"))
    for row in range(6):
        positions = history(inputs, "history", row)
        low = np.array([linear(model.hist_seq_mlp[1], mlp(model.hist_seq_mlp[0], x)) for x in positions])
        user = linear(model.user_mlp[1], mlp(model.user_mlp[0], array(inputs["user"])[row]))
        capsules = routed(model.capsules, low.reshape(-1, 5))
        interests = []
        for z in capsules:
            interests.append(unit(linear(model.user_output, mlp(model.concat_mlp, np.append(user, z)))))
        np.testing.assert_allclose(vectors[row, : len(interests)], interests, rtol=1e-8)
        assert not vectors[row, len(interests) :].any()
        scores = np.array([3 * (z @ items[row]) for z in interests])
        weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        mixed = (weights[:, None] * np.array(interests)).sum(0)
        order = [row, *(k for k in range(6) if k != row)]
        np.testing.assert_allclose(logits[row], [mixed @ items[k] / 0.5 for k in order], rtol=1e-8)


def test_mind_without_an_mlp_of_the_history_and_with_one_layer(build, batch, config_of):
    config = config_of("mind")
    config.mind.user_tower.ClearField("hist_seq_mlp")
    config.mind.user_tower.user_mlp.hidden_units[:] = [5]
    model = build(config)
    assert isinstance(model.hist_seq_mlp, torch.nn.Identity)
    assert model(batch)["logits"].isfinite().all()


# --- TDM ---


def test_tdm_is_its_formula(build, batch):
    model = build("tdm")
    inputs = inputs_of(model, batch)
    logits = model(batch)["logits"]
    attention = model.attention
    for row in range(6):
        query = np.append(array(inputs.sequences["node"].query)[row], 0.0)
        positions = history(inputs, "node", row)
        windows = []
        for low, high in ((0, 1), (1, 3)):
            inside = positions[low:high]
            total = np.zeros(5)
            for s in inside:
                score = linear(attention.score, mlp(attention.mlp, np.concatenate([s, query * s, query])))[0]
                total += (score if score > 0 else score * attention.activation.weight.item()) * s
            windows.append(total / max(len(inside), 1))
        x = np.concatenate([*windows, query, array(inputs["user"])[row]])
        expected = linear(model.output, mlp(model.final, x))[0]
        assert logits[row].item() == pytest.approx(expected, rel=1e-9)


def test_tdm_takes_one_sequence_group(build, config_of):
    config = config_of("tdm")
    del config.feature_groups[0]
    with pytest.raises(Exception, match="tdm takes one SEQUENCE group, got 0"):
        build(config)
