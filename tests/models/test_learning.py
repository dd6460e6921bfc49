"""Every model learns planted data to within 0.02 AUC of the best that can be reached."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from google.protobuf import text_format
from sklearn.metrics import roc_auc_score
from torch import nn

from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.data.batch import Batch, JaggedDense, KeyedDense, KeyedJagged
from recgrad.models.base import MODELS, Model
from recgrad.models.group_plan import FeatureGroup
from recgrad.optim.sparse import Adam

pytestmark = pytest.mark.slow

IDS, ROWS_OF_TABLE, LENGTH = "abc", 11, 4
TRAIN, TEST, BATCH = 60_000, 20_000, 500


# The deepest network, and attention that must find which positions matter, need more steps.
EPOCHS = {"dbmtl": 6, "multi_tower_din": 6, "esmm": 6} | dict.fromkeys(
    ("autoint", "fibinet", "final_mlp", "final_net", "gdcn", "onn", "pnn", "rank_mixer", "stem"), 2
)


class Planted:
    """Rows whose click probability is a factorization machine of three ids and three numbers.

    `click` needs products of ids; `buy` shares half of its causes with it; `again` is `click`
    plus an effect of how many of the last items were the shown one.
    """

    def __init__(self, rows, seed):
        weights, rng = np.random.default_rng(0), np.random.default_rng(seed)
        vectors = weights.normal(0, 1.1, (3, ROWS_OF_TABLE, 2))
        linear = weights.normal(0, 0.4, (3, ROWS_OF_TABLE))
        numbers = weights.normal(0, 0.4, 3)
        other = weights.normal(0, 0.6, ROWS_OF_TABLE)
        self.ids = rng.integers(0, ROWS_OF_TABLE, (rows, 3))
        self.dense = rng.normal(size=(rows, 3)).astype(np.float32)
        self.history = rng.integers(0, ROWS_OF_TABLE, (rows, LENGTH))
        # A third of the histories holds the shown item on purpose.
        repeat = rng.random((rows, LENGTH)) < 0.15
        self.history[repeat] = np.repeat(self.ids[:, :1], LENGTH, axis=1)[repeat]
        v = [vectors[f, self.ids[:, f]] for f in range(3)]
        pairs = sum((v[i] * v[j]).sum(1) for i in range(3) for j in range(i + 1, 3))
        flat = sum(linear[f, self.ids[:, f]] for f in range(3)) + self.dense @ numbers
        seen = (self.history == self.ids[:, :1]).sum(1)
        logits = {
            "click": flat + pairs - 0.5,
            "buy": flat + (v[0] * v[1]).sum(1) + other[self.ids[:, 2]] - 1.0,
            "again": flat + pairs + 1.2 * seen - 1.2,
        }
        self.labels = {
            k: (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(np.float32) for k, z in logits.items()
        }
        self.best = {k: roc_auc_score(self.labels[k], z) for k, z in logits.items()}
        # A chain of events: buying counts after a click.
        self.labels["bought"] = self.labels["click"] * self.labels["buy"]
        chain = [-np.log1p(np.exp(-logits[k])) for k in ("click", "buy")]
        self.best["bought"] = roc_auc_score(self.labels["bought"], sum(chain))

    def batch(self, rows):
        n = len(rows)
        sequence = torch.from_numpy(self.history[rows].ravel())
        lengths = torch.full((n,), LENGTH, dtype=torch.int32)
        return Batch(
            n,
            KeyedDense(("x", "y"), (1, 2), torch.from_numpy(self.dense[rows])),
            KeyedJagged(
                ("a", "b", "c"),
                torch.from_numpy(self.ids[rows].T.ravel()),
                torch.ones(3 * n, dtype=torch.int32),
                (n, n, n),
                None,
                True,
            ),
            {"h__item": lengths, "h__price": lengths},
            KeyedJagged(
                ("h__item",), sequence, torch.ones(n * LENGTH, dtype=torch.int32), (n * LENGTH,), None, True
            ),
            {"h__price": JaggedDense(torch.zeros(n * LENGTH, 1), lengths)},
            {key: torch.from_numpy(value[rows]) for key, value in self.labels.items()},
        )


def train(model, data, epochs=3, rate=0.01):
    """A loop of one's own: any torch optimizer for the dense half, a sparse one for the tables."""
    losses = {task.logits: task.losses for task in model.tasks}
    dense = torch.optim.Adam([p for _, p in model.dense_named_parameters()], lr=rate)
    sparse = Adam(model.engine.tables.values(), lr=rate)
    order = np.random.default_rng(0)
    rows = len(data.dense)
    model.train()
    for epoch in range(epochs):
        for group in (*dense.param_groups, *sparse.param_groups):
            group["lr"] = rate if epoch < epochs - 1 else rate / 5
        for chosen in order.permutation(rows).reshape(-1, BATCH):
            batch = data.batch(chosen)
            outputs = model(batch)
            total = 0
            for task in model.tasks:
                labels = torch.zeros(BATCH) if task.retrieval else batch.labels[task.label_name]
                total = total + sum(loss(outputs[task.logits], labels) for loss in losses[task.logits])
            total = total + sum(model.own_losses(outputs).values())
            dense.zero_grad()
            sparse.zero_grad()
            total.backward()
            dense.step()
            sparse.step()
    return model.eval()


def auc(model, data):
    with torch.no_grad():
        outputs = model(data.batch(np.arange(len(data.dense))))
    return {
        task.label_name: roc_auc_score(data.labels[task.label_name], outputs[task.logits].numpy())
        for task in model.tasks
        if not task.training_only
    }


@pytest.fixture(scope="module")
def data():
    return Planted(TRAIN, 1), Planted(TEST, 2)


def widened(config):
    """The small config with layers and groups wide enough for the planted products."""

    def walk(message):
        for field, value in message.ListFields():
            if field.name == "hidden_units" and list(value) != [4]:
                message.hidden_units[:] = [64, 32] if len(value) > 1 else [32]
            elif field.name in ("hidden_dim", "lcb_feature_num", "fmb_feature_num", "compressed_feature_num"):
                setattr(message, field.name, 24 if field.name == "hidden_dim" else 6)
            elif field.message_type is not None:
                for item in value if field.is_repeated else [value]:
                    walk(item)

    walk(config)
    for tower in getattr(getattr(config, config.WhichOneof("model")), "task_towers", ()):
        tower.mlp.hidden_units[:] = [32]
    more = {"multi_tower": ["y"], "multi_tower_din": ["a", "c", "y"]}.get(config.WhichOneof("model"), [])
    config.feature_groups[0].feature_names.extend(more)
    if config.WhichOneof("model") == "tdm":  # its first group is a sequence, for one id of the row
        config.feature_groups[1].feature_names.extend(["c", "y"])
    return config


@pytest.mark.parametrize(
    "name",
    [n for n, model in MODELS.items() if not (model.retrieval or model.learns_codes or model.lists)],
)
def test_learns_planted_data(name, build, config_of, features, data):
    single = [spec if spec.name != "b" else type(spec)(**{**vars(spec), "value_dim": 1}) for spec in features]
    config = widened(config_of(name))
    model = build(config, features=single, engine=None, double=False)
    other_label = {"multi_tower_din": "again", "esmm": "bought", "aitm": "bought"}.get(name)
    if other_label is not None:
        model.tasks = (*model.tasks[:-1], replace(model.tasks[-1], label_name=other_label))
    train_data, test_data = data
    epochs = EPOCHS.get(name, 4)
    reached = auc(train(model, train_data, epochs), test_data)
    for label, value in reached.items():
        assert value > test_data.best[label] - 0.02, label


class Linear(Model):
    """Logistic regression: what every interaction model must beat."""

    def build(self):
        self.numbers = nn.Linear(self.groups.dim("numbers"), 1)

    def predict(self, inputs):
        return self.head(self.numbers(inputs["numbers"]) + inputs["wide"].sum(1, keepdim=True))


@pytest.fixture(scope="module")
def linear_auc(data):
    """What a linear model reaches on the planted clicks."""
    from recgrad.data.features.spec import FeatureSpec, Kind
    from recgrad.losses.binary_cross_entropy import BinaryCrossEntropy
    from recgrad.models.tasks import TaskSpec

    features = [FeatureSpec(n, Kind.SPARSE, num_rows=ROWS_OF_TABLE, embedding_dim=4) for n in IDS]
    features += [FeatureSpec("x", Kind.DENSE), FeatureSpec("y", Kind.DENSE, value_dim=2)]
    groups = [FeatureGroup("wide", list(IDS), "WIDE"), FeatureGroup("numbers", ["x", "y"])]
    model = Linear(features, groups, tasks=[TaskSpec(label_name="click", losses=[BinaryCrossEntropy()])])
    return auc(train(model, data[0]), data[1])["click"]


def test_the_data_needs_interactions(linear_auc, data):
    """A linear model stays far below the best, so that reaching it proves interactions were learned."""
    assert linear_auc < data[1].best["click"] - 0.08


class Pairs:
    """Users who choose items with probability softmax(2⟨u, v⟩); rows are (user, chosen item)."""

    def __init__(self, rows, seed, users=40, items=60):
        weights, rng = np.random.default_rng(0), np.random.default_rng(seed)
        taste, kind = weights.normal(size=(users, 3)), weights.normal(size=(items, 3))
        self.scores = 1.2 * taste @ kind.T
        p = np.exp(self.scores)
        self.users = rng.integers(0, users, rows)
        below = (p / p.sum(1, keepdims=True)).cumsum(1)[self.users]
        self.items = (rng.random(rows)[:, None] > below).sum(1).clip(max=items - 1)
        self.popularity = np.log((p / p.sum(1, keepdims=True)).mean(0))
        self.dense = np.zeros((rows, 0), np.float32)

    def batch(self, rows):
        n = len(rows)
        ids = torch.from_numpy(np.concatenate([self.users[rows], self.items[rows]]))
        return Batch(
            n,
            KeyedDense((), (), torch.zeros(n, 0)),
            KeyedJagged(("u", "i"), ids, torch.ones(2 * n, dtype=torch.int32), (n, n), None, True),
        )


@pytest.mark.parametrize(("similarity", "temperature"), [("INNER_PRODUCT", 1.0), ("COSINE", 0.1)])
def test_towers_learn_who_likes_what(similarity, temperature, build, specs):
    """In-batch negatives are drawn by popularity, so the best score is log p(item | user) − log p(item)."""
    config = text_format.Parse(
        f"""feature_groups {{ group_name: "user" feature_names: "u" group_type: DEEP }}
        feature_groups {{ group_name: "item" feature_names: "i" group_type: DEEP }}
        dssm {{ user_tower {{ input: "user" mlp {{ hidden_units: 32 }} }}
                item_tower {{ input: "item" mlp {{ hidden_units: 32 }} }} output_dim: 8
                similarity: {similarity} temperature: {temperature} in_batch_negative: true }}
        losses {{ softmax_cross_entropy {{}} }}""",
        ModelConfig(),
    )
    features = [specs.sparse("u", 8, 40), specs.sparse("i", 8, 60)]
    model = train(build(config, features=features, engine=None, double=False), Pairs(60_000, 1), epochs=3)
    test = Pairs(4_000, 2)
    with torch.no_grad():
        batch = test.batch(np.arange(4_000))
        ours = (model.user_embedding(batch) @ model.item_embedding(batch).T).numpy()
    truth = test.scores[test.users][:, test.items] - test.popularity[test.items]

    def ordered(matrix):
        """How often a user's chosen item scores above the item of another row."""
        margins = [np.diagonal(matrix) - np.diagonal(np.roll(matrix, -k, axis=1)) for k in range(1, 21)]
        return float(np.mean([(m > 0) + 0.5 * (m == 0) for m in margins]))

    assert ordered(truth) > 0.8
    assert ordered(ours) > ordered(truth) - 0.02
