"""The example of docs/models.md: a model without a config, trained in a loop of one's own."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def test_the_documented_loop_runs_and_learns():
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    code = next(block for block in blocks if "DeepFM(" in block)
    names: dict[str, object] = {}
    exec(compile(code, str(DOCS), "exec"), names)
    losses = names["losses"]
    # The label is decided by a pair of ids; a model that knows nothing stays at log 2 = 0.69.
    assert losses[-1] < 0.35
    assert losses[0] > 0.6


def test_the_documented_custom_model_is_the_tested_one():
    own = (Path(__file__).parent / "own_model.py").read_text()
    documented = next(
        b for b in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S) if "TwoLayers" in b
    )
    squeeze = lambda text: re.sub(r"\s+", " ", text)  # noqa: E731
    for line in documented.strip().splitlines():
        assert squeeze(line).strip() in squeeze(own), line
