"""Optimizers: rates, betas and the rest in their ranges; patterns that compile."""

from __future__ import annotations

import re

from recgrad.check.rule import CHECKS, Context, Node, number
from recgrad.config.proto.optimizer_pb2 import NONE
from recgrad.config.values import show

_INFINITY = float("inf")
# field: low, high, whether low and high themselves are left out
_RANGES: dict[str, tuple[float, float, bool, bool]] = {
    "lr": (0, _INFINITY, False, False),
    "fallback_lr": (0, _INFINITY, False, False),
    "beta1": (0, 1, False, True),
    "beta2": (0, 1, False, True),
    "fallback_beta1": (0, 1, False, True),
    "fallback_beta2": (0, 1, False, True),
    "shampoo_beta": (0, 1, False, True),
    "momentum": (0, 1, False, True),
    "rho": (0, 1, False, False),
    "alpha": (0, 1, False, False),
    "dampening": (0, 1, False, False),
    "momentum_decay": (0, _INFINITY, False, False),
    "eps": (0, _INFINITY, True, False),
    "eps1": (0, _INFINITY, True, False),
    "eps2": (0, _INFINITY, True, False),
    "fallback_eps": (0, _INFINITY, True, False),
    "d": (0, _INFINITY, True, False),
    "trust_coefficient": (0, _INFINITY, True, False),
    "max_gradient": (0, _INFINITY, True, False),
    "weight_decay": (0, _INFINITY, False, False),
    "fallback_weight_decay": (0, _INFINITY, False, False),
    "initial_accumulator_value": (0, _INFINITY, False, False),
    "l1": (0, _INFINITY, False, False),
    "l2": (0, _INFINITY, False, False),
    "lr_power": (-_INFINITY, 0, False, False),
    "beta2_decay": (-_INFINITY, 0, False, True),
    "ns_steps": (1, _INFINITY, False, False),
    "precondition_frequency": (1, _INFINITY, False, False),
    "max_precondition_dim": (0, _INFINITY, False, False),
    "r": (0, _INFINITY, False, False),
    "weight_lr_power": (0, _INFINITY, False, False),
}
_MAX_PATTERN = 1000


def optimizers(context: Context) -> list[tuple[str, Node]]:
    """Names and messages of all optimizers that are not refused."""
    found = []
    for node in context.of("DenseOptimizer", "SparseOptimizer", "PartOptimizer", "SparsePartOptimizer"):
        chosen = context.chosen(node, "optimizer")
        if chosen is not None:
            found.append((str(node.message.WhichOneof("optimizer")), chosen))
    return found


@CHECKS.register("optimizer ranges")
def check_ranges(context: Context) -> None:
    """Every number of an optimizer is in its range."""
    for name, node in optimizers(context):
        fields = node.message.DESCRIPTOR.fields_by_name
        for field, (low, high, above, below) in _RANGES.items():
            if field in fields and (fields[field].has_default_value or node.message.HasField(field)):
                context.ranged(node, field, low, high, above=above, below=below)
        if name == "schedule_free_sgd_optimizer":
            context.ranged(node, "momentum", 0, 1, above=True, below=True)
        _check_nesterov(context, node)
    for node in context.of("EMAConfig"):
        context.ranged(node, "decay", 0, 1, below=True)


@CHECKS.register("optimizer switches")
def check_switches(context: Context) -> None:
    """Numbers that have no effect because of a switch beside them."""
    for _, node in optimizers(context):
        message = node.message
        fields = message.DESCRIPTOR.fields_by_name
        if (
            "gradient_clipping" in fields
            and message.HasField("max_gradient")
            and not message.gradient_clipping
        ):
            what = "has no effect without gradient_clipping: true; set that, or remove it"
            context.problem(node.at("max_gradient"), what)
        if "weight_decay_mode" not in fields or not message.weight_decay:
            continue
        explicit = message.HasField("weight_decay_mode") or fields["weight_decay_mode"].has_default_value
        if explicit and message.weight_decay_mode == NONE:
            what = "has no effect with weight_decay_mode NONE; set the mode to L2 or DECOUPLE"
            context.problem(node.at("weight_decay"), f"{number(message.weight_decay)} {what}")


@CHECKS.register("optimizer patterns")
def check_patterns(context: Context) -> None:
    """Patterns of part_optimizers compile, and none stands twice."""
    seen: set[tuple[str, str]] = set()
    for node in context.of("PartOptimizer", "SparsePartOptimizer"):
        pattern = node.message.regex_pattern
        path = node.at("regex_pattern")
        problem = _pattern_problem(pattern)
        if problem:
            context.problem(path, f"{show(pattern)} is not a pattern: {problem}")
        elif (node.kind, pattern) in seen and pattern:
            context.problem(path, f"{show(pattern)} is given twice; the first would take all that it matches")
        seen.add((node.kind, pattern))


def _check_nesterov(context: Context, node: Node) -> None:
    message = node.message
    if not getattr(message, "nesterov", None) or node.kind == "MuonOptimizer":
        return
    if not message.momentum or getattr(message, "dampening", None):
        context.problem(node.at("nesterov"), "needs a momentum above 0 and no dampening")


def _pattern_problem(pattern: str) -> str | None:
    if len(pattern) > _MAX_PATTERN:
        return f"longer than {_MAX_PATTERN} characters"
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error)
    except (RecursionError, OverflowError):
        return "nested or repeated too often"
    return None
