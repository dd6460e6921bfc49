"""One rank of a run on the simulated accelerator, or on the CPU: `ranks.py CONFIG MODEL_DIR DEVICE LIBRARY`.

No backend of torch.distributed knows the accelerator, so tensors of it are reduced by way of the host; on
GPUs nccl does that. What is proven is that all else of a run with several ranks fits: which tensors
are where, and that gloo gets those of the CPU only.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import recgrad
from recgrad.cli.train import leave_at_once
from recgrad.training.processes import group

all_reduce = dist.all_reduce
reduced: set[str] = set()


def reduce_by_the_host(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    reduced.add(tensor.device.type)
    host = tensor.cpu()
    all_reduce(host, *args, **kwargs)
    tensor.copy_(host)


def main(config: str, model_dir: str, kind: str, library: str) -> None:
    device = torch.device("cpu")
    if kind != "cpu":
        spec = importlib.util.spec_from_file_location("accelerator", Path(__file__).with_name("conftest.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.register(Path(library))
        device = torch.device(module.NAME, 0)
        group.backend_of = lambda device: "cpu:gloo,cuda:gloo"  # mixed, as with nccl
        dist.all_reduce = reduce_by_the_host
    result = recgrad.train(config, model_dir=model_dir, device=device)
    if kind != "cpu":
        assert reduced == {"cpu", device.type}
    leave_at_once(result.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
