"""Semantic ids: losses and models against loops in float64, and whole runs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from google.protobuf import text_format

import recgrad
from recgrad.config.proto.loss_pb2 import LossConfig
from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.errors import ConfigError, RecgradError
from recgrad.losses import build_loss
from recgrad.metrics.reconstruction import CODE_METRICS
from recgrad.nn.kmeans import KMeansSettings, residual_kmeans
from recgrad.nn.quantizer import quantize

WIDTH, ROWS = 6, 40
GROUPS = """
feature_groups { group_name: "vector" feature_names: "v" group_type: DEEP }
feature_groups { group_name: "other" feature_names: "w" group_type: DEEP }
feature_groups { group_name: "flag" feature_names: "f" group_type: DEEP }
"""
LOSSES = "losses { recon_loss {} } losses { commitment_loss {} }"


@pytest.fixture
def features(specs):
    return [specs.dense("v", WIDTH), specs.dense("w", WIDTH), specs.dense("f")]


@pytest.fixture
def model_of(build, features):
    """A model of settings of sid_rqvae, with or without pairs."""

    def make(settings, pairs=False, kind="sid_rqvae", losses=LOSSES, **options):
        groups = GROUPS if pairs else GROUPS.splitlines()[1]
        if pairs:
            settings += ' contrastive_config { pair_feature_group: "other" pair_flag_feature_group: "flag" }'
            losses += " losses { contrastive_loss {} }"
        config = text_format.Parse(f"{groups} {kind} {{ {settings} }} {losses}", ModelConfig())
        return build(config, features=features, **options)

    return make


@pytest.fixture
def batch(batch_of, features):
    return batch_of(features, ROWS, seed=2, double=True)


def outputs_of(rng, rows=8, pairs=True):
    names = {"vectors": 5, "reconstruction": 5, "latent": 3}
    found = {name: torch.from_numpy(rng.normal(size=(rows, width))) for name, width in names.items()}
    found |= {f"pair_{name}": torch.from_numpy(rng.normal(size=(rows, w))) for name, w in names.items()}
    found |= {name: torch.from_numpy(rng.normal(size=(rows, 2, 3))) for name in ("sums", "pair_sums")}
    found |= {"pairs": torch.from_numpy(rng.random(rows) < 0.5), "scales": torch.tensor([2.0, 3.0, 0.5])}
    return found if pairs else {k: v for k, v in found.items() if not k.startswith("pair") and k != "scales"}


def built(text):
    return build_loss(text_format.Parse(text, LossConfig()))


def gap(a, b, kind):
    if kind == "cos":
        return 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    return np.mean((a - b) ** 2) if kind == "l2" else np.mean(np.abs(a - b))


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("kind", ["l2", "l1", "cos"])
def test_reconstruction(kind, pairs):
    outputs = outputs_of(np.random.default_rng(0), pairs=pairs)
    x, found = outputs["vectors"].numpy(), outputs["reconstruction"].numpy()
    rows = [i for i in range(len(x)) if not pairs or not outputs["pairs"][i]]
    expected = np.mean([gap(found[i], x[i], kind) for i in rows])
    assert built(f"recon_loss {{ recon_type: '{kind}' }}").of_codes(outputs).item() == pytest.approx(expected)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("kind", ["l2", "l1", "cos"])
def test_commitment(kind, pairs):
    outputs = outputs_of(np.random.default_rng(1), pairs=pairs)
    views = [("latent", "sums"), ("pair_latent", "pair_sums")][: 1 + pairs]
    gaps = [
        gap(outputs[z][i].numpy(), outputs[s][i, level].numpy(), kind)
        for z, s in views
        for i in range(8)
        for level in range(2)
    ]
    loss = built(f"commitment_loss {{ latent_weight: [0.25, 2] commitment_type: '{kind}' }}")
    assert loss.of_codes(outputs).item() == pytest.approx(2.25 * np.mean(gaps))


def test_commitment_pulls_latent_by_the_first_weight_and_codes_by_the_second():
    outputs = outputs_of(np.random.default_rng(2), pairs=False)
    gradients = {}
    for name in ("latent", "sums"):
        outputs[name].requires_grad_()
    built("commitment_loss {}").of_codes(outputs).backward()
    gradients = {name: outputs[name].grad for name in ("latent", "sums")}
    gaps = (outputs["latent"].unsqueeze(1) - outputs["sums"]).detach()
    torch.testing.assert_close(gradients["latent"], gaps.sum(1) * 2 / gaps.numel())
    torch.testing.assert_close(gradients["sums"], -0.5 * gaps * 2 / gaps.numel())


def info_nce(left, right, scale):
    total = 0.0
    for i in range(len(left)):
        scores = [scale * left[i] @ right[j] for j in range(len(right))]
        total += math.log(sum(math.exp(s) for s in scores)) - scores[i]
    return total / len(left)


def test_contrast():
    outputs = outputs_of(np.random.default_rng(3))
    pairs = outputs["pairs"].numpy()
    a, b, a_hat, b_hat = (
        outputs[name].numpy()[pairs]
        for name in ("vectors", "pair_vectors", "reconstruction", "pair_reconstruction")
    )
    a_hat, b_hat = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a_hat, b_hat))
    expected = np.mean(
        [
            (info_nce(a_hat, b_hat, 2.0) + info_nce(b_hat, a_hat, 2.0)) / 2,
            (info_nce(a_hat, b, 3.0) + info_nce(b_hat, a, 3.0)) / 2,
            (info_nce(a_hat, a, 0.5) + info_nce(b_hat, b, 0.5)) / 2,
        ]
    )
    assert built("contrastive_loss {}").of_codes(outputs).item() == pytest.approx(expected)
    outputs["pairs"][:] = False
    assert built("contrastive_loss {}").of_codes(outputs).item() == 0


def layers(module, x):
    (linear,), last = [m for m in module[0] if isinstance(m, torch.nn.Linear)], module[1]
    hidden = np.maximum(x @ linear.weight.detach().numpy().T + linear.bias.detach().numpy(), 0)
    return hidden @ last.weight.detach().numpy().T + last.bias.detach().numpy()


def test_evaluation_is_encoder_codes_decoder(model_of, batch):
    model = model_of("embed_dim: 4 codebook: [5, 6] normalize_residuals: true").eval()
    outputs = model(batch)
    z = layers(model.encoder, batch.dense.values[:, :WIDTH].numpy())
    total = np.zeros_like(z)
    rest = z.copy()
    for level, book in enumerate(model.codebooks):
        rest = rest / np.linalg.norm(rest, axis=1, keepdims=True)
        codes = ((rest[:, None] - book.detach().numpy()) ** 2).sum(2).argmin(1)
        assert outputs["codes"][:, level].tolist() == codes.tolist()
        total, rest = total + book.detach().numpy()[codes], rest - book.detach().numpy()[codes]
    np.testing.assert_allclose(outputs["reconstruction"].detach().numpy(), layers(model.decoder, total))


SETTINGS = {
    "straight through": "",
    "rotated": "rotation_trick: true distance_type: 'cosine'",
    "soft": "forward_mode: 'gumbel_softmax'",
    "nearest": "sinkhorn_config { enabled: false } hidden_dims: [7, 5]",
}


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("case", SETTINGS)
def test_gradients_reach_every_parameter(case, pairs, model_of, batch):
    model = model_of(f"embed_dim: 4 codebook: [3, 4] {SETTINGS[case]}", pairs)
    outputs = model(batch)
    sum(loss.of_codes(outputs) for loss in model.tasks[0].losses).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
    with torch.no_grad():
        assert all(value.isfinite().all() for value in outputs.values())


def test_codebooks_begin_with_kmeans_of_the_first_batch(model_of, batch):
    model = model_of("embed_dim: 4 codebook: [5, 6] kmeans_init: true", double=False)
    batch = batch_in_single(batch)
    latent = model.encoder(batch.dense.values[:, :WIDTH])
    model(batch)
    expected = residual_kmeans(latent, (5, 6), KMeansSettings(niter=10, seed=123, min_points_per_centroid=1))
    for own, wanted in zip(model.codebooks, expected, strict=True):
        torch.testing.assert_close(own.detach(), wanted)
    with torch.no_grad():
        model.codebooks[0].zero_()
    model(batch)
    assert not model.codebooks[0].any()  # once


def batch_in_single(batch):
    return replace(batch, dense=replace(batch.dense, values=batch.dense.values.float()))


def test_a_first_batch_below_the_number_of_codes_is_refused(model_of, batch):
    model = model_of("codebook: [41] kmeans_init: true", double=False)
    with pytest.raises(RecgradError, match=r"kmeans_init: the first batch has 40 rows, and 41 codes need"):
        model(batch_in_single(batch))


def test_residual_kmeans_makes_codebooks_of_what_it_read(model_of, batch):
    batch = batch_in_single(batch)
    model = model_of(
        "codebook: [5, 6] normalize_residuals: true", kind="sid_rqkmeans", losses="", double=False
    )
    with pytest.raises(RecgradError, match=r"no codebooks yet: 0 rows were read, and 6 codes need as many"):
        model.eval()(batch)
    model.train()(batch)
    model.settle()
    vectors = batch.dense.values[:, :WIDTH]
    books = residual_kmeans(vectors, (5, 6), normalize=True)
    outputs = model.eval()(batch)
    assert torch.equal(outputs["codes"], quantize(vectors, books, normalize=True).codes)
    before = [book.clone() for book in model.codebooks]
    model.settle()
    assert all(torch.equal(a, b) for a, b in zip(before, model.codebooks, strict=True))


def test_the_sample_holds_every_row_with_equal_probability(model_of, batch):
    counts = torch.zeros(ROWS)
    for seed in range(400):
        model = model_of(
            f"codebook: [2] train_sample_size: 10 faiss_kmeans_kwargs {{ seed: {seed} }}",
            kind="sid_rqkmeans",
            losses="",
            double=False,
        )
        numbered = batch_in_single(batch)
        numbered.dense.values[:, 0] = torch.arange(ROWS)
        model.train()(numbered)
        counts[model.sample[:, 0].long()] += 1
        assert int(model.seen) == ROWS
    shares = counts / 400
    assert (shares - 0.25).abs().max() < 0.09  # about four standard deviations


@pytest.mark.parametrize("case", SETTINGS)
def test_a_batch_of_no_rows_has_no_loss(case, model_of, batch_of, features):
    model = model_of(f"embed_dim: 4 codebook: [3, 4] kmeans_init: true {SETTINGS[case]}", pairs=True)
    outputs = model(batch_of(features, 0, double=True))
    total = sum(loss.of_codes(outputs) for loss in model.tasks[0].losses)
    total.backward()
    assert total == 0
    assert not model.begun
    assert model.eval()(batch_of(features, 0, double=True))["codes"].shape == (0, 2)


def test_metrics_of_codes():
    rng = np.random.default_rng(5)
    metrics = {metric.config_name: metric() for metric in CODE_METRICS}
    batches = [(rng.normal(size=(n, 3)), rng.normal(size=(n, 3)), rng.integers(0, 2, (n, 2))) for n in (4, 6)]
    for found, vectors, codes in batches:
        for metric in metrics.values():
            metric.update(*map(torch.from_numpy, (found, vectors, codes)))
    found, vectors = (np.concatenate([b[i] for b in batches]) for i in (0, 1))
    top = np.maximum(np.abs(found), np.abs(vectors)) + 1e-4
    unique = [len({tuple(row) for row in codes.tolist()}) / len(codes) for _, _, codes in batches]
    assert float(metrics["mse"].compute()) == pytest.approx(np.mean((found - vectors) ** 2))
    assert float(metrics["rel_loss"].compute()) == pytest.approx(np.mean(np.abs(found - vectors) / top))
    assert float(metrics["unique_sid_ratio"].compute()) == pytest.approx(np.mean(unique))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "codebook is empty"),
        (
            "codebook: [4] candidate_output_config { enabled: true topk: 5 }",
            "topk must be at most the 4 codes",
        ),
        ("codebook: [4] forward_mode: 'hard'", "forward_mode must be one of 'ste', 'gumbel_softmax'"),
        ("codebook: [4, 0]", r"codebook\[1\] must be at least 1, got 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message, model_of):
    with pytest.raises(ConfigError, match=message):
        model_of(settings)


CONFIG = """
train_input_path: "{items}" eval_input_path: "{items}" model_dir: "{folder}"
train_config {{ num_steps: {steps} save_checkpoints_steps: 4
  dense_optimizer {{ adam_optimizer {{ lr: 0.01 }} }} sparse_optimizer {{ adam_optimizer {{ lr: 0.01 }} }} }}
data_config {{ batch_size: 100 dataset_type: ParquetDataset num_workers: 1 }}
feature_configs {{ raw_feature {{ feature_name: "v" value_dim: 8 }} }}
model_config {{ feature_groups {{ group_name: "vector" feature_names: "v" group_type: DEEP }} {model} }}
"""
RUNS = {
    "sid_rqvae": "sid_rqvae { embed_dim: 6 codebook: [8, 8] kmeans_init: true rotation_trick: true "
    "candidate_output_config { enabled: true topk: 3 } } " + LOSSES,
    "sid_rqkmeans": "sid_rqkmeans { codebook: [8, 8] train_sample_size: 150 "
    "faiss_kmeans_kwargs { niter: 5 min_points_per_centroid: 1 } "
    "candidate_output_config { enabled: true topk: 3 } }",
}


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(8, 8))
    vectors = centres[np.arange(400) % 8] + 0.05 * rng.normal(size=(400, 8))
    path = tmp_path_factory.mktemp("items") / "items.parquet"
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1).astype(np.float32)), 8)
    pq.write_table(pa.table({"item": np.arange(400), "v": column}), path)
    return path


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumes_exactly_and_predict_writes_codes(name, items, tmp_path):
    def config(folder, steps):
        text = CONFIG.format(items=items, folder=tmp_path / folder, steps=steps, model=RUNS[name])
        path = tmp_path / f"{folder}_{steps}.config"
        path.write_text(text)
        return str(path)

    whole = recgrad.train(config("whole", 10))
    recgrad.train(config("parts", 6))
    parts = recgrad.train(config("parts", 10), continue_train=True)
    assert parts.metrics == whole.metrics
    out = tmp_path / "codes.parquet"
    recgrad.predict(config("whole", 10), input_path=str(items), output_path=out, carry_columns=["item"])
    table = pq.read_table(out)
    codes, near = (np.array(table.column(c).to_pylist()) for c in ("codes", "candidate_codes"))
    assert table.column("codes").type.value_type == pa.int64()
    assert codes.shape == (400, 2)
    assert codes.min() >= 0
    assert codes.max() < 8
    assert np.array_equal(near.reshape(400, 3, 2)[:, 0], codes)
    scores = np.array(table.column("candidate_scores").to_pylist())
    assert (np.diff(scores) >= 0).all()
    if name == "sid_rqkmeans":
        # Eight well separated heaps: the first code tells them apart.
        heaps = [set(codes[np.arange(400) % 8 == heap, 0].tolist()) for heap in range(8)]
        assert sum(len(heap) == 1 for heap in heaps) >= 6


@pytest.mark.parametrize("kind", ["sid_rqkmeans", "sid_rqvae"])
def test_compiled_it_keeps_and_begins_as_it_does_eagerly(kind, model_of, batch_of, features, monkeypatch):
    """What a model remembers of rows is no function of tensors, and is left to Python."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    settings = "codebook: [4, 4]" + (" kmeans_init: true" if kind == "sid_rqvae" else "")
    losses = "" if kind == "sid_rqkmeans" else LOSSES
    found = {}
    for compiled in (False, True):
        more = " compile: true" if compiled else ""
        model = model_of(settings, kind=kind, losses=losses + more).train()
        for seed in (1, 2):
            model(batch_of(features, ROWS, seed=seed, double=True))
        found[compiled] = model.state_dict()
    assert found[True].keys() == found[False].keys()
    for name, value in found[False].items():
        torch.testing.assert_close(found[True][name], value, msg=name)
