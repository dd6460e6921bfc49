"""docs/serving.md, followed line by line, and the files in examples/serving."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from serving_real import ROW, Serving, write_real_bundle

import recgrad

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
FILES = ROOT / "examples" / "serving"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_real_bundle(tmp_path_factory.mktemp("docs") / "bundle")


def environment(**more: str) -> dict[str, str]:
    """Where `recgrad` and `python` are those of the tests."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **more}


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_five_commands_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("uvloop")
    pytest.importorskip("onnxscript")
    block = PAGE[PAGE.index("```\n") + 4 :]
    lines = block[: block.index("```")].splitlines()
    assert len(lines) == 5
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    script = "\n".join(["set -e -o pipefail", *lines, "kill %1", "wait %1"]).replace("8000", str(port))
    script = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + script
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # A worker may answer before its supervisor has said that it serves.
    answer, _ = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index('{"model"'))
    row = json.loads((tmp_path / "shop/request.json").read_text())["rows"][0]
    wanted = recgrad.load_model(tmp_path / "shop/bundle").predict([row])
    assert answer["scores"]["probs"] == pytest.approx([wanted[0]["probs"]], abs=1e-6)


BLOCKER = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(name + " is not among the packages of the Dockerfile", name=name)
sys.meta_path.insert(0, Refuse())
"""


def test_the_packages_of_the_dockerfile_are_enough(bundle: Path, tmp_path: Path) -> None:
    text = (FILES / "Dockerfile").read_text().replace("\\\n", " ")
    named = re.search(r"-c /tmp/constraints\.txt\s+([\w \-]+?)\s+&&", text)
    assert named is not None
    allowed = needed(named.group(1).split())
    assert "torch" not in allowed
    blocked = {
        module
        for module, names in packages_of_modules().items()
        if module != "recgrad" and not allowed & names
    }
    assert "torch" in blocked
    (tmp_path / "sitecustomize.py").write_text(f"BLOCKED = {blocked!r}\n{BLOCKER}")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    try:
        refused = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, text=True)
        assert "not among the packages of the Dockerfile" in refused.stderr
        server = Serving(bundle)
        try:
            assert server.score(ROW)["scores"]["probs"]
            assert server.ask("GET", "/")[0] == 200
        finally:
            assert server.close() == 0, server.said
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def packages_of_modules() -> dict[str, set[str]]:
    """The packages that each module is of, by their files, which Python 3.10 itself does not look at."""
    found: dict[str, set[str]] = {}
    for package in metadata.distributions():
        for file in package.files or ():
            module = file.parts[0].removesuffix(".py")
            if file.suffix in (".py", ".so") and module.isidentifier():
                found.setdefault(module, set()).add(plain_name(package.metadata["Name"]))
    return found


def plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(names: list[str]) -> set[str]:
    """Packages with all that they require."""
    found: set[str] = set()
    left = [plain_name(name) for name in names]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        plain = [item for item in required if "extra ==" not in item]
        left += [plain_name(re.split(r"[^\w.\-]", item)[0]) for item in plain]
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("recgrad")
    text = (FILES / "recgrad.service").read_text().replace("/opt/recgrad/bin/recgrad", str(command))
    unit = tmp_path / "recgrad.service"
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(unit)], capture_output=True, text=True
    )
    assert "recgrad.service" not in done.stderr, done.stderr
    unit.write_text(text.replace("KillMode=mixed", "KillMode=gently"))
    wrong = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(unit)], capture_output=True, text=True
    )
    assert "recgrad.service" in wrong.stderr, "a wrong setting must be told, else this proves nothing"


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE, re.S)


def table(count: int) -> pa.Table:
    return pa.Table.from_pylist([{**ROW, "item_id": i % 50, "price": float(i)} for i in range(count)])


def test_ray_scores_with_a_loaded_model(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray: Any = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    monkeypatch.chdir(tmp_path)
    Path("shop").mkdir()
    Path("shop/bundle").symlink_to(bundle)
    rows = table(500)
    pq.write_table(rows, "shop/eval.parquet")
    monkeypatch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        exec(compile(programs()[0], "serving.md", "exec"), {})
    finally:
        ray.shutdown()
    found = np.sort(pq.read_table("shop/scores")["probs"].to_numpy())
    np.testing.assert_allclose(
        found, np.sort(recgrad.load_model(bundle).predict(rows)["probs"].to_numpy()), 1e-6
    )


def test_the_function_for_spark_is_pickled_and_takes_batches_elsewhere(bundle: Path, tmp_path: Path) -> None:
    """Spark pickles it in the user's program by value, and calls it in others with batches of Arrow."""
    pytest.importorskip("cloudpickle")
    program = programs()[1].replace("/models/bundle", str(bundle)).partition("rows = spark")[0]
    program += "\nimport sys\nimport cloudpickle\n"
    program += "open(sys.argv[1], 'wb').write(cloudpickle.dumps(score))\n"
    (tmp_path / "program.py").write_text(program)
    words = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "score.pickle")]
    subprocess.run(words, check=True, timeout=300)
    score = pickle.loads((tmp_path / "score.pickle").read_bytes())
    rows = table(30)
    found = pa.Table.from_batches(score(iter(rows.to_batches(max_chunksize=7))))
    assert found.column_names == ["probs"]
    wanted = recgrad.load_model(bundle).predict(rows)["probs"].to_numpy()
    np.testing.assert_allclose(found["probs"].to_numpy(), wanted, 1e-6)
