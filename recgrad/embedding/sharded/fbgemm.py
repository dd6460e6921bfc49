"""Which sparse optimizers FBGEMM's fused kernels have, with the same formula as ours.

FBGEMM 1.8, its Python package and the sources of its kernels:

| ours | FBGEMM | weight decay there | devices |
| --- | --- | --- | --- |
| SGD | EXACT_SGD | none | cpu, cuda |
| Adagrad | EXACT_ADAGRAD | none | cpu, cuda |
| RowWiseAdagrad | EXACT_ROWWISE_ADAGRAD | both modes as ours on cuda; wrong for bags on cpu | cpu, cuda |
| Adam | ADAM | decoupled: w −= η(m̂/(√v̂ + ε) + λw) | cuda |
| PartialRowWiseAdam | PARTIAL_ROWWISE_ADAM | the same | cuda |

LAMB kinds and LARS are left out: their trust ratio is 0 for a row of zeros, which then never moves, and
NaN where both norms are 0. Everything else of ours is not there at all. Each element of the outputs'
gradients is clamped before FBGEMM sees them, so its own clipping stays off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recgrad.embedding.build import TableOptimizer
from recgrad.embedding.spec import TableSpec
from recgrad.optim.sparse import (
    SGD,
    Adagrad,
    Adam,
    Lamb,
    LarsSGD,
    PartialRowWiseAdam,
    PartialRowWiseLamb,
    RowWiseAdagrad,
    SparseOptimizer,
)

COLUMNS = 4  # FBGEMM's kernels load four numbers at a time


@dataclass(frozen=True)
class FusedRule:
    """An optimizer of FBGEMM that computes what one of ours does.

    Attributes:
        optim_type: its name in FBGEMM's EmbOptimType.
        settings: those of ours that FBGEMM takes under the same names, besides lr.
        decay_modes: by device, the modes of weight decay that come out right.
    """

    optim_type: str
    settings: tuple[str, ...]
    decay_modes: Mapping[str, tuple[str, ...]]


_ADAM = ("eps", "beta1", "beta2", "weight_decay")
_UNDECAYED = {"cpu": ("NONE",), "cuda": ("NONE",)}
RULES: dict[type[SparseOptimizer], FusedRule] = {
    SGD: FusedRule("EXACT_SGD", (), _UNDECAYED),
    Adagrad: FusedRule("EXACT_ADAGRAD", ("eps",), _UNDECAYED),
    RowWiseAdagrad: FusedRule(
        "EXACT_ROWWISE_ADAGRAD",
        ("eps", "weight_decay"),
        {"cpu": ("NONE",), "cuda": ("NONE", "L2", "DECOUPLE")},
    ),
    Adam: FusedRule("ADAM", _ADAM, {"cuda": ("NONE", "DECOUPLE")}),
    PartialRowWiseAdam: FusedRule("PARTIAL_ROWWISE_ADAM", _ADAM, {"cuda": ("NONE", "DECOUPLE")}),
}
_OTHER_FORMULA: tuple[type[SparseOptimizer], ...] = (Lamb, PartialRowWiseLamb, LarsSGD)


def decay_mode(settings: Mapping[str, Any]) -> str:
    """The mode of weight decay that has an effect."""
    return str(settings["weight_decay_mode"]) if settings["weight_decay"] else "NONE"


def fused_arguments(rule: FusedRule, settings: Mapping[str, Any]) -> dict[str, float]:
    """Hyperparameters of a param group by FBGEMM's names."""
    return {"lr": float(settings["lr"]), **{name: float(settings[name]) for name in rule.settings}}


def why_not_fused(spec: TableSpec, optimizer: TableOptimizer | None, device: str) -> str | None:
    """What keeps a table from having FBGEMM's kernels on a device ("cpu" or "cuda"); None if nothing does."""
    if spec.data_type != "FP32":
        return f"FBGEMM rounds {spec.data_type} rows by random bits that no checkpoint keeps"
    if spec.dim % COLUMNS:
        return f"FBGEMM needs a dim that is a multiple of {COLUMNS}, this one is {spec.dim}"
    if optimizer is None or not spec.trainable:
        return None
    rule = RULES.get(optimizer.kind)
    if rule is None:
        differs = optimizer.kind in _OTHER_FORMULA
        return f"FBGEMM has {'another formula for' if differs else 'no'} {optimizer.field}"
    if device not in rule.decay_modes:
        return f"FBGEMM has {optimizer.field} on GPUs only"
    if not optimizer.settings.get("lazy", True):
        return f"FBGEMM's {optimizer.field} leaves untouched rows alone, and lazy is false"
    mode = decay_mode(optimizer.settings)
    if mode not in rule.decay_modes[device]:
        wrong = mode in rule.decay_modes.get("cuda", ())
        kind = f"weight_decay of {optimizer.field} with mode {mode}"
        return f"FBGEMM gets {kind} wrong on CPUs" if wrong else f"FBGEMM has no {kind}"
    return None
