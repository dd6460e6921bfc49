"""Every dense optimizer follows a float64 trajectory written from its paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
import schedulefree
import torch

from recgrad.optim.dense import DENSE_OPTIMIZERS

STEPS = 12


def sgd(w, grads, *, lr, momentum=0.0, weight_decay=0.0, dampening=0.0, nesterov=False):
    b = None
    for g in grads:
        g = g + weight_decay * w
        b = g if b is None else momentum * b + (1 - dampening) * g
        w = w - lr * (g + momentum * b if nesterov else b)
        yield w


def adagrad(w, grads, *, lr, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10):
    s = np.full_like(w, initial_accumulator_value)
    for g in grads:
        g = g + weight_decay * w
        s = s + g**2
        w = w - lr * g / (np.sqrt(s) + eps)
        yield w


def adam(w, grads, *, lr, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, decoupled=False):
    m = v = largest = np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        if decoupled:
            w = w - lr * weight_decay * w
        else:
            g = g + weight_decay * w
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        largest = np.maximum(largest, v)
        v_hat = (largest if amsgrad else v) / (1 - beta2**t)
        w = w - lr * m / (1 - beta1**t) / (np.sqrt(v_hat) + eps)
        yield w


def adamw(w, grads, **options):
    yield from adam(w, grads, decoupled=True, **options)


def adadelta(w, grads, *, lr, rho=0.95, eps=1e-6, weight_decay=0.0):
    v = d = np.zeros_like(w)
    for g in grads:
        g = g + weight_decay * w
        v = rho * v + (1 - rho) * g**2
        u = g * np.sqrt(d + eps) / np.sqrt(v + eps)
        d = rho * d + (1 - rho) * u**2
        w = w - lr * u
        yield w


def rmsprop(w, grads, *, lr, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False):
    v = mean = b = np.zeros_like(w)
    for g in grads:
        g = g + weight_decay * w
        v = alpha * v + (1 - alpha) * g**2
        mean = alpha * mean + (1 - alpha) * g
        u = g / (np.sqrt(v - mean**2 if centered else v) + eps)
        b = momentum * b + u
        w = w - lr * b
        yield w


def nadam(
    w,
    grads,
    *,
    lr,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    weight_decay=0.0,
    momentum_decay=0.004,
    decoupled_weight_decay=False,
):
    m = v = np.zeros_like(w)
    product = 1.0
    for t, g in enumerate(grads, 1):
        if decoupled_weight_decay:
            w = w * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * w
        mu = beta1 * (1 - 0.5 * 0.96 ** (t * momentum_decay))
        mu_next = beta1 * (1 - 0.5 * 0.96 ** ((t + 1) * momentum_decay))
        product *= mu
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat = mu_next * m / (1 - product * mu_next) + (1 - mu) * g / (1 - product)
        w = w - lr * m_hat / (np.sqrt(v / (1 - beta2**t)) + eps)
        yield w


def radam(w, grads, *, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, decoupled_weight_decay=False):
    m = v = np.zeros_like(w)
    rho_inf = 2 / (1 - beta2) - 1
    for t, g in enumerate(grads, 1):
        if decoupled_weight_decay:
            w = w * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * w
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat = m / (1 - beta1**t)
        rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
        if rho > 5:
            r = math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
            w = w - lr * r * m_hat * math.sqrt(1 - beta2**t) / (np.sqrt(v) + eps)
        else:
            w = w - lr * m_hat
        yield w


def rms(x):
    return math.sqrt(np.mean(x**2))


def adafactor(w, grads, *, lr, beta2_decay=-0.8, eps1=None, eps2=1e-3, d=1.0, weight_decay=0.0, machine_eps):
    eps1 = machine_eps if eps1 is None else eps1
    rows = np.zeros(w.shape[:-1]) if w.ndim > 1 else None
    cols = np.zeros(w.shape[:-2] + w.shape[-1:]) if w.ndim > 1 else None
    v = np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        alpha = max(eps2, rms(w)) * min(lr, 1 / math.sqrt(t))
        beta2 = 1 - t**beta2_decay
        w = w * (1 - lr * weight_decay)
        if w.ndim > 1:
            rows = beta2 * rows + (1 - beta2) * np.mean(g**2, -1)
            cols = beta2 * cols + (1 - beta2) * np.mean(g**2, -2)
            v = rows[..., :, None] * cols[..., None, :] / np.maximum(rows.mean(-1), eps1)[..., None, None]
        else:
            v = beta2 * v + (1 - beta2) * g**2
        u = g / np.sqrt(np.maximum(v, eps1**2))
        w = w - alpha * u / max(1, rms(u) / d)
        yield w


def lion(w, grads, *, lr, beta1=0.9, beta2=0.99, weight_decay=0.0):
    m = np.zeros_like(w)
    for g in grads:
        u = np.sign(beta1 * m + (1 - beta1) * g)
        w = w - lr * (u + weight_decay * w)
        m = beta2 * m + (1 - beta2) * g
        yield w


def lamb(w, grads, *, lr, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0):
    m = v = np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        r = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps) + weight_decay * w
        a, b = np.linalg.norm(w), np.linalg.norm(r)
        w = w - lr * (a / b if a > 0 and b > 0 else 1.0) * r
        yield w


def lars(w, grads, *, lr, momentum=0.9, weight_decay=0.0, trust_coefficient=0.001, eps=1e-8, nesterov=False):
    m = np.zeros_like(w)
    adapted = w.ndim > 1
    for g in grads:
        a, b = np.linalg.norm(w), np.linalg.norm(g)
        trust = trust_coefficient * a / (b + weight_decay * a + eps) if a > 0 and b > 0 else 1.0
        step = lr * (trust if adapted else 1.0) * (g + (weight_decay * w if adapted else 0))
        m = momentum * m + step
        w = w - (step + momentum * m if nesterov else m)
        yield w


def newton_schulz(m, steps):
    x = m / max(np.linalg.norm(m), 1e-7)
    if x.shape[0] > x.shape[1]:
        x = x.T
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if m.shape[0] > m.shape[1] else x


def muon(w, grads, *, lr, momentum=0.95, nesterov=True, ns_steps=5, weight_decay=0.0, scale="MATCH_RMS"):
    b = np.zeros_like(w)
    rows, cols = w.shape
    factor = 0.2 * math.sqrt(max(rows, cols)) if scale == "MATCH_RMS" else math.sqrt(max(1, rows / cols))
    for g in grads:
        b = momentum * b + g
        u = g + momentum * b if nesterov else b
        w = w - lr * weight_decay * w - lr * factor * newton_schulz(u, ns_steps)
        yield w


def soap(
    w,
    grads,
    *,
    lr,
    beta1=0.95,
    beta2=0.95,
    shampoo_beta=None,
    eps=1e-8,
    weight_decay=0.0,
    precondition_frequency=10,
    max_precondition_dim=10000,
):
    """m in the parameter's own basis, projected again at each update: equal to turning it along."""
    shampoo_beta = beta2 if shampoo_beta is None else shampoo_beta
    left, right = (np.zeros((n, n)) for n in w.shape)
    turned = [n <= max_precondition_dim for n in w.shape]
    bases = [np.eye(n) for n in w.shape]
    m = v = np.zeros_like(w)
    for t, g in enumerate(grads):
        if t > 0:
            projected = bases[0].T @ g @ bases[1]
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * projected**2
            m_hat = bases[0].T @ m @ bases[1] / (1 - beta1**t)
            step = m_hat / (np.sqrt(v / (1 - beta2**t)) + eps)
            w = w - lr * weight_decay * w
            w = w - lr * bases[0] @ step @ bases[1].T
        left = shampoo_beta * left + (1 - shampoo_beta) * g @ g.T
        right = shampoo_beta * right + (1 - shampoo_beta) * g.T @ g
        for axis, stats in enumerate((left, right)):
            if not turned[axis]:
                continue
            if t == 0:
                bases[axis] = np.linalg.eigh(stats)[1][:, ::-1]
            elif t % precondition_frequency == 0:
                estimates = np.diag(bases[axis].T @ stats @ bases[axis])
                order = np.argsort(-estimates)
                v = np.take(v, order, axis)
                bases[axis] = np.linalg.qr((stats @ bases[axis])[:, order])[0]
        yield w


def schedule_free(w, grads, *, lr, beta, r, weight_lr_power, step_of, rates):
    """y, x: gradients are taken at y, x is the weighted average of z."""
    z = x = y = w
    weights = 0.0
    largest = 0.0
    for t, g in enumerate(grads, 1):
        rate = lr * rates(t)
        largest = max(largest, rate)
        weight = t**r * largest**weight_lr_power
        weights += weight
        c = weight / weights if weights > 0 else 0.0
        z = z - rate * step_of(t, g, y)
        x = (1 - c) * x + c * z
        y = (1 - beta) * z + beta * x
        yield y, x


def schedule_free_sgd(
    w, grads, *, lr, momentum=0.9, weight_decay=0.0, warmup_steps=0, r=0.0, weight_lr_power=2.0
):
    return schedule_free(
        w,
        grads,
        lr=lr,
        beta=momentum,
        r=r,
        weight_lr_power=weight_lr_power,
        step_of=lambda t, g, y: g + weight_decay * y,
        rates=lambda t: min(1.0, t / warmup_steps) if warmup_steps else 1.0,
    )


class SecondMoment:
    def __init__(self, beta2, eps):
        self.beta2, self.eps, self.v = beta2, eps, 0.0

    def normalise(self, t, g):
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        return g / (np.sqrt(self.v / (1 - self.beta2**t)) + self.eps)


def schedule_free_adamw(
    w,
    grads,
    *,
    lr,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    weight_decay=0.0,
    warmup_steps=0,
    r=0.0,
    weight_lr_power=2.0,
):
    moment = SecondMoment(beta2, eps)
    return schedule_free(
        w,
        grads,
        lr=lr,
        beta=beta1,
        r=r,
        weight_lr_power=weight_lr_power,
        step_of=lambda t, g, y: moment.normalise(t, g) + weight_decay * y,
        rates=lambda t: min(1.0, t / warmup_steps) if warmup_steps else 1.0,
    )


def schedule_free_radam(
    w,
    grads,
    *,
    lr,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    weight_decay=0.0,
    r=0.0,
    weight_lr_power=2.0,
    silent_sgd_phase=True,
):
    moment = SecondMoment(beta2, eps)
    rho_inf = 2 / (1 - beta2) - 1

    def rho(t):
        return rho_inf - 2 * t * beta2**t / (1 - beta2**t)

    def rate(t):
        p = rho(t)
        if p <= 4:
            return 0.0 if silent_sgd_phase else 1.0
        return math.sqrt((p - 4) * (p - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * p))

    def step(t, g, y):
        normalised = moment.normalise(t, g)
        return (normalised if rho(t) > 4 else g) + weight_decay * y

    return schedule_free(
        w, grads, lr=lr, beta=beta1, r=r, weight_lr_power=weight_lr_power, step_of=step, rates=rate
    )


CASES = {
    "sgd": (
        sgd,
        [
            {"lr": 0.1, "momentum": 0.0},
            {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
            {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
            {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
        ],
    ),
    "adagrad": (
        adagrad,
        [{"lr": 0.1}, {"lr": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3}],
    ),
    "adam": (
        adam,
        [
            {"lr": 0.1},
            {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.1, "eps": 1e-3},
            {"lr": 0.1, "beta2": 0.5, "amsgrad": True},
        ],
    ),
    "adamw": (
        adamw,
        [{"lr": 0.1, "weight_decay": 0.1}, {"lr": 0.1, "beta2": 0.5, "amsgrad": True, "weight_decay": 0.01}],
    ),
    "adadelta": (adadelta, [{"lr": 1.0}, {"lr": 0.5, "rho": 0.9, "eps": 1e-4, "weight_decay": 0.1}]),
    "rmsprop": (
        rmsprop,
        [
            {"lr": 0.1},
            {"lr": 0.1, "alpha": 0.9, "momentum": 0.8, "weight_decay": 0.1, "eps": 1e-4},
            {"lr": 0.1, "alpha": 0.9, "momentum": 0.5, "centered": True, "eps": 1e-2},
        ],
    ),
    "nadam": (
        nadam,
        [
            {"lr": 0.1},
            {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.1, "momentum_decay": 0.1},
            {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True},
        ],
    ),
    "radam": (
        radam,
        [
            {"lr": 0.1},
            {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.1, "eps": 1e-3},
            {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True},
        ],
    ),
    "adafactor": (
        adafactor,
        [
            {"lr": 0.1},
            {"lr": 0.3, "beta2_decay": -0.5, "eps2": 0.5, "d": 0.5, "weight_decay": 0.1},
            {"lr": 0.1, "eps1": 0.8},
        ],
    ),
    "lion": (lion, [{"lr": 0.1}, {"lr": 0.1, "beta1": 0.7, "beta2": 0.8, "weight_decay": 0.1}]),
    "lamb": (lamb, [{"lr": 0.1}, {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.1, "eps": 1e-3}]),
    "lars": (
        lars,
        [
            {"lr": 1.0},
            {"lr": 1.0, "momentum": 0.5, "weight_decay": 0.1, "trust_coefficient": 0.02, "eps": 0.1},
            {"lr": 1.0, "nesterov": True, "weight_decay": 0.01},
        ],
    ),
    "muon": (
        muon,
        [
            {"lr": 0.1},
            {"lr": 0.1, "momentum": 0.8, "nesterov": False, "ns_steps": 3, "weight_decay": 0.1},
            {"lr": 0.1, "scale": "SPECTRAL"},
        ],
    ),
    "soap": (
        soap,
        [
            {"lr": 0.1, "precondition_frequency": 3},
            {"lr": 0.1, "precondition_frequency": 1, "weight_decay": 0.1, "beta1": 0.8, "shampoo_beta": 0.7},
            {"lr": 0.1, "precondition_frequency": 2, "max_precondition_dim": 4},
        ],
    ),
    "schedule_free_sgd": (
        schedule_free_sgd,
        [{"lr": 0.5}, {"lr": 0.5, "momentum": 0.7, "weight_decay": 0.1, "warmup_steps": 4, "r": 1.0}],
    ),
    "schedule_free_adamw": (
        schedule_free_adamw,
        [
            {"lr": 0.1},
            {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.1, "warmup_steps": 4, "eps": 1e-3},
            {"lr": 0.1, "r": 0.5, "weight_lr_power": 1.0},
        ],
    ),
    "schedule_free_radam": (
        schedule_free_radam,
        [{"lr": 0.1, "beta2": 0.9}, {"lr": 0.1, "weight_decay": 0.1, "silent_sgd_phase": False, "r": 1.0}],
    ),
}
ALL = [
    pytest.param(name, options, id=f"{name}-{i}")
    for name, (_, variants) in CASES.items()
    for i, options in enumerate(variants)
]
MATRICES_ONLY = {"muon", "soap"}


def test_every_optimizer_has_a_reference():
    assert {f"{name}_optimizer" for name in CASES} | {"custom_optimizer"} == set(DENSE_OPTIMIZERS)


def gradients(shape, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for _ in range(STEPS)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "options"), ALL)
def test_follows_the_paper(name, options, dtype):
    reference = CASES[name][0]
    shapes = [(6, 4), (3, 5)] if name in MATRICES_ONLY else [(6, 4), (5,), ()]
    if name == "soap" and "max_precondition_dim" not in options:
        # The longer side of a first gradient has eigenvalues 0, whose eigenvectors are anyone's.
        shapes = [(4, 4), (6, 6)]
    rng = np.random.default_rng(1)
    starts = [rng.normal(size=shape) for shape in shapes]
    streams = [gradients(shape, seed) for seed, shape in enumerate(shapes)]
    params = [torch.nn.Parameter(torch.tensor(w, dtype=dtype)) for w in starts]
    optimizer = DENSE_OPTIMIZERS[f"{name}_optimizer"](params, **options)
    extra = {"machine_eps": torch.finfo(dtype).eps} if name == "adafactor" else {}
    expected = [list(reference(w, gs, **options, **extra)) for w, gs in zip(starts, streams)]
    # 12 updates, each a handful of operations; LAMB's and LARS's norms and the Newton–Schulz
    # steps add a few more roundings.
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-5}
    if name == "nadam" and dtype == torch.float64:
        tolerance = {"rtol": 1e-7, "atol": 1e-8}  # torch keeps the product of the μ in float32
    for t in range(STEPS):
        for p, stream in zip(params, streams):
            p.grad = torch.tensor(stream[t], dtype=dtype)
        optimizer.step()
        for p, trajectory in zip(params, expected):
            wanted = trajectory[t][0] if name.startswith("schedule_free") else trajectory[t]
            np.testing.assert_allclose(p.detach().numpy(), wanted, **tolerance)
    if name.startswith("schedule_free"):
        optimizer.eval()
        for p, trajectory in zip(params, expected):
            np.testing.assert_allclose(p.detach().numpy(), trajectory[-1][1], **tolerance)


@pytest.mark.parametrize(
    ("name", "reference"),
    [("sgd", "SGDScheduleFreeReference"), ("adamw", "AdamWScheduleFreeReference")],
)
def test_schedule_free_equals_its_authors_slow_reference(name, reference):
    """The package's own readable versions, which keep x, y and z, agree with ours from y and z."""
    torch.manual_seed(0)
    start = torch.randn(4, 3, dtype=torch.float64)
    fast, slow = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    options = {"lr": 0.1, "weight_decay": 0.05, "warmup_steps": 3}
    ours = DENSE_OPTIMIZERS[f"schedule_free_{name}_optimizer"]([fast], **options)
    theirs = getattr(schedulefree, reference)([slow], **options)
    theirs.train()
    for _ in range(10):
        g = torch.randn(4, 3, dtype=torch.float64)
        fast.grad, slow.grad = g.clone(), g.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)


def test_adafactor_floor_of_tiny_gradients():
    """Where R·C falls below eps1², V is eps1² and the rest keeps its own."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=(4, 3))
    grads = [rng.normal(size=(4, 3)) * np.array([1.0, 1e-9, 1e-12, 1.0])[:, None] for _ in range(4)]
    p = torch.nn.Parameter(torch.tensor(start))
    optimizer = DENSE_OPTIMIZERS["adafactor_optimizer"]([p], lr=0.1, eps1=1e-6)
    for g in grads:
        p.grad = torch.tensor(g)
        optimizer.step()
    *_, expected = adafactor(start, grads, lr=0.1, eps1=1e-6, machine_eps=0.0)
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-10)
