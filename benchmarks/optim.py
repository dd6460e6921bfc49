"""Steps of dense optimizers beside torch's and pytorch_optimizer's, and what the update step adds to them.

    python benchmarks/optim.py [--rounds N] [--threads N] [--only NAME …] [--json FILE]

The parameters are those of DeepFM's 512-256-128 tower over 26 embeddings of 16 and 13 numbers
(Muon and SOAP: the hidden matrices of it). All run in one process, turn by turn on the same
gradients; a ratio is the median over rounds of (ours / the peer's) in that round, the best of
three steps each, against the fastest of the peers. Where the peer has the same rules, the weights
are compared first. One thread by default: with more, other work on the machine holds up the
threads' barriers.

The overhead is that of `Updater` in a DeepFM training step of 8,192 rows: the time in backward
and step that is neither autograd's nor the optimizers'.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytorch_optimizer
import schedulefree
import torch
from results.bars import Bar, write_bars
from torch.nn import Parameter

from recgrad.optim.dense import DENSE_OPTIMIZERS

WIDTH = 26 * 16 + 13
TOWER = [(512, WIDTH), (512,), (256, 512), (256,), (128, 256), (128,), (1, 128), (1,)]
HIDDEN = [(256, 512), (128, 256)]
MOST, MUON_LEAST, OVERHEAD_MOST = 1.10, 5.0, 0.02
LR = 1e-3


@dataclass
class Peer:
    """A way of doing the same: `exact` when its rules are ours to the last term."""

    name: str
    make: Callable[[list[Parameter]], Any]
    exact: bool = True


def torch_peers(cls: type, modes: str = "single foreach fused", **options: Any) -> list[Peer]:
    kinds = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    return [
        Peer(f"torch {mode}", lambda p, mode=mode: cls(p, lr=LR, **options, **kinds[mode]))
        for mode in modes.split()
    ]


def other_peers(name: str, *, exact: bool = True, **options: Any) -> list[Peer]:
    make = getattr(pytorch_optimizer, name)
    return [
        Peer(
            f"pytorch_optimizer foreach={foreach}",
            lambda p, f=foreach: make(p, lr=LR, foreach=f, **options),
            exact,
        )
        for foreach in (True, False)
    ]


def package_peers(name: str, **options: Any) -> list[Peer]:
    return [Peer("schedulefree", lambda p: getattr(schedulefree, name)(p, lr=LR, **options))]


O = torch.optim  # noqa: E741
BOTH = "single foreach"
CASES: dict[str, tuple[dict[str, Any], list[Peer]]] = {
    "sgd": ({"momentum": 0.9}, torch_peers(O.SGD, momentum=0.9)),
    "adagrad": ({}, torch_peers(O.Adagrad)),
    "adam": ({}, torch_peers(O.Adam)),
    "adamw": ({"weight_decay": 0.01}, torch_peers(O.AdamW, weight_decay=0.01)),
    "adadelta": ({"rho": 0.9}, torch_peers(O.Adadelta, BOTH)),
    "rmsprop": ({}, torch_peers(O.RMSprop, BOTH)),
    "nadam": ({}, torch_peers(O.NAdam, BOTH)),
    "radam": ({}, torch_peers(O.RAdam, BOTH) + other_peers("RAdam", exact=False)[:1]),
    "adafactor": ({}, torch_peers(O.Adafactor, BOTH)),
    "lion": ({"weight_decay": 0.01}, other_peers("Lion", weight_decay=0.01)),
    "lamb": ({"weight_decay": 0.01}, other_peers("Lamb", weight_decay=0.01, exact=False)),
    "lars": ({}, other_peers("LARS", exact=False)),
    "soap": ({}, other_peers("SOAP", exact=False)[:1]),
    "schedule_free_sgd": ({}, package_peers("SGDScheduleFree") + other_peers("ScheduleFreeSGD", exact=False)),
    "schedule_free_adamw": (
        {},
        package_peers("AdamWScheduleFree") + other_peers("ScheduleFreeAdamW", exact=False),
    ),
    "schedule_free_radam": (
        {},
        package_peers("RAdamScheduleFree") + other_peers("ScheduleFreeRAdam", exact=False),
    ),
    "muon": (
        {},
        [Peer("torch", lambda p: O.Muon(p, lr=LR, adjust_lr_fn="match_rms_adamw", weight_decay=0), False)],
    ),
}


def fresh(name: str) -> list[Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = HIDDEN if name in ("muon", "soap") else TOWER
    return [Parameter(torch.randn(shape, generator=generator) * 0.02) for shape in shapes]


def feed(params: list[Parameter], gradients: list[torch.Tensor]) -> None:
    for p, g in zip(params, gradients):
        if p.grad is None:
            p.grad = g.clone()
        else:
            p.grad.copy_(g)


def gradients_of(name: str, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator) * 0.01 for p in fresh(name)]


def prepare(make: Callable[[list[Parameter]], Any], name: str) -> tuple[Any, list[Parameter]]:
    params = fresh(name)
    optimizer = make(params)
    if hasattr(optimizer, "train"):
        optimizer.train()
    return optimizer, params


def compare(name: str, rounds: int) -> tuple[str, float, float, float]:
    """(the fastest peer, our median, its median in seconds, the median ratio)."""
    options, peers = CASES[name]
    ours = Peer("ours", lambda p: DENSE_OPTIMIZERS[f"{name}_optimizer"](p, lr=LR, **options))
    running = [(peer, *prepare(peer.make, name)) for peer in [ours, *peers]]
    batches = [gradients_of(name, seed) for seed in range(4)]
    for i in range(6):
        for _, optimizer, params in running:
            feed(params, batches[i % 4])
            optimizer.step()
    for peer, _, params in running[1:]:
        if peer.exact:
            for p, q in zip(running[0][2], params):
                torch.testing.assert_close(p.data, q.data, rtol=1e-3, atol=1e-5)
    times: list[list[float]] = [[] for _ in running]
    tries_each = 1 if name in ("muon", "soap") else 3  # SOAP's tenth steps are its own
    for i in range(rounds):
        # The order turns, so that no one always follows the same neighbour.
        for k in range(len(running)):
            at = (i + k) % len(running)
            _, optimizer, params = running[at]
            tries = []
            for more in range(tries_each):
                feed(params, batches[(i + more) % 4])
                begun = time.perf_counter()
                optimizer.step()
                tries.append(time.perf_counter() - begun)
            times[at].append(min(tries))
    best = min(range(1, len(running)), key=lambda at: median(times[at]))
    ratio = median(a / b for a, b in zip(times[0], times[best]))
    return running[best][0].name, median(times[0]), median(times[best]), ratio


class Stopwatch:
    """Adds up the time inside calls."""

    def __init__(self) -> None:
        self.total = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.total += time.perf_counter() - begun

        return timed


def overhead(rounds: int, edits: dict[str, Any]) -> tuple[float, float]:
    """(seconds of a whole step, the share of it that is the update's own)."""
    from recgrad.config import edit_config, load_config
    from recgrad.synth import write_synth
    from recgrad.training.assembly import build_training

    with tempfile.TemporaryDirectory() as folder:
        write_synth(folder, 40_000, eval_rows=1000, seed=0)
        changes = {
            "data_config.batch_size": 8192,
            "model_config.deepfm.deep.hidden_units": [512, 256, 128],
            **edits,
        }
        config = edit_config(load_config(str(Path(folder) / "deepfm.config")), json.dumps(changes))
        training = build_training(config)
        batches = [batch for batch in training.train_loader.epoch(0) if batch.size == 8192][:4]
        task, updater = training.task, training.updater
        optimizers, autograd = Stopwatch(), Stopwatch()
        for optimizer in {id(part.optimizer): part.optimizer for part in updater.parts}.values():
            optimizer.step = optimizers.around(optimizer.step)
        shares, wholes = [], []
        task.train()
        for i in range(rounds):
            batch = batches[i % len(batches)]
            begun = time.perf_counter()
            with updater.autocast():
                losses = task.losses(task(batch), batch)
            optimizers.total = autograd.total = 0.0
            total = losses["total"]
            total.backward = autograd.around(total.backward)
            entered = time.perf_counter()
            updater.backward(total)
            updater.step()
            done = time.perf_counter()
            own = done - entered - optimizers.total - autograd.total
            wholes.append(done - begun)
            shares.append(own / (done - begun))
        return median(wholes[3:]), median(shares[3:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="optimizers, or 'overhead'")
    parser.add_argument("--json", metavar="FILE", type=Path)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    bars = []
    print(f"{'optimizer':<22}{'ours':>9}{'peer':>9}{'ratio':>8}  goal      peer")
    for name in CASES:
        if args.only and name not in args.only:
            continue
        peer, ours, theirs, ratio = compare(name, 12 if name == "muon" else args.rounds)
        muon = name == "muon"  # by how much it is faster, not slower
        ratio, goal = (1 / ratio, MUON_LEAST) if muon else (ratio, MOST)
        found = Bar(f"optim/{name}", ratio, goal, at_least=muon, note=peer)
        print(
            f"{name:<22}{ours * 1e6:>7.0f}µs{theirs * 1e6:>7.0f}µs{ratio:>8.2f}  {found.goal_text:<7} "
            f"{found.verdict} {peer}",
            flush=True,
        )
        bars.append(found)
    if not args.only or "overhead" in args.only:
        print(f"\n{'update of a DeepFM step':<34}{'step':>9}{'own share':>11}  goal")
        for label, edits, counts in (
            ("as trained by default", {}, True),
            ("clipped by norm", {"train_config.grad_clipping.clipping_type": "norm"}, False),
            (
                "clipped by norm over both halves",
                {
                    "train_config.grad_clipping.clipping_type": "norm",
                    "train_config.grad_clipping.enable_global_grad_clip": True,
                },
                False,
            ),
        ):
            whole, share = overhead(40, edits)
            found = Bar("optim/overhead", share, OVERHEAD_MOST, at_least=False)
            mark = f"{found.goal_text} {found.verdict}"
            mark = mark if counts else "(math of the clipping included)"
            print(f"{label:<34}{whole * 1e3:>7.1f}ms{share:>11.2%}  {mark}", flush=True)
            if counts:
                bars.append(found)
    write_bars(args.json, bars)


if __name__ == "__main__":
    main()
