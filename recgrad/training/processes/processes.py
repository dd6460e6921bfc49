"""The ranks of a run as one of them sees it, and what they compute together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from recgrad.errors import RecgradError
from recgrad.ranks import exchange_by
from recgrad.training.processes.device import CPU
from recgrad.training.processes.environment import Environment
from recgrad.training.processes.heartbeat import Pulse, host_identity
from recgrad.training.processes.rings import Rings, open_rings
from recgrad.training.processes.shared_group import build_shared_group

_log = logging.getLogger("recgrad.training")

DEFAULT_TIMEOUT_SECS = 600.0
BUCKET_BYTES = 32 * 2**20
T = TypeVar("T")


class Processes:
    """The ranks of a run, as one of them sees it; alone, every method is trivial.

    Attributes:
        rank: of this process, from 0 to world_size − 1.
        restarts: how often the launcher has started the run again.
        is_main: whether this is rank 0, which talks and writes.
        distributed: whether a launcher started the run, so that there is a process group.
        device: where this rank computes the dense half of its model.
        group: what collectives on the CPU go by, where there is more than the default group; else None.
    """

    def __init__(self, environment: Environment | None = None, device: torch.device = CPU) -> None:
        environment = environment or Environment()
        self.environment = environment
        self.device = device
        self.rank = environment.rank
        self.world_size = environment.world_size
        self.local_rank = environment.local_rank
        self.restarts = environment.restarts
        self.distributed = environment.distributed
        self.is_main = self.rank == 0
        self.timeout_secs = DEFAULT_TIMEOUT_SECS
        self.group: dist.ProcessGroup | None = None
        self._rings: Rings | None = None
        self._pulse = Pulse(self.rank)
        self.doing = self._pulse.doing

    def set_timeout(self, timeout_secs: float) -> None:
        """How long a collective waits for a rank, from now on."""
        if timeout_secs < 1:
            raise RecgradError(f"train_config.process_timeout_secs: must be at least 1, got {timeout_secs:g}")
        self.timeout_secs = timeout_secs
        if self.distributed:
            _set_group_timeout(timedelta(seconds=timeout_secs))
        if self._rings is not None:
            self._rings.timeout_secs = timeout_secs

    def share_memory(self) -> None:
        """Have the collectives of steps go through memory, where all ranks compute on CPUs of one machine."""
        if self.world_size == 1 or self.device.type != "cpu":
            return
        opened = open_rings(
            self.rank, self.world_size, self.gather, machine=host_identity(), timeout_secs=self.timeout_secs
        )
        if isinstance(opened, str):
            if self.is_main:
                _log.info("the ranks exchange by gloo, not through shared memory: %s", opened)
            return
        self._rings = opened
        self.group = build_shared_group(opened)
        exchange_by(self.group)

    def leave_memory(self) -> None:
        """Let the others see that this rank takes no further part; once it fails, or all are done."""
        if self._rings is not None:
            exchange_by(None)
            self._rings.close()

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over ranks, in float64; all ranks get the same bits."""
        if not self.distributed:
            return [float(value) for value in values]
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def gather(self, value: Any) -> list[Any]:
        """What each rank gave, in the order of ranks; all ranks get all."""
        if not self.distributed:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def collect(self, value: Any) -> list[Any]:
        """What each rank gave, in the order of ranks, on rank 0; nothing on the others."""
        if not self.distributed:
            return [value]
        values: list[Any] = [None] * self.world_size if self.is_main else []
        dist.gather_object(value, values if self.is_main else None, group=self.group)
        return values

    def broadcast(self, value: Any) -> Any:
        """What rank 0 gave; what others give is not looked at."""
        if not self.distributed:
            return value
        values = [value if self.is_main else None]
        dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def on_main(self, work: Callable[[], T]) -> T:
        """What `work` gives on rank 0, to all ranks.

        It may take long: the others wait for as long as rank 0 says, within every timeout, what it is
        doing by then.
        """
        result = work() if self.is_main else None
        self._await_main()
        given: T = self.broadcast(result)
        return given

    def _await_main(self) -> None:
        """Wait for rank 0."""

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        if self.distributed:
            dist.all_reduce(torch.zeros(1), group=self.group)

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over ranks; all ranks get the same bits.

        Ranks give the same shapes and types in the same order. Tensors of a type are laid end to
        end and reduced in large pieces; halves are added as float32.
        """
        if self.world_size == 1:
            return
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for same in kinds.values():
            for bucket in _buckets(same):
                self._average_bucket(bucket)

    def _average_bucket(self, bucket: Sequence[Tensor]) -> None:
        kind = bucket[0].dtype
        sum_kind = torch.float32 if kind in (torch.float16, torch.bfloat16) else kind
        flat = torch.cat([tensor.detach().reshape(-1).to(sum_kind) for tensor in bucket])
        dist.all_reduce(flat, group=self.group if flat.device.type == "cpu" else None)
        parts = torch.split_with_sizes(flat, [tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts):
            torch.div(part.view(tensor.shape), self.world_size, out=tensor.detach())

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around what the rank does: its failure is told to all, and another rank's is explained."""
        yield


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type in runs of a bounded size."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if bucket and size + nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += nbytes
    if bucket:
        yield bucket


def _set_group_timeout(timeout: timedelta) -> None:
    """Tell the process group how long to wait, in the way that this torch has for it."""
    for home, name in ((dist, "set_timeout"), (distributed_c10d, "_set_pg_timeout")):
        if (set_timeout := getattr(home, name, None)) is not None:
            set_timeout(timeout)
            return
    _log.warning(
        "train_config.process_timeout_secs: torch %s cannot change the timeout of collectives; they "
        "wait for %g s",
        torch.__version__,
        DEFAULT_TIMEOUT_SECS,
    )
