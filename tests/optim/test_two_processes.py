"""Clipping and overflow over two processes, each with rows of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, math, sys
import torch
from torch import distributed
from torch.nn import Parameter
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.clipping import GradientClipping, reduce_over_processes
from recgrad.optim.part import OptimizerPart
from recgrad.optim.precision import LossScaler
from recgrad.optim.schedules.constant import Constant
from recgrad.optim.sparse import SGD
from recgrad.optim.updater import Updater

rank, rendezvous = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=2)
engine = LocalEngine([TableSpec("t", 8, 2)], [LookupSpec("t", "t", "t")], keys=["t"])
dense = Parameter(torch.ones(3))
sparse = SGD(engine, lr=1.0)
updater = Updater(
    [OptimizerPart("dense", torch.optim.SGD([dense], lr=1.0), Constant())],
    [OptimizerPart("sparse", sparse, Constant())],
    grad_clipping=GradientClipping("norm", 0.5, enable_global_grad_clip=True),
    grad_scaler=LossScaler(init_scale=4.0),
    reduce=reduce_over_processes,
)

def backward(factor):
    # The dense gradient is (1, 2, 3) everywhere, as it is once averaged; the rows' is the rank's own.
    ids = Ids(torch.tensor([rank, 5]), torch.ones(2, dtype=torch.int32), [2])
    rows = engine(ids).pooled(["t"])
    updater.backward((dense * torch.tensor([1.0, 2.0, 3.0])).sum() + factor * (rank + 1) * rows.sum())

backward(1.0)
first = updater.step()
clipped = (1 - dense.detach()).tolist()
before = dense.detach().clone()
backward(math.inf if rank == 1 else 1.0)
second = updater.step()
print(json.dumps({
    "norm": first.grad_norm, "clipped": clipped, "skipped": second.skipped,
    "moved": not torch.equal(before, dense), "scale": updater.grad_scaler.scale,
}))
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_one_norm_and_one_verdict_for_all_processes(tmp_path):
    command = [sys.executable, "-c", SCRIPT]
    runs = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    results = [json.loads(run.communicate(timeout=180)[0].splitlines()[-1]) for run in runs]
    # Two rows of two elements: gradient 1 on the first process, 2 on the second.
    norm = (1 + 4 + 9 + 4 * 1 + 4 * 4) ** 0.5
    for result in results:
        assert result["norm"] == pytest.approx(norm, rel=1e-6)
        assert result["clipped"] == pytest.approx([0.5 * g / norm for g in (1, 2, 3)], rel=1e-4)
        assert result["skipped"]
        assert not result["moved"]
        assert result["scale"] == 2.0
