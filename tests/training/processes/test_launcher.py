"""The launcher of several ranks: restarts, signals, and its own death; torchrun in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TIMEOUT_SECS = 300  # nothing takes so long but a run that hangs
StartLauncher = Callable[..., "subprocess.Popen[str]"]


@pytest.mark.slow
def test_the_launcher_names_a_killed_rank_and_starts_again(
    start_launcher: StartLauncher, tmp_path: Path
) -> None:
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
def test_the_launcher_says_how_to_resume_without_a_restart_left(start_launcher: StartLauncher) -> None:
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
    assert first.endswith("; resume with: recgrad train x --continue-train --nproc 2")


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
def test_a_signal_to_the_launcher_stops_all_ranks_once(
    start_launcher: StartLauncher, number: int, code: int
) -> None:
    launcher = start_launcher(STOPPING.replace("SAVE_SECS", "0.5"), max_restarts=1)
    await_ranks(launcher)
    launcher.send_signal(number)
    out, errors = launcher.communicate(timeout=TIMEOUT_SECS)
    assert sorted(out.splitlines()) == ["saved 0", "saved 1"]
    assert launcher.returncode == code
    assert errors == ""


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_and_is_no_reason_to_start_again(
    start_launcher: StartLauncher,
) -> None:
    launcher = start_launcher(STOPPING.replace("SAVE_SECS", "0.1"), max_restarts=1)
    os.kill(await_ranks(launcher)[1], signal.SIGTERM)
    out, _ = launcher.communicate(timeout=TIMEOUT_SECS)
    assert sorted(out.splitlines()) == ["saved 0", "saved 1"]
    assert launcher.returncode == 143


@pytest.mark.slow
def test_a_second_signal_kills(start_launcher: StartLauncher) -> None:
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
def test_ranks_stop_by_themselves_when_the_launcher_is_killed(start_launcher: StartLauncher) -> None:
    launcher = start_launcher(STOPPING.replace("SAVE_SECS", "0.1"))
    await_ranks(launcher)
    launcher.kill()
    # Their end of the pipe closes when they have ended.
    out, _ = launcher.communicate(timeout=TIMEOUT_SECS)
    assert sorted(out.splitlines()) == ["saved 0", "saved 1"]


def test_ranks_that_have_not_met_end_at_once_and_quietly_with_the_launcher() -> None:
    rank = "import os, time; os.write(1, b'here\\n'); time.sleep(600)"
    program = (
        f"import sys; from recgrad.cli.launch import launch; launch([sys.executable, '-c', {rank!r}], 2)"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert [launcher.stdout.readline() for _ in range(2)] == ["here\n", "here\n"]
    launcher.kill()
    out, errors = launcher.communicate(timeout=TIMEOUT_SECS)  # their ends of the pipes close when they end
    assert (out, errors) == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("told", ["by a signal", "by the store"])
def test_ranks_that_wait_for_each_other_end_quietly_with_the_launcher(
    start_launcher: StartLauncher, told: str
) -> None:
    # Whether the kernel's signal or the closed connection comes first is chance; without the signal the
    # connection does.
    program = f"""
import torch.distributed as dist
from recgrad.training.processes.heartbeat import watch_launcher_alone
meet = dist.init_process_group

def say_and_meet(*args, **kwargs):
    if {told == "by the store"}:
        watch_launcher_alone()
    os.write(1, b"here\\n")
    meet(*args, **kwargs)

if os.environ["RANK"] == "1":
    os.write(1, b"here\\n")
    time.sleep(600)
dist.init_process_group = say_and_meet
finish(lambda p: None, timeout_secs=600)
"""
    launcher = start_launcher(program)
    assert launcher.stdout is not None
    assert [launcher.stdout.readline() for _ in range(2)] == ["here\n", "here\n"]
    time.sleep(1)  # rank 0 waits
    launcher.kill()
    out, errors = launcher.communicate(timeout=TIMEOUT_SECS)
    assert (out, errors) == ("", "")


@pytest.mark.slow
def test_torchrun_names_a_killed_rank_on_its_first_line(prelude: str, tmp_path: Path) -> None:
    # Torchrun sends SIGTERM to the others when one has died; a run takes signals, and so lives to say why.
    program = """
from recgrad.training.signals import StopRequest

def work(p):
    p.doing("step 12: backward")
    if p.rank == 1:
        time.sleep(0.7)
        os.kill(os.getpid(), 9)
    p.barrier()
with StopRequest(alone=False):
    finish(work, timeout_secs=30)
"""
    script = tmp_path / "program.py"
    script.write_text(prelude.replace("print(json", "print(error, file=sys.stderr); print(json") + program)
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
