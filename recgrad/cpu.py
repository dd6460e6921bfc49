"""What the CPU can do, as Linux tells it."""

from __future__ import annotations

from functools import lru_cache


def parse_flags(cpuinfo: str) -> frozenset[str]:
    """The flags of the first processor in the text of /proc/cpuinfo; `Features` on ARM."""
    for line in cpuinfo.splitlines():
        name, colon, flags = line.partition(":")
        if colon and name.strip() in ("flags", "Features"):
            return frozenset(flags.split())
    return frozenset()


def native_bf16(flags: frozenset[str]) -> bool:
    """Whether bfloat16 products run on the CPU's own instructions."""
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16", "svebf16"})


@lru_cache(maxsize=1)
def read_flags() -> frozenset[str]:
    """The flags of this machine's CPU; none where there is no /proc/cpuinfo."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return parse_flags(file.read(65536))
    except OSError:
        return frozenset()


def parse_vendor(cpuinfo: str) -> str:
    """Who made the first processor in the text of /proc/cpuinfo; empty where it does not say."""
    for line in cpuinfo.splitlines():
        name, colon, vendor = line.partition(":")
        if colon and name.strip() == "vendor_id":
            return vendor.strip()
    return ""


@lru_cache(maxsize=1)
def read_vendor() -> str:
    """Who made this machine's CPU, such as AuthenticAMD; empty where that is not known."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return parse_vendor(file.read(65536))
    except OSError:
        return ""
