"""How many cores this process may compute on: its affinity, and the quota of its container.

The files of Linux are read, no library is loaded, so this may be asked before torch is there.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

PROC = Path("/proc/self")

# The quota of a cgroup in cores, by the kind of its file system; None where it has none.
_READERS: dict[str, Callable[[Path], float | None]] = {
    "cgroup2": lambda folder: _cores(*(folder / "cpu.max").read_text().split()[:2]),
    "cgroup": lambda folder: _cores(
        (folder / "cpu.cfs_quota_us").read_text(), (folder / "cpu.cfs_period_us").read_text()
    ),
}


def available_cores() -> int:
    """The cores that this thread may run on, or fewer where a container's quota is less; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return within_quota(len(os.sched_getaffinity(0)))
    return within_quota(os.cpu_count() or 1)


def within_quota(cores: int) -> int:
    """`cores`, or what the quota pays for if that is less.

    A part of a core counts as one: two threads use up a quota of 1.5 cores, one thread does not.
    """
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cpu_quota(proc: Path | None = None) -> float | None:
    """The processor time that this process may have, in cores: the least of its cgroup and those above.

    Both versions of cgroups are known (`cpu.max`; `cpu.cfs_quota_us` over `cpu.cfs_period_us`).

    Args:
        proc: the process' folder below /proc.

    Returns:
        None where nothing limits it, or nothing is known.
    """
    quotas = []
    for kind, folder in _cgroups(proc or PROC):
        try:
            quota = _READERS[kind](folder)
        except (OSError, ValueError, TypeError):  # the topmost cgroup has no such file
            continue
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


def _cores(quota: str, period: str) -> float | None:
    """cpu.max says `max` where there is no limit, cpu.cfs_quota_us −1."""
    if quota == "max" or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def _cgroups(proc: Path) -> Iterator[tuple[str, Path]]:
    """The kind and folder of each cgroup that limits the processor time, from this process' own upwards."""
    try:
        own = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:  # not Linux, or hidden
        return
    # A line is hierarchy:controllers:path; version 2 is hierarchy 0 and names no controllers.
    paths = {"cgroup2": "", "cgroup": ""}
    for hierarchy, controllers, path in (line for line in own if len(line) == 3):
        if hierarchy == "0" and not controllers:
            paths["cgroup2"] = path
        elif "cpu" in controllers.split(","):
            paths["cgroup"] = path
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, (kind, *options) = before.split(), after.split() or [""]
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options[-1].split(",")):
            root, place = (_unescaped(field) for field in fields[3:5])
            yield from ((kind, folder) for folder in _upwards(Path(place), root, paths[kind]))


def _upwards(mount: Path, root: str, path: str) -> Iterator[Path]:
    """The folders from that of `path` to the mount, which shows the hierarchy from `root` on.

    A container may see its own cgroup alone, under whatever path the host knows it.
    """
    try:
        own = mount / Path(path or "/").relative_to(root)
    except ValueError:
        own = mount
    while own != mount and mount in own.parents:
        yield own
        own = own.parent
    yield mount


def _unescaped(field: str) -> str:
    """A path of mountinfo, which writes spaces and the like as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)
