"""Collectives through shared memory: what gloo computes, in one order of ranks, and nothing left behind."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable

import pytest
import torch.distributed as dist

from recgrad.training.processes.shared_group import SharedMemoryGroup

RunRanks = Callable[..., list[tuple[int, str]]]
Said = Callable[[str], tuple[str, bool, str]]

# Rings that any of the longer messages fill several times, so that they travel in pieces.
SMALL = """
from functools import partial
from recgrad.training.processes import processes as module
module.open_rings = partial(module.open_rings, total_bytes=12 * 65536)
"""


@pytest.mark.parametrize("rings", [SMALL, ""], ids=["small", "usual"])
def test_what_all_ranks_exchange_and_sum_is_what_gloo_says(run_ranks: RunRanks, rings: str) -> None:
    program = """
import hashlib
import torch.distributed as dist

def both(p, collective, shape, kind):
    outs = []
    for group in (None, p.group):
        outs.append(torch.empty(shape, dtype=kind))
        outs.append(collective(outs[-1], group))
    for work in outs[1::2]:
        work.wait()
    return outs[::2]

def work(p):
    own, n = torch.Generator().manual_seed(p.rank), p.world_size
    sums = hashlib.sha256()
    for trial in range(5):
        shared = torch.Generator().manual_seed(trial)
        rows = torch.randint(0, 30_000, (n, n), generator=shared)
        rows[torch.rand(n, n, generator=shared) < 0.2] = 0
        given = torch.randint(0, 99, (int(rows[p.rank].sum()),), generator=own, dtype=torch.uint8)
        splits = rows[:, p.rank].tolist(), rows[p.rank].tolist()
        call = lambda out, group: dist.all_to_all_single(out, given, *splits, group=group, async_op=True)
        gloo, memory = both(p, call, sum(splits[0]), torch.uint8)
        assert gloo.equal(memory)
        x = torch.randint(0, 99, (n * 501, 3), generator=own).float()  # sums of whole numbers are exact
        call = lambda out, group: dist.reduce_scatter_single(out, x, group=group, async_op=True)
        gloo, memory = both(p, call, (501, 3), torch.float32)
        assert gloo.equal(memory)
        call = lambda out, group: dist.all_gather_single(out, gloo, group=group, async_op=True)
        gloo, memory = both(p, call, (n * 501, 3), torch.float32)
        assert gloo.equal(memory)
        for size in (0, 1, 7, 70_001):
            y = torch.randn(size, generator=own)
            everyone = p.gather(y)
            in_order = everyone[0]
            for other in everyone[1:]:
                in_order = in_order + other
            dist.all_reduce(y, group=p.group)
            assert y.equal(in_order)
            sums.update(y.numpy().tobytes())
        most = torch.tensor([float(p.rank), -float(p.rank)])
        dist.all_reduce(most, dist.ReduceOp.MAX, group=p.group)
        assert most.tolist() == [n - 1, 0]
    assert p.group is not None and len(set(p.gather(sums.hexdigest()))) == 1
finish(work, timeout_secs=60)
"""
    results = run_ranks(rings + program, 4)
    assert [code for code, _ in results] == [0] * 4, results


def test_much_may_be_posted_before_anything_is_waited_for(run_ranks: RunRanks) -> None:
    program = """
import torch.distributed as dist

def work(p):
    given = [torch.full((p.world_size, 50_000), 10 * i + p.rank) for i in range(8)]
    taken = [torch.empty_like(one) for one in given]
    works = [dist.all_to_all_single(o, i, group=p.group, async_op=True) for o, i in zip(taken, given)]
    for i in (7, 0, 3, 1, 2, 4, 5, 6):
        works[i].wait()
    for i, one in enumerate(taken):
        assert one[:, 0].tolist() == [10 * i + rank for rank in range(p.world_size)]
        assert one.eq(one[:, :1]).all()
finish(work, timeout_secs=60)
"""
    results = run_ranks(SMALL + program, 3)
    assert [code for code, _ in results] == [0] * 3, results


def test_no_collective_is_looked_for_by_torch_itself() -> None:
    known = {
        name
        for name in dir(dist.ProcessGroup)
        if re.match(r"_?(all|broad|gather|scatter|reduce|recv|send|barr|mon)", name)
    }
    assert "broadcast" in known
    assert known <= vars(SharedMemoryGroup).keys()


@pytest.mark.parametrize("rings", [SMALL, ""], ids=["small", "usual"])
def test_one_rank_gives_to_all_and_gets_of_all_what_gloo_says(run_ranks: RunRanks, rings: str) -> None:
    program = """
import torch.distributed as dist

def work(p):
    n = p.world_size
    for root in range(n):
        for size in (0, 1, 63, 70_001):
            own = torch.arange(size, dtype=torch.int32) + 1000 * p.rank
            told = []
            for group in (None, p.group):
                all_of = [torch.full_like(own, -1) for _ in range(n)] if p.rank == root else None
                dist.gather(own, all_of, dst=root, group=group)
                told.append([torch.cat(all_of)] if all_of else [])
                told[-1].append(own.clone())
                dist.broadcast(told[-1][-1], src=root, group=group)
            assert all(one.equal(other) for one, other in zip(*told, strict=True))
        assert told[1][-1].equal(torch.arange(size, dtype=torch.int32) + 1000 * root)
finish(work, timeout_secs=60)
"""
    results = run_ranks(rings + program, 3)
    assert [code for code, _ in results] == [0] * 3, results


def test_objects_are_sent_any_number_of_times_and_never_by_gloo(run_ranks: RunRanks) -> None:
    """Where torch looked for `broadcast` by itself, a few thousand of them made a process stand still."""
    program = """
import torch.distributed as dist

def work(p):
    assert p.group is not None
    used = []
    default = dist.distributed_c10d._get_default_group
    dist.distributed_c10d._get_default_group = lambda: used.append(1) or default()
    for i in range(3000):
        own = (p.rank, "x" * (i % 700))
        everyone = [(rank, own[1]) for rank in range(p.world_size)]
        assert p.broadcast(own) == everyone[0]
        assert p.gather(own) == everyone
        assert p.collect(own) == (everyone if p.is_main else [])
    assert not used
finish(work, timeout_secs=100)
"""
    results = run_ranks(program, 2)
    assert [code for code, _ in results] == [0, 0], results


@pytest.mark.parametrize("reason", ["machines", "memory", "another's"])
def test_ranks_that_cannot_share_memory_use_gloo_and_say_why(run_ranks: RunRanks, reason: str) -> None:
    program = f"""
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
from recgrad.training.processes import processes as module, rings
rank = os.environ["RANK"]
if {reason == "machines"}:
    module.host_identity = lambda: "machine " + rank
elif {reason == "memory"} and rank == "0":
    def no_room(*args):
        raise OSError(28, "No space left on device")
    os.posix_fallocate = no_room
elif {reason == "another's"} and rank == "1":
    create = rings._create
    rings.os = type("", (), {{**vars(os), "open": staticmethod(lambda *a: create(1 << 26, b"0" * 16))}})

def work(p):
    assert p.group is None
    assert p.sum([p.rank]) == [1.0]
finish(work)
"""
    results = run_ranks(program, 2)
    assert [code for code, _ in results] == [0, 0], results
    words = {
        "machines": "they are on several machines",
        "memory": "OSError: [Errno 28] No space left on device",
        "another's": "ValueError: the memory that was opened is another",
    }
    assert f"the ranks exchange by gloo, not through shared memory: {words[reason]}" in results[0][1]
    assert "gloo" not in results[1][1]


@pytest.mark.parametrize("killed", [0, 2])
def test_a_rank_killed_in_an_exchange_is_seen_at_once_and_leaves_no_memory(
    run_ranks: RunRanks, said: Said, killed: int
) -> None:
    # Nothing but the lock tells of the death: no connection is open in the group of the exchange.
    program = f"""
import torch.distributed as dist

def work(p):
    assert p.group is not None
    p.doing("step 12: backward")
    size = 3 * 2**20  # more than a ring: nobody is done before all have read
    x, y = torch.zeros(size), torch.empty(size)
    if p.rank == {killed}:
        dist.all_to_all_single(y, x, group=p.group, async_op=True)
        os.kill(os.getpid(), 9)
    begun = time.monotonic()
    try:
        for _ in range(2):
            dist.all_to_all_single(y, x, group=p.group)
    except RuntimeError as error:
        # Of two that wait, the second may see the first give up before it sees the death.
        assert "has left the shared memory" in str(error), error
        left = [name for name in set(os.listdir("/dev/shm")) - before if "recgrad" in name]
        print("measured", json.dumps([time.monotonic() - begun, left]), flush=True)
        raise
before = set(os.listdir("/dev/shm"))
finish(work, timeout_secs=100)
"""
    results = run_ranks(SMALL + program, 3)
    assert results[killed][0] == -signal.SIGKILL
    for code, out in (results[rank] for rank in range(3) if rank != killed):
        assert code == 2, out
        (line,) = (line for line in out.splitlines() if line.startswith("measured "))
        waited, left = json.loads(line.removeprefix("measured "))
        assert waited < 50
        assert not left
        assert said(out)[2].startswith(f"rank {killed} is gone (last seen ")


def test_a_rank_that_stands_still_in_an_exchange_is_named_after_the_timeout(
    run_ranks: RunRanks, said: Said
) -> None:
    program = """
def work(p):
    assert p.group is not None
    p.set_timeout(1)
    p.doing("step 12: reading data")
    if p.rank == 1:
        time.sleep(4)
    p.doing("step 12: gradients")
    p.sum([1.0])
finish(work)
"""
    results = run_ranks(program, 2)
    assert [code for code, _ in results] == [2, 2], results
    message = said(results[0][1])[2]
    assert message.startswith("rank 1 did not come within 1 s: it has been at 'step 12: reading data' for ")
