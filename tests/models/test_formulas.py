"""Further models against their formulas: float64 numpy, one row at a time, from the groups' inputs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from google.protobuf import text_format

from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.models.base import MODELS
from recgrad.models.esmm import logit_of_product


def array(tensor):
    return tensor.detach().numpy()


def linear(module, x):
    y = array(module.weight) @ x
    return y if module.bias is None else y + array(module.bias)


def mlp(module, x):
    for layer in module:
        x = linear(layer, x) if isinstance(layer, torch.nn.Linear) else np.maximum(x, 0)
    return x


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def norm(module, x):
    y = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    return y * array(module.weight) + array(module.bias)


def expert(experts, number, x, act=relu):
    for layer in experts.layers:
        x = array(layer.weight)[number] @ x + array(layer.bias)[number]
        x = x if layer.activation is None else act(x)
    return x


def fields_of(m, row):
    """The dense field, then the embeddings."""
    return np.stack([mlp(m.dense_mlp, row["dense"]), *row["sparse"].reshape(3, -1)])


def pairs(n):
    return list(itertools.combinations(range(n), 2))


def final_mlp(m, row):
    gated = []
    for gate, seen in zip(m.gates, (row["gate1"], array(m.gates[1].own)[0]), strict=True):
        gated.append(row["deep"] * 2 * sigmoid(linear(gate.output, mlp(gate.mlp, seen))))
    a, b = mlp(m.mlp1, gated[0]), mlp(m.mlp2, gated[1])
    y = linear(m.fusion.linear1, a) + linear(m.fusion.linear2, b)
    for head in range(2):
        weight = array(m.fusion.weight)[head, 0]  # [part of b, part of a]
        y = y + b[head * 2 : head * 2 + 2] @ weight @ a[head * 3 : head * 3 + 3]
    return y


def final_net(m, row):
    def block(block, x, act):
        for layer in block.linears:
            a, b = np.split(linear(layer, x), 2)
            x = act(np.concatenate([a, a * b]))
        return x

    v = fields_of(m, row)
    gates = np.stack([linear(m.gate.linear, v[:, d]) for d in range(4)], axis=1)
    gated = np.concatenate([v, v * gates]).ravel()
    first = linear(m.output1, block(m.block1, gated, lambda x: x))
    second = linear(m.output2, block(m.block2, v.ravel(), relu))
    return (first + second) / 2


def gdcn(m, row):
    x0 = x = row["all"]
    for cross, gate in zip(m.cross.crosses, m.cross.gates, strict=True):
        x = x0 * linear(cross, x) * sigmoid(linear(gate, x)) + x
    return linear(m.output, np.concatenate([x, mlp(m.deep, x0)]))


def autoint(m, row):
    start = v = fields_of(m, row)
    for layer in m.attention:
        q, k, w, r = np.split(array(layer.project.weight), 4)
        new = []
        for field in v:
            heads = []
            for h in (slice(0, 3), slice(3, 6)):
                weights = softmax(np.array([(q[h] @ field) @ (k[h] @ other) for other in v]))
                heads.append(sum(a * (w[h] @ other) for a, other in zip(weights, v, strict=True)))
            new.append(relu(np.concatenate(heads) + r @ field))
        v = np.stack(new)
    x = np.concatenate([v.ravel(), mlp(m.deep, start.ravel())])
    return linear(m.output, x) + row["wide"].sum()


def fibinet(m, row):
    v = fields_of(m, row)
    importance = relu(linear(m.importance.expand, relu(linear(m.importance.squeeze, v.mean(1)))))
    u = v * importance[:, None]
    products = [
        (f[i] @ array(module.weight)[n]) * f[j]
        for f, module in ((v, m.pairs), (u, m.weighed_pairs))
        for n, (i, j) in enumerate(pairs(4))
    ]
    return linear(m.output, mlp(m.deep, np.concatenate(products))) + row["wide"].sum()


def pnn(m, row):
    v = fields_of(m, row)
    products = [v[i] @ array(m.products.weight)[n] @ v[j] for n, (i, j) in enumerate(pairs(4))]
    return linear(m.output, mlp(m.final, np.concatenate([v.ravel(), products])))


def onn(m, row):
    e = fields_of(m, row).reshape(4, 4, 1)
    products = [e[i, j] @ e[j, i] for i, j in pairs(4)]
    return linear(m.output, mlp(m.final, np.concatenate([*(e[i, i] for i in range(4)), products])))


def rank_mixer(m, row):
    gelu = np.vectorize(lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))))
    pieces = np.concatenate([row["all"], [0.0]]).reshape(4, 4)
    x = [expert(m.tokens, t, piece) for t, piece in enumerate(pieces)]
    for layer in m.layers:
        mixed = [np.concatenate([token.reshape(4, 2)[t] for token in x]) for t in range(4)]
        s = [norm(layer.mixed_norm, a + b) for a, b in zip(x, mixed, strict=True)]
        x = [
            norm(layer.norm, a + expert(layer.output, t, expert(layer.hidden, t, a, gelu)))
            for t, a in enumerate(s)
        ]
    return linear(m.output, mlp(m.final, np.mean(x, axis=0)))


def eulernet(m, row):
    z = array(m.modulus) * np.exp(1j * fields_of(m, row))
    for layer in m.layers:
        orders = array(layer.orders)
        shift = array(layer.log_shift) + 1j * array(layer.angle_shift)
        # |z|² + 1e-8 under the logarithm, as the formula for backpropagation has it.
        logs = 0.5 * np.log(np.abs(z) ** 2 + 1e-8) + 1j * np.angle(z)
        explicit = np.exp(np.einsum("jk,jd->kd", orders, logs) + shift)
        real, imaginary = (relu(linear(layer.linear, part.ravel())) for part in (z.real, z.imag))
        implicit = real + 1j * imaginary
        z = implicit.reshape(explicit.shape) + explicit
    return linear(m.output, z.real.ravel()) + linear(m.output, z.imag.ravel())


def esmm(m, row):
    ctr, cvr = (linear(t[1], mlp(t[0], row["all"])) for t in m.towers)
    p = sigmoid(ctr) * sigmoid(cvr)
    return np.concatenate([ctr, np.log(p / (1 - p))])


def aitm(m, row):
    first, second = m.towers
    z, own = mlp(first.mlp, row["all"]), mlp(second.mlp, row["all"])
    both = [relu(linear(second.passed, z)), own]
    projected = [np.split(linear(second.project, s), 3) for s in both]
    weights = softmax(np.array([k @ q / math.sqrt(5) for k, q, _ in projected]))
    mixed = sum(w * v for w, (_, _, v) in zip(weights, projected, strict=True))
    return np.concatenate([linear(first.output, z), linear(second.output, mixed)])


def stem(m, row):
    own = [[expert(e, i, row[t]) for i in range(2)] for e, t in zip(m.experts, ("ctr", "cvr"), strict=True)]
    every = [*own[0], *own[1], expert(m.shared, 0, row["shared"])]
    out = []
    for gate, tower, task in zip(m.gates, m.towers, ("ctr", "cvr"), strict=True):
        weights = softmax(linear(gate[1], mlp(gate[0], np.concatenate([row[task], row["shared"]]))))
        mixed = sum(w * e for w, e in zip(weights, every, strict=True))
        out.append(linear(tower[1], mlp(tower[0], mixed)))
    return np.concatenate(out)


def rocket_launching(m, row):
    shared = mlp(m.share, row["all"])
    return np.concatenate(
        [linear(m.light_output, mlp(m.light, shared)), linear(m.booster_output, mlp(m.booster, shared))]
    )


def dc2vr(m, row):
    x = mlp(m.bottom, row["all"])
    experts = [expert(m.mixture.experts, e, x) for e in range(2)]
    ctr, cvr = (
        sum(w * e for w, e in zip(softmax(expert(m.mixture.gates, t, x)), experts, strict=True))
        for t in range(2)
    )
    first, second = m.towers
    o, h = mlp(first.mlp, ctr), mlp(second.mlp, cvr)
    # The columns that Gram and Schmidt give are those of QR, up to signs.
    bases = []
    for module in (second.of_own, second.of_source):
        q, r = np.linalg.qr(array(module.weight))
        bases.append(q * np.sign(np.diag(r)))
    corrected = (h @ bases[0] - o @ bases[1]) @ bases[0].T + h
    return np.concatenate([linear(first.output, o), linear(second.output, corrected)])


REFERENCES = [
    rocket_launching, dc2vr,
    final_mlp, final_net, gdcn, autoint, fibinet, pnn, onn, rank_mixer, eulernet, esmm, aitm, stem,
]  # fmt: skip


def rows_of(model, batch):
    inputs = model.groups(model.groups.gather(batch, model.engine))
    return [{name: array(x)[n] for name, x in inputs.rows.items()} for n in range(batch.size)]


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda f: f.__name__)
def test_forward_is_the_formula(reference, build, batch):
    model = build(reference.__name__)
    outputs = model(batch)
    for number, row in enumerate(rows_of(model, batch)):
        ours = [outputs[task.logits][number].item() for task in model.tasks]
        np.testing.assert_allclose(ours, reference(model, row), rtol=1e-10, atol=1e-10)


def test_every_model_has_a_reference():
    """Here, in test_forward.py, test_retrieval_models.py, test_next_item.py, test_hstu_ranking.py or
    test_semantic_ids.py."""
    elsewhere = {
        "dbmtl", "dcn_v1", "dcn_v2", "deepfm", "dlrm", "dssm", "dssm_v2", "mask_net", "mmoe", "multi_tower",
        "multi_tower_din", "pepnet", "ple", "simple_multi_task", "wide_and_deep", "wukong", "xdeepfm",
        "dat", "mind", "tdm", "hstu", "sasrec", "dlrm_hstu", "ultra_hstu", "hstu_match", "sid_rqvae",
        "sid_rqkmeans",
    }  # fmt: skip
    assert set(MODELS) == elsewhere | {reference.__name__ for reference in REFERENCES}


# --- rocket launching ---


@pytest.mark.parametrize("function", ["COSINE", "EUCLID", "INNER_PRODUCT"])
def test_the_light_network_learns_from_the_booster(function, build, batch, config_of):
    config = changed(config_of, "rocket_launching", feature_distillation_function=function)
    model = build(config)
    outputs = model(batch)
    losses = model.own_losses(outputs)
    light, booster = (array(outputs[f"logits_{name}"]) for name in ("light", "booster"))
    assert losses["hint_l2_loss"].item() == pytest.approx(((light - booster) ** 2).mean(), rel=1e-5)
    # The first layer of light_mlp is as wide as the second of booster_mlp; the others differ.
    expected = []
    rows = rows_of(model, batch)
    for row in rows:
        shared = mlp(model.share, row["all"])
        h, g = mlp(list(model.light)[:2], shared), mlp(list(model.booster)[:4], shared)
        cosine = h @ g / (np.linalg.norm(h) * np.linalg.norm(g))
        expected.append(-0.1 * cosine / len(rows) if function == "COSINE" else ((h - g) ** 2).sum())
    total = sum(expected) if function == "COSINE" else math.sqrt(sum(expected))
    assert losses["feature_distillation"].item() == pytest.approx(total, rel=1e-5)
    sum(losses.values()).backward()
    taught = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert taught == {"light", "light_output"}


def test_evaluation_has_the_light_network_alone(build, batch):
    from recgrad.training.task import Task

    model = build("rocket_launching")
    task = Task(model)
    trained = task.losses(task(batch), batch)
    names = [f"binary_cross_entropy_{name}" for name in ("light", "booster")]
    assert list(trained) == [*names, "hint_l2_loss", "feature_distillation", "total"]
    task.update_train_metrics(task(batch), batch)
    assert sorted(task.train_metrics()) == ["auc_booster", "auc_light"]
    task.eval()
    outputs = task(batch)
    assert list(outputs) == ["logits_light"]
    assert list(task.losses(outputs, batch)) == [names[0], "total"]
    assert list(task.predictions(outputs)) == ["probs_light"]
    task.update_metrics(outputs, batch)
    assert list(task.compute_metrics()) == ["auc_light"]


def test_distillation_of_features_needs_layers_of_equal_width(build, config_of):
    config = config_of("rocket_launching")
    config.rocket_launching.light_mlp.hidden_units[:] = [3]
    with pytest.raises(Exception, match=r"needs a width that both MLPs have, got light_mlp \[3\]"):
        build(config)
    config.rocket_launching.feature_based_distillation = False
    assert build(config).pairs == []


# --- dc2vr ---


def test_bases_are_orthonormal_whatever_was_learned(build, batch):
    model = build("dc2vr")
    with torch.no_grad():
        for basis in (model.towers[1].of_own, model.towers[1].of_source):
            basis.weight.copy_(torch.randn(basis.weight.shape) * 5 + 3)
            q = basis()
            torch.testing.assert_close(q.T @ q, torch.eye(2, dtype=torch.float64))


def test_gradients_do_not_go_back_to_the_tower_before(build, batch):
    model = build("dc2vr")
    model(batch)["logits_cvr"].sum().backward()
    assert all(p.grad is None for p in model.towers[0].parameters())
    assert all(p.grad.any() for p in model.towers[1].parameters())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "low_rank_dim",
            None,
            "low_rank_dim and intervention_tower_names of 'cvr' go together; low_rank_dim",
        ),
        ("intervention_tower_names", None, "intervention_tower_names is missing"),
        ("intervention_tower_names", ["cvr"], "must be towers before it, got 'cvr'"),
        ("low_rank_dim", 5, "low_rank_dim must be at least 1 and below 5, got 5"),
    ],
)
def test_refusals_of_dc2vr(field, value, message, build, config_of):
    config = config_of("dc2vr")
    tower = config.dc2vr.task_towers[1]
    tower.ClearField(field)
    if isinstance(value, list):
        getattr(tower, field).extend(value)
    elif value:
        setattr(tower, field, value)
    with pytest.raises(Exception, match=message):
        build(config)


# --- the other settings ---


def changed(config_of, name, **settings):
    config = config_of(name)
    message = getattr(config, name)
    for field in settings:
        message.ClearField(field)
    text_format.Parse("".join(f"{k}: {v} " for k, v in settings.items()), message)
    return config


def test_final_net_adds_products_and_works_without_gates_and_second_block(build, batch, config_of):
    config = changed(config_of, "final_net", residual_type='"sum"', use_field_gate="false")
    config.final_net.ClearField("block2")
    model = build(config)
    logits = model(batch)["logits"]
    for number, row in enumerate(rows_of(model, batch)):
        x = fields_of(model, row).ravel()
        for layer in model.block1.linears:
            a, b = np.split(linear(layer, x), 2)
            x = a + a * b
        np.testing.assert_allclose(logits[number].item(), linear(model.output1, x)[0], rtol=1e-10)
    assert model.own_losses(model(batch)) == {}


def test_both_blocks_of_final_net_learn_from_their_mean(build, batch):
    model = build("final_net")
    outputs = model(batch)
    p = sigmoid(array(outputs["logits"]))
    expected = sum(
        -(p * np.log(sigmoid(s)) + (1 - p) * np.log(1 - sigmoid(s))).mean()
        for s in (array(outputs[name])[:, 0] for name in ("stream1", "stream2"))
    )
    (own,) = model.own_losses(outputs).values()
    assert own.item() == pytest.approx(expected, rel=1e-6)
    (gradient,) = torch.autograd.grad(own, outputs["logits"], allow_unused=True)
    assert gradient is None
    assert model.own_losses(model.eval()(batch)) == {}


def test_gdcn_stacked(build, batch, config_of):
    model = build(changed(config_of, "gdcn", structure='"stacked"'))
    logits = model(batch)["logits"]
    for number, row in enumerate(rows_of(model, batch)):
        x0 = x = row["all"]
        for cross, gate in zip(model.cross.crosses, model.cross.gates, strict=True):
            x = x0 * linear(cross, x) * sigmoid(linear(gate, x)) + x
        expected = linear(model.output, mlp(model.deep, x))[0]
        np.testing.assert_allclose(logits[number].item(), expected, rtol=1e-10)


def test_autoint_scaled_and_without_residual(build, batch, config_of):
    plain = build(changed(config_of, "autoint", use_residual="false", attention_layers=1))
    scaled = build(changed(config_of, "autoint", use_residual="false", attention_layers=1, use_scale="true"))
    scaled.load_state_dict(plain.state_dict())
    assert plain.attention[0].project.weight.shape == (18, 4)
    with torch.no_grad():
        scaled.attention[0].project.weight[:6] *= math.sqrt(3)  # queries
    torch.testing.assert_close(scaled(batch)["logits"], plain(batch)["logits"])


@pytest.mark.parametrize(("kind", "matrix"), [("field_all", lambda i: 0), ("field_each", lambda i: i)])
def test_matrices_of_fibinet(kind, matrix, build, batch, config_of):
    model = build(changed(config_of, "fibinet", bilinear_type=f'"{kind}"'))
    v = np.random.default_rng(0).normal(size=(4, 4))
    ours = array(model.pairs(torch.from_numpy(v)[None]))[0]
    weight = array(model.pairs.weight)
    expected = [(v[i] @ weight[matrix(i)]) * v[j] for i, j in pairs(4)]
    np.testing.assert_allclose(ours, np.concatenate(expected), rtol=1e-12)


@pytest.mark.parametrize("kind", ["inner", "outer"])
def test_products_of_pnn(kind, build, batch, config_of):
    model = build(changed(config_of, "pnn", product_type=f'"{kind}"'))
    v = np.random.default_rng(0).normal(size=(4, 4))
    ours = array(model.products(torch.from_numpy(v)[None]))[0]
    inner = [v[i] @ v[j] for i, j in pairs(4)]
    expected = inner if kind == "inner" else sum(np.outer(a, b) for a in v for b in v).ravel()
    np.testing.assert_allclose(ours, expected, rtol=1e-12)
    assert model(batch)["logits"].isfinite().all()


def test_a_field_of_onn_has_a_vector_for_each_partner(build, specs):
    config = text_format.Parse(
        'feature_groups { group_name: "all" feature_names: ["a", "b", "c"] group_type: DEEP }'
        "onn { final { hidden_units: 4 } } losses { binary_cross_entropy {} }",
        ModelConfig(),
    )
    features = [specs.sparse(name, 8) for name in "abc"]
    with pytest.raises(Exception, match="set their embedding_dim to 3 times the width of a vector"):
        build(config, features)


def test_eulernet_makes_products_of_any_order(build):
    """With α = (2, 0.5, 0, −1), no shift and no linear part, a layer is z₁²·z₂^½/z₄."""
    from recgrad.nn.euler import EulerLayer

    layer = EulerLayer(4, 1, 3).double()
    with torch.no_grad():
        layer.orders[:, 0] = torch.tensor([2.0, 0.5, 0.0, -1.0])
        for parameter in (layer.log_shift, layer.angle_shift, layer.linear.weight, layer.linear.bias):
            parameter.zero_()
    rng = np.random.default_rng(0)
    z = rng.uniform(0.5, 2, (5, 4, 3)) * np.exp(1j * rng.uniform(-1, 1, (5, 4, 3)))
    real, imaginary = layer(torch.from_numpy(z.real), torch.from_numpy(z.imag))
    expected = z[:, 0] ** 2 * np.sqrt(z[:, 1]) / z[:, 3]
    np.testing.assert_allclose(array(real)[:, 0] + 1j * array(imaginary)[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(("a", "b"), [(0.3, -1.2), (40.0, 30.0), (-200.0, 3.0), (90.0, 90.0), (-60.0, -80.0)])
def test_the_logit_of_a_product_is_exact(a, b):
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 120
        p = 1 / (1 + (-Decimal(a)).exp()) / (1 + (-Decimal(b)).exp())
        expected = float((p / (1 - p)).ln())
    x, y = (torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (a, b))
    logit = logit_of_product(x, y)
    assert logit.item() == pytest.approx(expected, rel=1e-12)
    gradients = torch.autograd.grad(logit.sum(), [x, y])
    assert all(g.isfinite().all() for g in gradients)


def test_esmm_predicts_the_factors_too(build, batch):
    model = build("esmm").eval()
    outputs = model(batch)
    given = model.own_predictions(outputs)
    assert list(given) == ["probs_cvr_given_ctr"]
    product = torch.sigmoid(outputs["logits_ctr"]) * given["probs_cvr_given_ctr"]
    torch.testing.assert_close(torch.sigmoid(outputs["logits_cvr"]), product)


@pytest.mark.parametrize("name", ["esmm", "aitm"])
def test_chains_of_events_have_probabilities(name, build, config_of):
    config = config_of(name)
    getattr(config, name).task_towers[1].losses[0].l2_loss.SetInParent()
    with pytest.raises(Exception, match="task 'cvr' must have losses of probabilities, got l2_loss"):
        build(config)
    config = config_of(name)
    del getattr(config, name).task_towers[1]
    with pytest.raises(Exception, match="at least 2 events, got 1"):
        build(config)


def test_aitm_keeps_later_events_from_being_likelier(build, batch):
    model = build("aitm")
    outputs = model(batch)
    p = {name: sigmoid(array(value)) for name, value in outputs.items()}
    expected = 0.6 * np.maximum(p["logits_cvr"] - p["logits_ctr"], 0).mean()
    assert expected > 0
    assert model.own_losses(outputs)["calibration"].item() == pytest.approx(expected, rel=1e-6)


def test_gradients_of_a_task_stay_out_of_other_tasks_of_stem(build, batch):
    model = build("stem")
    model(batch)["logits_ctr"].sum().backward()
    touched = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    others = ("experts.1", "gates.1", "towers.1")
    assert not [name for name in touched if "cvr" in name or name.startswith(others)]
    assert {"engine.tables.a_ctr", "engine.tables.a"} <= touched
    assert any(name.startswith("shared.") for name in touched)


def test_tasks_of_stem_need_tables_of_their_own(build, config_of):
    config = config_of("stem")
    config.feature_groups[1].ClearField("embedding_name_suffix")
    with pytest.raises(Exception, match="'ctr' must have tables of its own, got 'a', which 'shared' has too"):
        build(config)
