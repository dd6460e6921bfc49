"""Ranks started by hand: what they compute together, and what each says when one is late, dies or fails."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

RunRanks = Callable[..., list[tuple[int, str]]]
Said = Callable[[str], tuple[str, bool, str]]


def test_ranks_compute_together(run_ranks: RunRanks) -> None:
    program = """
def work(p):
    x = torch.arange(5.0) + p.rank
    y = torch.full((2, 3), float(p.rank), dtype=torch.bfloat16)
    z = torch.tensor(10 * p.rank, dtype=torch.float64)
    w = torch.zeros(4, 2).t()
    w.fill_(p.rank)
    p.average_([x, y, z, w])
    total = p.sum([1, 0.1 * p.rank, 2.0**53])
    print(json.dumps({
        "who": [p.rank, p.world_size, p.local_rank, p.is_main, p.distributed],
        "means": [x.tolist(), y.tolist(), z.item(), w.tolist()],
        "sum": total,
        "gather": p.gather({"rank": p.rank}),
        "broadcast": p.broadcast([p.rank, "of rank 0"]),
    }))
finish(work)
"""
    results = run_ranks(program, 3)
    assert [code for code, _ in results] == [0, 0, 0], results
    found = [json.loads(out) for _, out in results]
    for rank, result in enumerate(found):
        assert result["who"] == [rank, 3, rank, rank == 0, True]
        assert result["means"] == [[1.0, 2.0, 3.0, 4.0, 5.0], [[1.0] * 3] * 2, 10.0, [[1.0] * 4] * 2]
        assert result["sum"] == found[0]["sum"]
        assert result["sum"] == [3.0, pytest.approx(0.3, rel=1e-15), 3 * 2.0**53]
        assert result["gather"] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert result["broadcast"] == [0, "of rank 0"]


@pytest.mark.slow
def test_a_rank_that_is_late_is_named_with_what_it_does(run_ranks: RunRanks, said: Said) -> None:
    program = """
def work(p):
    p.doing("step 12: reading data")
    if p.rank == 1:
        time.sleep(6)
    p.doing("step 12: gradients")
    p.barrier()
finish(work)
"""
    results = run_ranks(program, 2)
    assert [code for code, _ in results] == [2, 2], results
    kind, reported, message = said(results[0][1])
    assert (kind, reported) == ("ProcessError", False)
    assert message.startswith("rank 1 did not come within 3 s: it has been at 'step 12: reading data' for ")
    assert "rank 0 waited for it at 'step 12: gradients'" in message.splitlines()[0]
    # The late rank learns why it finds nobody, and leaves the report to the other.
    assert said(results[1][1]) == ("ProcessError", True, message)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_is_named_by_one_of_the_others(
    run_ranks: RunRanks, said: Said, killed: int
) -> None:
    program = f"""
def work(p):
    p.doing("step 12: backward")
    if p.rank == {killed}:
        time.sleep(0.7)
        os.kill(os.getpid(), 9)
    p.barrier()
finish(work, timeout_secs=30)
"""
    results = run_ranks(program, 3)
    assert results[killed][0] == -signal.SIGKILL
    others = [results[rank] for rank in range(3) if rank != killed]
    assert [code for code, _ in others] == [2, 2], results
    messages = [said(out) for _, out in others]
    for kind, _, message in messages:
        assert kind == "ProcessError"
        assert message.startswith(f"rank {killed} is gone (last seen ")
        assert "'step 12: backward'" in message
    if killed != 0:  # the store, and with it the word on who reports, was in rank 0
        assert sorted(reported for _, reported, _ in messages) == [False, True]


def test_an_error_of_one_rank_reaches_the_others_before_the_timeout(run_ranks: RunRanks, said: Said) -> None:
    program = """
def work(p):
    if p.rank == 1:
        raise DataError("part-1.parquet: row 7 is damaged")
    p.barrier()
finish(work, timeout_secs=300)
"""
    results = run_ranks(program, 3)
    assert [code for code, _ in results] == [2, 2, 2], results
    assert said(results[1][1]) == ("DataError", False, "part-1.parquet: row 7 is damaged")
    for rank in (0, 2):
        echo = ("ProcessError", True, "rank 1 failed: part-1.parquet: row 7 is damaged")
        assert said(results[rank][1]) == echo


@pytest.mark.slow
def test_an_error_of_all_ranks_is_reported_once(run_ranks: RunRanks, said: Said) -> None:
    program = """
def work(p):
    raise DataError("no such file")
finish(work)
"""
    results = run_ranks(program, 3)
    spoken = [said(out) for _, out in results]
    assert sorted(reported for _, reported, _ in spoken) == [False, True, True]
    assert [message for _, reported, message in spoken if not reported] == ["no such file"]


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named(run_ranks: RunRanks, said: Said) -> None:
    program = """
if os.environ["RANK"] == "1":
    sys.exit(0)
finish(lambda p: None)
"""
    results = run_ranks(program, 2)
    assert results[0][0] == 2
    assert said(results[0][1])[2].startswith("rank 1 did not come within 3 s, nor show at all")


@pytest.mark.slow
def test_a_rank_may_take_longer_than_the_timeout_once_the_others_are_done(run_ranks: RunRanks) -> None:
    program = """
def work(p):
    p.set_timeout(1)
    if p.rank == 0:
        time.sleep(3)
finish(work)
"""
    assert [code for code, _ in run_ranks(program, 2)] == [0, 0]


@pytest.mark.slow
def test_a_port_in_use_and_a_master_out_of_reach_are_told(run_ranks: RunRanks, said: Said) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        results = run_ranks("finish(lambda p: None)", 1, MASTER_PORT=port)
        assert results[0][0] == 2
        assert said(results[0][1])[2].startswith(f"MASTER_PORT {port} is in use")
    variables = {"MASTER_PORT": port, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    results = run_ranks("finish(lambda p: None, timeout_secs=1)", 1, **variables)
    assert results[0][0] == 2
    assert f"cannot reach 127.0.0.1:{port}" in said(results[0][1])[2]


@pytest.mark.slow
def test_the_first_rank_is_waited_for_while_it_moves_on_and_named_when_it_does_not(
    run_ranks: RunRanks, said: Said
) -> None:
    program = """
def work(p):
    def check():
        for i in range(12):
            p.doing(f"checking file {i}")
            time.sleep(0.25)
        return "model.ckpt-8"
    def hang():
        p.doing("checking file 12")
        time.sleep(6)
    p.set_timeout(1)
    print(p.on_main(check), flush=True)
    p.on_main(hang)
finish(work)
"""
    results = run_ranks(program, 3)
    assert [code for code, _ in results] == [2, 2, 2], results
    for _, out in results:
        assert out.splitlines()[0] == "model.ckpt-8"
    messages = {said(out)[2] for _, out in results}
    assert len(messages) == 1
    assert messages.pop().startswith("rank 0 did not come within 1 s: it has been at 'checking file 12' for ")


def test_an_error_of_the_first_rank_ends_the_wait_of_the_others(run_ranks: RunRanks, said: Said) -> None:
    program = """
def work(p):
    def check():
        raise DataError("no checkpoint is whole")
    p.on_main(check)
finish(work, timeout_secs=300)
"""
    results = run_ranks(program, 2)
    assert [code for code, _ in results] == [2, 2], results
    assert said(results[0][1]) == ("DataError", False, "no checkpoint is whole")
    assert said(results[1][1]) == ("ProcessError", True, "rank 0 failed: no checkpoint is whole")


def test_a_rank_that_was_stopped_while_they_meet_is_named_after_the_timeout(
    run_ranks: RunRanks, said: Said, tmp_path: Path
) -> None:
    program = f"""
import signal
from pathlib import Path
from recgrad.training.processes import group

stopped = Path({str(tmp_path / "stopped")!r})
if os.environ["RANK"] == "1":
    def stop(device):
        time.sleep(0.6)  # until it has been heard of
        stopped.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    group.backend_of = stop
try:
    finish(lambda p: None, timeout_secs=2)
finally:
    os.kill(int(stopped.read_text()), signal.SIGKILL)
"""
    (code, out), (killed, _) = run_ranks(program, 2)
    assert (code, killed) == (2, -9)
    kind, _, message = said(out)
    assert kind == "ProcessError"
    assert message.startswith("rank 1 did not come within 2 s: it has been at '")
    assert "rank 0 waited for it at 'meeting the other ranks'" in message


@pytest.mark.slow
def test_a_rank_that_dies_while_they_meet_is_named(run_ranks: RunRanks, said: Said) -> None:
    """Rank 0 has its address, and finds nobody there or waits for it to call, whichever gloo has chosen."""
    program = """
import signal, threading
import torch.distributed as dist
meet = dist.init_process_group
def met(*args, store, rank, **settings):
    if rank == 1:
        store.set("dies", "soon")
        threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    else:
        store.get("dies")
        time.sleep(3)
    meet(*args, store=store, rank=rank, **settings)
dist.init_process_group = met
finish(lambda p: None, timeout_secs=4)
"""
    results = run_ranks(program, 2)
    assert [code for code, _ in results] == [2, -signal.SIGKILL], results
    kind, _, message = said(results[0][1])
    assert kind == "ProcessError"
    assert message.startswith("rank 1 is gone (last seen "), message


def test_a_save_that_waits_for_a_dead_rank_names_it_and_its_place(run_ranks: RunRanks, said: Said) -> None:
    program = """
from recgrad.errors import LostRankError

def work(p):
    p.doing("saving the checkpoint of step 32")
    if p.rank == 1:
        time.sleep(1)
        os.kill(os.getpid(), 9)
    time.sleep(2)
    raise LostRankError("model.ckpt-32: the checkpoint could not be written (rank 1: not done within 1 s)")
finish(work, timeout_secs=1)
"""
    (code, out), (killed, _) = run_ranks(program, 2)
    assert (code, killed) == (2, -9)
    kind, _, message = said(out)
    assert kind == "ProcessError"
    assert message.startswith("rank 1 is gone (last seen ")
    assert "at 'saving the checkpoint of step 32'); rank 0 was at 'saving" in message
