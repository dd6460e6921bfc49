"""A trained DeepFM as the state_dict of a plain torch model, for the peer's server.

python benchmarks/peers/plain_state.py BUNDLE MODEL_DIR OUT.pt
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from recgrad.embedding.mapped.tables import Bags, MappedTables, Target
from recgrad.serving.manifest import read_manifest
from recgrad.training.run import load_trained

MOST_ROWS = 100_000
"""Rows of a table that are written: no id of the synthetic clicks is beyond them."""


def state_of(bundle: Path, model_dir: Path) -> dict[str, torch.Tensor]:
    """The dense weights of the checkpoint, and all rows of tables, also those that were never trained."""
    manifest = read_manifest(bundle)
    tables = MappedTables(bundle, manifest.tables, manifest.lookups)
    inputs = {record.name: record for record in manifest.programs["score"].inputs}
    state = {}
    for name, record in (("tables", "rows.deep.lookups"), ("wide", "rows.wide.lookups")):
        for i, lookup in enumerate(inputs[record].lookups):
            table = tables.records[tables.lookups[lookup].table]
            rows = np.zeros((min(table.num_rows, MOST_ROWS) + 1, table.dim), np.float32)
            ids = np.arange(len(rows) - 1)
            tables.look_up([Target(lookup, rows[:-1])], {tables.lookups[lookup].key: Bags(ids)})
            state[f"{name}.{i}.weight"] = torch.from_numpy(rows)
    trained = load_trained(
        model_dir / "pipeline.config", model_dir, exporting=True, device=torch.device("cpu")
    )
    for name, weight in trained.task.model.named_parameters():
        part, _, rest = name.partition(".")
        if part == "deep":
            layer, _, rest = rest.removeprefix("linear").partition(".")
            rest = f"{2 * int(layer)}.{rest}"
        state[f"{part}.{rest.removeprefix('linear0.')}"] = weight.detach().clone()
    return state


def main() -> None:
    bundle, model_dir, out = map(Path, sys.argv[1:])
    inputs = {record.name: record for record in read_manifest(bundle).programs["score"].inputs}
    ids, numbers = list(inputs["rows.deep.lookups"].lookups), list(inputs["rows.deep.raw"].features)
    torch.save({"state": state_of(bundle, model_dir), "ids": ids, "numbers": numbers}, out)


if __name__ == "__main__":
    main()
