"""Which kernels look up and update each table, and how it may be spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recgrad.embedding.build import TableOptimizer
from recgrad.embedding.sharded.fbgemm import why_not_fused
from recgrad.embedding.spec import COMPUTE_KERNELS, SHARDING_TYPES, TableSpec
from recgrad.errors import ConfigError, Problem

FUSED, FUSED_UVM, FUSED_UVM_CACHING, OWN = COMPUTE_KERNELS
_SHOWN = 3
_WHOLE, _COLUMNS, _COPIES = "table_wise", "column_wise", "data_parallel"


@dataclass(frozen=True)
class KernelChoice:
    """What a table gets.

    Attributes:
        kernel: one of TorchRec's names in `COMPUTE_KERNELS`.
        sharding_types: how it may be spread; empty for any way.
        optimizer: of the table; None for a frozen one.
    """

    kernel: str
    sharding_types: tuple[str, ...]
    optimizer: TableOptimizer | None

    @property
    def fused(self) -> bool:
        """FBGEMM's kernels, not ours."""
        return self.kernel != OWN


def choose_kernels(
    specs: Sequence[TableSpec],
    optimizers: Mapping[str, TableOptimizer],
    *,
    devices: Sequence[str] = ("cpu", "cuda"),
    paths: Mapping[tuple[str, str], str] | None = None,
) -> dict[str, KernelChoice]:
    """For each table the first of its kernels that can be had on one of the devices.

    Args:
        specs: tables with what the config allows for them.
        optimizers: by table.
        devices: "cpu", "cuda"; both where it is not known yet which it will be.
        paths: by table and field (compute_kernels, sharding_types), where the config has it.

    Raises:
        ConfigError: tables for which there is none.
    """
    choices: dict[str, KernelChoice] = {}
    problems: dict[tuple[str, str], list[str]] = {}
    for spec in specs:
        optimizer = optimizers.get(spec.name) if spec.trainable else None
        found = next(filter(None, (_choice(spec, optimizer, device) for device in devices)), None)
        if found is not None:
            choices[spec.name] = found
        else:
            field, what = _problem(spec, optimizer, devices)
            path = (paths or {}).get((spec.name, field), field)
            problems.setdefault((path, what), []).append(spec.name)
    if problems:
        raise ConfigError(
            Problem(path, f"{_named(names)} {what}") for (path, what), names in problems.items()
        )
    return choices


def _named(tables: Sequence[str]) -> str:
    names = ", ".join(f"'{name}'" for name in tables[:_SHOWN])
    more = f" and {len(tables) - _SHOWN} more" if len(tables) > _SHOWN else ""
    return f"{'tables' if len(tables) > 1 else 'table'} {names}{more}"


def _choice(spec: TableSpec, optimizer: TableOptimizer | None, device: str) -> KernelChoice | None:
    best = (FUSED, OWN) if device == "cuda" else (OWN,)
    for kernel in spec.compute_kernels or best:
        types = _types(spec, optimizer, kernel)
        if _why_not(spec, optimizer, kernel, device) is None and (types or not spec.sharding_types):
            return KernelChoice(kernel, types, optimizer)
    return None


def _types(spec: TableSpec, optimizer: TableOptimizer | None, kernel: str) -> tuple[str, ...]:
    """What is left of the ways in which the config lets a table be spread."""
    if spec.living is not None:
        return tuple(kind for kind in spec.sharding_types if kind == _WHOLE)
    whole_rows = optimizer is not None and optimizer.kind.needs_whole_rows(optimizer.settings)
    barred = {_COLUMNS} if whole_rows else set()
    barred |= {_COPIES} if kernel != OWN else set()
    return tuple(kind for kind in spec.sharding_types if kind not in barred)


def _why_not(spec: TableSpec, optimizer: TableOptimizer | None, kernel: str, device: str) -> str | None:
    if kernel == OWN:
        return None
    if spec.living is not None:
        return "its rows belong to ids as they come (zch, dynamicemb), which needs our own"
    if kernel != FUSED and device != "cuda":
        return "it keeps rows in host memory for a GPU, and there is none"
    return why_not_fused(spec, optimizer, device)


def _problem(spec: TableSpec, optimizer: TableOptimizer | None, devices: Sequence[str]) -> tuple[str, str]:
    """The field that is to be changed, and why."""
    if spec.living is not None and spec.sharding_types and not _types(spec, optimizer, OWN):
        return (
            "sharding_types",
            f"may not lie whole on a rank, as zch and dynamicemb need; allow {_WHOLE}",
        )
    if spec.sharding_types and not _types(spec, optimizer, OWN):
        assert optimizer is not None
        others = ", ".join(kind for kind in SHARDING_TYPES if kind != _COLUMNS)
        return (
            "sharding_types",
            f"may be spread by columns alone, but {optimizer.field} needs whole rows; allow one of {others}",
        )
    reasons = []
    for kernel in spec.compute_kernels:
        why = _why_not(spec, optimizer, kernel, devices[-1])
        why = why or "copies of a table (data_parallel) have our own kernels only"
        reasons.append(f"{kernel} ({why})")
    return "compute_kernels", f"cannot have {' or '.join(reasons)}; add {OWN}, which has everything"
