"""A Python environment of the peers' own, made once under the user's cache folder.

It sees the packages of this environment (the same torch, so that products cost the same) and has beside
them what pip installs for the peers: neither Recgrad's environment nor its repository is changed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

PACKAGES = ("fuxictr==2.3.10", "deepctr-torch==0.3.0")


def peers_python() -> Path:
    """The interpreter of the peers' environment; made on the first call, which takes a minute."""
    packages = sysconfig.get_paths()["purelib"]
    key = hashlib.sha256(repr((PACKAGES, sys.version, packages)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "recgrad" / "peers" / key
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        print(f"making an environment for {', '.join(PACKAGES)} in {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        asked = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        own = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
        (Path(own) / "beside.pth").write_text(packages + "\n")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)
        (folder / "made").touch()
    return python
