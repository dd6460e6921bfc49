"""The examples of the documentation run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format

from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.optim.dense import DENSE_OPTIMIZERS
from recgrad.optim.plan import plan_parts
from recgrad.optim.schedules import SCHEDULES

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["optimizers.md", "schedules.md"]


def blocks(language):
    return [
        pytest.param(text, id=f"{page}-{i}")
        for page in PAGES
        for i, text in enumerate(
            re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
        )
    ]


@pytest.mark.parametrize("text", blocks("protobuf"))
def test_configs_build(text):
    config = text_format.Parse(text, PipelineConfig(), allow_unknown_field=False)
    assert all(part.rate(n) >= 0 for part in plan_parts(config.train_config) for n in (0, 1, 1000))


@pytest.mark.parametrize("text", blocks("python"))
def test_python_runs(text):
    # A process of its own: the example registers a schedule.
    subprocess.run([sys.executable, "-c", text], check=True, timeout=120)


@pytest.mark.parametrize(
    ("page", "registry"), [("optimizers.md", DENSE_OPTIMIZERS), ("schedules.md", SCHEDULES)]
)
def test_every_entry_is_documented(page, registry):
    text = (DOCS / page).read_text()
    assert [name for name in registry if f"`{name}`" not in text] == []
