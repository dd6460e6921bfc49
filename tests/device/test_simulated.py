"""All that computes on a device, on a simulated one (accelerator.cpp), each file in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = sorted((Path(__file__).parent / "simulated").glob("check_*.py"))


@pytest.mark.slow
@pytest.mark.skipif(
    not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")),
    reason="the simulated accelerator needs a C++ compiler",
)
@pytest.mark.parametrize("path", CHECKS, ids=lambda path: path.stem.removeprefix("check_"))
def test_holds_on_the_simulated_accelerator(path: Path, pytestconfig: pytest.Config) -> None:
    options = ["-q", "-n0", "-o", f"python_files={path.name}", "-p", "no:randomly"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(path)],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
