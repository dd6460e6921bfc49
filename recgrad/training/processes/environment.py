"""What torchrun told this process of itself, read in this one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from recgrad.errors import RecgradError

# One of these says that the process is one of several; MASTER_ADDR alone may belong to the cluster.
SIGNS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
NEEDED = (*SIGNS, "MASTER_ADDR", "MASTER_PORT")
REMEDY = (
    "start with `recgrad train CONFIG --nproc N` or `torchrun --nproc-per-node=N -m recgrad.train_eval ...`"
)
LARGEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Environment:
    """This process among those of the run; the defaults are those of a process alone.

    Attributes:
        distributed: whether a launcher started it; a launcher may start one process only.
        agent_store: whether the launcher holds the store, so that it outlives every rank.
        restarts: how often the launcher has started the run again.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str = ""
    master_port: int = 0
    restarts: int = 0
    agent_store: bool = False
    distributed: bool = False


def read_environment(env: Mapping[str, str] | None = None) -> Environment:
    """The process as torchrun's variables describe it; without any, a process alone."""
    env = os.environ if env is None else env
    if not any(name in env for name in SIGNS):
        return Environment()
    missing = [name for name in NEEDED if not env.get(name, "").strip()]
    if missing:
        given = next(f"{name}={env[name]}" for name in SIGNS if name in env)
        raise RecgradError(f"environment: {given} is set but not {', '.join(missing)}; {REMEDY}")
    found = Environment(
        rank=_number(env, "RANK"),
        world_size=_number(env, "WORLD_SIZE"),
        local_rank=_number(env, "LOCAL_RANK"),
        local_world_size=_number(env, "LOCAL_WORLD_SIZE"),
        master_addr=env["MASTER_ADDR"].strip(),
        master_port=_number(env, "MASTER_PORT"),
        restarts=_number(env, "TORCHELASTIC_RESTART_COUNT", 0),
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        distributed=True,
    )
    _check_fit(found)
    return found


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A whole number that is not negative."""
    text = env.get(name, "").strip()
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit()):
        raise RecgradError(f"environment: {name} must be a number from 0, got '{env.get(name)}'; {REMEDY}")
    return int(text)


def _check_fit(found: Environment) -> None:
    problem = ""
    if found.world_size < 1:
        problem = f"WORLD_SIZE must be at least 1, got {found.world_size}"
    elif found.rank >= found.world_size:
        problem = f"RANK {found.rank} is not below WORLD_SIZE {found.world_size}"
    elif found.local_rank >= found.local_world_size:
        problem = f"LOCAL_RANK {found.local_rank} is not below LOCAL_WORLD_SIZE {found.local_world_size}"
    elif found.local_world_size > found.world_size:
        problem = f"LOCAL_WORLD_SIZE {found.local_world_size} is above WORLD_SIZE {found.world_size}"
    elif not 1 <= found.master_port <= LARGEST_PORT:
        problem = f"MASTER_PORT must be from 1 to {LARGEST_PORT}, got {found.master_port}"
    if problem:
        raise RecgradError(f"environment: {problem}; {REMEDY}")
