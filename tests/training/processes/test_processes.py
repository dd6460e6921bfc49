"""Who this process is among those of a run, and which rank is said to be to blame."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from recgrad.errors import CheckpointError, LostRankError, RecgradError
from recgrad.training.processes import Environment, Processes, open_processes, read_environment
from recgrad.training.processes import processes as processes_module
from recgrad.training.processes.blame import comes_from_a_peer, describe_gone, describe_late
from recgrad.training.processes.board import Beat
from recgrad.training.processes.heartbeat import Heartbeat, Pulse

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
BEAT = Beat(
    rank=0,
    host="here",
    pid=1,
    started=1,
    number=9,
    at=100.0,
    doing="step 12: gradients",
    since=60.0,
    moves=30,
    waiting=True,
    where="trainer.py:1",
)


def test_torchrun_tells_who_the_process_is() -> None:
    assert read_environment(TORCHRUN) == Environment(
        rank=3,
        world_size=4,
        local_rank=1,
        local_world_size=2,
        master_addr="node-0",
        master_port=29500,
        restarts=1,
        agent_store=True,
        distributed=True,
    )


@pytest.mark.parametrize("env", [{}, {"MASTER_ADDR": "node-0", "MASTER_PORT": "1"}, {"PATH": "/bin"}])
def test_without_a_rank_the_process_is_alone(env: dict[str, str]) -> None:
    assert read_environment(env) == Environment()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"RANK": "4"}, "RANK 4 is not below WORLD_SIZE 4"),
        ({"RANK": "-1"}, "RANK must be a number from 0, got '-1'"),
        ({"RANK": "one"}, "RANK must be a number from 0, got 'one'"),
        ({"RANK": None}, "WORLD_SIZE=4 is set but not RANK"),
        ({"MASTER_PORT": None}, "RANK=3 is set but not MASTER_PORT"),
        ({"MASTER_ADDR": " "}, "RANK=3 is set but not MASTER_ADDR"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT must be from 1 to 65535, got 70000"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be at least 1, got 0"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK 2 is not below LOCAL_WORLD_SIZE 2"),
        ({"LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE 5 is above WORLD_SIZE 4"),
        ({"TORCHELASTIC_RESTART_COUNT": "x"}, "TORCHELASTIC_RESTART_COUNT must be a number"),
    ],
)
def test_variables_that_do_not_fit_are_named_with_the_remedy(
    change: dict[str, str | None], problem: str
) -> None:
    env = {name: value for name, value in {**TORCHRUN, **change}.items() if value is not None}
    with pytest.raises(RecgradError, match=problem) as caught:
        read_environment(env)
    assert "--nproc N" in str(caught.value)


def test_alone_every_method_is_trivial(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    tensor = torch.tensor([1.0, 2.0])
    with open_processes() as processes:
        assert (processes.rank, processes.world_size, processes.is_main) == (0, 1, True)
        assert not processes.distributed
        assert not torch.distributed.is_initialized()
        processes.doing("step 1: reading data")
        processes.set_timeout(5)
        processes.barrier()
        processes.average_([tensor])
        assert processes.sum([1, 2.5]) == [1.0, 2.5]
        assert processes.gather("x") == ["x"]
        assert processes.broadcast({"a": 1}) == {"a": 1}
    assert tensor.tolist() == [1.0, 2.0]


def test_a_timeout_of_nothing_is_refused() -> None:
    with pytest.raises(RecgradError, match="process_timeout_secs: must be at least 1, got 0"):
        Processes().set_timeout(0)


def test_large_tensors_are_reduced_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_module, "BUCKET_BYTES", 40)
    tensors = [torch.zeros(size) for size in (3, 4, 5, 20, 1)]
    sizes = [[len(tensor) for tensor in bucket] for bucket in processes_module._buckets(tensors)]
    assert sizes == [[3, 4], [5], [20], [1]]


def test_the_rank_that_does_not_wait_is_late() -> None:
    reading = replace(BEAT, rank=1, doing="step 12: reading data", since=58.0, waiting=False, moves=29)
    other = replace(BEAT, rank=2)
    text = describe_late([BEAT, reading, other], BEAT, 30, now=100.0)
    assert text.startswith("rank 1 did not come within 30 s: it has been at 'step 12: reading data' for 42 s")
    assert text.endswith("rank 0 waited for it at 'step 12: gradients'")


def test_of_several_late_ranks_the_one_furthest_behind_is_named() -> None:
    first = replace(BEAT, rank=1, doing="step 12: reading data", waiting=False, moves=29)
    last = replace(BEAT, rank=2, doing="step 11: saving", waiting=False, moves=27)
    assert describe_late([BEAT, first, last], BEAT, 30, now=100.0).startswith("rank 2 did not come")


def test_a_rank_that_waits_elsewhere_is_late_when_it_is_behind() -> None:
    behind = replace(BEAT, rank=1, doing="step 11: evaluating", moves=25)
    assert describe_late([BEAT, behind], BEAT, 30, now=100.0).startswith("rank 1 did not come")


def test_ranks_that_wait_for_each_other_are_all_named() -> None:
    text = describe_late([BEAT, replace(BEAT, rank=1)], BEAT, 30, now=100.0)
    assert text.startswith("the ranks waited 30 s for each other")
    assert "rank 1 at 'step 12: gradients'" in text


def test_a_rank_that_never_showed_is_named() -> None:
    text = describe_late([BEAT, None, replace(BEAT, rank=2), None], BEAT, 30, now=100.0)
    assert text.startswith("ranks 1, 3 did not come within 30 s, nor show at all")


def test_a_rank_that_is_not_heard_of_is_said_to_be_so() -> None:
    stuck = replace(BEAT, rank=1, at=70.0, waiting=False)
    assert "not heard of for 30 s" in describe_late([BEAT, stuck], BEAT, 30, now=100.0)


def test_a_rank_that_is_gone_is_named_with_what_it_did() -> None:
    gone = replace(BEAT, rank=1, at=97.0, doing="step 12: backward")
    text = describe_gone(gone, BEAT, now=100.0)
    assert text.startswith("rank 1 is gone (last seen 3 s ago at 'step 12: backward')")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:15537"), True),
        (
            RuntimeError("[unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"),
            True,
        ),
        (RuntimeError("Application timeout caused pair closure"), True),
        (RuntimeError("[pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=…"), True),
        (RuntimeError("Gloo connectFullMesh failed with [pair.h:311] Connect timeout [none]"), True),
        (torch.distributed.DistBackendError("NCCL error"), True),
        (LostRankError("model.ckpt-3: … (rank 1: not done within 3 s, may have died)"), True),
        (CheckpointError("model.ckpt-3: … (rank 1: No space left on device)"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("Connection closed by peer"), False),
    ],
)
def test_errors_of_collectives_are_told_from_others(error: Exception, expected: bool) -> None:
    assert comes_from_a_peer(error) is expected


def test_what_an_error_came_of_counts() -> None:
    error = KeyError("batch")
    error.__cause__ = RuntimeError("Connection reset by peer")
    assert comes_from_a_peer(error)


def test_what_is_told_at_once_needs_no_beat() -> None:
    class Heard:
        def __init__(self) -> None:
            self.heard = threading.Event()

        def beat(self, beat: Beat) -> None:
            if beat.doing == "saving":
                self.heard.set()

    board: Any = Heard()
    pulse = Pulse(0)
    heartbeat = Heartbeat(pulse, lambda: board, every_secs=600)
    pulse.doing("backward")
    pulse.doing("saving", tell=True)
    assert board.heard.wait(60)
    heartbeat.stop()
