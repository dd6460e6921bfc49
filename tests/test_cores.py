"""How many cores there are for a process: its affinity, and the quotas of the cgroups it is in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from recgrad import cores

V2 = "26 25 0:23 {root} {mount} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 25 0:29 {root} {mount} rw,nosuid shared:14 - cgroup cgroup rw,cpu,cpuacct"

Proc = Callable[..., Path]


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """`proc(own, mount_line, {folder: {file: text}})`: a folder of /proc and a tree of cgroups."""

    def make(own: str, line: str, files: dict[str, dict[str, str]], *, root: str = "/") -> Path:
        mount = tmp_path / "mounted here"
        for folder, content in files.items():
            for name, text in content.items():
                path = mount / folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        mount.mkdir(exist_ok=True)
        place = str(mount).replace(" ", "\\040")
        (tmp_path / "cgroup").write_text(own + "\n")
        (tmp_path / "mountinfo").write_text(
            f"22 1 0:5 / / rw - ext4 /dev/sda rw\n{line.format(root=root, mount=place)}\n"
        )
        return tmp_path

    return make


def v1(quota: str, period: str = "100000") -> dict[str, str]:
    return {"cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": f"{period}\n"}


def v2(text: str) -> dict[str, str]:
    return {"cpu.max": f"{text}\n"}


@pytest.mark.parametrize(
    ("own", "line", "files", "expected"),
    [
        ("0::/", V2, {".": v2("150000 100000")}, 1.5),  # a container sees itself as the top
        ("0::/", V2, {}, None),  # the top of a machine has no cpu.max
        ("0::/a/b", V2, {"a/b": v2("max 100000")}, None),
        ("0::/a/b", V2, {"a/b": v2("max 100000"), "a": v2("200000 50000")}, 4),  # inherited from above
        ("0::/a/b", V2, {"a/b": v2("300000 100000"), "a": v2("200000 100000")}, 2),
        ("0::/a/b", V2, {"a/b/c": v2("100000 100000"), "x": v2("100000 100000")}, None),  # not ours
        ("0::/../elsewhere", V2, {".": v2("100000 100000")}, 1),
        ("0::/a", V2, {"a": v2("")}, None),
        ("4:cpu,cpuacct:/a\n0::/", V1, {"a": v1("250000")}, 2.5),
        ("4:cpu,cpuacct:/a\n0::/", V1, {"a": v1("-1"), ".": v1("-1")}, None),
        ("4:cpu,cpuacct:/a\n0::/", V1, {"a": v1("-1"), ".": v1("50000")}, 0.5),
        ("9:cpuset:/a\n4:memory:/a", V1, {"a": v1("100000")}, None),
    ],
)
def test_quotas_of_cgroups(
    proc: Proc, own: str, line: str, files: dict[str, dict[str, str]], expected: float | None
) -> None:
    assert cores.cpu_quota(proc(own, line, files)) == expected


def test_a_container_that_knows_the_hosts_path(proc: Proc) -> None:
    own, root = "4:cpu,cpuacct:/docker/0123", "/docker/0123"
    assert cores.cpu_quota(proc(own, V1, {".": v1("300000")}, root=root)) == 3


def test_no_quota_where_nothing_is_known(tmp_path: Path) -> None:
    assert cores.cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("quota", "expected"), [("50000", 1), ("100000", 1), ("150000", 2), ("900000", 8)])
def test_part_of_a_core_counts_as_one(
    proc: Proc, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    monkeypatch.setattr(cores, "PROC", proc("0::/", V2, {".": v2(f"{quota} 100000")}))
    assert cores.within_quota(8) == expected


def test_affinity_is_respected() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores.available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= cores.available_cores() <= len(before)
