"""What the CPU can do."""

from __future__ import annotations

from recgrad.cpu import native_bf16, parse_flags, parse_vendor, read_flags, read_vendor


def test_cpu_flags_are_read_from_cpuinfo() -> None:
    x86 = (
        "processor\t: 0\nmodel name\t: X\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\nflags\t: none\n"
    )
    assert parse_flags(x86) == {"fpu", "avx2", "avx512_bf16"}
    assert native_bf16(parse_flags(x86))
    assert native_bf16(parse_flags("Features\t: fp asimd bf16\n"))
    assert not native_bf16(parse_flags("flags : avx2"))
    assert parse_flags("nothing here") == frozenset()
    assert isinstance(read_flags(), frozenset)


def test_vendor_of_x86_and_of_others():
    assert parse_vendor("processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t: fpu\n") == "AuthenticAMD"
    assert parse_vendor("processor : 0\nCPU implementer : 0x41\n") == ""
    assert isinstance(read_vendor(), str)
