"""Where one optimizer must be another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import Parameter

from recgrad.optim.dense import DENSE_OPTIMIZERS
from recgrad.optim.dense.muon import orthogonal


def trajectory(name, starts, grads, **options):
    params = [Parameter(w.clone()) for w in starts]
    optimizer = DENSE_OPTIMIZERS[f"{name}_optimizer"](params, **options)
    for gs in grads:
        for p, g in zip(params, gs):
            p.grad = g.clone()
        optimizer.step()
    return [p.detach() for p in params]


@pytest.fixture
def starts():
    torch.manual_seed(0)
    return [torch.randn(4, 3, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]


@pytest.fixture
def grads(starts):
    torch.manual_seed(1)
    return [[torch.randn_like(w) for w in starts] for _ in range(25)]


def close(a, b, **tolerance):
    for x, y in zip(a, b):
        torch.testing.assert_close(x, y, **(tolerance or {"rtol": 1e-10, "atol": 1e-12}))


def test_soap_with_an_identity_basis_is_adam(starts, grads):
    """Sides beyond max_precondition_dim stay unturned; the first gradient makes no update."""
    options = {"lr": 0.05, "beta1": 0.9, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.1}
    soap = trajectory("soap", starts, grads, max_precondition_dim=1, precondition_frequency=1, **options)
    close(soap, trajectory("adamw", starts, grads[1:], **options))


def test_soap_of_diagonal_gradients_is_adam():
    """The eigenvectors of a diagonal L are the axes: turning them changes nothing."""
    torch.manual_seed(0)
    start = [torch.randn(4, 4, dtype=torch.float64)]
    sizes = torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)
    grads = [[torch.diag(sizes * (1 + 0.1 * torch.rand(4, dtype=torch.float64)))] for _ in range(12)]
    soap = trajectory("soap", start, grads, lr=0.05, beta1=0.9, beta2=0.95, precondition_frequency=2)
    close(soap, trajectory("adamw", start, grads[1:], lr=0.05, beta1=0.9, beta2=0.95))


def test_lamb_with_a_ratio_of_1_is_adam():
    """From w = 0 the ratio is 1 by rule."""
    start = [torch.zeros(4, 3, dtype=torch.float64)]
    torch.manual_seed(0)
    grads = [[torch.randn(4, 3, dtype=torch.float64)]]
    close(
        trajectory("lamb", start, grads, lr=0.05, eps=1e-4),
        trajectory("adam", start, grads, lr=0.05, eps=1e-4),
    )


def test_lamb_is_adam_times_the_ratio(starts, grads):
    """On each tensor, an update of LAMB is Adam's direction, rescaled to η‖w‖."""
    one = trajectory("lamb", starts, grads[:1], lr=0.05)
    adam = trajectory("adam", starts, grads[:1], lr=0.05, eps=1e-6)
    for w, a, b in zip(starts, one, adam):
        step, direction = a - w, b - w
        torch.testing.assert_close(step / step.norm(), direction / direction.norm())
        assert float(step.norm()) == pytest.approx(0.05 * float(w.norm()), rel=1e-10)


def test_lars_without_a_ratio_is_sgd(starts, grads):
    """Vectors have none."""
    lars = trajectory("lars", starts[1:], [g[1:] for g in grads], lr=0.05, momentum=0.9)
    close(lars, trajectory("sgd", starts[1:], [g[1:] for g in grads], lr=0.05, momentum=0.9))


def test_lion_with_equal_betas_of_0_is_sign_descent(starts, grads):
    lion = trajectory("lion", starts, grads, lr=0.01, beta1=0.0, beta2=0.0)
    close(lion, [w - 0.01 * sum(torch.sign(g[i]) for g in grads) for i, w in enumerate(starts)])


def test_lion_is_not_signum(starts, grads):
    lion = trajectory("lion", starts, grads, lr=0.01)
    params = [w.clone() for w in starts]
    averages = [torch.zeros_like(w) for w in starts]
    for gs in grads:
        for p, m, g in zip(params, averages, gs):
            m.mul_(0.99).add_(g, alpha=0.01)
            p.sub_(0.01 * torch.sign(m))
    assert any(not torch.allclose(a, b) for a, b in zip(lion, params))


def test_adamw_without_decay_is_adam(starts, grads):
    close(trajectory("adamw", starts, grads, lr=0.05), trajectory("adam", starts, grads, lr=0.05))


@pytest.mark.parametrize("curvature", [0.5, 2.0])
def test_momentum_and_nesterov_on_a_quadratic(curvature):
    """f = ½aw²: both are linear maps of (w, b), whose powers numpy takes."""
    lr, mu, n = 0.1, 0.9, 30
    for nesterov in (False, True):
        p = Parameter(torch.tensor([1.0], dtype=torch.float64))
        optimizer = DENSE_OPTIMIZERS["sgd_optimizer"]([p], lr=lr, momentum=mu, nesterov=nesterov)
        for _ in range(n):
            p.grad = curvature * p.detach().clone()
            optimizer.step()
        a = curvature
        # b' = μb + aw; w' = w − η(b'), or w − η(aw + μb') with Nesterov's look ahead.
        momentum = np.array([[1 - lr * a, -lr * mu], [a, mu]])
        ahead = np.array([[1 - lr * a * (1 + mu), -lr * mu**2], [a, mu]])
        expected = np.linalg.matrix_power(ahead if nesterov else momentum, n) @ [1.0, 0.0]
        assert p.item() == pytest.approx(expected[0], rel=1e-10)


def test_schedule_free_sgd_evaluates_the_plain_average_of_z(starts, grads):
    """With a rate that stays, x is the mean of all z, the iterates of plain SGD on these gradients."""
    params = [Parameter(w.clone()) for w in starts]
    optimizer = DENSE_OPTIMIZERS["schedule_free_sgd_optimizer"](params, lr=0.1, momentum=0.9)
    z = [w.clone() for w in starts]
    total = [torch.zeros_like(w) for w in starts]
    for gs in grads:
        for p, g in zip(params, gs):
            p.grad = g.clone()
        optimizer.step()
        for i, g in enumerate(gs):
            z[i] = z[i] - 0.1 * g
            total[i] += z[i]
    optimizer.eval()
    close([p.detach() for p in params], [t / len(grads) for t in total], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("shape", [(8, 8), (12, 5), (5, 12), (1, 6)])
def test_newton_schulz_is_nearly_orthogonal(shape):
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape, dtype=torch.float64), 5))
    assert float(values.min()) > 0.4  # the smallest of a random matrix are still on their way up
    assert float(values.max()) < 1.3


def test_newton_schulz_keeps_the_singular_vectors():
    torch.manual_seed(0)
    m = torch.randn(6, 4, dtype=torch.float64)
    u, _, vt = torch.linalg.svd(m, full_matrices=False)
    inner = u.T @ orthogonal(m, 5) @ vt.T
    torch.testing.assert_close(inner, torch.diag(inner.diag()), rtol=0, atol=1e-12)


def test_newton_schulz_does_not_mind_the_scale():
    torch.manual_seed(0)
    m = torch.randn(6, 4, dtype=torch.float64)
    torch.testing.assert_close(orthogonal(m, 5), orthogonal(1e-3 * m, 5), rtol=1e-10, atol=1e-12)


def test_muon_agrees_with_torch_s_but_for_bfloat16():
    torch.manual_seed(0)
    start = torch.randn(16, 24)
    ours, theirs = Parameter(start.clone()), Parameter(start.clone())
    a = DENSE_OPTIMIZERS["muon_optimizer"]([ours], lr=0.02, weight_decay=0.1)
    b = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        g = torch.randn(16, 24)
        ours.grad, theirs.grad = g.clone(), g.clone()
        a.step()
        b.step()
    step = (ours.data - start).norm()
    assert float((ours.data - theirs.data).norm() / step) < 0.02  # eight bits of mantissa, five products deep
