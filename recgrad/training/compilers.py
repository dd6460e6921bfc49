"""Kernels that a run will need, compiled by other processes while it starts.

One rank of a machine has them compiled, for all ranks that share what it keeps; the others wait for each when
they come to it, as that rank does, and compile it themselves once nobody is at it.
"""

from __future__ import annotations

from collections.abc import Sequence

from recgrad.cores import available_cores
from recgrad.kernels.compile import Wanted, compile_ahead, expect
from recgrad.training.processes import Processes
from recgrad.training.processes.heartbeat import host_identity, start_ticks


def compile_for_ranks(wanted: Sequence[Wanted], processes: Processes) -> None:
    """Have kernels compiled; all ranks are to call it, with what any of them will need."""
    first, here = processes.local_rank == 0, host_identity()
    started = compile_ahead(wanted, available_cores()) if first else []
    told = processes.gather((here, [(pid, start_ticks(pid)) for pid in started]))
    # A process may have ended by now, and its number be another's.
    compilers = [(pid, ticks) for host, own in told if host == here for pid, ticks in own if ticks > 0]
    if compilers and not first:
        expect(wanted, lambda: any(start_ticks(pid) == ticks for pid, ticks in compilers))
