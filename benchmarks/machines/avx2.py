"""Environment variables that have this machine compute with AVX2 alone, as one without AVX-512 does.

    env $(python benchmarks/machines/avx2.py) python benchmarks/dense.py

NUMBA_CPU_NAME by itself leaves the host's features switched on: kernels would go on with AVX-512. So the
features are given as well. Torch's own operators, MKL and oneDNN each have a variable of their own.
"""

from __future__ import annotations

import llvmlite.binding as llvm

LATER = ("avx512", "avx10", "amx", "evex512")  # what came after AVX2, by the start of LLVM's names


def avx2_features() -> str:
    """LLVM's features of the host without those that came after AVX2."""
    host = llvm.get_host_cpu_features()
    return ",".join(
        f"{'+' if has and not name.startswith(LATER) else '-'}{name}" for name, has in sorted(host.items())
    )


def main() -> None:
    amd = any(has for name, has in llvm.get_host_cpu_features().items() if name in ("sse4a", "clzero"))
    variables = {
        "NUMBA_CPU_NAME": "znver3" if amd else "haswell",
        "NUMBA_CPU_FEATURES": avx2_features(),
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    }
    print("\n".join(f"{name}={value}" for name, value in variables.items()))


if __name__ == "__main__":
    main()
