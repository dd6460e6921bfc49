"""Bytes between the processes of one machine, through memory that all of them have mapped.

    memory    token │ counters │ ring 0→1 │ ring 0→2 │ … │ ring n→n−1

    a ring                 tail          head            of one sender and one receiver;
              ─────────────▒▒▒▒▒▒▒▒▒▒▒▒▒▒──────────      tail and head count all bytes ever
                 room       not read yet    room         read and written

    sender    copies a piece behind head, then raises head
    receiver  copies a piece from tail on, then raises tail

Nothing else is shared, and each counter has one writer. A counter is raised after the bytes it speaks of
were copied, and x86 processors show their writes to others in that order; elsewhere there are no rings.

A transfer is posted, which copies what there is room for, and waited for. Whoever waits, for whatever
transfer, moves all that were posted, in their order: so rings of any size suffice, and nobody waits in a
circle. Waiting is looking again and again, and soon sleeping, for longer the longer it has lasted. The memory
has no name in any file system (a memfd, which others open through /proc), so /dev/shm limits nothing and
nothing is left when processes die. Each holds a lock of it, which the kernel takes back when the process ends
in whatever way: that is how those that wait see it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOKEN_BYTES = 16
LINE = 64  # bytes that processors hand each other at a time
PAGE = 4096
PIECE_BYTES = 1 << 20  # fits a core's own cache, and lets the receiver begin before all is written
TOTAL_BYTES = 64 << 20
SMALLEST_RING, LARGEST_RING = 64 << 10, 16 << 20
LOOKING_SECS = 150e-6  # before the first sleep: from one that is shorter a process would return late
PAUSE_SHARE = 0.125  # of the time that was waited so far
FIRST_PAUSE_SECS, LONGEST_PAUSE_SECS = 20e-6, 1e-3
LOOK_SECS = 0.25  # between looks at whether the others are alive


@dataclass
class Transfer:
    """What goes to the others and comes from them in one exchange.

    Attributes:
        left: parts that are not sent or received whole.
    """

    left: int = 0


@dataclass
class _Part:
    """Bytes for one other rank or from it, and how many of them have moved."""

    transfer: Transfer
    bytes: Tensor
    moved: int = 0

    @property
    def left(self) -> int:
        """Bytes of the ring that the rest takes: whole lines, so that the next part is aligned."""
        return -(-len(self.bytes) // LINE) * LINE - self.moved


@dataclass
class Rings:
    """This rank's ends of the rings of one machine; for one thread at a time.

    Attributes:
        file: descriptor of the memory.
        memory: mapped.
        rank, ranks: of the processes.
        capacity: bytes of a ring.
        timeout_secs: how long to wait without any byte moving.
    """

    file: int
    memory: mmap.mmap
    rank: int
    ranks: int
    capacity: int
    timeout_secs: float
    _counters: Any = field(init=False)
    _bytes: Any = field(init=False)
    _sends: dict[int, deque[_Part]] = field(init=False)
    _receives: dict[int, deque[_Part]] = field(init=False)

    def __post_init__(self) -> None:
        self._bytes = torch.frombuffer(self.memory, dtype=torch.uint8)
        # Head and tail have lines of their own: [sender, receiver, head or tail, 0].
        counters = np.frombuffer(self.memory, np.int64, self.ranks**2 * 2 * LINE // 8, PAGE)
        self._counters = counters.reshape(self.ranks, self.ranks, 2, LINE // 8)
        others = [rank for rank in range(self.ranks) if rank != self.rank]
        self._sends = {rank: deque() for rank in others}
        self._receives = {rank: deque() for rank in others}

    def post(self, sends: Sequence[Tensor | None], receives: Sequence[Tensor | None]) -> Transfer:
        """Begin to send and to receive bytes; by rank, with nothing for this one.

        What one rank sends to another must be as long as what the other receives, transfer by transfer. The
        tensors must stay as they are until the transfer was waited for.
        """
        transfer = Transfer()
        for parts, queues in ((sends, self._sends), (receives, self._receives)):
            for rank, part in enumerate(parts):
                if part is not None and len(part):
                    queues[rank].append(_Part(transfer, part))
                    transfer.left += 1
        self._move()
        return transfer

    def wait(self, transfer: Transfer) -> None:
        """Move bytes until this transfer is done.

        Raises:
            RuntimeError: another rank has ended, or for `timeout_secs` no byte has moved.
        """
        looked = since = time.monotonic()
        while transfer.left:
            if self._move():
                since = time.monotonic()
                continue
            now = time.monotonic()
            if now - since < LOOKING_SECS:
                os.sched_yield()  # the rank that is waited for may have to share this core
                continue
            if now - looked > LOOK_SECS:
                looked = now
                gone = self._gone()
                if gone is not None and not self._move():  # its last bytes may have come meanwhile
                    raise RuntimeError(f"connection closed by peer: rank {gone} has left the shared memory")
            if now - since > self.timeout_secs:
                raise RuntimeError(f"wait timeout: no byte came for {self.timeout_secs:g} s")
            time.sleep(min(max(PAUSE_SHARE * (now - since), FIRST_PAUSE_SECS), LONGEST_PAUSE_SECS))

    def close(self) -> None:
        """Leave: the others see it when they wait for this rank."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def _move(self) -> bool:
        """Move all that can be moved now; whether anything was."""
        moved = False
        for rank, queue in self._sends.items():
            while queue and self._push(rank, queue):
                moved = True
        for rank, queue in self._receives.items():
            while queue and self._pull(rank, queue):
                moved = True
        return moved

    def _push(self, rank: int, queue: deque[_Part]) -> bool:
        counters = self._counters[self.rank, rank]
        head, tail = int(counters[0, 0]), int(counters[1, 0])
        size = self._piece(queue[0], head, self.capacity - (head - tail))
        if size:
            at, own = self._place(self.rank, rank, head), queue[0].bytes[queue[0].moved :][:size]
            self._bytes[at : at + len(own)].copy_(own)
            counters[0, 0] = head + size
            _advance(queue, size)
        return size > 0

    def _pull(self, rank: int, queue: deque[_Part]) -> bool:
        counters = self._counters[rank, self.rank]
        head, tail = int(counters[0, 0]), int(counters[1, 0])
        size = self._piece(queue[0], tail, head - tail)
        if size:
            at, own = self._place(rank, self.rank, tail), queue[0].bytes[queue[0].moved :][:size]
            own.copy_(self._bytes[at : at + len(own)])
            counters[1, 0] = tail + size
            _advance(queue, size)
        return size > 0

    def _piece(self, part: _Part, count: int, possible: int) -> int:
        """Bytes to move now from where a counter stands: not beyond the ring's end."""
        return min(part.left, possible, PIECE_BYTES, self.capacity - count % self.capacity)

    def _place(self, sender: int, receiver: int, count: int) -> int:
        """Where the byte of a ring with this number lies in the memory."""
        number = sender * (self.ranks - 1) + receiver - (receiver > sender)
        return _counter_bytes(self.ranks) + number * self.capacity + count % self.capacity

    def _gone(self) -> int | None:
        """A rank that has ended, or left."""
        return next((rank for rank in self._sends if _lock(self.file, rank, keep=False)), None)


def _advance(queue: deque[_Part], size: int) -> None:
    queue[0].moved += size
    if not queue[0].left:
        queue.popleft().transfer.left -= 1


def _counter_bytes(ranks: int) -> int:
    """What lies before the rings: a page with the token, and two lines for each ring, in whole pages."""
    return PAGE + -(-ranks * ranks * 2 * LINE // PAGE) * PAGE


def _lock(file: int, rank: int, *, keep: bool) -> bool:
    """Take the lock of a rank, if nobody has it; it is this process's until the file is closed."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
    except OSError:
        return False
    if not keep:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, rank)
    return True


def open_rings(
    rank: int,
    ranks: int,
    gather: Callable[[Any], list[Any]],
    *,
    machine: str,
    timeout_secs: float,
    total_bytes: int = TOTAL_BYTES,
) -> Rings | str:
    """The rings of these ranks, or why there are none; all ranks are to call it, and get the same.

    Args:
        rank, ranks: of this process, and how many there are.
        gather: what each rank gives, to all of them.
        machine: equal for processes that can look into each other's /proc.
        timeout_secs: how long to wait for a rank.
        total_bytes: for all rings together.
    """
    reasons = [why for why in gather(_unable(ranks, total_bytes)) if why]
    if len(set(gather(machine))) > 1:
        reasons.append("they are on several machines")
    if reasons:
        return str(reasons[0])
    capacity = min(total_bytes // (ranks * (ranks - 1)), LARGEST_RING) // PAGE * PAGE
    size = _counter_bytes(ranks) + ranks * (ranks - 1) * capacity
    file, token, reason = -1, secrets.token_bytes(TOKEN_BYTES), ""
    if rank == 0:
        file, reason = _attempt(lambda: _create(size, token))
    pid, number, token, reason = gather((os.getpid(), file, token, reason))[0]
    if not reason:
        if rank:
            file, reason = _attempt(lambda: os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC))
        rings, reason = _attempt(lambda: _map(file, size, token, rank, ranks, capacity, timeout_secs), reason)
        reason = next(filter(None, gather(reason)), "")
        if not reason:
            assert isinstance(rings, Rings)
            return rings
    if file >= 0:
        os.close(file)
    return reason


def _unable(ranks: int, total_bytes: int) -> str:
    if not hasattr(os, "memfd_create") or platform.machine() not in ("x86_64", "AMD64"):
        return "this is not Linux on x86"
    if total_bytes // (ranks * (ranks - 1)) < SMALLEST_RING:
        return f"{ranks} ranks are too many"
    return ""


def _attempt(work: Callable[[], Any], reason: str = "") -> tuple[Any, str]:
    """What the work gives, and why it does not; work that has a reason not to be done is not."""
    if reason:
        return -1, reason
    try:
        return work(), ""
    except (OSError, ValueError) as error:
        return -1, f"{type(error).__name__}: {error}"


def _create(size: int, token: bytes) -> int:
    file = os.memfd_create("recgrad", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(file, 0, size)  # a lack of memory is said here, not by a signal later
        os.pwrite(file, token, 0)
    except OSError:
        os.close(file)
        raise
    return file


def _map(
    file: int, size: int, token: bytes, rank: int, ranks: int, capacity: int, timeout_secs: float
) -> Rings:
    memory = mmap.mmap(file, size)
    if memory[:TOKEN_BYTES] != token:
        raise ValueError("the memory that was opened is another")
    if not _lock(file, rank, keep=True):
        raise ValueError(f"the lock of rank {rank} is taken")
    return Rings(file, memory, rank, ranks, capacity, timeout_secs)
