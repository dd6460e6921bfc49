"""The packages that serving needs beside Recgrad's own."""

from __future__ import annotations

from importlib.util import find_spec

from recgrad.errors import RecgradError

PACKAGES = ("httptools", "msgspec", "onnxruntime", "uvloop")


def check_extra() -> None:
    """Raise an error that names the extra, where a package is not installed."""
    absent = [name for name in PACKAGES if find_spec(name) is None]
    if absent:
        raise RecgradError(f"serve needs {', '.join(absent)}; install them: pip install 'recgrad[serve]'")
