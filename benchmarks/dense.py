"""The dense half against its own matrix products: how near a step comes to torch's products alone.

    python benchmarks/dense.py [--json FILE] [--rounds N] [--only deepfm mmoe dssm din] [--layers] [--repeats]

DeepFM (deep 512-256-128 over 13 numbers and 26 ids of dim 16, final 64, batch 8192) is a whole loop that
reads a parquet file, logs and computes metrics; MMoE (3 experts 512-256-128, 2 towers 256-128-64, batch 8192)
and DSSM (two towers 512-256-128 to 64, the other rows of 4096 as negatives) are whole updates, lookups and
optimizers included, of batches in memory. Beside each the matrix products that its network needs, forward
and backward, done by torch with nothing between them. DIN's attention (256-64 over histories of up to 100
positions, dim 48) is held against the rate of torch's square product, the machine's best. Everything in
turn, in one process; medians. `--layers` shows instead what linear layers with ReLU cost by products of our
own, by torch's with one pass after each, and by torch's operations, forward and backward; `--repeats` what a
first layer costs whose ids repeat, by products of rows and of distinct ids.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import models
import numpy as np
import torch
from google.protobuf import text_format
from peers.bounds import Product, interleaved, layer_products, operations, product_rate, product_times
from peers.din import ATTENTION, DIM, DIN_BATCH, DIN_ROWS
from results.bars import Bar, describe_bar, write_bars
from torch import nn
from train import attention_operations, criteo_config, loop_seconds

from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.models.build import build_model
from recgrad.nn import relu_layers
from recgrad.nn.encoders.din import DINEncoder
from recgrad.nn.field_ids import FieldIds, note_field_ids
from recgrad.nn.joining import join
from recgrad.nn.mlp import MLP
from recgrad.nn.moe import Experts
from recgrad.optim.sparse import Adagrad
from recgrad.synth import write_synth
from recgrad.training.assembly import build_training
from recgrad.training.runtime import set_up_process
from recgrad.training.task import Task

ROWS, DSSM_ROWS, LOOP_STEPS = 8192, 4096, 20
NUMBERS, IDS = 13, 26 * 16
BIG = "hidden_units: [512, 256, 128]"
LAYERS = ((1, [512, 256, 128]), (3, [512, 256, 128]), (8, [128, 64]), (8, [64, 32]), (4, [32, 16]))
TOWERS = "".join(
    f"task_towers {{ tower_name: '{name}' label_name: '{name}' mlp {{ hidden_units: [256, 128, 64] }} "
    f"losses {{ binary_cross_entropy {{}} }} }}"
    for name in ("click", "buy")
)
MMOE = f"{models.ALL} mmoe {{ expert_mlp {{ {BIG} }} num_expert: 3 {TOWERS} }}"
DSSM = f"""{models.PAIR} dssm {{
  user_tower {{ input: 'user' mlp {{ {BIG} }} }} item_tower {{ input: 'item' mlp {{ {BIG} }} }}
  output_dim: 64 in_batch_negative: true }} losses {{ softmax_cross_entropy {{}} }}"""


def update_of(text: str, rows: int) -> Callable[[], float]:
    """A function that takes one update of a model on a batch in memory, and gives its seconds."""
    config = text_format.Parse(text, ModelConfig())
    model = build_model(config, models.FEATURES, label_fields=["click"])
    task = Task(model)
    task.train()
    assert model.engine is not None
    dense = torch.optim.Adam([p for _, p in model.dense_named_parameters()], lr=1e-3, fused=True)
    sparse = Adagrad(model.engine.tables.values(), lr=0.01)
    batches = models.make_batches(rows, 2)
    taken = 0

    def update() -> float:
        nonlocal taken
        batch = batches[taken % len(batches)]
        taken += 1
        start = time.perf_counter()
        task.losses(task(batch), batch)["total"].backward()
        for optimizer in (dense, sparse):
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - start

    for _ in range(3):
        update()
    return update


def share_of_products(
    name: str,
    step: Callable[[], float],
    products: list[Product],
    rows: int,
    goal: float,
    rounds: int,
    repeats: int = 1,
) -> Bar:
    """A step, or the mean of `repeats` steps, against as many times its products."""
    once = product_times(products)
    again = lambda: mean(once() for _ in range(repeats))  # noqa: E731
    seconds = interleaved({"step": step, "products": again}, rounds)
    share, flops = seconds["products"] / seconds["step"], operations(products)
    speed, most = (rows / seconds[key] for key in ("step", "products"))
    rate = flops / seconds["products"] / 1e9
    print(
        f"{name:8}{speed:10,.0f} samples/s, {most:10,.0f} by products alone ({rate:.0f} GFLOP/s): {share:.2f}"
    )
    return Bar(f"dense: {name} over its products alone", share, goal, at_least=True)


def deepfm(rounds: int) -> Bar:
    with tempfile.TemporaryDirectory() as folder:
        write_synth(folder, 400_000)
        config = criteo_config(Path(folder))
        training = build_training(config)
        training.task.train()
        loop_seconds(config, training, Path(folder), 5)
        step = lambda: loop_seconds(config, training, Path(folder), LOOP_STEPS)[0]  # noqa: E731
        products = layer_products(ROWS, NUMBERS + IDS, 512, 256, 128) + layer_products(ROWS, 1 + 16 + 128, 64)
        return share_of_products("DeepFM", step, products, ROWS, 0.85, rounds, LOOP_STEPS)


def mmoe(rounds: int) -> Bar:
    width = NUMBERS + IDS
    products = layer_products(ROWS, width, 3 * 512) + 3 * layer_products(ROWS, 512, 256, 128)
    products += 2 * layer_products(ROWS, 128, 256, 128, 64)
    return share_of_products("MMoE", update_of(MMOE, ROWS), products, ROWS, 0.75, 3 * rounds)


def dssm(rounds: int) -> Bar:
    user, item, rows = NUMBERS + 13 * 16, 13 * 16, DSSM_ROWS
    products = layer_products(rows, user, 512, 256, 128, 64) + layer_products(rows, item, 512, 256, 128, 64)
    products += [(rows, 64, rows), (rows, rows, 64), (rows, rows, 64)]
    return share_of_products("DSSM", update_of(DSSM, rows), products, rows, 0.75, 3 * rounds)


def din(rounds: int) -> Bar:
    """The attention alone, forward and backward."""
    torch.manual_seed(0)
    dim = DIM * len(DIN_ROWS)
    encoder = DINEncoder(dim, dim, {"hidden_units": ATTENTION})
    lengths = torch.from_numpy(np.random.default_rng(0).integers(1, 101, DIN_BATCH))
    positions = int(lengths.sum())
    query = torch.randn(DIN_BATCH, dim, requires_grad=True)
    sequence = torch.randn(positions, dim, requires_grad=True)
    gradient = torch.randn(DIN_BATCH, dim)

    def step() -> float:
        start = time.perf_counter()
        encoder(query, sequence, lengths).backward(gradient)
        return time.perf_counter() - start

    for _ in range(2):
        step()
    needed = attention_operations(positions)
    times = interleaved({"step": step, "peak": lambda: 1 / product_rate(rounds=3)}, 3 * rounds)
    rate, peak = needed / times["step"], 1 / times["peak"]
    print(f"DIN     {rate / 1e9:.0f} GFLOP/s of {peak / 1e9:.0f}: {rate / peak:.2f}", flush=True)
    return Bar("dense: DIN's attention over the product peak", rate / peak, 0.75, at_least=True)


def layer_step(block: nn.Module, kind: str) -> Callable[[], float]:
    """A function that runs a block forward and backward in one of the ways."""
    x = join([torch.randn(ROWS, NUMBERS), torch.randn(ROWS, IDS)]).requires_grad_()

    def step() -> float:
        relu_layers.MIN_OUTPUTS = 1 << 60 if kind == "torch" else 1
        relu_layers.own_products = lambda: kind == "own"
        block.zero_grad()
        x.grad = None
        start = time.perf_counter()
        out = block(x)
        out.backward(torch.ones_like(out))
        return time.perf_counter() - start

    step()
    return step


def show_layers(rounds: int) -> None:
    """Milliseconds of layers by each of the ways."""
    print(f"{ROWS} rows of {NUMBERS + IDS} columns, ms{'own':>23}{'passes':>10}{'torch':>10}")
    for count, units in (
        (1, [512, 256, 128]),
        (3, [512, 256, 128]),
        (8, [128, 64]),
        (8, [64, 32]),
        (4, [32, 16]),
    ):
        block = MLP(NUMBERS + IDS, units) if count == 1 else Experts(count, NUMBERS + IDS, units)
        seconds = interleaved({k: layer_step(block, k) for k in ("own", "passes", "torch")}, 3 * rounds)
        name = f"{count} × {'-'.join(map(str, units))}"
        print(f"{name:40}" + "".join(f"{1e3 * of_kind:10.1f}" for of_kind in seconds.values()), flush=True)


def repeats_step(distinct: int, by_id: bool) -> Callable[[], float]:
    """A function that runs a first layer of 512 units over 26 fields with so many distinct ids each.

    Its output is compared with that of torch's operations first.
    """
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, distinct, (26, ROWS))
    vectors = rng.standard_normal((26, distinct, 16)).astype(np.float32)
    fields = np.concatenate([of_field[own] for of_field, own in zip(vectors, ids, strict=True)], axis=1)
    x = join([torch.randn(ROWS, NUMBERS), torch.from_numpy(fields)])
    block, widths = MLP(NUMBERS + IDS, [512]), np.full(26, 16)
    places = ids.ctypes.data + ids.strides[0] * np.arange(26)
    noted = FieldIds(NUMBERS + 16 * np.arange(26), widths, places, np.zeros(26, np.int64), ids, [])

    def step() -> float:
        relu_layers.own_products = lambda: True
        leaf = x.detach().requires_grad_()
        if by_id:
            note_field_ids(leaf, noted._replace(found=[]))
        block.zero_grad()
        start = time.perf_counter()
        out = block(leaf)
        out.backward(torch.ones_like(out))
        return time.perf_counter() - start

    step()
    leaf = x.detach().requires_grad_()
    found = block(note_field_ids(leaf, noted._replace(found=[])) if by_id else leaf)
    plain = torch.relu(block[0](x))
    assert torch.allclose(found, plain, rtol=1e-4, atol=1e-4)
    return step


def show_repeats(rounds: int) -> None:
    """Milliseconds of a first layer by both kinds of products."""
    print(f"{ROWS} rows of 26 fields to 512 units, ms{'by row':>20}{'by id':>10}")
    for distinct in (3, 30, 100, 300, 1000):
        ways = {str(by_id): repeats_step(distinct, by_id) for by_id in (False, True)}
        seconds = interleaved(ways, 3 * rounds)
        name = f"{distinct} distinct ids of each field"
        print(f"{name:50}" + "".join(f"{1e3 * of_kind:10.1f}" for of_kind in seconds.values()), flush=True)


PARTS = {"din": din, "mmoe": mmoe, "dssm": dssm, "deepfm": deepfm}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--repeats", action="store_true")
    args = parser.parse_args()
    threads = set_up_process()
    print(f"{threads} threads, torch {torch.__version__}")
    if args.layers or args.repeats:
        (show_layers if args.layers else show_repeats)(args.rounds)
        return 0
    bars = [PARTS[name](args.rounds) for name in args.only]
    print()
    print("\n".join(map(describe_bar, bars)))
    write_bars(args.json, bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
