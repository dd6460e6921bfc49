"""What a run takes of its machine: resident memory, and the share of its cores."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from recgrad.openmp import usable_cores

_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Usage:
    """What this process took since the last look.

    Attributes:
        resident_bytes: memory that it has in the machine now; None where that is not known.
        cpu_share: processor time of all its threads over that of the cores it may use, 1 when all
            of them were busy with it all the time.
    """

    resident_bytes: int | None
    cpu_share: float


class UsageMeter:
    """Takes the usage of this process from one look to the next.

    Args:
        processes: how many processes of the run share the cores.
    """

    def __init__(self, processes: int = 1) -> None:
        self.cores = max(usable_cores() / processes, 1.0)
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def look(self) -> Usage:
        """The usage since the last look, or since the meter was made."""
        wall, cpu = time.perf_counter(), time.process_time()
        share = (cpu - self._cpu) / (max(wall - self._wall, 1e-9) * self.cores)
        self._wall, self._cpu = wall, cpu
        return Usage(resident_bytes(), max(share, 0.0))


def resident_bytes() -> int | None:
    """The memory that this process has in the machine; the most it had, where the present is not known."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def describe_bytes(size: float) -> str:
    """`812 MB`, `1.25 GB`."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
