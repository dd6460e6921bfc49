"""Bags over whole tables: what the local engine computes, with ids sent once to each holder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from recgrad.embedding.living import COUNT, NUM_ROWS, LivingSpec
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS

pytest.importorskip("torchrec", exc_type=(ImportError, OSError))

STEPS = 5
KEYS = ("user", "tags", "item")
SIZES = (37, 50, 41)
TABLES = [
    TableSpec("user", 37, 16, sharding_types=("table_wise",)),
    TableSpec("wide", 37, 4, sharding_types=("table_wise",)),
    TableSpec("tags", 50, 10, sharding_types=("table_wise",)),
    TableSpec("fixed", 50, 4, trainable=False, sharding_types=("table_wise",)),
    TableSpec("item", 41, 16, sharding_types=("table_wise",)),
]
LOOKUPS = [
    LookupSpec("user", "user", "user"),
    LookupSpec("tags", "tags", "tags"),
    LookupSpec("user@wide", "user", "wide"),
    LookupSpec("tags@fixed", "tags", "fixed"),
    LookupSpec("item", "item", "item"),
    LookupSpec("again", "user", "user"),  # one feature under two names
]
TRAINABLE = ("user", "wide", "tags", "item")
MANNERS = ("many", "few", "few or none", "many or none", "none", "bags")


def tables_of(trainable: tuple[str, ...]) -> list[TableSpec]:
    """The tables, all but these frozen."""
    return [replace(spec, trainable=spec.name in trainable) for spec in TABLES]


def ids_of(manner: str, rows: int, size: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Ids of a key, and how many each row has."""
    lengths = np.ones(rows, np.int32)
    if manner.endswith("none"):
        lengths = np.zeros(rows, np.int32) if manner == "none" else rng.integers(0, 2, rows, np.int32)
    elif manner == "bags":
        lengths = rng.integers(0, 4, rows, np.int32)
    if manner.startswith("few"):
        return rng.choice(rng.integers(0, size, 3), lengths.sum()), lengths
    return rng.permutation(size)[: lengths.sum()] if lengths.sum() <= size else rng.integers(
        0, size, lengths.sum()
    ), lengths


def batch(step: int, rank: int, manners: tuple[str, ...]) -> tuple[Ids, torch.Tensor]:
    """Ids of a rank's batch: ranks differ in rows and in how ids repeat, and one has no rows in a step."""
    rng = np.random.default_rng(100 * step + rank)
    rows = 0 if (step, rank) == (1, 1) else 12 + rank
    found = [ids_of(manners[rng.integers(len(manners))], rows, size, rng) for size in SIZES]
    lengths = np.concatenate([own for _, own in found])
    values = torch.tensor(np.concatenate([ids for ids, _ in found]), dtype=torch.int64)
    noise = torch.tensor(rng.normal(size=2048), dtype=torch.float32)
    single = bool((lengths == 1).all())
    return Ids(values, torch.from_numpy(lengths), (rows,) * len(KEYS), single=single), noise


def loss_of(engine: Any, step: int, rank: int, manners: tuple[str, ...]) -> torch.Tensor:
    ids, noise = batch(step, rank, manners)
    embedded = engine(ids)
    outputs = [
        embedded.pooled(["user", "tags", "user@wide", "again"]),
        embedded.pooled(["user", "tags@fixed"]),
        embedded.pooled(["item"]),
    ][: 3 - step % 2]  # a feature may get no gradient
    flat = torch.cat([output.reshape(-1) for output in outputs])
    return (flat.tanh() * noise[: len(flat)]).sum()


def optimizer_of(engine: Any, clamp: bool) -> Any:
    kind = SPARSE_OPTIMIZERS["adagrad_optimizer"]
    return kind(engine, lr=0.1, gradient_clipping=clamp, max_gradient=0.1)


def train(
    manners: tuple[str, ...],
    shared: bool = True,
    clamp: bool = False,
    half: bool = False,
    threads: int = 1,
    trainable: tuple[str, ...] = TRAINABLE,
) -> tuple[list[float], dict[str, Any], list[Any]]:
    """The losses of a rank, the rows it holds, and what it sent: types and numbers of elements by rank."""
    import torch.distributed as dist

    from recgrad.embedding.sharded.engine import ShardedEngine
    from recgrad.training.processes import Environment, Processes

    torch.set_num_threads(threads)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    processes = Processes(Environment(rank, ranks, rank, ranks, distributed=True))
    if shared:
        processes.share_memory()
    assert (processes.group is not None) == shared
    engine = ShardedEngine(tables_of(trainable), LOOKUPS, keys=KEYS, seed=7, group=processes.group, half=half)
    assert engine._whole is not None
    optimizer = optimizer_of(engine, clamp)
    losses, sent = [], []
    real = dist.all_to_all_single

    def counted(**kwargs: Any) -> Any:
        sent.append((str(kwargs["input"].dtype), kwargs["input_split_sizes"]))
        return real(**kwargs)

    with mock.patch.object(dist, "all_to_all_single", counted):
        for step in range(STEPS):
            loss = loss_of(engine, step, rank, manners)
            loss.backward()
            losses.append(float(loss.detach()))
            optimizer.step()
            assert not engine._whole._incomplete, "gradients are under way after the update"
    rows = {name: engine.export_table(name) for name in engine.tables}
    held = [(holder.keys, holder.features, holder.places) for holder in engine._whole.holders]
    processes.leave_memory()
    return losses, rows, [held, sent]


def train_alone(
    manners: tuple[str, ...], ranks: int, clamp: bool, trainable: tuple[str, ...]
) -> tuple[list[list[float]], LocalEngine]:
    """The same by one process: losses by step and rank."""
    engine = LocalEngine(tables_of(trainable), LOOKUPS, keys=KEYS, seed=7)
    optimizer = optimizer_of(engine, clamp)
    losses = []
    for step in range(STEPS):
        each = [loss_of(engine, step, rank, manners) for rank in range(ranks)]
        (torch.stack(each).sum() / ranks).backward()
        optimizer.step()
        losses.append([loss.item() for loss in each])
    return losses, engine


def check(
    found: Any,
    manners: tuple[str, ...],
    clamp: bool = False,
    tolerance: float = 1e-5,
    trainable: tuple[str, ...] = TRAINABLE,
) -> None:
    """Ranks against one process."""
    losses, engine = train_alone(manners, len(found), clamp, trainable)
    np.testing.assert_allclose(np.array([own[0] for own in found]).T, losses, tolerance, 10 * tolerance)
    for name in engine.tables:
        expected, weights = engine.export_table(name)
        numbers = np.concatenate([own[1][name][0] for own in found])
        rows = np.concatenate([own[1][name][1] for own in found])
        # An update of all ranks also reaches rows that have no gradient, and leaves them as they are.
        place = np.searchsorted(numbers, expected, sorter=np.argsort(numbers))
        order = np.argsort(numbers)[place]
        np.testing.assert_array_equal(numbers[order], expected)
        np.testing.assert_allclose(rows[order], weights, tolerance, tolerance)


@pytest.mark.parametrize(
    ("ranks", "manners", "shared"),
    [
        (2, ("many",), False),
        (2, ("few",), True),
        (2, ("few", "few or none"), False),
        (2, MANNERS, True),
        (3, MANNERS, False),
        (5, MANNERS, True),
    ],
)
def test_ranks_learn_what_one_process_does(
    run_ranks: Any, ranks: int, manners: tuple[str, ...], shared: bool
) -> None:
    check(run_ranks(ranks, train, manners, shared), manners)


def test_gradients_of_rows_are_clamped_before_those_of_an_id_are_added(run_ranks: Any) -> None:
    check(run_ranks(2, train, MANNERS, True, True), MANNERS, clamp=True)


def test_ids_that_repeat_travel_in_half_precision_too(run_ranks: Any) -> None:
    found = run_ranks(2, train, MANNERS, True, False, True)
    assert {kind for _, _, (_, sent) in found for kind, _ in sent} == {"torch.int64", "torch.float16"}
    check(found, MANNERS, tolerance=0.03)


@pytest.mark.parametrize(("half", "tolerance"), [(False, 1e-5), (True, 0.03)])
def test_a_rank_that_holds_frozen_tables_alone_takes_part(
    run_ranks: Any, half: bool, tolerance: float
) -> None:
    trainable = ("tags",)
    found = run_ranks(2, train, MANNERS, True, False, half, 1, trainable)
    features = [own for _, own, _ in found[0][2][0]]
    assert sorted(any(name.startswith("tags|") for name in own) for own in features) == [False, True]
    check(found, MANNERS, tolerance=tolerance, trainable=trainable)


def weigh_frozen(engine: Any, rank: int) -> list[np.ndarray[Any, Any]]:
    """The gradients of weights of frozen columns, step after step."""
    optimizer, found = optimizer_of(engine, False), []
    for step in range(STEPS):
        vectors = engine(batch(step, rank, MANNERS)[0]).pooled(["user", "tags", "user@wide", "tags@fixed"])
        weights = torch.ones(vectors.shape[1], requires_grad=True)
        (vectors * weights).tanh().sum().backward()
        optimizer.step()
        assert weights.grad is not None
        found.append(weights.grad.numpy())
    return found


def train_frozen(half: bool) -> tuple[list[np.ndarray[Any, Any]], int, int]:
    """What `weigh_frozen` gives, and how many gradients of vectors are under way and were ever sent."""
    import torch.distributed as dist

    from recgrad.embedding.sharded.engine import ShardedEngine

    engine = ShardedEngine(tables_of(()), LOOKUPS, keys=KEYS, seed=7, half=half)
    assert engine._whole is not None
    sent = 0
    real = dist.all_to_all_single

    def counted(**kwargs: Any) -> Any:
        nonlocal sent
        sent += 1
        return real(**kwargs)

    with mock.patch.object(dist, "all_to_all_single", counted):
        found = weigh_frozen(engine, dist.get_rank())
    return found, len(engine._whole._incomplete), sent - 3 * STEPS  # but for counts, ids and vectors


@pytest.mark.parametrize(("half", "tolerance"), [(False, 1e-5), (True, 0.01)])
def test_no_gradients_are_sent_where_all_tables_are_frozen(
    run_ranks: Any, half: bool, tolerance: float
) -> None:
    for rank, (found, incomplete, sent) in enumerate(run_ranks(2, train_frozen, half)):
        assert (incomplete, sent) == (0, 0)
        expected = weigh_frozen(LocalEngine(tables_of(()), LOOKUPS, keys=KEYS, seed=7), rank)
        np.testing.assert_allclose(found, expected, tolerance, tolerance)


def with_threads() -> list[Any]:
    return [train(MANNERS, threads=threads)[:2] for threads in (1, 3)]


def test_sums_by_id_have_the_same_bits_for_any_number_of_threads(run_ranks: Any) -> None:
    for one, several in run_ranks(2, with_threads):
        assert one[0] == several[0]
        for name, (rows, weights) in one[1].items():
            np.testing.assert_array_equal(rows, several[1][name][0])
            assert weights.tobytes() == several[1][name][1].tobytes()


def wanted_bags(manners: tuple[str, ...], step: int, rank: int, clamp: bool) -> list[int]:
    """By key, the vectors that a rank needs of each table, from its ids alone."""
    ids, _ = batch(step, rank, manners)
    rows = ids.bag_counts[0]
    counts = ids.lengths.view(len(KEYS), rows).sum(1).tolist()
    bags = ids.lengths.view(len(KEYS), rows).amax(1).tolist()
    distinct = [len(part.unique()) for part in ids.values.split_with_sizes(counts)]
    return [
        n if n <= (0 if clamp else rows // 2) and most <= 1 else rows
        for n, most in zip(distinct, bags, strict=True)
    ]


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("manner", MANNERS)
def test_an_id_is_sent_once_where_ids_repeat(run_ranks: Any, manner: str, clamp: bool) -> None:
    dims = {spec.name: spec.dim for spec in TABLES}
    for rank, (_, _, (held, sent)) in enumerate(run_ranks(2, train, (manner,), True, clamp)):
        features = sorted(name for _, own, _ in held for name in own)
        assert features == sorted(f"{one.table}|{one.key}|sum" for one in LOOKUPS[:5])
        bags = wanted_bags((manner,), 0, rank, clamp)
        header, ids, _, gradients = sent[:4]
        assert len(sent) == 4 * STEPS
        assert header == ("torch.int64", [3 * len(keys) for keys, _, _ in held])
        if manner in ("many", "few", "few or none") and not (clamp and manner == "few or none"):
            assert ids == ("torch.int64", [sum(bags[key] for key in keys) for keys, _, _ in held])
        expected = [
            sum(bags[place] * dims[name.split("|")[0]] for name, place in zip(own, places)) * (holder != rank)
            for holder, (_, own, places) in enumerate(held)
        ]
        assert gradients == ("torch.float32", expected)


def shared_engine(half: bool = False) -> tuple[Any, Any, list[str], list[str]]:
    """An engine over shared memory, its processes, and lookups that this rank holds and that others do."""
    import torch.distributed as dist

    from recgrad.embedding.sharded.engine import ShardedEngine
    from recgrad.training.processes import Environment, Processes

    rank, ranks = dist.get_rank(), dist.get_world_size()
    processes = Processes(Environment(rank, ranks, rank, ranks, distributed=True))
    processes.share_memory()
    engine = ShardedEngine(TABLES, LOOKUPS, keys=KEYS, seed=7, group=processes.group, half=half)
    assert engine._whole is not None
    held = set(engine._whole.holders[rank].features)
    own = [spec.name for spec in LOOKUPS[:5] if f"{spec.table}|{spec.key}|sum" in held]
    return engine, processes, own, [spec.name for spec in LOOKUPS[:5] if spec.name not in own]


def count_waits() -> list[int]:
    """How often a rank has waited for others, after each part of a step."""
    import torch.distributed as dist

    from recgrad.training.processes.shared_group import SharedWork

    engine, processes, own, others = shared_engine()
    waited: list[int] = []
    waits: list[SharedWork] = []
    real = SharedWork.wait

    def wait(work: SharedWork, timeout: Any = None) -> bool:
        waits.append(work)
        return real(work, timeout)

    with mock.patch.object(SharedWork, "wait", wait):
        embedded = engine(batch(0, dist.get_rank(), ("many",))[0])
        waited.append(len(waits))
        mine = embedded.pooled(own)
        waited.append(len(waits))
        loss = mine.sum() + embedded.pooled(others).sum()
        waited.append(len(waits))
        loss.backward()
        waited.append(len(waits))
        optimizer_of(engine, False).step()
        waited.append(len(waits))
    processes.leave_memory()
    return waited


def test_vectors_and_gradients_are_under_way_while_ranks_compute(run_ranks: Any) -> None:
    for looked_up, own, others, backward, stepped in run_ranks(2, count_waits):
        assert own == looked_up, "columns that a rank holds itself waited for others"
        assert others == own + 1
        assert backward == others, "backward waited for gradients, which no rank needs before the update"
        assert stepped == backward + 1


def read_gradients(reader: str, half: bool) -> tuple[Any, float]:
    """What a rank sees of gradients right after backward, and the sum of those of one micro-batch.

    Gradients are 1; those of rank 1 are infinite for the reader `infinite`.
    """
    import torch.distributed as dist

    engine, processes, own, _ = shared_engine(half)
    rank, names = dist.get_rank(), set(TRAINABLE)
    ids = batch(0, rank, ("many",))[0]

    def backward(factor: float = 1.0) -> None:
        (engine(ids).pooled(["user", "user@wide", "tags", "item"]).sum() * factor).backward()

    def summed() -> float:
        return sum(float(one.sum()) for one in engine.summed_gradients(dict.fromkeys(names, np.inf)))

    for _ in range(2):  # gradients of two micro-batches are under way
        backward(float("inf") if reader == "infinite" and rank else 1.0)
    if reader == "scaled":
        engine.scale_gradients(names, 2.0)
    elif reader == "cleared":
        engine.clear_gradients()
        backward()
    answer = engine.finite_gradients(names) if "finite" in reader else summed()
    rows = processes.sum([ids.bag_counts[0]])[0]
    dims = {spec.name: spec.dim for spec in TABLES if spec.trainable}
    width = sum(dims.get(spec.table, 0) for spec in LOOKUPS[:5] if spec.name in own)
    processes.leave_memory()
    return answer, rows * width / 2


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("reader", "times"), [("scaled", 4), ("summed", 2), ("cleared", 1)])
def test_gradients_under_way_are_waited_for_by_whatever_reads_them(
    run_ranks: Any, reader: str, times: int, half: bool
) -> None:
    for found, once in run_ranks(2, read_gradients, reader, half):
        assert found == pytest.approx(times * once, rel=1e-6)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("reader", "expected"), [("finite", True), ("infinite", False)])
def test_infinite_gradients_of_another_rank_are_seen(
    run_ranks: Any, reader: str, expected: bool, half: bool
) -> None:
    assert [finite for finite, _ in run_ranks(2, read_gradients, reader, half)] == [expected, expected]


LIVING = [TableSpec("seen", NUM_ROWS, 8, living=LivingSpec(30, COUNT, threshold=3, counters=64))]


def count_ids(make: Any, ranks: range) -> Any:
    """What a living table knows of its ids, which repeat, after some steps with the rows of these ranks."""
    tables = [*LIVING, TABLES[0]]
    lookups = [LookupSpec("seen", "user", "seen"), LookupSpec("user", "user", "user")]
    engine = make(tables, lookups, keys=("user",), seed=7)
    optimizer = optimizer_of(engine, False)
    for step in range(STEPS):
        drawn = [np.random.default_rng(10 * step + rank).integers(0, 6, 20) for rank in ranks]
        ids = torch.from_numpy(np.concatenate(drawn))
        found = engine(Ids(ids, torch.ones(len(ids), dtype=torch.int32), (len(ids),), single=True))
        found.pooled(["seen", "user"]).sum().backward()
        optimizer.step()
    return engine.tables["seen"].export_scores()


def count_by_ranks() -> Any:
    import torch.distributed as dist

    from recgrad.embedding.sharded.engine import ShardedEngine

    return count_ids(ShardedEngine, range(dist.get_rank(), dist.get_rank() + 1))


def test_a_table_that_counts_its_ids_is_told_of_each_time_that_one_was_seen(run_ranks: Any) -> None:
    (found,) = [own for own in run_ranks(2, count_by_ranks) if own]
    expected = count_ids(LocalEngine, range(2))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(np.sort(found[name], None), np.sort(array, None), err_msg=name)
