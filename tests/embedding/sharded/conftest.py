"""Functions run by several processes of one gloo group."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

TIMEOUT = timedelta(seconds=300)
IMPORTS = ["pytest", "recgrad.training.run", "recgrad.embedding.sharded.engine"]


def _one_rank(
    rank: int, function: Callable[..., Any], world_size: int, port: int, args: Any, out: Any
) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    os.environ.update(LOCAL_WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", timeout=TIMEOUT)
    out[rank] = function(*args)
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture
def run_ranks() -> Callable[..., list[Any]]:
    """`run_ranks(world_size, function, *args)`: what the function returned on each rank."""
    # What a rank imports takes it seconds: here one process imports it, and ranks are copies of that.
    mp.get_context("forkserver").set_forkserver_preload(IMPORTS)

    def run(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with mp.Manager() as manager:
            out = manager.dict()
            given = (function, world_size, port, args, out)
            mp.start_processes(_one_rank, given, world_size, start_method="forkserver")
            return [out[rank] for rank in range(world_size)]

    return run
