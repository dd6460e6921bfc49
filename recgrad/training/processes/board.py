"""The notice board of a run: what each rank does, who failed first, who has left.

It lives in the store that the ranks met at: in the launcher, which outlives every rank, or else
in rank 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from recgrad.errors import RecgradError
from recgrad.training.processes.environment import Environment

# An answer of the store takes milliseconds; a store that needs more has trouble of its own.
ANSWER_SECS = 10.0
# What a rank is doing until all have come: the launcher goes by it when one of them never will.
MEETING = "meeting the other ranks"


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life.

    Attributes:
        host: the machine and its space of process ids; equal means that `pid` can be looked up.
        started: when the process began, in the kernel's ticks, as its pid may be given again.
        number: of the sign of life, counting up.
        at: when it was given, as seconds since the epoch.
        doing: what the rank is at, since `since`; `moves` counts how often that has changed.
        waiting: whether it waits for other ranks.
        where: the line of code.
    """

    rank: int
    host: str
    pid: int
    started: int
    number: int
    at: float
    doing: str
    since: float
    moves: int
    waiting: bool
    where: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the run ends: what the first rank to notice has said.

    Attributes:
        rank: of the process that says it.
        kind: "error" of the rank itself that the user can fix, "crash" of the rank itself that is
            not foreseen, "late" or "gone" of another rank, "stopped" by an interrupt.
    """

    rank: int
    host: str
    kind: str
    message: str


class Board:
    """Reads and writes the notices of one start of the run."""

    def __init__(self, store: Store, world_size: int, restarts: int) -> None:
        # A store that outlives a restart must not show the notices of the start before.
        self._store = PrefixStore(f"recgrad/{restarts}", store)
        self._world_size = world_size

    def beat(self, beat: Beat) -> None:
        """Leave a sign of life."""
        self._store.set(f"beat/{beat.rank}", json.dumps(asdict(beat)))

    def beats(self) -> list[Beat | None]:
        """The last sign of life of each rank; None of one that has not begun."""
        return [self.beat_of(rank) for rank in range(self._world_size)]

    def beat_of(self, rank: int) -> Beat | None:
        """The last sign of life of a rank."""
        text = self._read(f"beat/{rank}")
        return None if text is None else Beat(**json.loads(text))

    def fail(self, failure: Failure) -> Failure:
        """Publish why the run ends; returns what was published first."""
        text = self._store.compare_set("failure", "", json.dumps(asdict(failure)))
        return Failure(**json.loads(text))

    def failure(self) -> Failure | None:
        """Why the run ends, if it does."""
        text = self._read("failure")
        return None if text is None else Failure(**json.loads(text))

    def add(self, name: str, amount: int = 1) -> int:
        """Count ranks that have come to a place; returns the count."""
        return int(self._store.add(f"count/{name}", amount))

    def set_launcher(self) -> None:
        """Say that a launcher watches the ranks and reports the death of one."""
        self._store.set("launcher", "recgrad")

    def has_launcher(self) -> bool:
        """Whether a launcher reports the death of a rank."""
        return self._read("launcher") is not None

    def _read(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None


def connect(environment: Environment, timeout_secs: float, *, host: bool | None = None) -> TCPStore:
    """A connection to the store of the run, which rank 0 holds where no launcher does."""
    place = f"{environment.master_addr}:{environment.master_port}"
    hosts = environment.rank == 0 and not environment.agent_store if host is None else host
    try:
        return TCPStore(
            environment.master_addr,
            environment.master_port,
            environment.world_size,
            is_master=hosts,
            timeout=timedelta(seconds=timeout_secs),
            wait_for_workers=False,
        )
    except (RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error):
            raise RecgradError(
                f"MASTER_PORT {environment.master_port} is in use on this machine; give another "
                "(torchrun --master-port=PORT), or none to have a free one chosen"
            ) from error
        raise RecgradError(
            f"rank {environment.rank} cannot reach {place} (MASTER_ADDR:MASTER_PORT) within "
            f"{timeout_secs:g} s; is rank 0 up, and does the network let it through?"
        ) from error


def known(beats: Sequence[Beat | None]) -> list[Beat]:
    """The signs of life of the ranks that have begun."""
    return [beat for beat in beats if beat is not None]
