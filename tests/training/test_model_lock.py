"""One run a model_dir: a second one is refused by name of the first, and a dead one's place is free."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import recgrad
from recgrad.config import PipelineConfig
from recgrad.errors import RecgradError
from recgrad.training import model_lock
from recgrad.training.model_lock import LOCK_NAME, Owner, hold_model_dir

KEPT: list[Any] = []


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_lock, "ALIVE_SECS", 0.05)


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[], None]], int]]:
    """Runs a function in a forked process, which then waits; returns its pid once the function is done."""
    started = []

    def run(function: Callable[[], None]) -> int:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                function()
                os.write(writing, b"x")
                signal.pause()
            finally:
                os._exit(1)
        os.close(writing)
        started.append(pid)
        assert os.read(reading, 1) == b"x"
        os.close(reading)
        return pid

    yield run
    for pid in started:
        end(pid)


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def hold(folder: Path) -> Callable[[], None]:
    """Takes the lock for good."""

    def take() -> None:
        KEPT.append(hold_model_dir(folder))
        KEPT[-1].__enter__()

    return take


def free(folder: Path) -> bool:
    try:
        with hold_model_dir(folder):
            return True
    except RecgradError:
        return False


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_run_is_refused_with_the_name_of_the_first_and_changes_nothing(
    config: PipelineConfig, start: Callable[[Callable[[], None]], int]
) -> None:
    folder = Path(config.model_dir)
    config.train_config.ClearField("num_epochs")
    config.train_config.num_steps = 2
    recgrad.train(config)
    pid = start(hold(folder))
    before = contents(folder)
    for continues in (True, False):
        with pytest.raises(
            RecgradError, match=rf"in use by another run \(host .+, pid {pid}, since 20..-..-.. .*\); wait"
        ):
            recgrad.train(config, continue_train=continues)
    assert contents(folder) == before
    recgrad.evaluate(config)  # only reads
    end(pid)
    config.train_config.num_steps = 3
    assert recgrad.train(config, continue_train=True).step == 3
    assert not (folder / LOCK_NAME).exists()


def test_a_killed_runs_lock_is_taken_over_without_a_word(
    tmp_path: Path,
    start: Callable[[Callable[[], None]], int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_lock, "ALIVE_SECS", 30)
    pid = start(hold(tmp_path))
    os.kill(pid, signal.SIGKILL)  # not reaped: it may still be ending
    assert free(tmp_path)
    assert not caplog.records


def test_children_do_not_keep_a_dead_process_lock(
    tmp_path: Path, start: Callable[[Callable[[], None]], int]
) -> None:
    child = tmp_path / "child"

    def with_child() -> None:
        hold(tmp_path / "model")()
        pid = os.fork()
        if pid == 0:
            signal.pause()
        child.write_text(str(pid))

    pid = start(with_child)
    try:
        assert not free(tmp_path / "model")
        end(pid)
        assert free(tmp_path / "model")
    finally:
        os.kill(int(child.read_text()), signal.SIGKILL)


def test_a_child_that_leaves_the_block_does_not_take_the_lock_along(tmp_path: Path) -> None:
    with hold_model_dir(tmp_path):
        held = os.stat(tmp_path / LOCK_NAME)
        pid = os.fork()
        if pid == 0:
            try:
                with hold_model_dir(tmp_path):
                    os._exit(1)
            except RecgradError as error:
                os._exit(0 if str(os.getppid()) in str(error) else 2)
        assert os.waitpid(pid, 0)[1] == 0
        assert os.stat(tmp_path / LOCK_NAME).st_ino == held.st_ino


def test_two_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    results = []
    with hold_model_dir(tmp_path):
        thread = threading.Thread(target=lambda: results.append(free(tmp_path)))
        thread.start()
        thread.join()
        pid = os.fork()
        if pid == 0:
            os._exit(int(free(tmp_path)))
        assert os.waitpid(pid, 0)[1] == 0, "the thread has lost the lock of the process"
    assert results == [False]
    assert free(tmp_path)


def test_many_that_come_and_go_never_hold_it_together(tmp_path: Path) -> None:
    """Each marks the folder while it holds the lock; two marks at once would be seen."""
    folder, mark = tmp_path / "model", tmp_path / "mark"

    def come_and_go() -> int:
        got = 0
        deadline = time.monotonic() + 30
        while got < 20 and time.monotonic() < deadline:
            try:
                with hold_model_dir(folder):
                    mark.mkdir()
                    mark.rmdir()
                    got += 1
            except RecgradError:
                time.sleep(0.001)
        return got

    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if come_and_go() == 20 else 2
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]


def test_a_free_lock_of_another_host_is_taken_over_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = {"host": "far", "machine": "far boot ns", "pid": 77, "ticks": 5, "since": 1.7e9}
    (tmp_path / LOCK_NAME).write_text(json.dumps(owner))
    with hold_model_dir(tmp_path):
        pass
    assert "left by another run (host far, pid 77, since 2023" in caplog.text


@pytest.mark.parametrize(
    "text", ["", "torn{", "[]", "3", '{"pid": "x"}', "[" * 3000, '{"since": 1e300}', "\0" * 5000]
)
def test_whatever_the_file_says_a_free_lock_is_taken(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK_NAME).write_text(text)
    assert free(tmp_path)


def test_a_file_system_without_locks_goes_by_what_the_file_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    start: Callable[[Callable[[], None]], int],
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert free(tmp_path)
    assert "has no locks; see that no other run uses it" in caplog.text
    pid = start(hold(tmp_path))
    assert not free(tmp_path)
    end(pid)
    assert free(tmp_path)


def test_a_run_that_is_ending_is_waited_for(
    tmp_path: Path, start: Callable[[Callable[[], None]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start(hold(tmp_path))
    monkeypatch.setattr(Owner, "is_gone", property(lambda self: True))
    threading.Timer(0.2, end, [pid]).start()
    assert free(tmp_path)
    monkeypatch.setattr(model_lock, "ENDING_SECS", 0.1)
    start(hold(tmp_path))
    assert not free(tmp_path)


def test_a_refused_run_leaves_no_folder_behind(config: PipelineConfig, tmp_path: Path) -> None:
    config.model_dir = str(tmp_path / "deep" / "model")
    config.data_config.batch_size = 100_000
    config.data_config.drop_remainder = True
    with pytest.raises(RecgradError, match="--ignore_restore_optimizer"):
        recgrad.train(config, ignore_restore_optimizer=True)
    assert not (tmp_path / "deep").exists()
    with hold_model_dir(tmp_path / "deep" / "model"):
        assert (tmp_path / "deep" / "model" / LOCK_NAME).exists()
    assert not (tmp_path / "deep").exists()


def test_a_model_dir_that_is_a_file_or_whose_lock_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecgradError, match="file is a file; choose another --model_dir"):
        hold(tmp_path / "file")()
    with pytest.raises(RecgradError, match="cannot write"):
        hold(tmp_path / "file" / "below")()
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)):
        make(tmp_path / LOCK_NAME)
        with pytest.raises(RecgradError, match=r"not a regular file|cannot write"):
            hold(tmp_path)()
        os.rename(tmp_path / LOCK_NAME, tmp_path / make.__name__)


def test_what_a_killed_run_left_half_written_is_removed(config: PipelineConfig) -> None:
    folder = Path(config.model_dir)
    config.train_config.ClearField("num_epochs")
    config.train_config.num_steps = 1
    recgrad.train(config)
    torn = [".events.jsonl.writing-ab", ".train_eval_result.txt.writing-cd", ".pipeline.config.7.tmp"]
    for name in torn:
        (folder / name).write_text("{")
    config.train_config.num_steps = 2
    recgrad.train(config, continue_train=True)
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
