"""Builds the simulated accelerator and gives it to torch; to be run in a process of its own.

torch starts the threads of backward passes once, for the devices it knows then, so the accelerator has to
be there before the first one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import types
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch

SOURCE = Path(__file__).parents[1] / "accelerator.cpp"
NAME = "simulated"
MODEL_CASES = Path(__file__).parents[2] / "models" / "conftest.py"


@pytest.fixture(scope="session")
def library(pytestconfig: pytest.Config) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("the simulated accelerator needs a C++ compiler")
    return _built(compiler, pytestconfig.cache.mkdir("accelerator"))


@pytest.fixture(scope="session", autouse=True)
def accelerator(library: Path) -> torch.device:
    register(library)
    return torch.device(NAME, 0)


def _built(compiler: str, folder: Path) -> Path:
    """The library, compiled once for this source and this torch."""
    from torch.utils.cpp_extension import include_paths, library_paths

    key = f"{torch.__version__} {torch.version.git_version} {compiler}".encode() + SOURCE.read_bytes()
    library = folder / f"{hashlib.sha256(key).hexdigest()[:16]}.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            partial = library.with_suffix(".partial")
            abi = int(torch.compiled_with_cxx11_abi())
            subprocess.run(
                [
                    *(
                        compiler,
                        "-std=c++20",
                        "-O1",
                        "-w",
                        "-fPIC",
                        "-shared",
                        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
                    ),
                    *(f"-I{path}" for path in include_paths()),
                    *(str(SOURCE), "-o", str(partial)),
                    *(f"-L{path}" for path in library_paths()),
                    *("-ltorch_cpu", "-lc10"),
                ],
                check=True,
            )
            partial.replace(library)
    return library


def register(library: Path) -> None:
    """Make the library torch's device of this name, with the module that torch asks about it."""
    torch.ops.load_library(library)
    torch.utils.rename_privateuse1_backend(NAME)
    operators: Any = torch.ops.recgrad_accelerator
    module: Any = types.ModuleType(NAME)
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.manual_seed_all = operators.manual_seed
    module.get_rng_state = lambda device=None: operators.rng_state()
    module.set_rng_state = lambda state, device=None: operators.set_rng_state(state)
    module._is_in_bad_fork = lambda: False
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.operations = operators.count
    torch._register_device_module(NAME, module)


@pytest.fixture(scope="session")
def cases() -> Any:
    """The features, configs and batches that models are tested with."""
    spec = spec_from_file_location("model_cases", MODEL_CASES)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
