"""Samples a second of ranking and multi-task models, where time goes, and fast blocks against plain ones.

    python benchmarks/models.py [--rows 2048] [--seconds 2] [--models deepfm,mmoe] [--json FILE]

The first table trains each model on Criteo-like rows (13 numbers, 26 ids of width 16, a history of up
to 50 items) and splits a step into embedding lookup, dense forward and backward, loss, and the two
optimizers. The second compares each block with the plain torch code that it replaces: same
values (checked first), same process, interleaved, medians of forward + backward.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from google.protobuf import text_format
from results.bars import Bar, write_bars
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.config.proto.model_pb2 import ModelConfig
from recgrad.data.batch import Batch, KeyedDense, KeyedJagged
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.models.base import MODELS, Model
from recgrad.models.build import build_model
from recgrad.nn.cin import CIN
from recgrad.nn.encoders.din import DINEncoder
from recgrad.nn.fm import factorization_machine
from recgrad.nn.interaction import DotInteraction
from recgrad.nn.jagged import Segments, pad
from recgrad.nn.moe import Experts
from recgrad.optim.sparse import Adagrad

DENSE, SPARSE, DIM, TABLE_ROWS, LENGTH = 13, 26, 16, 100_000, 50
NUMBERS = [f"int_{i}" for i in range(DENSE)]
IDS = [f"cat_{i}" for i in range(SPARSE)]
FEATURES = [
    *(FeatureSpec(name, Kind.DENSE) for name in NUMBERS),
    *(FeatureSpec(name, Kind.SPARSE, num_rows=TABLE_ROWS, embedding_dim=DIM) for name in IDS),
    FeatureSpec("hist__item", Kind.SPARSE, True, "hist", num_rows=TABLE_ROWS, embedding_dim=DIM),
]
SMALL = "hidden_units: [64]"
LOSS = "losses { binary_cross_entropy {} }"
TOWERS = "".join(
    f"task_towers {{ tower_name: '{name}' label_name: '{name}' mlp {{ {SMALL} }} {LOSS} }}"
    for name in ("click", "buy")
)


def group(name: str, features: list[str], kind: str = "DEEP") -> str:
    listed = ", ".join(f"'{feature}'" for feature in features)
    return f"feature_groups {{ group_name: '{name}' feature_names: [{listed}] group_type: {kind} }}"


ALL = group("all", NUMBERS + IDS)
FIELDS = group("sparse", IDS) + group("dense", NUMBERS)
DEEP = group("wide", IDS, "WIDE") + group("deep", NUMBERS + IDS)
PAIR = group("user", NUMBERS + IDS[:13]) + group("item", IDS[13:])
HISTORY = group("hist", ["cat_0", "hist__item"], "SEQUENCE")
SHAPES = {
    "wide_and_deep": (DEEP, "deep { BIG }"),
    "deepfm": (DEEP + group("fm", IDS), "deep { BIG } final { SMALL }"),
    "xdeepfm": (DEEP, "cin { cin_layer_size: [32, 32] } deep { BIG } final { SMALL }"),
    "dlrm": (FIELDS, "dense_mlp { hidden_units: [64, DIM] } final { BIG }"),
    "wukong": (FIELDS, "dense_mlp { hidden_units: [64, DIM] } WUKONG WUKONG final { MIDDLE }"),
    "dcn_v1": (ALL, "cross {} deep { BIG } final { SMALL }"),
    "dcn_v2": (ALL, "cross {} deep { BIG } final { SMALL }"),
    "mask_net": (ALL, "mask_net_module { n_mask_blocks: 3 MASK top_mlp { SMALL } }"),
    "multi_tower": (PAIR, "towers { USER } towers { ITEM } final { SMALL }"),
    "multi_tower_din": (ALL + HISTORY, "towers { input: 'all' mlp { BIG } } DIN final { SMALL }"),
    "simple_multi_task": (ALL, "TOWERS"),
    "mmoe": (ALL, "expert_mlp { MIDDLE } num_expert: 4 TOWERS"),
    "ple": (ALL, "EXTRACT 'a' EXPERTS } EXTRACT 'b' EXPERTS } TOWERS"),
    "dbmtl": (ALL, "bottom_mlp { BIG } expert_mlp { MIDDLE } num_expert: 4 TOWERS"),
    "pepnet": (
        ALL + group("domain", IDS[:1]) + group("uia", IDS[1:3]),
        "ppnet_hidden_units: [128, 64] TOWERS",
    ),
    "autoint": (
        FIELDS,
        "dense_mlp { hidden_units: [64, DIM] } attention_layers: 2 attention_dim: 32 deep { BIG }",
    ),
    "fibinet": (FIELDS, "dense_mlp { hidden_units: [64, DIM] } deep { BIG }"),
    "pnn": (FIELDS, "dense_mlp { hidden_units: [64, DIM] } final { BIG }"),
    "eulernet": (FIELDS, "dense_mlp { hidden_units: [64, DIM] } layer_sizes: [32, 32]"),
    "final_net": (FIELDS, "dense_mlp { hidden_units: [64, DIM] } block1 { MIDDLE } block2 { MIDDLE }"),
    "final_mlp": (group("deep", NUMBERS + IDS), "mlp1 { BIG } mlp2 { BIG } num_heads: 2"),
    "gdcn": (ALL, "cross_num: 3 deep { BIG }"),
    "rank_mixer": (ALL, "num_tokens: 8 token_dim: 64 num_layers: 2 ffn_ratio: 2 final { SMALL }"),
    "aitm": (ALL, "TOWERS"),
    "esmm": (ALL, "TOWERS"),
    "dssm": (PAIR, "user_tower { USER } item_tower { ITEM } output_dim: 64 in_batch_negative: true"),
}
WORDS = {
    "WUKONG": "wukong_layers { lcb_feature_num: 16 fmb_feature_num: 16 feature_num_mlp { MIDDLE } }",
    "MASK": "mask_block { hidden_dim: 128 reduction_ratio: 0.5 }",
    "USER": "input: 'user' mlp { BIG }",
    "ITEM": "input: 'item' mlp { BIG }",
    "DIN": "din_towers { input: 'hist' attn_mlp { hidden_units: [32, 16] } }",
    "EXTRACT": "extraction_networks { network_name:",
    "EXPERTS": "expert_num_per_task: 2 share_num: 2 task_expert_net { MIDDLE } share_expert_net { MIDDLE }",
    "BIG": "hidden_units: [512, 256, 128]",
    "MIDDLE": "hidden_units: [128, 64]",
    "SMALL": SMALL,
    "TOWERS": TOWERS,
    "DIM": str(DIM),
}


def config_text(name: str) -> str:
    """The config of a model, short words written out."""
    groups, text = SHAPES[name]
    for word, meaning in WORDS.items():
        text = re.sub(rf"\b{word}\b", meaning, text)
    loss = (
        "losses { softmax_cross_entropy {} }"
        if name == "dssm"
        else ""
        if "TOWERS" in SHAPES[name][1]
        else LOSS
    )
    return f"{groups} {name} {{ {text} }} {loss}"


def make_batches(rows: int, count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        # Skewed ids, as real ones are: the square of a uniform draw.
        ids = (torch.rand(rows * SPARSE, generator=generator) ** 2 * TABLE_ROWS).long()
        lengths = torch.randint(LENGTH + 1, (rows,), generator=generator, dtype=torch.int32)
        positions = int(lengths.sum())
        history = (torch.rand(positions, generator=generator) ** 2 * TABLE_ROWS).long()
        ones = torch.ones(rows * SPARSE, dtype=torch.int32)
        one_each = torch.ones(positions, dtype=torch.int32)
        labels = {n: (torch.rand(rows, generator=generator) < 0.2).float() for n in ("click", "buy")}
        batches.append(
            Batch(
                rows,
                KeyedDense(tuple(NUMBERS), (1,) * DENSE, torch.randn(rows, DENSE, generator=generator)),
                KeyedJagged(tuple(IDS), ids, ones, (rows,) * SPARSE, None, True),
                {"hist__item": lengths},
                KeyedJagged(("hist__item",), history, one_each, (positions,), None, True),
                {},
                labels,
            )
        )
    return batches


KINKED = {"experts": 0.005, "narrow experts": 0.005}
"""Blocks with layers of ReLU, and the share of values that may differ: a unit next to the kink may be on
either side of it by rounding, and with it the gradients of a row here and there."""
PARTS = ("embedding", "dense", "loss", "dense step", "sparse step")


def time_model(name: str, batches: list[Batch], seconds: float, compile: bool) -> dict[str, float]:
    """Seconds of each part of a step (medians)."""
    config = text_format.Parse(config_text(name), ModelConfig())
    config.compile = compile
    model = build_model(config, FEATURES, label_fields=["click"])
    assert model.engine is not None
    losses = [list(task.losses) for task in model.tasks]
    dense = torch.optim.Adam([p for _, p in model.dense_named_parameters()], lr=1e-3, fused=True)
    sparse = Adagrad(model.engine.tables.values(), lr=0.01)
    times: list[list[float]] = []
    for batch in batches[:3]:
        step(model, batch, losses, dense, sparse)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 5:
        times.append(step(model, batches[len(times) % len(batches)], losses, dense, sparse))
    return {part: median(t[i] for t in times) for i, part in enumerate(PARTS)}


def step(
    model: Model,
    batch: Batch,
    losses: list[list[nn.Module]],
    dense: torch.optim.Optimizer,
    sparse: torch.optim.Optimizer,
) -> list[float]:
    """One training step; returns the seconds of each part."""
    marks = [time.perf_counter()]
    mark = lambda: marks.append(time.perf_counter())  # noqa: E731
    parts = model.groups.gather(batch, model.engine)
    mark()
    outputs = model._dense_half(parts)
    mark()
    total = torch.zeros(())
    for task, own in zip(model.tasks, losses, strict=True):
        labels = torch.zeros(batch.size) if task.retrieval else batch.labels[task.label_name]
        for loss in own:
            total = total + loss(outputs[task.logits], labels)
    mark()
    dense.zero_grad()
    sparse.zero_grad()
    total.backward()
    mark()
    dense.step()
    mark()
    sparse.step()
    mark()
    embedding, forward, loss_time, backward, dense_step, sparse_step = (b - a for a, b in pairwise(marks))
    return [embedding, forward + backward, loss_time, dense_step, sparse_step]


# --- blocks against plain torch ---


def blocks(rows: int) -> dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor], list[Tensor], float]]:
    """name → (ours, plain, tensors whose gradients count, least speed-up)."""
    torch.manual_seed(0)
    v = torch.randn(rows, SPARSE, DIM, requires_grad=True)
    first, second = torch.triu_indices(SPARSE, SPARSE, offset=1)
    dot = DotInteraction(SPARSE)
    cin = CIN(SPARSE, [32, 32])
    x = torch.randn(rows, 429, requires_grad=True)
    experts, narrow = Experts(3, 429, [512, 256, 128]), Experts(8, 429, [64, 32])
    return {
        "fm": (lambda: factorization_machine(v), lambda: plain_fm(v), [v], 0.9),
        "dot interaction": (
            lambda: dot(v),
            lambda: torch.bmm(v, v.transpose(1, 2))[:, first, second],
            [v],
            1.2,
        ),
        "cin": (lambda: cin(v), lambda: plain_cin(cin, v), [v, *cin.parameters()], 2.0),
        "experts": (
            lambda: experts(x),
            lambda: plain_experts(experts, x),
            [x, *experts.parameters()],
            1.0,
        ),
        "narrow experts": (
            lambda: narrow(x),
            lambda: plain_experts(narrow, x),
            [x, *narrow.parameters()],
            1.0,
        ),
        "din": din_pair(rows),
    }


def plain_cin(block: CIN, x0: Tensor) -> Tensor:
    """Outer products and a 1×1 convolution, layer by layer."""
    x, pooled = x0, []
    for layer in block.layers:
        assert isinstance(layer, nn.Linear)
        products = torch.einsum("bhd,bfd->bhfd", x, x0).reshape(x0.shape[0], -1, x0.shape[2])
        x = F.conv1d(products, layer.weight.unsqueeze(2), layer.bias)
        pooled.append(x.sum(2))
    return torch.cat(pooled, dim=1)


def plain_fm(v: Tensor) -> Tensor:
    """The formula that FuxiCTR and DeepCTR have, by torch's operations; ours is to be no slower."""
    return 0.5 * (torch.sum(v, dim=1) ** 2 - torch.sum(v**2, dim=1))


def plain_experts(block: Experts, x: Tensor) -> Tensor:
    """One MLP after another."""
    outputs = []
    for e in range(block.count):
        hidden = x
        for layer in block.layers:
            hidden = F.relu(F.linear(hidden, layer.weight[e], layer.bias[e]))
        outputs.append(hidden)
    return torch.stack(outputs, dim=1)


def din_pair(rows: int) -> tuple[Callable[[], Tensor], Callable[[], Tensor], list[Tensor], float]:
    """Attention over jagged positions, and over padded ones with a mask.

    The peer is DIN as frameworks on torch have it: histories padded to the longest, [query, position,
    difference, product] built for each of them, an MLP over that, a masked softmax. It is written here
    with torch's operations; it is no framework's own code.
    """
    encoder = DINEncoder(DIM, DIM, {"hidden_units": [32, 16]})
    lengths = torch.randint(LENGTH + 1, (rows,))
    segments = Segments.from_lengths(lengths, int(lengths.sum()))
    query = torch.randn(rows, DIM, requires_grad=True)
    sequence = torch.randn(int(lengths.sum()), DIM, requires_grad=True)

    def padded() -> Tensor:
        s = pad(sequence, segments)
        q = query.unsqueeze(1).expand_as(s)
        scores = encoder.score(encoder.mlp(torch.cat([q, s, q - s, q * s], dim=2))).squeeze(2)
        exists = torch.arange(s.shape[1]) < lengths.unsqueeze(1)
        weights = torch.softmax(scores.masked_fill(~exists, -1e30), dim=1) * exists
        return torch.bmm(weights.unsqueeze(1), s).squeeze(1)

    parameters = [query, sequence, *encoder.parameters()]
    return lambda: encoder(query, sequence, lengths), padded, parameters, 1.5


def compare_blocks(rows: int, repeats: int) -> list[Bar]:
    bars: list[Bar] = []
    print(f"\n{'block':18}{'ours ms':>10}{'plain ms':>10}{'ratio':>8}{'goal':>7}")
    for name, (ours, plain, tensors, goal) in blocks(rows).items():
        check(name, ours, plain, tensors)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(repeats):
            for function, kept in zip((ours, plain), times, strict=True):
                start = time.perf_counter()
                function().sum().backward()
                kept.append(time.perf_counter() - start)
        mine, theirs = median(times[0]), median(times[1])
        ratio = theirs / mine
        print(f"{name:18}{mine * 1e3:10.2f}{theirs * 1e3:10.2f}{ratio:8.2f}{goal:7.1f}")
        bars.append(Bar(f"models: {name} vs plain torch", ratio, goal, at_least=True))
    return bars


def check(name: str, ours: Callable[[], Tensor], plain: Callable[[], Tensor], tensors: list[Tensor]) -> None:
    """Same values and gradients, or an error."""
    outputs = []
    for function in (ours, plain):
        for tensor in tensors:
            tensor.grad = None
        out = function()
        (out * torch.linspace(0, 1, out.shape[1])[(...,) + (None,) * (out.dim() - 2)]).sum().backward()
        outputs.append([out.detach(), *(t.grad.clone() for t in tensors if t.grad is not None)])
    for a, b in zip(*outputs, strict=True):
        scale = b.abs().max().clamp(min=1e-6)
        off = ((a - b).abs() / scale > 1e-4 + 1e-3 * b.abs() / scale).float().mean()
        assert off <= KINKED.get(name, 0), f"{name}: {off:.2%} of the values differ"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=2048, help="rows of a batch")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each model")
    parser.add_argument("--models", default=",".join(SHAPES), help="models, comma-separated")
    parser.add_argument("--compile", action="store_true", help="compile the dense half")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write ratios and goals to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.rows} rows a batch, {options.threads} threads, torch {torch.__version__}")
    print(f"{'model':18}{'samples/s':>11}" + "".join(f"{part:>13}" for part in PARTS))
    batches = make_batches(options.rows, 8)
    for name in options.models.split(","):
        times = time_model(name, batches, options.seconds, options.compile)
        total = sum(times.values())
        shares = "".join(f"{value / total:12.0%} " for value in times.values())
        print(f"{name:18}{options.rows / total:11,.0f}{shares}")
    others = sorted(set(MODELS) - set(SHAPES))
    print(f"not here: {', '.join(others)}")
    write_bars(options.json, compare_blocks(options.rows, repeats=9))


if __name__ == "__main__":
    main()
