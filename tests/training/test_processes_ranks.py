"""Real processes: what they compute together, and what each says when one is late, dies or fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_SECS = 60

START = """
import json, os, sys, time
import torch
from recgrad.errors import DataError, RecgradError
from recgrad.training.processes import open_processes

def finish(work, timeout_secs=3):
    try:
        with open_processes(timeout_secs) as processes:
            processes.barrier()
            work(processes)
    except RecgradError as error:
        print(json.dumps([type(error).__name__, getattr(error, "reported", False), str(error)]))
        sys.exit(2)
"""


def run_ranks(program: str, world_size: int, **variables: str) -> list[tuple[int, str, str]]:
    """The exit code, output and errors of each rank, started by hand: rank 0 holds the store."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = []
    for rank in range(world_size):
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        line = [sys.executable, "-c", START + program]
        ranks.append(
            subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        texts = [rank.communicate(timeout=TIMEOUT_SECS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, out, err) for rank, (out, err) in zip(ranks, texts)]


def said(out: str) -> tuple[str, bool, str]:
    kind, reported, message = json.loads(out.strip().splitlines()[-1])
    return kind, reported, message


def test_ranks_compute_together() -> None:
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
    assert [code for code, _, _ in results] == [0, 0, 0], results
    found = [json.loads(out) for _, out, _ in results]
    for rank, result in enumerate(found):
        assert result["who"] == [rank, 3, rank, rank == 0, True]
        assert result["means"] == [[1.0, 2.0, 3.0, 4.0, 5.0], [[1.0] * 3] * 2, 10.0, [[1.0] * 4] * 2]
        assert result["sum"] == found[0]["sum"]
        assert result["sum"] == [3.0, pytest.approx(0.3, rel=1e-15), 3 * 2.0**53]
        assert result["gather"] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert result["broadcast"] == [0, "of rank 0"]


@pytest.mark.slow
def test_a_rank_that_is_late_is_named_with_what_it_does() -> None:
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
    assert [code for code, _, _ in results] == [2, 2], results
    kind, reported, message = said(results[0][1])
    assert (kind, reported) == ("ProcessError", False)
    assert message.startswith("rank 1 did not come within 3 s: it has been at 'step 12: reading data' for ")
    assert "rank 0 waited for it at 'step 12: gradients'" in message.splitlines()[0]
    # The late rank learns why it finds nobody, and leaves the report to the other.
    assert said(results[1][1]) == ("ProcessError", True, message)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_is_named_by_one_of_the_others(killed: int) -> None:
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
    assert [code for code, _, _ in others] == [2, 2], results
    messages = [said(out) for _, out, _ in others]
    for kind, _, message in messages:
        assert kind == "ProcessError"
        assert message.startswith(f"rank {killed} is gone (last seen ")
        assert "'step 12: backward'" in message
    if killed != 0:  # the store, and with it the word on who reports, was in rank 0
        assert sorted(reported for _, reported, _ in messages) == [False, True]


def test_an_error_of_one_rank_reaches_the_others_before_the_timeout() -> None:
    program = """
def work(p):
    if p.rank == 1:
        raise DataError("part-1.parquet: row 7 is damaged")
    p.barrier()
finish(work, timeout_secs=300)
"""
    results = run_ranks(program, 3)
    assert [code for code, _, _ in results] == [2, 2, 2], results
    assert said(results[1][1]) == ("DataError", False, "part-1.parquet: row 7 is damaged")
    for rank in (0, 2):
        echo = ("ProcessError", True, "rank 1 failed: part-1.parquet: row 7 is damaged")
        assert said(results[rank][1]) == echo


@pytest.mark.slow
def test_an_error_of_all_ranks_is_reported_once() -> None:
    program = """
def work(p):
    raise DataError("no such file")
finish(work)
"""
    results = run_ranks(program, 3)
    spoken = [said(out) for _, out, _ in results]
    assert sorted(reported for _, reported, _ in spoken) == [False, True, True]
    assert [message for _, reported, message in spoken if not reported] == ["no such file"]


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named() -> None:
    program = """
if os.environ["RANK"] == "1":
    sys.exit(0)
finish(lambda p: None)
"""
    results = run_ranks(program, 2)
    assert results[0][0] == 2
    assert said(results[0][1])[2].startswith("rank 1 did not come within 3 s, nor show at all")


@pytest.mark.slow
def test_a_rank_may_take_longer_than_the_timeout_once_the_others_are_done() -> None:
    program = """
def work(p):
    p.set_timeout(1)
    if p.rank == 0:
        time.sleep(3)
finish(work)
"""
    assert [code for code, _, _ in run_ranks(program, 2)] == [0, 0]


@pytest.mark.slow
def test_a_port_in_use_and_a_master_out_of_reach_are_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        results = run_ranks("finish(lambda p: None)", 1, MASTER_PORT=port)
        assert results[0][0] == 2
        assert said(results[0][1])[2].startswith(f"MASTER_PORT {port} is in use")
    variables = {"MASTER_PORT": port, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    results = run_ranks("finish(lambda p: None, timeout_secs=1)", 1, **variables)
    assert results[0][0] == 2
    assert f"cannot reach 127.0.0.1:{port}" in said(results[0][1])[2]


LAUNCH = """
import sys
from recgrad.cli.launch import launch
line = [sys.executable, "-c", sys.argv[1]]
sys.exit(launch(line, 2, max_restarts=int(sys.argv[2]), go_on="recgrad train x --continue-train --nproc 2"))
"""


def start_launcher(program: str, max_restarts: int = 0) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, START + program, str(max_restarts)],
        env={**env, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_the_launcher_names_a_killed_rank_and_starts_again(tmp_path: Path) -> None:
    program = f"""
def work(p):
    p.doing("step 12: backward")
    if p.rank == 1 and p.restarts == 0:
        time.sleep(0.7)
        os.kill(os.getpid(), 9)
    p.barrier()
    if p.is_main:
        open({str(tmp_path / "restarts")!r}, "w").write(str(p.restarts))
finish(work, timeout_secs=30)
"""
    launcher = start_launcher(program, max_restarts=1)
    _, errors = launcher.communicate(timeout=TIMEOUT_SECS)
    assert launcher.returncode == 0, errors
    assert (tmp_path / "restarts").read_text() == "1"
    first = errors.splitlines()[0]
    assert first.startswith("rank 1 was killed by SIGKILL")
    assert first.endswith(
        "while at 'step 12: backward'; starting again from the last checkpoint (restart 1 of 1)"
    )


@pytest.mark.slow
def test_the_launcher_says_how_to_go_on_without_a_restart_left() -> None:
    program = """
def work(p):
    p.doing("step 12: backward")
    if p.rank == 0:
        time.sleep(0.7)
        os.kill(os.getpid(), 9)
    p.barrier()
finish(work, timeout_secs=30)
"""
    launcher = start_launcher(program)
    _, errors = launcher.communicate(timeout=TIMEOUT_SECS)
    assert launcher.returncode == 1
    first = errors.splitlines()[0]
    assert first.startswith("rank 0 was killed by SIGKILL")
    assert first.endswith("; go on with: recgrad train x --continue-train --nproc 2")


STOPPING = """
from recgrad.training.signals import StopRequest

def say(text):
    os.write(1, f"{text}\\n".encode())  # the ranks share the pipe: a line at a time

with open_processes(30) as p, StopRequest() as stop:
    say(f"running {os.getpid()} {p.rank}")
    while not p.sum([stop.signal or 0])[0]:
        time.sleep(0.01)
    time.sleep(SAVE_SECS)
    codes = p.gather(stop.exit_code)
    say(f"saved {p.rank}")
sys.exit(max(codes))
"""


def await_ranks(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """The pid of each rank, once all run."""
    assert launcher.stdout is not None
    lines = [launcher.stdout.readline().split() for _ in range(2)]
    assert [line[0] for line in lines] == ["running", "running"]
    return {int(rank): int(pid) for _, pid, rank in lines}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_launcher_stops_all_ranks_once(number: int, code: int) -> None:
    launcher = start_launcher(STOPPING.replace("SAVE_SECS", "0.5"), max_restarts=1)
    await_ranks(launcher)
    launcher.send_signal(number)
    out, errors = launcher.communicate(timeout=TIMEOUT_SECS)
    assert sorted(out.splitlines()) == ["saved 0", "saved 1"]
    assert launcher.returncode == code
    assert errors == ""


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_and_is_no_reason_to_start_again() -> None:
    launcher = start_launcher(STOPPING.replace("SAVE_SECS", "0.1"), max_restarts=1)
    os.kill(await_ranks(launcher)[1], signal.SIGTERM)
    out, _ = launcher.communicate(timeout=TIMEOUT_SECS)
    assert sorted(out.splitlines()) == ["saved 0", "saved 1"]
    assert launcher.returncode == 143


@pytest.mark.slow
def test_a_second_signal_kills() -> None:
    launcher = start_launcher(STOPPING.replace("SAVE_SECS", "30"))
    await_ranks(launcher)
    launcher.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(1)
    launcher.send_signal(signal.SIGTERM)
    out, _ = launcher.communicate(timeout=10)
    assert out == ""
    assert launcher.returncode == 143


@pytest.mark.slow
def test_ranks_stop_by_themselves_when_the_launcher_is_killed() -> None:
    launcher = start_launcher(STOPPING.replace("SAVE_SECS", "0.1"))
    await_ranks(launcher)
    launcher.kill()
    # Their end of the pipe closes when they have ended.
    out, _ = launcher.communicate(timeout=TIMEOUT_SECS)
    assert sorted(out.splitlines()) == ["saved 0", "saved 1"]


@pytest.mark.slow
def test_torchrun_names_a_killed_rank_on_its_first_line(tmp_path: Path) -> None:
    program = """
def work(p):
    p.doing("step 12: backward")
    if p.rank == 1:
        time.sleep(0.7)
        os.kill(os.getpid(), 9)
    p.barrier()
finish(work, timeout_secs=30)
"""
    script = tmp_path / "program.py"
    script.write_text(START.replace("print(json", "print(error, file=sys.stderr); print(json") + program)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECS,
    )
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("rank ")]
    assert len(lines) == 1
    assert lines[0].startswith("rank 1 is gone (last seen ")
    assert "at 'step 12: backward'" in lines[0]


@pytest.mark.parametrize(
    ("flags", "variables", "problem"),
    [
        (["--nproc", "0"], {}, "--nproc: must be at least 1, got 0"),
        (["--nproc", "2", "--max-restarts", "-1"], {}, "--max-restarts: must be at least 0, got -1"),
        (["--max-restarts", "2"], {}, "--max-restarts 2 needs --nproc; torchrun has its own"),
        (["--nproc", "2"], {"WORLD_SIZE": "4"}, "--nproc 2 starts the processes, but WORLD_SIZE=4"),
    ],
)
def test_flags_of_processes_that_do_not_fit_are_refused(
    flags: list[str],
    variables: dict[str, str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from recgrad.cli.main import main

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "some.config", *flags]) == 2
    assert capsys.readouterr().err.startswith(problem)


def test_each_process_gets_the_line_without_the_flags_of_the_launcher() -> None:
    from recgrad.cli.main import build_parser
    from recgrad.cli.train import command_line

    line = [
        "train",
        "a b.config",
        "--model-dir",
        "m",
        "--continue-train",
        "--nproc",
        "2",
        "--num-threads",
        "3",
    ]
    parser = build_parser()
    given = parser.parse_args([*line, "--max-restarts", "1", "--edit-config-json", '{"a": 1}'])
    again = parser.parse_args(command_line(given))
    expected = {**vars(given), "nproc": None, "max_restarts": None}
    assert vars(again) == expected
