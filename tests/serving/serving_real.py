"""A small real bundle, and `recgrad serve` as its user starts it."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import text_format

from recgrad.config import PipelineConfig
from recgrad.serving.manifest import read_manifest

CONFIG = """
feature_configs { id_feature { feature_name: "user_id" expression: "user:user_id"
  num_buckets: 100 embedding_dim: 4 } }
feature_configs { id_feature { feature_name: "item_id" expression: "item:item_id"
  num_buckets: 50 embedding_dim: 4 } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" default_value: "1" } }
feature_configs { id_feature { feature_name: "city" expression: "item:city"
  hash_bucket_size: 100 embedding_dim: 4 } }
feature_configs { id_feature { feature_name: "tags" expression: "user:tags"
  hash_bucket_size: 100 embedding_dim: 4 } }
data_config { fg_mode: FG_DAG label_fields: ["click"] }
model_config {
  feature_groups { group_name: "deep" group_type: DEEP
    feature_names: ["user_id", "item_id", "price", "city", "tags"] }
  multi_tower { towers { input: "deep" mlp { hidden_units: [8] } } final { hidden_units: [4] } }
  losses { binary_cross_entropy {} }
}
"""
ROW = {"user_id": 1, "item_id": 2, "price": 3.5, "city": "Oslo", "tags": ["a", "b"]}


def golden() -> pa.Table:
    """Rows of the model."""
    rng = np.random.default_rng(3)
    count = 8
    return pa.table(
        {
            "user_id": rng.integers(0, 100, count),
            "item_id": rng.integers(0, 50, count),
            "price": rng.normal(size=count),
            "city": pa.array(["Oslo", "Rome", None, "Bonn"] * 2),
            "tags": pa.array([["a"], ["a", "b"], [], None] * 2, pa.list_(pa.string())),
        }
    )


def write_real_bundle(folder: Path, *, deltas: dict[str, Any] | None = None) -> Path:
    """A bundle of a model with ids, numbers, texts and lists; `deltas`: where its stream stands."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("uvloop")
    registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    from recgrad.data.features.build import features_of
    from recgrad.export.bundle import write_bundle
    from recgrad.training.assembly import build_task
    from recgrad.training.run import Trained

    registry = registration.ONNXRegistry
    known = registry.__dict__["from_torchlib"]
    registry.from_torchlib = staticmethod(cache(registry.from_torchlib))
    try:
        config = text_format.Parse(CONFIG, PipelineConfig())
        features = features_of(config)
        task = build_task(config, features).eval()
        engine: Any = task.model.engine
        for table in engine.tables.values():
            rows = np.arange(0, table.spec.num_rows, 3)
            table.write(rows, np.random.default_rng(5).normal(size=(len(rows), 4)).astype(np.float32))
        trained = Trained(config, task, features, 3, {"auc": 0.75}, deltas=deltas or {})
        write_bundle(folder, trained, golden(), precision="FP32")
    finally:
        registry.from_torchlib = known
    return folder


def renamed_version(bundle: Path, folder: Path, step: int) -> Path:
    """A copy that says another step, and so is another version."""
    shutil.copytree(bundle, folder)
    manifest = replace(read_manifest(folder), step=step)
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return folder


def put_in_place(new: Path, place: Path) -> None:
    """Replace a bundle as users do: by moving the link to it."""
    link = place.with_name(f".{place.name}.new")
    link.symlink_to(new)
    os.replace(link, place)


class Serving:
    """`recgrad serve` in processes of its own."""

    def __init__(self, bundle: Path, *flags: str) -> None:
        words = [
            sys.executable,
            "-m",
            "recgrad",
            "serve",
            str(bundle),
            "--port",
            "0",
            "--poll_s",
            "0.1",
            *flags,
        ]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.said: list[str] = []
        assert self.process.stderr is not None
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found is None:
            self.close()
            raise AssertionError(line + "".join(self.said))
        self.port = int(found.group(1))

    def _read(self, stream: Any) -> None:
        self.said.extend(stream)

    def workers(self) -> list[int]:
        """The processes that answer."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and content of an answer, over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            text = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, text, {"content-type": "application/json", **headers})
            answer = connection.getresponse()
            content = answer.read()
            is_json = "json" in (answer.getheader("content-type") or "")
            return answer.status, json.loads(content) if is_json else content.decode()
        finally:
            connection.close()

    def score(self, *rows: dict[str, Any]) -> dict[str, Any]:
        """The answer to rows that are good."""
        status, answer = self.ask("POST", "/v1/score", {"rows": list(rows or (ROW,))})
        assert status == 200, answer
        return dict(answer)

    def version(self) -> str:
        """Of the model that one of the workers serves."""
        return str(self.ask("GET", "/readyz")[1]["model"])

    def until(self, holds: Callable[[], bool], secs: float = 120) -> None:
        """Wait until something holds."""
        end = time.monotonic() + secs
        while not holds():
            assert time.monotonic() < end, "".join(self.said)
            assert self.process.poll() is None, "".join(self.said)
            time.sleep(0.05)

    def close(self) -> int:
        """End it as an init system would; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
