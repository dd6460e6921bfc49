"""What holds for every dense optimizer of the registry, whoever's code runs."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.nn import Parameter

from recgrad.optim.dense import DENSE_OPTIMIZERS

NAMES = sorted(DENSE_OPTIMIZERS)
# Settings with which each optimizer walks through Rosenbrock's valley in the steps it is given, where a rate
# of 0.03 will not do.
VALLEY = {name: {"lr": 0.03} for name in NAMES} | {
    "sgd_optimizer": {"lr": 0.003},
    "adagrad_optimizer": {"lr": 1.0},
    "adadelta_optimizer": {"lr": 1.0},
    "rmsprop_optimizer": {"lr": 0.01},
    "radam_optimizer": {"lr": 0.004, "beta2": 0.99},
    "lars_optimizer": {"lr": 2.0},
    "schedule_free_sgd_optimizer": {"lr": 0.01},
    "custom_optimizer": {"class_path": "pytorch_optimizer.AdaBelief", "params": {"lr": 0.03}},
}
OPTIONS = {name: options if name == "custom_optimizer" else {"lr": 0.05} for name, options in VALLEY.items()}
MATRICES_ONLY = {"muon_optimizer"}


def make(name, params, **changes):
    options = {**OPTIONS[name], **changes}
    if name == "custom_optimizer" and changes:
        options = {**OPTIONS[name], "params": {**OPTIONS[name]["params"], **changes}}
    optimizer = DENSE_OPTIMIZERS[name](params, **options)
    if hasattr(optimizer, "train"):
        optimizer.train()
    return optimizer


def parameters(name, dtype=torch.float32):
    torch.manual_seed(3)
    shapes = [(5, 4), (3, 6)] if name in MATRICES_ONLY else [(5, 4), (3, 3), (7,)]
    return [Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]


def feed(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)


def run(optimizer, params, seeds):
    for seed in seeds:
        feed(params, seed)
        optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_is_a_torch_optimizer_with_a_line_of_help(name):
    entry = DENSE_OPTIMIZERS[name]
    assert isinstance(make(name, parameters(name)), torch.optim.Optimizer)
    assert entry.__doc__.strip().splitlines()[0].endswith(".")
    arguments = list(inspect.signature(entry).parameters.values())[1:]
    assert all(a.kind is a.KEYWORD_ONLY for a in arguments)


@pytest.mark.parametrize("name", NAMES)
def test_state_saved_mid_run_gives_identical_weights(name):
    whole, broken = parameters(name), parameters(name)
    optimizer = make(name, whole)
    run(optimizer, whole, range(16))

    first = make(name, broken)
    run(first, broken, range(8))
    weights = [p.detach().clone() for p in broken]
    resumed_params = [Parameter(w.clone()) for w in weights]
    resumed = make(name, resumed_params)
    resumed.load_state_dict(first.state_dict())
    run(resumed, resumed_params, range(8, 16))
    for a, b in zip(whole, resumed_params):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_states_lie_in_memory_as_checkpoints_keep_them(name):
    """Products of matrices round by how these lie: another order after a resume would be other bits."""
    params = parameters(name)
    optimizer = make(name, params)
    for _ in range(2):
        run(optimizer, params, range(11))
        tensors = [s for state in optimizer.state.values() for s in state.values() if torch.is_tensor(s)]
        assert all(tensor.is_contiguous() for tensor in tensors)


@pytest.mark.parametrize("name", NAMES)
def test_rate_0_moves_nothing(name):
    params = parameters(name)
    before = [p.detach().clone() for p in params]
    decay = {"weight_decay": 0.1} if name != "custom_optimizer" else {}
    optimizer = make(name, params, lr=0.0, **decay)
    run(optimizer, params, range(12))
    assert all(torch.equal(p, b) for p, b in zip(params, before))


@pytest.mark.parametrize("name", NAMES)
def test_parameters_without_gradients_are_untouched(name):
    params = parameters(name)
    before = params[1].detach().clone()
    decay = {"weight_decay": 0.1} if name != "custom_optimizer" else {}
    optimizer = make(name, params, **decay)
    for seed in range(4):
        feed(params, seed)
        params[1].grad = None
        optimizer.step()
    assert torch.equal(params[1], before)
    # A gradient that comes late starts that parameter's history, and nothing breaks.
    run(optimizer, params, range(4, 8))
    assert all(torch.isfinite(p).all() for p in params)
    assert not torch.equal(params[1], before)


# SOAP's decay is compared where it is AdamW; one update is not enough, since its first makes none.
@pytest.mark.parametrize("name", [n for n in NAMES if n != "custom_optimizer"])
def test_weight_decay_shrinks_weights(name):
    """A gradient of (almost) 0 and a decay: the norm falls, and faster with more of it."""
    norms = []
    for decay in (0.0, 0.1, 0.4):
        params = parameters(name, torch.float64)[:1]
        optimizer = make(name, params, weight_decay=decay, lr=0.01)
        for _ in range(20):
            params[0].grad = torch.full_like(params[0], 1e-12)
            optimizer.step()
        norms.append(params[0].detach().norm().item())
    assert norms[0] > norms[1]
    assert norms[1] >= norms[2]


@pytest.mark.parametrize(
    "name", [n for n in NAMES if "foreach" in inspect.signature(DENSE_OPTIMIZERS[n]).parameters]
)
def test_foreach_equals_tensor_by_tensor(name):
    results = []
    for foreach in (True, False):
        params = parameters(name, torch.float64)
        run(make(name, params, foreach=foreach, weight_decay=0.05), params, range(12))
        results.append(params)
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "name", [n for n in NAMES if "fused" in inspect.signature(DENSE_OPTIMIZERS[n]).parameters]
)
def test_fused_equals_unfused(name):
    results = []
    for fused in (True, False):
        params = parameters(name, torch.float64)
        run(make(name, params, fused=fused, weight_decay=0.05), params, range(12))
        results.append(params)
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_layout_of_weights_and_gradients_does_not_matter(name):
    """Transposed and strided parameters, transposed and broadcast gradients: as if contiguous."""
    plain, odd = [], []
    torch.manual_seed(5)
    # Square, since the longer side of a matrix leaves SOAP's basis to rounding.
    for values, view in [
        (torch.randn(4, 4), lambda v: v.T.contiguous().T),
        (torch.randn(3, 3), lambda v: torch.stack([v, v], -1).reshape(3, 6)[:, ::2]),
    ]:
        plain.append(Parameter(values.clone()))
        odd.append(Parameter(view(values.clone())))
    assert not any(p.is_contiguous() for p in odd)
    a, b = make(name, plain), make(name, odd)
    for seed in range(4):
        feed(plain, seed)
        for p, q in zip(plain, odd):
            if seed == 3:
                p.grad = p.grad[:, :1].expand(p.shape).contiguous()
            q.grad = p.grad[:, :1].clone().expand(p.shape) if seed == 3 else p.grad.T.contiguous().T
        a.step()
        b.step()
    for p, q in zip(plain, odd):
        torch.testing.assert_close(p.data, q.data, rtol=5e-6, atol=5e-7)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_another_layout_than_their_contiguous_parameter(name):
    plain, odd = Parameter(torch.ones(5, 5)), Parameter(torch.ones(5, 5))
    a, b = make(name, [plain]), make(name, [odd])
    for seed in range(3):
        feed([plain], seed)
        odd.grad = plain.grad.T.contiguous().T
        a.step()
        b.step()
    torch.testing.assert_close(plain.data, odd.data, rtol=5e-6, atol=5e-7)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in MATRICES_ONLY | {"custom_optimizer"}])
def test_scalars_and_empty_tensors(name):
    scalar, empty, flat = (
        Parameter(torch.tensor(0.5)),
        Parameter(torch.zeros(0, 3)),
        Parameter(torch.zeros(0)),
    )
    optimizer = make(name, [scalar, empty, flat])
    for _ in range(8):
        scalar.grad = torch.tensor(1.0)
        empty.grad, flat.grad = torch.zeros(0, 3), torch.zeros(0)
        optimizer.step()
    assert scalar.item() < 0.5
    assert empty.shape == (0, 3)
    assert flat.shape == (0,)


def test_muon_takes_empty_matrices_and_refuses_vectors():
    empty = Parameter(torch.zeros(0, 3))
    optimizer = make("muon_optimizer", [empty])
    empty.grad = torch.zeros(0, 3)
    optimizer.step()
    with pytest.raises(ValueError, match=r"matrices only, got a tensor of shape \(3,\)"):
        make("muon_optimizer", [Parameter(torch.zeros(3))])


@pytest.mark.parametrize("name", NAMES)
def test_a_zero_tensor_can_move_and_a_zero_gradient_gives_no_nan(name):
    zero, still = Parameter(torch.zeros(4, 4)), Parameter(torch.ones(4, 4))
    optimizer = make(name, [zero, still])
    torch.manual_seed(0)
    for _ in range(12):
        zero.grad, still.grad = torch.randn(4, 4), torch.zeros(4, 4)
        optimizer.step()
    assert torch.isfinite(zero).all()
    assert zero.abs().sum() > 0
    assert torch.equal(still, torch.ones(4, 4))


def rosenbrock(w):
    """(1−x)² + 100(y−x²)², lowest at (1, 1), and its gradient."""
    x, y = w.detach().flatten().tolist()
    slope = [-2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)]
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2, torch.tensor(slope, dtype=w.dtype).reshape(w.shape)


@pytest.mark.parametrize("name", NAMES)
def test_converges_on_rosenbrock(name):
    """From (−1, 1), round the bend, to a hundredth of the value at the bend (1 at the origin)."""
    shape = (2, 1) if name in MATRICES_ONLY | {"lars_optimizer", "soap_optimizer"} else (2,)
    w = Parameter(torch.tensor([-1.0, 1.0], dtype=torch.float64).reshape(shape))
    options = VALLEY[name]
    optimizer = DENSE_OPTIMIZERS[name]([w], **options)
    base = options["lr"] if "lr" in options else options["params"]["lr"]
    steps = 3000
    for n in range(steps):
        if not name.startswith("schedule_free"):
            # With a rate that stays, steps of a fixed length would go on dancing about the valley.
            optimizer.param_groups[0]["lr"] = base * (1 - n / steps)
        w.grad = rosenbrock(w)[1]
        optimizer.step()
    if hasattr(optimizer, "eval"):
        optimizer.eval()
    assert rosenbrock(w)[0] < 0.01
