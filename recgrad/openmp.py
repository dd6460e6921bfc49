"""What OpenMP is told by the environment: how its threads wait, how many they are, where they run.

torch computes on the threads of libgomp, which reads its variables once, when it is loaded.
Nothing here loads it, so that commands can decide before torch is there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from recgrad.cores import available_cores, within_quota
from recgrad.errors import RecgradError

LIBRARY = "libgomp.so.1"
SPIN, POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
THREADS = "OMP_NUM_THREADS"


def threads_spin(environment: Mapping[str, str] | None = None) -> bool:
    """Whether nobody told libgomp how to wait: its threads then spin for some milliseconds."""
    environment = os.environ if environment is None else environment
    return not (environment.get(SPIN) or environment.get(POLICY))


def choose_threads(asked: int | None = None, processes: int = 1) -> int:
    """The number of threads to compute with.

    In this order: what `--num_threads` asks for, what OMP_NUM_THREADS says, and this process' share
    of the cores that are there for it: those of its affinity (taskset, OMP_PLACES …), within the
    quota of its container.

    Args:
        asked: what the user asked for on the command line.
        processes: how many processes of this run share the cores.
    """
    if asked is not None:
        if asked < 1:
            raise RecgradError(f"--num_threads: must be at least 1, got {asked}")
        return asked
    return threads_of_environment() or max(usable_cores() // processes, 1)


def threads_of_environment(environment: Mapping[str, str] | None = None) -> int | None:
    """What OMP_NUM_THREADS says; None where it is not set, or nothing that libgomp would take.

    torchrun sets it to 1 for several processes unless it is set, so a 1 there is nobody's wish.
    """
    environment = os.environ if environment is None else environment
    text = environment.get(THREADS, "").split(",")[0].strip()  # others are for nested regions
    if not text.isdecimal() or int(text) < 1:
        return None
    by_torchrun = "GROUP_RANK" in environment and environment.get("LOCAL_WORLD_SIZE", "1") != "1"
    return None if by_torchrun and int(text) == 1 else int(text)


def usable_cores() -> int:
    """The cores that this process may compute on.

    Where OMP_PLACES, OMP_PROC_BIND or GOMP_CPU_AFFINITY bind threads, libgomp has bound the main
    thread to one core when it was loaded; the places that it has are then the answer.
    """
    places = cores_of_places()
    return within_quota(len(places)) if places else available_cores()


def run_on_any_core() -> None:
    """Let this thread run wherever libgomp's may: it has inherited the one core of a bound thread."""
    if places := cores_of_places():
        os.sched_setaffinity(0, places)


def cores_of_places() -> set[int]:
    """The cores that libgomp binds threads to; none where it binds none, or is not loaded."""
    library = loaded_library()
    if library is None:
        return set()
    cores: set[int] = set()
    for place in range(library.omp_get_num_places()):
        ids = (ctypes.c_int * library.omp_get_place_num_procs(place))()
        library.omp_get_place_proc_ids(place, ids)
        cores.update(ids)
    return cores


def loaded_library() -> Any:
    """libgomp where this process has loaded it, else None."""
    if "torch" not in sys.modules or not hasattr(os, "RTLD_NOLOAD"):
        return None
    return _loaded_library()


@lru_cache(maxsize=1)
def _loaded_library() -> Any:
    try:
        return ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_LOCAL)
    except OSError:
        return None
