"""Signs of life, which must never stop the process that gives them."""

from __future__ import annotations

import subprocess
import sys

# Garbage whose finalizer lets other threads run, collected at any moment of a sign of life.
PROGRAM = """
import faulthandler, gc, os, sys, threading, time
from recgrad.training.processes.heartbeat import Pulse

faulthandler.dump_traceback_later(60, exit=True)
gc.set_threshold(20, 2, 2)
sys.setswitchinterval(1e-5)

class Circle:
    def __init__(self):
        self.own = self
    def __del__(self):
        time.sleep(0)

def beats():
    for i in range(3000):
        for _ in range(i % 23):
            Circle()
        pulse.beat()
    done.set()

pulse, done = Pulse(0), threading.Event()
threading.Thread(target=beats, daemon=True).start()
while not done.is_set():
    starts = threading.Thread(target=int)
    starts.start()
    starts.join()
assert gc.isenabled()
print("all beats given", flush=True)
os._exit(0)
"""


def test_a_sign_of_life_does_not_stop_the_process_whatever_garbage_there_is() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.stdout == "all beats given\n", done.stderr
