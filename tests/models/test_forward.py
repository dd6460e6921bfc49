"""Every model's forward against its formula, written out row by row in plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from recgrad.config.proto.feature_pb2 import AutoDisEmbedding, MLPEmbedding
from recgrad.data.batch import KeyedDense

# --- the formulas of blocks, one vector at a time ---


def array(tensor):
    return tensor.detach().numpy()


def linear(module, x):
    out = [sum(w * v for w, v in zip(row, x, strict=True)) for row in array(module.weight)]
    return out if module.bias is None else [o + b for o, b in zip(out, array(module.bias), strict=True)]


def relu(x):
    return [max(v, 0.0) for v in x]


def layer_norm(module, x):
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    scale, shift = array(module.weight), array(module.bias)
    return [(v - mean) / math.sqrt(variance + 1e-5) * s + b for v, s, b in zip(x, scale, shift, strict=True)]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def softmax(x):
    e = [math.exp(v - max(x)) for v in x]
    return [v / sum(e) for v in e]


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def times(x, y):
    return [a * b for a, b in zip(x, y, strict=True)]


def mlp(module, x):
    """An MLP of linear layers and ReLUs."""
    for layer in module:
        x = linear(layer, x) if isinstance(layer, torch.nn.Linear) else relu(x)
    return x


def expert(experts, number, x):
    """One of the MLPs that `Experts` runs together."""
    for layer in experts.layers:
        weight, bias = array(layer.weight)[number], array(layer.bias)[number]
        x = [dot(row, x) + b for row, b in zip(weight, bias, strict=True)]
        x = x if layer.activation is None else relu(x)
    return x


def mix(gate, vectors):
    return [dot(softmax(gate), column) for column in zip(*vectors, strict=True)]


# --- the inputs of a row ---


class Row:
    """The vectors of one row, looked up in the tables by hand."""

    def __init__(self, model, batch, number):
        self.tables, self.batch, self.number = model.engine.tables, batch, number

    def ids(self, feature, table=None):
        one, start = self.batch.sparse[feature], 0
        lengths = one.lengths.tolist()
        start = sum(lengths[: self.number])
        rows = [
            array(self.tables[table or feature])[i] for i in one.values[start : start + lengths[self.number]]
        ]
        width = self.tables[table or feature].shape[1]
        pooled = [float(sum(row[d] for row in rows)) for d in range(width)]
        return [v / max(len(rows), 1) for v in pooled] if feature == "b" else pooled

    def raw(self, feature):
        return array(self.batch.dense[feature])[self.number].tolist()

    def all(self):
        return [*self.raw("x"), *self.raw("y"), *self.ids("a"), *self.ids("b"), *self.ids("c")]

    def positions(self):
        """Positions of the sequence h: [embedding of the item, price]."""
        lengths = self.batch.sequence_lengths["h__item"].tolist()
        start = sum(lengths[: self.number])
        span = range(start, start + lengths[self.number])
        items = self.batch.sequence_sparse["h__item"].values
        prices = array(self.batch.sequence_dense["h__price"].values)
        return [[*array(self.tables["a"])[items[p]], prices[p][0]] for p in span]


# --- the models ---


def wide_and_deep(m, row):
    wide = sum(sum(row.ids(f, f"{f}_wide")) for f in "abc")
    return linear(m.output, mlp(m.final, [wide, *mlp(m.deep, row.all())]))


def deepfm(m, row):
    fields = [row.ids(f) for f in "abc"]
    wide = sum(sum(row.ids(f, f"{f}_wide")) for f in "abc")
    pairs = sum(dot(fields[i], fields[j]) for i in range(3) for j in range(i + 1, 3))
    return [wide + pairs + linear(m.output, mlp(m.deep, row.all()))[0]]


def dlrm(m, row):
    dense = mlp(m.dense_mlp, [*row.raw("x"), *row.raw("y")])
    fields = [dense, *(row.ids(f) for f in "abc")]
    pairs = [dot(fields[i], fields[j]) for i in range(4) for j in range(i + 1, 4)]
    return linear(m.output, mlp(m.final, [*pairs, *chain(*fields)]))


def dcn_v1(m, row):
    x0 = x = row.all()
    for w, b in zip(array(m.cross.weight), array(m.cross.bias), strict=True):
        inner = dot(w, x)
        x = [a * inner + c + d for a, c, d in zip(x0, b, x, strict=True)]
    return linear(m.output, mlp(m.final, [*x, *mlp(m.deep, x0)]))


def dcn_v2(m, row):
    x0 = x = mlp(m.backbone, row.all())
    for down, up in zip(m.cross.down, m.cross.up, strict=True):
        inner = linear(up, [dot(w, x) for w in array(down.weight)])
        x = [a * b + c for a, b, c in zip(x0, inner, x, strict=True)]
    return linear(m.output, mlp(m.final, [*x, *mlp(m.deep, row.all())]))


def xdeepfm(m, row):
    x0 = x = [row.ids(f, f"{f}_wide") for f in "abc"]
    pooled = []
    for layer in m.cin.layers:
        weight, bias = array(layer.weight), array(layer.bias)
        new = []
        for o in range(len(weight)):
            total = [bias[o]] * 5
            for h in range(len(x)):
                for f in range(3):
                    w = weight[o][h * 3 + f]
                    total = [t + w * p for t, p in zip(total, times(x[h], x0[f]), strict=True)]
            new.append(total)
        x = new
        pooled += [sum(v) for v in x]
    return linear(m.output, mlp(m.final, [*pooled, *mlp(m.deep, row.all())]))


def mask_blocks(m, features):
    x = layer_norm(m.norm, features)
    out = []
    for block in m.blocks:
        mask = linear(block.project, relu(linear(block.aggregate, features)))
        out += relu(layer_norm(block.norm, linear(block.hidden, times(x, mask))))
    return mlp(m.top, out)


def mask_net(m, row):
    return linear(m.output, mask_blocks(m.blocks, row.all()))


def wukong(m, row):
    x = [mlp(m.dense_mlp, [*row.raw("x"), *row.raw("y")]), *(row.ids(f) for f in "abc")]
    for layer in m.layers:
        fields, k = len(x), 2
        y = array(layer.products.compress)
        grams = [[dot(a, b) for b in x] for a in x]
        flat = [sum(grams[i][j] * y[j][c] for j in range(fields)) for i in range(fields) for c in range(k)]
        new = linear(layer.products.output, mlp(layer.products.mlp, layer_norm(layer.products.norm, flat)))
        new = [new[i : i + 4] for i in range(0, len(new), 4)]
        squeeze = lambda w, x=x: [[dot(r, column) for column in zip(*x, strict=True)] for r in array(w)]  # noqa: E731
        new += squeeze(layer.linear.weight)
        rest = x if isinstance(layer.residual, torch.nn.Identity) else squeeze(layer.residual.weight)
        x = [
            layer_norm(layer.norm, [a + b for a, b in zip(n, r, strict=True)])
            for n, r in zip(new, rest, strict=True)
        ]
    return linear(m.output, mlp(m.final, list(chain(*x))))


def multi_tower(m, row):
    user, item = m.tower_mlps
    out = mlp(user, [*row.raw("x"), *row.ids("a")]) + mlp(item, [*row.ids("b"), *row.ids("c")])
    return linear(m.output, mlp(m.final, out))


def multi_tower_din(m, row):
    (user,), (din,) = m.tower_mlps, m.dins
    query = [*row.ids("a"), 0.0]  # filled up to the width of a position
    positions = row.positions()
    scores = []
    for s in positions:
        difference = [q - v for q, v in zip(query, s, strict=True)]
        scores += linear(din.score, mlp(din.mlp, [*query, *s, *difference, *times(query, s)]))
    attended = mix(scores, positions) if positions else [0.0] * 5
    out = [*mlp(user, [*row.raw("x"), *row.ids("b")]), *attended]
    return linear(m.output, mlp(m.final, out))


def towers(m, inputs):
    out = []
    for t, x in zip(m.towers, inputs, strict=True):
        out += linear(t[1], mlp(t[0], x))
    return out


def simple_multi_task(m, row):
    return towers(m, [row.all(), row.all()])


def mixture(m, x, tasks=2):
    experts = [expert(m.experts, e, x) for e in range(m.num_expert)]
    gates = [expert(m.gate_mlps, t, x) if m.gate_mlps is not None else x for t in range(tasks)]
    return [mix(expert(m.gates, t, g), experts) for t, g in enumerate(gates)]


def mmoe(m, row):
    return towers(m, mixture(m.mixture, row.all()))


def ple(m, row):
    shared = row.all()
    tasks = [shared, shared]
    for layer in m.networks.values():
        own = [[expert(e, i, x) for i in range(e.count)] for e, x in zip(layer.own, tasks, strict=True)]
        common = [expert(layer.shared, i, shared) for i in range(layer.shared.count)]
        tasks = [
            mix(linear(gate, x), mine + common) for gate, x, mine in zip(layer.gates, tasks, own, strict=True)
        ]
        if layer.shared_gate is not None:
            shared = mix(linear(layer.shared_gate, shared), own[0] + own[1] + common)
    return towers(m, tasks)


def dbmtl(m, row):
    x = mlp(m.bottom, mask_blocks(m.mask_net, row.all()))
    cvr, ctr = mixture(m.mixture, x)
    t_cvr, t_ctr = m.towers
    r_ctr = mlp(t_ctr.mlp, ctr)
    r_cvr = mlp(t_cvr.relation, [*mlp(t_cvr.mlp, cvr), *r_ctr])
    return linear(t_cvr.output, r_cvr) + linear(t_ctr.output, r_ctr)


def gate(unit, x):
    return [2 * sigmoid(v) for v in linear(unit.output, relu(linear(unit.hidden, x)))]


def pepnet(m, row):
    main = row.all()
    x = times(main, gate(m.epnet.gate, [*row.ids("c"), *main]))
    inputs = []
    for net in m.ppnets:
        h = x
        for layer, unit in zip(net.layers, net.gates, strict=True):
            h = times(relu(linear(layer[0], h)), gate(unit, [*row.ids("b"), *x]))
        inputs.append(h)
    return towers(m, inputs)


def dssm_vectors(m, row):
    user = linear(m.user_tower[1], mlp(m.user_tower[0], [*row.raw("x"), *row.ids("a")]))
    item = linear(m.item_tower[1], mlp(m.item_tower[0], [*row.ids("b"), *row.ids("c")]))
    return user, item


REFERENCES = (
    wide_and_deep,
    deepfm,
    dlrm,
    dcn_v1,
    dcn_v2,
    xdeepfm,
    mask_net,
    wukong,
    multi_tower,
    multi_tower_din,
    simple_multi_task,
    mmoe,
    ple,
    dbmtl,
    pepnet,
)


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda f: f.__name__)
def test_forward_is_the_formula(reference, build, batch):
    model = build(reference.__name__)
    outputs = model(batch)
    for number in range(batch.size):
        expected = reference(model, Row(model, batch, number))
        ours = [outputs[task.logits][number].item() for task in model.tasks]
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "similarity"), [("dssm", "COSINE"), ("dssm_v2", "INNER_PRODUCT"), ("dssm", "EUCLID")]
)
def test_in_batch_similarities(name, similarity, build, batch, config_of):
    config = config_of(name)
    settings = getattr(config, name)
    settings.similarity = (
        settings.DESCRIPTOR.fields_by_name["similarity"].enum_type.values_by_name[similarity].number
    )
    model = build(config)
    logits = array(model(batch)["logits"])
    vectors = [dssm_vectors(model, Row(model, batch, n)) for n in range(batch.size)]
    for n in range(batch.size):
        user = vectors[n][0]
        others = [vectors[k][1] for k in range(batch.size) if k != n]
        expected = [
            similarity_of(similarity, user, item) / settings.temperature for item in [vectors[n][1], *others]
        ]
        np.testing.assert_allclose(logits[n], expected, rtol=1e-9, atol=1e-9)


def similarity_of(kind, user, item):
    if kind == "EUCLID":
        return -math.sqrt(sum((a - b) ** 2 for a, b in zip(user, item, strict=True)))
    norm = math.sqrt(dot(user, user) * dot(item, item)) if kind == "COSINE" else 1.0
    return dot(user, item) / norm


def test_sampled_negatives(build, batch, batch_of, features, config_of):
    config = config_of("dssm")
    config.dssm.in_batch_negative = False
    model = build(config)
    items = [spec for spec in features if spec.name in "bc"]  # a sampler knows items only
    negatives = batch_of(items, 4, seed=8, double=True)
    logits = array(model(replace(batch, negatives=negatives))["logits"])
    assert logits.shape == (6, 5)
    rows = [dssm_vectors(model, Row(model, batch, n)) for n in range(6)]
    for n in range(6):
        assert logits[n, 0] == pytest.approx(similarity_of("COSINE", *rows[n]) / 0.5, rel=1e-9)
        for k in range(4):
            row = Row(model, negatives, k)
            item = linear(model.item_tower[1], mlp(model.item_tower[0], [*row.ids("b"), *row.ids("c")]))
            assert logits[n, 1 + k] == pytest.approx(
                similarity_of("COSINE", rows[n][0], item) / 0.5, rel=1e-9
            )


def test_towers_run_alone(build, batch, batch_of, features):
    """The vectors of each tower, from a batch of that tower's features alone, give the similarities."""
    model = build("dssm").eval()
    users = batch_of([s for s in features if s.name in "ax"], 5, seed=2, double=True)
    items = batch_of([s for s in features if s.name in "bc"], 7, seed=2, double=True)
    user, item = model.user_embedding(users), model.item_embedding(items)
    assert user.shape == (5, 4)
    assert item.shape == (7, 4)
    torch.testing.assert_close(user.norm(dim=1), torch.ones(5, dtype=torch.float64))
    own = (model.user_embedding(batch) * model.item_embedding(batch)).sum(1) / 0.5
    torch.testing.assert_close(model(batch)["logits"][:, 0], own)


@pytest.mark.parametrize("embedding", [AutoDisEmbedding(num_channels=3), MLPEmbedding()])
def test_towers_whose_numbers_share_a_module_run_alone(embedding, build, batch_of, specs, config_of):
    """Dense embeddings of equal settings are one module, also where a batch has one tower's numbers alone."""
    config = config_of("dssm")
    config.dssm.in_batch_negative = False
    config.variational_dropout.SetInParent()
    features = [
        specs.sparse("a"),
        specs.dense("x", embedding_dim=3, dense_embedding=embedding),
        specs.sparse("b"),
        specs.dense("c", embedding_dim=3, dense_embedding=embedding),
    ]
    model = build(config, features).eval()
    assert len(model.groups.dense_embeddings) == 1
    batch = batch_of(features, 6, seed=1, double=True)
    users, items = (
        replace(batch, sparse=batch.sparse[ids], dense=KeyedDense((number,), (1,), batch.dense[number]))
        for ids, number in ("ax", "bc")
    )
    user, item = model.user_embedding(users), model.item_embedding(items)
    torch.testing.assert_close(user, model.user_embedding(batch))
    torch.testing.assert_close(item, model.item_embedding(batch))
    logits = model(replace(batch, negatives=items))["logits"]
    torch.testing.assert_close(logits[:, 1:], user @ item.t() / 0.5)
