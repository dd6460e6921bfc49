"""Losses against plain-Python references, gradients, and the cases that break careless formulas."""

import math

import pytest
import torch
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recgrad.config.proto.loss_pb2 import LossConfig
from recgrad.errors import ConfigError, DataError
from recgrad.losses import LOSSES, Loss, build_loss
from recgrad.losses.jrc_loss import JRCLoss


def built(text: str) -> Loss:
    return build_loss(text_format.Parse(text, LossConfig()))


CONFIGS = [
    "binary_cross_entropy {}",
    "binary_cross_entropy { label_smoothing: 0.1 }",
    "softmax_cross_entropy {}",
    "softmax_cross_entropy { label_smoothing: 0.2 }",
    "l2_loss {}",
    "jrc_loss { session_name: 's' }",
    "jrc_loss { session_name: 's' alpha: 0.2 }",
    "binary_focal_loss {}",
    "binary_focal_loss { gamma: 0 alpha: 0.25 }",
    "binary_focal_loss { gamma: 1.5 detach_weight: false }",
    "bpr_loss {}",
    "cosine_contrastive_loss {}",
    "cosine_contrastive_loss { margin: 0.2 negative_weight: 3 }",
    "gbce_loss { num_items: 50 }",
    "gbce_loss { calibration: 0 }",
    "full_softmax { chunk_scores: 4 }",
]
CANDIDATES = {"bpr_loss", "cosine_contrastive_loss", "gbce_loss", "full_softmax"}


def log_sigmoid(z: float) -> float:
    return -math.log1p(math.exp(-z)) if z > 0 else z - math.log1p(math.exp(z))


def log_sum_exp(values: list[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def reference(text: str, logits: list[list[float]], labels: list[int], sessions: list[int]) -> list[float]:
    """One loss a row, straight from the definitions."""
    config = text_format.Parse(text, LossConfig())
    name = config.WhichOneof("loss")
    message = getattr(config, name)
    rows = []
    for i, (z, y) in enumerate(zip(logits, labels)):
        if name == "l2_loss":
            rows.append((z[0] - y) ** 2)
        elif name == "binary_cross_entropy":
            soft = y * (1 - message.label_smoothing) + message.label_smoothing / 2
            rows.append(-soft * log_sigmoid(z[0]) - (1 - soft) * log_sigmoid(-z[0]))
        elif name == "binary_focal_loss":
            log_p, log_q = log_sigmoid(z[0]), log_sigmoid(-z[0])
            positive = message.alpha * math.exp(message.gamma * log_q) * -log_p
            negative = (1 - message.alpha) * math.exp(message.gamma * log_p) * -log_q
            rows.append(positive if y else negative)
        elif name == "softmax_cross_entropy":
            eps, n = message.label_smoothing, len(z)
            log_p = [value - log_sum_exp(z) for value in z]
            rows.append(-(1 - eps) * log_p[y] - eps / n * sum(log_p))
        elif name in CANDIDATES:
            rows.append(against_candidates(name, message, z[y], z[:y] + z[y + 1 :]))
        else:
            rivals = [j for j in range(len(labels)) if sessions[j] == sessions[i] and labels[j] != y]
            column = [logits[j][y] for j in [i, *rivals]]
            contrast = log_sum_exp(column) - z[y]
            rows.append(message.alpha * (log_sum_exp(z) - z[y]) + (1 - message.alpha) * contrast)
    return rows


def against_candidates(name: str, message: LossConfig, own: float, others: list[float]) -> float:
    """The losses of an item's score and the scores of others."""
    if name == "bpr_loss":
        return sum(-log_sigmoid(own - other) for other in others) / len(others)
    if name == "cosine_contrastive_loss":
        over = sum(max(0.0, other - message.margin) for other in others) / len(others)
        return 1 - own + message.negative_weight * over
    if name == "full_softmax":
        return log_sum_exp([own, *others]) - own
    beta = 1.0
    if message.calibration:
        alpha = len(others) / (message.num_items - 1)
        beta = alpha * (message.calibration * (1 - 1 / alpha) + 1 / alpha)
    losses = [-beta * log_sigmoid(own), *(-log_sigmoid(-other) for other in others)]
    return sum(losses) / (1 + len(others))


def inputs(loss: Loss, rows: int, seed: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    columns = loss.num_logits or 3
    logits = scale * torch.randn((rows, columns), generator=generator, dtype=torch.float64)
    labels = torch.randint(0, max(2, columns), (rows,), generator=generator)
    return logits, labels, torch.randint(0, 4, (rows,), generator=generator)


@pytest.mark.parametrize("text", CONFIGS)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.0, 1.0, 30.0, 400.0]),
    weighted=st.booleans(),
)
def test_loss_is_the_weighted_mean_of_the_definition(text, rows, seed, scale, weighted):
    loss = built(text)
    logits, labels, session = inputs(loss, rows, seed, scale)
    generator = torch.Generator().manual_seed(seed + 1)
    weights = torch.randint(0, 3, (rows,), generator=generator).double() if weighted else None
    each = reference(text, logits.tolist(), labels.tolist(), session.tolist())
    value = loss(logits, labels, weights=weights, session=session)
    if weights is None:
        expected = sum(each) / rows
    else:
        total = sum(weights.tolist())
        expected = sum(w * v for w, v in zip(weights.tolist(), each)) / total if total else 0.0
    # Smoothing and alpha are 32-bit floats in the message that the reference reads.
    assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-12)


# A loss whose weight is taken as a constant has another gradient than its value's.
@pytest.mark.parametrize(
    "text", [t for t in CONFIGS if "focal" not in t or "gamma: 0" in t or "detach_weight: false" in t]
)
def test_gradients(text):
    loss = built(text)
    logits, labels, session = inputs(loss, 9, 5, 1.5)
    weights = torch.rand(9, dtype=torch.float64)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, labels, weights=weights, session=session), (logits,))


@pytest.mark.parametrize("text", CONFIGS)
@pytest.mark.parametrize("logit", [-1e4, -90.0, 90.0, 1e4])
def test_huge_logits_give_finite_losses_and_gradients(text, logit):
    loss = built(text)
    logits = torch.full((6, loss.num_logits or 3), 0.0)
    logits[:, 0] = logit
    logits.requires_grad_()
    labels, session = torch.tensor([0, 1, 1, 0, 1, 0]), torch.tensor([0, 0, 0, 1, 1, 2])
    value = loss(logits, labels, session=session)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("text", CONFIGS)
def test_weights_of_zero_and_batches_without_rows_give_zero(text):
    loss = built(text)
    logits, labels, session = inputs(loss, 5, 1)
    logits.requires_grad_()
    value = loss(logits, labels, weights=torch.zeros(5), session=session)
    value.backward()
    assert value.item() == 0
    assert not logits.grad.any()
    assert loss(logits[:0], labels[:0], session=session[:0]).item() == 0


@pytest.mark.parametrize("text", CONFIGS)
def test_scaling_all_weights_changes_nothing(text):
    loss = built(text)
    logits, labels, session = inputs(loss, 8, 2)
    weights = torch.rand(8) + 0.1
    once, thrice = (loss(logits, labels, weights=w, session=session) for w in (weights, 3 * weights))
    assert once.item() == pytest.approx(thrice.item(), rel=1e-6)


@pytest.mark.parametrize("text", CONFIGS)
def test_half_precision_logits_are_summed_in_single(text):
    loss = built(text)
    logits, labels, session = inputs(loss, 400, 3)
    half = logits.bfloat16()
    value = loss(half, labels, session=session)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(loss(half.double(), labels, session=session).item(), rel=1e-5)


@pytest.mark.parametrize("text", CONFIGS)
def test_predictions(text):
    loss = built(text)
    logits, _, _ = inputs(loss, 7, 4, 3.0)
    found = loss.predict(logits)
    if loss.config_name in CANDIDATES:
        assert torch.equal(found, logits)
    elif loss.config_name == "l2_loss":
        assert torch.equal(found, logits[:, 0])
    elif loss.config_name == "softmax_cross_entropy":
        assert torch.allclose(found, logits.exp() / logits.exp().sum(1, keepdim=True))
    elif loss.config_name == "jrc_loss":
        assert torch.allclose(found, torch.sigmoid(logits[:, 1] - logits[:, 0]))
    else:
        assert torch.allclose(found, 1 / (1 + torch.exp(-logits[:, 0])))


def square_form(logits: Tensor, labels: Tensor, session: Tensor, alpha: float) -> Tensor:
    """JRC with the rows × rows mask, as the paper writes it."""
    entropy = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    same = session[:, None] == session[None, :]
    rival = labels[:, None] != labels[None, :]
    allowed = same & (rival | torch.eye(len(labels), dtype=torch.bool))
    columns = logits[:, labels].T  # [i, j]: the logit of row j in the column of row i's class
    contrast = -columns.masked_fill(~allowed, -torch.inf).log_softmax(1).diagonal()
    return (alpha * entropy + (1 - alpha) * contrast).mean()


def test_jrc_equals_the_square_form_and_its_gradient():
    logits, labels, session = inputs(JRCLoss(), 200, 7, 2.0)
    session = torch.randint(0, 30, (200,))
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    a = JRCLoss(alpha=0.3)(ours, labels, session=session)
    b = square_form(theirs, labels, session, 0.3)
    a.backward()
    b.backward()
    assert a.item() == pytest.approx(b.item(), rel=1e-12)
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("label", [0, 1])
def test_jrc_of_one_class_is_finite_and_only_cross_entropy(label):
    logits = torch.randn(6, 2, requires_grad=True)
    labels = torch.full((6,), label)
    value = JRCLoss(alpha=0.5)(logits, labels, session=torch.tensor([0, 0, 1, 1, 1, 2]))
    value.backward()
    assert value.item() == pytest.approx(
        0.5 * torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-6
    )
    assert torch.isfinite(logits.grad).all()


def test_jrc_takes_a_batch_whose_square_would_not_fit():
    rows = 300_000  # the square form would need 360 GB for one float32 matrix
    logits = torch.randn(rows, 2, requires_grad=True)
    value = JRCLoss()(logits, torch.randint(0, 2, (rows,)), session=torch.randint(0, 50_000, (rows,)))
    value.backward()
    assert torch.isfinite(value)


def test_jrc_without_sessions_is_refused():
    with pytest.raises(ValueError, match="needs a session"):
        JRCLoss()(torch.zeros(2, 2), torch.zeros(2))


@pytest.mark.parametrize("option", ["", "detach_weight: true"])
def test_focal_weight_is_a_constant_in_the_gradient_unless_told_otherwise(option):
    z = torch.tensor([0.7, -1.2, 2.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    built(f"binary_focal_loss {{ gamma: 2 alpha: 0.5 {option} }}")(z, y).backward()
    p = z.detach().sigmoid()
    weight = torch.where(y == 1, (1 - p) ** 2, p**2) * 0.5
    assert torch.allclose(z.grad, weight * (p - y) / 3, rtol=1e-12)


def test_focal_with_gamma_zero_is_balanced_cross_entropy():
    z, y = torch.randn(20), torch.randint(0, 2, (20,))
    focal = built("binary_focal_loss { gamma: 0 alpha: 0.5 }")(z, y)
    assert 2 * focal.item() == pytest.approx(built("binary_cross_entropy {}")(z, y).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ("binary_cross_entropy {}", 2.0, r"binary_cross_entropy: label 2 at row 1 .* not in \[0, 1\]"),
        ("binary_focal_loss {}", -1.0, "label -1 at row 1"),
        ("softmax_cross_entropy {}", 3, "label 3 at row 1 .* num_class must be larger"),
        ("jrc_loss { session_name: 's' }", 2, "jrc_loss: label 2"),
    ],
)
def test_labels_out_of_range_are_named(text, label, message):
    loss = built(text)
    labels = torch.tensor([0.0, label])
    with pytest.raises(DataError, match=message):
        loss(torch.zeros(2, loss.num_logits or 3), labels, session=torch.zeros(2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "binary_cross_entropy { label_smoothing: 1.5 }",
            r"losses.binary_cross_entropy: label_smoothing .* 1.5",
        ),
        ("binary_focal_loss { gamma: -1 }", "gamma must be at least 0, got -1"),
        ("jrc_loss { session_name: 's' alpha: 2 }", r"alpha must be in \[0, 1\]"),
        ("cosine_contrastive_loss { margin: 2 }", r"margin must be in \[-1, 1\], got 2"),
        ("gbce_loss {}", "num_items must be the number of items in the catalogue, got 0; give it"),
        ("full_softmax { chunk_scores: 0 }", "chunk_scores must be at least 1, got 0"),
        ("", "no loss is set"),
        ("recon_loss { recon_type: 'l3' }", "recon_type must be one of 'l2', 'l1', 'cos', got 'l3'"),
        ("custom_loss { class_path: 'torch.nn.BCELoss' }", "not a subclass of recgrad.losses.Loss"),
    ],
)
def test_configs_that_cannot_work_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        built(text)


def test_custom_loss_is_built_with_its_params():
    loss = built(
        "custom_loss { class_path: 'recgrad.losses.binary_focal_loss.BinaryFocalLoss' "
        "params { fields { key: 'gamma' value { number_value: 3 } } } }"
    )
    assert loss.gamma == 3
    assert loss.config_name == "custom_loss"


def test_every_registered_loss_is_tested_here():
    tested = {text.split()[0] for text in CONFIGS}
    of_codes = {name for name, loss in LOSSES.items() if loss.takes_codes}  # in models/test_semantic_ids.py
    assert tested == set(LOSSES) - of_codes


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"logits must be \[rows\] or \[rows, 1\], got \[4, 2\]"):
        built("binary_cross_entropy {}")(torch.zeros(4, 2), torch.zeros(4))
    with pytest.raises(ValueError, match=r"labels must be \[4\]"):
        built("l2_loss {}")(torch.zeros(4, 1), torch.zeros(3))
