"""The first signal asks, the second stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from recgrad.training.signals import StopRequest


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_is_remembered(number: int, code: int) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.exit_code == 0
        os.kill(os.getpid(), number)
        assert stop.signal == number
        assert stop.exit_code == code
    assert signal.getsignal(number) is before


def test_the_second_signal_ends_the_process() -> None:
    program = (
        "import os, signal, time\n"
        "from recgrad.training.signals import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('asked', stop.signal, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(30)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "asked 15\n"
    assert done.returncode == -signal.SIGTERM


def test_outside_the_main_thread_it_stays_silent() -> None:
    seen: list[int | None] = []

    def work() -> None:
        with StopRequest() as stop:
            seen.append(stop.signal)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]
